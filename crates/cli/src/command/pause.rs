//! `glass pause`: stop everything that runs in boxes, until they are resumed.

use anyhow::Result;
use clap::Args;

use super::each::{Words, each};
use crate::args::{Global, unknown_box};

/// Stop everything that runs in boxes, until they are resumed
#[derive(Debug, Args)]
#[command(after_help = "\
A paused box keeps its memory and uses no CPU. Commands and file operations are refused until
`glass resume`; snapshot, fork, diff, digest, stop and kill work, reset and restore resume it.
Its --ttl goes on and ends it; the time-outs of its commands wait.

Example:
  glass pause web")]
pub(crate) struct Pause {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Pause {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        each(global, self.names, Words { done: "done", name: "id" }, async |name| {
            house.pause(name).await.map(Some).map_err(unknown_box)
        })
        .await
    }
}
