//! The filters judged twice: by a small interpreter, call by call, and by the kernel.

use std::collections::BTreeSet;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use libc::*;

use super::rules::kept_by;
use super::table::{self, Call, calls};
use super::{Filter, INSTRUCTIONS_MAX, Insn, Program, base, command, without_random};
use crate::caps::{self, tests::in_child};

const NATIVE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };
const I386: u32 = 0x4000_0003;
const ALLOW: u32 = SECCOMP_RET_ALLOW;
const KILL: u32 = SECCOMP_RET_KILL_PROCESS;
/// Noise in the half of an argument that the kernel drops.
const HIGH: u64 = 0xdead_beef_0000_0000;
const WORD: [u64; 4] = [0x0123_4567_89ab_cdef, u64::MAX, 1, 0x8000_0000_0000_0000];

/// The wall of a box.
fn kept() -> Filter {
    kept_by(&base(), &WORD)
}

const fn errno(number: c_int) -> u32 {
    SECCOMP_RET_ERRNO | number as u32
}

/// What the filter answers: the kernel's own reading of classic BPF, for the instructions we use.
fn run(filter: &Filter, arch: u32, number: u32, args: [u64; 6]) -> u32 {
    let word = |offset: u32| match offset {
        0 => number,
        4 => arch,
        16..64 if offset.is_multiple_of(4) => (args[(offset as usize - 16) / 8] >> (offset % 8 * 8)) as u32,
        _ => panic!("load from {offset}"),
    };
    let (mut pc, mut a, mut x) = (0, 0_u32, 0_u32);
    loop {
        let Insn { code, jt, jf, k } = filter.insns[pc];
        pc += 1;
        let mut jump = |holds: bool| pc += usize::from(if holds { jt } else { jf });
        match code {
            0x20 => a = word(k),
            0x54 => a &= k,
            0xa4 => a ^= k,
            0x4c => a |= x,
            0x07 => x = a,
            0x01 => x = k,
            0x05 => pc += k as usize,
            0x15 => jump(a == k),
            0x35 => jump(a >= k),
            0x45 => jump(a & k != 0),
            0x06 => return k,
            _ => panic!("unexpected instruction {code:#x}"),
        }
    }
}

/// Arguments are given from the first one on; the rest is noise.
fn check(filter: &Filter, call: c_long, args: &[u64], expected: u32) {
    let mut all = [u64::MAX; 6];
    all[..args.len()].copy_from_slice(args);
    let verdict = run(filter, NATIVE, call as u32, all);
    assert_eq!(verdict, expected, "call {call} with {args:x?}: {verdict:#x}, not {expected:#x}");
}

fn check_base(call: c_long, args: &[u64], expected: u32) {
    check(&base(), call, args, expected);
}

#[test]
fn each_list_gets_its_verdict() {
    let base = base();
    let lists = [(table::ALLOWED, ALLOW), (table::REFUSED, errno(EPERM)), (table::ABSENT, errno(ENOSYS))];
    for (groups, expected) in lists {
        for call in groups.iter().copied().flatten() {
            for args in [[0; 6], [u64::MAX; 6]] {
                assert_eq!(run(&base, NATIVE, call.number, args), expected, "{}", call.name);
            }
        }
    }
}

#[test]
fn no_call_is_listed_twice() {
    let mut seen = BTreeSet::new();
    for call in [table::ALLOWED, table::REFUSED, table::ABSENT].iter().copied().flatten().copied().flatten() {
        assert!(seen.insert(call.number), "{} is listed twice", call.name);
    }
    for (number, _) in super::rules::judged() {
        assert!(seen.insert(number), "call {number} is judged and listed");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_number_of_linux_6_18_is_known() {
    let listed = [table::ALLOWED, table::REFUSED, table::ABSENT];
    let listed = listed.iter().copied().flatten().copied().flatten().map(|call| call.number);
    let known: BTreeSet<u32> =
        listed.chain(super::rules::judged().into_iter().map(|(number, _)| number)).collect();
    let real: BTreeSet<u32> = (0..=336).chain(424..=469).collect();
    assert_eq!(known, real);
}

/// Written down once more, apart from the table, so that a slip there shows.
fn check_calls(calls: &[Call], expected: u32) {
    for call in calls {
        assert_eq!(run(&base(), NATIVE, call.number, [0; 6]), expected, "{}", call.name);
    }
}

#[test]
fn what_reaches_out_of_the_box_is_refused() {
    let refused: &[Call] = calls![
        SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_pidfd_getfd SYS_kcmp
        SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_keyctl SYS_add_key SYS_request_key SYS_init_module
        SYS_finit_module SYS_delete_module SYS_kexec_load SYS_open_by_handle_at SYS_name_to_handle_at
        SYS_fanotify_init SYS_fanotify_mark SYS_quotactl SYS_quotactl_fd SYS_swapon SYS_swapoff SYS_reboot
        SYS_clock_settime SYS_adjtimex SYS_clock_adjtime SYS_settimeofday SYS_acct SYS_syslog
        SYS_lookup_dcookie SYS_mount SYS_umount2 SYS_mount_setattr SYS_open_tree SYS_move_mount SYS_fsopen
        SYS_fsconfig SYS_fsmount SYS_fspick SYS_pivot_root SYS_chroot SYS_sethostname SYS_setdomainname
        SYS_vhangup SYS_setns SYS_unshare SYS_sched_setattr
    ];
    check_calls(refused, errno(EPERM));
    #[cfg(target_arch = "x86_64")]
    check_calls(calls![SYS_iopl SYS_ioperm SYS_modify_ldt SYS_kexec_file_load], errno(EPERM));
    for statmount_listmount_open_tree_attr in [457, 458, 467] {
        check_base(statmount_listmount_open_tree_attr, &[], errno(EPERM));
    }
}

#[test]
fn what_has_a_substitute_looks_absent() {
    let absent: &[Call] = calls![
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_memfd_secret SYS_io_setup
    ];
    check_calls(absent, errno(ENOSYS));
}

#[test]
fn what_the_guest_needs_passes() {
    let needed: &[Call] = calls![
        SYS_clone3 SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
        SYS_setuid SYS_setgid SYS_setgroups SYS_setresuid SYS_setresgid SYS_setfsuid SYS_setfsgid SYS_kill
        SYS_pidfd_open SYS_pidfd_send_signal SYS_close_range SYS_openat2 SYS_unlinkat SYS_renameat SYS_capset
        SYS_waitid SYS_prlimit64 SYS_execveat SYS_restart_syscall
    ];
    check_calls(needed, ALLOW);
    check_base(SYS_clone, &[(CLONE_NEWUTS | SIGCHLD) as u64], ALLOW);
}

#[test]
fn foreign_abis_die() {
    for filter in [base(), kept(), without_random()] {
        for number in [0, 1, 20, 102, 359, 0x4000_0000] {
            assert_eq!(run(&filter, I386, number, [0; 6]), KILL);
            assert_eq!(run(&filter, NATIVE ^ 1, number, [0; 6]), KILL);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_numbers_die() {
    for number in [0x4000_0000, 0x4000_0027, 0x4000_0200, 0x4000_0038, 0x7fff_ffff] {
        assert_eq!(run(&base(), NATIVE, number, [0; 6]), KILL, "{number:#x}");
    }
}

#[test]
fn unknown_numbers_do_not_exist() {
    for number in [337, 423, 470, 471, 1000, 0x3fff_ffff, 0x8000_0000, 0xffff_ffff] {
        if cfg!(target_arch = "x86_64") || number > 469 {
            assert_eq!(run(&base(), NATIVE, number, [0; 6]), errno(ENOSYS), "{number:#x}");
        }
    }
}

#[test]
fn sockets_come_from_four_families() {
    let no_family = errno(EAFNOSUPPORT);
    for call in [SYS_socket, SYS_socketpair] {
        check_base(call, &[1, 1, 0], ALLOW);
        check_base(call, &[HIGH | 1, 5, 0], ALLOW);
        for family in (0..=64).chain([257, 0x1_0001, 0x8000_0001, 0xffff_ffff]) {
            if ![1, 2, 10, 16].contains(&family) {
                check_base(call, &[family, 1, 0], no_family);
                check_base(call, &[HIGH | family, 3, 0], no_family);
            }
        }
    }
    for family in [2, 10, 16] {
        check_base(SYS_socketpair, &[family, 1, 0], no_family);
    }
}

#[test]
fn internet_sockets_are_tcp_udp_or_ping() {
    let flags = (SOCK_CLOEXEC | SOCK_NONBLOCK) as u64;
    for family in [2, 10, HIGH | 2, HIGH | 10] {
        for kind in [1, 2, 1 | flags, 2 | flags, HIGH | 1] {
            for protocol in [0, 1, 6, 17, 58, HIGH | 6] {
                check_base(SYS_socket, &[family, kind, protocol], ALLOW);
            }
            // L2TP, DCCP, SCTP, UDP-Lite, raw, SMC, MPTCP, and TCP with noise above.
            for protocol in [115, 33, 132, 136, 255, 256, 262, 0x106] {
                check_base(SYS_socket, &[family, kind, protocol], errno(EPROTONOSUPPORT));
            }
        }
        // Raw, reliable, sequenced (SCTP), DCCP, packet.
        for kind in [3, 3 | flags, HIGH | 3, 0, 4, 5, 6, 10, 10 | flags, 15] {
            check_base(SYS_socket, &[family, kind, 0], errno(EPERM));
        }
    }
}

#[test]
fn netlink_is_for_routes_only() {
    check_base(SYS_socket, &[16, 3, 0], ALLOW);
    check_base(SYS_socket, &[16, 2 | SOCK_CLOEXEC as u64, HIGH], ALLOW);
    for protocol in (1..=32).chain([256, 0x8000_0000]) {
        check_base(SYS_socket, &[16, 3, protocol], errno(EAFNOSUPPORT));
    }
}

#[test]
fn terminals_cannot_be_typed_into() {
    for request in [0x5412, 0x541c, 0x541d, 0x5423] {
        check_base(SYS_ioctl, &[0, request], errno(EPERM));
        check_base(SYS_ioctl, &[0, HIGH | request], errno(EPERM));
    }
    // TCGETS, TIOCSCTTY, TIOCGWINSZ, TIOCSWINSZ, FIONBIO.
    for request in [0x5401, 0x540e, 0x5413, 0x5414, 0x5421] {
        check_base(SYS_ioctl, &[0, request], ALLOW);
    }
}

#[test]
fn personality_is_plain_or_without_randomness() {
    for persona in [0, 0x4_0000, 0xffff_ffff, u64::MAX, HIGH] {
        check_base(SYS_personality, &[persona], ALLOW);
    }
    for persona in [8, 0x2_0000, 0x40_0000, 0x10_0000, 0x44_0000, HIGH | 8] {
        check_base(SYS_personality, &[persona], errno(EPERM));
    }
}

#[test]
fn device_nodes_cannot_be_made() {
    for (kind, expected) in [
        (0, ALLOW),
        (S_IFREG, ALLOW),
        (S_IFIFO, ALLOW),
        (S_IFSOCK, ALLOW),
        (S_IFCHR, errno(EPERM)),
        (S_IFBLK, errno(EPERM)),
        (S_IFDIR, errno(EPERM)),
        (S_IFLNK, errno(EPERM)),
    ] {
        // The kernel takes the mode as 16 bits.
        for mode in [u64::from(kind), u64::from(kind | 0o7777), HIGH | 0xffff_0000 | u64::from(kind | 0o644)]
        {
            check_base(SYS_mknodat, &[0, 0, mode], expected);
            #[cfg(target_arch = "x86_64")]
            check_base(SYS_mknod, &[0, mode], expected);
        }
    }
    check_base(SYS_renameat2, &[0, 0, 0, 0, HIGH | 3], ALLOW);
    check_base(SYS_renameat2, &[0, 0, 0, 0, 5], errno(EINVAL));
}

#[test]
fn prctl_keeps_to_the_process_itself() {
    // Death signal, dumpable, keep capabilities, name, seccomp, bounding set, get secure bits, timer slack,
    // subreaper, no new privileges, huge pages, ambient set, shadow stack; name of memory, tracer.
    for option in [1, 4, 8, 15, 22, 24, 27, 29, 36, 38, 41, 47, 76, 0x5356_4d41, 0x5961_6d61] {
        check_base(SYS_prctl, &[option], ALLOW);
        check_base(SYS_prctl, &[HIGH | option], ALLOW);
    }
    // Secure bits, memory map, io flusher, core scheduling, memory merge.
    for option in [28, 35, 57, 62, 67] {
        check_base(SYS_prctl, &[option], errno(EPERM));
        check_base(SYS_prctl, &[HIGH | option], errno(EPERM));
    }
    for option in [77, 78, 1000, 0x5356_4d42, 0xffff_ffff] {
        check_base(SYS_prctl, &[option], errno(EINVAL));
    }
}

#[test]
fn priorities_are_ordinary() {
    let reset_on_fork = SCHED_RESET_ON_FORK as u64;
    for (policy, expected) in [(0, ALLOW), (3, ALLOW), (5, ALLOW)]
        .into_iter()
        .chain([1, 2, 4, 6, 7, 8, 0x8000_0000].map(|policy| (policy, errno(EPERM))))
    {
        for flags in [0, reset_on_fork, HIGH] {
            check_base(SYS_sched_setscheduler, &[0, policy | flags], expected);
        }
    }
    for (class, expected) in [(0, ALLOW), (1, errno(EPERM)), (2, ALLOW), (3, ALLOW)] {
        check_base(SYS_ioprio_set, &[1, 0, class << 13 | 4], expected);
        check_base(SYS_ioprio_set, &[1, 0, HIGH | class << 13], expected);
    }
}

#[test]
fn commands_make_no_namespaces() {
    for command in [kept(), command()] {
        check(&command, SYS_clone3, &[0, 88], errno(ENOSYS));
        commands_clone_into_nothing_new(&command);
    }
}

fn commands_clone_into_nothing_new(command: &Filter) {
    for flag in [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000_u64] {
        check(command, SYS_clone, &[flag], errno(EPERM));
        check(command, SYS_clone, &[HIGH | flag | SIGCHLD as u64], errno(EPERM));
    }
    // A thread, a vfork, a fork; and the exit signal's own bits, which are no flags.
    for flags in [0x3d_0f00, 0x4111, 0x11, 0xff, HIGH] {
        check(command, SYS_clone, &[flags], ALLOW);
    }
}

#[test]
fn clone3_passes_with_the_word_and_with_no_other() {
    let filter = kept();
    let said = |word: [u64; 4]| [0x1000, 88, word[0], word[1], word[2], word[3]];
    check(&filter, SYS_clone3, &said(WORD), ALLOW);
    check(&filter, SYS_clone3, &said([0; 4]), errno(ENOSYS));
    for bit in 0..256 {
        let mut word = WORD;
        word[bit / 64] ^= 1 << (bit % 64);
        check(&filter, SYS_clone3, &said(word), errno(ENOSYS));
    }
    // Two wrong halves do not make up for each other.
    let (low, high) = (1, 1 << 32);
    check(&filter, SYS_clone3, &said([WORD[0] ^ low ^ high, WORD[1] ^ low, WORD[2], WORD[3]]), errno(ENOSYS));
    assert_eq!(run(&filter, I386, SYS_clone3 as u32, said(WORD)), KILL, "nor by another door");
}

#[test]
fn all_but_the_two_calls_are_judged_as_without_a_word() {
    let (plain, kept) = (base(), kept());
    for number in (0..700).chain([0x4000_0027, u32::MAX]) {
        if [SYS_clone, SYS_clone3].contains(&c_long::from(number)) {
            continue;
        }
        for arguments in [[0; 6], [1, 2, 3, 4, 5, 6], [0, 0, WORD[0], WORD[1], WORD[2], WORD[3]]] {
            for arch in [NATIVE, I386] {
                let answers = [&plain, &kept].map(|filter| run(filter, arch, number, arguments));
                assert_eq!(answers[0], answers[1], "{number} {arch:#x}");
            }
        }
    }
}

#[test]
fn whoever_loads_a_filter_with_a_word_can_clone() {
    let filter = base();
    let status = in_child(|| {
        if caps::no_new_privs().and_then(|()| filter.load_with_word()).is_err() {
            return 1;
        }
        // Flags that make no sense: the kernel says so, and it is the kernel that says it.
        let [a, b, c, d] = super::word::ours();
        let mut args = [u64::MAX; 11];
        let mut with = |a: u64, b: u64, c: u64, d: u64| {
            // SAFETY: the arguments are as long as is said, and no process comes of them.
            match unsafe { syscall(SYS_clone3, args.as_mut_ptr(), size_of_val(&args), a, b, c, d) } {
                -1 => std::io::Error::last_os_error().raw_os_error(),
                _ => None,
            }
        };
        match [with(a, b, c, d), with(a, b, c, !d), with(0, 0, 0, 0)] {
            [Some(EINVAL), Some(ENOSYS), Some(ENOSYS)] => 0,
            _ => 2,
        }
    });
    assert_eq!(status.code(), Some(0), "1: not loaded; 2: answered wrong");
}

/// A program that calls clone3 with what it finds in the registers of the word, and ends with the error.
#[cfg(target_arch = "x86_64")]
fn prober() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    let code = [
        &[0x48, 0x89, 0xe7][..],            // mov rdi, rsp
        &[0xbe, 88, 0, 0, 0],               // mov esi, 88
        &[0xb8, 0xb3, 1, 0, 0, 0x0f, 0x05], // mov eax, 435; syscall
        &[0xf7, 0xd8, 0x89, 0xc7],          // neg eax; mov edi, eax
        &[0xb8, 231, 0, 0, 0, 0x0f, 0x05],  // mov eax, 231; syscall
    ]
    .concat();
    let (start, size) = (64 + 56_u64, 64 + 56 + code.len() as u64);
    let half = |n: u16| n.to_le_bytes().to_vec();
    let word = |n: u32| n.to_le_bytes().to_vec();
    let long = |n: u64| n.to_le_bytes().to_vec();
    let header = [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        [half(2), half(62), word(1), long(BASE + start), long(64), long(0), word(0)].concat(),
        [half(64), half(56), half(1), half(0), half(0), half(0)].concat(),
    ];
    let segment =
        [word(1), word(5), long(0), long(BASE), long(BASE), long(size), long(size), long(0x1000)].concat();
    [header.concat(), segment, code].concat()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_finds_no_word_in_its_registers() {
    use std::os::fd::AsRawFd as _;
    let filter = base();
    let program = crate::descriptor::sealed_program("prober", &prober()).unwrap();
    let status = in_child(|| {
        if caps::no_new_privs().and_then(|()| filter.load_with_word()).is_err() {
            return 1;
        }
        let [a, b, c, d] = super::word::ours();
        // SAFETY: it fails for want of arguments, with the word in all the registers that it may be in.
        unsafe { syscall(SYS_clone3, 0_usize, 0_usize, a, b, c, d) };
        let none = [std::ptr::null::<c_char>()];
        let (path, none) = (c"".as_ptr(), none.as_ptr());
        // SAFETY: the descriptor is open, the path is empty, and so are the lists, which live for the call.
        unsafe { syscall(SYS_execveat, program.as_raw_fd(), path, none, none, AT_EMPTY_PATH) };
        2
    });
    assert_eq!(status.code(), Some(ENOSYS), "1: not loaded; 2: not executed");
}

#[test]
fn without_random_numbers_a_command_is_held_to_all_the_rest() {
    let without = without_random();
    check(&without, SYS_getrandom, &[], errno(ENOSYS));
    for number in (0..600).filter(|number| c_long::from(*number) != SYS_getrandom) {
        assert_eq!(run(&without, NATIVE, number, [0; 6]), ALLOW, "{number}: the filter below decides");
    }
}

#[test]
fn filters_stay_small() {
    let sizes = [kept().insns.len(), without_random().insns.len()];
    println!("instructions: base {}, command {}", sizes[0], sizes[1]);
    assert!(sizes[0] <= 450, "base has {} instructions", sizes[0]);
    assert!(sizes[1] <= 24, "command has {} instructions", sizes[1]);
}

#[test]
fn every_jump_lands_inside() {
    for filter in [base(), kept(), without_random()] {
        let len = filter.insns.len();
        assert_eq!(filter.insns[len - 1].code, 0x06);
        for (index, insn) in filter.insns.iter().enumerate() {
            let far = if insn.code == 0x05 { insn.k as usize } else { usize::from(insn.jt.max(insn.jf)) };
            assert!(index + 1 + far < len || insn.code == 0x06, "jump at {index} leaves the filter");
        }
    }
}

#[test]
fn far_branches_take_a_long_jump() {
    use super::bpf::{allow, fail, on_number, search};
    let intervals: Vec<_> =
        (0..400).map(|n| (n, if n % 2 == 0 { allow() } else { fail(n as c_int) })).collect();
    let filter = Filter { insns: on_number(search(&intervals)) };
    assert!(filter.insns.iter().any(|insn| insn.code == 0x05));
    for n in 0..400 {
        let expected = if n % 2 == 0 { ALLOW } else { errno(n as c_int) };
        assert_eq!(run(&filter, NATIVE, n, [0; 6]), expected);
    }
}

#[test]
fn words_carry_a_filter_over() {
    for filter in [base(), kept()] {
        assert_eq!(Filter::from_words(&filter.to_words()).unwrap(), filter);
    }
    let insn = Insn { code: 0x1234, jt: 0x56, jf: 0x78, k: 0x9abc_def0 };
    assert_eq!(Filter { insns: vec![insn] }.to_words(), [0x1234_5678_9abc_def0]);
    assert!(Filter::from_words(&[]).is_err());
    assert!(Filter::from_words(&[6 << 48; INSTRUCTIONS_MAX]).is_ok());
    assert!(Filter::from_words(&[6 << 48; INSTRUCTIONS_MAX + 1]).is_err());
}

/// The filter on the calling process; allocates nothing.
fn load(filter: &Program) -> std::io::Result<()> {
    caps::no_new_privs()?;
    filter.load()
}

fn call(number: c_long, args: [c_long; 3]) -> Result<c_long, Option<c_int>> {
    // SAFETY: only called with arguments that are numbers, or null where the kernel wants memory.
    let result = unsafe { libc::syscall(number, args[0], args[1], args[2], 0_usize, 0_usize, 0_usize) };
    if result < 0 { Err(std::io::Error::last_os_error().raw_os_error()) } else { Ok(result) }
}

#[test]
fn the_kernel_agrees() {
    let filter = kept().program();
    let newuser = c_long::from(CLONE_NEWUSER);
    let expected = [
        (SYS_socket, [38, 5, 0], EAFNOSUPPORT),
        (SYS_socket, [40, 1, 0], EAFNOSUPPORT),
        (SYS_socket, [2, 3, 1], EPERM),
        (SYS_socket, [16, 3, 12], EAFNOSUPPORT),
        (SYS_unshare, [newuser, 0, 0], EPERM),
        (SYS_clone, [newuser, 0, 0], EPERM),
        (SYS_clone3, [0, 0, 0], ENOSYS),
        (SYS_io_uring_setup, [1, 0, 0], ENOSYS),
        (SYS_ioctl, [0, 0x5412, 0], EPERM),
        (SYS_personality, [8, 0, 0], EPERM),
        (SYS_prctl, [PR_SCHED_CORE as c_long, 0, 0], EPERM),
        (500, [0, 0, 0], ENOSYS),
    ];
    let status = in_child(|| {
        if load(&filter).is_err() {
            return 255;
        }
        let wrong = expected.iter().position(|&(number, args, errno)| call(number, args) != Err(Some(errno)));
        wrong.map_or(0, |index| index as u8 + 1)
    });
    assert_eq!(status.code(), Some(0), "255: not loaded; n: the n-th call answered wrong");
}

/// The kernel refuses many of these by itself. So EPERM is replaced by an error that only a filter gives.
#[test]
fn refusals_come_from_the_filter() {
    const OURS: c_int = 777;
    let mut filter = base();
    for insn in filter.insns.iter_mut().filter(|insn| insn.k == errno(EPERM)) {
        insn.k = errno(OURS);
    }
    let program = filter.program();
    for refused in table::REFUSED.iter().copied().flatten() {
        let status = in_child(|| {
            // Without capabilities none of these does harm, should one get through.
            let ready = caps::set(&[]).and_then(|()| caps::no_new_privs()).and_then(|()| program.load());
            let answer = call(refused.number.into(), [0; 3]);
            if ready.is_ok() && answer == Err(Some(OURS)) { 0 } else { 1 }
        });
        assert_eq!(status.code(), Some(0), "{}", refused.name);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_kernel_kills_x32_calls() {
    let filter = kept().program();
    let status = in_child(|| {
        let loaded = load(&filter);
        let _ = call(0x4000_0027, [0; 3]);
        if loaded.is_ok() { 1 } else { 2 }
    });
    assert_eq!(status.signal(), Some(SIGSYS), "{status}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_kernel_kills_32_bit_calls() {
    let base = base().program();
    let status = in_child(|| {
        let loaded = caps::no_new_privs().and_then(|()| base.load());
        // SAFETY: asks for the process id by the 32-bit door, which reads and writes no memory.
        unsafe { std::arch::asm!("int 0x80", inout("eax") 20 => _, clobber_abi("C")) };
        if loaded.is_ok() { 1 } else { 2 }
    });
    // A kernel built without that door answers with the other signal.
    assert!([Some(SIGSYS), Some(SIGSEGV)].contains(&status.signal()), "{status}");
}

#[test]
fn python_threads_and_children_work() {
    let script = "
import asyncio, errno, multiprocessing, os, socket, subprocess, tempfile, threading
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sorted(seen) == list(range(8))
assert subprocess.run(['/bin/sh', '-c', 'echo $((6 * 7)) | cat'], capture_output=True).stdout == b'42\\n'
with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]
async def child():
    process = await asyncio.create_subprocess_exec('/bin/true')
    return await process.wait()
assert asyncio.run(child()) == 0
server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname()).close()
socket.socketpair(); tempfile.NamedTemporaryFile()
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
try: socket.socket(socket.AF_VSOCK)
except OSError as error: print(error.errno == errno.EAFNOSUPPORT)
";
    let filter = kept().program();
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-I", "-c", script]);
    // SAFETY: the closure runs after fork and only makes system calls; it allocates and locks nothing.
    unsafe { python.pre_exec(move || load(&filter)) };
    let output = match python.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: no /usr/bin/python3");
            return;
        }
        output => output.unwrap(),
    };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.stdout, b"True\n");
}

#[test]
fn the_names_of_judged_calls_are_those_that_are_judged() {
    let named: BTreeSet<u32> = table::JUDGED.iter().copied().flatten().map(|call| call.number).collect();
    let judged: BTreeSet<u32> = super::rules::judged().into_iter().map(|(number, _)| number).collect();
    assert_eq!(named, judged);
}
