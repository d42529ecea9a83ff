//! Commands, options, exit codes, JSON.

use std::io::Write;
use std::process::Stdio;

use crate::{create, each_mode, json};

#[test]
fn run_passes_on_output_and_exit_code_and_leaves_no_box() {
    each_mode(|house| {
        let (code, stdout, stderr) = house.run(&["run", "--shell", "--", "echo out; echo err >&2; exit 7"]);
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (7, "out\n", "err\n"));
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
    });
}

#[test]
fn each_kind_of_end_has_its_exit_code_and_its_words() {
    each_mode(|house| {
        let check = |args: &[&str], expected: i32, word: &str| {
            let (code, _, stderr) = house.run(&[&["run"], args].concat());
            assert!(code == expected && stderr.contains(word), "{args:?}: {code} {stderr}");
        };
        check(&["--timeout", "200ms", "--", "sleep", "1000"], 124, "timed out");
        check(&["--", "no-such-program"], 127, "no-such-program");
        check(&["--", "/etc/passwd"], 126, "Permission denied");
        check(&["--shell", "--", "kill -9 $$"], 137, "signal 9");
        check(&["--cwd", "/no/such", "--", "true"], 125, "/no/such");
        check(&["--user", "4294967299", "--", "true"], 125, "4294967299");
        check(&["--output-max", "1k", "--", "cat", "/dev/zero"], 137, "output");
        check(&["--cpu-time", "1", "--shell", "--", "while :; do :; done"], 152, "CPU");
    });
}

#[test]
fn bad_input_gets_one_sentence_and_leaves_nothing() {
    each_mode(|house| {
        for args in [
            &["create", "--memory", "lots"][..],
            &["create", "--memory", "1"],
            &["create", "--cpu", "-1"],
            &["create", "--pids", "0"],
            &["create", "--ttl", "0s"],
            &["create", "--image", "dir:/no/such/dir"],
            &["create", "--image", "dir:/etc/passwd"],
            &["create", "--image", "dir:/"],
            &["create", "--image", "nonsense"],
            &["create", "--name", "../x"],
            &["create", "--env", "=x"],
            &["create", "--redact", "("],
            &["image", "import", "/etc/passwd"],
            &["restore", "nobody", "nothing"],
            &["create", "--redact", "a*"],
            &["create", "--min-level", "vm"],
            &["create", "--runtime", "process", "--pids", "5"],
            &["create", "--runtime", "process", "--record", "steps"],
            &["create", "--owner", "999999999"],
            &["exec", "nobody", "--", "true"],
            &["info", "nobody"],
            &["kill", "nobody"],
            &["ps", "nobody"],
            &["log", "nobody"],
            &["attach", "nobody", "1"],
            &["cp", "a", "b"],
            &["cp", "x:/a", "y:/b"],
            &["run"],
        ] {
            let (code, stdout, stderr) = house.run(args);
            assert!(
                code != 0 && stdout.is_empty() && !stderr.is_empty(),
                "{args:?}: {code} {stdout} {stderr}"
            );
            assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        }
        assert_eq!(json(&house.run(&["list", "--json"]).1), serde_json::json!([]));
        for dir in ["boxes", "trash", "uids", "names"] {
            let left: Vec<_> = std::fs::read_dir(house.home().join(dir)).unwrap().collect();
            assert!(left.is_empty(), "{dir}: {left:?}");
        }
    });
}

#[test]
fn a_box_is_made_by_one_process_used_by_another_and_listed_by_a_third() {
    each_mode(|house| {
        let id = create(house, &["--name", "work", "--label", "a=b", "--env", "GREETING=hello"]);
        assert_eq!(house.run(&["exec", &id, "--shell", "--", "echo $GREETING > note"]).0, 0);
        assert_eq!(house.run(&["exec", "work", "--", "cat", "note"]).1, "hello\n");
        let list = json(&house.run(&["list", "--json"]).1);
        assert_eq!((&list[0]["id"], &list[0]["labels"]["a"]), (&id.clone().into(), &"b".into()));
        let (code, stdout, _) = house.run(&["kill", "work"]);
        assert_eq!((code, stdout.trim_end()), (0, id.as_str()));
        assert_ne!(house.run(&["exec", &id, "--", "true"]).0, 0);
    });
}

#[test]
fn exec_tells_everything_as_json() {
    each_mode(|house| {
        let id = create(house, &[]);
        let (code, stdout, _) =
            house.run(&["exec", &id, "--json", "--shell", "--", "echo hi; printf '\\377' >&2; exit 3"]);
        let answer = json(&stdout);
        assert_eq!(code, 3);
        assert_eq!(answer["exit"], serde_json::json!({"kind": "code", "code": 3}));
        assert_eq!((&answer["stdout"], &answer["truncated"]), (&"hi\n".into(), &false.into()));
        assert_eq!((&answer["stderr"], &answer["stderr_encoding"]), (&"/w==".into(), &"base64".into()));
        for number in ["exec", "wall_ms", "cpu_ms", "peak_memory_bytes"] {
            assert!(answer[number].is_u64(), "{number} in {answer}");
        }
    });
}

#[test]
fn stdin_is_streamed_when_asked_for_and_empty_otherwise() {
    each_mode(|house| {
        let feed = |args: &[&str]| {
            let mut child =
                house.glass(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("glass starts");
            let mut stdin = child.stdin.take().expect("it is piped");
            let big = vec![b'x'; 3 << 20];
            // Without -i nobody reads: the pipe closes, which is as it should be.
            let _ = stdin.write_all(&big);
            drop(stdin);
            String::from_utf8(child.wait_with_output().expect("it ends").stdout).expect("wc prints text")
        };
        assert_eq!(feed(&["run", "-i", "--", "wc", "-c"]).trim(), (3 << 20).to_string());
        assert_eq!(feed(&["run", "--", "wc", "-c"]).trim(), "0");
    });
}

#[test]
fn a_background_command_outlives_its_client_and_is_attached_to_later() {
    each_mode(|house| {
        let id = create(house, &[]);
        let line = "echo one; read line < gate; echo two";
        assert_eq!(house.run(&["exec", &id, "--", "mkfifo", "gate"]).0, 0);
        let (_, exec, _) = house.run(&["exec", &id, "--background", "--shell", "--", line]);
        let exec = exec.trim_end();
        let (_, ps, _) = house.run(&["ps", &id, "--json"]);
        assert_eq!(json(&ps)[0]["state"], "running", "{ps}");
        assert_eq!(house.run(&["exec", &id, "--shell", "--", "echo go > gate"]).0, 0);
        let (code, stdout, _) = house.run(&["attach", &id, exec]);
        assert_eq!((code, stdout.as_str()), (0, "one\ntwo\n"));
        assert_eq!(house.run(&["attach", &id, exec, "--from", "4"]).1, "two\n");
    });
}

#[test]
fn trees_go_in_and_come_out_unchanged() {
    each_mode(|house| {
        let id = create(house, &[]);
        let tree = house.path().join("tree");
        std::fs::create_dir_all(tree.join("a/b")).unwrap();
        std::fs::write(tree.join("a/b/ü \n name"), b"\0\xff").unwrap();
        std::os::unix::fs::symlink("../nowhere", tree.join("a/link")).unwrap();
        let out = house.home().join("out");
        let shown = tree.display().to_string();
        for args in [
            ["cp", &shown, &format!("{id}:there")],
            ["cp", &format!("{id}:there"), &out.display().to_string()],
        ] {
            let (code, _, stderr) = house.run(&args);
            assert_eq!(code, 0, "{args:?}: {stderr}");
        }
        assert_eq!(std::fs::read(out.join("a/b/ü \n name")).unwrap(), b"\0\xff");
        assert_eq!(std::fs::read_link(out.join("a/link")).unwrap(), std::path::Path::new("../nowhere"));
    });
}

#[test]
fn what_a_file_is_written_over_stays_until_that_is_whole() {
    each_mode(|house| {
        let id = create(house, &[]);
        let file = house.home().join("kept");
        std::fs::write(&file, "kept").unwrap();
        let shown = file.display().to_string();
        for args in [
            &["export", "nobody", "-o", &shown][..],
            &["diff", "nobody", "--tar", &shown],
            &["trajectory", "convert", "/no/such/file", "--to", "atif", "-o", &shown],
        ] {
            assert_eq!(house.run(args).0, 1, "{args:?}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept", "{args:?}");
        }
        // What is no file is not replaced by one.
        let pipe = house.home().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (code, _, stderr) = house.run(&["cp", &format!("{id}:/etc/passwd"), &pipe.display().to_string()]);
        assert!(code == 1 && stderr.contains("no file"), "{code}: {stderr}");
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::metadata(&pipe).unwrap().file_type()));
        let left = std::fs::read_dir(house.home()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains(['~', '.'])).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn doctor_says_that_this_machine_isolates_fully() {
    each_mode(|house| {
        let (code, stdout, stderr) = house.run(&["doctor", "--json"]);
        assert_eq!(code, 0, "{stdout} {stderr}");
        assert!(stdout.contains("\"level\":\"full\""), "{stdout}");
    });
}

#[test]
fn completions_exist_for_every_shell() {
    each_mode(|house| {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let (code, stdout, _) = house.run(&["completions", shell]);
            assert!(code == 0 && stdout.contains("glass"), "{shell}");
        }
    });
}

#[test]
fn a_whole_root_is_not_copied_and_it_is_said_what_to_do() {
    each_mode(|house| {
        let id = create(house, &[]);
        let to = house.path().join("out");
        for path in ["/", "/workspace/.."] {
            let (code, _, stderr) = house.run(&["cp", &format!("{id}:{path}"), &to.display().to_string()]);
            assert!(
                code == 1 && stderr.contains("/proc") && stderr.contains("glass export"),
                "{code}: {stderr}"
            );
            assert!(!to.exists(), "{path}");
        }
    });
}

#[test]
fn a_paused_box_says_so_and_goes_on_when_it_is_resumed() {
    each_mode(|house| {
        let id = create(house, &[]);
        let state = || json(&house.run(&["list", "--json"]).1)[0]["state"].clone();
        assert_eq!(house.run(&["pause", &id]), (0, format!("{id}\n"), String::new()));
        assert_eq!(state(), "paused");
        assert!(house.run(&["info", &id]).1.contains("paused"));
        for args in [&["exec", &id, "--", "true"][..], &["cp", "/etc/passwd", &format!("{id}:/tmp")]] {
            let (code, stdout, stderr) = house.run(args);
            assert!(code != 0 && stdout.is_empty(), "{args:?}: {code} {stdout}");
            assert!(stderr.contains("paused") && stderr.contains("glass resume"), "{args:?}: {stderr}");
        }
        assert_eq!(json(&house.run(&["resume", &id, "--json"]).1)["done"][0], id.as_str());
        assert_eq!(state(), "running");
        assert_eq!(house.run(&["exec", &id, "--", "echo", "on"]).1, "on\n");
        let log = house.run(&["log", &id]).1;
        assert!(log.contains("pause") && log.contains("resume"), "{log}");
    });
}

#[test]
fn a_volume_is_given_only_below_what_the_environment_names() {
    each_mode(|house| {
        let dir = house.path().join(format!("shared-{:?}", house.mode));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("file"), "of the host").unwrap();
        let volume = format!("{}:/data:ro", dir.display());
        let (code, _, stderr) = house.run(&["create", "--volume", &volume]);
        assert!(code != 0 && stderr.contains("GLASSHOUSE_VOLUMES"), "{code} {stderr}");
        let allowed = |args: &[&str]| {
            let output =
                house.glass(args).env("GLASSHOUSE_VOLUMES", format!("/no/such:{}", dir.display())).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let id = allowed(&["create", "--volume", &volume]).trim_end().to_owned();
        assert_eq!(house.run(&["exec", &id, "--", "cat", "/data/file"]).1, "of the host");
        let told = &json(&house.run(&["info", &id, "--json"]).1)["volumes"][0];
        assert_eq!((told["path"].as_str(), told["read_only"].as_bool()), (Some("/data"), Some(true)));
        assert!(house.run(&["info", &id]).1.contains(&volume));
        assert_eq!(allowed(&["run", "--volume", &volume, "--", "cat", "/data/file"]), "of the host");
    });
}
