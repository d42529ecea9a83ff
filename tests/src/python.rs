//! Pythons with packages of PyPI, below the target directory. Made once; it takes a while.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python that has these packages: the content of a file of requirements, all of them pinned.
///
/// # Errors
/// If it cannot be made, why.
pub fn python(name: &str, packages: &str) -> Result<PathBuf, String> {
    let test = std::env::current_exe().expect("a test knows where it is");
    let target = test.ancestors().nth(3).expect("target/<profile>/deps");
    let dir = target.join(name);
    let (python, complete, list) = (dir.join("bin/python"), dir.join("complete"), dir.join("packages.txt"));
    // The mark is written last, and names what is there.
    if std::fs::read_to_string(&complete).is_ok_and(|there| there == packages) {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&dir);
    let run = |program: &Path, args: &[&str]| {
        let output =
            Command::new(program).args(args).output().map_err(|e| format!("{}: {e}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{} {args:?}: {said}", program.display())) }
    };
    let text =
        |path: &Path| path.to_str().map(str::to_owned).ok_or("the target directory has no name in UTF-8");
    // The system's Python: test.sh has installed what this needs for that one.
    run(Path::new("/usr/bin/python3"), &["-m", "venv", &text(&dir)?])?;
    std::fs::write(&list, packages).map_err(|e| e.to_string())?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
    ];
    run(&python, &[pip.as_slice(), &["-r", &text(&list)?]].concat())?;
    std::fs::write(&complete, packages).map_err(|e| e.to_string())?;
    Ok(python)
}
