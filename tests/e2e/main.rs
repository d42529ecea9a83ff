//! The program `glass`, as a user types it: every command, every exit code, and what is left behind.

mod code;
mod commands;
mod guest;
mod ports;
mod record;
mod spoken;
mod talk;
mod tools;
mod trajectory;

use glasshouse_tests::{House, Mode};

/// Runs a test body once for each mode that this machine can show.
fn each_mode(body: impl Fn(&House)) {
    for mode in Mode::all() {
        let house = House::new(mode);
        body(&house);
    }
}

/// Makes a box, and its id.
fn create(house: &House, args: &[&str]) -> String {
    let (code, stdout, stderr) = house.run(&[&["create"], args].concat());
    assert_eq!(code, 0, "{stderr}");
    let id = stdout.trim_end().to_owned();
    assert!(!id.is_empty() && !id.contains(char::is_whitespace), "the id and nothing else: {stdout:?}");
    id
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}
