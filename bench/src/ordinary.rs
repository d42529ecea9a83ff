//! The second pass: the same as an ordinary user, in a process of its own.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::options::Options;
use crate::program::Glass;
use crate::report::{Mode, Report};

/// An ordinary user. No account is needed for it.
const ORDINARY: u32 = 61_234;

/// Measures as the ordinary user. A pass that does not come about is a report that says so.
pub(crate) fn pass(options: &Options, glass: Glass) -> Result<Report> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(&options.home)?;
    let report = measure(options, glass, &dir)
        .unwrap_or_else(|error| Report::failed(Mode::Rootless, &format!("{error:#}")));
    dir.close().context("cannot remove the directory of the second pass")?;
    Ok(report)
}

fn measure(options: &Options, glass: Glass, dir: &tempfile::TempDir) -> Result<Report> {
    // The programs are copied to where that user can reach them.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let bench = dir.path().join("glass-bench");
    fs::copy(std::env::current_exe()?, &bench).context("cannot copy this program")?;
    let home = dir.path().join("ordinary");
    fs::create_dir(&home)?;
    chown(&home, Some(ORDINARY), Some(ORDINARY)).context("cannot give a directory away")?;
    let mut command = Command::new(&bench);
    command.args(options.for_ordinary()).arg("--home").arg(&home);
    match glass.path() {
        Ok(path) => {
            let copy = dir.path().join("glass");
            fs::copy(path, &copy).with_context(|| format!("cannot copy {}", path.display()))?;
            command.arg("--glass").arg(copy)
        }
        Err(why) => command.arg("--no-glass").arg(why),
    };
    command
        .uid(ORDINARY)
        .gid(ORDINARY)
        .current_dir("/")
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start the second pass")?;
    if !output.status.success() {
        bail!("the second pass ended with {}", output.status);
    }
    let value =
        serde_json::from_slice(&output.stdout).context("the second pass does not tell what it found")?;
    Report::from_json(&value).context("the second pass tells what nobody understands")
}
