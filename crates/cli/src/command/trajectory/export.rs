//! `glass trajectory export`: the record of a box as a trajectory.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueHint};
use glasshouse_trace::trajectory::{Format, Shape, write};
use serde_json::json;

use super::{format, of_box};
use crate::args::Global;
use crate::outfile::{OutFile, unwritable};
use crate::output;

/// Write the record of a box as a trajectory
#[derive(Debug, Args)]
#[command(after_help = "\
Commands and calls of tools are its steps. Boxes made with --record steps say what files were like
after each of them. Steps that a reset undid are not part of it; that and what the format cannot say
is told on stderr.

Examples:
  glass trajectory export web -o run.json
  glass trajectory export web --format atif > run.atif.json")]
pub(super) struct Export {
    /// The box, living or gone: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The format to write
    #[arg(long, value_name = "FORMAT", value_parser = format(), default_value = "glasshouse")]
    format: Format,
    /// Where to write it [default: stdout]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
}

impl Export {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        if global.json && self.output.is_none() {
            bail!("stdout cannot be a trajectory and JSON at once; say -o FILE");
        }
        let (trajectory, notes) = of_box(&global.open()?, &self.name)?;
        let (bytes, losses) = write(&trajectory, self.format, Shape::of(self.format));
        match &self.output {
            None => output::print_bytes(&output::safe_document(&bytes))?,
            Some(path) => {
                let mut file = OutFile::create(path)?;
                file.write_all(&bytes).with_context(|| unwritable(path))?;
                file.finish()?;
            }
        }
        if global.json {
            let losses =
                losses.iter().map(|loss| json!({ "step": loss.step, "field": loss.field, "why": loss.why }));
            output::print_json(&json!({
                "steps": trajectory.steps.len(), "format": self.format.name(), "notes": notes,
                "lost": losses.collect::<Vec<_>>(),
            }))?;
            return Ok(0);
        }
        notes.iter().for_each(|note| global.say(note));
        super::convert::loss_lines(losses).iter().for_each(|line| global.say(line));
        Ok(0)
    }
}
