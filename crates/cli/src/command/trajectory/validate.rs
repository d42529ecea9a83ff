//! `glass trajectory validate`: what is wrong with a file.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::{Format, Problem, Validation, validate};
use serde_json::{Value, json};

use super::{format, open, shown, unreadable};
use crate::args::Global;
use crate::escape::plain;
use crate::output;
use crate::words::count;

/// Check a file of trajectories, and tell every problem with its line and step
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if it can be used, 1 if not. Oddities that do not matter are told, and are no reason.

Examples:
  glass trajectory validate run.traj
  glass trajectory validate - --format openhands --json < events.jsonl")]
pub(super) struct Validate {
    /// The file; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Take it for this format, and do not look which it is
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    format: Option<Format>,
}

impl Validate {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        let found = validate(open(&self.file)?, self.format).with_context(|| unreadable(&self.file))?;
        match global.json {
            true => output::print_json(&json(&found))?,
            false => output::print(lines(&shown(&self.file), &found))?,
        }
        Ok(i32::from(!found.is_valid()))
    }
}

fn lines(file: &str, found: &Validation) -> Vec<String> {
    let line = |problem: &Problem| {
        let odd = if problem.fatal { "" } else { "odd: " };
        plain(&format!("{odd}{problem}")).into_owned()
    };
    let mut lines: Vec<String> = found.problems.iter().map(line).collect();
    if found.untold > 0 {
        lines.push(format!("and {} more", count(found.untold as usize, "problem", "problems")));
    }
    let format = found.format.map_or("unknown format", Format::name);
    let verdict = if found.is_valid() { "valid" } else { "NOT valid" };
    let file = plain(file);
    lines.push(format!(
        "{file} is {verdict}: {format}, {}, {}",
        count(found.trajectories as usize, "trajectory", "trajectories"),
        count(found.steps as usize, "step", "steps"),
    ));
    lines
}

fn json(found: &Validation) -> Value {
    let problem = |problem: &Problem| {
        json!({
            "line": problem.line, "step": problem.step, "path": problem.path, "what": problem.what,
            "fatal": problem.fatal,
        })
    };
    json!({
        "valid": found.is_valid(),
        "format": found.format.map(Format::name),
        "trajectories": found.trajectories,
        "steps": found.steps,
        "problems": found.problems.iter().map(problem).collect::<Vec<_>>(),
        "untold": found.untold,
    })
}
