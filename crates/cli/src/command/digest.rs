//! `glass digest`: one number for all that is in a box or a snapshot.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::Global;
use crate::output;

/// Print one number for all that is in a box or a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
The same files give the same number, however they came to be there: names, contents, modes,
owners, links and attributes count, times do not. What a box is shown of the host (/usr with the
image `host`) is no part of it.

Examples:
  glass digest web
  test $(glass digest web) = $(glass digest before-upgrade)")]
pub(crate) struct Digest {
    /// The box or the snapshot: its id, the beginning of it, or its name
    #[arg(value_name = "ID|SNAPSHOT")]
    id: String,
}

impl Digest {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let info = global.open()?.digest(&self.id).await?;
        if global.json {
            output::print_json(&json!({ "id": info.id, "digest": info.digest, "racy": info.racy }))?;
            return Ok(0);
        }
        if info.racy {
            global.say("something changed while it was read: the number may be of a state that never was");
        }
        output::print([&info.digest])?;
        Ok(0)
    }
}
