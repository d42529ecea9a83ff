//! runc and crun: a bundle made on the spot, from the runtime's own idea of a good configuration.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::process::{CommandLine, find};
use super::{Absent, TRUE};
use crate::report::Mode;
use crate::stage::Stage;

pub(super) fn line(name: &str, stage: &Stage, mode: Mode) -> Result<CommandLine, Absent> {
    let program = find(name).map_err(Absent::Missing)?;
    if mode == Mode::Rootless {
        return Err(Absent::Missing("only measured as root".into()));
    }
    let bundle = stage.path().join(name);
    make(&program, &bundle).map_err(|error| Absent::Missing(format!("{error:#}")))?;
    let state = stage.path().join(format!("{name}-state"));
    let id = format!("glass-bench-{}", std::process::id());
    let words: [&std::ffi::OsStr; 7] = [
        program.as_ref(),
        "--root".as_ref(),
        state.as_ref(),
        "run".as_ref(),
        "--bundle".as_ref(),
        bundle.as_ref(),
        id.as_ref(),
    ];
    Ok(CommandLine::new(&words))
}

/// A bundle: `runc spec` with our program, no terminal, and a root that is busybox or the host's /usr.
fn make(program: &Path, bundle: &Path) -> Result<()> {
    let root = bundle.join("rootfs");
    let usr = fill(&root)?;
    let spec = Command::new(program).arg("spec").arg("--bundle").arg(bundle).stdin(Stdio::null()).output()?;
    ensure!(spec.status.success(), "`spec` failed: {}", String::from_utf8_lossy(&spec.stderr).trim());
    let path = bundle.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(TRUE);
    if let Some(usr) = usr {
        let mounts = config["mounts"].as_array_mut().context("the configuration has no mounts")?;
        mounts.push(usr);
    }
    Ok(fs::write(&path, config.to_string())?)
}

/// Fills a root for one program. The mount that it needs beside, if any.
pub(super) fn fill(root: &Path) -> Result<Option<Value>> {
    for dir in ["proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(root.join(dir))?;
    }
    if let Some(busybox) = static_busybox() {
        fs::create_dir_all(root.join("bin"))?;
        fs::copy(busybox, root.join("bin/busybox"))?;
        for name in ["true", "sleep"] {
            symlink("busybox", root.join("bin").join(name))?;
        }
        return Ok(None);
    }
    fs::create_dir_all(root.join("usr"))?;
    for name in ["bin", "sbin", "lib", "lib64"] {
        symlink(Path::new("usr").join(name), root.join(name))?;
    }
    let options = ["rbind", "ro", "nosuid", "nodev"];
    Ok(Some(json!({ "destination": "/usr", "type": "none", "source": "/usr", "options": options })))
}

/// busybox of Debian's `busybox-static`: one that needs no loader.
fn static_busybox() -> Option<&'static Path> {
    let path = Path::new("/bin/busybox");
    let bytes = fs::read(path).ok()?;
    let loader = b"/ld-linux";
    let dynamic = bytes.windows(loader.len()).take(4096).any(|window| window == loader);
    (!dynamic).then_some(path)
}
