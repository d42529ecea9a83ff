//! What differs is told: all of it, and nothing else.

use std::path::Path;
use std::process::Command;

use crate::stage::Stage;

const BEFORE: &str = "umask 022; mkdir -p d/deep gone/in; echo one > d/f; echo keep > d/keep; echo x > d/deep/x; \
    echo y > gone/in/y; ln -s f d/link; mkdir -p moved/in; echo m > moved/in/m; echo file > kind; printf 'a\\0b' > bin";
const AFTER: &str = "umask 022; echo two >> d/f; rm -r gone; mv moved elsewhere; ln -sf keep d/link; chmod 600 d/keep; \
    rm kind; mkdir kind; echo in > kind/in; printf 'a\\0c' > bin; echo new > new; mkdir void; rm d/deep/x";
/// What `AFTER` does, as it is to be told.
fn told() -> Vec<&'static str> {
    vec![
        "C /workspace/bin",
        "D /workspace/d/deep/x",
        "C /workspace/d/f",
        "C /workspace/d/keep (mode)",
        "C /workspace/d/link (target)",
        "A /workspace/elsewhere/",
        "A /workspace/elsewhere/in/",
        "A /workspace/elsewhere/in/m",
        "D /workspace/gone/",
        "D /workspace/gone/in/",
        "D /workspace/gone/in/y",
        "C /workspace/kind/ (kind, mode)",
        "A /workspace/kind/in",
        "D /workspace/moved/",
        "D /workspace/moved/in/",
        "D /workspace/moved/in/m",
        "A /workspace/new",
        "A /workspace/void/",
    ]
}

#[test]
fn it_tells_exactly_what_was_done() {
    for stage in Stage::each(&[]) {
        assert_eq!(stage.ok(&["diff", &stage.id]), "", "{:?}: a new box", stage.house.mode);
        stage.sh(BEFORE);
        let before = stage.snapshot();
        stage.sh(AFTER);
        let lines = |out: String| out.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(lines(stage.ok(&["diff", &before, &stage.id])), told(), "{:?}", stage.house.mode);
        let after = stage.snapshot();
        assert_eq!(lines(stage.ok(&["diff", &before, &after])), told(), "{:?}", stage.house.mode);
        assert_eq!(stage.ok(&["diff", &after, &stage.id]), "");
        // Against where it began, a box and a snapshot of it tell the same.
        let all = stage.ok(&["diff", &stage.id]);
        assert_eq!(stage.ok(&["diff", &after]), all);
        assert!(all.lines().all(|line| line.starts_with("A /workspace/")), "{all}");
        let stat = stage.ok(&["diff", &before, &after, "--stat"]);
        assert!(stat.starts_with("6 added, 5 changed, 7 removed;"), "{stat}");
        let json = stage.json(&["diff", &before, &after]);
        assert_eq!(json["changes"].as_array().map(Vec::len), Some(18), "{json}");
        assert_eq!(json["changes"][2]["what"], serde_json::json!(["content"]));
        assert_eq!(json["changes"][2]["to"]["bytes"], 8);
    }
}

#[test]
fn texts_are_compared_line_by_line() {
    for stage in Stage::each(&[]) {
        stage.sh(BEFORE);
        let before = stage.snapshot();
        stage.sh("printf 'one\\ntw\\033[31mo' > d/f; printf 'a\\0c' > bin; head -c 2000000 /dev/zero > large; rm d/keep");
        let out = stage.ok(&["diff", &before, &stage.id, "--content"]);
        let expected = "C /workspace/bin\n  not a text\nC /workspace/d/f\n--- a/workspace/d/f\n+++ b/workspace/d/f\n\
            @@ -1 +1,2 @@\n one\n+tw\u{1b}[31mo\n\\ No newline at end of file\nD /workspace/d/keep\n\
            --- a/workspace/d/keep\n+++ /dev/null\n@@ -1 +0,0 @@\n-keep\n\
            A /workspace/large\n  too large to be compared";
        assert_eq!(out, expected, "{:?}", stage.house.mode);
    }
}

#[test]
fn names_cannot_steer_the_terminal() {
    for stage in Stage::each(&[]) {
        stage.sh("touch \"$(printf 'a\\033]0;x\\007\\nb')\"");
        let out = stage.ok(&["diff", &stage.id]);
        assert_eq!(out, "A /workspace/a\\x1b]0;x\\x07\\nb");
    }
}

/// All that a tree holds, with what `tar` keeps.
fn list(dir: &Path) -> String {
    let line = "find . -printf '%P %y %m %l\\n' | sort; find . -type f | sort | xargs -r md5sum";
    let output = Command::new("sh").args(["-c", line]).current_dir(dir).output().expect("a shell");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_tar_is_what_was_done() {
    for stage in Stage::each(&[]) {
        stage.sh(BEFORE);
        let before = stage.snapshot();
        stage.sh(AFTER);
        let long = "n".repeat(200);
        stage.sh(&format!("mkdir -p {long}/{long}; ln -s ./{long}//{long} long; echo x > {long}/{long}/x"));
        let after = stage.snapshot();
        for (from, name) in [(before.as_str(), "diff"), (stage.id.as_str(), "all")] {
            let tar = stage.house.path().join(format!("{name}.tar"));
            let output = match name {
                "diff" => stage.house.glass(&["diff", from, &after, "--tar", "-"]).output(),
                _ => stage.house.glass(&["diff", &after, "--tar", "-"]).output(),
            };
            let output = output.expect("it can be started");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::write(&tar, output.stdout).expect("it can be written");
            let dir = stage.house.path().join(name);
            std::fs::create_dir(&dir).expect("it can be made");
            let done = Command::new("tar").arg("-xpf").arg(&tar).arg("-C").arg(&dir).status();
            assert!(done.expect("tar is there").success());
        }
        let listed = list(&stage.house.path().join("all"));
        assert!(!listed.contains(".wh."), "{listed}");
        let inside = "cd /workspace; find . -printf 'workspace/%P %y %m %l\\n' | sort | sed 1d";
        let shown = stage.sh(inside);
        for line in shown.lines() {
            assert!(listed.contains(line), "{:?}: {line:?} is not in\n{listed}", stage.house.mode);
        }
        let diff = list(&stage.house.path().join("diff"));
        for name in ["gone", "moved", "d/deep/.wh.x"] {
            let whiteout = match name.split_once(".wh.") {
                Some(_) => format!("workspace/{name} f"),
                None => format!("workspace/.wh.{name} f"),
            };
            assert!(diff.contains(&whiteout), "{whiteout} is not in\n{diff}");
        }
        assert!(!diff.contains(".wh.in") && !diff.contains(".wh.kind"), "{diff}");
        assert!(stage.refused(&["diff", &after, "--tar", "-", "--json"]).contains("at once"));
        stage.sh("touch .wh.x");
        assert!(stage.refused(&["diff", &stage.id, "--tar", "-"]).contains(".wh."));
    }
}

#[test]
fn a_patch_fits_a_text_with_carriage_returns_in_its_lines() {
    for stage in Stage::each(&[]) {
        stage.sh("printf 'a\\rb\\nc\\n' > f; printf 'x\\n' > g");
        let before = stage.snapshot();
        let old = ["f", "g"].map(|name| stage.sh(&format!("base64 {name}")));
        stage.sh("printf 'a\\rB\\nc\\n' > f; printf 'x\\r' > g");
        let new = ["f", "g"].map(|name| stage.sh(&format!("base64 {name}")));
        let changes = stage.json(&["diff", &before, &stage.id, "--content"])["changes"].clone();
        for (n, (old, new)) in old.iter().zip(&new).enumerate() {
            let dir = tempfile::tempdir().expect("there is room");
            let patch = changes[n]["content"]["diff"].as_str().expect("it is a text");
            let patch = format!("--- a/f\n+++ b/f\n{patch}");
            std::fs::write(dir.path().join("patch"), &patch).expect("it is ours");
            let line = format!("echo {old} | base64 -d > f; patch --binary -s f patch; base64 f");
            let output = Command::new("sh").args(["-c", &line]).current_dir(dir.path()).output();
            let output = output.expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), new, "{patch:?}: {output:?}");
        }
    }
}
