//! `glass trajectory convert`: a file in another format, and what is lost by that.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::{Format, Found, Loss, Problem, Shape, Trajectories, write};
use serde_json::{Value, json};

use super::{format, open, shown, unreadable};
use crate::args::Global;
use crate::outfile::{OutFile, unwritable};
use crate::output;

/// The most losses that are told one by one; further ones are counted.
const LOSSES_MAX: usize = 10_000;
/// The most oddities that are told.
const ODDITIES_MAX: usize = 20;
/// The most kinds of losses that people are told.
const KINDS_MAX: usize = 50;

/// Write a file of trajectories in another format, and tell what is lost
#[derive(Debug, Args)]
#[command(after_help = "\
What does not come back from the other format is told on stderr, and with --json step by step. A file
with a line for each trajectory stays one. With -o, nothing is written if the file cannot be read to
its end; on stdout are then the trajectories up to there.

Examples:
  glass trajectory convert run.traj --to glasshouse -o run.json
  glass trajectory convert events.jsonl --to atif -o run.atif.json --json
  glass trajectory convert runs.jsonl --to knowlyr-e > hub.jsonl")]
pub(super) struct Convert {
    /// The file; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The format to write
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    to: Format,
    /// Take the file for this format, and do not look which it is
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    from: Option<Format>,
    /// Where to write it [default: stdout]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

impl Convert {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        if global.json && self.output.is_none() {
            bail!("stdout cannot be a trajectory and JSON at once; say -o FILE");
        }
        let report = match &self.output {
            None => self.convert(&mut BufWriter::new(io::stdout().lock()), output::WRITE)?,
            Some(path) => self.to_file(path)?,
        };
        if global.json {
            output::print_json(&report.json(self.to))?;
        } else {
            report.lines().iter().for_each(|line| global.say(line));
        }
        Ok(0)
    }

    /// Writes beside the file, and puts it in its place when it is whole.
    fn to_file(&self, path: &Path) -> Result<Report> {
        let file = OutFile::create(path)?;
        let report = self.convert(&mut BufWriter::new(file.writer()?), &unwritable(path))?;
        file.finish()?;
        Ok(report)
    }

    fn convert(&self, out: &mut dyn Write, unwritable: &str) -> Result<Report> {
        let file =
            Trajectories::open(open(&self.file)?, self.from).with_context(|| unreadable(&self.file))?;
        let mut report = Report { from: file.format(), ..Report::new() };
        let mut file = file.peekable();
        let mut shape = Shape::of(self.to);
        while let Some(found) = file.next() {
            let Found { trajectory, warnings, .. } = found.with_context(|| unreadable(&self.file))?;
            report.odd(&warnings);
            if file.peek().is_some() && report.trajectories == 0 {
                shape = Shape::Line;
            }
            if shape == Shape::Line && matches!(self.to, Format::KnowlyrD | Format::OpenHands) {
                bail!("{} holds several trajectories, and a file of {} one", shown(&self.file), self.to);
            }
            let (bytes, losses) = write(&trajectory, self.to, shape);
            // On stdout there may be a terminal.
            let bytes = if self.output.is_none() { output::safe_document(&bytes) } else { bytes };
            out.write_all(&bytes).with_context(|| unwritable.to_owned())?;
            report.trajectories += 1;
            report.steps += trajectory.steps.len();
            report.add(losses);
        }
        out.flush().with_context(|| unwritable.to_owned())?;
        Ok(report)
    }
}

/// What was lost of one trajectory, for people.
pub(super) fn loss_lines(losses: Vec<Loss>) -> Vec<String> {
    let mut report = Report::new();
    report.add(losses);
    report.lines()
}

/// What became of a file.
struct Report {
    from: Format,
    trajectories: usize,
    steps: usize,
    /// Which trajectory, from 1, lost what.
    losses: Vec<(usize, Loss)>,
    untold: u64,
    /// What is odd about the file and does not matter, and how much more of it there is.
    oddities: Vec<String>,
    odd_untold: u64,
    /// How often the same was lost, and where first.
    kinds: BTreeMap<(String, String), (u64, Option<u64>)>,
}

impl Report {
    fn new() -> Self {
        Report {
            from: Format::Glasshouse,
            trajectories: 0,
            steps: 0,
            losses: Vec::new(),
            untold: 0,
            oddities: Vec::new(),
            odd_untold: 0,
            kinds: BTreeMap::new(),
        }
    }

    fn add(&mut self, losses: Vec<Loss>) {
        for loss in losses {
            let kind = (loss.field.clone(), loss.why.clone());
            if self.kinds.len() < LOSSES_MAX || self.kinds.contains_key(&kind) {
                self.kinds.entry(kind).or_insert((0, loss.step)).0 += 1;
            }
            match self.losses.len() < LOSSES_MAX {
                true => self.losses.push((self.trajectories, loss)),
                false => self.untold += 1,
            }
        }
    }

    fn odd(&mut self, warnings: &[Problem]) {
        for warning in warnings {
            match self.oddities.len() < ODDITIES_MAX {
                true => self.oddities.push(warning.to_string()),
                false => self.odd_untold += 1,
            }
        }
    }

    /// A line for each oddity and each kind of loss.
    fn lines(&self) -> Vec<String> {
        let line =
            |((field, why), (times, first)): (&(String, String), &(u64, Option<u64>))| match (first, times) {
                (None, 1) => format!("lost: {field}: {why}"),
                (None, times) => format!("lost: {field}: {why}; {times} times"),
                (Some(step), 1) => format!("lost: {field} of step {step}: {why}"),
                (Some(step), times) => format!("lost: {field} of {times} steps, the first is {step}: {why}"),
            };
        let mut lines: Vec<String> = self.oddities.iter().map(|odd| format!("odd: {odd}")).collect();
        if self.odd_untold > 0 {
            lines.push(format!(
                "odd: {} other things; `glass trajectory validate` tells more",
                self.odd_untold
            ));
        }
        lines.extend(self.kinds.iter().take(KINDS_MAX).map(line));
        if self.kinds.len() > KINDS_MAX {
            lines.push(format!("lost: {} other things; --json tells them", self.kinds.len() - KINDS_MAX));
        }
        lines
    }

    fn json(&self, to: Format) -> Value {
        let loss = |(trajectory, loss): &(usize, Loss)| json!({ "trajectory": trajectory, "step": loss.step, "field": loss.field, "why": loss.why });
        json!({
            "from": self.from.name(),
            "to": to.name(),
            "trajectories": self.trajectories,
            "steps": self.steps,
            "lost": self.losses.iter().map(loss).collect::<Vec<_>>(),
            "untold": self.untold,
            "odd": self.oddities,
            "odd_untold": self.odd_untold,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_loss_is_told_once() {
        let loss = |step, field: &str| Loss { step, field: field.to_owned(), why: "no place".to_owned() };
        let mut report = Report::new();
        report.add(vec![
            loss(None, "agent"),
            loss(Some(2), "end"),
            loss(Some(5), "end"),
            loss(Some(1), "tool"),
        ]);
        let expected = [
            "lost: agent: no place",
            "lost: end of 2 steps, the first is 2: no place",
            "lost: tool of step 1: no place",
        ];
        assert_eq!(report.lines(), expected);
        assert_eq!(report.losses.len(), 4);
    }
}
