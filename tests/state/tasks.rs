//! Tasks: a commit of a repository in a box, set up once and kept.

use std::path::{Path, PathBuf};
use std::process::Child;

use glasshouse_tests::Mode;
use serde_json::Value;

use crate::forge::{Forge, Kind, Repo, has_git};
use crate::stage::Stage;

/// A set-up that leaves a mark.
const SETUP: &str = "cat file > made";

/// A house, a box that is there already, and a repository.
struct Task {
    stage: Stage,
    repo: Repo,
}

impl Task {
    fn each() -> Vec<Task> {
        if !has_git() {
            return Vec::new();
        }
        let with_repo = |stage: Stage| {
            let repo = Repo::new(&stage.house.path().join("it"));
            Task { stage, repo }
        };
        Stage::each(&[]).into_iter().map(with_repo).collect()
    }

    /// Makes a box of the task; its id.
    #[track_caller]
    fn create(&self, repo: &str, commit: &str, more: &[&str]) -> String {
        self.stage.ok(&[&["create", "--repo", repo, "--commit", commit], more].concat())
    }

    #[track_caller]
    fn refused(&self, repo: &str, commit: &str, more: &[&str]) -> String {
        let sentence = self.stage.refused(&[&["create", "--repo", repo, "--commit", commit], more].concat());
        self.nothing_left();
        sentence
    }

    #[track_caller]
    fn snapshots(&self) -> Vec<Value> {
        self.stage.json(&["snapshots"]).as_array().cloned().unwrap_or_default()
    }

    /// The program while a set-up command runs that never ends.
    fn set_up_for_ever(&self) -> Child {
        let setup = "echo > /tmp/begun; sleep 1000";
        let args = ["create", "--repo", &self.repo.path, "--commit", "main", "--setup", setup];
        let child = self.stage.house.glass(&args).spawn().expect("it can be started");
        let begun = |id: &str| self.stage.house.run(&["exec", id, "--", "test", "-e", "/tmp/begun"]).0 == 0;
        let building = || {
            let boxes = self.stage.json(&["list"]);
            let mut ids = boxes.as_array().into_iter().flatten().filter_map(|info| info["id"].as_str());
            ids.any(|id| id != self.stage.id && begun(id))
        };
        while !building() {}
        child
    }

    /// Only the first box is there, no snapshot, and nothing that was being made.
    #[track_caller]
    fn nothing_left(&self) {
        let boxes = self.stage.json(&["list"]);
        assert_eq!(boxes.as_array().map(Vec::len), Some(1), "{boxes}");
        assert_eq!(self.snapshots(), [Value::Null; 0]);
        assert_eq!(self.stage.layers(), [""; 0]);
        self.nothing_incoming();
    }

    #[track_caller]
    fn nothing_incoming(&self) {
        for dir in ["incoming", "trash"] {
            let left = names(&self.stage.house.home().join(dir));
            assert!(left.iter().all(|name| name == "blobs"), "{dir}: {left:?}");
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("it can be listed");
    entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_task_is_replayed_on_the_image_that_it_was_set_up_on() {
    for task in Task::each() {
        // There is no program in it, and none is needed to read a file.
        let root = task.stage.house.path().join("root");
        std::fs::create_dir_all(root.join("etc")).expect("the house is ours");
        let image = format!("dir:{}", root.display());
        let id = task.create(&task.repo.path, "v1", &["--image", &image, "--record", "steps"]);
        let read = ["exec", &id, "--tool", "file_read", "--params", r#"{"path": "file"}"#];
        assert_eq!(task.stage.ok(&read), "one", "{:?}", task.stage.house.mode);
        assert_eq!(
            task.stage.ok(&["replay", "--of", &id]),
            "the same, 1 step",
            "{:?}",
            task.stage.house.mode
        );
    }
}

#[test]
fn a_commit_is_found_by_its_id_the_beginning_of_it_a_branch_or_a_tag() {
    for task in Task::each() {
        let Repo { path, first, second, .. } = &task.repo;
        let url = format!("file://{path}");
        for (repo, asked, commit, content) in [
            (path, first.as_str(), first, "one"),
            (path, &first[..8], first, "one"),
            (path, "v1", first, "one"),
            (path, "light", first, "one"),
            (path, "main", second, "two"),
            (path, "HEAD", second, "two"),
            (path, "topic/a", first, "one"),
            (path, "refs/heads/main", second, "two"),
            (&url, &first.to_uppercase(), first, "one"),
            (&url, "main", second, "two"),
        ] {
            let id = task.create(repo, asked, &["--test", "make test"]);
            assert_eq!(
                task.stage.sh_in(&id, "cat file; git rev-parse HEAD; pwd"),
                format!("{content}\n{commit}\n/workspace")
            );
            let info = &task.stage.json(&["info", &id])["task"];
            let told = [&info["repo"], &info["asked"], &info["commit"], &info["test"], &info["dir"]];
            assert_eq!(told, [repo, asked, commit, "make test", "/workspace"], "{info}");
            let shown = task.stage.ok(&["info", &id]);
            assert!(shown.contains(commit) && shown.contains("make test"), "{shown}");
        }
        // The id of a tag leads to the commit.
        let tag = task.repo.sh("git rev-parse v1");
        let id = task.create(path, &tag, &[]);
        assert_eq!(task.stage.json(&["info", &id])["task"]["commit"], first.as_str());
        // Two commits by two addresses.
        assert_eq!(task.snapshots().len(), 4);
        let listed = task.stage.ok(&["snapshots"]);
        assert!(listed.contains(&format!("task it@{}", &first[..12])), "{listed}");
        task.nothing_incoming();
    }
}

#[test]
fn the_files_are_the_users_and_the_history_is_short() {
    for task in Task::each() {
        let id = task.create(&task.repo.path, "main", &["--setup", "git status --short > status"]);
        assert_eq!(
            task.stage.sh_in(&id, "find . ! -user $(id -u); cat status; git log --oneline | wc -l"),
            "?? status\n1"
        );
        // The box has no way to the repository.
        let (code, _, _) = task.stage.house.run(&["exec", &id, "--", "git", "fetch", "-q"]);
        assert_ne!(code, 0);
    }
}

#[test]
fn servers_of_all_kinds_give_what_they_have() {
    for task in Task::each() {
        for kind in [Kind::Smart, Kind::Old, Kind::Dumb] {
            let forge = Forge::new(&task.repo, kind, None);
            let Repo { first, second, .. } = &task.repo;
            // Not the last one of a branch, which old servers do not give by its id.
            let middle = &task.repo.middle;
            for (asked, content) in
                [(first, "one"), (middle, "middle"), (second, "two"), (&"main".into(), "two")]
            {
                let id = task.create(&forge.url("it"), asked, &[]);
                assert_eq!(task.stage.sh_in(&id, "cat file"), content, "{kind:?} {asked}");
                let commits: usize =
                    task.stage.sh_in(&id, "git log --oneline | wc -l").parse().expect("a number");
                if kind == Kind::Smart {
                    assert_eq!(commits, 1, "{kind:?} {asked}: it is shallow where the server allows");
                }
            }
            let sentence = refused(&task, &forge.url("it"), &"0".repeat(40));
            assert!(sentence.contains("no commit"), "{sentence}");
        }
    }
}

/// One that fails while others are there.
#[track_caller]
fn refused(task: &Task, repo: &str, commit: &str) -> String {
    let before = task.snapshots().len();
    let sentence = task.stage.refused(&["create", "--repo", repo, "--commit", commit]);
    assert_eq!(task.snapshots().len(), before);
    task.nothing_incoming();
    sentence
}

#[test]
fn submodules_come_along() {
    for task in Task::each() {
        let commit = task.repo.add_submodule("sub", "../sub");
        let sub = Repo::new(&task.stage.house.path().join("sub"));
        assert_eq!(task.repo.submodule(), sub.middle, "both were made the same way");
        let forge = Forge::new(&task.repo, Kind::Smart, None);
        let id = task.create(&forge.url("it"), &commit, &["--setup", "cat sub/file > made"]);
        assert_eq!(
            task.stage.sh_in(&id, "cat made; git submodule status | cut -c1-41"),
            format!("middle\n {}", sub.middle)
        );
        // From a directory of the host, a repository must not name another directory of the host.
        let sentence = refused(&task, &task.repo.path, &commit);
        assert!(sentence.contains("submodules") && sentence.contains("not allowed"), "{sentence}");
    }
}

#[test]
fn what_cannot_be_had_gets_one_sentence_and_leaves_nothing() {
    for task in Task::each() {
        let path = &task.repo.path;
        for (repo, commit, words) in [
            (path.as_str(), "nosuch", "no commit, branch or tag \"nosuch\""),
            (path, "abcdef12", "no commit, branch or tag"),
            (path, "0123456789012345678901234567890123456789", "no commit, branch or tag"),
            (path, "HEAD~1", "is no commit, branch or tag"),
            ("/nosuch/repo", "main", "cannot read the repository /nosuch/repo"),
            ("/usr", "main", "does not appear to be a git repository"),
            ("http://nosuch.invalid/it", "main", "Could not resolve host"),
            ("http://127.0.0.1:1/it", task.repo.first.as_str(), "cannot read the repository"),
            ("ext::touch /tmp/x", "main", "no address"),
            ("ftp://host/it", "main", "cannot be reached by"),
        ] {
            let sentence = task.refused(repo, commit, &[]);
            assert!(sentence.contains(words), "{repo} {commit}: {sentence}");
        }
        let sentence = task.stage.refused(&["create", "--repo", path, "--commit=--upload-pack=x"]);
        assert!(sentence.contains("begins with `-`"), "{sentence}");
        let sentence = task.refused(path, "main", &["--runtime", "process"]);
        assert!(sentence.contains("keeps no state"), "{sentence}");
        let sentence = task.refused(path, "main", &["--repo-dir", "here"]);
        assert!(sentence.contains("begin with `/`"), "{sentence}");
        let output = task
            .stage
            .house
            .glass(&["create", "--repo", path, "--commit", "main"])
            .env("PATH", "/nowhere")
            .output();
        let said = String::from_utf8_lossy(&output.expect("it can be started").stderr).into_owned();
        assert!(said.contains("no `git` on this host"), "{said}");
        task.nothing_left();
    }
}

#[test]
fn set_up_that_fails_says_what_it_wrote_and_leaves_nothing() {
    for task in Task::each() {
        let noise = "seq 1 3000; echo the end >&2; exit 7";
        let args =
            ["create", "--repo", &task.repo.path, "--commit", "main", "--setup", SETUP, "--setup", noise];
        let (code, out, err) = task.stage.house.run(&args);
        assert_eq!((code, out.as_str()), (1, ""), "{err}");
        let last = err.trim_end().lines().next_back().unwrap_or_default();
        assert!(last.contains(noise) && last.contains("exit code 7"), "{last}");
        assert!(err.contains("  3000\n") && err.contains("  the end\n"), "{err}");
        assert!(err.len() < 8192 && !err.contains("  1000\n"), "only the end of it: {}", err.len());
        task.nothing_left();
        // And one that writes what a terminal would act on.
        let (_, _, err) = task.stage.house.run(&[
            "create",
            "--repo",
            &task.repo.path,
            "--commit",
            "main",
            "--setup",
            "printf '\\033]0;x\\007'; exit 1",
        ]);
        assert!(!err.contains('\x1b') && err.contains("x1b"), "{err:?}");
    }
}

#[test]
fn the_second_box_of_a_task_costs_a_fork() {
    for task in Task::each() {
        let commit = &task.repo.second;
        let first = task.create(&task.repo.path, commit, &["--setup", SETUP, "--setup", "echo more >> made"]);
        let (layers, snapshots) = (task.stage.layers(), task.snapshots());
        assert_eq!((layers.len(), snapshots.len()), (1, 1));
        // Neither git nor the repository is needed any more.
        std::fs::rename(&task.repo.path, format!("{}-away", task.repo.path)).expect("it can be moved");
        std::os::unix::fs::symlink("/nowhere", &task.repo.path).expect("a link can be made");
        std::fs::remove_file(&task.repo.path).expect("it can be removed");
        std::fs::create_dir(&task.repo.path).expect("its place can be taken");
        let args = [
            "create",
            "--repo",
            &task.repo.path,
            "--commit",
            commit,
            "--setup",
            SETUP,
            "--setup",
            "echo more >> made",
            "--test",
            "other",
            "--name",
            "second",
            "--pids",
            "99",
        ];
        let output =
            task.stage.house.glass(&args).env("PATH", "/nowhere").output().expect("it can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let second = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        assert_eq!((task.stage.layers(), task.snapshots()), (layers, snapshots));
        for id in [&first, &second] {
            assert_eq!(task.stage.sh_in(id, "cat made"), "two\nmore");
        }
        // They share nothing that they write, and go back to the task as it was set up.
        task.stage.sh_in(&first, "echo changed > made");
        assert_eq!(task.stage.sh_in(&second, "cat made"), "two\nmore");
        task.stage.ok(&["reset", &first]);
        assert_eq!(task.stage.sh_in(&first, "cat made"), "two\nmore");
        let info = task.stage.json(&["info", "second"]);
        assert_eq!(info["task"]["test"], "other");
        // A fork of a task's box is of the task.
        let fork = task.stage.ok(&["fork", "second"]);
        assert_eq!(task.stage.json(&["info", &fork])["task"], info["task"]);
    }
}

#[test]
fn what_differs_in_what_it_is_made_of_is_another_state() {
    for task in Task::each() {
        let (path, commit) = (&task.repo.path, &task.repo.first);
        for (count, more) in [
            (1, vec!["--setup", SETUP]),
            (2, vec!["--setup", "echo other > made"]),
            (3, vec![]),
            (3, vec!["--env", "A=b", "--output", "64k", "--label", "x=y"]),
            (4, vec!["--repo-dir", "/workspace/deep/here"]),
        ] {
            task.create(path, commit, &more);
            assert_eq!(task.snapshots().len(), count, "{more:?}");
        }
        let keys: std::collections::BTreeSet<String> =
            task.snapshots().iter().map(|s| s["key"].to_string()).collect();
        assert_eq!(keys.len(), 4);
        task.create(path, &task.repo.second, &[]);
        assert_eq!(task.snapshots().len(), 5);
    }
}

#[test]
fn a_branch_that_moved_is_another_commit() {
    for task in Task::each() {
        task.create(&task.repo.path, "main", &[]);
        let moved = task.repo.commit("three");
        let id = task.create(&task.repo.path, "main", &[]);
        assert_eq!(task.stage.sh_in(&id, "cat file"), "three");
        assert_eq!(task.stage.json(&["info", &id])["task"]["commit"], moved);
        assert_eq!(task.snapshots().len(), 2);
    }
}

#[test]
fn the_environment_reaches_set_up_and_is_not_kept() {
    for task in Task::each() {
        let args = ["--setup", "printf %s \"$TOKEN\" | wc -c > made", "--env", "TOKEN=hush-hush-hush"];
        task.create(&task.repo.path, "main", &args);
        let second = task.create(&task.repo.path, "main", &args[..2]);
        assert_eq!(task.stage.sh_in(&second, "cat made; echo \"[$TOKEN]\""), "14\n[]");
    }
}

#[test]
fn it_lies_where_it_is_wanted_in_boxes_that_cannot_be_written_too() {
    for task in Task::each() {
        let id = task.create(
            &task.repo.path,
            "main",
            &["--repo-dir", "/workspace/a", "--read-only", "--setup", SETUP],
        );
        assert_eq!(
            task.stage.sh_in(&id, "pwd; cat made; touch x 2>/dev/null || echo read-only"),
            "/workspace/a\ntwo\nread-only"
        );
        let id = task.create(&task.repo.path, "main", &["--repo-dir", "/workspace/b", "--cwd", "/tmp"]);
        assert_eq!(task.stage.sh_in(&id, "pwd; cat /workspace/b/file"), "/tmp\ntwo");
    }
}

#[test]
fn limits_are_the_boxs_and_a_limited_disk_is_no_hindrance() {
    for task in Task::each() {
        let fill = "head -c 3000000 /dev/zero > big";
        let args = ["--disk", "2m", "--setup", fill];
        for _ in 0..2 {
            let id = task.create(&task.repo.path, "main", &args);
            assert_eq!(task.stage.sh_in(&id, "wc -c < big"), "3000000");
            let (code, _, _) = task.stage.house.run(&["exec", &id, "--shell", "--", &format!("{fill}2")]);
            assert_ne!(code, 0, "{:?}: the box may add no more than it may", task.stage.house.mode);
        }
        assert_eq!(task.snapshots().len(), 1);
    }
}

#[test]
fn in_a_root_of_ones_own_it_lies_where_the_user_may_write() {
    for task in Task::each() {
        let root = task.stage.house.path().join("root");
        std::fs::create_dir_all(root.join("bin")).expect("it can be made");
        let Ok(busybox) = std::fs::read("/bin/busybox").or_else(|_| std::fs::read("/usr/bin/busybox")) else {
            return glasshouse_tests::skip("tasks", "busybox is not installed");
        };
        std::fs::write(root.join("bin/busybox"), busybox).expect("it can be written");
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(root.join("bin/busybox"), open).expect("it is ours");
        for name in ["sh", "cat", "id", "pwd", "stat"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("it can be made");
        }
        std::fs::create_dir(root.join("tmp")).expect("it can be made");
        let for_all = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o1777);
        std::fs::set_permissions(root.join("tmp"), for_all).expect("it is ours");
        let image = format!("dir:{}", root.display());
        let line = "cat file; id -u; pwd; stat -c %u . .git file";
        let id = task.create(&task.repo.path, "main", &["--image", &image]);
        assert_eq!(task.stage.sh_in(&id, line), "two\n0\n/workspace\n0\n0\n0");
        if task.stage.house.mode == Mode::Root {
            let args = ["create", "--repo", &task.repo.path, "--commit", "main", "--image", &image];
            let sentence = task.stage.refused(&[&args[..], &["--user", "1000"]].concat());
            assert!(sentence.contains("/workspace") && sentence.contains("--repo-dir"), "{sentence}");
            let id = task.stage.ok(&[&args[..], &["--user", "1000", "--repo-dir", "/tmp/it"]].concat());
            assert_eq!(task.stage.sh_in(&id, line), "two\n1000\n/tmp/it\n1000\n1000\n1000");
        }
    }
}

#[test]
fn a_hostile_repository_does_no_harm() {
    for task in Task::each() {
        let (repo, mark) = (&task.repo, task.stage.house.path().join("mark"));
        let touch = format!("touch {}", mark.display());
        repo.sh("ln -s /etc etc; ln -s ../../../../.. up; echo x > ./-x; echo y > ./--upload-pack=x");
        repo.sh("echo '* filter=evil diff=evil merge=evil' > .gitattributes; echo mine > content");
        let commit = repo.commit("hostile");
        // Its own settings and hooks, for whoever reads them.
        repo.sh(&format!(
            "cd .git/hooks; printf '#!/bin/sh\\n{touch}\\ncat\\n' > post-checkout; chmod +x post-checkout"
        ));
        for hook in ["pre-auto-gc", "reference-transaction", "post-index-change"] {
            repo.sh(&format!("cp .git/hooks/post-checkout .git/hooks/{hook}"));
        }
        for key in [
            "uploadpack.packObjectsHook",
            "core.fsmonitor",
            "filter.evil.smudge",
            "core.sshCommand",
            "core.pager",
        ] {
            repo.sh(&format!("git config {key} '{touch}; exec'"));
        }
        // And those of the user, which name a program for the same word.
        let user = task.stage.house.path().join("user");
        std::fs::create_dir_all(user.join("template/hooks")).expect("it can be made");
        let hooks = format!("cp .git/hooks/post-checkout {}/template/hooks/", user.display());
        repo.sh(&hooks);
        let config = format!(
            "[filter \"evil\"]\n\tsmudge = \"{touch}; cat\"\n\trequired = true\n\
             [init]\n\ttemplateDir = {}/template\n[credential]\n\thelper = !{touch}\n",
            user.display()
        );
        std::fs::write(user.join(".gitconfig"), config).expect("it can be written");
        let args = ["create", "--repo", &repo.path, "--commit", &commit, "--setup", "ls -A > made"];
        let output = task.stage.house.glass(&args).env("HOME", &user).output().expect("it can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(!mark.exists(), "the host ran something of the repository's");
        let id = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
        assert_eq!(
            task.stage.sh_in(&id, "readlink etc up; cat ./-x content; ls .git/hooks 2>/dev/null | wc -l"),
            "/etc\n../../../../..\nx\nmine\n0"
        );
    }
}

#[test]
fn submodules_cannot_name_programs_or_places_of_the_host() {
    for task in Task::each() {
        let mark = task.stage.house.path().join("mark");
        let url = format!("ext::sh -c 'touch {}'", mark.display());
        for url in [url.as_str(), "file:///", "-x", "../../../../../../etc"] {
            let commit = task.repo.add_submodule("sub", url);
            task.repo
                .sh(&format!("git config -f .gitmodules submodule.sub.update '!touch {}'", mark.display()));
            let worse = task.repo.commit("worse");
            for commit in [commit, worse] {
                let sentence = task.refused(&task.repo.path, &commit, &[]);
                assert!(sentence.contains("submodules"), "{url}: {sentence}");
            }
            assert!(!mark.exists(), "{url}: it was run");
        }
    }
}

#[test]
fn a_login_in_the_address_is_used_and_written_nowhere() {
    for task in Task::each() {
        let commit = task.repo.add_submodule("sub", "../sub");
        let _sub = Repo::new(&task.stage.house.path().join("sub"));
        let forge = Forge::new(&task.repo, Kind::Smart, Some("someone:pass-w0rd-x"));
        let sentence = task.refused(&forge.url("it"), &commit, &[]);
        assert!(sentence.contains("it wants a login"), "{sentence}");
        let wrong = forge.url("it").replace("://", "://someone:wr0ng-word@");
        let sentence = task.refused(&wrong, &commit, &[]);
        assert!(
            !sentence.contains("wr0ng-word") && sentence.contains("does not take the login"),
            "{sentence}"
        );
        let right = forge.url("it").replace("://", "://someone:pass-w0rd-x@");
        for asked in [commit.as_str(), "main"] {
            let id = task.create(&right, asked, &["--setup", "git config -l > made; cat sub/file"]);
            assert_eq!(task.stage.json(&["info", &id])["task"]["repo"], forge.url("it"));
            assert_eq!(
                task.stage.sh_in(&id, "grep -r pass-w[0]rd-x . || echo nowhere; cat sub/file"),
                "nowhere\nmiddle"
            );
        }
        let found = files_with(&task.stage.house.home(), b"pass-w0rd-x");
        assert!(found.is_empty(), "{found:?}");
    }
}

/// Files below a directory that hold these bytes.
fn files_with(dir: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("it has a kind");
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), bytes));
        } else if kind.is_file() {
            let content = std::fs::read(entry.path()).unwrap_or_default();
            if content.windows(bytes.len()).any(|window| window == bytes) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn who_is_told_to_end_meanwhile_leaves_nothing() {
    for task in Task::each() {
        let mut child = task.set_up_for_ever();
        let pid = i32::try_from(child.id()).expect("pids are small");
        glasshouse_linux::process::signal_pid(pid, 2).expect("it lives");
        assert_eq!(child.wait().expect("it is ours").code(), Some(130));
        task.nothing_left();
    }
}

#[test]
fn who_is_killed_meanwhile_leaves_nothing_that_lives() {
    for task in Task::each() {
        let mut child = task.set_up_for_ever();
        child.kill().expect("it lives");
        child.wait().expect("it is ours");
        // The box dies with its owner; whoever looks next takes away what is left.
        while task.stage.json(&["list"]).as_array().map(Vec::len) != Some(1) {}
        task.stage.ok(&["gc"]);
        task.nothing_left();
    }
}

#[test]
fn who_is_told_to_end_while_a_server_says_nothing_leaves_nothing() {
    for task in Task::each() {
        let forge = Forge::new(&task.repo, Kind::Silent, None);
        let url = forge.url("it").replace("://", "://someone:pass-w0rd-x@");
        let mut child = task.stage.house.glass(&["create", "--repo", &url, "--commit", "main"]);
        let mut child = child.spawn().expect("it can be started");
        forge.wait_asked();
        // Others on this machine can read what programs are called with.
        let words = words_of_processes();
        let gits: Vec<&String> = words.iter().filter(|words| words.contains(&forge.url("it"))).collect();
        assert!(gits.len() > 1 && gits.iter().all(|words| !words.contains("pass-w0rd-x")), "{gits:?}");
        let pid = i32::try_from(child.id()).expect("pids are small");
        glasshouse_linux::process::signal_pid(pid, 15).expect("it lives");
        assert_eq!(child.wait().expect("it is ours").code(), Some(143));
        task.nothing_left();
        // Git and its helpers went with it: nobody holds the connection any more.
        forge.wait_left();
    }
}

/// What all processes were called with.
fn words_of_processes() -> Vec<String> {
    let processes = names(Path::new("/proc")).into_iter().filter(|name| name.parse::<u32>().is_ok());
    // Some end meanwhile.
    let words = processes.filter_map(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok());
    words.map(|words| String::from_utf8_lossy(&words).replace('\0', " ")).collect()
}

#[test]
fn many_at_once_make_one_state() {
    for task in Task::each() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let id = task.create(&task.repo.path, "main", &["--setup", SETUP]);
                    assert_eq!(task.stage.sh_in(&id, "cat made"), "two");
                });
            }
        });
        assert_eq!(task.snapshots().len(), 1);
        task.stage.ok(&["gc"]);
        assert_eq!(task.stage.layers().len(), 1);
        task.nothing_incoming();
    }
}

#[test]
fn a_terminal_sees_the_steps_and_a_pipe_does_not() {
    for task in Task::each() {
        let line = format!("create --repo {} --commit main --setup true", task.repo.path);
        let said = task.stage.on_terminal(&line);
        for word in
            ["asking the repository", "fetching", "copying", "setting up, 1 of 1: true", "making the box"]
        {
            assert!(said.contains(word), "{word}: {said:?}");
        }
        let said = task.stage.on_terminal(&format!("{line} --env A=b --json"));
        assert!(said.starts_with('{'), "{said:?}");
        let (code, _, err) = task.stage.house.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((code, err.as_str()), (0, ""));
    }
}

#[test]
fn git_works_in_a_box_of_any_user_who_may_have_the_repository() {
    for task in Task::each() {
        for more in [&[][..], &["--user", "root"], &["--user", "4321", "--repo-dir", "/tmp/it"]] {
            let id = task.create(&task.repo.path, "v1", &[more, &["--setup", "git status"]].concat());
            let line = "git status --porcelain && git log --format=%s -1 && stat -c %u . .git | uniq | wc -l";
            let said = task.stage.ok(&["exec", &id, "--shell", "--", line]);
            assert_eq!(said.lines().last(), Some("1"), "{more:?}, {:?}: {said}", task.stage.house.mode);
        }
    }
}
