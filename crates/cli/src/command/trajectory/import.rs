//! `glass trajectory import`: a trajectory as a record, to be looked at and replayed.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::Format;
use serde_json::json;

use super::{format, read};
use crate::args::Global;
use crate::output;

/// Take a trajectory in as a record, and print its id
#[derive(Debug, Args)]
#[command(after_help = "\
Then `glass log` shows it, `glass log --html` makes a page of it, and `glass replay --of` does it again.

Examples:
  id=$(glass trajectory import theirs.traj) && glass log $id")]
pub(super) struct Import {
    /// The file; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Take the file for this format, and do not look which it is
    #[arg(long, value_name = "FORMAT", value_parser = format())]
    format: Option<Format>,
}

impl Import {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        let found = read(&self.file, self.format)?;
        let id = global.open()?.import_trajectory(&found.trajectory)?;
        match global.json {
            true => output::print_json(&json!({ "id": id, "steps": found.trajectory.steps.len() }))?,
            false => output::print([id])?,
        }
        Ok(0)
    }
}
