//! The command line of `glass-bench state`.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::options::{Asked, Common, Words};

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
const BYTES_MORE: [usize; 2] = [256 << 10, 16 << 20];

pub(super) const HELP: &str = "\
What it costs to keep, to reset, to fork, to go back and to take a digest, against the number of files and the bytes
that changed, beside a plain `cp -a` and `docker commit` of the same tree; and to read what 1000 snapshots wrote.

Usage: cargo run --release -p glasshouse-bench -- state [OPTIONS]

  --rounds N     turns of every contender [50]
  --quick        10 rounds
  --million      a tree of 1 000 000 files, too; with 20 rounds, as the first five stand beside copies of the whole tree
  --home PATH    where the state directories are made, to choose the disk (repeatable) [/var/tmp and /dev/shm]
  --seed N       of the order of turns [1]
  --json PATH    write all figures and samples there, too
  --plot PATH    draw them there, too (SVG)
  --help         this";

/// What was asked for.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) common: Common,
    pub(super) million: bool,
    pub(super) homes: Vec<PathBuf>,
    pub(super) plot: Option<PathBuf>,
}

impl Options {
    /// Files in the box, and bytes that change.
    pub(super) fn sizes(&self) -> Vec<(usize, usize)> {
        let mut sizes: Vec<_> = FILES.map(|files| (files, BYTES)).to_vec();
        if self.million {
            sizes.push((FILES_MANY, BYTES));
        }
        sizes.extend(BYTES_MORE.map(|bytes| (FILES[0], bytes)));
        sizes
    }

    /// The same for the second pass, which is told its home anew.
    pub(super) fn for_ordinary(&self) -> Vec<String> {
        let mut args = self.common.for_ordinary();
        if self.million {
            args.push("--million".into());
        }
        args
    }
}

pub(super) fn parse(args: impl Iterator<Item = String>) -> Result<Asked<Options>> {
    let mut options = Options { common: Common::new(ROUNDS), million: false, homes: Vec::new(), plot: None };
    let mut words = Words::new(args);
    while words.go_on() {
        if options.common.take(&mut words)? {
            continue;
        }
        match words.name.as_str() {
            "--quick" => options.common.rounds = ROUNDS_QUICK,
            "--million" => options.million = true,
            "--home" => options.homes.push(words.absolute()?),
            "--plot" => options.plot = Some(PathBuf::from(words.value()?)),
            "--help" | "-h" => return Ok(Asked::Help),
            name => bail!("{name:?} is no option of `state`; --help lists them"),
        }
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
        assert!(second.common.ordinary);
        assert_eq!((second.common.rounds, second.common.seed, second.sizes()), (7, 3, first.sizes()));
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(options(&["--rounds=0"]).is_err() && options(&["--plot"]).is_err());
        assert!(options(&["--boxes", "3"]).is_err());
    }
}
