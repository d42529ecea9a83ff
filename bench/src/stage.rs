//! What the contenders of one pass share: a directory, a house with a live box in it, and the programs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use glasshouse_sandbox::{EngineSettings, RuntimeKind, Sandbox, SandboxSpec, Sandboxes, Settings};
use tempfile::TempDir;

use crate::options::Options;
use crate::program::Glass;

/// Boxes after which a house has others begun ahead.
const BEFORE: usize = 4;

/// Removed with all it holds at the end.
pub(crate) struct Stage {
    dir: TempDir,
    pub(crate) house: Sandboxes,
    /// The box that commands are run in.
    pub(crate) live: Sandbox,
    /// The same in a container of the engine that `docker` finds, or why there is none.
    pub(crate) contained: std::result::Result<Sandbox, String>,
    pub(crate) glass: Glass,
}

impl Stage {
    pub(crate) async fn set(options: &Options, glass: Glass) -> Result<Stage> {
        let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(&options.home);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", options.home.display()))?;
        let engine = EngineSettings { host: std::env::var("DOCKER_HOST").ok(), ..EngineSettings::default() };
        let house = Sandboxes::open_with(Settings { home: dir.path().join("home") }, engine)?;
        let live = house.create(spec()).await.context("cannot make the box that commands are run in")?;
        for _ in 0..BEFORE {
            house.create(spec()).await?.destroy().await?;
        }
        let contained = house.create(contained()).await.map_err(|e| e.to_string());
        Ok(Stage { dir, house, live, contained, glass })
    }

    /// Where everything lies.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The state directory.
    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Takes everything away.
    pub(crate) async fn clear(self) -> Result<()> {
        self.live.destroy().await?;
        if let Ok(contained) = self.contained {
            contained.destroy().await?;
        }
        self.house.gc().await?;
        self.dir.close().context("cannot remove the state directory")
    }
}

/// An ordinary box that dies with us, so that a benchmark that is killed leaves none behind.
pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec { owner: Some(std::process::id()), ..SandboxSpec::default() }
}

/// The same in a container.
pub(crate) fn contained() -> SandboxSpec {
    SandboxSpec { runtime: RuntimeKind::Docker, ..spec() }
}
