//! The tests of `native` once more, as an ordinary user: what root can do and he cannot has to be refused, and all
//! the rest has to work alike.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use glasshouse_tests::{ORDINARY, is_root, scratch, skip};

/// So many tests at least have to have run, or the filter has found something else.
const TESTS_MIN: usize = 120;

#[test]
fn native_tests_pass_for_an_ordinary_user() {
    if !is_root() {
        // Then they are what this run is made of.
        return;
    }
    let dir = scratch();
    chown(dir.path(), Some(ORDINARY), Some(ORDINARY)).unwrap();
    // Where it was built, another user may not be able to reach it.
    let copy = dir.path().join("conformance");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&copy);
    // At scale once is enough.
    command.args(["native::", "--skip", "heavy::"]).current_dir(dir.path());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir.path()).env("RUST_BACKTRACE", "0");
    command.uid(ORDINARY).gid(ORDINARY);
    let ended = command.output().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout);
    let passed =
        text.lines().find_map(|line| line.strip_prefix("test result: ")).and_then(passed).unwrap_or(0);
    println!("FIGURE native rootless: {passed} tests passed as uid {ORDINARY}");
    assert!(ended.status.success(), "{text}\n{}", String::from_utf8_lossy(&ended.stderr));
    assert!(passed >= TESTS_MIN, "only {passed} tests ran:\n{text}");
}

/// The number of `ok. 120 passed; …`.
fn passed(summary: &str) -> Option<usize> {
    summary.split("; ").next()?.strip_suffix(" passed")?.rsplit(' ').next()?.parse().ok()
}

#[test]
fn native_tests_run_as_root() {
    if !is_root() {
        skip("native-root", "the tests do not run as root");
    }
}
