//! The command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::program::Glass;

/// Rounds unless said otherwise.
const ROUNDS: usize = 200;
/// Rounds of `--quick`.
const ROUNDS_QUICK: usize = 20;
/// Idle boxes whose memory is measured, unless said otherwise.
const BOXES: usize = 200;

pub(crate) const HELP: &str = "\
What a box costs, side by side with what a user would pick instead.

Usage: cargo run --release -p glasshouse-bench -- [OPTIONS]

  --rounds N     turns of every contender [200]
  --quick        20 rounds
  --boxes N      idle boxes whose memory is measured [200]
  --only NAME    only rows whose name contains NAME, like `exec`, `bwrap`, `python/` or `memory` (repeatable)
  --home PATH    where the state directories are made, to choose the disk [/var/tmp]
  --glass PATH   the program to measure [built beside this one]
  --seed N       of the order of turns [1]
  --json PATH    write all figures and samples there, too
  --help         this

`glass-bench state` measures snapshots, resets and forks, `glass-bench record` what recording costs,
`glass-bench docker` boxes in containers beside docker and others, `glass-bench code` code that is
remembered beside ipykernel; each has its --help.
As root it measures twice: as root, and as an ordinary user. Figures are told, never judged: the exit code is 0
unless something could not be measured that should have been.";

/// What both walks understand.
#[derive(Debug, Clone)]
pub(crate) struct Common {
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    /// We are the second pass: print what was measured as JSON, for the first.
    pub(crate) ordinary: bool,
}

impl Common {
    pub(crate) fn new(rounds: usize) -> Common {
        Common { rounds, seed: 1, json: None, ordinary: false }
    }

    /// Takes the option that the words are at, if it is one of these. Whether it was.
    pub(crate) fn take(&mut self, words: &mut Words<impl Iterator<Item = String>>) -> Result<bool> {
        match words.name.as_str() {
            "--rounds" => self.rounds = words.number()?,
            "--seed" => self.seed = words.value()?.parse().context("a seed is a whole number")?,
            "--json" => self.json = Some(PathBuf::from(words.value()?)),
            "--ordinary" => self.ordinary = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The same for the second pass, which tells the first and writes no file.
    pub(crate) fn for_ordinary(&self) -> Vec<String> {
        vec!["--ordinary".into(), format!("--rounds={}", self.rounds), format!("--seed={}", self.seed)]
    }
}

/// The words of a command line, option by option: both `--name value` and `--name=value`.
pub(crate) struct Words<I> {
    args: I,
    /// The option that we are at.
    pub(crate) name: String,
    inline: Option<String>,
}

impl<I: Iterator<Item = String>> Words<I> {
    pub(crate) fn new(args: I) -> Words<I> {
        Words { args, name: String::new(), inline: None }
    }

    /// Goes to the next option. Whether there is one.
    pub(crate) fn go_on(&mut self) -> bool {
        let Some(arg) = self.args.next() else { return false };
        (self.name, self.inline) = match arg.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        true
    }

    pub(crate) fn value(&mut self) -> Result<String> {
        let value = self.inline.take().or_else(|| self.args.next());
        value.with_context(|| format!("{} wants a value", self.name))
    }

    pub(crate) fn number(&mut self) -> Result<usize> {
        let text = self.value()?;
        match text.parse() {
            Ok(0) | Err(_) => {
                bail!("{} wants a whole number from 1 on, and {text:?} is none", self.name)
            }
            Ok(number) => Ok(number),
        }
    }

    pub(crate) fn absolute(&mut self) -> Result<PathBuf> {
        Ok(std::path::absolute(self.value()?)?)
    }
}

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) common: Common,
    pub(crate) boxes: usize,
    pub(crate) only: Vec<String>,
    pub(crate) home: PathBuf,
    pub(crate) glass: Glass,
}

/// What the command line says.
#[derive(Debug)]
pub(crate) enum Asked<T> {
    Help,
    Measure(T),
}

impl Options {
    /// Whether a row is to be measured.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// The same for the second pass. Its home and its program are told anew, where it can reach them.
    pub(crate) fn for_ordinary(&self) -> Vec<String> {
        let mut args = self.common.for_ordinary();
        args.push(format!("--boxes={}", self.boxes));
        args.extend(self.only.iter().map(|only| format!("--only={only}")));
        args
    }
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Asked<Options>> {
    let mut options = Options {
        common: Common::new(ROUNDS),
        boxes: BOXES,
        only: Vec::new(),
        home: PathBuf::from("/var/tmp"),
        glass: Glass::Unknown,
    };
    let mut words = Words::new(args);
    while words.go_on() {
        if options.common.take(&mut words)? {
            continue;
        }
        match words.name.as_str() {
            "--quick" => options.common.rounds = ROUNDS_QUICK,
            "--boxes" => options.boxes = words.number()?,
            "--only" => options.only.push(words.value()?),
            "--home" => options.home = words.absolute()?,
            "--glass" => options.glass = Glass::At(words.absolute()?),
            "--no-glass" => options.glass = Glass::Missing(words.value()?),
            "--help" | "-h" => return Ok(Asked::Help),
            name => bail!("{name:?} is no option; --help lists them"),
        }
    }
    Ok(Asked::Measure(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(args: &[&str]) -> Result<Options> {
        match parse(args.iter().map(|arg| arg.to_string()))? {
            Asked::Measure(options) => Ok(options),
            Asked::Help => bail!("help"),
        }
    }

    #[test]
    fn values_follow_or_are_joined() {
        let options = options(&["--rounds=7", "--boxes", "3", "--only", "exec", "--only=memory"]).unwrap();
        assert_eq!((options.common.rounds, options.boxes), (7, 3));
        assert!(options.wants("exec/library") && options.wants("memory") && !options.wants("first/bwrap"));
    }

    #[test]
    fn the_second_pass_measures_the_same() {
        let first = options(&["--rounds=7", "--boxes=3", "--seed=9", "--only=exec"]).unwrap();
        let again = first.for_ordinary();
        let second = options(&again.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(second.common.ordinary);
        assert_eq!((second.common.rounds, second.common.seed), (7, 9));
        assert_eq!((second.boxes, second.only), (3, first.only));
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [["--rounds", "0"], ["--boxes", "many"], ["--round", "5"]] {
            assert!(options(&args).is_err(), "{args:?}");
        }
        assert!(options(&["--rounds"]).is_err());
    }
}
