//! `glass trajectory`: what agents did, in files of several formats.
//!
//! `export` and `import` are the ways from and to the records of boxes; nothing else here needs one.

mod convert;
pub(super) mod diff;
mod export;
mod import;
mod schema;
mod validate;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use glasshouse_sandbox::Sandboxes;
use glasshouse_trace::trajectory::{Format, Found, Trajectory, read_one};

use crate::args::{Global, unknown_box};

/// Trajectories: export, import, convert, validate, schema, diff
#[derive(Debug, Args)]
#[command(after_help = "\
Formats are told by content. They are glasshouse, knowlyr-a to knowlyr-e, swe-agent, openhands
and atif.

Examples:
  glass trajectory export web -o run.json
  glass trajectory validate run.traj
  glass trajectory convert run.traj --to glasshouse -o run.json
  glass trajectory diff monday.json tuesday.json
  glass trajectory schema")]
pub(crate) struct Trajectories {
    #[command(subcommand)]
    command: What,
}

/// What to do with trajectories.
#[derive(Debug, Subcommand)]
enum What {
    Convert(convert::Convert),
    Validate(validate::Validate),
    Schema(schema::Schema),
    Diff(diff::Diff),
    Export(export::Export),
    Import(import::Import),
}

impl Trajectories {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        match self.command {
            What::Convert(command) => command.run(global),
            What::Validate(command) => command.run(global),
            What::Schema(command) => command.run(global),
            What::Diff(command) => command.run(global),
            What::Export(command) => command.run(global),
            What::Import(command) => command.run(global),
        }
    }
}

/// The value of an option that names a format.
pub(super) fn format() -> impl TypedValueParser<Value = Format> {
    let values = Format::ALL.map(|format| PossibleValue::new(format.name()).help(format.about()));
    PossibleValuesParser::new(values).try_map(|text| text.parse::<Format>())
}

/// The trajectory that the record of a box is, and what could not be said in it.
pub(super) fn of_box(house: &Sandboxes, name: &str) -> Result<(Trajectory, Vec<String>)> {
    let id = house.resolve_trace(name).map_err(unknown_box)?;
    house.trajectory(&id).with_context(|| format!("cannot read the record of {id}"))
}

/// A file, or stdin.
fn open(path: &Path) -> Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).with_context(|| unreadable(path))?;
    Ok(Box::new(BufReader::with_capacity(64 * 1024, file)))
}

/// The only trajectory of a file.
pub(super) fn read(path: &Path, format: Option<Format>) -> Result<Found> {
    let (_, found) = read_one(open(path)?, format).with_context(|| unreadable(path))?;
    Ok(found)
}

fn unreadable(path: &Path) -> String {
    format!("cannot read {}", shown(path))
}

/// What a file is called in messages.
fn shown(path: &Path) -> String {
    if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() }
}
