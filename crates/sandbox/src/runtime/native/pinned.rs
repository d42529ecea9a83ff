//! The determinism profile: what is the same in every run of a deterministic box, and what is not.
//!
//! `docs/determinism.md` has the table of what is pinned and how. The guest and the library that it has commands preload do
//! most of the work; here is what the host decides: the environment, the CPU, and what the files say that would tell of
//! the moment or of the machine.

use glasshouse_linux::rustix;
use glasshouse_protocol::plan::{Pinned, Step};

/// Device nodes that are not taken from the host.
pub(super) const NODES: [&str; 2] = ["random", "urandom"];

/// Where the library is that commands preload. Not below a directory that images have.
const LIBRARY: &str = "/dev/.glass.so";

/// How many bytes `/dev/urandom` has for programs that are not linked dynamically; others find no end.
const RANDOM_BYTES: u64 = 1 << 20;

/// What commands find in their environment unless somebody else has set it.
const ENVIRONMENT: [(&str, &str); 12] = [
    ("TZ", "UTC"),
    ("LANG", "C.UTF-8"),
    ("LC_ALL", "C.UTF-8"),
    ("TERM", "dumb"),
    ("COLUMNS", "80"),
    ("LINES", "24"),
    // 2026-01-01: before what is built, so that its times are set back to it.
    ("SOURCE_DATE_EPOCH", "1767225600"),
    ("PYTHONHASHSEED", "0"),
    // A compiled module holds the time of its source.
    ("PYTHONDONTWRITEBYTECODE", "1"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
    // It would refuse to run behind another preloaded library.
    ("ASAN_OPTIONS", "verify_asan_link_order=0"),
];

/// What the guest is told of a deterministic box.
pub(super) fn pinned(id: &str) -> Pinned {
    let env = ENVIRONMENT.map(|(key, value)| (key.into(), value.into())).to_vec();
    Pinned { cpu: cpu_of(id), env, library: LIBRARY.into() }
}

/// One of the CPUs that are ours, by the box's id: boxes that are made one after the other do not all share one.
fn cpu_of(id: &str) -> u32 {
    let Ok(ours) = rustix::thread::sched_getaffinity(None) else { return 0 };
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| ours.is_set(cpu)).collect();
    let sum: usize = id.bytes().map(usize::from).sum();
    cpus.get(sum % cpus.len().max(1)).map_or(0, |&cpu| cpu as u32)
}

/// The step that lays the files over what they stand for.
pub(super) fn step() -> Step {
    Step::Pin {
        library: LIBRARY.trim_start_matches('/').into(),
        random: NODES.map(|name| format!("dev/{name}")).to_vec(),
        random_bytes: RANDOM_BYTES,
        files: FILES.map(|(path, content)| (format!("proc/{path}"), content.into())).to_vec(),
    }
}

/// Files of /proc that change while nobody does anything, and those that tell of the machine. The clock of
/// `crates/linux/preload` and its `sysinfo` say the same.
const FILES: [(&str, &str); 14] = [
    ("uptime", "100.00 100.00\n"),
    ("loadavg", "0.00 0.00 0.00 1/1 1\n"),
    (
        "stat",
        "cpu  1000 0 1000 8000 0 0 0 0 0 0\ncpu0 1000 0 1000 8000 0 0 0 0 0 0\nintr 0\nctxt 0\nbtime 1893455900\n\
         processes 1\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
    ),
    (
        "meminfo",
        "MemTotal:        4194304 kB\nMemFree:         2097152 kB\nMemAvailable:    2097152 kB\n\
         Buffers:               0 kB\nCached:                0 kB\nSwapCached:            0 kB\n\
         Active:                0 kB\nInactive:              0 kB\nSwapTotal:             0 kB\n\
         SwapFree:              0 kB\nDirty:                 0 kB\nWriteback:             0 kB\n\
         Mapped:                0 kB\nShmem:                 0 kB\nSlab:                  0 kB\n\
         SReclaimable:          0 kB\nSUnreclaim:            0 kB\nCommitLimit:     4194304 kB\n\
         Committed_AS:          0 kB\nHugePages_Total:       0\nHugePages_Free:        0\n\
         Hugepagesize:       2048 kB\n",
    ),
    (
        "cpuinfo",
        "processor\t: 0\nvendor_id\t: Glasshouse\ncpu family\t: 6\nmodel\t\t: 0\nmodel name\t: one CPU of a box\n\
         stepping\t: 0\ncpu MHz\t\t: 1000.000\ncache size\t: 1024 KB\nphysical id\t: 0\nsiblings\t: 1\n\
         core id\t\t: 0\ncpu cores\t: 1\nfpu\t\t: yes\ncpuid level\t: 13\nwp\t\t: yes\n\
         flags\t\t: fpu tsc cx8 cmov mmx fxsr sse sse2 syscall nx lm constant_tsc nopl pni cx16 sse4_1 sse4_2 popcnt\n\
         bogomips\t: 2000.00\nclflush size\t: 64\ncache_alignment\t: 64\n\
         address sizes\t: 40 bits physical, 48 bits virtual\n\n",
    ),
    ("version", "Linux version 6.0.0 (glass@box) #1 SMP\n"),
    ("vmstat", "nr_free_pages 524288\n"),
    ("zoneinfo", ""),
    ("sys/kernel/random/boot_id", "6a6c6173-7368-4f75-8365-000000000000\n"),
    ("sys/kernel/random/uuid", "6a6c6173-7368-4f75-8365-000000000001\n"),
    ("sys/kernel/random/entropy_avail", "256\n"),
    ("sys/kernel/ns_last_pid", "1\n"),
    ("sys/fs/file-nr", "1024\t0\t1048576\n"),
    ("sys/fs/inode-nr", "1024\t0\n"),
];

/// What may differ all the same, each with its reason; with what this machine lacks.
pub(super) fn uncontrolled(lacking: &[String]) -> Vec<String> {
    const ALWAYS: [&str; 9] = [
        "clock of static programs (Go among them) and of those that are started without our environment: it is a \
         preloaded library",
        "random numbers and time of the CPU (rdrand, rdtsc), and what the kernel gives a program at its start \
         (AT_RANDOM: Go's order of maps): nobody can stand between",
        "random numbers of static programs whose C library takes them from the vDSO: no filter sees that",
        "order of threads, and of processes that run at the same time: they share one CPU, and the kernel decides when",
        "times, inode and device numbers of files, and the order of a directory: they are the file system's",
        "CPU times, memory in use and start times of processes (getrusage, /proc/PID): they are the kernel's",
        "ports that the kernel chooses, and whoever is at the other end of a connection",
        "which of the machine's CPUs is the one, what it can do (cpuid), and the kernel's release (uname)",
        "when a time-out or a limit strikes: it goes by the real clock",
    ];
    lacking.iter().cloned().chain(ALWAYS.map(String::from)).collect()
}
