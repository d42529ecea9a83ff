//! What the tests share: where the program is, state directories that clean up after themselves, and skips that are
//! loud and, where they must not be, fatal.

pub mod begun;
pub mod engine;
pub mod kernels;
pub mod leaks;
pub mod node;
pub mod podman;
pub mod python;
pub mod trees;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says that a test cannot run here. Where `MUST_RUN` names the group (CI names `native-root`, `native-rootless`,
/// `escape`, `images`, `docker`, `podman`, `runsc`, `serve` and `viewer`), that is a failure.
///
/// # Panics
/// If the group must run.
pub fn skip(group: &str, why: &str) {
    let must = std::env::var("MUST_RUN").unwrap_or_default();
    assert!(!must.split(',').any(|name| name == group), "{group} must run here, and cannot: {why}");
    // Not `eprintln`, which a test that passes would keep to itself.
    let _ = writeln!(std::io::stderr(), "SKIP {group}: {why}");
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    glasshouse_linux::rustix::process::geteuid().is_root()
}

/// Longer than any suite takes on two busy processors. A test that hangs is to fail, and to be named.
const SUITE_MAX: std::time::Duration = std::time::Duration::from_secs(20 * 60);

/// Ends the suite when it hangs: the harness has said by then which tests have "been running for over 60 seconds".
fn watch() {
    static WATCH: std::sync::Once = std::sync::Once::new();
    WATCH.call_once(|| {
        std::thread::spawn(|| {
            std::thread::sleep(SUITE_MAX);
            let _ = writeln!(std::io::stderr(), "the suite hangs: not over after {SUITE_MAX:?}");
            std::process::exit(101);
        });
    });
}

/// How often somebody is killed: so often, or as `CRASH_ROUNDS` says.
pub fn crash_rounds(usual: usize) -> usize {
    std::env::var("CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

/// A directory where test homes lie: on a real disk, and reachable by every user.
pub fn scratch() -> tempfile::TempDir {
    watch();
    let dir = tempfile::Builder::new()
        .prefix("glass-test-")
        .tempdir_in("/var/tmp")
        .expect("/var/tmp can be written");
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("the directory is ours");
    dir
}

/// The program, as `cargo build --workspace` left it beside this test.
///
/// # Panics
/// If it was not built.
pub fn glass() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let glass = test.ancestors().nth(2).expect("target/<profile>/deps").join("glass");
    assert!(glass.is_file(), "{} is missing: run `cargo build --workspace` first", glass.display());
    glass
}

/// Puts a program where another user can reach it: a link where that goes, a copy elsewhere.
///
/// # Panics
/// If it cannot be put there.
pub fn place_program(from: &Path, to: &Path) {
    if std::fs::hard_link(from, to).is_err() {
        copy_program(from, to);
    }
}

/// Copies a program, and lets everybody execute it. Another process does so: in this one the copy would be open for
/// writing for a moment, and a child that another test starts in that moment would keep it busy ("Text file busy").
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let ended = Command::new("install").arg("-m755").args([from, to]).status();
    assert!(ended.is_ok_and(|ended| ended.success()), "{} was not copied", from.display());
}

/// Whose boxes are tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The host's root.
    Root,
    /// An ordinary user of the host without any right of his own.
    Rootless,
}

/// The uid and gid of the ordinary user in tests. No account is needed for it.
pub const ORDINARY: u32 = 61_234;

impl Mode {
    /// The modes that can be tested here; root can do both.
    pub fn all() -> Vec<Mode> {
        if is_root() {
            return vec![Mode::Root, Mode::Rootless];
        }
        skip("native-root", "the tests do not run as root");
        vec![Mode::Rootless]
    }
}

/// A state directory and the program, for one mode.
#[derive(Debug)]
pub struct House {
    dir: tempfile::TempDir,
    home: PathBuf,
    glass: PathBuf,
    /// Whose boxes these are.
    pub mode: Mode,
    /// Where the program finds a Docker engine, if it is to find one.
    pub engine: Option<String>,
}

impl House {
    /// A new, empty one. The program is copied to where the mode's user can reach it.
    pub fn new(mode: Mode) -> House {
        House::on(mode, None)
    }

    /// One whose state directory lies on this file system, which outlives it.
    pub fn on(mode: Mode, disk: Option<&Path>) -> House {
        let dir = scratch();
        let copy = dir.path().join("glass");
        place_program(&glass(), &copy);
        let home = match disk {
            Some(disk) => disk.join(format!("home-{mode:?}")),
            None => dir.path().join("home"),
        };
        std::fs::create_dir(&home).expect("the scratch directory can be written");
        if mode == Mode::Rootless && is_root() {
            std::os::unix::fs::chown(&home, Some(ORDINARY), Some(ORDINARY))
                .expect("root may give a directory away");
        }
        House { dir, home, glass: copy, mode, engine: None }
    }

    /// The state directory.
    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    /// A directory that is removed with the house.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The program with these arguments, as the mode's user, with an environment that holds nothing of ours.
    pub fn glass(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.glass);
        command.args(args).env_clear().env("GLASSHOUSE_HOME", self.home()).env("PATH", "/usr/bin:/bin");
        command.current_dir("/").envs(self.engine.iter().map(|engine| ("DOCKER_HOST", engine)));
        if self.mode == Mode::Rootless && is_root() {
            use std::os::unix::process::CommandExt;
            command.uid(ORDINARY).gid(ORDINARY);
        }
        command
    }

    /// Runs the program to its end: exit code, stdout, stderr.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.glass(args).output().expect("the program can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // A test that failed in the middle may have left boxes; the next one must not suffer for it.
        let _ = self.glass(&["kill", "--all"]).output();
    }
}
