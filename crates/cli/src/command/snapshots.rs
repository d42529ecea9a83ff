//! `glass snapshots`: the snapshots there are.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use glasshouse_sandbox::SnapshotInfo;
use owo_colors::OwoColorize as _;
use serde_json::Value;

use super::each::{Words, each};
use super::snapshot;
use crate::args::Global;
use crate::{output, progress, table, terminal, words};

/// List the snapshots, or remove some
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass snapshots
  glass snapshots remove before-upgrade")]
pub(crate) struct Snapshots {
    /// Also those of single steps of boxes (`--record snapshots`)
    #[arg(long)]
    all: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Remove snapshots, and the layers that nothing else stands on
    Remove {
        /// The snapshots: ids, beginnings of ids, or names
        #[arg(value_name = "SNAPSHOT", required = true)]
        names: Vec<String>,
    },
}

impl Snapshots {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        match self.action {
            Some(Action::Remove { .. }) if self.all => {
                bail!("--all is for the list; name what is to be removed")
            }
            Some(Action::Remove { names }) => remove(global, names).await,
            None => list(global, self.all).await,
        }
    }
}

async fn list(global: &Global, all: bool) -> Result<i32> {
    let house = global.open()?;
    let mut snapshots = house.snapshots().await?;
    snapshots.retain(|snapshot| all || snapshot.step.is_none());
    for id in house.damaged_snapshots().await? {
        global.say(&damaged(&id));
    }
    if global.json {
        output::print_json(&Value::Array(snapshots.iter().map(snapshot::json).collect()))?;
        return Ok(0);
    }
    if snapshots.is_empty() {
        global.say("there are no snapshots; `glass snapshot` takes one");
        return Ok(0);
    }
    let header = ["ID", "NAME", "OF", "IMAGE", "METHOD", "TOOK", "LAYERS", "DURABLE", "AGE"];
    let rows: Vec<Vec<String>> = snapshots.iter().map(row).collect();
    let mut lines = table::lines(&header, &rows, terminal::width());
    lines[0] = lines[0].bold().to_string();
    output::print(lines)?;
    Ok(0)
}

/// What is said of a snapshot that cannot be shown.
pub(super) fn damaged(id: &str) -> String {
    format!("the record of snapshot {id} is damaged; `glass snapshots remove {id}` removes it")
}

fn row(snapshot: &SnapshotInfo) -> Vec<String> {
    vec![
        snapshot.id.clone(),
        snapshot.known_as().map(str::to_owned).or_else(|| task(snapshot)).unwrap_or_default(),
        snapshot.from.clone(),
        snapshot.image.to_string(),
        snapshot.method.name().to_owned(),
        format!("{:.1} ms", snapshot.took_us as f64 / 1000.0),
        snapshot.chain.len().to_string(),
        if snapshot.durable { "yes" } else { "not yet" }.to_owned(),
        words::age(snapshot.created_ms),
    ]
}

/// The task that boxes begin with here: the repository's last name, and the commit.
fn task(snapshot: &SnapshotInfo) -> Option<String> {
    let task = snapshot.task.as_ref().filter(|_| snapshot.key.is_some())?;
    let name = task.repo.trim_end_matches('/').rsplit(['/', ':']).next().unwrap_or_default();
    let name = name.strip_suffix(".git").unwrap_or(name);
    Some(format!("task {name}@{}", progress::short(&task.commit)))
}

async fn remove(global: &Global, names: Vec<String>) -> Result<i32> {
    let house = global.open()?;
    let words = Words { done: "removed", name: "id" };
    each(global, names, words, async |name| Ok(Some(house.remove_snapshot(name).await?))).await
}
