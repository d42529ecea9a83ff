//! Kernels of Jupyter's: ipykernel and bash_kernel of PyPI, and some that lie, in one directory that can be a volume.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::json;

use crate::python;

/// The kernelspecs that are there beside ipykernel's own: name, language, command, how it is interrupted.
const SPECS: [(&str, &str, &[&str], &str); 9] = [
    ("bash", "bash", &["python", "-m", "bash_kernel", "-f", "{connection_file}"], "signal"),
    ("asked", "python", &["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "message"),
    ("missing", "x", &["/no/such/program", "{connection_file}"], "signal"),
    ("failing", "x", &["python", "-c", "import sys; sys.exit('it has no ' + 'legs')"], "signal"),
    ("garbage", "x", &["python", "{resource_dir}/fake.py", "{connection_file}", "garbage"], "signal"),
    ("unsigned", "x", &["python", "{resource_dir}/fake.py", "{connection_file}", "unsigned"], "signal"),
    ("huge", "x", &["python", "{resource_dir}/fake.py", "{connection_file}", "huge"], "signal"),
    ("shapeless", "x", &["python", "{resource_dir}/fake.py", "{connection_file}", "shapeless"], "signal"),
    ("mute", "x", &["python", "{resource_dir}/fake.py", "{connection_file}", "mute"], "signal"),
];

/// A Python that has the kernels; `bin` below it belongs into `PATH`.
///
/// # Errors
/// If it cannot be made, why.
pub fn kernels() -> Result<PathBuf, String> {
    static KERNELS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    KERNELS.get_or_init(install).clone()
}

fn install() -> Result<PathBuf, String> {
    let python = python::python("python-kernels", include_str!("kernels/packages.txt"))?;
    let dir = python.parent().and_then(Path::parent).ok_or("a Python is in a directory")?.to_owned();
    for (name, language, argv, interrupt_mode) in SPECS {
        let kernel = dir.join("share/jupyter/kernels").join(name);
        let spec = json!({
            "argv": argv, "display_name": name, "language": language, "interrupt_mode": interrupt_mode,
            "env": { "PS1": "$", "SAID": "${PATH}!" },
        });
        std::fs::create_dir_all(&kernel)
            .and_then(|()| std::fs::write(kernel.join("fake.py"), include_str!("kernels/fake.py")))
            .and_then(|()| std::fs::write(kernel.join("kernel.json"), spec.to_string()))
            .map_err(|e| e.to_string())?;
    }
    Ok(dir)
}
