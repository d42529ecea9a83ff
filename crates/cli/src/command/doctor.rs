//! `glass doctor`: what this machine can isolate.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{Feature, Level, RuntimeKind, RuntimeReport};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};

use super::info::{limit_row, limits_json};
use crate::args::Global;
use crate::escape::plain;
use crate::{output, table, terminal};

/// Say what this machine can isolate, what is missing, and what to do about it
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if native boxes have the level `full`, else 1.

Examples:
  glass doctor
  glass doctor --json | jq '.runtimes[] | {runtime, level}'")]
pub(crate) struct Doctor {}

impl Doctor {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let reports = global.open()?.doctor().await;
        let full =
            reports.iter().any(|report| report.runtime == RuntimeKind::Native && report.level == Level::Full);
        if global.json {
            output::print_json(
                &json!({ "ok": full, "runtimes": reports.iter().map(json).collect::<Value>() }),
            )?;
        } else {
            output::print(reports.iter().enumerate().flat_map(|(number, report)| lines(number, report)))?;
        }
        Ok(i32::from(!full))
    }
}

fn json(report: &RuntimeReport) -> Value {
    json!({
        "runtime": report.runtime.name(),
        "level": report.level.name(),
        "features": report.features.iter().map(feature_json).collect::<Value>(),
        "limits": limits_json(&report.limits),
    })
}

fn feature_json(feature: &Feature) -> Value {
    json!({
        "name": feature.name,
        "ok": feature.ok,
        "detail": feature.detail,
        "hint": feature.hint,
    })
}

fn lines(number: usize, report: &RuntimeReport) -> Vec<String> {
    let mut lines = Vec::new();
    if number > 0 {
        lines.push(String::new());
    }
    let level = match report.level {
        Level::Full | Level::Gvisor | Level::Vm => report.level.green().to_string(),
        Level::Reduced => report.level.yellow().to_string(),
        Level::None => report.level.red().to_string(),
    };
    lines.push(format!("{}: level {level}", report.runtime.name().bold()));
    let rows: Vec<Vec<String>> = report.features.iter().map(feature_row).collect();
    lines.extend(table::wrapped(&rows, terminal::width()).into_iter().map(painted));
    for feature in &report.features {
        if let Some(hint) = feature.hint.as_ref().filter(|_| !feature.ok) {
            lines.push(format!("  {} {}: {}", "→".yellow(), plain(&feature.name), plain(hint)));
        }
    }
    if !report.limits.is_empty() {
        lines.push("limits".bold().to_string());
        let rows: Vec<Vec<String>> = report.limits.iter().map(limit_row).collect();
        lines.extend(table::wrapped(&rows, terminal::width()));
    }
    lines
}

fn feature_row(feature: &Feature) -> Vec<String> {
    let state = if feature.ok { OK } else { MISSING };
    vec![state.to_owned(), feature.name.clone(), feature.detail.clone()]
}

const OK: &str = "  ok";
const MISSING: &str = "  missing";

/// The table does not know colours, so its first column is painted afterwards.
fn painted(line: String) -> String {
    for (state, colour) in [(OK, "ok".green().to_string()), (MISSING, "missing".red().to_string())] {
        if let Some(rest) = line.strip_prefix(state) {
            return format!("  {colour}{rest}");
        }
    }
    line
}
