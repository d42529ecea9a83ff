//! A test in a process of its own, as root and as an ordinary user: this very program is executed again with the one
//! test. What it does to processes and to its home then touches no other test.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use glasshouse_sandbox::{ExecSpec, Program, Sandbox, SandboxSpec, Sandboxes, Settings};
use glasshouse_tests::begun::begun;
use glasshouse_tests::{Mode, ORDINARY, is_root, place_program, scratch, skip};

/// Where the rerun finds the home that was made for it.
const HOME: &str = "GLASSHOUSE_TEST_HOME";
/// What the tests run in the box.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// Runs `body` in a process of its own for each mode that can be tested here. It is given a home.
pub(crate) fn each<F: Future<Output = ()>>(test: &str, body: impl FnOnce(PathBuf) -> F) {
    if let Some(home) = std::env::var_os(HOME) {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        return threads.expect("threads can be started").block_on(body(home.into()));
    }
    for mode in Mode::all() {
        let (dir, group) = match mode {
            Mode::Root => (scratch(), "native-root"),
            Mode::Rootless => (scratch(), "native-rootless"),
        };
        if !Path::new(PYTHON).exists() {
            skip(group, &format!("{PYTHON} is not there"));
            continue;
        }
        let (home, program) = (dir.path().join("home"), dir.path().join("state"));
        std::fs::create_dir(&home).expect("the scratch directory is ours");
        let own = std::env::current_exe().expect("a test knows where it is");
        place_program(&own, &program);
        let mut command = Command::new(&program);
        command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(HOME, &home).current_dir("/");
        if mode == Mode::Rootless && is_root() {
            chown(&home, Some(ORDINARY), Some(ORDINARY)).expect("root may give a directory away");
            command.uid(ORDINARY).gid(ORDINARY);
        }
        let ended = command.output().expect("it can be executed");
        let text = [ended.stdout, ended.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(ended.status.success(), "{test}, {mode:?}: {}\n{text}", ended.status);
        assert!(text.contains("1 passed"), "{test}, {mode:?} did not run:\n{text}");
    }
}

/// A house with its first box.
pub(crate) async fn house(home: &Path) -> (Sandboxes, Sandbox) {
    let house = Sandboxes::open(Settings { home: home.to_owned() }).expect("a home can be made");
    let sandbox = house.create(spec()).await.expect("a box can be made");
    (house, sandbox)
}

/// A box that dies with the test.
pub(crate) fn spec() -> SandboxSpec {
    SandboxSpec { owner: Some(std::process::id()), ..SandboxSpec::default() }
}

/// Runs a program in Python. Its output.
pub(crate) async fn python(sandbox: &Sandbox, program: &str, args: &[&str]) -> String {
    let argv = [&[PYTHON, "-I", "-S", "-c", program], args].concat();
    let program = Program::Argv(argv.iter().map(|&word| word.to_owned()).collect());
    let exec = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await.expect("the box lives");
    let output = exec.collect().await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.report.exit.success(), "{:?}: {}", output.report.exit, text(&output.stderr.bytes));
    text(&output.stdout.bytes)
}

/// All that a home may not hold when its boxes and snapshots are gone. What its house has begun for the next one may stay.
pub(crate) fn left_in(home: &Path) -> Vec<String> {
    let mut left = Vec::new();
    let begun = begun(home);
    let is_begun = |entry: &std::fs::DirEntry, name: &String| {
        let of = std::fs::read_link(entry.path()).map(|id| id.to_string_lossy().into_owned());
        begun.contains(of.as_ref().unwrap_or(name))
    };
    for dir in ["boxes", "trash", "snapshots", "layers", "incoming", "uids", "names"] {
        for entry in std::fs::read_dir(home.join(dir)).expect("a home has it") {
            let entry = entry.expect("it can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("host-") && name != "blobs" && !is_begun(&entry, &name) {
                left.push(format!("{dir}/{name}"));
            }
        }
    }
    left
}

/// Removes all boxes and snapshots; nothing may stay.
pub(crate) async fn clear(house: &Sandboxes, home: &Path) {
    for info in house.list().await.expect("boxes can be listed") {
        house.destroy(&info.id).await.expect("it can be removed");
    }
    for snapshot in house.snapshots().await.expect("snapshots can be listed") {
        house.remove_snapshot(&snapshot.id).await.expect("it can be removed");
    }
    house.settle().await;
    house.gc().await.expect("what is left can be removed");
    assert_eq!(left_in(home), [""; 0]);
}

/// A line for whoever reads what the rerun said.
pub(crate) fn tell(line: &str) {
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
}

/// Numbers that look like chance and are the same for the same seed (splitmix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// The seed is told; `STATE_SEED` repeats a run.
    pub(crate) fn new(test: &str) -> Dice {
        let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64);
        let seed = std::env::var("STATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        tell(&format!("{test}: STATE_SEED={seed}"));
        Dice(seed)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    pub(crate) fn of<'a, T>(&mut self, these: &'a [T]) -> Option<&'a T> {
        (!these.is_empty()).then(|| &these[self.below(these.len())])
    }
}
