//! The filters, and the calls that are judged by their arguments.

use std::collections::BTreeMap;

use super::bpf::{
    Code, allow, fail, if_any_bit, if_arguments, if_one_of, kill, on_arch, on_argument, on_argument_bits,
    on_number, on_value, search,
};
use super::word::{WORD_ARGUMENT, WORD_WORDS};
use super::{Filter, table};

#[cfg(target_arch = "x86_64")]
const NATIVE_ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE_ARCH: u32 = 0xc000_00b7;

/// Every flag of clone(2) that makes a namespace. The time namespace is not among them: its bit lies in
/// the part of the flags where clone keeps the exit signal, so only clone3 and unshare can ask for it.
const CLONE_NEW: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// The filter of the whole box: what is not on the list fails.
///
/// Foreign ABIs die: their numbers mean other calls, and 32-bit `socketcall` hides its arguments from us.
/// A number that no list holds fails with ENOSYS, as on an older kernel, so programs fall back.
pub fn base() -> Filter {
    let by_number = on_number(search(&intervals(&verdicts())));
    Filter { insns: on_arch(if_one_of(&[NATIVE_ARCH], by_number, kill())) }
}

/// The same filter, for whoever alone is to make namespaces: who knows the word may call clone3, for all others it is missing.
///
/// The flags of clone3 lie in memory, where no filter can look, and ENOSYS makes the C library take clone, whose flags are
/// looked at. The word is where clone3 has no arguments.
pub(super) fn kept_by(filter: &Filter, word: &[u64; WORD_WORDS]) -> Filter {
    let clone3 = if_arguments(WORD_ARGUMENT, word, allow(), fail(libc::ENOSYS));
    let clone = on_argument(0, if_any_bit(CLONE_NEW, fail(libc::EPERM), allow()));
    let calls =
        [on_value(number(libc::SYS_clone3), clone3), on_value(number(libc::SYS_clone), clone)].concat();
    let insns = on_arch(on_value(NATIVE_ARCH, on_number(calls)));
    Filter { insns: [insns, filter.insns.clone()].concat() }
}

/// What [`kept_by`] keeps for one, taken away from all: for the commands of a guest that is older than the word, on top of its own.
pub fn command() -> Filter {
    let clone = on_argument(0, if_any_bit(CLONE_NEW, fail(libc::EPERM), allow()));
    let other = if_one_of(&[number(libc::SYS_clone)], clone, allow());
    let by_number = on_number(if_one_of(&[number(libc::SYS_clone3)], fail(libc::ENOSYS), other));
    Filter { insns: on_arch(if_one_of(&[NATIVE_ARCH], by_number, kill())) }
}

/// The filter of each command whose random numbers are not to be random, on top of [`base`]: the kernel gives none, as before it
/// could, and programs take those of the device.
pub fn without_random() -> Filter {
    let by_number = on_number(if_one_of(&[number(libc::SYS_getrandom)], fail(libc::ENOSYS), allow()));
    Filter { insns: on_arch(if_one_of(&[NATIVE_ARCH], by_number, kill())) }
}

/// The calls by name, for whoever has to tell them to a container engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lists {
    /// These pass.
    pub allowed: Vec<&'static str>,
    /// These pass or fail by their arguments.
    pub judged: Vec<&'static str>,
    /// These fail with EPERM.
    pub refused: Vec<&'static str>,
    /// These, and all others, fail with ENOSYS.
    pub absent: Vec<&'static str>,
}

/// The lists that [`base`] is made of.
pub fn lists() -> Lists {
    let name = |call: &table::Call| call.name.trim_start_matches("SYS_");
    let names =
        |groups: &[&'static [table::Call]]| groups.iter().flat_map(|group| group.iter().map(name)).collect();
    Lists {
        allowed: names(table::ALLOWED),
        judged: names(table::JUDGED),
        refused: names(table::REFUSED),
        absent: names(table::ABSENT),
    }
}

/// What to do with each known number.
fn verdicts() -> BTreeMap<u32, Code> {
    let lists =
        [(table::ALLOWED, allow()), (table::REFUSED, fail(libc::EPERM)), (table::ABSENT, fail(libc::ENOSYS))];
    let mut verdicts = BTreeMap::new();
    for (groups, code) in lists {
        for call in groups.iter().copied().flatten() {
            verdicts.insert(call.number, code.clone());
        }
    }
    verdicts.extend(judged());
    verdicts
}

/// The calls whose arguments decide.
pub(super) fn judged() -> Vec<(u32, Code)> {
    let mut judged = vec![
        (libc::SYS_socket, socket()),
        (libc::SYS_socketpair, socketpair()),
        (libc::SYS_ioctl, ioctl()),
        (libc::SYS_personality, personality()),
        (libc::SYS_mknodat, mknod(2)),
        (libc::SYS_renameat2, renameat2()),
        (libc::SYS_prctl, prctl()),
        (libc::SYS_sched_setscheduler, sched_setscheduler()),
        (libc::SYS_ioprio_set, ioprio_set()),
        (libc::SYS_sync, nothing()),
        (libc::SYS_syncfs, nothing()),
        (libc::SYS_prlimit64, not_the_first(0)),
        (libc::SYS_sched_setaffinity, not_the_first(0)),
        (libc::SYS_setpriority, setpriority()),
    ];
    #[cfg(target_arch = "x86_64")]
    judged.push((libc::SYS_mknod, mknod(1)));
    judged.into_iter().map(|(call, code)| (number(call), code)).collect()
}

/// Families by allow-list: each other one is a door to code that nothing in the box needs, some of it not
/// namespaced (AF_VSOCK reaches the machine's own host) and much of it loaded as a module on first use.
fn socket() -> Code {
    let netlink = on_argument(2, if_one_of(&[libc::NETLINK_ROUTE as u32], allow(), fail(libc::EAFNOSUPPORT)));
    let or_netlink = if_one_of(&[libc::AF_NETLINK as u32], netlink, fail(libc::EAFNOSUPPORT));
    let inet = [libc::AF_INET as u32, libc::AF_INET6 as u32];
    let or_inet = if_one_of(&inet, internet_socket(), or_netlink);
    on_argument(0, if_one_of(&[libc::AF_UNIX as u32], allow(), or_inet))
}

/// TCP, UDP and ping. Refuses raw and packet sockets by type. The other protocols (SCTP, DCCP, L2TP, SMC,
/// MPTCP) fail as on a kernel built without them, which is the error their users know a way around.
fn internet_socket() -> Code {
    let types = [libc::SOCK_STREAM as u32, libc::SOCK_DGRAM as u32];
    let protocols = [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP, libc::IPPROTO_ICMP, libc::IPPROTO_ICMPV6];
    let by_protocol =
        on_argument(2, if_one_of(&protocols.map(|p| p as u32), allow(), fail(libc::EPROTONOSUPPORT)));
    // SOCK_CLOEXEC and SOCK_NONBLOCK are or-ed to the type above its four bits.
    on_argument_bits(1, 0xf, if_one_of(&types, by_protocol, fail(libc::EPERM)))
}

/// Only Unix sockets come in pairs; the kernel would build two of another family before it says so.
fn socketpair() -> Code {
    on_argument(0, if_one_of(&[libc::AF_UNIX as u32], allow(), fail(libc::EAFNOSUPPORT)))
}

/// No typing into a terminal for its owner, no taking over a console, no line discipline from a module.
fn ioctl() -> Code {
    let requests = [libc::TIOCSTI, libc::TIOCLINUX, libc::TIOCCONS, libc::TIOCSETD];
    on_argument(1, if_one_of(&requests.map(|r| r as u32), fail(libc::EPERM), allow()))
}

/// To ask, to reset, and to switch address randomness off for a replay. Not PER_LINUX32, not
/// READ_IMPLIES_EXEC, not MMAP_PAGE_ZERO.
fn personality() -> Code {
    const ASK: u32 = 0xffff_ffff;
    on_argument(0, if_one_of(&[0, libc::ADDR_NO_RANDOMIZE as u32, ASK], allow(), fail(libc::EPERM)))
}

/// Files, pipes and sockets. A device node is a way to hardware, and 0:0 forges an overlay's deletion mark
/// without any capability.
fn mknod(mode: u32) -> Code {
    let kinds = [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK];
    on_argument_bits(mode, libc::S_IFMT, if_one_of(&kinds, allow(), fail(libc::EPERM)))
}

/// RENAME_WHITEOUT makes the same deletion mark; most file systems do not know the flag.
fn renameat2() -> Code {
    on_argument(4, if_any_bit(libc::RENAME_WHITEOUT, fail(libc::EINVAL), allow()))
}

/// Succeeds, and the kernel does nothing. A flush reaches the whole host, however small the box; and the box's own files
/// are on a volatile overlay, which promises nothing to the disk anyway.
fn nothing() -> Code {
    fail(0)
}

/// Anything but PID 1, which in a box is the guest. For these calls the kernel asks only for the same user, and a
/// command of that user could starve the guest: of descriptors, of CPU time.
fn not_the_first(pid: u32) -> Code {
    on_argument(pid, if_one_of(&[1], fail(libc::EPERM), allow()))
}

/// Processes and groups, but not PID 1, nor all processes of a user, the guest among them.
fn setpriority() -> Code {
    const PRIO_USER: u32 = 2;
    on_argument(0, if_one_of(&[PRIO_USER], fail(libc::EPERM), not_the_first(1)))
}

/// Options newer than this list fail as on an older kernel, but for the two with names instead of numbers.
fn prctl() -> Code {
    const NEWEST: u32 = 76; // PR_LOCK_SHADOW_STACK_STATUS
    const PR_SET_IO_FLUSHER: i32 = 57;
    const TAGGED: [u32; 2] = [libc::PR_SET_VMA as u32, libc::PR_SET_PTRACER as u32];
    let refused = [
        libc::PR_SET_MM,           // rewrites what /proc says of the process, its program file too
        libc::PR_SET_SECUREBITS,   // changes how capabilities come and go with user ids
        libc::PR_SCHED_CORE,       // lets sibling hardware threads stand idle, also those of neighbours
        PR_SET_IO_FLUSHER,         // takes memory from the reserves
        libc::PR_SET_MEMORY_MERGE, // shares pages with strangers, whose content can then be timed
    ];
    let known = if_one_of(&refused.map(|option| option as u32), fail(libc::EPERM), allow());
    let tagged = if_one_of(&TAGGED, allow(), fail(libc::EINVAL));
    on_argument(0, search(&[(0, known), (NEWEST + 1, tagged)]))
}

/// No real-time, deadline or loaded scheduler. (The newer sched_setattr keeps its policy in memory, out of
/// our sight, and is refused as a whole.)
fn sched_setscheduler() -> Code {
    let policies = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(|policy| policy as u32);
    let without_flag = !(libc::SCHED_RESET_ON_FORK as u32);
    on_argument_bits(1, without_flag, if_one_of(&policies, allow(), fail(libc::EPERM)))
}

/// No real-time class, which starves every other reader of the disk; `ionice` downwards is fine.
fn ioprio_set() -> Code {
    const CLASS: u32 = 7 << 13;
    const REAL_TIME: u32 = 1 << 13;
    on_argument_bits(2, CLASS, if_one_of(&[REAL_TIME], fail(libc::EPERM), allow()))
}

/// All numbers as intervals of equal verdict, for a binary search.
fn intervals(verdicts: &BTreeMap<u32, Code>) -> Vec<(u32, Code)> {
    let mut points = vec![(0, fail(libc::ENOSYS))];
    for (&number, code) in verdicts {
        points.push((number, code.clone()));
        points.push((number + 1, fail(libc::ENOSYS)));
    }
    // The numbers of x32 are those of other calls with bit 30 set. Above them are none, just -1, which a
    // tracer leaves behind to skip a call.
    #[cfg(target_arch = "x86_64")]
    points.extend([(0x4000_0000, kill()), (0x8000_0000, fail(libc::ENOSYS))]);

    let mut intervals: Vec<(u32, Code)> = Vec::new();
    for (first, code) in points {
        // A later point at the same number overrules: it is the verdict, the earlier one only the end of
        // the interval before.
        intervals.pop_if(|last| last.0 == first);
        if intervals.last().is_none_or(|last| last.1 != code) {
            intervals.push((first, code));
        }
    }
    intervals
}

/// A call's number as the filter sees it.
fn number(call: libc::c_long) -> u32 {
    call as u32
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the filters know the calls of x86_64 and aarch64 only");
