//! The program, used as people use it, and what it says.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Output};

use glasshouse_linux::process;
use glasshouse_tests::House;
use glasshouse_tests::leaks::Leaks;
use serde_json::Value;

use crate::nothing_left;
use crate::victim;

/// A house and what was there before it.
pub(crate) struct Site {
    pub(crate) house: House,
    pub(crate) before: Leaks,
}

impl Site {
    pub(crate) fn new(mode: glasshouse_tests::Mode) -> Site {
        let house = House::new(mode);
        let before = Leaks::now(&house.home());
        Site { house, before }
    }

    /// Runs the program to its end, which must be good. What it printed.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.house.run(args);
        assert_eq!(code, 0, "glass {args:?}: {stderr}");
        stdout.trim().to_owned()
    }

    /// Runs the program to its end, which must be bad: its one sentence.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let (code, stdout, stderr) = self.house.run(args);
        assert!(code > 0 && stdout.is_empty(), "glass {args:?}: {code} {stdout}{stderr}");
        assert!(stderr.starts_with("glass: ") && stderr.lines().count() == 1, "glass {args:?}: {stderr}");
        stderr
    }

    pub(crate) fn start(&self, args: &[&str]) -> Child {
        victim::start(self.house.glass(args))
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("glass {args:?}: {e}: {text}"))
    }

    /// The ids of boxes that live, sorted.
    #[track_caller]
    pub(crate) fn living(&self) -> Vec<String> {
        let boxes = self.json(&["list"]);
        let living = boxes.as_array().expect("a list").iter().filter(|one| one["state"] == "running");
        let mut ids: Vec<String> = living.map(|one| one["id"].as_str().expect("an id").to_owned()).collect();
        ids.sort();
        ids
    }

    /// The first process of a box.
    #[track_caller]
    pub(crate) fn guest(&self, id: &str) -> OwnedFd {
        let pid = self.json(&["info", id])["pid"].as_i64().expect("a number");
        process::open(pid as i32).expect("it lives")
    }

    /// Kills the box's first process, and waits for its end.
    #[track_caller]
    pub(crate) fn kill_guest(&self, id: &str) {
        let guest = self.guest(id);
        victim::kill(&guest);
        victim::ends(&guest, "a killed guest");
    }

    #[track_caller]
    pub(crate) fn nothing_left(&self, after: &str) {
        nothing_left(&self.before, &self.house.home(), &format!("{after} ({:?})", self.house.mode));
    }
}

/// Waits until the program has printed this.
#[track_caller]
pub(crate) fn says(child: &mut Child, words: &str) {
    let mut read = vec![0; words.len()];
    let stdout = child.stdout.as_mut().expect("it is kept");
    stdout.read_exact(&mut read).expect("it speaks before it ends");
    assert_eq!(String::from_utf8_lossy(&read), words);
}

/// Waits for the end: exit code (none after a signal), stdout, stderr.
pub(crate) fn end(child: Child) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = child.wait_with_output().expect("it is our child");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}
