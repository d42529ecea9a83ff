//! A deterministic box has the walls of any other: what is pinned opens none, and cannot be changed from inside.
//! (`kernel` makes its attacks in such boxes, too.)

use std::collections::BTreeSet;

use crate::attacker::Attacker;

const DETERMINISTIC: &[&str] = &["--deterministic"];
const LIBRARY: &str = "/dev/.glass.so";

/// A line of /proc/PID/status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}

#[test]
fn commands_have_no_capability_and_the_first_process_has_one_more() {
    const CHECKPOINT_RESTORE: u64 = 1 << 40;
    for attacker in Attacker::each_mode(DETERMINISTIC) {
        let status = attacker.exec(&[], &["cat", "/proc/self/status"]).text();
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(&status, set), "0000000000000000", "{}: {set}", attacker.name());
        }
        for (name, value) in [("NoNewPrivs:", "1"), ("Seccomp:", "2"), ("Seccomp_filters:", "2")] {
            assert_eq!(field(&status, name), value, "{}: {name}", attacker.name());
        }
        let rights = |attacker: &Attacker| {
            let status = std::fs::read_to_string(attacker.first_process().join("status"));
            let status = status.expect("the box lives");
            u64::from_str_radix(field(&status, "CapEff:"), 16).expect("a set of bits")
        };
        let plain = attacker.neighbour();
        assert_eq!(rights(&attacker), rights(&plain) | CHECKPOINT_RESTORE, "{}", attacker.name());
    }
}

#[test]
fn what_is_pinned_cannot_be_written() {
    let allowed = |path: &str| {
        let nodes = ["null", "zero", "full", "tty", "pts/ptmx", "ptmx"];
        let own = path.strip_prefix("/proc/").and_then(|rest| rest.split('/').next());
        path.starts_with("/dev/shm/")
            || path.strip_prefix("/dev/").is_some_and(|name| nodes.contains(&name))
            || own.is_some_and(|name| name.chars().all(|c| c.is_ascii_digit()))
            || ["self", "thread-self"].map(Some).contains(&own)
    };
    for attacker in Attacker::each_mode(DETERMINISTIC) {
        let text = attacker.probe(&["writes", "/proc", "/sys", "/dev"]).text();
        let written: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("made ").or_else(|| line.strip_prefix("opened ")))
            .filter(|path| !allowed(path))
            .collect();
        assert!(text.contains("tried ") && written.is_empty(), "{}: {written:?}", attacker.name());
        for line in [
            "echo 5 > /proc/sys/kernel/ns_last_pid",
            "echo x > /dev/.glass.so",
            "echo x > /dev/urandom",
            "rm -f /dev/urandom",
            "mv /dev/.glass.so /dev/shm/",
            "umount /dev/urandom",
        ] {
            assert_ne!(attacker.sh(line).code, 0, "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn its_mounts_show_nothing_of_the_host_and_only_the_library_is_executed() {
    const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
    for attacker in Attacker::each_mode(DETERMINISTIC) {
        let text = attacker.exec(&[], &["cat", "/proc/self/mountinfo"]).text();
        let mut seen = BTreeSet::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (root, place, options) = (fields[3], fields[4], fields[5]);
            let kind =
                line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
            let node = place.strip_prefix("/dev") == Some(root);
            assert!(
                ["proc", "tmpfs", "devpts", "overlay"].contains(&kind) || node || PROGRAMS.contains(&place),
                "{}: {line}",
                attacker.name()
            );
            let options: BTreeSet<&str> = options.split(',').collect();
            assert!(options.contains("nosuid"), "{}: {line}", attacker.name());
            let executed = place == "/" || place == LIBRARY || PROGRAMS.contains(&place);
            assert!(executed || options.contains("noexec"), "{}: {line}", attacker.name());
            let writable = ["/", "/proc", "/dev/shm", "/dev/pts"].contains(&place) || node;
            assert!(writable || options.contains("ro"), "{}: {line}", attacker.name());
            seen.insert(place);
        }
        assert!(["/dev/urandom", "/proc/uptime", LIBRARY].iter().all(|place| seen.contains(place)), "{text}");
    }
}
