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

Example:
  glass reset web")]
pub(crate) struct Reset {
    /// The box: its id, the beginning of it, or its name
    id: String,
}

impl Reset {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let info = house.reset(&self.id).await.map_err(unknown_box)?;
        match global.json {
            true => output::print_json(&json!({ "id": info.id, "layers": info.chain }))?,
            false => output::print([&info.id])?,
        }
        house.settle().await;
        Ok(0)
    }
}
