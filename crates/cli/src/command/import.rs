//! `glass import`: a snapshot out of a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use serde_json::json;

use super::snapshot;
use crate::args::Global;
use crate::output;

/// Take a snapshot from a file that `glass export` wrote, and print its id alone
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing in the file is believed: it is checked by digests, and unpacked within bounds. Without root,
owners and set-id bits are not kept.

Examples:
  glass import state.tar.zst --name moved
  glass fork $(glass import state.tar.zst)")]
pub(crate) struct Import {
    /// The file; `-` is stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// A name beside the id
    #[arg(long)]
    name: Option<String>,
}

impl Import {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let from: Box<dyn Read + Send> = match self.file == Path::new("-") {
            true => Box::new(io::stdin()),
            false => {
                let path = &self.file;
                Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?)
            }
        };
        let imported = global.open()?.import(from, self.name.as_deref()).await?;
        if global.json {
            let mut value = snapshot::json(&imported.snapshot);
            value["digest"] = json!(imported.digest);
            value["exact"] = json!(imported.exact);
            output::print_json(&value)?;
            return Ok(0);
        }
        if !imported.exact {
            global.say("not all of it could be kept here (owners, set-id bits, access control lists, devices, sockets)");
        }
        output::print([&imported.snapshot.id])?;
        Ok(0)
    }
}
