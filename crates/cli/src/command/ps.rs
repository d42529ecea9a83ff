//! `glass ps`: the commands of a box.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{ExecInfo, ExecState};
use owo_colors::OwoColorize as _;
use serde_json::json;

use crate::args::Global;
use crate::{escape, output, table, terminal, words};

/// List the commands of a box: those that run, and background ones that have ended
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass ps web
  glass attach web 3                          the output of number 3")]
pub(crate) struct Ps {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
}

impl Ps {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let execs = global.connect(&self.name).await?.execs().await?;
        if global.json {
            output::print_json(&json!(execs))?;
            return Ok(0);
        }
        if execs.is_empty() {
            global.say("no command runs in this box");
            return Ok(0);
        }
        let header = ["EXEC", "STATE", "AGE", "WALL", "OUTPUT", "COMMAND"];
        let rows: Vec<Vec<String>> = execs.iter().map(row).collect();
        let mut lines = table::lines(&header, &rows, terminal::width());
        lines[0] = lines[0].bold().to_string();
        output::print(lines)?;
        Ok(0)
    }
}

fn row(info: &ExecInfo) -> Vec<String> {
    let (state, wall) = match &info.state {
        ExecState::Running if info.background => ("running in the background".to_owned(), String::new()),
        ExecState::Running => ("running".to_owned(), String::new()),
        ExecState::Ended(report) => {
            (words::exit(&report.exit), words::span(Duration::from_micros(report.wall_us)))
        }
    };
    let command = escape::command_line(&info.command);
    vec![
        info.exec.to_string(),
        state,
        words::age(info.started_ms),
        wall,
        words::size(info.output_bytes),
        command,
    ]
}
