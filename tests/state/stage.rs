//! A house with a box in it.

use glasshouse_tests::{House, Mode, skip};
use serde_json::Value;

use crate::rerun::PYTHON;

/// A house, and a box in it.
pub(crate) struct Stage {
    pub(crate) house: House,
    pub(crate) id: String,
}

impl Stage {
    /// One for each mode that can be tested here.
    pub(crate) fn each(options: &[&str]) -> Vec<Stage> {
        Mode::all().into_iter().filter_map(|mode| Stage::new(mode, options)).collect()
    }

    fn new(mode: Mode, options: &[&str]) -> Option<Stage> {
        Stage::in_house(House::new(mode), options)
    }

    /// A box in this house.
    pub(crate) fn in_house(house: House, options: &[&str]) -> Option<Stage> {
        let mode = house.mode;
        let (code, out, err) = house.run(&[&["create"], options].concat());
        if code != 0 {
            let group = if mode == Mode::Root { "native-root" } else { "native-rootless" };
            skip(group, &format!("no box can be made with {options:?}: {err}"));
            return None;
        }
        Some(Stage { house, id: out.trim().to_owned() })
    }

    /// Runs the program, which has to succeed. What it printed, without the end of the line.
    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let (code, out, err) = self.house.run(args);
        assert_eq!(code, 0, "{:?}: {args:?}: {out}{err}", self.house.mode);
        out.trim_end().to_owned()
    }

    /// Runs the program, which has to fail with one sentence. The sentence.
    #[track_caller]
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let (code, out, err) = self.house.run(args);
        assert_ne!(code, 0, "{:?}: {args:?}: {out}", self.house.mode);
        assert_eq!(err.trim_end().lines().count(), 1, "{:?}: {args:?}: {err}", self.house.mode);
        err.trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
    }

    /// Runs a line of shell in the box.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        self.sh_in(&self.id, line)
    }

    #[track_caller]
    pub(crate) fn sh_in(&self, id: &str, line: &str) -> String {
        self.ok(&["exec", id, "--shell", "--", line])
    }

    /// Runs a program in Python in a box.
    #[track_caller]
    pub(crate) fn python(&self, id: &str, program: &str) -> String {
        self.ok(&["exec", id, "--", PYTHON, "-I", "-S", "-c", program])
    }

    #[track_caller]
    pub(crate) fn snapshot(&self) -> String {
        self.ok(&["snapshot", &self.id])
    }

    /// Layers in the store that came to be by snapshots.
    pub(crate) fn layers(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.house.home().join("layers")).expect("a home has layers");
        let names =
            entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with("host-")).collect()
    }

    /// Runs the program on a terminal, of script's making; what it shows there.
    #[track_caller]
    pub(crate) fn on_terminal(&self, line: &str) -> String {
        let plain = self.house.glass(&[]);
        let environment: Vec<_> =
            plain.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect();
        let words = format!("{} {line}", plain.get_program().to_string_lossy());
        let mut script = std::process::Command::new("/usr/bin/script");
        script.args(["-qec", &words, "/dev/null"]).env_clear().envs(environment).env("TERM", "xterm");
        if self.house.mode == Mode::Rootless && glasshouse_tests::is_root() {
            use std::os::unix::process::CommandExt as _;
            script.uid(glasshouse_tests::ORDINARY).gid(glasshouse_tests::ORDINARY);
        }
        let output = script.output().expect("script can be started");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {said}");
        said
    }
}
