//! Node.js of npm, below the target directory: releases that strip types, wherever the machine's own does not. Made once.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The first that writes anew what is more than types, and the one that leaves that alone. Each is in a directory of this name.
pub const RELEASES: [(&str, &str); 2] = [("node22", "22.23.3"), ("node26", "26.10.0")];

/// Where they are: `node22/bin/node`, and so on.
///
/// # Errors
/// If they cannot be had, why.
pub fn nodes() -> Result<PathBuf, String> {
    static NODES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    NODES.get_or_init(install).clone()
}

fn install() -> Result<PathBuf, String> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => return Err(format!("npm has no Node.js for {other}")),
    };
    let package = |(name, version): (&str, &str)| format!("{name}@npm:node-linux-{machine}@{version}");
    let packages = RELEASES.map(package);
    let test = std::env::current_exe().expect("a test knows where it is");
    let dir = test.ancestors().nth(3).expect("target/<profile>/deps").join("node-releases");
    // The mark is written last, and names what is there.
    let (modules, complete) = (dir.join("node_modules"), dir.join("complete"));
    if std::fs::read_to_string(&complete).is_ok_and(|there| there == packages.join(" ")) {
        return Ok(modules);
    }
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir)
        .and_then(|()| std::fs::write(dir.join("package.json"), "{}"))
        .map_err(|e| e.to_string())?;
    let quiet = ["install", "--ignore-scripts", "--no-audit", "--no-fund"];
    let npm = Command::new("npm").args(quiet).args(&packages).current_dir(&dir).output();
    let npm = npm.map_err(|e| format!("npm: {e}"))?;
    if !npm.status.success() {
        return Err(format!("npm install {packages:?}: {}", String::from_utf8_lossy(&npm.stderr)));
    }
    std::fs::write(&complete, packages.join(" ")).map_err(|e| e.to_string())?;
    Ok(modules)
}
