//! Whom to kill, and when.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use glasshouse_linux::process;

/// How far the numbers of a process's children are from its own, threads between them included.
const NUMBERS: u32 = 32;
/// How long something may take that takes milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The processes that a program starts to make a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Carries out the plan, outside.
    Builder,
    /// Carries out the rest of it, inside, and is the guest from then on.
    First,
}

/// Starts a program whose words are kept.
pub(crate) fn start(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program can be started")
}

/// Waits actively: the point is the moment, and the kernel's own wake-up would blur it.
pub(crate) fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// A child of the program, as soon as it is there. `None`: the program ended before.
pub(crate) fn part(program: &mut Child, part: Part) -> Option<OwnedFd> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let parent = program.id();
        let is_it = |pid: &u32| parent_of(*pid) == Some(parent) && levels(*pid) == Some(1 + part as usize);
        if let Some(pid) = (parent + 1..parent + NUMBERS).find(is_it) {
            let pidfd = process::open(pid as i32).ok();
            // The number may have gone to somebody else before we had the descriptor, not after.
            if let Some(pidfd) = pidfd.filter(|_| is_it(&pid)) {
                return Some(pidfd);
            }
        }
        if program.try_wait().expect("it is our child").is_some() {
            return None;
        }
    }
    panic!("the program neither starts a process nor ends");
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// How many process namespaces see it, from ours on.
fn levels(pid: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(numbers.split_ascii_whitespace().count())
}

/// kill -9.
pub(crate) fn kill(pidfd: &OwnedFd) {
    process::signal(pidfd.as_fd(), 9).expect("it may be killed");
}

/// Waits for the end of a process, which need not be a child of ours.
#[track_caller]
pub(crate) fn ends(pidfd: &OwnedFd, what: &str) {
    let ended =
        process::wait_end(pidfd.as_fd(), PATIENCE).expect("a descriptor of a process can be waited for");
    assert!(ended, "{what} did not end within {PATIENCE:?}");
}
