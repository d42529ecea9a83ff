//! A process that runs to its end: what every contender but the library is.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// More of what a failed program said would not fit a table.
const REASON_CHARS_MAX: usize = 160;

/// A command line. Its program is an absolute path, because std can only vfork when it need not search.
#[derive(Debug, Clone)]
pub(crate) struct CommandLine {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
}

impl CommandLine {
    /// The program first.
    pub(crate) fn new(words: &[impl AsRef<std::ffi::OsStr>]) -> CommandLine {
        let mut words = words.iter().map(|word| word.as_ref().to_owned());
        let program = words.next().unwrap_or_default();
        CommandLine {
            program,
            args: words.collect(),
            env: vec![("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".into())],
        }
    }

    pub(super) fn env(mut self, key: &'static str, value: impl Into<OsString>) -> CommandLine {
        self.env.push((key, value.into()));
        self
    }

    pub(super) fn args(mut self, args: &[impl AsRef<std::ffi::OsStr>]) -> CommandLine {
        self.args.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_clear().envs(self.env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// From the call that starts it to its end, its output read.
    pub(crate) fn time(&self) -> Result<Duration> {
        let mut command = self.command();
        let start = Instant::now();
        let output = command.spawn().and_then(std::process::Child::wait_with_output);
        let time = start.elapsed();
        let output = output.with_context(|| format!("cannot run {}", self.program.display()))?;
        if !output.status.success() {
            bail!("{} ended with {}", self.program.display(), output.status);
        }
        Ok(time)
    }

    /// Runs it once, or says why it cannot be run.
    pub(super) fn try_once(&self) -> Result<(), String> {
        let output = self.command().stderr(Stdio::piped()).output();
        let output = output.map_err(|e| format!("{}: {e}", self.program.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let said: String = said.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect();
        Err(if said.is_empty() { output.status.to_string() } else { said })
    }
}

/// Where a program of the host is.
pub(super) fn find(name: &str) -> Result<std::path::PathBuf, String> {
    let dirs = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let mut paths = dirs.iter().map(|dir| std::path::Path::new(dir).join(name));
    paths.find(|path| path.is_file()).ok_or_else(|| "not installed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_the_program_said() {
        let line = CommandLine::new(&["/bin/sh", "-c", "echo no  such >&2; echo luck >&2; exit 3"]);
        assert_eq!(line.try_once(), Err("no such luck".to_owned()));
        assert!(line.time().is_err());
        assert_eq!(
            CommandLine::new(&["/bin/sh", "-c", "exit 3"]).try_once(),
            Err("exit status: 3".to_owned())
        );
    }

    #[test]
    fn a_program_that_works_has_a_time() {
        assert!(CommandLine::new(&["/bin/true"]).time().is_ok());
        assert!(CommandLine::new(&["/no/such/program"]).try_once().is_err());
    }
}
