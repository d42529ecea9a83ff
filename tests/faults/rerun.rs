//! A test that is about an ordinary user, started by root: this very program is executed again as that user, with the
//! one test, and what is left is looked at by root from outside.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{ORDINARY, is_root, place_program, scratch};

use crate::{alone, nothing_left};

/// Where the rerun finds the home that root has made for it.
const HOME: &str = "GLASSHOUSE_TEST_HOME";

/// A home of an ordinary user. The scratch directory, if it is ours, goes with it.
pub(crate) struct OrdinaryHome {
    pub(crate) path: PathBuf,
    _dir: Option<tempfile::TempDir>,
}

/// As an ordinary user: a home, and the test goes on. As root: the test has run as one already.
pub(crate) fn as_ordinary(test: &str) -> Option<OrdinaryHome> {
    if let Some(path) = std::env::var_os(HOME) {
        assert!(!is_root(), "the rerun is not root");
        return Some(OrdinaryHome { path: path.into(), _dir: None });
    }
    let dir = scratch();
    let home = dir.path().join("home");
    if !is_root() {
        return Some(OrdinaryHome { path: home, _dir: Some(dir) });
    }
    let _turn = alone();
    std::fs::create_dir(&home).expect("the scratch directory is ours");
    chown(&home, Some(ORDINARY), Some(ORDINARY)).expect("root may give a directory away");
    let program = dir.path().join("faults");
    place_program(&std::env::current_exe().expect("a test knows where it is"), &program);
    let before = Leaks::now(&home);
    let status = Command::new(&program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(HOME, &home)
        .current_dir("/")
        .uid(ORDINARY)
        .gid(ORDINARY)
        .status()
        .expect("it can be executed");
    assert!(status.success(), "{test} as an ordinary user: {status}");
    nothing_left(&before, &home, test);
    None
}
