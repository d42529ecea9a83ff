//! Taking all processes and all memory there is. (6.3: 84 to 88, 99.)

use glasshouse_sandbox::{ExecSpec, Program};
use glasshouse_tests::Mode;
use serde_json::Value;

use crate::attacker::{Attacker, PROBE, create, group};

/// A box of these options in each mode, as each user.
fn everywhere(options: &[&str]) -> Vec<Attacker> {
    let places = Mode::all().into_iter().flat_map(|mode| ["user", "root"].map(|user| (mode, user)));
    places.filter_map(|(mode, user)| Attacker::new(mode, user, options)).collect()
}

/// What `exhaust` prints: how much it got, and what it was told in the end.
pub(crate) fn got(text: &str) -> (u64, &str) {
    let (count, errno) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text:?}"));
    (count.parse().unwrap_or_else(|_| panic!("{text:?}")), errno)
}

fn kind(ran: &Value) -> &str {
    ran["exit"]["kind"].as_str().unwrap_or_default()
}

#[test]
fn processes_end_at_the_limit() {
    for attacker in everywhere(&["--pids", "40"]) {
        for what in ["threads", "forks"] {
            let text = attacker.probe(&["exhaust", what]).text();
            let (count, errno) = got(&text);
            assert!((20..40).contains(&count), "{}: {count} {what}", attacker.name());
            assert_eq!(errno, "EAGAIN", "{}: {what}", attacker.name());
            // All are gone with their parent, and there is room again.
            attacker.assert_alive();
        }
    }
}

#[test]
fn a_fork_bomb_ends_at_its_deadline_and_harms_no_other_box() {
    for attacker in everywhere(&["--pids", "100"]) {
        let neighbour = attacker.neighbour();
        let args = ["exec", &attacker.id, "--json", "--timeout", "2s", "--", PROBE, "exhaust", "bomb"];
        let bomb = attacker.glass_piped(&args);
        // Until it is full: then a command is refused a process, or runs, and either is said clearly.
        let full = ["--json", "--timeout", "10s", "--shell"];
        let line = "for i in 1 2 3 4 5 6 7 8; do sleep 0.01 & done; wait";
        let during = attacker.exec(&full, &[line]);
        let during: Value = serde_json::from_str(&during.out).unwrap_or_else(|e| panic!("{e}: {during:?}"));
        assert!(
            ["code", "pids_limit", "not_started"].contains(&kind(&during)),
            "{}: {during}",
            attacker.name()
        );
        neighbour.assert_alive();
        let output = bomb.wait_with_output().expect("it was started");
        let ran: Value = serde_json::from_slice(&output.stdout).expect("exec's JSON");
        assert_eq!(kind(&ran), "timed_out", "{}: {ran}", attacker.name());
        attacker.assert_alive();
        let facts = attacker.probe(&["facts"]).text();
        let left = facts.lines().filter(|line| line.starts_with("process ")).count();
        assert_eq!(left, 2, "{}: {facts}", attacker.name());
        neighbour.assert_alive();
    }
}

#[test]
fn a_command_that_was_refused_a_process_is_told_so() {
    for attacker in Attacker::each_mode(&["--pids", "10"]) {
        let line = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 60 & done; exit 3";
        let ran = attacker.exec_json(&["--shell", "--timeout", "20s"], &[line]);
        let words = ["pids_limit", "code"];
        assert!(words.contains(&kind(&ran)), "{}: {ran}", attacker.name());
        assert_ne!(ran["exit"]["code"], 0, "{}: {ran}", attacker.name());
        if attacker.house.mode == Mode::Root {
            assert_eq!(kind(&ran), "pids_limit", "{}: {ran}", attacker.name());
        }
    }
}

/// A box with a memory limit; where this mode cannot enforce one, create must refuse.
fn limited(mode: Mode, user: &'static str, memory: &str) -> Option<Attacker> {
    let attacker = Attacker::new(mode, user, &[])?;
    let (code, _, err) = attacker.house.run(&["create", "--memory", memory]);
    if code == 0 {
        return Attacker::new(mode, user, &["--memory", memory]);
    }
    assert_eq!(mode, Mode::Rootless, "{err}");
    assert!(err.contains("memory") && err.lines().count() == 1, "{err}");
    None
}

pub(crate) fn limited_everywhere(memory: &str) -> Vec<Attacker> {
    let places = Mode::all().into_iter().flat_map(|mode| ["user", "root"].map(|user| (mode, user)));
    places.filter_map(|(mode, user)| limited(mode, user, memory)).collect()
}

#[test]
fn a_memory_bomb_is_told_as_such_and_the_box_lives_on() {
    for attacker in limited_everywhere("64m") {
        let ran = attacker.exec_json(&[], &[PROBE, "exhaust", "memory", "200"]);
        assert_eq!(kind(&ran), "out_of_memory", "{}: {ran}", attacker.name());
        assert!(ran["oom_kills"].as_u64() >= Some(1), "{ran}");
        attacker.assert_alive();
        // A child dies of it, and the main process goes on.
        let line = format!("{PROBE} exhaust memory 200; echo still there");
        let ran = attacker.exec_json(&["--shell"], &[&line]);
        assert!(ran["stdout"].as_str().is_some_and(|out| out.contains("still there")), "{ran}");
        assert_eq!(kind(&ran), "code", "{ran}");
        assert!(ran["oom_kills"].as_u64() >= Some(1), "{ran}");
    }
}

#[test]
fn many_small_processes_out_of_memory_do_not_take_the_guest_along() {
    for attacker in limited_everywhere("64m") {
        attacker.exec_json(&["--timeout", "30s"], &[PROBE, "exhaust", "processes", "60", "4"]);
        attacker.assert_alive();
    }
}

#[test]
fn memory_that_belongs_to_no_process_does_not_take_the_guest_along() {
    // The second is no larger than the guest, and as dear to the kernel as it: nobody else would be taken.
    for prefer in ["true", "echo 0 > /proc/self/oom_score_adj"] {
        for what in ["file /dev/shm/x", "segments"] {
            for attacker in limited_everywhere("32m") {
                let line = format!("{prefer}; exec {PROBE} exhaust {what}");
                let ran = attacker.exec_json(&["--shell", "--timeout", "30s"], &[&line]);
                assert!(
                    ["out_of_memory", "code"].contains(&kind(&ran)),
                    "{}: {line}: {ran}",
                    attacker.name()
                );
                // What nobody holds stays there, so further commands may be killed as well: but the guest tells.
                attacker.glass(&["ps", &attacker.id]).text();
                assert_eq!(attacker.info()["state"], "running", "{}: {line}", attacker.name());
            }
        }
    }
}

#[test]
fn a_limit_that_a_mode_cannot_enforce_is_refused() {
    let Some(attacker) = Attacker::new(Mode::Rootless, "user", &[]) else { return };
    let limits = attacker.info()["limits"].clone();
    for (option, value, name) in [("--memory", "64m", "memory"), ("--cpu", "0.5", "cpu")] {
        let (code, out, err) = attacker.house.run(&["create", option, value]);
        if code == 0 {
            let made: Value = serde_json::from_str(&attacker.glass(&["info", out.trim(), "--json"]).text())
                .expect("info is JSON");
            let limit =
                made["limits"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name).cloned());
            let mechanism = limit.map(|limit| limit["mechanism"].to_string()).unwrap_or_default();
            assert!(mechanism.contains("cgroup"), "{option} was taken, and nothing enforces it: {mechanism}");
            eprintln!("cannot be shown here: {option} refused (cgroups are delegated to this user)");
            continue;
        }
        assert!(out.is_empty() && err.contains("cannot enforce"), "{out} {err}");
    }
    // What is in force by default is said.
    let names: Vec<&str> =
        limits.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.contains(&"memory") && names.contains(&"pids"), "{limits}");
}

#[test]
fn without_a_memory_cgroup_each_process_has_a_bound() {
    let Some(attacker) = Attacker::new(Mode::Rootless, "user", &[]) else { return };
    let (code, ..) = attacker.house.run(&["create", "--memory", "64m"]);
    if code == 0 {
        eprintln!(
            "cannot be shown here: the fallback of the memory limit (cgroups are delegated to this user)"
        );
        return;
    }
    let said = attacker.probe(&["exhaust", "memory", "3000"]);
    assert_eq!(said.out, "-1 ENOMEM\n", "{said:?}");
    attacker.assert_alive();
}

#[test]
fn spinning_on_every_processor_harms_no_other_box() {
    for attacker in Attacker::each_mode(&[]) {
        let neighbour = attacker.neighbour();
        let line = "for i in 1 2 3 4 5 6 7 8; do (while :; do :; done) & done; wait";
        let args = ["exec", &attacker.id, "--json", "--timeout", "2s", "--shell", "--", line];
        let spin = attacker.glass_piped(&args);
        for _ in 0..5 {
            neighbour.assert_alive();
            attacker.assert_alive();
        }
        let output = spin.wait_with_output().expect("it was started");
        let ran: Value = serde_json::from_slice(&output.stdout).expect("exec's JSON");
        assert_eq!(kind(&ran), "timed_out", "{}: {ran}", attacker.name());
    }
}

#[test]
fn a_box_refuses_more_commands_than_it_can_hold() {
    crate::library::with_box(async |inside| {
        let mut running = Vec::new();
        let refused = loop {
            let spec = ExecSpec {
                program: Program::Argv(vec!["sleep".into(), "600".into()]),
                ..ExecSpec::default()
            };
            match inside.sandbox.exec(spec).await {
                Ok(mut exec) => match running.len() {
                    // It may be told by the end of a command that never started.
                    256.. => break format!("{:?}", exec.next().await),
                    _ => running.push(exec),
                },
                Err(error) => break error.to_string(),
            }
        };
        assert!(running.len() >= 64, "only {} at once: {refused}", running.len());
        assert!(refused.contains("many") || refused.contains("TooMany"), "{refused}");
        drop(running);
        // They are killed when their owner lets go of them; one try after the other will find room.
        for _ in 0..500 {
            let spec = ExecSpec { program: Program::Argv(vec!["true".into()]), ..ExecSpec::default() };
            if let Ok(exec) = inside.sandbox.exec(spec).await
                && exec.collect().await.report.exit.success()
            {
                return;
            }
        }
        panic!("no room after all were killed");
    });
}

#[test]
fn asking_for_nonsense_leaves_nothing_behind() {
    for mode in Mode::all() {
        let Some(attacker) = Attacker::new(mode, "user", &[]) else { continue };
        for options in [["--pids", "1"], ["--disk", "1"], ["--memory", "1"]] {
            let (code, out, err) =
                attacker.house.run(&[&["create", "--label", "nonsense=1"], &options[..]].concat());
            assert_eq!((code == 0, out.as_str()), (false, ""), "{}: {err}", group(mode));
        }
        let list = attacker.glass(&["list", "--json"]).text();
        assert!(!list.contains("nonsense"), "{list}");
        let made = create(&attacker.house, "user", &["--label", "sense=1"]).expect("the first was made");
        attacker.glass(&["kill", &made]).text();
    }
}
