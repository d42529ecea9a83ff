//! Who a thread is. Raw calls: libc's own would send signals to other threads, and there are none here.

use std::io;

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Becomes this user and group, real, effective and saved, with no further groups.
pub fn become_user(uid: u32, gid: u32, groups: Option<&[u32]>) -> io::Result<()> {
    if let Some(groups) = groups {
        // SAFETY: the pointer and the length describe one live slice.
        check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })?;
    }
    // SAFETY: the call takes three numbers.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: the call takes three numbers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// Becomes this user for a moment: real and effective, with the saved one left at root, so that the way back is open.
pub fn lend_user(uid: u32) -> io::Result<()> {
    // SAFETY: the call takes three numbers.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, 0) })
}

/// Accesses files as this user and group from now on. The kernel takes the file capabilities away while it is not 0.
pub fn set_fs_user(uid: u32, gid: u32) -> io::Result<()> {
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, uid)] {
        // SAFETY: the call takes one number and cannot fail; it answers with the id before.
        unsafe { libc::syscall(call, id) };
        // SAFETY: as above; an invalid id changes nothing, so this reads the present one.
        let now = unsafe { libc::syscall(call, u32::MAX) };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

/// The permission bits that new files lack, set for the whole process.
pub fn set_umask(bits: u32) {
    // SAFETY: the call takes one number and cannot fail.
    unsafe { libc::umask(bits) };
}
