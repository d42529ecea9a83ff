//! `glass kill`: removes boxes.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::ErrorKind;

use super::each::{Words, each};
use crate::args::{Global, unknown_box};

/// Kill boxes and remove all that is theirs
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the id of each box that is gone. What was recorded of it stays; see `glass log`.

Examples:
  glass kill web
  glass kill web ubku
  glass kill --all")]
pub(crate) struct Kill {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required_unless_present = "all")]
    names: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "names")]
    all: bool,
}

impl Kill {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let sandboxes = global.open()?;
        let names = match self.all {
            true => sandboxes.list().await?.into_iter().map(|info| info.id).collect(),
            false => self.names,
        };
        if names.is_empty() {
            global.say("there are no boxes");
        }
        let words = Words { done: "removed", name: "id" };
        each(global, names, words, async |name| match sandboxes.destroy(name).await {
            Ok(id) => Ok(Some(id)),
            // Somebody else was faster, and it is gone, as was wanted.
            Err(error) if self.all && error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unknown_box(error)),
        })
        .await
    }
}
