//! `glass export`: a snapshot in one file.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueHint};
use glasshouse_sandbox::ExportOptions;
use serde_json::json;

use crate::args::Global;
use crate::outfile::OutFile;
use crate::output;
use crate::words::count;

/// Write a snapshot to a file that `glass import` takes, here or elsewhere
#[derive(Debug, Args)]
#[command(after_help = "\
All that it shows is in the file, layer by layer; of boxes of the image `host`, what they have
written on top of it. A layer holds what upper ones hide, too: what was deleted before an
earlier snapshot may be in the file, unless it is written --flat. Access control lists and marks of
overlays that were mounted in the box are not in it, which is said.

Examples:
  glass export before-upgrade -o state.tar.zst
  glass export before-upgrade --flat -o small.tar.zst
  glass export web-ready | ssh other glass import -")]
pub(crate) struct Export {
    /// The snapshot: its id, the beginning of it, or its name
    snapshot: String,
    /// The file [default: stdout]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// All that it shows as one layer, and nothing else
    #[arg(long)]
    flat: bool,
}

impl Export {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        // Nobody shall take half a file for a whole one.
        let file = self.output.as_deref().map(OutFile::create).transpose()?;
        let out: Box<dyn Write + Send> = match &file {
            Some(file) => Box::new(file.writer()?),
            None if io::stdout().is_terminal() => {
                bail!("a snapshot is nothing for a terminal; say -o FILE, or send stdout somewhere else")
            }
            None if global.json => bail!("stdout cannot be a snapshot and JSON at once; say -o FILE"),
            None => Box::new(io::stdout()),
        };
        let options = ExportOptions { flat: self.flat };
        let exported = global.open()?.export(&self.snapshot, options, out).await?;
        file.map_or(Ok(()), OutFile::finish)?;
        if exported.left_out > 0 {
            let left_out = count(exported.left_out as usize, "device or socket", "devices and sockets");
            global.say(&format!("{left_out} left out: the file has no place for them"));
        }
        if exported.attributes_left_out > 0 {
            global.say(&attributes_left_out(exported.attributes_left_out));
        }
        if global.json {
            output::print_json(&json!({
                "id": exported.id, "digest": exported.digest, "layers": exported.layers,
                "layer_bytes": exported.layer_bytes, "left_out": exported.left_out,
                "attributes_left_out": exported.attributes_left_out,
            }))?;
        }
        Ok(0)
    }
}

/// What is said of attributes that have no place in a layer.
pub(super) fn attributes_left_out(files: u64) -> String {
    let files = count(files as usize, "file or directory", "files and directories");
    format!("access control lists or marks of overlays of {files} left out: a layer has no place for them")
}
