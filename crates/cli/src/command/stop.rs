//! `glass stop`: end boxes and keep what they have written.

use anyhow::Result;
use clap::Args;

use super::each::{Words, each};
use crate::args::{Global, unknown_box};

/// End boxes and keep what they have written
#[derive(Debug, Args)]
#[command(after_help = "\
Everything in it is killed; `glass start` builds the box again on its files, also after the host was
restarted.

Example:
  glass stop web")]
pub(crate) struct Stop {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Stop {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        each(global, self.names, Words { done: "done", name: "id" }, async |name| {
            house.stop(name).await.map(Some).map_err(unknown_box)
        })
        .await
    }
}
