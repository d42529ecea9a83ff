//! `glass jump`: a box as it was after one of its steps.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use super::trajectory::diff::{DIVERGED_CODE, divergence_json, divergence_lines};
use crate::args::Global;
use crate::output;

/// Put a box into the state after one of its steps
#[derive(Debug, Args)]
#[command(after_help = "\
Boxes made with --record snapshots go back to the snapshot of that step. Others are reset, and their
steps are done again; if one of them goes another way, that is told, and the exit code is 3. 0 is
what the box began with. Processes are not part of a state.

Examples:
  glass jump web 3")]
pub(crate) struct Jump {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The number of the step, as `glass log` shows it
    #[arg(value_name = "STEP")]
    step: u64,
}

impl Jump {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let jumped = global.open()?.jump(&self.name, self.step).await?;
        match global.json {
            true => output::print_json(&json!({
                "step": self.step, "snapshot": jumped.snapshot, "again": jumped.again,
                "divergence": jumped.divergence.as_ref().map(divergence_json),
            }))?,
            false => {
                if let Some(divergence) = &jumped.divergence {
                    output::print(divergence_lines(divergence, "recorded", "this time"))?;
                }
            }
        }
        Ok(if jumped.divergence.is_some() { DIVERGED_CODE } else { 0 })
    }
}
