//! `glass restore`: puts a box on the state of a snapshot.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::{Global, unknown_box};
use crate::output;

/// Kill everything in a box and put it on the state of a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
The snapshot may be of another box of the same image. What the box has written since is gone; `glass
snapshot` keeps it first.

Example:
  glass restore web before-upgrade")]
pub(crate) struct Restore {
    /// The box: its id, the beginning of it, or its name
    id: String,
    /// The snapshot: its id, the beginning of it, or its name
    snapshot: String,
}

impl Restore {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let info = global.open()?.restore(&self.id, &self.snapshot).await.map_err(unknown_box)?;
        match global.json {
            true => output::print_json(&json!({ "id": info.id, "layers": info.chain }))?,
            false => output::print([&info.id])?,
        }
        Ok(0)
    }
}
