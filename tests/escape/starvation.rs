//! Budgets of the kernel that all share: what one box takes, nobody else must miss. (6.3: 103, 104, 107, 109.)

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use glasshouse_tests::{Mode, ORDINARY, is_root};

use crate::attacker::{Attacker, PROBE};
use crate::exhaustion::got;

/// A command that has taken all there is and holds it.
struct Holder {
    child: Child,
    text: String,
}

impl Holder {
    fn start(attacker: &Attacker, what: &str) -> Holder {
        let mut child =
            attacker.glass_piped(&["exec", &attacker.id, "-i", "--", PROBE, "exhaust", what, "hold"]);
        let mut text = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        BufReader::new(stdout).read_line(&mut text).expect("it can be read");
        Holder { child, text }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// What the user of the host gets whose boxes these are.
fn on_host(attacker: &Attacker, what: &str) -> String {
    let mut command = Command::new(attacker.house.path().join("probe"));
    if attacker.house.mode == Mode::Rootless && is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.args(["exhaust", what]).stdin(std::process::Stdio::null()).output();
    String::from_utf8_lossy(&output.expect("the probe can be run").stdout).into_owned()
}

/// Two boxes take all they can get; a third, and their owner outside, must still get `enough`.
fn check(what: &str, most: u64, enough: u64) {
    for attacker in Attacker::each_mode(&[]) {
        let accomplice = attacker.neighbour();
        let holders = [&attacker, &accomplice].map(|one| Holder::start(one, what));
        for holder in &holders {
            let (count, errno) = got(&holder.text);
            assert!(count <= most, "{}: one box took {count} {what}, and {errno}", attacker.name());
        }
        let neighbour = attacker.neighbour();
        let text = neighbour.probe(&["exhaust", what]).text();
        assert!(got(&text).0 >= enough, "{}: a neighbour's {what}: {text}", attacker.name());
        let text = on_host(&attacker, what);
        assert!(got(&text).0 >= enough, "{}: the host's {what}: {text}", attacker.name());
    }
}

#[test]
fn inotify_is_left_for_others() {
    check("inotify", 64, 1);
}

#[test]
fn terminals_are_left_for_others() {
    check("terminals", 64, 8);
}

#[test]
fn queued_signals_are_left_for_others() {
    check("signals", 32_768, 64);
}

#[test]
fn timers_are_left_for_others() {
    check("timers", 32_768, 64);
}

/// How often a flush is looked for, if the first look seems to show one.
const FLUSH_TRIES: usize = 5;

/// Bytes of this host that wait to be written to a disk.
fn dirty_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("everybody may read it");
    let line = text.lines().find_map(|line| line.strip_prefix("Dirty:")).expect("every kernel has it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn sync_in_a_box_does_not_flush_the_hosts_disk() {
    for attacker in Attacker::everywhere() {
        let others = attacker.house.path().join(format!("dirty-{}", attacker.id));
        for line in ["sync", "sync -f /tmp", "sync -f /usr", "sync -f /proc", "sync /usr/bin/true"] {
            // The kernel writes by itself, too, and more so for whoever else works here: what stays dirty once was not
            // flushed by the box, while a flush by the box would show each time.
            let mut tries = Vec::new();
            let stays = |(before, after): &(u64, u64)| *after > before / 2;
            while tries.len() < FLUSH_TRIES && !tries.iter().any(stays) {
                // Written anew each time: what was there before would be flushed at once.
                std::fs::write(&others, vec![1; 64 << 20]).expect("the scratch directory can be written");
                let before = dirty_bytes();
                attacker.sh(line);
                let after = dirty_bytes();
                std::fs::remove_file(&others).expect("it is ours");
                if before >= 48 << 20 {
                    tries.push((before, after));
                } else {
                    eprintln!("cannot be shown here: {line} (this host had written all before it)");
                    break;
                }
            }
            let stayed = tries.is_empty() || tries.iter().any(stays);
            assert!(stayed, "{}: {line}: dirty bytes before and after: {tries:?}", attacker.name());
        }
    }
}

#[test]
fn a_storm_of_flushes_ends_at_its_deadline() {
    for attacker in Attacker::each_mode(&[]) {
        let neighbour = attacker.neighbour();
        let line = "while :; do echo x > /tmp/x; sync; sync /tmp/x; sync -f /tmp; done";
        let storm =
            attacker.glass_piped(&["exec", &attacker.id, "--json", "--timeout", "2s", "--shell", "--", line]);
        for _ in 0..5 {
            neighbour.assert_alive();
        }
        let output = storm.wait_with_output().expect("it was started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("timed_out"), "{}: {text}", attacker.name());
        attacker.assert_alive();
    }
}
