//! The command line of `glass-bench state`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

/// Rounds unless said otherwise.
const ROUNDS: usize = 50;
/// Rounds of `--quick`.
const ROUNDS_QUICK: usize = 10;
/// Files in the box.
const FILES: [usize; 2] = [100, 10_000];
/// And with `--million`.
const FILES_MANY: usize = 1_000_000;
/// Bytes that changed since the last snapshot.
const BYTES: usize = 4096;
/// The same for the one tree whose point they are.
const BYTES_MANY: usize = 16 << 20;

pub(super) const HELP: &str = "\
What it costs to keep, to reset, to fork and to go back, against the number of files and the bytes that changed,
beside a plain `cp -a` and `docker commit` of the same tree.

Usage: cargo run --release -p glasshouse-bench -- state [OPTIONS]

  --rounds N     turns of every contender [50]
  --quick        10 rounds
  --million      a tree of 1 000 000 files, too
  --home PATH    where the state directories are made, to choose the disk (repeatable) [/var/tmp and /dev/shm]
  --seed N       of the order of turns [1]
  --json PATH    write all figures and samples there, too
  --plot PATH    draw them there, too (SVG)
  --help         this";

/// What was asked for.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) rounds: usize,
    pub(super) million: bool,
    pub(super) homes: Vec<PathBuf>,
    pub(super) seed: u64,
    pub(super) json: Option<PathBuf>,
    pub(super) plot: Option<PathBuf>,
    /// We are the second pass: print what was measured as JSON, for the first.
    pub(super) ordinary: bool,
}

/// What the command line says.
#[derive(Debug)]
pub(super) enum Asked {
    Help,
    Measure(Options),
}

impl Options {
    /// Files in the box, and bytes that change.
    pub(super) fn sizes(&self) -> Vec<(usize, usize)> {
        let mut sizes: Vec<_> = FILES.map(|files| (files, BYTES)).to_vec();
        if self.million {
            sizes.push((FILES_MANY, BYTES));
        }
        sizes.push((FILES[0], BYTES_MANY));
        sizes
    }

    /// The same for the second pass, which is told its home anew.
    pub(super) fn for_ordinary(&self) -> Vec<String> {
        let mut args: Vec<String> =
            vec!["--ordinary".into(), format!("--rounds={}", self.rounds), format!("--seed={}", self.seed)];
        if self.million {
            args.push("--million".into());
        }
        args
    }
}

pub(super) fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked> {
    let mut options = Options {
        rounds: ROUNDS,
        million: false,
        homes: Vec::new(),
        seed: 1,
        json: None,
        plot: None,
        ordinary: false,
    };
    while let Some(arg) = args.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (arg, None),
        };
        let mut value =
            || inline.clone().or_else(|| args.next()).with_context(|| format!("{name} wants a value"));
        match name.as_str() {
            "--rounds" => options.rounds = value()?.parse().context("rounds are a whole number")?,
            "--quick" => options.rounds = ROUNDS_QUICK,
            "--million" => options.million = true,
            "--home" => options.homes.push(std::path::absolute(value()?)?),
            "--seed" => options.seed = value()?.parse().context("a seed is a whole number")?,
            "--json" => options.json = Some(PathBuf::from(value()?)),
            "--plot" => options.plot = Some(PathBuf::from(value()?)),
            "--ordinary" => options.ordinary = true,
            "--help" | "-h" => return Ok(Asked::Help),
            _ => bail!("{name:?} is no option of `state`; --help lists them"),
        }
    }
    if options.rounds == 0 {
        bail!("--rounds wants a whole number from 1 on");
    }
    if options.homes.is_empty() {
        options.homes = vec!["/var/tmp".into(), "/dev/shm".into()];
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
    fn the_second_pass_measures_the_same() {
        let first = options(&["--rounds", "7", "--million", "--seed=3"]).unwrap();
        let second = options(&first.for_ordinary().iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert!(second.ordinary);
        assert_eq!((second.rounds, second.seed, second.sizes()), (7, 3, first.sizes()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(options(&["--rounds=0"]).is_err() && options(&["--plot"]).is_err());
        assert!(options(&["--boxes", "3"]).is_err());
    }
}
