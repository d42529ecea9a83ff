//! What a long history costs whoever reads: the same tree in two boxes, in one written at once, in the other with a
//! snapshot after each file.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use glasshouse_sandbox::{ExecSpec, Program, Sandbox, Sandboxes, Settings, SnapshotOptions};
use tempfile::TempDir;

use super::report::{Row, Verb};
use crate::report::Outcome;
use crate::sample::Samples;
use crate::stage;

/// Files of the tree, and snapshots of the history.
const FILES: usize = 1000;
const DIRECTORY_FILES: usize = 100;
const PLACE: &str = "/workspace/tree";
const READ: &str = "find /workspace/tree -type f -exec cat {} +";

/// Removed with all it holds at the end.
pub(super) struct History {
    dir: TempDir,
    house: Sandboxes,
    /// Boxes that began with the tree.
    flat: Sandbox,
    deep: Sandbox,
    samples: [Samples; 2],
}

impl History {
    pub(super) async fn grow(home: &Path) -> Result<History> {
        let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", home.display()))?;
        let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
        let outside = dir.path().join("tree");
        let live = house.create(stage::spec()).await.context("cannot make the box")?;
        for n in 0..FILES {
            let part = n / DIRECTORY_FILES;
            if n % DIRECTORY_FILES == 0 {
                fs::create_dir_all(outside.join(part.to_string()))?;
                live.make_dir(&format!("{PLACE}/{part}"), true).await?;
            }
            let text = format!("file {n}\n");
            fs::write(outside.join(format!("{part}/{n}")), &text)?;
            live.write_file(&format!("{PLACE}/{part}/{n}"), text.as_bytes(), None).await?;
            live.snapshot(SnapshotOptions::default()).await?;
            // What is done beside it has to be done for the next one, or it would be done for none.
            house.settle().await;
        }
        let deep = house.fork(live.id(), 1).await?.pop().context("a fork is one box")?;
        live.destroy().await?;
        let fresh = house.create(stage::spec()).await.context("cannot make the box")?;
        fresh.copy_in(&outside, PLACE).await.context("cannot copy the tree into the box")?;
        let flat = house.fork(fresh.id(), 1).await?.pop().context("a fork is one box")?;
        fresh.destroy().await?;
        Ok(History { dir, house, flat, deep, samples: Default::default() })
    }

    /// Reads both trees, each on a root that was mounted a moment ago.
    pub(super) async fn take(&mut self, counts: bool) -> Result<()> {
        for (sandbox, samples) in [&self.flat, &self.deep].into_iter().zip(&mut self.samples) {
            sandbox.reset().await?;
            let start = Instant::now();
            let program = Program::Shell(READ.into());
            let output = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await?.collect().await;
            let took = start.elapsed();
            let lines = output.stdout.bytes.iter().filter(|byte| **byte == b'\n').count();
            ensure!(output.report.exit.success() && lines == FILES, "only {lines} files were read");
            if counts {
                samples.push(took);
            }
        }
        Ok(())
    }

    /// Takes everything away. What was measured.
    pub(super) async fn clear(self) -> Result<Vec<Row>> {
        for sandbox in [&self.flat, &self.deep] {
            sandbox.destroy().await?;
        }
        self.house.settle().await;
        // The snapshots go with it: to remove them one by one takes longer than to make them.
        self.dir.close().context("cannot remove the state directory")?;
        let row = |(verb, samples)| Row { verb, files: FILES, bytes: 0, outcome: Outcome::Sampled(samples) };
        Ok([Verb::ReadFlat, Verb::ReadDeep].into_iter().zip(self.samples).map(row).collect())
    }
}
