//! `glass start`: start boxes that were stopped, on what they had written.

use anyhow::Result;
use clap::Args;

use super::each::{Words, each};
use crate::args::{Global, unknown_box};

/// Start boxes that were stopped, on what they had written
#[derive(Debug, Args)]
#[command(after_help = "\
Limits, environment and names are as before; its time to live begins anew, and --disk counts what
is written from then on.

Example:
  glass start web")]
pub(crate) struct Start {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Start {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        each(global, self.names, Words { done: "done", name: "id" }, async |name| {
            house.start(name).await.map(|sandbox| Some(sandbox.id().to_owned())).map_err(unknown_box)
        })
        .await
    }
}
