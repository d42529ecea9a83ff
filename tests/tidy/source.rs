//! How source has to look.

use crate::{files, rust_files};

/// Files may grow to here, and no further.
const LINES_MAX: usize = 1000;

#[test]
fn unsafe_code_is_in_one_crate_and_every_block_says_why_it_is_safe() {
    for (path, text) in rust_files() {
        if path.starts_with("crates/linux/") || path.starts_with("tests/tidy/") {
            continue;
        }
        assert!(!text.contains("unsafe {") && !text.contains("unsafe fn"), "{path} holds unsafe code");
    }
    for (path, text) in files("crates", "Cargo.toml") {
        if !path.starts_with("crates/linux/") {
            assert!(text.contains("[lints]\nworkspace = true"), "{path} does not take the workspace's lints");
        }
    }
}

#[test]
fn no_file_is_a_giant() {
    for (path, text) in rust_files() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines: it is more than one thing");
    }
}

#[test]
fn no_module_is_named_for_nothing() {
    let forbidden = ["core", "common", "utils", "util", "types", "helpers", "helper", "manager", "misc"];
    for (path, _) in rust_files() {
        let bad = path.trim_end_matches(".rs").split('/').find(|name| forbidden.contains(name));
        assert!(bad.is_none(), "{path}: {bad:?} says nothing");
    }
}

#[test]
fn nothing_is_left_undone() {
    let words = ["todo!", "unimplemented!", "FIXME", "XXX", "#[ignore", "dbg!("];
    for (path, text) in rust_files() {
        if path.starts_with("tests/tidy/") {
            continue;
        }
        for word in words {
            assert!(!text.contains(word), "{path} has {word}");
        }
    }
}

#[test]
fn no_queue_is_unbounded() {
    for (path, text) in rust_files() {
        if !path.starts_with("tests/tidy/") {
            assert!(!text.contains("unbounded_channel"), "{path} has a queue without a bound");
        }
    }
}
