//! `glass gc`: removes what dead boxes left behind.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::Cleaned;
use serde_json::json;

use super::snapshots;
use crate::args::Global;
use crate::output;
use crate::words::count;

/// Remove what dead boxes left behind, and old records; put snapshots on the disk
#[derive(Debug, Args)]
#[command(after_help = "\
Prints the id of each dead box that was removed. Every other command cleans up after crashes
too; this does all of it now. Snapshots that are not on the disk yet are when it ends, and
survive the host.

Example:
  glass gc")]
pub(crate) struct Gc {}

impl Gc {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let cleaned = global.open()?.gc().await?;
        if global.json {
            output::print_json(&json!({
                "boxes": cleaned.boxes,
                "cgroups": cleaned.cgroups,
                "containers": cleaned.containers,
                "directories": cleaned.directories,
                "traces": cleaned.traces,
                "blobs": cleaned.blobs,
                "layers": cleaned.layers,
                "damaged_snapshots": cleaned.damaged_snapshots,
                "made_durable": cleaned.made_durable,
            }))?;
            return Ok(0);
        }
        output::print(&cleaned.boxes)?;
        global.say(&sentence(&cleaned));
        if cleaned.made_durable > 0 {
            global.say(&format!("{} put on the disk", count(cleaned.made_durable, "snapshot", "snapshots")));
        }
        for id in &cleaned.damaged_snapshots {
            global.say(&format!("{}; until then no layers are removed", snapshots::damaged(id)));
        }
        Ok(0)
    }
}

fn sentence(cleaned: &Cleaned) -> String {
    let counts = [
        (cleaned.boxes.len(), "box", "boxes"),
        (cleaned.cgroups, "cgroup", "cgroups"),
        (cleaned.containers, "container", "containers"),
        (cleaned.directories, "directory", "directories"),
        (cleaned.traces, "trace", "traces"),
        (cleaned.blobs, "blob", "blobs"),
        (cleaned.layers, "layer", "layers"),
    ];
    let words: Vec<String> =
        counts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, many)| count(n, one, many)).collect();
    match words.is_empty() {
        true => "there was nothing to remove".to_owned(),
        false => format!("removed {}", words.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_removed_is_named() {
        let boxes = vec!["a".to_owned(), "b".to_owned()];
        let mut cleaned = Cleaned { boxes, directories: 1, ..Cleaned::default() };
        assert_eq!(sentence(&cleaned), "removed 2 boxes, 1 directory");
        (cleaned.boxes, cleaned.directories) = (Vec::new(), 0);
        assert_eq!(sentence(&cleaned), "there was nothing to remove");
    }
}
