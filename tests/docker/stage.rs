//! A house on the tests' engine.

use std::path::Path;
use std::time::{Duration, Instant};

use glasshouse_sandbox::{
    EngineSettings, ExecOutput, ExecSpec, Exit, Image, Program, RuntimeKind, Sandbox, SandboxSpec, Sandboxes,
    Settings,
};
use glasshouse_tests::engine::{TestEngine, clear, engine};
use glasshouse_tests::{scratch, skip};

/// The longest that one test may take before it counts as hanging.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// The longest that a test waits for one thing to happen.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at something that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A house, its engine, and a directory that goes with the test.
pub(crate) struct Stage {
    pub(crate) house: Sandboxes,
    pub(crate) engine: &'static TestEngine,
    pub(crate) dir: tempfile::TempDir,
}

/// Runs a body where there is an engine, and cleans up after it.
pub(crate) fn perform(body: impl AsyncFnOnce(&Stage)) {
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => return skip("docker", why),
    };
    let dir = scratch();
    let house = open(&dir.path().join("home"), &engine.host);
    let stage = Stage { house, engine, dir };
    let executor =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    executor.block_on(async {
        let whole = async {
            body(&stage).await;
            stage.close().await;
        };
        assert!(tokio::time::timeout(TEST_LIMIT, whole).await.is_ok(), "the test hangs");
    });
}

/// Opens a house on an engine.
pub(crate) fn open(home: &Path, host: &str) -> Sandboxes {
    let engine = EngineSettings { host: Some(host.to_owned()), ..EngineSettings::default() };
    Sandboxes::open_with(Settings { home: home.to_owned() }, engine).unwrap()
}

pub(crate) fn spec() -> SandboxSpec {
    // Should a test fail, its boxes go with it.
    SandboxSpec { runtime: RuntimeKind::Docker, owner: Some(std::process::id()), ..SandboxSpec::default() }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A test that failed may have left an engine's containers.
        clear(self.dir.path());
    }
}

impl Stage {
    pub(crate) async fn sandbox(&self) -> Sandbox {
        self.create(spec()).await
    }

    pub(crate) async fn create(&self, spec: SandboxSpec) -> Sandbox {
        self.house.create(spec).await.unwrap()
    }

    /// A box of an image of the engine.
    pub(crate) async fn of_image(&self, name: &str) -> Sandbox {
        self.create(SandboxSpec { image: Image::Engine(name.to_owned()), ..spec() }).await
    }

    /// A directory for an engine of the test's own.
    pub(crate) fn place(&self) -> std::path::PathBuf {
        let dir = self.dir.path().join("engine");
        std::fs::create_dir_all(dir.join("data")).unwrap();
        dir
    }

    /// The containers of this house, as the engine lists them.
    pub(crate) fn containers(&self) -> Vec<String> {
        self.listed(&["ps"])
    }

    /// Removes every box, and sees that this leaves no container.
    async fn close(&self) {
        for info in self.house.list().await.unwrap() {
            self.house.destroy(&info.id).await.unwrap();
        }
        for snapshot in self.house.snapshots().await.unwrap() {
            self.house.remove_snapshot(&snapshot.id).await.unwrap();
        }
        self.house.settle().await;
        self.house.gc().await.unwrap();
        assert_eq!((self.containers(), self.images()), (Vec::new(), Vec::new()));
    }

    /// The images of this house's snapshots, as the engine lists them.
    pub(crate) fn images(&self) -> Vec<String> {
        self.listed(&["images"])
    }

    /// What the engine lists with the label of this house.
    fn listed(&self, what: &[&str]) -> Vec<String> {
        let Some(label) = label_of(&self.dir.path().join("home")) else { return Vec::new() };
        let listed = self.engine.docker(&[what, &["-aq", "--no-trunc", "--filter", &label]].concat());
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

/// What the engine finds all by that is of a home; none if it never had a container.
pub(crate) fn label_of(home: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let name = std::fs::read_to_string(home.join("engine/name")).ok()?;
    let meta = std::fs::metadata(home).unwrap();
    Some(format!("label=glasshouse.home={:x}-{:x}-{name}", meta.dev(), meta.ino()))
}

pub(crate) fn argv(words: &[&str]) -> ExecSpec {
    let program = Program::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    ExecSpec { program, ..ExecSpec::default() }
}

pub(crate) fn shell(line: &str) -> ExecSpec {
    ExecSpec { program: Program::Shell(line.into()), ..ExecSpec::default() }
}

pub(crate) async fn run(sandbox: &Sandbox, spec: ExecSpec) -> ExecOutput {
    sandbox.exec(spec).await.unwrap().collect().await
}

/// What a line wrote that has to succeed.
pub(crate) async fn stdout_of(sandbox: &Sandbox, line: &str) -> String {
    let output = run(sandbox, shell(line)).await;
    let stderr = String::from_utf8_lossy(&output.stderr.bytes).into_owned();
    assert_eq!(output.report.exit, Exit::Code { code: 0 }, "{line}: {stderr}");
    String::from_utf8(output.stdout.bytes).unwrap()
}

/// Looks again and again until something is so. For what nobody announces.
pub(crate) async fn settle(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !so().await {
        assert!(since.elapsed() < WAIT_LIMIT, "{what}: not after {WAIT_LIMIT:?}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
