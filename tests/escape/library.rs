//! The library as an embedding program uses it, as whoever runs the tests.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glasshouse_sandbox::{ExecOutput, ExecSpec, Program, Sandbox, SandboxSpec, Sandboxes, Settings};
use glasshouse_tests::{Mode, scratch};

use crate::attacker::{Attacker, PROBE, group, probe};

/// Longer than anything here takes; what is not done by then hangs.
const PATIENCE: Duration = Duration::from_secs(180);

/// A box of the library's, with the probe in it.
pub(crate) struct Embedded {
    pub(crate) sandbox: Sandbox,
    host: PathBuf,
}

impl Embedded {
    /// A directory of the host's that has nothing to do with the box, beside its home.
    pub(crate) fn host(&self) -> &Path {
        &self.host
    }

    /// A line for the shell of the box, to its end.
    pub(crate) async fn sh(&self, line: &str) -> ExecOutput {
        let exec = self.sandbox.exec(shell(line)).await.expect("it can be started");
        exec.collect().await
    }

    /// A line for the shell of the box that goes on while the test does.
    pub(crate) async fn in_background(&self, line: &str) -> u64 {
        let spec = ExecSpec { background: true, ..shell(line) };
        self.sandbox.exec(spec).await.expect("it can be started").id()
    }
}

fn shell(line: &str) -> ExecSpec {
    ExecSpec { program: Program::Shell(line.into()), cwd: Some("/tmp".into()), ..ExecSpec::default() }
}

/// Runs a test in a box of the library's.
pub(crate) fn with_box<F: Future<Output = ()>>(test: impl FnOnce(Embedded) -> F) {
    let mode = if glasshouse_tests::is_root() { Mode::Root } else { Mode::Rootless };
    let (Some(probe), Some(_)) = (probe(), Attacker::new(mode, "user", &[])) else {
        glasshouse_tests::skip(group(mode), "no box can be made");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads can be started").block_on(async {
        let dir = scratch();
        let host = dir.path().join("host");
        std::fs::create_dir(&host).expect("the scratch directory can be written");
        let house = Sandboxes::open(Settings { home: dir.path().join("home") }).expect("a home can be made");
        let sandbox = house.create(SandboxSpec::default()).await.expect("a box can be made");
        sandbox.copy_in(probe, PROBE).await.expect("the probe can be brought in");
        let stays = sandbox.clone();
        let done = tokio::time::timeout(PATIENCE, test(Embedded { sandbox, host })).await;
        stays.destroy().await.expect("a box can be removed");
        done.expect("nothing hangs");
    });
}
