//! `glass fork`: boxes on the state of another one.

use std::pin::pin;

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{Sandbox, Sandboxes, Stop};
use serde_json::json;

use super::create::remove;
use crate::args::Global;
use crate::output;
use crate::session::{Part, signal_code};
use crate::signals::{Impatient, Signals};

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
        let mut signals = Signals::of(Part::default())?;
        let boxes = match self.make(&global.open()?, &mut signals).await? {
            Made::Boxes(boxes) => boxes,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        let ids: Vec<&str> = boxes.iter().map(|sandbox| sandbox.id()).collect();
        let told = match global.json {
            true => output::print_json(&json!({ "ids": ids })),
            false => output::print(ids),
        };
        // Boxes whose ids nobody knows would only lie around.
        if told.is_err() {
            remove_all(&boxes, &mut signals).await?;
        }
        told.map(|()| 0)
    }

    /// Makes all of them, or leaves none behind.
    async fn make(&self, house: &Sandboxes, signals: &mut Signals) -> Result<Made> {
        let stop = Stop::default();
        let mut work = pin!(house.fork_until(&stop, &self.id, usize::from(self.number)));
        let signal = match signals.unless_told(&mut work).await {
            Ok(boxes) => return Ok(Made::Boxes(boxes?)),
            Err(signal) => signal,
        };
        stop.stop();
        match signals.through(work).await {
            Ok((Ok(boxes), _)) => remove_all(&boxes, signals).await?,
            // None was made, or they were removed again: that is what whoever stopped us wanted.
            Ok((Err(_), _)) => {}
            Err(Impatient { .. }) => {
                output::say("stopped; `glass list` shows the forks that were made by then");
            }
        }
        Ok(Made::Stopped(signal))
    }
}

/// What became of boxes that were to be made.
enum Made {
    /// They live.
    Boxes(Vec<Sandbox>),
    /// We were told to end by this signal.
    Stopped(i32),
}

async fn remove_all(boxes: &[Sandbox], signals: &mut Signals) -> Result<()> {
    for sandbox in boxes {
        remove(sandbox, signals).await?;
    }
    Ok(())
}
