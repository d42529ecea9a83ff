//! The system calls by name: who may pass, who is refused, who is made to look absent.
//!
//! Calls that depend on their arguments are in [`super::rules`]. A call in no list fails with ENOSYS, so a
//! new kernel brings nothing into the box that nobody has read about. The lists are modelled on what
//! containers allow by default, less what only containers with privileges use.

use libc::*;

/// A system call.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: u32,
}

macro_rules! calls {
    ($($name:ident)*) => { &[$(Call { name: stringify!($name), number: $name as u32 }),*] };
}
#[cfg(test)]
pub(super) use calls;

/// Calls that pass.
pub(super) const ALLOWED: &[&[Call]] = &[
    // Read and write what is open already.
    calls![
        SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_preadv2
        SYS_pwritev2 SYS_lseek SYS_sendfile SYS_copy_file_range SYS_splice SYS_tee SYS_vmsplice SYS_readahead
        SYS_fadvise64 SYS_fallocate SYS_ftruncate SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_close
        SYS_close_range SYS_dup SYS_dup3 SYS_fcntl SYS_flock
    ],
    // Find, open and change files. What lies in reach is decided by the mount namespace and Landlock.
    calls![
        SYS_openat SYS_openat2 SYS_newfstatat SYS_fstat SYS_statx SYS_statfs SYS_fstatfs SYS_faccessat
        SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_unlinkat
        SYS_linkat SYS_symlinkat SYS_renameat SYS_truncate SYS_utimensat SYS_umask
    ],
    // Owners, modes and attributes of files. Set-uid bits gain nothing: nosuid and no new privileges.
    calls![
        SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat SYS_setxattr SYS_lsetxattr SYS_fsetxattr
        SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr
        SYS_lremovexattr SYS_fremovexattr SYS_setxattrat SYS_getxattrat SYS_listxattrat SYS_removexattrat
    ],
    // Wait for things. Numbers of watches are limited per user namespace.
    calls![
        SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2
        SYS_signalfd4 SYS_timerfd_create SYS_timerfd_settime SYS_timerfd_gettime SYS_inotify_init1
        SYS_inotify_add_watch SYS_inotify_rm_watch SYS_pipe2
    ],
    // Memory of the caller itself. The memory cgroup counts it, RLIMIT_MEMLOCK bounds the locked part.
    calls![
        SYS_brk SYS_mmap SYS_munmap SYS_mremap SYS_mprotect SYS_madvise SYS_msync SYS_mincore SYS_mlock
        SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_mseal SYS_memfd_create SYS_pkey_mprotect
        SYS_pkey_alloc SYS_pkey_free SYS_map_shadow_stack
    ],
    // Where memory is placed. Allocators and databases ask, and complain loudly when refused.
    calls![SYS_get_mempolicy SYS_set_mempolicy SYS_mbind],
    // Make, run and await processes and threads. clone and clone3 are free here because the guest uses
    // clone3 with namespaces; the word narrows them.
    calls![
        SYS_clone SYS_clone3 SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
        SYS_pidfd_open SYS_set_tid_address SYS_set_robust_list SYS_get_robust_list SYS_futex SYS_futex_waitv
        SYS_futex_wake SYS_futex_wait SYS_futex_requeue SYS_rseq SYS_membarrier
    ],
    // Signals. The pid namespace ends their reach.
    calls![
        SYS_kill SYS_tkill SYS_tgkill SYS_pidfd_send_signal SYS_rt_sigaction SYS_rt_sigprocmask
        SYS_rt_sigpending SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_rt_sigreturn SYS_rt_sigsuspend
        SYS_rt_sigtimedwait SYS_sigaltstack SYS_restart_syscall
    ],
    // Who am I, and become less. Users of the box are mapped to nobodies of the host.
    calls![
        SYS_getpid SYS_getppid SYS_gettid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid
        SYS_getresgid SYS_getgroups SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid
        SYS_setresgid SYS_setgroups SYS_setfsuid SYS_setfsgid SYS_capget SYS_capset SYS_getpgid SYS_setpgid
        SYS_getsid SYS_setsid
    ],
    // Lock oneself in further, as browsers and the guest itself do.
    calls![
        SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
    ],
    // Limits and priorities; the kernel refuses to raise them without a capability of the host.
    calls![
        SYS_getrlimit SYS_setrlimit SYS_getrusage SYS_getpriority SYS_ioprio_get
        SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam SYS_sched_setparam
        SYS_sched_getscheduler SYS_sched_getattr SYS_sched_get_priority_max SYS_sched_get_priority_min
        SYS_sched_rr_get_interval SYS_getcpu
    ],
    // Clocks to read and timers to set.
    calls![
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_times
        SYS_getitimer SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
        SYS_timer_delete
    ],
    // Facts about the system, and randomness.
    calls![SYS_uname SYS_sysinfo SYS_getrandom],
    // Sockets once made; socket and socketpair are judged by family.
    calls![
        SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_shutdown SYS_getsockname SYS_getpeername
        SYS_getsockopt SYS_setsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg
        SYS_recvmmsg
    ],
    // System V and POSIX queues, inside an ipc namespace of the box's own.
    calls![
        SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget
        SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive
        SYS_mq_notify SYS_mq_getsetattr
    ],
    // The older forms of the calls above, which newer machines never had.
    #[cfg(target_arch = "x86_64")]
    calls![
        SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_getdents SYS_mkdir SYS_rmdir
        SYS_link SYS_unlink SYS_symlink SYS_rename SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes
        SYS_futimesat SYS_dup2 SYS_pipe SYS_poll SYS_select SYS_epoll_create SYS_epoll_wait SYS_eventfd
        SYS_signalfd SYS_inotify_init SYS_fork SYS_vfork SYS_getpgrp SYS_pause SYS_alarm SYS_time
    ],
    // Thread pointer and CPU features of x86.
    #[cfg(target_arch = "x86_64")]
    calls![SYS_arch_prctl],
    // Placed into a program by a host that traces it. To refuse them would crash the traced program, and
    // from anywhere but the kernel's own trampoline they only raise SIGILL.
    #[cfg(target_arch = "x86_64")]
    calls![SYS_uretprobe SYS_uprobe],
];

/// Calls that fail with EPERM.
pub(super) const REFUSED: &[&[Call]] = &[
    // Look into, or reach through, another process.
    calls![
        SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_process_madvise SYS_process_mrelease
        SYS_pidfd_getfd SYS_kcmp SYS_migrate_pages SYS_move_pages SYS_set_mempolicy_home_node
    ],
    // Other namespaces and other roots.
    calls![SYS_unshare SYS_setns SYS_chroot SYS_pivot_root SYS_sethostname SYS_setdomainname],
    // Mounts, by the old and the new calls, and the look at them.
    calls![
        SYS_mount SYS_umount2 SYS_open_tree SYS_open_tree_attr SYS_move_mount SYS_fsopen SYS_fsconfig
        SYS_fsmount SYS_fspick SYS_mount_setattr SYS_statmount SYS_listmount
    ],
    // Files by inode number, past every path check, and events of a whole file system.
    calls![SYS_open_by_handle_at SYS_name_to_handle_at SYS_fanotify_init SYS_fanotify_mark],
    // Large and often broken parts of the kernel that programs in a box do without.
    calls![
        SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_add_key SYS_request_key SYS_keyctl SYS_lookup_dcookie
    ],
    // The scheduling policy is in memory, so it cannot be judged.
    calls![SYS_sched_setattr],
    // The machine itself: kernel code, clock, disks, log, power.
    calls![
        SYS_init_module SYS_finit_module SYS_delete_module SYS_kexec_load SYS_kexec_file_load SYS_reboot
        SYS_clock_settime SYS_clock_adjtime SYS_adjtimex SYS_settimeofday SYS_swapon SYS_swapoff SYS_quotactl
        SYS_quotactl_fd SYS_acct SYS_syslog SYS_vhangup SYS_nfsservctl
    ],
    // Hardware and segment tables of x86, and its oldest calls.
    #[cfg(target_arch = "x86_64")]
    calls![
        SYS_iopl SYS_ioperm SYS_modify_ldt SYS_create_module SYS_get_kernel_syms SYS_query_module SYS_uselib
        SYS_ustat SYS_sysfs SYS__sysctl
    ],
];

/// Calls that pass or fail by their arguments: see [`super::rules`].
pub(super) const JUDGED: &[&[Call]] = &[
    calls![
        SYS_socket SYS_socketpair SYS_ioctl SYS_personality SYS_mknodat SYS_renameat2 SYS_prctl
        SYS_sched_setscheduler SYS_ioprio_set SYS_sync SYS_syncfs SYS_prlimit64 SYS_sched_setaffinity
        SYS_setpriority
    ],
    #[cfg(target_arch = "x86_64")]
    calls![SYS_mknod],
];

/// Calls that fail with ENOSYS, because their users have another way when the kernel lacks them.
pub(super) const ABSENT: &[&[Call]] = &[
    // Does calls from a kernel thread, where no filter sees them.
    calls![SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register],
    // Memory that even the host cannot look at.
    calls![SYS_memfd_secret],
    // One budget (aio-max-nr) for the whole machine.
    calls![SYS_io_setup SYS_io_destroy SYS_io_submit SYS_io_cancel SYS_io_getevents SYS_io_pgetevents],
    // New or given up, and wanted by nobody: page-cache residency, security labels, file flags by path.
    calls![
        SYS_cachestat SYS_lsm_get_self_attr SYS_lsm_set_self_attr SYS_lsm_list_modules SYS_file_getattr
        SYS_file_setattr SYS_remap_file_pages
    ],
    // Numbers without a call behind them in a 64-bit kernel.
    #[cfg(target_arch = "x86_64")]
    calls![
        SYS_getpmsg SYS_putpmsg SYS_afs_syscall SYS_tuxcall SYS_security SYS_vserver SYS_epoll_ctl_old
        SYS_epoll_wait_old SYS_set_thread_area SYS_get_thread_area
    ],
];

macro_rules! unnamed {
    ($($name:ident = $number:literal;)*) => {
        $(
            #[allow(non_upper_case_globals, reason = "spelled like its neighbours in libc")]
            const $name: c_long = $number;
        )*
    };
}

// Calls that the libc crate does not name on every machine and C library. From 424 on all machines agree.
unnamed! {
    SYS_cachestat = 451; SYS_fchmodat2 = 452; SYS_map_shadow_stack = 453; SYS_futex_wake = 454;
    SYS_futex_wait = 455; SYS_futex_requeue = 456; SYS_statmount = 457; SYS_listmount = 458;
    SYS_lsm_get_self_attr = 459; SYS_lsm_set_self_attr = 460; SYS_lsm_list_modules = 461; SYS_mseal = 462;
    SYS_setxattrat = 463; SYS_getxattrat = 464; SYS_listxattrat = 465; SYS_removexattrat = 466;
    SYS_open_tree_attr = 467; SYS_file_getattr = 468; SYS_file_setattr = 469;
}
#[cfg(target_arch = "x86_64")]
unnamed! {
    SYS_create_module = 174; SYS_get_kernel_syms = 177; SYS_query_module = 178; SYS_kexec_file_load = 320;
    SYS_io_pgetevents = 333; SYS_uretprobe = 335; SYS_uprobe = 336;
}
#[cfg(target_arch = "aarch64")]
unnamed! { SYS_io_pgetevents = 292; SYS_kexec_file_load = 294; }
