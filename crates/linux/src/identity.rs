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
        // SAFETY: the call takes one number; it answers with the id before, and fails only where the kernel has no such call.
        let before = unsafe { libc::syscall(call, id) };
        if before < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            return lend_effective(uid, gid);
        }
        // SAFETY: as above; an invalid id changes nothing, so this reads the present one.
        let now = unsafe { libc::syscall(call, u32::MAX) };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    Ok(())
}

/// The same for kernels without users for files alone (gVisor's): all that this thread does, it does as this user meanwhile.
/// Its real and saved ids stay, so that the way back is open and nobody else may signal it.
fn lend_effective(uid: u32, gid: u32) -> io::Result<()> {
    let same = u32::MAX;
    // SAFETY: the call takes three numbers.
    let user = || check(unsafe { libc::syscall(libc::SYS_setresuid, same, uid, same) });
    // SAFETY: the call takes three numbers.
    let group = || check(unsafe { libc::syscall(libc::SYS_setresgid, same, gid, same) });
    // Who is not root may not change his group.
    if uid == 0 { user().and_then(|()| group()) } else { group().and_then(|()| user()) }
}

/// The permission bits that new files lack, set for the whole process.
pub fn set_umask(bits: u32) {
    // SAFETY: the call takes one number and cannot fail.
    unsafe { libc::umask(bits) };
}
