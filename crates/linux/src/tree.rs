//! Trees of files that somebody else made: removing them without believing anything about them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// Removes `name` in `dir`, whatever it is and however deep, following no link. Missing is no error.
///
/// Subdirectories are first moved up next to the root of the tree, so that neither the depth of a hostile tree nor
/// its width costs more than two descriptors and no recursion.
pub fn remove(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let top = open_dir(dir, name)?;
    let mut next = 0u64;
    let mut moved = empty_dir(top.as_fd(), top.as_fd(), &mut next)?;
    while let Some(child) = moved.pop() {
        let fd = open_dir(top.as_fd(), &child)?;
        moved.extend(empty_dir(fd.as_fd(), top.as_fd(), &mut next)?);
        rustix::fs::unlinkat(&top, child.as_str(), AtFlags::REMOVEDIR)?;
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        // Its maker took our right to look: it is ours all the same.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
        }
        other => Ok(other?),
    }
}

/// Removes what can be removed in `dir`, moves directories that are not empty to `top`, and names those.
fn empty_dir(dir: BorrowedFd<'_>, top: BorrowedFd<'_>, next: &mut u64) -> io::Result<Vec<String>> {
    // The maker may have taken the right to write too. Failing to give it back shows in what follows.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    let mut moved = Vec::new();
    let inside_top = rustix::fs::fstat(dir)?.st_ino == rustix::fs::fstat(top)?.st_ino;
    loop {
        let mut left = 0;
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if inside_top && moved.iter().any(|m: &String| m.as_bytes() == name.to_bytes()) {
                continue;
            }
            left += 1;
            if entry.file_type() != FileType::Directory {
                match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => continue,
                    Err(Errno::ISDIR) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            let _ = rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty());
            moved.push(move_up(dir, name, top, next)?);
        }
        if left == 0 {
            return Ok(moved);
        }
    }
}

fn move_up(
    dir: BorrowedFd<'_>,
    name: &std::ffi::CStr,
    top: BorrowedFd<'_>,
    next: &mut u64,
) -> io::Result<String> {
    loop {
        *next += 1;
        let new = format!(".glass-{next}");
        match rustix::fs::renameat_with(dir, name, top, new.as_str(), rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(new),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_deep_locked_tree_goes_and_what_its_links_point_at_stays() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "stays").unwrap();
        let root = dir.path().join("tree");
        std::fs::create_dir(&root).unwrap();
        let mut at: OwnedFd = File::open(&root).unwrap().into();
        for depth in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            rustix::fs::symlinkat(&outside, &at, "link").unwrap();
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let below = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
            if depth % 7 == 0 {
                rustix::fs::fchmod(&at, Mode::empty()).unwrap();
            }
            at = below;
        }
        let parent = File::open(dir.path()).unwrap();
        remove(parent.as_fd(), "tree").unwrap();
        assert!(!root.exists() && outside.exists());
        remove(parent.as_fd(), "tree").unwrap();
    }
}
