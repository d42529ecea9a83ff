//! Floods and refusals to end: output without end, input that nobody reads, processes that will not go. (6.3: 93 to
//! 100.)
//!
//! That our own memory stays flat is not measured but enforced: `glass` runs with a small bound on its data, and would
//! fail beyond it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::attacker::{Attacker, PROBE};

/// Private memory that `glass` may use here, in KiB.
const DATA_KIB: &str = "131072";

/// `glass` with little memory.
fn small(attacker: &Attacker, args: &[&str]) -> Child {
    let plain = attacker.house.glass(args);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit -d {DATA_KIB} && exec \"$@\""), "sh"]).arg(plain.get_program());
    shell.args(plain.get_args()).env_clear();
    shell.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?)))).current_dir("/");
    if attacker.house.mode == glasshouse_tests::Mode::Rootless && glasshouse_tests::is_root() {
        use std::os::unix::process::CommandExt;
        shell.uid(glasshouse_tests::ORDINARY).gid(glasshouse_tests::ORDINARY);
    }
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell.spawn().expect("a shell can be started")
}

fn json(child: Child) -> Value {
    let output = child.wait_with_output().expect("it was started");
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("{e}: {text} {}", String::from_utf8_lossy(&output.stderr)))
}

/// How many processes are in the box, besides the one that counts.
fn others(attacker: &Attacker) -> usize {
    let facts = attacker.probe(&["facts"]).text();
    facts.lines().filter(|line| line.starts_with("process ")).count() - 2
}

#[test]
fn endless_output_is_counted_and_not_kept() {
    for attacker in Attacker::each_mode(&[]) {
        for line in ["yes", "cat /dev/zero", "yes & yes >&2"] {
            let args = ["exec", &attacker.id, "--json", "--timeout", "1s", "--shell", "--", line];
            let ran = json(small(&attacker, &args));
            assert_eq!(ran["exit"]["kind"], "timed_out", "{}: {line}", attacker.name());
            assert_eq!(ran["truncated"], true, "{}: {line}", attacker.name());
            let total = ran["stdout_bytes"].as_u64().unwrap_or(0) + ran["stderr_bytes"].as_u64().unwrap_or(0);
            let kept: usize =
                ["stdout", "stderr"].iter().map(|name| ran[name].as_str().unwrap_or_default().len()).sum();
            assert!(total > kept as u64 && kept <= 4 << 20, "{}: {line}: {kept} of {total}", attacker.name());
            eprintln!(
                "{}: {line}: {} MiB in a second, {} KiB kept",
                attacker.name(),
                total >> 20,
                kept >> 10
            );
            assert_eq!(others(&attacker), 0, "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn output_beyond_what_the_caller_allowed_ends_the_command() {
    for attacker in Attacker::each_mode(&[]) {
        let ran = attacker.exec_json(&["--output-max", "1m", "--timeout", "30s"], &["yes"]);
        assert_eq!(ran["exit"]["kind"], "output_limit", "{}: {}", attacker.name(), ran["exit"]);
    }
}

#[test]
fn a_line_of_a_gibibyte_needs_no_memory() {
    let line = "head -c 1073741824 /dev/zero | tr '\\0' a";
    for attacker in Attacker::each_mode(&[]) {
        let mut child = small(&attacker, &["exec", &attacker.id, "--shell", "--", line]);
        let mut stdout = child.stdout.take().expect("it is piped");
        let (mut total, mut buffer, expected) = (0, vec![0; 1 << 20], vec![b'a'; 1 << 20]);
        loop {
            match stdout.read(&mut buffer).expect("a pipe can be read") {
                0 => break,
                n => {
                    assert!(buffer[..n] == expected[..n]);
                    total += n;
                }
            }
        }
        let code = child.wait().expect("it was started").code();
        assert_eq!((total, code), (1 << 30, Some(0)), "{}", attacker.name());
    }
}

#[test]
fn a_line_that_is_longer_than_our_memory_is_kept_as_head_and_tail() {
    const BYTES: u64 = 256 << 20;
    for attacker in Attacker::each_mode(&[]) {
        let line = format!("head -c {BYTES} /dev/zero | tr '\\0' a");
        let ran = json(small(&attacker, &["exec", &attacker.id, "--json", "--shell", "--", &line]));
        let told = (&ran["exit"]["code"], &ran["stdout_bytes"]);
        assert_eq!(told, (&0.into(), &BYTES.into()), "{}", attacker.name());
        let kept = ran["stdout"].as_str().unwrap_or_default();
        assert!(kept.len() <= 2 << 20 && kept.trim_matches('a').is_empty(), "{} bytes are kept", kept.len());
    }
}

#[test]
fn a_reader_that_stops_holds_up_nobody_else() {
    for attacker in Attacker::each_mode(&[]) {
        // The flood begins when we have read for the last time: what is full first, stdout or stderr, is chance.
        let line = "echo ready; read -r _; yes & yes >&2";
        let mut stuck = small(&attacker, &["exec", &attacker.id, "-i", "--shell", "--", line]);
        let mut first = [0; 6];
        stuck.stdout.as_mut().expect("it is piped").read_exact(&mut first).expect("it writes");
        assert_eq!(&first, b"ready\n");
        stuck.stdin.as_mut().expect("it is piped").write_all(b"go\n").expect("it reads");
        for _ in 0..5 {
            attacker.assert_alive();
        }
        stuck.kill().expect("it runs");
        stuck.wait().expect("it was started");
        // It belonged to its client, and goes with it, with all that it started.
        let gone = (0..500).any(|_| others(&attacker) == 0);
        assert!(gone, "{}: a command outlives its client", attacker.name());
    }
}

#[test]
fn input_that_nobody_reads_is_held_back() {
    for attacker in Attacker::each_mode(&[]) {
        let args = ["exec", &attacker.id, "-i", "--json", "--timeout", "2s", "--", "sleep", "600"];
        let mut child = small(&attacker, &args);
        let mut stdin = child.stdin.take().expect("it is piped");
        let piece = vec![b'x'; 1 << 16];
        // Writes until nobody takes any more, which is when the command is over.
        let taken = (0..16_384).take_while(|_| stdin.write_all(&piece).is_ok()).count() * piece.len();
        assert!(taken < 8 << 20, "{}: {taken} bytes were taken for nobody", attacker.name());
        let ran = json(child);
        assert_eq!(ran["exit"]["kind"], "timed_out", "{}: {ran}", attacker.name());
    }
}

#[test]
fn a_command_that_will_not_end_is_ended() {
    for attacker in Attacker::each_mode(&[]) {
        for line in [
            "trap '' TERM HUP INT QUIT; while :; do sleep 1; done",
            "trap '' TERM; (trap '' TERM; setsid sleep 600) & sleep 600",
            "kill -STOP $$; sleep 600",
        ] {
            let ran = attacker.exec_json(&["--timeout", "500ms", "--grace", "100ms", "--shell"], &[line]);
            assert_eq!(ran["exit"]["kind"], "timed_out", "{}: {line}: {ran}", attacker.name());
            assert_eq!(others(&attacker), 0, "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn a_daemon_dies_with_its_commands_deadline_and_no_other_command_does() {
    for attacker in Attacker::each_mode(&[]) {
        let other = attacker.exec(&["--background"], &["sleep", "600"]).text();
        let line = format!(
            "{PROBE} act daemonize ghost; until grep -qx ghost /proc/[0-9]*/comm; do :; done; \
                            (setsid sh -c 'sleep 600 & sleep 600 &' &); sleep 600"
        );
        let ran = attacker.exec_json(&["--timeout", "1s", "--shell"], &[&line]);
        assert_eq!(ran["exit"]["kind"], "timed_out", "{}: {ran}", attacker.name());
        let comms = attacker.sh("cat /proc/[0-9]*/comm").text();
        assert!(!comms.contains("ghost"), "{}: {comms}", attacker.name());
        // The guest, the other command, and the shell that looks with its one child.
        assert_eq!(comms.lines().filter(|comm| *comm == "sleep").count(), 1, "{}: {comms}", attacker.name());
        let ps = attacker.glass(&["ps", &attacker.id, "--json"]).text();
        let ps: Value = serde_json::from_str(&ps).expect("ps is JSON");
        let running = |one: &Value| {
            one["exec"].as_u64() == other.trim().parse().ok() && one.to_string().contains("running")
        };
        assert!(ps.as_array().is_some_and(|all| all.iter().any(running)), "{}: {ps}", attacker.name());
    }
}

#[test]
fn a_pipe_that_a_child_keeps_open_holds_up_nobody() {
    for attacker in Attacker::each_mode(&[]) {
        // It would be held up for the ten minutes that the child sleeps; the deadline is there to tell.
        for line in ["sleep 600 & echo hi", "(sleep 600 &) ; echo hi", "setsid sleep 600 & echo hi"] {
            let ran = attacker.exec_json(&["--timeout", "60s", "--shell"], &[line]);
            assert_eq!(
                (&ran["exit"]["code"], &ran["stdout"]),
                (&0.into(), &"hi\n".into()),
                "{}: {line}: {ran}",
                attacker.name()
            );
        }
        attacker.assert_alive();
    }
}

#[test]
fn orphans_do_not_pile_up() {
    for attacker in Attacker::each_mode(&["--pids", "100"]) {
        // More of them than there may be at once; each is nobody's child but the first process's.
        let line = "for i in $(seq 400); do (true & true &); done; echo done";
        let ran = attacker.exec(&["--timeout", "60s", "--shell"], &[line]);
        assert_eq!((ran.code, ran.out.as_str()), (0, "done\n"), "{}: {ran:?}", attacker.name());
        let gone = (0..500).any(|_| others(&attacker) == 0);
        assert!(gone, "{}: some stayed", attacker.name());
    }
}
