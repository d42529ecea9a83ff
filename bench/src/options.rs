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

`glass-bench state` measures snapshots, resets and forks; `glass-bench state --help` says how.
As root it measures twice: as root, and as an ordinary user. Figures are told, never judged: the exit code is 0
unless something could not be measured that should have been.";

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    pub(crate) boxes: usize,
    pub(crate) only: Vec<String>,
    pub(crate) home: PathBuf,
    pub(crate) glass: Glass,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    /// We are the second pass: print what was measured as JSON, for the first.
    pub(crate) ordinary: bool,
}

/// What the command line says.
#[derive(Debug)]
pub(crate) enum Asked {
    Help,
    Measure(Options),
}

impl Options {
    /// Whether a row is to be measured.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }

    /// The same for the second pass. Its home and its program are told anew, where it can reach them.
    pub(crate) fn for_ordinary(&self) -> Vec<String> {
        let mut args = vec!["--ordinary".to_owned()];
        for (name, value) in
            [("--rounds", self.rounds as u64), ("--boxes", self.boxes as u64), ("--seed", self.seed)]
        {
            args.extend([name.to_owned(), value.to_string()]);
        }
        for only in &self.only {
            args.extend(["--only".to_owned(), only.clone()]);
        }
        args
    }
}

pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Asked> {
    let mut options = Options {
        rounds: ROUNDS,
        boxes: BOXES,
        only: Vec::new(),
        home: PathBuf::from("/var/tmp"),
        glass: Glass::Unknown,
        seed: 1,
        json: None,
        ordinary: false,
    };
    let mut args = args;
    while let Some(arg) = args.next() {
        // Both `--name value` and `--name=value`.
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        let mut value =
            || inline.clone().or_else(|| args.next()).with_context(|| format!("{name} wants a value"));
        match name.as_str() {
            "--rounds" => options.rounds = number(&name, &value()?)?,
            "--quick" => options.rounds = ROUNDS_QUICK,
            "--boxes" => options.boxes = number(&name, &value()?)?,
            "--only" => options.only.push(value()?),
            "--home" => options.home = std::path::absolute(value()?)?,
            "--glass" => options.glass = Glass::At(std::path::absolute(value()?)?),
            "--no-glass" => options.glass = Glass::Missing(value()?),
            "--seed" => options.seed = value()?.parse().context("a seed is a whole number")?,
            "--json" => options.json = Some(PathBuf::from(value()?)),
            "--ordinary" => options.ordinary = true,
            "--help" | "-h" => return Ok(Asked::Help),
            _ => bail!("{name:?} is no option; --help lists them"),
        }
    }
    Ok(Asked::Measure(options))
}

fn number(name: &str, text: &str) -> Result<usize> {
    match text.parse() {
        Ok(0) | Err(_) => bail!("{name} wants a whole number from 1 on, and {text:?} is none"),
        Ok(number) => Ok(number),
    }
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
        assert_eq!((options.rounds, options.boxes), (7, 3));
        assert!(options.wants("exec/library") && options.wants("memory") && !options.wants("first/bwrap"));
    }

    #[test]
    fn the_second_pass_measures_the_same() {
        let first = options(&["--rounds=7", "--boxes=3", "--seed=9", "--only=exec"]).unwrap();
        let again = first.for_ordinary();
        let second = options(&again.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(second.ordinary);
        assert_eq!((second.rounds, second.boxes, second.seed, second.only), (7, 3, 9, first.only));
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [["--rounds", "0"], ["--boxes", "many"], ["--round", "5"]] {
            assert!(options(&args).is_err(), "{args:?}");
        }
        assert!(options(&["--rounds"]).is_err());
    }
}
