//! `glass list`: the boxes there are.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{SandboxInfo, SandboxState};
use owo_colors::OwoColorize as _;
use serde_json::Value;

use super::info;
use crate::args::Global;
use crate::{output, table, terminal, words};

/// List the boxes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass list
  glass list --json | jq -r '.[].id'")]
pub(crate) struct List {}

impl List {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let mut boxes = global.open()?.list().await?;
        boxes.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        if global.json {
            output::print_json(&Value::Array(boxes.iter().map(info::json).collect()))?;
            return Ok(0);
        }
        if boxes.is_empty() {
            global.say("there are no boxes; `glass create` makes one");
            return Ok(0);
        }
        let header = ["ID", "NAME", "STATE", "LEVEL", "RUNTIME", "IMAGE", "AGE", "LABELS"];
        let rows: Vec<Vec<String>> = boxes.iter().map(row).collect();
        let mut lines = table::lines(&header, &rows, terminal::width());
        lines[0] = lines[0].bold().to_string();
        for (line, info) in lines[1..].iter_mut().zip(&boxes) {
            if info.state != SandboxState::Running {
                *line = line.dimmed().to_string();
            }
        }
        output::print(lines)?;
        Ok(0)
    }
}

fn row(info: &SandboxInfo) -> Vec<String> {
    vec![
        info.id.clone(),
        info.name.clone().unwrap_or_default(),
        info::state(info).to_owned(),
        info.level.to_string(),
        info.runtime.name().to_owned(),
        info.image.to_string(),
        words::age(info.created_ms),
        info::labels(info),
    ]
}
