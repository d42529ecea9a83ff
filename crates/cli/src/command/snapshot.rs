//! `glass snapshot`: keeps the state of a box.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{CopiedFor, SnapshotInfo, SnapshotOptions};
use serde_json::{Value, json};

use super::task;
use crate::args::{Global, unknown_box};
use crate::output;
use crate::words::count;

/// Keep the state of a box, and print the snapshot's id alone
#[derive(Debug, Args)]
#[command(after_help = "\
Files are part of it, processes are not. When nothing runs in the box, what it has written
becomes a layer at once, whatever its size; when something runs, it is stopped for the time of a
copy, and that is said. What a box with `--disk` writes lies in memory, and is always copied. A
snapshot outlives its box, until `glass snapshots remove`.

Hard links are part of it: in the box, in forks, after a restore and after an export, the names
are of one file. As with every overlay of Linux, a file of a lower layer (of the image, or of
a snapshot) is copied when it is first written: then the name that was written through has the
copy, and the other names keep the file as it was.

It does not wait for the disk, and one that was not there yet when the host was started anew is
refused: it cannot be trusted. `--durable` waits; `glass gc` puts all snapshots on the disk, and
a service does so by itself within ten minutes.

Examples:
  snap=$(glass snapshot web)
  glass snapshot web --name before-upgrade
  glass restore web $snap
  glass fork $snap -n 10")]
pub(crate) struct Snapshot {
    /// The box: its id, the beginning of it, or its name
    id: String,
    /// A name beside the id
    #[arg(long)]
    name: Option<String>,
    /// Wait until it is on the disk, so that it survives the host
    #[arg(long)]
    durable: bool,
}

impl Snapshot {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let options =
            SnapshotOptions { name: self.name, durable: self.durable, ..SnapshotOptions::default() };
        let snapshot = global.open()?.snapshot(&self.id, options).await.map_err(unknown_box)?;
        if global.json {
            output::print_json(&json(&snapshot))?;
            return Ok(0);
        }
        if let Some(copied_for) = snapshot.copied_for {
            global.say(&format!(
                "{}, so its files were copied ({})",
                because(copied_for, snapshot.processes),
                snapshot.method.name()
            ));
        }
        output::print([&snapshot.id])?;
        Ok(0)
    }
}

/// Why files were copied.
fn because(copied_for: CopiedFor, processes: u64) -> String {
    match copied_for {
        CopiedFor::Running => format!("with {} running", count(processes as usize, "process", "processes")),
        CopiedFor::OpenFiles => "nothing runs, but a file is open for writing".to_owned(),
        CopiedFor::Memory => "what a box with a limit of disk writes lies in memory".to_owned(),
    }
}

/// Everything about a snapshot.
pub(super) fn json(snapshot: &SnapshotInfo) -> Value {
    json!({
        "id": snapshot.id,
        "name": snapshot.name,
        "label": snapshot.label,
        "from": snapshot.from,
        "image": snapshot.image.to_string(),
        "created_ms": snapshot.created_ms,
        "method": snapshot.method.name(),
        "copied_for": snapshot.copied_for.map(CopiedFor::name),
        "took_us": snapshot.took_us,
        "processes": snapshot.processes,
        "durable": snapshot.durable,
        "layers": snapshot.chain,
        "task": task::json(snapshot.task.as_ref()),
        "key": snapshot.key,
        "step": snapshot.step,
    })
}
