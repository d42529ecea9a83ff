//! Taking all room there is: disks, files, descriptors, arguments. (6.2: 78; 6.3: 88 to 92, 111.)

use glasshouse_tests::{Mode, is_root};

use crate::attacker::{Attacker, PROBE};
use crate::exhaustion::{got, limited_everywhere};

#[test]
fn shared_memory_is_full_at_its_size() {
    for attacker in Attacker::everywhere() {
        let text = attacker.probe(&["exhaust", "file", "/dev/shm/x"]).text();
        assert_eq!(text, "67108864 ENOSPC\n", "{}", attacker.name());
        // /dev itself takes nothing at all.
        let ran = attacker.sh("echo x > /dev/x");
        assert_ne!(ran.code, 0, "{ran:?}");
        attacker.assert_alive();
    }
}

#[test]
fn a_small_box_lives_on_when_its_shared_memory_is_full() {
    for attacker in limited_everywhere("32m") {
        let text = attacker.probe(&["exhaust", "file", "/dev/shm/x"]).text();
        assert_eq!(text, "16777216 ENOSPC\n", "{}", attacker.name());
        attacker.sh("true").text();
        attacker.sh("rm /dev/shm/x").text();
        attacker.assert_alive();
    }
}

#[test]
fn the_disk_is_full_at_its_limit_whoever_writes() {
    const LIMIT: u64 = 16 << 20;
    for attacker in Attacker::each_mode(&["--disk", "16m"]) {
        for place in ["/tmp/x", "/workspace/x", "/var/tmp/x", "/home/user/x"] {
            let text = attacker.probe(&["exhaust", "file", place]).text();
            let (bytes, errno) = got(&text);
            assert!(bytes <= LIMIT && bytes > LIMIT / 2, "{}: {place}: {bytes}", attacker.name());
            assert_eq!(errno, "ENOSPC", "{}: {place}", attacker.name());
            // The caller's own files count, too: by a single file, and by a tree.
            let big = attacker.house.path().join(format!("big-{}", attacker.id));
            std::fs::create_dir(&big).expect("the scratch directory can be written");
            std::fs::write(big.join("file"), vec![b'x'; 1 << 20])
                .expect("the scratch directory can be written");
            for from in [big.join("file"), big] {
                let from = from.to_string_lossy().into_owned();
                let ran = attacker.glass(&["cp", &from, &format!("{}:/tmp/y", attacker.id)]);
                assert!(ran.code != 0 && ran.err.contains("No space left"), "{}: {ran:?}", attacker.name());
            }
            std::fs::remove_dir_all(attacker.house.path().join(format!("big-{}", attacker.id)))
                .expect("it is ours");
            attacker.sh(&format!("rm -rf {place} /tmp/y")).text();
        }
        let ran = attacker.exec_json(&["--shell"], &["cat /dev/zero > /tmp/x"]);
        assert_eq!(ran["exit"]["kind"], "disk_full", "{}: {ran}", attacker.name());
        attacker.sh("rm /tmp/x; echo room > /tmp/z").text();
    }
}

#[test]
fn files_are_limited_in_number_where_the_disk_is() {
    for attacker in Attacker::each_mode(&["--disk", "4m"]) {
        attacker.sh("mkdir /tmp/many").text();
        let text = attacker.probe(&["exhaust", "inodes", "/tmp/many"]).text();
        let (count, errno) = got(&text);
        assert!((500..=1024).contains(&count), "{}: {count} files", attacker.name());
        assert_eq!(errno, "ENOSPC", "{}", attacker.name());
        attacker.sh("rm -rf /tmp/many && echo room > /tmp/z").text();
    }
}

#[test]
fn a_read_only_box_has_a_little_memory_to_write_to_and_no_disk() {
    for attacker in Attacker::each_mode(&["--read-only"]) {
        let text = attacker.probe(&["exhaust", "file", "/tmp/x"]).text();
        let (bytes, errno) = got(&text);
        assert!(bytes <= 64 << 20 && errno == "ENOSPC", "{}: {text}", attacker.name());
        for place in ["/workspace/x", "/home/user/x", "/var/tmp/x", "/x", "/etc/x"] {
            let ran = attacker.sh(&format!("echo x > {place}"));
            assert!(ran.err.contains("Read-only file system"), "{}: {place}: {ran:?}", attacker.name());
        }
    }
}

#[test]
fn the_hosts_disk_keeps_its_reserve() {
    // A disk of its own that is nearly as small as the reserve of 1 GiB: memory, of which little is used.
    if !is_root() {
        eprintln!("cannot be shown here: only root can mount a small disk for the test");
        return;
    }
    let Some(attacker) = Attacker::new(Mode::Root, "user", &[]) else { return };
    let dir = glasshouse_tests::scratch();
    let disk = SmallDisk::mount(dir.path().join("disk"), "1100m");
    let home = disk.0.join("home").to_string_lossy().into_owned();
    let id = attacker.glass(&["--home", &home, "create"]).text();
    let id = id.trim();
    let probe = attacker.house.path().join("probe").to_string_lossy().into_owned();
    attacker.glass(&["--home", &home, "cp", &probe, &format!("{id}:/tmp/probe")]).text();
    let args =
        ["--home", &home, "exec", id, "--json", "--timeout", "60s", "--", PROBE, "exhaust", "file", "/tmp/x"];
    let ran = attacker.glass(&args);
    let ran: serde_json::Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!(ran["exit"]["kind"], "disk_full", "{ran}");
    let stat = glasshouse_linux::rustix::fs::statvfs(&disk.0).expect("it is mounted");
    // It is looked at every now and then, so a little of the reserve may be gone.
    assert!(stat.f_bavail * stat.f_frsize > 512 << 20, "{} bytes are left", stat.f_bavail * stat.f_frsize);
    attacker.glass(&["--home", &home, "kill", "--all"]).text();
}

/// A file system in memory that goes with the test.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: std::path::PathBuf, size: &str) -> SmallDisk {
        std::fs::create_dir(&path).expect("the scratch directory can be written");
        let mut mount = std::process::Command::new("mount");
        let mounted =
            mount.args(["-t", "tmpfs", "-o", &format!("size={size},mode=755"), "none"]).arg(&path).status();
        assert!(mounted.is_ok_and(|status| status.success()), "root cannot mount {}", path.display());
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn descriptors_end_at_the_limit() {
    for attacker in Attacker::everywhere() {
        for what in ["descriptors", "sockets"] {
            let text = attacker.probe(&["exhaust", what]).text();
            let (count, errno) = got(&text);
            assert!(count <= 4096, "{}: {count} {what}", attacker.name());
            assert_eq!(errno, "EMFILE", "{}: {what}", attacker.name());
        }
        // Many that do so at once do not use up the host's.
        let line = format!("for i in $(seq 40); do {PROBE} exhaust descriptors & done; wait");
        assert_eq!(attacker.sh(&line).text().lines().filter(|line| line.ends_with("EMFILE")).count(), 40);
        std::fs::read("/proc/self/stat").expect("the host can open files");
    }
}

#[test]
fn arguments_that_are_too_many_are_refused_clearly() {
    for attacker in Attacker::each_mode(&[]) {
        let refused = |options: &[&str], argv: &[&str]| {
            let ran = attacker.exec(options, argv);
            assert!([125, 126].contains(&ran.code), "{}: {}", attacker.name(), ran.err);
            assert_eq!(ran.err.lines().count(), 1, "{}: {}", attacker.name(), ran.err);
            assert!(ran.err.contains("more than") || ran.err.contains("too large"), "{}", ran.err);
        };
        let large = "x".repeat(100 * 1024);
        for times in [2, 12] {
            refused(&[], &[&["true"], &vec![large.as_str(); times][..]].concat());
            let variables: Vec<String> = (0..times).map(|n| format!("V{n}={large}")).collect();
            refused(
                &variables.iter().flat_map(|variable| ["--env", variable]).collect::<Vec<_>>(),
                &["true"],
            );
        }
        // As large as one may be.
        let ran = attacker.exec(&[], &["true", &"x".repeat(127 * 1024)]);
        assert_eq!(ran.code, 0, "{}: {}", attacker.name(), ran.err);
        attacker.assert_alive();
    }
}

#[test]
fn system_v_objects_are_the_boxs_own() {
    for attacker in Attacker::each_mode(&[]) {
        let neighbour = attacker.neighbour();
        for what in ["semaphores", "queues"] {
            let text = attacker.probe(&["exhaust", what]).text();
            let (count, errno) = got(&text);
            assert!(count > 100 && errno == "ENOSPC", "{}: {what}: {text}", attacker.name());
            let text = attacker.probe(&["exhaust", what]).text();
            assert_eq!(text, "0 ENOSPC\n", "{}: they outlive their maker, inside", attacker.name());
            let text = neighbour.probe(&["exhaust", what]).text();
            assert!(got(&text).0 > 100, "{}: {what} of a neighbour: {text}", attacker.name());
        }
    }
}
