//! System V objects: they outlive their makers, so a box that is to be clean needs them removed.

use std::io;
use std::mem::MaybeUninit;

/// How many objects of one kind are looked at.
const OBJECTS_MAX: i32 = 1 << 20;

/// Commands of the kernel's that libc does not name.
const SHM_STAT: libc::c_int = 13;
const SHM_INFO: libc::c_int = 14;

/// Removes all shared memory, semaphores and message queues of our IPC namespace. How many.
pub fn clear() -> io::Result<usize> {
    Ok(clear_memory()? + clear_semaphores()? + clear_queues()?)
}

/// Whether our IPC namespace has none of them.
pub fn is_empty() -> io::Result<bool> {
    // A shm_info is smaller, and begins with the number of segments.
    let mut memory = [0 as libc::c_int; 64];
    // SAFETY: SHM_INFO writes a shm_info, for which the buffer has room.
    check(unsafe { libc::shmctl(0, SHM_INFO, memory.as_mut_ptr().cast()) })?;
    let segments = memory[0];
    let mut semaphores = MaybeUninit::<libc::seminfo>::zeroed();
    // SAFETY: SEM_INFO writes one seminfo.
    check(unsafe { libc::semctl(0, 0, libc::SEM_INFO, semaphores.as_mut_ptr()) })?;
    // SAFETY: the call has filled it, and it was zeroed before.
    let sets = unsafe { semaphores.assume_init() }.semusz;
    let mut queues = MaybeUninit::<libc::msginfo>::zeroed();
    // SAFETY: MSG_INFO writes one msginfo.
    check(unsafe { libc::msgctl(0, libc::MSG_INFO, queues.as_mut_ptr().cast()) })?;
    // SAFETY: the call has filled it, and it was zeroed before.
    let queues = unsafe { queues.assume_init() }.msgpool;
    Ok((segments, sets, queues) == (0, 0, 0))
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Goes through the kernel's table: `id` gives the object at a place, `remove` takes it away. Places may be empty.
fn each(
    last: libc::c_int,
    id: impl Fn(libc::c_int) -> libc::c_int,
    remove: impl Fn(libc::c_int) -> libc::c_int,
) -> io::Result<usize> {
    let mut removed = 0;
    for place in 0..=last.min(OBJECTS_MAX) {
        let Ok(id) = check(id(place)) else { continue };
        check(remove(id))?;
        removed += 1;
    }
    Ok(removed)
}

fn clear_memory() -> io::Result<usize> {
    let mut info = MaybeUninit::<[u8; 256]>::uninit();
    // SAFETY: SHM_INFO writes a shm_info, which is smaller than the buffer.
    let last = check(unsafe { libc::shmctl(0, SHM_INFO, info.as_mut_ptr().cast()) })?;
    each(
        last,
        |place| {
            let mut stat = MaybeUninit::<libc::shmid_ds>::uninit();
            // SAFETY: SHM_STAT writes one shmid_ds.
            unsafe { libc::shmctl(place, SHM_STAT, stat.as_mut_ptr()) }
        },
        // SAFETY: IPC_RMID reads and writes no memory of ours.
        |id| unsafe { libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
    )
}

fn clear_semaphores() -> io::Result<usize> {
    let mut info = MaybeUninit::<libc::seminfo>::uninit();
    // SAFETY: SEM_INFO writes one seminfo.
    let last = check(unsafe { libc::semctl(0, 0, libc::SEM_INFO, info.as_mut_ptr()) })?;
    each(
        last,
        |place| {
            let mut stat = MaybeUninit::<libc::semid_ds>::uninit();
            // SAFETY: SEM_STAT writes one semid_ds.
            unsafe { libc::semctl(place, 0, libc::SEM_STAT, stat.as_mut_ptr()) }
        },
        // SAFETY: IPC_RMID reads and writes no memory of ours.
        |id| unsafe { libc::semctl(id, 0, libc::IPC_RMID) },
    )
}

fn clear_queues() -> io::Result<usize> {
    let mut info = MaybeUninit::<[u8; 256]>::uninit();
    // SAFETY: MSG_INFO writes a msginfo, which is smaller than the buffer.
    let last = check(unsafe { libc::msgctl(0, libc::MSG_INFO, info.as_mut_ptr().cast()) })?;
    each(
        last,
        |place| {
            let mut stat = MaybeUninit::<libc::msqid_ds>::uninit();
            // SAFETY: MSG_STAT writes one msqid_ds.
            unsafe { libc::msgctl(place, libc::MSG_STAT, stat.as_mut_ptr()) }
        },
        // SAFETY: IPC_RMID reads and writes no memory of ours.
        |id| unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) },
    )
}
