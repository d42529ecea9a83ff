//! Others that are Python packages: a process of theirs is told over a pipe whose turn it is, and says how long it took.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::options::Words;

/// What was asked for, where others take part.
pub(crate) struct Given {
    pub(crate) rounds: usize,
    pub(crate) home: PathBuf,
    /// The Python that has them.
    pub(crate) peers: Option<PathBuf>,
}

impl Given {
    /// `None`: for help, which was told.
    pub(crate) fn of(
        args: impl Iterator<Item = String>,
        name: &str,
        rounds: usize,
        help: &str,
    ) -> Result<Option<Given>> {
        let mut given = Given { rounds, home: PathBuf::from("/var/tmp"), peers: None };
        let mut words = Words::new(args);
        while words.go_on() {
            match words.name.as_str() {
                "--rounds" => given.rounds = words.number()?,
                "--home" => given.home = words.absolute()?,
                "--peers" => given.peers = Some(words.absolute()?),
                "--help" | "-h" => {
                    crate::print(help)?;
                    return Ok(None);
                }
                other => bail!("{other:?} is nothing that `{name}` knows\n{help}"),
            }
        }
        Ok(Some(given))
    }
}

/// A package of Python's.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a script that says `ready` when it is, and then answers each line with a number.
    pub(crate) fn start(python: &Path, name: &'static str, script: &str, args: &[&str]) -> Result<Peer> {
        let mut command = Command::new(python);
        command.args(["-c", script]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::null()).spawn().context("cannot start Python")?;
        let answers = BufReader::new(process.stdout.take().context("it has an output")?);
        let mut peer = Peer { name, process, answers };
        ensure!(peer.answer()? == "ready", "it is not installed there, or does not work here");
        Ok(peer)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// The number that it answers.
    pub(crate) fn ask(&mut self, what: &str) -> Result<u64> {
        let stdin = self.process.stdin.as_mut().context("it has an input")?;
        writeln!(stdin, "{what}").with_context(|| format!("{} has ended", self.name))?;
        self.answer()?.parse().with_context(|| format!("{} has ended", self.name))
    }

    /// One turn, which it times itself.
    pub(crate) fn turn(&mut self, what: &str) -> Result<Duration> {
        self.ask(what).map(Duration::from_nanos)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // At the end of its input it clears away what it has made.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
