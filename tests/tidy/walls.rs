//! Who may know whom.

use crate::{files, read, rust_files};

/// The crates that a manifest names as dependencies of the program itself (not of its tests).
fn known_by(name: &str) -> Vec<String> {
    let manifest = read(format!("crates/{name}/Cargo.toml"));
    let mut section = String::new();
    let mut known = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.to_owned();
        } else if section == "[dependencies]"
            && let Some(other) = line.strip_prefix("glasshouse-")
        {
            known.push(other.split(['.', ' ', '=']).next().unwrap_or_default().to_owned());
        }
    }
    known.sort();
    known
}

#[test]
fn crates_know_only_whom_they_may() {
    let check = |name: &str, allowed: &[&str]| {
        for other in known_by(name) {
            assert!(allowed.contains(&other.as_str()), "{name} may not know {other}");
        }
    };
    check("protocol", &[]);
    check("linux", &[]);
    check("guest", &["linux", "protocol"]);
    check("trace", &["protocol"]);
    check("sandbox", &["linux", "protocol", "trace"]);
    check("server", &["sandbox", "trace"]);
    check("cli", &["sandbox", "server", "trace"]);
}

#[test]
fn there_are_seven_crates_and_no_eighth() {
    let mut crates: Vec<String> = files("crates", "Cargo.toml").into_iter().map(|(path, _)| path).collect();
    crates.retain(|path| path.matches('/').count() == 2);
    let expected = ["cli", "guest", "linux", "protocol", "sandbox", "server", "trace"];
    assert_eq!(crates, expected.map(|name| format!("crates/{name}/Cargo.toml")));
}

#[test]
fn the_library_asks_the_kernel_only_where_boxes_live_and_die() {
    // The runtimes, the state directory (locks, which file is which), the unpacking of trees that others made, layers, which boxes wrote, and
    // git, whose helpers have to be ended with it.
    let allowed =
        ["src/runtime/", "src/home", "src/files.rs", "src/image/", "src/snapshot/", "src/task/git.rs"];
    for (path, text) in files("crates/sandbox/src", ".rs") {
        if text.contains("glasshouse_linux") {
            assert!(allowed.iter().any(|part| path.contains(part)), "{path} asks the kernel itself");
        }
    }
}

#[test]
fn only_wire_and_record_are_serialisable() {
    for (path, text) in rust_files() {
        let allowed = ["crates/protocol/", "crates/trace/", "crates/server/src/dialect/"];
        if path.starts_with("crates/") && !allowed.iter().any(|dir| path.starts_with(dir)) {
            assert!(
                !text.contains("derive(Serialize") && !text.contains("Serialize,"),
                "{path} derives Serialize"
            );
        }
    }
}

#[test]
fn libraries_read_no_environment_and_print_nothing() {
    for name in ["protocol", "linux", "guest", "trace", "sandbox"] {
        for (path, text) in files(&format!("crates/{name}/src"), ".rs") {
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            if path.ends_with("main.rs") || path.ends_with("tests.rs") {
                continue;
            }
            for word in ["env::var", "env::home_dir", "println!", "eprintln!"] {
                assert!(!text.contains(word), "{path} uses {word}");
            }
        }
    }
}

#[test]
fn every_dependency_says_why_it_is_there() {
    let manifest = read("Cargo.toml");
    let dependencies =
        manifest.split("[workspace.dependencies]").nth(1).and_then(|rest| rest.split("\n[").next());
    for line in dependencies.expect("the workspace has dependencies").lines() {
        if line.contains('=') && !line.starts_with("glasshouse-") && !line.starts_with('#') {
            assert!(line.contains(" # "), "no reason in: {line}");
        }
    }
}
