//! Processes that exist: waiting for their end, signalling them, looking at them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// How a process ended, and what it had used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// An exit code, or the signal.
    pub how: How,
    /// User and system time of the process and of the children that it waited for.
    pub cpu: Duration,
    /// The largest resident size among them.
    pub peak_bytes: u64,
}

/// An exit code, or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It ended by itself.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

/// Places the memory of every program that this process or its children execute from now on where it always is. They may
/// take that back for themselves.
pub fn fix_addresses() -> io::Result<()> {
    // SAFETY: the call takes a number.
    let before = unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    if before < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A child that nobody has collected yet: until then, its number is nobody else's.
#[derive(Debug)]
pub struct Child {
    /// Its number in our namespace.
    pub pid: i32,
    /// The process itself. Some kernels have no descriptors of processes (gVisor's): there its number has to do.
    pidfd: Option<OwnedFd>,
}

impl Child {
    /// What clone3 has just made, and the descriptor that it has given us, unless it could not.
    pub(crate) fn new(pid: i32, pidfd: i32) -> Child {
        // SAFETY: the kernel has just given us this descriptor and nobody else knows of it.
        let pidfd = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
        Child { pid, pidfd }
    }

    /// One that became our child when its parent ended. An error: it is none of our children, or is gone already.
    pub fn adopted(pid: i32) -> io::Result<Child> {
        let pidfd = match open(pid) {
            Ok(pidfd) => Some(pidfd),
            Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => None,
            Err(e) => return Err(e),
        };
        // SAFETY: siginfo_t is plain data, for which all zeros is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the pointer is to a live siginfo_t of ours. The call collects nothing.
        if unsafe { libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Child { pid, pidfd })
    }

    /// What can be waited for until it has ended. Without it, a signal has to tell (SIGCHLD).
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Sends it a signal. If it has ended already, that is no error.
    pub fn signal(&self, number: i32) -> io::Result<()> {
        match &self.pidfd {
            Some(pidfd) => signal(pidfd.as_fd(), number),
            None => signal_pid(self.pid, number),
        }
    }

    /// Collects it, if it has ended. `None`: it runs on. Once collected, it is not to be asked for anything more.
    pub fn reap(&self) -> io::Result<Option<Ended>> {
        match &self.pidfd {
            Some(pidfd) => reap(pidfd.as_fd()),
            None => reap_pid(self.pid),
        }
    }
}

/// Collects a child that has ended. `None`: it runs on.
pub fn reap(pidfd: BorrowedFd<'_>) -> io::Result<Option<Ended>> {
    wait_with_usage(libc::P_PIDFD, pidfd.as_raw_fd() as libc::id_t).map(|found| found.map(|(_, ended)| ended))
}

/// The number of some child that has ended and waits to be collected. It goes on waiting.
pub fn peek_ended() -> io::Result<Option<i32>> {
    // SAFETY: siginfo_t is plain data, for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the pointer is to a live siginfo_t of ours.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut info, flags) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    // SAFETY: waitid has filled `info` for SIGCHLD, or left the pid 0.
    let pid = unsafe { info.si_pid() };
    Ok((pid != 0).then_some(pid))
}

/// Whether we have any child at all, be it one that has ended and waits to be collected.
pub fn has_children() -> io::Result<bool> {
    // SAFETY: siginfo_t is plain data, for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the pointer is to a live siginfo_t of ours. The call collects nothing.
    if unsafe { libc::waitid(libc::P_ALL, 0, &mut info, flags) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(false) } else { Err(error) };
    }
    Ok(true)
}

/// Collects a child by its number.
pub fn reap_pid(pid: i32) -> io::Result<Option<Ended>> {
    wait_with_usage(libc::P_PID, pid as libc::id_t).map(|found| found.map(|(_, ended)| ended))
}

/// Kills a child and collects it, by its number: for want of a descriptor. A process that is not our child is left alone;
/// one that is keeps its number until it is collected.
pub fn end_child(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let ended = WaitIdOptions::EXITED;
    rustix::process::waitid(WaitId::Pid(pid), ended | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?;
    rustix::process::kill_process(pid, Signal::KILL)?;
    rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), ended))?;
    Ok(())
}

fn wait_with_usage(kind: libc::idtype_t, id: libc::id_t) -> io::Result<Option<(i32, Ended)>> {
    // SAFETY: siginfo_t is plain data, for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: rusage is plain data, for which all zeros is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG;
    // SAFETY: both pointers are to live values of ours. The raw call, because libc's waitid has no rusage.
    let result = unsafe { libc::syscall(libc::SYS_waitid, kind, id, &mut info, flags, &mut usage) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid has filled `info` for SIGCHLD, or left the pid 0.
    let pid = unsafe { info.si_pid() };
    if pid == 0 {
        return Ok(None);
    }
    // SAFETY: as above.
    let status = unsafe { info.si_status() };
    let how = if info.si_code == libc::CLD_EXITED { How::Code(status) } else { How::Signal(status) };
    let time =
        |t: libc::timeval| Duration::from_secs(t.tv_sec as u64) + Duration::from_micros(t.tv_usec as u64);
    let ended = Ended {
        how,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        peak_bytes: usage.ru_maxrss as u64 * 1024,
    };
    Ok(Some((pid, ended)))
}

/// CPU time of all threads of a process so far. Its children are not counted.
pub fn cpu_time(pid: i32) -> io::Result<Duration> {
    // The clock of a process, as clock_getcpuclockid(3) makes it: its number turned over, and the precise clock (2).
    let clock = (!pid << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec of ours.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// How a process is served with the disk, in the kernel's own number.
pub fn disk_priority(pid: i32) -> io::Result<i32> {
    const IOPRIO_WHO_PROCESS: libc::c_int = 1;
    // SAFETY: the call takes numbers.
    let priority = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, pid) };
    if priority < 0 { Err(io::Error::last_os_error()) } else { Ok(priority as i32) }
}

/// A descriptor of a process.
pub fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal through a descriptor. A process that is gone already is no error.
pub fn signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let signal = named(signal)?;
    match rustix::process::pidfd_send_signal(pidfd, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

/// Sends a signal to a process by its number. One that is gone already is no error.
pub fn signal_pid(pid: i32, signal: i32) -> io::Result<()> {
    let target = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    match rustix::process::kill_process(target, named(signal)?) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

/// Sends a signal to every process that we may send one to, but us and the first of our namespace: all at one moment, so that
/// nobody escapes by forking. That there is none is no error.
pub fn signal_all(signal: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    if unsafe { libc::kill(-1, signal) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) };
    }
    Ok(())
}

/// Sends a signal to a process group. One that is gone already is no error.
pub fn signal_group(group: i32, signal: i32) -> io::Result<()> {
    let target = Pid::from_raw(group).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    match rustix::process::kill_process_group(target, named(signal)?) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        other => Ok(other?),
    }
}

fn named(signal: i32) -> io::Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("no signal has the number {signal}"))
    })
}

/// Waits until the process has ended, at most so long. Whether it has.
pub fn wait_end(pidfd: BorrowedFd<'_>, at_most: Duration) -> io::Result<bool> {
    let deadline = std::time::Instant::now() + at_most;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let left = rustix::time::Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Fifty-two numbers of up to twenty digits, and a name, are less.
const STAT_BYTES: usize = 2048;

/// When the process started, in ticks since the machine did: with the number, it names a process for ever.
pub fn start_ticks(pid: i32) -> io::Result<u64> {
    // The file says that it is empty, so whoever reads it whole has to feel his way. It is asked for before every command.
    let mut stat = [0; STAT_BYTES];
    let length = File::open(format!("/proc/{pid}/stat"))?.read(&mut stat)?;
    let stat = String::from_utf8_lossy(&stat[..length]);
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks = after_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok());
    ticks.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "stat of the process has no start time"))
}

/// Every signal does again what it does by default. Whoever started us may have told some to be ignored, and that would
/// be inherited by everything that we start.
pub fn default_signals() {
    // As the kernel has it: handler, flags, restorer, mask.
    let default = [libc::SIG_DFL, 0, 0, 0];
    for signal in 1..=64 {
        // SAFETY: the pointer is to a live sigaction of the kernel's layout with a mask of 8 bytes. The raw call, because
        // libc keeps two signals to itself. KILL and STOP refuse, which is fine.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &default, 0, 8) };
    }
}

/// Orphans below us become our children.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Touches all of our memory, so that nothing of it has to be fetched when it is needed. Where that is not allowed, it is
/// fetched then.
pub fn touch_memory() {
    if rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT).is_ok() {
        let _ = rustix::mm::munlockall();
    }
}

/// Gives memory that was freed back to the kernel, where the allocator would keep it for later.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number and touches nothing but the allocator's own free memory, under its own lock.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Ends this process at once: no destructor, no handler.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: the call takes a number and does not return.
    unsafe { libc::_exit(code) }
}
