//! Every box is on record, and the record outlives it.

use crate::{create, each_mode, json};

#[test]
fn the_record_tells_what_happened_and_verifies_after_the_box_is_gone() {
    each_mode(|house| {
        let id = create(house, &["--env", "TOKEN=hunter2-is-not-for-you"]);
        assert_eq!(house.run(&["exec", &id, "--shell", "--", "echo visible; echo $TOKEN; exit 4"]).0, 4);
        // It ends when nobody is there who knows what it was started with.
        let script = "echo unseen; echo $OWN";
        let own =
            ["exec", &id, "--background", "--env", "OWN=s3cret-of-one-command", "--shell", "--", script];
        let (_, exec, _) = house.run(&own);
        // Whoever comes next finds the end that nobody saw, and so does the end of the box.
        assert_eq!(house.run(&["attach", &id, exec.trim_end()]).0, 0);
        assert_eq!(house.run(&["kill", &id]).0, 0);
        let (code, log, stderr) = house.run(&["log", &id]);
        assert_eq!(code, 0, "{stderr}");
        for word in ["visible", "unseen", "exit code 4"] {
            assert!(log.contains(word), "{word} in {log}");
        }
        assert!(!log.contains("hunter2") && !log.contains("s3cret-of-one"), "{log}");
        assert_eq!(house.run(&["log", &id, "--verify"]).0, 0);
        let lines: Vec<_> = house.run(&["log", &id, "--json"]).1.lines().map(json).collect();
        let kinds: Vec<_> =
            lines.iter().map(|line| line["event"]["type"].as_str().unwrap_or_default()).collect();
        assert_eq!(kinds.first(), Some(&"box_created"));
        assert_eq!(kinds.last(), Some(&"box_ended"));
        assert_eq!(kinds.iter().filter(|kind| **kind == "exec_ended").count(), 2, "{kinds:?}");
        assert!((1..).zip(&lines).all(|(n, line)| line["seq"] == n), "numbered without a gap");
    });
}

#[test]
fn an_end_is_on_record_once_though_the_program_ends_with_its_command() {
    each_mode(|house| {
        const COMMANDS: usize = 5;
        let id = create(house, &[]);
        for _ in 0..COMMANDS {
            // Each of them would put on record what the one before has not told the guest that it had.
            assert_eq!(house.run(&["exec", &id, "--", "true"]).0, 0);
        }
        assert_eq!(house.run(&["kill", &id]).0, 0);
        let log = house.run(&["log", &id, "--json"]).1;
        let ended: Vec<_> =
            log.lines().map(json).filter(|line| line["event"]["type"] == "exec_ended").collect();
        assert_eq!(ended.len(), COMMANDS, "{ended:?}");
    });
}

#[test]
fn a_changed_record_is_found_out() {
    each_mode(|house| {
        let id = create(house, &[]);
        house.run(&["exec", &id, "--", "echo", "the truth"]);
        let path = house.home().join("traces").join(&id).join("trace.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("the truth", "no truths")).unwrap();
        assert_ne!(house.run(&["log", &id, "--verify"]).0, 0);
    });
}

#[test]
fn the_record_of_a_box_that_is_gone_is_found_by_its_name() {
    each_mode(|house| {
        let said = |name: &str| house.run(&["log", name, "--json"]).1.lines().map(json).next();
        let id_of = |name: &str| said(name).expect("it has a record")["event"]["id"].clone();
        let first = create(house, &["--name", "web"]);
        assert_eq!(house.run(&["kill", "web"]).0, 0);
        assert_eq!(id_of("web"), first);
        // The last one that was called so, and the living one before all that are gone.
        let second = create(house, &["--name", "web"]);
        assert_eq!(id_of("web"), second);
        assert_eq!(house.run(&["kill", "web"]).0, 0);
        assert_eq!(id_of("web"), second);
        assert_eq!(id_of(&first), first);
        assert!(house.run(&["log", "nobody"]).2.contains("no record"));
    });
}

#[test]
fn one_record_that_cannot_be_checked_does_not_hide_the_others() {
    each_mode(|house| {
        let ids = [create(house, &[]), create(house, &[])];
        for id in &ids {
            assert_eq!(house.run(&["exec", id, "--", "true"]).0, 0);
            assert_eq!(house.run(&["kill", id]).0, 0);
        }
        let trace = |id: &str| house.home().join("traces").join(id);
        // Whichever comes first.
        let first = ids.iter().min().expect("there are two");
        let second = ids.iter().max().expect("there are two");
        std::fs::remove_file(trace(first).join("trace.jsonl")).unwrap();
        std::fs::remove_file(trace(second).join("head")).unwrap();
        let (code, stdout, stderr) = house.run(&["audit", "verify", "--json"]);
        let reports = json(&stdout);
        let of =
            |id: &str| reports.as_array().unwrap().iter().find(|report| report["id"] == id).unwrap().clone();
        assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
        assert_eq!((&of(first)["ok"], &of(second)["ok"]), (&false.into(), &false.into()), "{stdout}");
        assert!(of(first)["error"].is_string() && of(second)["unguarded"] == true, "{stdout}");
        let (_, stdout, _) = house.run(&["audit", "verify"]);
        assert!(stdout.contains("cannot be checked") && stdout.contains("not vouched for"), "{stdout}");
    });
}

#[test]
fn a_record_whose_end_nobody_vouches_for_is_not_ok() {
    each_mode(|house| {
        let id = create(house, &[]);
        assert_eq!(house.run(&["exec", &id, "--", "true"]).0, 0);
        assert_eq!(house.run(&["kill", &id]).0, 0);
        assert_eq!(house.run(&["audit", "verify", &id]).0, 0);
        let dir = house.home().join("traces").join(&id);
        std::fs::remove_file(dir.join("head")).unwrap();
        let text = std::fs::read_to_string(dir.join("trace.jsonl")).unwrap();
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        lines.pop();
        std::fs::write(dir.join("trace.jsonl"), lines.concat()).unwrap();
        for argv in [&["audit", "verify", &id][..], &["log", &id, "--verify"]] {
            let (code, stdout, stderr) = house.run(argv);
            assert_eq!(code, 4, "{stdout}{stderr}");
            assert!(stdout.contains("NOT ok") && stdout.contains("not vouched for"), "{stdout}");
        }
    });
}

#[test]
fn the_first_broken_line_of_a_changed_record_is_named() {
    each_mode(|house| {
        let id = create(house, &[]);
        for word in ["first", "second", "third"] {
            assert_eq!(house.run(&["exec", &id, "--", "echo", word]).0, 0);
        }
        let path = house.home().join("traces").join(&id).join("trace.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let broken = 1 + text.lines().position(|line| line.contains("second")).expect("it is on record");
        let changed = |(n, line): (usize, &str)| match n + 1 == broken {
            true => format!("{}\n", line.replace("second", "sekond")),
            false => format!("{line}\n"),
        };
        std::fs::write(&path, text.lines().enumerate().map(changed).collect::<String>()).unwrap();
        let (code, stdout, _) = house.run(&["audit", "verify", &id]);
        assert_eq!(code, 1, "{stdout}");
        assert!(stdout.contains(&format!("line {broken}: ")), "line {broken}: {stdout}");
        let (code, stdout, _) = house.run(&["audit", "verify", &id, "--json"]);
        assert_eq!((code, &json(&stdout)[0]["first_bad"]["line"]), (1, &broken.into()), "{stdout}");
    });
}

#[test]
fn what_steps_changed_in_files_is_shown_when_it_is_asked_for() {
    each_mode(|house| {
        let id = create(house, &["--record", "steps"]);
        for line in ["printf 'one\\ntwo\\n' > a", "printf 'one\\nthree\\n' > a"] {
            assert_eq!(house.run(&["exec", &id, "--shell", "--", line]).0, 0);
        }
        let (code, plain, stderr) = house.run(&["log", &id]);
        assert!(code == 0 && plain.contains("M /workspace/a") && !plain.contains("-two"), "{plain}{stderr}");
        let (code, diff, _) = house.run(&["log", &id, "--diff"]);
        assert_eq!(code, 0, "{diff}");
        for line in ["+one", "-two", "+three"] {
            assert!(diff.lines().any(|shown| shown.trim() == line), "{line} in {diff}");
        }
        assert_ne!(house.run(&["log", &id, "--diff", "--json"]).0, 0);
    });
}

#[test]
fn a_record_becomes_one_page_that_needs_nothing_else() {
    each_mode(|house| {
        let id = create(house, &["--record", "steps"]);
        let line = "echo '<script>alert(1)</script>' | tee a";
        assert_eq!(house.run(&["exec", &id, "--shell", "--", line]).0, 0);
        // Where the program may write, whoever it runs as.
        let path = house.home().join("page.html");
        let file = path.to_str().expect("UTF-8");
        let (code, stdout, stderr) = house.run(&["log", &id, "--html", file]);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
        let page = std::fs::read_to_string(&path).expect("it was written");
        assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"), "{page}");
        assert!(page.contains("/workspace/a") && page.contains("&lt;script&gt;alert(1)"), "{page}");
        assert!(!page.contains("<script>alert") && !page.contains("src=\"http"), "{page}");
        let (_, stdout, _) = house.run(&["log", &id, "--html", "-"]);
        assert_eq!(stdout, page);
        let (code, _, stderr) = house.run(&["log", &id, "--html", "/no/such/place/page.html"]);
        assert!(code == 1 && stderr.contains("/no/such/place"), "{stderr}");
    });
}

/// Values of variables that are words of ours as well, and digits that are in every digest.
#[test]
fn what_is_hidden_leaves_a_record_that_can_be_replayed() {
    let values =
        ["HOME=/workspace", "A=host", "B=file", "C=path", "D=content", "E=user", "F=root", "G=shell"];
    let digits: Vec<String> = (0..16).map(|digit| format!("H{digit}=b3:{digit:x}")).collect();
    let env: Vec<&str> = values.into_iter().chain(digits.iter().map(String::as_str)).collect();
    let env: Vec<&str> = env.into_iter().flat_map(|one| ["--env", one]).collect();
    each_mode(|house| {
        let id = create(house, &[&["--record", "steps"], &env[..]].concat());
        let params = r#"{"path": "f", "content": "text\n"}"#;
        let wrote = house.run(&["exec", &id, "--tool", "file_write", "--params", params]);
        assert_eq!(wrote.0, 0, "{wrote:?}");
        assert_eq!(house.run(&["exec", &id, "--shell", "--", "echo more > g; ls"]).1, "f\ng\n");
        let replayed = house.run(&[&["replay", "--of", &id, "--quiet"], &env[..]].concat());
        assert_eq!((replayed.0, replayed.1.trim_end()), (0, "the same, 2 steps"), "{replayed:?}");
        assert_eq!(house.run(&["jump", &id, "1"]).0, 0);
        assert_eq!(house.run(&["exec", &id, "--", "ls"]).1, "f\n");
        assert_eq!(house.run(&["kill", &id]).0, 0);
    });
}
