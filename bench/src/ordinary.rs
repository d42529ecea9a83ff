//! The second pass: the same as an ordinary user, in a process of its own.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::memory;
use crate::options::Options;
use crate::program::Glass;
use crate::report::{Mode, Report};

/// An ordinary user. No account is needed for it.
pub(crate) const ORDINARY: u32 = 61_234;

/// Measures as the ordinary user. A pass that does not come about is a report that says so.
pub(crate) fn pass(options: &Options, glass: Glass) -> Result<Report> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(&options.home)?;
    let report = measure(options, glass, &dir);
    dir.close().context("cannot remove the directory of the second pass")?;
    Ok(report.unwrap_or_else(|error| Report::failed(Mode::Rootless, &format!("{error:#}"))))
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
    command.uid(ORDINARY).gid(ORDINARY).current_dir("/");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the second pass")?;
    let report = listen(&mut child);
    let status = child.wait().context("cannot wait for the second pass")?;
    if !status.success() {
        bail!("the second pass ended with {status}");
    }
    report
}

/// Answers what the second pass asks, until it tells what it found.
fn listen(child: &mut Child) -> Result<Report> {
    let (Some(mut to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
        bail!("the second pass cannot be talked to");
    };
    for line in BufReader::new(from).lines() {
        let value = serde_json::from_str(&line?).context("the second pass says what is no JSON")?;
        match memory::answer(&value) {
            Some(answer) => writeln!(to, "{answer}")?,
            None => {
                return Report::from_json(&value).context("the second pass tells what nobody understands");
            }
        }
    }
    bail!("the second pass ended without a word");
}
