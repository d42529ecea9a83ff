//! What was kept is what comes back.

use crate::stage::Stage;

#[test]
fn a_restore_gives_back_what_was_there_then() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a; mkdir d; echo x > d/f; ln a b; ln -s a c; chmod 751 d");
        let list =
            "ls -lRn --time-style=+ /workspace | sed 's/^total.*//'; cat a b c d/f; ls -d /etc/ssl 2>&1";
        let before = stage.sh(list);
        let first = stage.snapshot();
        assert_eq!(stage.sh(list), before, "{:?}: a snapshot changes nothing", stage.house.mode);
        stage.sh("echo two > a; rm b c; rm -r d; touch new");
        let second = stage.snapshot();
        let after = stage.sh(list);
        assert_ne!(before, after);
        for (snapshot, expected) in [(&first, &before), (&second, &after), (&first, &before)] {
            stage.ok(&["restore", &stage.id, snapshot]);
            assert_eq!(&stage.sh(list), expected, "{:?}", stage.house.mode);
        }
    }
}

#[test]
fn a_directory_is_moved_and_stays_moved() {
    for stage in Stage::each(&[]) {
        stage.sh("mkdir -p d/e; echo x > d/e/f; echo y > d/g");
        stage.snapshot();
        // With privilege the kernel moves it; without, `mv` copies it. Both have to survive.
        stage.sh("mv d moved; rm moved/g; echo z > moved/e/h");
        let expected = "h\nx\nz\nno d";
        let look = "ls moved/e | grep h; cat moved/e/f moved/e/h; ls d 2>/dev/null || echo no d; ! ls moved/g 2>/dev/null";
        assert_eq!(stage.sh(look), expected, "{:?}", stage.house.mode);
        let snapshot = stage.snapshot();
        stage.sh("rm -rf /workspace/moved");
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.sh(look), expected, "{:?}", stage.house.mode);
    }
}

#[test]
fn what_is_odd_survives() {
    for stage in Stage::each(&[]) {
        let make = "printf x > \"$(printf 'new\\nline')\"; printf y > \"$(printf 'caf\\351')\"; \
                    printf z > $(printf '%0255d' 7); truncate -s 1T sparse; printf end >> sparse; mkfifo pipe; \
                    chmod 000 pipe; setfattr -n user.k -v v sparse 2>/dev/null; chmod 4711 pipe";
        stage.sh(make);
        let look = "ls -b; stat -c '%n %s %a %F' sparse pipe; tail -c 3 sparse; du -k sparse | cut -f1";
        let before = stage.sh(look);
        let snapshot = stage.snapshot();
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh("ls | wc -l"), "0");
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.sh(look), before, "{:?}", stage.house.mode);
    }
}

#[test]
fn who_is_stopped_by_his_cgroup_does_not_notice() {
    for stage in Stage::each(&[]) {
        if stage.json(&["info", &stage.id])["tracking"] != "cgroup v2" {
            glasshouse_tests::skip("frozen", "only a signal stops processes here, and they notice");
            continue;
        }
        // A process that was stopped by a signal is told so when it goes on.
        let line = "trap 'echo told > noticed' CONT; mkfifo gate; echo ready; \
                    while :; do read word < gate && [ \"$word\" = end ] && break; done; sync; echo over";
        let exec = stage.ok(&["exec", &stage.id, "--background", "--shell", "--", line]);
        stage.sh("until [ -p gate ]; do :; done; echo first > gate");
        let told = stage.json(&["snapshot", &stage.id]);
        assert_eq!(told["processes"], 1, "{told}");
        stage.sh("echo end > gate");
        assert_eq!(stage.ok(&["attach", &stage.id, &exec]), "ready\nover", "{:?}", stage.house.mode);
        assert_eq!(stage.sh("ls"), "gate", "{:?}: it noticed", stage.house.mode);
    }
}

#[test]
fn it_is_told_how_it_was_made() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        let first = stage.json(&["snapshot", &stage.id, "--name", "first"]);
        assert_eq!((&first["method"], &first["processes"]), (&"rotate".into(), &0.into()));
        assert_eq!(first["copied_for"], serde_json::Value::Null, "{first}");
        assert_eq!((&first["durable"], &first["from"]), (&false.into(), &stage.id.clone().into()));
        let again = stage.json(&["snapshot", &stage.id]);
        assert_eq!((&again["method"], &again["layers"]), (&"unchanged".into(), &first["layers"]));
        let durable = stage.json(&["snapshot", &stage.id, "--durable"]);
        assert_eq!(durable["durable"], true);
        let all = stage.json(&["snapshots"]);
        assert_eq!(all.as_array().map(Vec::len), Some(3), "{all}");
        let log = stage.ok(&["log", &stage.id]);
        assert!(log.contains(&format!("snapshot {} rotate", first["id"].as_str().unwrap_or("?"))), "{log}");
    }
}

#[test]
fn a_file_that_is_open_for_writing_is_noticed() {
    for stage in Stage::each(&[]) {
        let writer = "exec 9> open; echo first >&9; echo ready > ready; while :; do sleep 1; done";
        stage.ok(&["exec", &stage.id, "--background", "--shell", "--", writer]);
        stage.sh("until [ -e ready ]; do :; done");
        let taken = stage.json(&["snapshot", &stage.id]);
        assert!(taken["method"] == "copy" || taken["method"] == "reflink", "{taken}");
        assert!(taken["processes"].as_u64().is_some_and(|n| n > 0), "{taken}");
        assert_eq!(taken["copied_for"], "running", "{taken}");
        // It goes on, and what it writes from now on is not in the snapshot.
        stage.sh("kill -0 $(pgrep -o sh); echo second >> open");
        let fork = stage.ok(&["fork", taken["id"].as_str().expect("it has an id")]);
        assert_eq!(stage.sh_in(&fork, "cat open; ps ax | grep -c '[s]leep' || true"), "first\n0");
        assert_eq!(stage.sh("cat open"), "first\nsecond");
    }
}

#[test]
fn a_snapshot_outlives_its_box_and_goes_when_it_is_removed() {
    for stage in Stage::each(&[]) {
        stage.sh("echo kept > a");
        let name = stage.ok(&["snapshot", &stage.id, "--name", "kept"]);
        stage.ok(&["kill", &stage.id]);
        let fork = stage.ok(&["fork", "kept"]);
        assert_eq!(stage.sh_in(&fork, "cat a"), "kept");
        assert_eq!(stage.ok(&["snapshots", "remove", "kept"]), name);
        // The fork still stands on its layer.
        assert_eq!(stage.sh_in(&fork, "cat a"), "kept");
        assert_eq!(stage.layers().len(), 1);
        stage.ok(&["kill", &fork]);
        stage.ok(&["gc"]);
        assert_eq!(stage.layers(), [""; 0]);
    }
}

#[test]
fn nonsense_gets_one_sentence() {
    for stage in Stage::each(&[]) {
        stage.sh("echo one > a");
        stage.ok(&["snapshot", &stage.id, "--name", "one"]);
        for (args, word) in [
            (vec!["snapshot", "nosuchbox"], "no box"),
            (vec!["snapshot", &stage.id, "--name", "../x"], "cannot be a name"),
            (vec!["snapshot", &stage.id, "--name", "one"], "there already"),
            (vec!["restore", &stage.id, "nosuch"], "no snapshot"),
            (vec!["restore", "nosuchbox", "one"], "no box"),
            (vec!["fork", "nosuch"], "no box and no snapshot"),
            (vec!["snapshots", "remove", "nosuch"], "no snapshot"),
            (vec!["start", &stage.id], "runs already"),
            (vec!["create", "--image", "snapshot:nosuch"], "no snapshot"),
        ] {
            let sentence = stage.refused(&args);
            assert!(sentence.contains(word), "{args:?}: {sentence}");
        }
        assert_eq!(stage.sh("cat a"), "one");
    }
}

#[test]
fn commands_that_come_meanwhile_wait_and_are_not_lost() {
    for stage in Stage::each(&[]) {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                for n in 0..40 {
                    assert_eq!(stage.sh(&format!("echo {n} >> log; echo {n}")), n.to_string());
                }
            });
            for n in 0..20 {
                stage.ok(&["snapshot", &stage.id]);
                assert!(!stage.sh(&format!("echo {n}; true")).is_empty());
            }
            worker.join().expect("no command was lost");
        });
        let expected: Vec<String> = (0..40).map(|n| n.to_string()).collect();
        assert_eq!(stage.sh("cat log"), expected.join("\n"), "{:?}", stage.house.mode);
    }
}

#[test]
fn a_shell_that_starts_command_after_command_does_not_stand_in_the_way() {
    for stage in Stage::each(&[]) {
        stage.ok(&["exec", &stage.id, "--background", "--shell", "--", "while :; do /bin/true; done"]);
        for _ in 0..8 {
            stage.snapshot();
        }
    }
}

#[test]
fn a_record_that_is_damaged_stands_in_nobodys_way() {
    for stage in Stage::each(&[]) {
        let mode = stage.house.mode;
        stage.sh("echo kept > a");
        stage.ok(&["snapshot", &stage.id, "--name", "kept"]);
        stage.sh("echo lost > a");
        let lost = stage.ok(&["snapshot", &stage.id, "--name", "lost"]);
        let also = stage.snapshot();
        // As a host leaves them that goes down at the wrong moment.
        for (id, text) in [(&lost, ""), (&also, "{\"version\":1,\"id\"")] {
            let record = stage.house.home().join("snapshots").join(format!("{id}.json"));
            std::fs::write(record, text).expect("the home is ours");
        }
        let (code, out, err) = stage.house.run(&["snapshots"]);
        assert_eq!((code, out.lines().count()), (0, 2), "{mode:?}: {out}{err}");
        assert!(err.contains(&format!("glass snapshots remove {lost}")), "{mode:?}: {err}");
        assert_eq!(stage.json(&["snapshots"]).as_array().map(Vec::len), Some(1), "{mode:?}");
        assert_eq!(stage.json(&["gc"])["damaged_snapshots"].as_array().map(Vec::len), Some(2), "{mode:?}");
        for name in [&lost, &lost[..6]] {
            let sentence = stage.refused(&["restore", &stage.id, name]);
            assert!(sentence.contains("is damaged; `glass snapshots remove"), "{mode:?}: {sentence}");
        }
        // What it names, nobody knows; so nothing goes that it may name.
        stage.ok(&["kill", &stage.id]);
        stage.ok(&["gc"]);
        assert_eq!(stage.layers().len(), 2, "{mode:?}: {:?}", stage.layers());
        let fork = stage.ok(&["fork", "kept"]);
        assert_eq!(stage.sh_in(&fork, "cat a"), "kept");
        stage.ok(&["snapshot", &fork, "--name", "more"]);
        assert_eq!(stage.ok(&["snapshots", "remove", &lost]), lost);
        assert_eq!(stage.layers().len(), 2, "{mode:?}: one more is damaged");
        assert_eq!(stage.ok(&["snapshots", "remove", &also[..8]]), also);
        assert_eq!(stage.layers().len(), 1, "{mode:?}: {:?}", stage.layers());
        assert_eq!(stage.sh_in(&fork, "cat a"), "kept");
    }
}

#[test]
fn what_is_not_on_the_disk_yet_is_so_after_gc() {
    for stage in Stage::each(&[]) {
        let mode = stage.house.mode;
        stage.sh("echo one > a");
        let early = stage.snapshot();
        let cleaned = stage.json(&["gc"]);
        assert_eq!(cleaned["made_durable"], 1, "{mode:?}: {cleaned}");
        assert_eq!(stage.json(&["gc"])["made_durable"], 0, "{mode:?}: once is enough");
        stage.sh("echo two > a");
        let late = stage.snapshot();
        // As if the host had been started since.
        for id in [&early, &late] {
            let path = stage.house.home().join("snapshots").join(format!("{id}.json"));
            let text = std::fs::read_to_string(&path).expect("it is there");
            let mut record: serde_json::Value = serde_json::from_str(&text).expect("a record is JSON");
            record["boot"] = "another".into();
            std::fs::write(&path, record.to_string()).expect("the home is ours");
        }
        assert!(stage.refused(&["fork", &late]).contains("glass gc"), "{mode:?}");
        // It is too late for that one.
        assert_eq!(stage.json(&["gc"])["made_durable"], 0, "{mode:?}");
        let shown = stage.json(&["snapshots"]);
        assert_eq!((&shown[0]["durable"], &shown[1]["durable"]), (&true.into(), &false.into()), "{shown}");
        let fork = stage.ok(&["fork", &early]);
        assert_eq!(stage.sh_in(&fork, "cat a"), "one", "{mode:?}");
    }
}

#[test]
fn hard_links_survive_and_come_apart_when_a_name_of_a_lower_layer_is_written() {
    let look = "stat -c %h-%i a b | sort -u; cat a b";
    for stage in Stage::each(&[]) {
        let mode = stage.house.mode;
        stage.sh("echo one > a; ln a b; echo two >> a");
        // One line for both names: the same file, which has two.
        let linked = |told: &str| {
            let mut lines = told.lines();
            assert!(lines.next().is_some_and(|line| line.starts_with("2-")), "{mode:?}: {told}");
            assert_eq!(lines.collect::<Vec<_>>(), ["one", "two", "one", "two"], "{mode:?}");
        };
        linked(&stage.sh(look));
        let snapshot = stage.snapshot();
        linked(&stage.sh(look));
        let file = stage.house.path().join("home/state").display().to_string();
        stage.ok(&["export", &snapshot, "-o", &file]);
        let imported = stage.ok(&["import", &file]);
        let forks = [stage.id.as_str(), &snapshot, &imported].map(|of| stage.ok(&["fork", of]));
        for fork in &forks {
            linked(&stage.sh_in(fork, look));
        }
        // What overlayfs does: the name that is written through gets a copy. The other one keeps what was there.
        for id in forks.iter().chain([&stage.id]) {
            assert_eq!(stage.sh_in(id, "echo three >> a; cat b"), "one\ntwo", "{mode:?}");
        }
        stage.ok(&["restore", &stage.id, &snapshot]);
        linked(&stage.sh(look));
    }
}
