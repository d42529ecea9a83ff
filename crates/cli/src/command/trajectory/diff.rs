//! `glass trajectory diff`: the first step of two trajectories that went another way.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::{
    Aspect, BUILT_IN, Difference, Divergence, Found, Ignored, Rule, Strictness, Trajectory, diff_with_rules,
};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};

use super::{read, shown};
use crate::args::Global;
use crate::escape::plain;
use crate::output;
use crate::words::count;

/// The exit code if they are not the same.
pub(crate) const DIVERGED_CODE: i32 = 3;

/// Find the first step in which two trajectories differ, without executing anything
#[derive(Debug, Args)]
#[command(after_help = "\
Compared are tool, parameters, end, output, stderr, files (by digest, and by what each step changed)
and processes, as far as both have them. Noise (times, durations, pids, addresses, random names below
/tmp and so on) is set aside by named rules, and what was ignored is told; docs/trajectory-format.md
lists the rules, and how a trajectory adds to them. The exit code is 0 if they are the same, 3 if not.

Examples:
  glass trajectory diff monday.json tuesday.json
  glass trajectory diff a.traj b.traj --strict --json")]
pub(super) struct Diff {
    /// What was expected; `-` is stdin
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    expected: PathBuf,
    /// What there is
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    actual: PathBuf,
    /// Nothing is noise: every byte counts
    #[arg(long)]
    strict: bool,
    /// Compare only outputs, without the white space around them
    #[arg(long, conflicts_with = "strict")]
    output_only: bool,
    /// Use this rule for noise too, one that is off by default (repeatable)
    #[arg(long, value_name = "RULE", value_parser = rule(), conflicts_with = "strict")]
    rule: Vec<String>,
    /// Do not use this rule for noise (repeatable)
    #[arg(long, value_name = "RULE", value_parser = rule(), conflicts_with = "strict")]
    no_rule: Vec<String>,
}

impl Diff {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        let expected = trajectory_of(global, &self.expected)?;
        let actual = trajectory_of(global, &self.actual)?;
        let strictness = match (self.strict, self.output_only) {
            (true, _) => Strictness::Strict,
            (_, true) => Strictness::OutputOnly,
            _ => Strictness::Normal,
        };
        let said = |names: &[String], off| -> Vec<Rule> {
            names.iter().map(|name| Rule { name: name.clone(), off, ..Rule::default() }).collect()
        };
        let rules = [said(&self.rule, false), said(&self.no_rule, true)].concat();
        let (divergence, ignored) = diff_with_rules(&expected, &actual, strictness, &rules)?;
        if global.json {
            output::print_json(&json!({
                "same": divergence.is_none(),
                "strictness": strictness.name(),
                "steps": [expected.steps.len(), actual.steps.len()],
                "divergence": divergence.as_ref().map(divergence_json),
                "ignored": ignored.iter().map(ignored_json).collect::<Vec<_>>(),
            }))?;
        } else {
            let mut lines = match &divergence {
                Some(divergence) => {
                    divergence_lines(divergence, &shown(&self.expected), &shown(&self.actual))
                }
                None => vec![same_line(expected.steps.len(), &ignored)],
            };
            lines.extend(ignored.iter().map(ignored_line));
            output::print(lines)?;
        }
        Ok(if divergence.is_some() { DIVERGED_CODE } else { 0 })
    }
}

/// The value of an option that names a rule.
fn rule() -> PossibleValuesParser {
    PossibleValuesParser::new(BUILT_IN.map(|rule| PossibleValue::new(rule.name).help(rule.about)))
}

/// A trajectory; what is odd about its file is said beside.
fn trajectory_of(global: &Global, path: &Path) -> Result<Trajectory> {
    let Found { trajectory, warnings, .. } = read(path, None)?;
    warnings.iter().for_each(|warning| global.say(&format!("odd: {}: {warning}", shown(path))));
    Ok(trajectory)
}

fn same_line(steps: usize, ignored: &[Ignored]) -> String {
    let steps = count(steps, "step", "steps");
    let places: u64 = ignored.iter().map(|ignored| ignored.count).sum();
    match places {
        0 => format!("same: {steps}"),
        places => format!("same: {steps}, with {} ignored", count(places as usize, "place", "places")),
    }
}

pub(in crate::command) fn divergence_lines(
    divergence: &Divergence,
    expected: &str,
    actual: &str,
) -> Vec<String> {
    let mut lines = Vec::new();
    for difference in &divergence.differences {
        let what = difference.what.name();
        let place = difference.path.as_ref().map(|path| format!(", {path}")).unwrap_or_default();
        lines.push(plain(&format!("step {} differs: {what}{place}", divergence.step)).bold().to_string());
        match &difference.diff {
            None => {
                lines.push(coloured(&format!("-{}", difference.expected)));
                lines.push(coloured(&format!("+{}", difference.actual)));
            }
            Some(diff) => {
                lines.push(plain(&format!("--- {expected}")).into_owned());
                lines.push(plain(&format!("+++ {actual}")).into_owned());
                lines.extend(diff.split_terminator('\n').map(coloured));
            }
        }
    }
    if divergence.untold > 0 {
        lines.push(format!("and {} more", count(divergence.untold as usize, "difference", "differences")));
    }
    lines
}

/// A line with nothing in it that a terminal could act on, but for our colours and tabs.
fn coloured(line: &str) -> String {
    let line = line.split('\t').map(plain).collect::<Vec<_>>().join("\t");
    match line.chars().next() {
        Some('+') => line.green().to_string(),
        Some('-') => line.red().to_string(),
        Some('@') => line.cyan().to_string(),
        _ => line,
    }
}

pub(in crate::command) fn ignored_line(ignored: &Ignored) -> String {
    let first = &ignored.first;
    let places = count(ignored.count as usize, "place", "places");
    let file = first.path.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
    let line = format!(
        "ignored: {} in {places}, first at step {}, {}{file}, line {}: {:?} and {:?}",
        ignored.rule,
        first.step,
        first.what.name(),
        first.line,
        first.expected,
        first.actual,
    );
    plain(&line).dimmed().to_string()
}

pub(in crate::command) fn divergence_json(divergence: &Divergence) -> Value {
    let difference = |difference: &Difference| {
        json!({
            "what": difference.what.name(), "path": difference.path, "expected": difference.expected,
            "actual": difference.actual, "diff": difference.diff,
        })
    };
    let what = divergence.differences.first().map_or(Aspect::Step, |difference| difference.what);
    json!({
        "step": divergence.step,
        "what": what.name(),
        "differences": divergence.differences.iter().map(difference).collect::<Vec<_>>(),
        "untold": divergence.untold,
    })
}

pub(in crate::command) fn ignored_json(ignored: &Ignored) -> Value {
    let first = &ignored.first;
    json!({
        "rule": ignored.rule,
        "count": ignored.count,
        "first": {
            "step": first.step, "what": first.what.name(), "path": first.path, "line": first.line,
            "expected": first.expected, "actual": first.actual,
        },
    })
}
