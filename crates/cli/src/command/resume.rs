//! `glass resume`: let boxes go on that were paused.

use anyhow::Result;
use clap::Args;

use super::each::{Words, each};
use crate::args::{Global, unknown_box};

/// Let boxes go on that were paused
#[derive(Debug, Args)]
#[command(after_help = "\
What ran in it goes on where it stood still. A box that is not paused goes on as well.

Example:
  glass resume web")]
pub(crate) struct Resume {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Resume {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        each(global, self.names, Words { done: "done", name: "id" }, async |name| {
            house.resume(name).await.map(Some).map_err(unknown_box)
        })
        .await
    }
}
