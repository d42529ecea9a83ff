//! A tree of files in a box and outside of it, and what is done to both.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use glasshouse_sandbox::{Method, Sandbox, Sandboxes, Settings, SnapshotOptions};
use tempfile::TempDir;

use super::report::{Row, Verb};
use crate::contender::CommandLine;
use crate::contender::docker::Engine;
use crate::report::Outcome;
use crate::sample::Samples;
use crate::stage;

/// Files in one directory of the tree.
const DIRECTORY_FILES: usize = 1000;
/// Where the tree is in the box.
const PLACE: &str = "/workspace/tree";
/// What changes between two snapshots.
const CHANGED: &str = "/workspace/changed";
/// Files that change between two digests.
const CHANGES: usize = 10;
/// Rounds of what takes as long as the tree is large, if it is.
const ROUNDS_LARGE: usize = 5;
/// From here on a tree is large.
const FILES_LARGE: usize = 10_000;
/// From here on its files are empty: it is their number that is measured, and a block for each would fill a disk.
const FILES_HUGE: usize = 100_000;

/// What is done in one turn.
#[derive(Debug, Clone, Copy)]
enum Turn {
    SnapshotAndRestore,
    Reset,
    Fork,
    Digest,
    DigestCold,
    Copy,
    Commit,
    Spawn,
}

const TURNS: [Turn; 8] = [
    Turn::SnapshotAndRestore,
    Turn::Reset,
    Turn::Fork,
    Turn::Digest,
    Turn::DigestCold,
    Turn::Copy,
    Turn::Commit,
    Turn::Spawn,
];

impl Turn {
    /// Whether it reads or writes the whole tree.
    fn is_long(self) -> bool {
        matches!(self, Turn::DigestCold | Turn::Copy | Turn::Commit)
    }
}

/// Removed with all it holds at the end.
pub(super) struct Tree {
    dir: TempDir,
    house: Sandboxes,
    /// Stands on the tree as on a snapshot of itself.
    live: Sandbox,
    /// The state with the tree and nothing else.
    base: String,
    /// A box that began with the tree.
    began: Sandbox,
    engine: Result<Engine, String>,
    files: usize,
    changed: Vec<u8>,
    /// By verb, in the order of `Verb::ALL`.
    samples: Vec<Samples>,
}

impl Tree {
    /// Makes the tree outside, and copies it into a box.
    pub(super) async fn grow(home: &Path, files: usize, bytes: usize) -> Result<Tree> {
        let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", home.display()))?;
        let outside = dir.path().join("tree");
        for n in 0..files {
            let part = outside.join((n / DIRECTORY_FILES).to_string());
            if n % DIRECTORY_FILES == 0 {
                fs::create_dir_all(&part)?;
            }
            let text = if files < FILES_HUGE { format!("file {n}\n") } else { String::new() };
            fs::write(part.join(n.to_string()), text)?;
        }
        let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
        let live = house.create(stage::spec()).await.context("cannot make the box")?;
        for part in 0..files.div_ceil(DIRECTORY_FILES) {
            let (from, to) = (outside.join(part.to_string()), format!("{PLACE}/{part}"));
            // One by one: an archive has a bound.
            live.copy_in(&from, &to).await.context("cannot copy the tree into the box")?;
        }
        let base = live.snapshot(SnapshotOptions::default()).await?.id;
        let began = house.fork(&base, 1).await?.pop().context("a fork is one box")?;
        let engine = Engine::with_tree(&dir.path().join("docker"), &outside);
        let samples = vec![Samples::default(); Verb::ALL.len()];
        // Not zeroes, which a disk may find easier than other bytes.
        let changed = (0..bytes).map(|n| (n % 251) as u8).collect();
        Ok(Tree { dir, house, live, base, began, engine, files, changed, samples })
    }

    pub(super) fn turns(&self) -> usize {
        TURNS.len()
    }

    pub(super) async fn take(&mut self, turn: usize, round: usize, counts: bool) -> Result<()> {
        // A large tree takes so long that a few of these have to do.
        if TURNS[turn].is_long() && self.files >= FILES_LARGE && round > ROUNDS_LARGE {
            return Ok(());
        }
        let times = match TURNS[turn] {
            Turn::SnapshotAndRestore => self.snapshot_and_restore().await?,
            Turn::Reset => {
                self.began.write_file(CHANGED, &self.changed, None).await?;
                self.house.settle().await;
                let start = Instant::now();
                self.began.reset().await?;
                vec![(Verb::Reset, start.elapsed())]
            }
            Turn::Fork => {
                self.live.write_file(CHANGED, &self.changed, None).await?;
                self.house.settle().await;
                let start = Instant::now();
                let forks = self.live.fork(1).await?;
                let took = start.elapsed();
                for fork in forks {
                    fork.destroy().await?;
                }
                self.live.restore(&self.base).await?;
                vec![(Verb::Fork, took)]
            }
            Turn::Digest => self.digest(round).await?,
            Turn::DigestCold => vec![(Verb::DigestCold, self.digest_cold().await?)],
            Turn::Copy => vec![(Verb::Copy, self.copy()?)],
            Turn::Spawn => vec![(Verb::Spawn, crate::pace::spawn()?)],
            Turn::Commit => match &self.engine {
                Ok(engine) => vec![(Verb::Commit, engine.commit()?)],
                Err(_) => Vec::new(),
            },
        };
        for (verb, time) in times.into_iter().filter(|_| counts) {
            if let Some(at) = Verb::ALL.iter().position(|other| *other == verb) {
                self.samples[at].push(time);
            }
        }
        Ok(())
    }

    async fn snapshot_and_restore(&self) -> Result<Vec<(Verb, Duration)>> {
        self.live.write_file(CHANGED, &self.changed, None).await?;
        // What was done beside the turn before is not what is measured in this one.
        self.house.settle().await;
        let start = Instant::now();
        let taken = self.live.snapshot(SnapshotOptions::default()).await?;
        let snapshot = start.elapsed();
        ensure!(
            taken.method == Method::Rotate,
            "nothing ran, and the snapshot was made by {:?}",
            taken.method
        );
        self.house.settle().await;
        let start = Instant::now();
        self.live.restore(&self.base).await?;
        let restore = start.elapsed();
        self.house.remove_snapshot(&taken.id).await?;
        let held = Duration::from_micros(taken.took_us);
        Ok(vec![(Verb::Snapshot, snapshot), (Verb::Held, held), (Verb::Restore, restore)])
    }

    /// A few files change in a box whose digest is known.
    async fn digest(&self, round: usize) -> Result<Vec<(Verb, Duration)>> {
        self.began.write_file(CHANGED, &self.changed, None).await?;
        self.house.digest(self.began.id()).await?;
        for n in 0..CHANGES.min(self.files) {
            let path = format!("{PLACE}/0/{n}");
            self.began.write_file(&path, format!("round {round}\n").as_bytes(), None).await?;
        }
        self.house.settle().await;
        let start = Instant::now();
        self.house.digest(self.began.id()).await?;
        let digest = start.elapsed();
        let top = self.top()?;
        let start = Instant::now();
        let walked = walk(&top)?;
        let walk = start.elapsed();
        ensure!(walked > CHANGES.min(self.files), "the walk found only {walked} files");
        self.began.reset().await?;
        Ok(vec![(Verb::Digest, digest), (Verb::Walk, walk)])
    }

    /// Where the box keeps what it writes.
    fn top(&self) -> Result<PathBuf> {
        let own = self.dir.path().join("home/boxes").join(self.began.id());
        for entry in fs::read_dir(&own).with_context(|| format!("cannot list {}", own.display()))? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("top") {
                return Ok(entry.path().join("u"));
            }
        }
        bail!("the box has no top in {}", own.display())
    }

    /// As if nobody had ever asked: every file is read.
    async fn digest_cold(&self) -> Result<Duration> {
        let home = self.dir.path().join("home");
        for place in ["layers", "boxes"] {
            for entry in fs::read_dir(home.join(place))? {
                match fs::remove_file(entry?.path().join("index")) {
                    Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                        return Err(e).context("cannot remove an index");
                    }
                    _ => {}
                }
            }
        }
        let start = Instant::now();
        self.house.digest(self.began.id()).await?;
        Ok(start.elapsed())
    }

    fn copy(&self) -> Result<Duration> {
        let copy = self.dir.path().join("copy");
        let words =
            ["/bin/cp".as_ref(), "-a".as_ref(), self.dir.path().join("tree").as_os_str(), copy.as_os_str()]
                .map(std::ffi::OsStr::to_owned);
        let took = CommandLine::new(&words).time()?;
        fs::remove_dir_all(&copy).context("cannot remove the copy")?;
        Ok(took)
    }

    /// Takes everything away. What was measured.
    pub(super) async fn clear(self) -> Result<Vec<Row>> {
        for sandbox in [&self.live, &self.began] {
            sandbox.destroy().await?;
        }
        self.house.remove_snapshot(&self.base).await?;
        self.house.settle().await;
        self.house.gc().await?;
        self.dir.close().context("cannot remove the state directory")?;
        let outcome = |verb: Verb, samples: Samples| match (&self.engine, verb) {
            (Err(why), Verb::Commit) => Outcome::Missing(why.clone()),
            _ => Outcome::Sampled(samples),
        };
        let (files, bytes) = (self.files, self.changed.len());
        let rows = Verb::ALL.into_iter().zip(self.samples).filter(|(verb, _)| !verb.is_read());
        Ok(rows.map(|(verb, samples)| Row { verb, files, bytes, outcome: outcome(verb, samples) }).collect())
    }
}

/// Looks at everything below a directory. How many that were.
fn walk(dir: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let entry = entry?;
        found += 1;
        if entry.metadata()?.is_dir() {
            found += walk(&entry.path())?;
        }
    }
    Ok(found)
}
