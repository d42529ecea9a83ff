//! `glass commit`: a snapshot becomes an image.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::Global;
use crate::output;

/// Make an image of a snapshot, and print its whole name alone
#[derive(Debug, Args)]
#[command(after_help = "\
It shows what the snapshot shows and runs commands as its box did; nothing is copied, and it
stays when the snapshot is removed. A directory that the box stood on is imported first. Boxes
of the image `host` show this machine's own programs, which are in no layer: they cannot become
images.

Examples:
  glass commit $(glass snapshot web) -t web:ready
  glass run --image web:ready -- id")]
pub(crate) struct Commit {
    /// The snapshot: its id, the beginning of it, or its name
    snapshot: String,
    /// What to call the image
    #[arg(short, long, value_name = "NAME")]
    tag: String,
}

impl Commit {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let info = global.open()?.commit(&self.snapshot, &self.tag).await?;
        match global.json {
            true => output::print_json(&json!({
                "name": info.name, "digest": info.digest, "layers": info.layers, "size": info.size_bytes,
            }))?,
            false => output::print([&info.name])?,
        }
        Ok(0)
    }
}
