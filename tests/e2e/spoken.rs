//! What programs read: every command with `--json`.

use std::cell::RefCell;
use std::collections::BTreeSet;

use glasshouse_tests::House;
use serde_json::Value;

use crate::{each_mode, json};

/// The commands that a help lists.
fn listed(help: &str) -> BTreeSet<String> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let lines = lines.take_while(|line| line.starts_with("  ")).filter(|line| !line.starts_with("   "));
    let words = lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    words.filter(|word| word != "help").collect()
}

/// A house whose commands are all asked for JSON.
struct Talk<'a> {
    house: &'a House,
    spoken: RefCell<BTreeSet<String>>,
}

impl Talk<'_> {
    /// Runs a command, which has to succeed and to say nothing but JSON. Its first line.
    #[track_caller]
    fn ask(&self, args: &[&str]) -> Value {
        let (code, stdout, stderr) = self.house.run(&[&["--json"], args].concat());
        assert_eq!(code, 0, "{args:?}: {stdout} {stderr}");
        self.spoken.borrow_mut().extend([args[0].to_owned(), args[..2.min(args.len())].join(" ")]);
        let answers: Vec<Value> = stdout.lines().map(json).collect();
        answers.into_iter().next().unwrap_or_else(|| panic!("{args:?} said nothing: {stderr}"))
    }

    /// The same for one field of it.
    #[track_caller]
    fn text(&self, args: &[&str], field: &str) -> String {
        let answer = self.ask(args);
        answer[field].as_str().unwrap_or_else(|| panic!("{args:?}: no {field} in {answer}")).to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.house.home().join(name).display().to_string()
    }

    /// A box, what is done in it, and what is kept of it.
    fn live(&self) {
        let id = &self.text(&["create", "--record", "steps"], "id");
        // The first step, which is gone back to below: whether what is in the background runs still is up to chance.
        self.ask(&["exec", id, "--", "true"]);
        let exec = self.ask(&["exec", id, "--background", "--", "echo", "hi"])["exec"].to_string();
        assert_eq!(self.ask(&["attach", id, &exec])["stdout"], "hi\n");
        self.ask(&["exec", id, "--tool", "file_write", "--params", r#"{"path": "a", "content": "b\n"}"#]);
        assert_eq!(self.ask(&["shell", id, "--", "true"])["exit"]["code"], 0);
        assert_eq!(self.ask(&["run", "--", "echo", "hi"])["stdout"], "hi\n");
        self.ask(&["cp", &format!("{id}:a"), &self.path("a")]);
        for args in [
            &["tools", id][..],
            &["list"],
            &["info", id],
            &["ps", id],
            &["log", id],
            &["log", id, "--verify"],
            &["audit", "verify"],
            &["digest", id],
            &["diff", id],
            &["diff", id, "--stat"],
            &["diff", id, "--tar", &self.path("layer")],
            &["replay", "--of", id, "--until", "0"],
            &["jump", id, "1"],
        ] {
            self.ask(args);
        }
        self.ask(&["context", "create", id, "--lang", "bash", "--name", "c"]);
        assert_eq!(self.ask(&["context", "run", id, "c", "-c", "echo hi"])["stdout"], "hi\n");
        for verb in ["interrupt", "restart", "delete"] {
            self.ask(&["context", verb, id, "c"]);
        }
        self.ask(&["context", "list", id]);
        let run = &self.path("run.json");
        self.ask(&["trajectory", "export", id, "-o", run]);
        self.ask(&["trajectory", "import", run]);
        self.ask(&["trajectory", "validate", run]);
        self.ask(&["trajectory", "diff", run, run]);
        self.ask(&["trajectory", "convert", run, "--to", "atif", "-o", &self.path("atif.json")]);
        self.ask(&["trajectory", "schema"]);
        let snapshot = &self.text(&["snapshot", id], "id");
        for args in [
            &["snapshots"][..],
            &["fork", snapshot],
            &["restore", id, snapshot],
            &["reset", id],
            &["reset", id, "--verify"],
            &["port", id],
            &["pause", id],
            &["resume", id],
            &["stop", id],
            &["start", id],
            &["export", snapshot, "-o", &self.path("state")],
            &["import", &self.path("state")],
            &["snapshots", "remove", snapshot],
            &["kill", id],
        ] {
            self.ask(args);
        }
    }

    /// One piece of code, which is enough for a batch.
    fn batch(&self) {
        let file = self.house.path().join("piece.sh");
        std::fs::write(&file, "echo 1").expect("the house is ours");
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
        std::fs::set_permissions(&file, open).expect("the file is ours");
        self.ask(&["batch", "--lang", "bash", &file.display().to_string()]);
    }

    /// An image, from a directory with next to nothing in it.
    fn picture(&self) {
        let root = self.house.path().join("root");
        std::fs::create_dir_all(root.join("etc")).expect("the house is ours");
        let image = &self.text(&["image", "import", &root.display().to_string(), "--name", "mine:1"], "name");
        self.ask(&["image", "list"]);
        self.ask(&["image", "inspect", image]);
        let id = &self.text(&["create", "--image", image], "id");
        let snapshot = &self.text(&["snapshot", id], "id");
        self.ask(&["commit", snapshot, "-t", "mine:2"]);
        self.ask(&["image", "remove", "mine:2"]);
    }
}

#[test]
fn every_command_speaks_json() {
    each_mode(|house| {
        let talk = Talk { house, spoken: RefCell::default() };
        talk.live();
        talk.picture();
        talk.batch();
        talk.ask(&["key", "add", "one", "--tenant", "red"]);
        talk.ask(&["key", "list"]);
        talk.ask(&["key", "revoke", "one"]);
        talk.ask(&["gc"]);
        talk.ask(&["doctor"]);
        talk.ask(&["completions", "bash"]);
        let spoken = talk.spoken.borrow();
        let help = |args: &[&str]| house.run(&[args, &["--help"]].concat()).1;
        let mut all = listed(&help(&[]));
        assert!(all.len() > 30, "{all:?}");
        for of in ["image", "trajectory", "audit", "key", "context"] {
            all.extend(listed(&help(&[of])).into_iter().map(|word| format!("{of} {word}")));
        }
        // It wants a registry; `tests/images` has one.
        all.remove("image pull");
        // These serve until they are ended: `tests/serve` has callers for them.
        all.remove("serve");
        all.remove("mcp");
        // It is talked to by people, and says so.
        let (code, _, told) = house.run(&["repl", "nobody", "--json"]);
        assert!(code != 0 && told.contains("context run"), "{code}: {told}");
        all.remove("repl");
        let silent: Vec<&String> = all.difference(&spoken).collect();
        assert!(silent.is_empty(), "nobody asked these for JSON: {silent:?}");
    });
}
