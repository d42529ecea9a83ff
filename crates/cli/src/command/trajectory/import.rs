//! `glass trajectory import`: a trajectory as a record, to be looked at and replayed.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::{Format, Found, lost_on_record};
use serde_json::json;

use super::convert::loss_lines;
use super::{format, read};
use crate::args::Global;
use crate::output;

/// Take a trajectory in as a record, and print its id
#[derive(Debug, Args)]
#[command(after_help = "\
Then `glass log` shows it, `glass log --html` makes a page of it, and `glass replay --of` does it again.
What the record does not hold as it was, like what looks like a secret, is told on stderr.

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
        let Found { trajectory, .. } = read(&self.file, self.format)?;
        let house = global.open()?;
        let id = house.import_trajectory(&trajectory)?;
        // Long documents are kept in parts, and what looks like a secret is not kept at all.
        let lost = lost_on_record(&trajectory, &house.trajectory(&id)?.0);
        if global.json {
            let lost =
                lost.iter().map(|loss| json!({ "step": loss.step, "field": loss.field, "why": loss.why }));
            let lost = lost.collect::<Vec<_>>();
            output::print_json(&json!({ "id": id, "steps": trajectory.steps.len(), "lost": lost }))?;
            return Ok(0);
        }
        loss_lines(lost).iter().for_each(|line| global.say(line));
        output::print([id])?;
        Ok(0)
    }
}
