//! Attacks on the kernel by system calls: mounts, namespaces, calls that nobody needs, foreign ABIs, sockets, the
//! first process, more rights. (6.1: 1 to 9, 15, 17, 31, 36 to 57.)

use crate::CONTAINED;
use crate::attacker::{Attacker, PROBE, check};

#[test]
fn cannot_mount_unmount_or_change_root() {
    check("mounts", 80, |_| "EPERM");
}

#[test]
fn cannot_make_or_enter_a_namespace() {
    check("namespaces", 60, |name| match name {
        // The filter cannot look into its arguments; the C library takes this answer for an older kernel.
        name if name.starts_with("clone3") => "ENOSYS",
        // The guest does not let itself be looked at.
        name if name.starts_with("readlink") => "EACCES",
        _ => "EPERM",
    });
}

#[test]
fn cannot_make_calls_that_nobody_in_a_box_needs() {
    check("calls", 90, |name| match name {
        // Absent, so that programs take another way.
        "io_uring_setup" | "io_uring_enter" | "io_uring_register" | "io_setup" | "memfd_secret" => "ENOSYS",
        "number_1000" | "number_negative" | "number_highest" => "ENOSYS",
        // As on a file system, or a kernel, that does not know the flag.
        "rename_whiteout" | "prctl_unknown" | "prctl_new_privs_again" => "EINVAL",
        // The kernel keeps such marks apart from its own.
        "xattr_user_whiteout" => "cannot be felt: the file is still there|EPERM|EOPNOTSUPP",
        // It is not our child.
        "setpgid_1" => "ESRCH",
        _ => "EPERM",
    });
}

#[test]
fn foreign_abis_die() {
    if cfg!(target_arch = "x86_64") {
        check("foreign", 13, |_| "SIGSYS");
    } else {
        eprintln!("cannot be shown here: this machine has one ABI");
    }
}

#[test]
fn death_by_the_filter_is_told_as_such() {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("cannot be shown here: this machine has one ABI");
        return;
    }
    for attacker in Attacker::everywhere() {
        let ran = attacker.exec_json(&[], &[PROBE, "act", "foreign"]);
        assert_eq!((&ran["exit"]["kind"], &ran["stdout"]), (&"forbidden".into(), &"".into()), "{ran}");
    }
}

#[test]
fn cannot_open_sockets_but_unix_internet_and_route() {
    check("sockets", 400, |name| {
        let words: Vec<&str> = name.split(' ').collect();
        match words[..] {
            ["socket", "1", "flag"] | ["socket", "16", "flag"] => "EINVAL",
            ["socket", "1", _] => "ok|ESOCKTNOSUPPORT",
            ["socketpair", "1"] => "ok",
            ["socketpair", "1", "flag"] => "EINVAL",
            ["socket", "2" | "10", "1" | "2"] => "ok",
            ["socket", "2" | "10", _] => "EPERM",
            // Route netlink, to look at one's own interfaces with.
            ["socket", "16", "2" | "3"] | ["netlink", "0"] => "ok",
            ["socket", "16", _] => "ESOCKTNOSUPPORT",
            ["inet", "stream", "6"] | ["inet6", "dgram", "17"] => "ok",
            ["inet", "stream", "6" | "17", "flag"] | ["inet6", "dgram", "6" | "17", "flag"] => "EINVAL",
            ["inet", "stream", ..] | ["inet6", "dgram", ..] => "EPROTONOSUPPORT",
            ["socket" | "socketpair" | "netlink" | "vsock" | "alg" | "packet" | "netfilter", ..] => {
                "EAFNOSUPPORT"
            }
            ["so_debug"] => "EACCES",
            _ => "EPERM",
        }
    });
}

/// Files of the first process that box root may open where it is the host's root, as SECURITY.md says.
const OF_ROOT: [&str; 18] = [
    "list fd",
    "open fd",
    "open io",
    "open map_files",
    "open mountstats",
    "open personality",
    "open stack",
    "open syscall",
    "write autogroup",
    "write clear_refs",
    "write comm",
    "write coredump_filter",
    "write gid_map",
    "write loginuid",
    "write oom_adj",
    "write oom_score_adj",
    "write sched",
    "write uid_map",
];

#[test]
fn cannot_touch_the_first_process() {
    check("first-process", 70, |name| match name {
        "write timerslack_ns" | "write attr" => "EPERM",
        name if name.starts_with("rt_sigqueueinfo") => "EPERM",
        // The first process has no ear for signals from inside, whether they may be sent or not.
        name if name.starts_with("kill") || name.starts_with("pidfd_send_signal") => "EPERM|ok",
        // In a container, box root owns these files; what they tell, and whose they are, he still does not learn.
        name if CONTAINED && OF_ROOT.contains(&name) => "EACCES|EPERM|EINVAL|ok",
        _ => "EACCES",
    });
}

#[test]
fn cannot_become_more() {
    check("raises", 28, |name| match name {
        // Without root outside the box has one user: the other has no number that could be taken.
        name if name.starts_with("setres") || name == "chown other" => "EPERM|EINVAL",
        name if name.starts_with("nice") => "EACCES",
        // Back to the guest's own value and no further.
        "oom_score_adj 0" => "ok",
        name if name.starts_with("oom") => "EACCES",
        _ => "EPERM",
    });
}

#[test]
fn the_first_process_is_the_same_after_every_attack_on_it() {
    for attacker in Attacker::everywhere() {
        let process = attacker.first_process();
        let Ok(program) = std::fs::read(process.join("exe")) else {
            eprintln!(
                "cannot be shown here: {}: only root can look at a guest from outside",
                attacker.name()
            );
            continue;
        };
        let look = || {
            let read = |name| std::fs::read_to_string(process.join(name)).expect("root may read it");
            ["limits", "oom_score_adj", "comm", "uid_map", "coredump_filter", "timerslack_ns"].map(read)
        };
        let before = look();
        for group in ["first-process", "calls", "raises"] {
            attacker.probe(&[group]);
        }
        assert_eq!(look(), before, "{}", attacker.name());
        let after = std::fs::read(process.join("exe")).expect("it was there before");
        assert!(program == after, "{}: the guest is another", attacker.name());
    }
}
