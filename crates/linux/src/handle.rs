//! Which file it is: what tells one from every other that ever was in its place.

use std::ffi::CString;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The most that the kernel takes for one.
const HANDLE_BYTES_MAX: usize = 128;

/// What a file system calls a file, for as long as there is that file: with the number of its inode, how often that number was
/// given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    file_system: i32,
    kind: i32,
    name: Vec<u8>,
}

/// As the kernel writes it.
#[repr(C)]
struct Room {
    bytes: u32,
    kind: i32,
    name: [u8; HANDLE_BYTES_MAX],
}

impl Handle {
    /// That of the file that has this name now. Some file systems have none to give.
    pub fn of(path: &Path) -> io::Result<Handle> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let mut room = Room { bytes: HANDLE_BYTES_MAX as u32, kind: 0, name: [0; HANDLE_BYTES_MAX] };
        let mut file_system = 0;
        // SAFETY: the path is a C string, `room` has as many bytes behind its head as it says, and both it and the number live
        // for the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                &raw mut room,
                &raw mut file_system,
                0,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let length = (room.bytes as usize).min(HANDLE_BYTES_MAX);
        Ok(Handle { file_system, kind: room.kind, name: room.name[..length].to_vec() })
    }
}

// The kernel knows nothing between the head and the name.
const _: () = assert!(offset_of!(Room, name) == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_of_the_same_name_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (path, next) = (dir.path().join("a"), dir.path().join("b"));
        let mut seen = Vec::new();
        for round in 0..20 {
            std::fs::write(&next, "same").unwrap();
            std::fs::rename(&next, &path).unwrap();
            let Ok(handle) = Handle::of(&path) else { return };
            assert_eq!(Handle::of(&path).unwrap(), handle);
            assert!(!seen.contains(&handle), "round {round}");
            seen.push(handle);
        }
        assert!(Handle::of(&next).is_err());
    }
}
