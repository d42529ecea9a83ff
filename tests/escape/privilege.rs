//! Rights: none can be had, not by set-uid programs, not by file capabilities, not from the guest's own program.
//! (6.1: 10 to 14, 31, 61.)

use glasshouse_tests::{Mode, ORDINARY, is_root};

use crate::CONTAINED;
use crate::attacker::{Attacker, PROBE};

fn number(user: &str) -> &str {
    if user == "root" { "0" } else { "1000" }
}

/// What `act whoami` says of somebody without any right: users, groups, permitted and effective capabilities.
fn nobody_special(user: &str) -> String {
    let n = number(user);
    format!("{n} {n} {n} {n} 0000000000000000 0000000000000000\n")
}

#[test]
fn commands_have_no_capability_and_the_filter_of_their_box() {
    for attacker in Attacker::everywhere() {
        let status = attacker.exec(&[], &["cat", "/proc/self/status"]).text();
        let field = |name: &str| {
            status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim().to_owned()
        };
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{}: {set}", attacker.name());
        }
        assert_eq!(
            (field("NoNewPrivs:"), field("Seccomp:")),
            ("1".into(), "2".into()),
            "{}",
            attacker.name()
        );
        // In a container the engine's is the second.
        let filters = if CONTAINED { "2" } else { "1" };
        assert_eq!(field("Seccomp_filters:"), filters, "{}", attacker.name());
        assert_eq!(field("Groups:"), "", "{}", attacker.name());
    }
}

#[test]
fn users_of_a_box_are_nobody_outside() {
    for attacker in Attacker::in_native_boxes() {
        for map in ["uid_map", "gid_map"] {
            let text = attacker.exec(&[], &["cat", &format!("/proc/self/{map}")]).text();
            let fields: Vec<u32> =
                text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
            match (attacker.house.mode, &fields[..]) {
                // A range of the box's own, far from the host's users.
                (Mode::Root, [0, first, 65536]) => assert!(*first >= 1_000_000, "{text}"),
                // The one who made the box, and nobody else.
                (Mode::Rootless, [inside, outside, 1]) => {
                    assert_eq!(inside.to_string(), number(attacker.user));
                    assert!(!is_root() || *outside == ORDINARY, "{text}");
                }
                _ => panic!("{}: {map}: {text}", attacker.name()),
            }
        }
    }
}

#[test]
fn a_set_uid_program_gives_no_rights() {
    for attacker in Attacker::everywhere() {
        let make = "cp /tmp/probe /tmp/s && chmod 6755 /tmp/s && stat -c %a /tmp/s";
        // In root mode made by the other user as well: his set-uid bit is what would be worth having.
        let makers =
            if attacker.house.mode == Mode::Root { vec!["root", "user"] } else { vec![attacker.user] };
        for maker in makers {
            attacker.exec(&["--user", maker, "--shell"], &[make]).text();
            let said = attacker.exec(&[], &["/tmp/s", "act", "whoami"]).text();
            assert_eq!(said, nobody_special(attacker.user), "{} by {maker}'s program", attacker.name());
            attacker.exec(&["--user", maker, "--shell"], &["rm /tmp/s"]).text();
        }
        // Set-uid programs of the host, as far as it has some. Executed with more rights than their caller's, the
        // loader would not listen to the variable.
        let line = "for p in $(find /usr/bin /usr/sbin -perm /6000 -type f 2>/dev/null); do \
                    echo $p $(timeout -s KILL 1 env LD_SHOW_AUXV=1 $p --help </dev/null 2>&1 | grep -a AT_SECURE | tr -d ' '); done";
        let text = attacker.sh(line).text();
        if text.is_empty() {
            eprintln!("cannot be shown here: set-uid programs of the host (it has none)");
        }
        for line in text.lines() {
            assert!(line.ends_with(" AT_SECURE:0"), "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn a_program_of_ones_own_choosing_cannot_run_from_shared_memory() {
    for attacker in Attacker::everywhere() {
        let ran =
            attacker.sh("cp /tmp/probe /dev/shm/x && chmod 755 /dev/shm/x && exec /dev/shm/x act whoami");
        assert_eq!(ran.code, 126, "{}: {ran:?}", attacker.name());
        assert!(ran.err.contains("Permission denied"), "{}: {ran:?}", attacker.name());
        // By the loader, too: it maps the file, and a mapping is refused as well.
        let ran = attacker.sh("cp /usr/bin/true /dev/shm/t; l=$(ls /lib64/ld-linux* /lib/ld-linux* 2>/dev/null | head -1); $l /dev/shm/t");
        assert_ne!(ran.code, 0, "{}: {ran:?}", attacker.name());
    }
}

#[test]
fn the_guests_program_gives_nothing_away_when_a_command_runs_it() {
    for attacker in Attacker::everywhere() {
        // At the moment of exec, /proc/self/exe is the guest's own program: CVE-2019-5736 began like this.
        for path in ["/proc/self/exe", "/proc/1/exe"] {
            let ran = attacker.exec(&["--timeout", "5s"], &[path, "jail"]);
            assert_ne!(ran.code, 0, "{}: {path}: {ran:?}", attacker.name());
        }
        let script = "printf '#!/proc/self/exe\\n' > /tmp/script; chmod 755 /tmp/script";
        attacker.sh(script).text();
        let ran = attacker.exec(&["--timeout", "5s"], &["/tmp/script"]);
        assert_ne!(ran.code, 0, "{}: {ran:?}", attacker.name());
        attacker.assert_alive();
    }
}

#[test]
fn the_guests_program_cannot_be_written_while_a_command_runs_it() {
    for attacker in Attacker::everywhere() {
        let program = std::fs::read(attacker.first_process().join("exe"));
        // A process of the attacker's own that runs the guest's program and waits for a plan on its stdin.
        let mut child = attacker.glass_piped(&["exec", &attacker.id, "-i", "--", "/proc/self/exe", "jail"]);
        let line = format!(
            "for try in $(seq 500); do for p in /proc/[0-9]*; do n=${{p#/proc/}}; \
             [ $n != 1 ] && grep -q glass-guest $p/cmdline 2>/dev/null && exec {PROBE} act poison $n; done; done; echo none"
        );
        let ran = attacker.sh(&line);
        drop(child.stdin.take());
        child.wait().expect("it was started");
        let said = ran.out.trim();
        assert!(
            ["open: ETXTBSY", "open: EACCES", "open: EPERM", "write: EPERM", "open: ENOENT", "none"]
                .contains(&said),
            "{}: {ran:?}",
            attacker.name()
        );
        eprintln!("{}: the guest's program as a command: {said}", attacker.name());
        match (program, std::fs::read(attacker.first_process().join("exe"))) {
            (Ok(before), Ok(after)) => assert!(before == after, "{}: the guest is another", attacker.name()),
            _ => eprintln!(
                "cannot be shown here: {}: only root can look at a guest from outside",
                attacker.name()
            ),
        }
    }
}

#[test]
fn one_user_of_a_box_cannot_touch_the_others_processes() {
    // Without root outside there is one user only.
    let Some(attacker) =
        Mode::all().contains(&Mode::Root).then(|| Attacker::new(Mode::Root, "user", &[])).flatten()
    else {
        return;
    };
    let started = attacker.exec(&["--user", "root", "--background"], &["sleep", "600"]).text();
    let pid = attacker.sh("pgrep -x sleep || grep -lx sleep /proc/[0-9]*/comm | cut -d/ -f3").text();
    let pid = pid.trim();
    assert!(!pid.is_empty(), "exec {started} is not to be seen");
    for line in [
        format!("kill -9 {pid}"),
        format!("cat /proc/{pid}/environ"),
        format!("ls /proc/{pid}/fd/"),
        format!("ls /proc/{pid}/root/"),
        format!("echo x > /proc/{pid}/mem"),
        "ls /root".into(),
        "echo x >> /etc/passwd".into(),
    ] {
        let ran = attacker.sh(&line);
        assert_ne!(ran.code, 0, "{line}: {ran:?}");
    }
    attacker.sh(&format!("kill -0 {pid} 2>&1 | grep -q permitted")).text();
}

#[test]
fn the_number_that_means_no_change_is_nobody() {
    for attacker in Attacker::everywhere() {
        // To the kernel, -1 as a user or group is "as before"; before, it was the guest.
        let ran = attacker.sh("echo evil:x:4294967295:4294967295::/:/bin/sh >> /etc/passwd");
        let names: &[&str] = if ran.code == 0 { &["evil"] } else { &[] };
        let users = ["4294967295", "1000:4294967295", "0:4294967295", "4294967295:0", "-1", "4294967296"];
        for user in users.iter().chain(names) {
            let option = format!("--user={user}");
            let ran = attacker.exec(&[&option], &["id"]);
            assert_ne!(ran.code, 0, "{}: {user}: {ran:?}", attacker.name());
            assert_eq!(ran.out, "", "{}: {user}", attacker.name());
        }
    }
}

#[test]
fn a_hostile_list_of_users_holds_up_nobody() {
    for attacker in Attacker::everywhere() {
        for file in ["/etc/passwd", "/etc/group"] {
            for make in [
                format!("{PROBE} act node fifo {file}"),
                format!("{PROBE} act node socket {file}"),
                format!("ln -s /dev/zero {file}"),
                format!("ln -s /proc/self/fd/5 {file}"),
                format!("ln -s {file} {file}"),
                format!("truncate -s 1T {file}"),
                format!("mkdir {file}"),
                format!("yes root:x:0:0:: | head -c 20000000 > {file}"),
            ] {
                let own = number(attacker.user);
                let line = format!("rm -rf {file} && {make}");
                let ran = attacker.exec(&["--user", own, "--shell"], &[&line]);
                if ran.code != 0 {
                    // Not his to change.
                    assert_eq!((attacker.house.mode, attacker.user), (Mode::Root, "user"), "{make}: {ran:?}");
                    continue;
                }
                let ran = attacker.exec(&["--user", own], &["true"]);
                assert_eq!(ran.code, 0, "{}: {make}: {ran:?}", attacker.name());
                // It is found, or it is not; it is not waited for.
                let ran = attacker.exec(&["--user", "nobody:nogroup"], &["true"]);
                assert!(ran.code == 0 || ran.err.contains("has no"), "{}: {make}: {ran:?}", attacker.name());
            }
        }
    }
}

#[test]
fn a_working_directory_is_not_one_of_the_guests_descriptors() {
    for attacker in Attacker::everywhere() {
        attacker.sh("for i in $(seq 3 30); do ln -s /proc/self/fd/$i fd$i; done").text();
        for n in 3..=30 {
            // CVE-2024-21626: the directory is entered while something of the runtime's is still open.
            for cwd in [format!("/tmp/fd{n}"), format!("/proc/self/fd/{n}")] {
                let ran = attacker.exec(&["--cwd", &cwd], &["/bin/pwd"]);
                assert_ne!(ran.code, 0, "{}: {cwd}: {ran:?}", attacker.name());
            }
        }
    }
}
