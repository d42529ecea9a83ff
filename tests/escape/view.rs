//! What of the host can be seen: files, names, processes, devices, descriptors. (6.1: 19 to 32, 35, 60.)

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use glasshouse_tests::Mode;

use crate::CONTAINED;
use crate::attacker::{Attacker, answers};

/// What a box may hold at its top, and where nothing of the host is below.
const TOP: [&str; 18] = [
    "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "mnt", "opt", "proc", "root", "run",
    "sbin", "sys", "tmp", "usr", "var",
];

fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn cannot_see_files_of_the_host() {
    for attacker in Attacker::everywhere() {
        let marker = attacker.house.path().join("marker");
        std::fs::write(&marker, "the host's\n").expect("the scratch directory can be written");
        let marker = marker.to_string_lossy();
        let home = attacker.house.home();
        let home = home.to_string_lossy();
        let secrets = [
            "/etc/shadow",
            "/etc/gshadow",
            "/etc/machine-id",
            "/etc/ssh",
            "/etc/sudoers",
            "/var/lib/dbus/machine-id",
            "/var/run/docker.sock",
            "/run/docker.sock",
            "/run/systemd",
            "/boot",
            "/var/lib/dpkg",
            "/var/lib/docker",
            "/var/lib/glasshouse",
            &marker,
            &home,
        ];
        let ways = [
            "",
            "/../../../..",
            "/proc/self/root",
            "/proc/self/root/../..",
            "/proc/thread-self/cwd/../..",
            "/proc/1/root",
            "/proc/1/cwd/../../..",
        ];
        let paths: Vec<String> =
            ways.iter().flat_map(|way| secrets.map(|path| format!("{way}{path}"))).collect();
        let argv: Vec<&str> =
            ["ls", "-d", "--"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let ran = attacker.exec(&[], &argv);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", attacker.name());
        assert_eq!(ran.err.lines().count(), paths.len(), "{}: {}", attacker.name(), ran.err);
    }
}

#[test]
fn a_box_holds_the_hosts_programs_and_nothing_else_of_it() {
    for attacker in Attacker::everywhere() {
        let list = |path: &str| attacker.exec(&[], &["ls", "-A", path]);
        let top = list("/").text();
        let strange: Vec<&str> =
            lines(&top).into_iter().filter(|name| !TOP.contains(name) && *name != "workspace").collect();
        // An engine leaves this one, to be known by.
        let strange: Vec<&str> =
            strange.into_iter().filter(|name| !CONTAINED || *name != ".dockerenv").collect();
        assert!(strange.is_empty(), "{}: {strange:?}", attacker.name());
        assert_eq!(list("/home").text(), "user\n");
        for empty in
            ["/home/user", "/mnt", "/opt", "/run", "/workspace", "/var/log", "/var/cache", "/var/tmp"]
        {
            assert_eq!(list(empty).text(), "", "{}: {empty}", attacker.name());
        }
        assert_eq!(list("/tmp").text(), "probe\n");
        let root = list("/root");
        assert_eq!(root.out, "", "{}: {root:?}", attacker.name());
        let passwd = attacker.exec(&[], &["cat", "/etc/passwd"]).text();
        assert_eq!(passwd.lines().count(), 3, "{passwd}");
    }
}

#[test]
fn nothing_in_proc_names_a_place_of_the_host() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    for attacker in Attacker::in_native_boxes() {
        let house = attacker.house.path().to_string_lossy().into_owned();
        let text = attacker
            .sh("cat /proc/[0-9]*/mountinfo /proc/[0-9]*/mounts /proc/[0-9]*/mountstats /proc/[0-9]*/cgroup \
                 /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/net/unix /proc/net/netlink /proc/locks /proc/swaps \
                 /proc/sys/kernel/hostname /etc/hostname /etc/hosts 2>/dev/null | tr '\\0' '\\n'; hostname; env; true")
            .text();
        let names = [house.as_str(), "/var/tmp", "glass-test", "glasshouse", &attacker.id, "GLASSHOUSE"];
        for name in names {
            assert!(!text.contains(name), "{}: {name} in {text}", attacker.name());
        }
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '-').collect();
        let host = host.trim();
        assert!(
            host == "box" || !words.contains(host),
            "{}: the host's name {host} is told",
            attacker.name()
        );
        assert!(text.contains("\nbox\n"), "{text}");
    }
}

#[test]
fn no_mount_shows_a_directory_of_the_host_but_its_programs() {
    const PROGRAMS: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
    for attacker in Attacker::in_native_boxes() {
        let text = attacker.exec(&[], &["cat", "/proc/self/mountinfo"]).text();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (root, place, options) = (fields[3], fields[4], fields[5]);
            let kind =
                line.split_once(" - ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
            let of_memory = ["proc", "tmpfs", "devpts", "overlay", "mqueue"].contains(&kind);
            let node = place.strip_prefix("/dev") == Some(root);
            assert!(
                of_memory || node || root == place && PROGRAMS.contains(&place),
                "{}: {line}",
                attacker.name()
            );
            let options: BTreeSet<&str> = options.split(',').collect();
            // Neither can a set-uid program of the host help, nor one that the box made.
            assert!(options.contains("nosuid"), "{}: {line}", attacker.name());
            assert!(options.contains("nodev") || node || kind == "devpts", "{}: {line}", attacker.name());
            assert!(
                place == "/" || options.contains("noexec") || PROGRAMS.contains(&place),
                "{}: {line}",
                attacker.name()
            );
            let writable = ["/", "/proc", "/dev/shm", "/dev/pts"].contains(&place) || node;
            assert!(writable || options.contains("ro"), "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn cannot_write_programs_settings_or_devices() {
    let allowed = |path: &str| {
        let nodes = ["null", "zero", "full", "random", "urandom", "tty", "pts/ptmx", "ptmx"];
        let own = path.strip_prefix("/proc/").and_then(|rest| rest.split('/').next());
        path.starts_with("/dev/shm/")
            || path.strip_prefix("/dev/").is_some_and(|name| nodes.contains(&name))
            // The attacker's own; what can be done with those of the first process, `kernel` tries for real.
            || own.is_some_and(|name| name.chars().all(|c| c.is_ascii_digit()))
            || ["self", "thread-self"].map(Some).contains(&own)
    };
    for attacker in Attacker::everywhere() {
        let text = attacker.probe(&["writes", "/usr", "/proc", "/sys", "/dev"]).text();
        let tried = text.lines().find_map(|line| line.strip_prefix("tried ")?.parse::<u64>().ok());
        assert!(tried.is_some_and(|tried| tried > 1000), "{}: {tried:?} places were tried", attacker.name());
        let written: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("made ").or_else(|| line.strip_prefix("opened ")))
            .filter(|path| !allowed(path))
            .collect();
        // An engine covers files with the device that takes everything and gives nothing.
        // And /dev itself is box root's there.
        let in_dev = |path: &str| attacker.user == "root" && path.starts_with("/dev/glass-attack");
        let covered = |path: &&str| CONTAINED && (in_dev(path) || is_null(&attacker, path));
        let written: Vec<&str> = written.into_iter().filter(|path| !covered(path)).collect();
        assert!(written.is_empty(), "{}: can be written: {written:?}", attacker.name());
    }
}

#[test]
fn cannot_read_the_kernels_secrets() {
    for attacker in Attacker::everywhere() {
        let paths = [
            "/proc/kcore",
            "/proc/keys",
            "/proc/key-users",
            "/proc/timer_list",
            "/proc/sched_debug",
            "/proc/kallsyms",
            "/proc/cmdline",
            "/proc/config.gz",
            "/proc/kmsg",
            "/proc/interrupts",
            "/proc/softirqs",
            "/proc/latency_stats",
            "/proc/kpagecount",
            "/proc/kpageflags",
            "/proc/kpagecgroup",
            "/proc/acpi",
            "/proc/scsi",
            "/proc/asound",
            "/dev/mem",
            "/dev/kmem",
            "/dev/kmsg",
            "/dev/port",
            "/dev/vda",
            "/dev/sda",
            "/dev/fuse",
            "/dev/kvm",
            "/dev/net/tun",
            "/dev/vsock",
            "/dev/vhost-net",
            "/dev/loop-control",
            "/dev/mapper/control",
            "/dev/input",
            "/dev/dri",
            "/dev/tty0",
            "/dev/console",
            "/dev/hwrng",
            "/sys/kernel",
            "/sys/class",
            "/sys/block",
            "/sys/firmware",
            "/sys/fs/cgroup",
            "/sys/fs/bpf",
            "/sys/kernel/debug",
            "/sys/module",
            "/sys/devices/virtual",
            "/sys/kernel/uevent_helper",
            "/proc/sysrq-trigger",
            "/proc/sys/fs/binfmt_misc/register",
            "/proc/mtrr",
        ];
        // Files with something in them, and devices. Of /sys/kernel the one file is there that allocators read.
        let line = format!(
            "find {} -type f ! -path /sys/kernel/mm/transparent_hugepage/enabled -exec sh -c \
             'for f; do [ $(head -c 64 \"$f\" | wc -c) = 0 ] || echo \"$f\"; done' sh {{}} + \
             -o -type c -print -o -type b -print 2>/dev/null",
            paths.join(" ")
        );
        let found = attacker.sh(&line).out;
        let found: Vec<&str> = found.lines().filter(|path| !CONTAINED || !is_null(&attacker, path)).collect();
        assert_eq!(found, Vec::<&str>::new(), "{}", attacker.name());
    }
}

/// Whether something in /proc is the device that takes everything and gives nothing.
fn is_null(attacker: &Attacker, path: &str) -> bool {
    path.starts_with("/proc/") && attacker.exec(&[], &["stat", "-c", "%t:%T", path]).out == "1:3\n"
}

#[test]
fn cannot_find_a_cgroup_or_its_release_agent() {
    for attacker in Attacker::everywhere() {
        let line = "find / -xdev \\( -name release_agent -o -name cgroup.procs -o -name memory.limit_in_bytes \
                    -o -name memory.max \\) 2>/dev/null; find /sys /dev /proc/fs -name 'cgroup*' 2>/dev/null";
        // The place where an engine would show them has nothing in it.
        let found = if CONTAINED { "/sys/fs/cgroup\n" } else { "" };
        assert_eq!(attacker.sh(line).out, found, "{}", attacker.name());
        for line in attacker.exec(&[], &["cat", "/proc/self/cgroup"]).text().lines() {
            let path = line.rsplit(':').next().unwrap_or_default();
            // Its own place in the box's own tree at most.
            assert!(path.len() < 16 && !path.contains(".."), "{}: {line}", attacker.name());
        }
    }
}

#[test]
fn devices_are_the_harmless_ones() {
    let harmless = [
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom",
        "zero",
    ];
    for attacker in Attacker::everywhere() {
        let text = attacker.exec(&[], &["ls", "-A", "/dev"]).text();
        let mut harmless = BTreeSet::from(harmless);
        if CONTAINED {
            // The guest's program, and a place for queues, of which none can be made.
            harmless.extend([".glasshouse", "mqueue"]);
        }
        assert_eq!(lines(&text), harmless, "{}", attacker.name());
        assert_eq!(attacker.exec(&[], &["ls", "-A", "/dev/shm"]).text(), "");
    }
}

#[test]
fn cannot_see_or_signal_processes_of_the_host() {
    for attacker in Attacker::everywhere() {
        let text = attacker.probe(&["facts"]).text();
        let seen: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("process ")).collect();
        assert_eq!(seen.len(), 2, "{}: {seen:?}", attacker.name());
        assert_eq!(seen[0], "1");
        let listed = attacker.sh("cd /proc; for p in [0-9]*; do cat $p/comm; done | wc -l").text();
        // The first process, the shell, and its two children of the pipe.
        assert!(listed.trim().parse::<u32>().is_ok_and(|n| n <= 4), "{}: {listed}", attacker.name());
    }
}

#[test]
fn no_variable_of_the_host_reaches_a_box() {
    const SECRET: &str = "glass-secret-4711";
    for attacker in Attacker::everywhere() {
        let with_secret = |args: &[&str]| {
            let mut command = attacker.house.glass(args);
            let output = command
                .env("HOST_TOKEN", SECRET)
                .env("HTTPS_PROXY", SECRET)
                .output()
                .expect("it can be started");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let id = with_secret(&["create", "--user", attacker.user]);
        let made = Attacker { house: attacker.house.clone(), user: attacker.user, id: id.trim().to_owned() };
        let line = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; true";
        for id in [&made.id, &attacker.id] {
            let text = with_secret(&["exec", id, "--shell", "--", line]);
            assert!(text.contains("PATH="), "{text}");
            assert!(!text.contains(SECRET) && !text.contains("HOST_TOKEN"), "{}: {text}", attacker.name());
        }
    }
}

/// The same command, started by a caller that leaks descriptors.
fn leaky(command: &Command) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", "exec 7</etc/passwd 8</etc 9>>/dev/null; exec \"$@\"", "sh"])
        .arg(command.get_program());
    shell.args(command.get_args());
    shell
}

#[test]
fn no_descriptor_of_the_host_is_open_in_a_box() {
    for attacker in Attacker::everywhere() {
        for options in [&[][..], &["-i"], &["-t"], &["-i", "-t"]] {
            let args = [&["exec", &attacker.id], options, &["--", "/tmp/probe", "facts"]].concat();
            let plain = attacker.house.glass(&args);
            let mut command = leaky(&plain);
            command.env_clear().envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
            if attacker.house.mode == Mode::Rootless && glasshouse_tests::is_root() {
                use std::os::unix::process::CommandExt;
                command.uid(glasshouse_tests::ORDINARY).gid(glasshouse_tests::ORDINARY);
            }
            let output = command.stdin(std::process::Stdio::null()).output().expect("it can be started");
            let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
            let open: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("fd ")).collect();
            assert_eq!(open.len(), 3, "{} {options:?}: {text}", attacker.name());
            for line in open {
                let target = line.split_once(' ').map_or("", |(_, target)| target);
                let harmless =
                    target == "/dev/null" || target.starts_with("pipe:[") || target.starts_with("/dev/pts/");
                assert!(harmless, "{} {options:?}: {line}", attacker.name());
            }
        }
    }
}

#[test]
fn the_first_process_keeps_no_descriptor_that_its_creator_leaked() {
    for attacker in Attacker::each_mode(&[]) {
        let plain = attacker.house.glass(&["create"]);
        let mut command = leaky(&plain);
        command.env_clear().envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        if attacker.house.mode == Mode::Rootless && glasshouse_tests::is_root() {
            use std::os::unix::process::CommandExt;
            command.uid(glasshouse_tests::ORDINARY).gid(glasshouse_tests::ORDINARY);
        }
        let output = command.output().expect("it can be started");
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let info = attacker.glass(&["info", &id, "--json"]).text();
        let info: serde_json::Value = serde_json::from_str(&info).expect("info is JSON");
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", info["pid"])) else {
            eprintln!(
                "cannot be shown here: {}: only root can look at a guest from outside",
                attacker.name()
            );
            continue;
        };
        for entry in entries.filter_map(Result::ok) {
            let target = std::fs::read_link(entry.path()).unwrap_or_default();
            assert!(!target.starts_with("/etc"), "{}: {}", attacker.name(), target.display());
        }
    }
}

#[test]
fn answers_are_read_as_they_are_written() {
    // The probe's lines carry every expectation here, so their reader is checked itself.
    let read = answers("a b: ok\nnoise\nc: cannot be felt: at all\n");
    assert_eq!(read.get("a b").map(String::as_str), Some("ok"));
    assert_eq!(read.get("c").map(String::as_str), Some("cannot be felt: at all"));
    assert_eq!(read.len(), 2);
}

#[test]
fn no_directory_that_the_guest_holds_leads_up_into_the_hosts_cgroups() {
    // A second wall: commands do not get at what the guest holds. But it is theirs should they ever take the guest over.
    let Some(attacker) = Attacker::new(Mode::Root, "user", &[]) else { return };
    attacker.sh("true").text();
    let fds = attacker.first_process().join("fd");
    let identity = |path: &std::path::Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    let entries = std::fs::read_dir(&fds).expect("root sees what the guest holds");
    let held: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let cgroups: Vec<_> = held.iter().filter(|fd| fd.join("cgroup.procs").exists()).collect();
    if attacker.info()["tracking"] == "cgroup v2" {
        assert!(!cgroups.is_empty(), "the guest has means to kill its commands");
    }
    let own: BTreeSet<_> = cgroups.iter().filter_map(|fd| identity(fd).ok()).collect();
    for fd in cgroups {
        let top = identity(&fd.join("../../../../../../../..")).expect("it leads somewhere");
        assert!(own.contains(&top), "{} leads out of the box's own cgroups", fd.display());
    }
}
