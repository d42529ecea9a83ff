//! `glass reset`: puts a box back to what it began with.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::{Global, unknown_box};
use crate::output;

/// Kill everything in a box and put it back to what it began with
#[derive(Debug, Args)]
#[command(after_help = "\
Files, shared memory and every process are gone; the box itself, its id and its limits stay.
With --verify, its files are compared with what it began with, and its processes are counted: it
is clean, or the first difference is named and the exit code is 1.

Examples:
  glass reset web
  glass reset web --verify")]
pub(crate) struct Reset {
    /// The box: its id, the beginning of it, or its name
    id: String,
    /// Look afterwards whether that left anything
    #[arg(long)]
    verify: bool,
}

impl Reset {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        if self.verify {
            return self.run_verified(global).await;
        }
        let info = global.open()?.reset(&self.id).await.map_err(unknown_box)?;
        match global.json {
            true => output::print_json(&json!({ "id": info.id, "layers": info.chain }))?,
            false => output::print([&info.id])?,
        }
        Ok(0)
    }

    async fn run_verified(self, global: &Global) -> Result<i32> {
        let (info, verified) = global.open()?.reset_verified(&self.id).await.map_err(unknown_box)?;
        let clean = verified.is_clean();
        if global.json {
            output::print_json(&json!({
                "id": info.id, "layers": info.chain,
                "verified": { "clean": clean, "difference": verified.difference },
            }))?;
            return Ok(i32::from(!clean));
        }
        output::print([&info.id])?;
        match verified.difference {
            None => global.say("clean: its files are those that it began with, and nothing runs in it"),
            Some(difference) => output::say(&format!("not clean: {difference}")),
        }
        Ok(i32::from(!clean))
    }
}
