//! The stage of a test: a house in a directory of its own, on one runtime, and what most tests do there.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use glasshouse_sandbox::{
    EngineSettings, Error, Exec, ExecOutput, ExecSpec, ExecState, Exit, Kept, Program, Result, RuntimeKind,
    Sandbox, SandboxSpec, Sandboxes, Settings,
};
use glasshouse_tests::engine::engine;
use glasshouse_tests::{is_root, scratch, skip};

use crate::pattern::{Pattern, native_group};

/// The longest that one test may take before it counts as hanging.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// The longest that a test waits for one thing to happen.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at something that nobody announces.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Turns each function of the list into one test per runtime. A body takes `&Sandbox`, which is a plain box of its
/// own, or `&Stage`, to make its boxes itself.
macro_rules! on_every_runtime {
    ($($name:ident),+ $(,)?) => {
        mod native {
            $(#[test] fn $name() {
                $crate::stage::perform(glasshouse_sandbox::RuntimeKind::Native, super::$name);
            })+
        }
        mod docker {
            $(#[test] fn $name() {
                $crate::stage::perform(glasshouse_sandbox::RuntimeKind::Docker, super::$name);
            })+
        }
        mod process {
            $(#[test] fn $name() {
                $crate::stage::perform(glasshouse_sandbox::RuntimeKind::Process, super::$name);
            })+
        }
    };
}
pub(crate) use on_every_runtime;

/// A house on one runtime.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub(crate) house: Sandboxes,
    pub(crate) runtime: RuntimeKind,
    dir: PathBuf,
}

/// What a body wants to be given.
pub(crate) trait Subject: Sized {
    async fn of(stage: &Stage) -> Self;
}

impl Subject for Stage {
    async fn of(stage: &Stage) -> Stage {
        stage.clone()
    }
}

impl Subject for Sandbox {
    async fn of(stage: &Stage) -> Sandbox {
        stage.sandbox().await
    }
}

/// Runs one body on one runtime, and cleans up after it even if it fails.
pub(crate) fn perform<T: Subject>(runtime: RuntimeKind, body: impl AsyncFnOnce(&T)) {
    if runtime == RuntimeKind::Docker
        && let Err(why) = engine()
    {
        return skip("docker", why);
    }
    let pattern = Pattern::current();
    if let Some(why) = pattern.missing(runtime) {
        return skip(native_group(), why);
    }
    let dir = scratch();
    let house = open(&dir.path().join("home"));
    pattern.copy_to(&dir.path().join("home"));
    let curtain = Curtain {
        stage: Stage { house, runtime, dir: dir.path().to_owned() },
        executor: tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    };
    curtain.executor.block_on(async {
        let whole = async {
            let subject = T::of(&curtain.stage).await;
            body(&subject).await;
            drop(subject);
            curtain.stage.close().await;
        };
        assert!(tokio::time::timeout(TEST_LIMIT, whole).await.is_ok(), "the test hangs");
    });
}

/// Opens a house, as another process would too.
pub(crate) fn open(home: &Path) -> Sandboxes {
    let engine =
        EngineSettings { host: engine().ok().map(|engine| engine.host.clone()), ..EngineSettings::default() };
    let house = Sandboxes::open_with(Settings { home: home.to_owned() }, engine);
    house.expect("a house can be opened in a fresh directory")
}

struct Curtain {
    stage: Stage,
    executor: tokio::runtime::Runtime,
}

impl Drop for Curtain {
    fn drop(&mut self) {
        let stage = &self.stage;
        self.executor.block_on(async {
            // After a test that passed there is nothing to do here; after one that failed, as much as works.
            for info in stage.house.list().await.unwrap_or_default() {
                let _ = stage.house.destroy(&info.id).await;
            }
        });
        remove_cgroups(&stage.home());
    }
}

/// A house's own directories in the cgroup trees outlive the house; a test's house will never be opened again.
pub(crate) fn remove_cgroups(home: &Path) {
    let Ok(meta) = std::fs::metadata(home) else { return };
    let name = format!("glasshouse-{:x}-{:x}", meta.dev(), meta.ino());
    let root = Path::new("/sys/fs/cgroup");
    let trees = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    for tree in trees.chain([root.to_owned()]) {
        // Most trees have none, and those that have one may be somebody else's to remove.
        let _ = std::fs::remove_dir(tree.join(&name));
    }
}

impl Stage {
    /// A directory of the host that goes away with the test.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Whether the host's root makes these boxes, with all its means.
    pub(crate) fn is_native_root(&self) -> bool {
        self.runtime == RuntimeKind::Native && is_root()
    }

    /// Whether boxes have several users, and cgroups that limit them: those that root makes, or an engine.
    pub(crate) fn has_root(&self) -> bool {
        self.is_native_root() || self.runtime == RuntimeKind::Docker
    }

    /// A number that no other test has, for telling processes by their arguments.
    pub(crate) fn marker(&self) -> String {
        static GIVEN: AtomicU32 = AtomicU32::new(0);
        format!("8{}{:04}", std::process::id(), GIVEN.fetch_add(1, Ordering::Relaxed))
    }

    /// A plain box.
    pub(crate) async fn sandbox(&self) -> Sandbox {
        self.create(SandboxSpec::default()).await.expect("a plain box can be made")
    }

    /// A box of this runtime.
    pub(crate) async fn create(&self, spec: SandboxSpec) -> Result<Sandbox> {
        self.house.create(SandboxSpec { runtime: self.runtime, ..spec }).await
    }

    /// The reason why a box is not made.
    pub(crate) async fn refusal(&self, spec: SandboxSpec) -> Error {
        let shown = format!("{spec:?}");
        match self.create(spec).await {
            Ok(_) => panic!("a box was made of {shown}"),
            Err(error) => error,
        }
    }

    /// Removes every box, and sees that this leaves none.
    async fn close(&self) {
        for info in self.house.list().await.expect("boxes can be listed") {
            self.house.destroy(&info.id).await.expect("a box can be removed");
        }
        assert_eq!(self.house.list().await.expect("boxes can be listed"), []);
    }
}

/// A program and its arguments.
pub(crate) fn argv(words: &[&str]) -> ExecSpec {
    let program = Program::Argv(words.iter().map(|word| (*word).to_owned()).collect());
    ExecSpec { program, ..ExecSpec::default() }
}

/// A line for the shell.
pub(crate) fn shell(line: &str) -> ExecSpec {
    ExecSpec { program: Program::Shell(line.into()), ..ExecSpec::default() }
}

/// A few lines of Perl, which every Debian has: for what a shell cannot do.
pub(crate) fn perl(script: &str) -> ExecSpec {
    argv(&["perl", "-e", script])
}

/// Runs a command to its end.
pub(crate) async fn run(sandbox: &Sandbox, spec: ExecSpec) -> ExecOutput {
    sandbox.exec(spec).await.expect("the box takes commands").collect().await
}

/// Runs a shell line that has to succeed; what it wrote.
pub(crate) async fn stdout_of(sandbox: &Sandbox, line: &str) -> String {
    let output = run(sandbox, shell(line)).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 }, "{line}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// How a command ended.
pub(crate) async fn exit_of(sandbox: &Sandbox, spec: ExecSpec) -> Exit {
    run(sandbox, spec).await.report.exit
}

/// Starts a command that says its number first, and reads that.
pub(crate) async fn start_with_pid(sandbox: &Sandbox, spec: ExecSpec) -> (crate::follow::Follow, u32) {
    let mut follow = crate::follow::Follow::start(sandbox, spec).await;
    let line = follow.line().await;
    let pid = line.trim().parse().unwrap_or_else(|_| panic!("{line:?} is no number of a process"));
    (follow, pid)
}

/// Kept output that has to be whole, as text.
pub(crate) fn text(kept: &Kept) -> String {
    assert_eq!(kept.gap_at, None, "{} bytes were not all kept", kept.total);
    String::from_utf8(kept.bytes.clone()).expect("the output is text")
}

/// Waits in the box until a process of it is gone, as another command sees it.
pub(crate) async fn wait_gone(sandbox: &Sandbox, pid: u32) {
    let spec = shell(&format!("while [ -d /proc/{pid} ]; do sleep 0.01; done"));
    let spec = ExecSpec { timeout_ms: Some(WAIT_LIMIT.as_millis() as u64), ..spec };
    assert_eq!(exit_of(sandbox, spec).await, Exit::Code { code: 0 }, "process {pid} is still there");
}

/// Whether a process of the box lives.
pub(crate) async fn lives(sandbox: &Sandbox, pid: u32) -> bool {
    let state = run(sandbox, shell(&format!("grep State: /proc/{pid}/status"))).await;
    state.report.exit.success() && !text(&state.stdout).contains('Z')
}

/// Whether a command runs, as the box tells.
pub(crate) async fn runs(sandbox: &Sandbox, exec: u64) -> bool {
    let execs = sandbox.execs().await.expect("commands can be listed");
    execs.iter().any(|info| info.exec == exec && info.state == ExecState::Running)
}

/// Ends a command of the background that a test is done with.
pub(crate) async fn put_away(sandbox: &Sandbox, exec: &Exec) {
    sandbox.kill_exec(exec.id()).await.expect("a command can be killed");
}

/// Looks again and again until something is so. For what nobody announces.
pub(crate) async fn settle(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let since = Instant::now();
    while !within(what, so()).await {
        assert!(since.elapsed() < WAIT_LIMIT, "{what}: not after {WAIT_LIMIT:?}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Waits for something that has to happen.
pub(crate) async fn within<T>(what: &str, happening: impl Future<Output = T>) -> T {
    match tokio::time::timeout(WAIT_LIMIT, happening).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not after {WAIT_LIMIT:?}"),
    }
}
