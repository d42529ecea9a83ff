//! `glass fork`: boxes on the state of another one.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::Global;
use crate::output;

/// Make boxes on the state of a box or a snapshot, and print their ids
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is copied: they share all that is there by then and nothing that they write. Forks of a box
have its limits and its environment; those of a snapshot are deterministic, and recorded, as the box
was that it is of. Processes are not part of a state, and start anew.

Examples:
  glass fork web
  glass fork before-upgrade -n 100")]
pub(crate) struct Fork {
    /// The box or the snapshot: its id, the beginning of it, or its name
    #[arg(value_name = "ID|SNAPSHOT")]
    id: String,
    /// How many
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    number: u16,
}

impl Fork {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let boxes = global.open()?.fork(&self.id, usize::from(self.number)).await?;
        let ids: Vec<&str> = boxes.iter().map(|sandbox| sandbox.id()).collect();
        match global.json {
            true => output::print_json(&json!({ "ids": ids }))?,
            false => output::print(ids)?,
        }
        Ok(0)
    }
}
