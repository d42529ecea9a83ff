//! The tests of `native` once more, as an ordinary user: what root can do and he cannot has to be refused, and all
//! the rest has to work alike.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::process::Command;

use glasshouse_tests::{ORDINARY, is_root, place_program, scratch, skip};

use crate::alone::figure;

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
    let (test, reachable) = (std::env::current_exe().unwrap(), dir.path().join("conformance"));
    place_program(&test, &reachable);
    let mut command = Command::new(&reachable);
    // At scale once is enough. Without walls and without cgroups, the ends of boxes are another matter again.
    command
        .args(["native::", "lives::process::", "pause::process::", "--skip", "heavy::", "--nocapture"])
        .current_dir(dir.path());
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir.path()).env("RUST_BACKTRACE", "0");
    command.env("MUST_RUN", std::env::var_os("MUST_RUN").unwrap_or_default());
    command.uid(ORDINARY).gid(ORDINARY);
    let ended = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{text}\n{errors}");
    if let Some(why) = errors.lines().find_map(|line| line.split_once("SKIP native-rootless: ")) {
        return skip("native-rootless", why.1);
    }
    let passed =
        text.lines().find_map(|line| line.strip_prefix("test result: ")).and_then(passed).unwrap_or(0);
    assert!(passed >= TESTS_MIN, "only {passed} tests ran:\n{text}");
    figure(&format!("native as an ordinary user: {passed} tests passed"));
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
