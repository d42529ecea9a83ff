//! Capabilities and the other one-way switches of a process.
//!
//! The order on the way into the box, and why:
//!
//! 1. [`drop_bounding`], which itself takes CAP_SETPCAP, so it must run before that is gone.
//! 2. [`set`] to the few that remain; nothing can add to them later, as there is no bounding set left.
//! 3. [`no_new_privs`], so that no exec brings any back; Landlock and seccomp ask for it too.
//! 4. [`set_dumpable`], last: a change of user id sets the flag anew, and so does an exec.
//!
//! All of these act on the calling thread and none allocates, so they may run between vfork and exec.

use std::io;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// The capabilities that we ever keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cap {
    /// Give files to another owner.
    Chown,
    /// Read and write files whatever their mode says.
    DacOverride,
    /// Read files and look into directories whatever their mode says.
    DacReadSearch,
    /// Change modes and times of files of another owner.
    Fowner,
    /// Signal processes of another user.
    Kill,
    /// Become another group.
    Setgid,
    /// Become another user.
    Setuid,
    /// Look into processes of another user.
    SysPtrace,
    /// Mount, enter namespaces and much else.
    SysAdmin,
    /// Go beyond resource limits.
    SysResource,
    /// Choose the number of a new process.
    CheckpointRestore,
}

impl Cap {
    /// The capability's bit in the sets that [`effective`] and `/proc/<pid>/status` show.
    pub const fn bit(self) -> u64 {
        let set = match self {
            Cap::Chown => CapabilitySet::CHOWN,
            Cap::DacOverride => CapabilitySet::DAC_OVERRIDE,
            Cap::DacReadSearch => CapabilitySet::DAC_READ_SEARCH,
            Cap::Fowner => CapabilitySet::FOWNER,
            Cap::Kill => CapabilitySet::KILL,
            Cap::Setgid => CapabilitySet::SETGID,
            Cap::Setuid => CapabilitySet::SETUID,
            Cap::SysPtrace => CapabilitySet::SYS_PTRACE,
            Cap::SysAdmin => CapabilitySet::SYS_ADMIN,
            Cap::SysResource => CapabilitySet::SYS_RESOURCE,
            Cap::CheckpointRestore => CapabilitySet::CHECKPOINT_RESTORE,
        };
        set.bits()
    }
}

/// Empties the bounding set, of capabilities we have no name for, too.
pub fn drop_bounding() -> io::Result<()> {
    for number in 0..u64::BITS {
        let cap = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(cap) {
            Ok(true) => remove_capability_from_bounding_set(cap)?,
            Ok(false) => {}
            // The first number that this kernel does not know; they have no gaps.
            Err(rustix::io::Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Keeps exactly these as permitted and effective; nothing is inheritable or ambient.
pub fn set(permitted_and_effective: &[Cap]) -> io::Result<()> {
    keep(permitted_and_effective.iter().fold(0, |bits, cap| bits | cap.bit()))
}

/// The same as [`set`] for capabilities that came as numbers over the wall.
pub fn set_numbers(permitted_and_effective: &[u32]) -> io::Result<()> {
    let mut bits = 0;
    for &number in permitted_and_effective {
        bits |= 1_u64.checked_shl(number).ok_or(io::ErrorKind::InvalidInput)?;
    }
    keep(bits)
}

/// Makes effective again what is still permitted, after a change of user id has switched it off.
pub fn raise_permitted() -> io::Result<()> {
    let sets = capabilities(None)?;
    Ok(set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets })?)
}

/// The capabilities in force, one bit each.
pub fn effective() -> io::Result<u64> {
    Ok(capabilities(None)?.effective.bits())
}

/// Lets no exec gain anything from now on, by set-uid bits or file capabilities.
pub fn no_new_privs() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Whether others of the same user may trace this process, read its `/proc` files and see its core dump.
pub fn set_dumpable(dumpable: bool) -> io::Result<()> {
    let behavior = if dumpable { DumpableBehavior::Dumpable } else { DumpableBehavior::NotDumpable };
    Ok(set_dumpable_behavior(behavior)?)
}

fn keep(bits: u64) -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(bits);
    match clear_ambient_capability_set() {
        // A kernel that does not know of them has none (gVisor's). Others empty them with the inheritable ones, below.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(error) => return Err(error.into()),
    }
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )?;
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use rustix::process::dumpable_behavior;
    use rustix::thread::no_new_privs as has_no_new_privs;

    use super::*;

    /// Runs `body` in a forked child and returns how that ended. The tests around it have threads, so the
    /// body must not allocate, lock or panic; it tells its result by the exit code.
    pub(crate) fn in_child(body: impl FnOnce() -> u8) -> ExitStatus {
        // SAFETY: the child runs only `body`, which by the contract above takes no lock that another thread
        // may have held at the fork, and then leaves.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = body();
            // SAFETY: ends the child at once, without the exit handlers that belong to the parent.
            unsafe { libc::_exit(code.into()) };
        }
        assert!(pid > 0, "cannot fork");
        let mut status = 0;
        // SAFETY: `status` is live, and `pid` is our own child that nobody else awaits.
        let reaped = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(reaped, pid);
        ExitStatus::from_raw(status)
    }

    /// True if there is something to drop.
    fn is_privileged() -> bool {
        let wanted = CapabilitySet::SETPCAP.bits() | Cap::Kill.bit() | Cap::Setuid.bit();
        let privileged = effective().unwrap() & wanted == wanted;
        if !privileged {
            eprintln!("skipped: needs capabilities to drop");
        }
        privileged
    }

    /// True if the call went well, and then `fact` holds.
    fn holds(call: io::Result<()>, fact: impl FnOnce() -> io::Result<bool>) -> u8 {
        u8::from(call.is_ok() && fact().unwrap_or(false))
    }

    #[test]
    fn bounding_set_ends_up_empty() {
        let empty = || {
            let mut known = (0..u64::BITS).map(|n| CapabilitySet::from_bits_retain(1 << n));
            Ok(!known.any(|cap| capability_is_in_bounding_set(cap).unwrap_or(false)))
        };
        if is_privileged() {
            assert_eq!(in_child(|| holds(drop_bounding(), empty)).code(), Some(1));
        }
    }

    #[test]
    fn dropping_the_bounding_set_twice_needs_no_privilege() {
        if is_privileged() {
            let twice = || drop_bounding().and_then(|()| set(&[])).and_then(|()| drop_bounding());
            assert_eq!(in_child(|| holds(twice(), || Ok(true))).code(), Some(1));
        }
    }

    #[test]
    fn only_the_named_ones_remain() {
        let kept = [Cap::Kill, Cap::Setuid];
        let remain = || {
            let sets = capabilities(None)?;
            let bits = Cap::Kill.bit() | Cap::Setuid.bit();
            Ok(sets.effective.bits() == bits && sets.permitted.bits() == bits && sets.inheritable.is_empty())
        };
        if is_privileged() {
            assert_eq!(in_child(|| holds(set(&kept), remain)).code(), Some(1));
        }
    }

    #[test]
    fn numbers_do_the_same_as_names() {
        let is_kill_alone = || Ok(effective()? == Cap::Kill.bit());
        if is_privileged() {
            assert_eq!(in_child(|| holds(set_numbers(&[5]), is_kill_alone)).code(), Some(1));
        }
        assert_eq!(set_numbers(&[64]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn permitted_ones_can_be_raised_again() {
        let lowered = || {
            let sets = capabilities(None)?;
            Ok(set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets })?)
        };
        let all_are_back = || {
            let sets = capabilities(None)?;
            Ok(sets.effective == sets.permitted)
        };
        let status = in_child(|| holds(lowered().and_then(|()| raise_permitted()), all_are_back));
        assert_eq!(status.code(), Some(1));
    }

    #[test]
    fn what_is_dropped_cannot_come_back() {
        let regained = || set(&[]).and_then(|()| set(&[Cap::Kill]));
        let errno = in_child(|| regained().err().and_then(|error| error.raw_os_error()).unwrap_or(0) as u8);
        assert_eq!(errno.code(), Some(libc::EPERM));
    }

    #[test]
    fn bits_are_those_of_the_kernel() {
        let caps = [Cap::Chown, Cap::DacOverride, Cap::Fowner, Cap::Kill, Cap::Setgid, Cap::Setuid];
        assert_eq!(caps.map(|cap| cap.bit().trailing_zeros()), [0, 1, 3, 5, 6, 7]);
        let caps = [Cap::SysPtrace, Cap::SysAdmin, Cap::SysResource];
        assert_eq!(caps.map(|cap| cap.bit().trailing_zeros()), [19, 21, 24]);
    }

    #[test]
    fn no_new_privs_is_set() {
        let fact = || Ok(has_no_new_privs()?);
        assert_eq!(in_child(|| holds(no_new_privs(), fact)).code(), Some(1));
    }

    #[test]
    fn dumpable_goes_off_and_on() {
        let is = |wanted| move || Ok(dumpable_behavior()? == wanted);
        let off = in_child(|| holds(set_dumpable(false), is(DumpableBehavior::NotDumpable)));
        assert_eq!(off.code(), Some(1));
        let on = || set_dumpable(false).and_then(|()| set_dumpable(true));
        assert_eq!(in_child(|| holds(on(), is(DumpableBehavior::Dumpable))).code(), Some(1));
    }
}
