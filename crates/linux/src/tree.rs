//! Trees of files that somebody else made: removing them without believing anything about them.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

/// How often a directory is tried again into which somebody keeps putting things.
const ROUNDS_MAX: usize = 100;

/// Removes `name` in `dir`, whatever it is and however deep, following no link. Missing is no error, also when somebody
/// else removes the same tree at the same time.
///
/// Subdirectories are first moved up next to the root of the tree, so that neither the depth of a hostile tree nor
/// its width costs more than two descriptors and no recursion.
pub fn remove(dir: BorrowedFd<'_>, name: impl AsRef<OsStr>) -> io::Result<()> {
    let name = CString::new(name.as_ref().as_bytes())?;
    let name = name.as_c_str();
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    let Some(top) = open_dir(dir, name)? else { return Ok(()) };
    let mut next = 0u64;
    for _ in 0..ROUNDS_MAX {
        let mut moved = empty_dir(top.as_fd(), None, &mut next)?;
        while let Some(child) = moved.pop() {
            if let Some(fd) = open_dir(top.as_fd(), child.as_c_str())? {
                moved.extend(empty_dir(fd.as_fd(), Some(top.as_fd()), &mut next)?);
            }
            missing_is_fine(
                rustix::fs::unlinkat(&top, child.as_c_str(), AtFlags::REMOVEDIR),
                &[Errno::NOTEMPTY],
            )?;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Somebody else moved something up in the meantime.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(Errno::NOTEMPTY.into())
}

fn missing_is_fine(result: rustix::io::Result<()>, too: &[Errno]) -> io::Result<()> {
    match result {
        Err(e) if e != Errno::NOENT && !too.contains(&e) => Err(e.into()),
        _ => Ok(()),
    }
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        // Its maker took our right to look: it is ours all the same.
        Err(Errno::ACCESS) => {
            missing_is_fine(rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty()), &[])?;
            rustix::fs::openat(dir, name, flags, Mode::empty())
        }
        opened => opened,
    };
    match opened {
        Err(Errno::NOENT) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Removes what can be removed in `dir`. Directories that are not empty are moved to `top`, or, if this is the top, left
/// where they are; their names there come back.
fn empty_dir(dir: BorrowedFd<'_>, top: Option<BorrowedFd<'_>>, next: &mut u64) -> io::Result<Vec<CString>> {
    // The maker may have taken the right to write too. Failing to give it back shows in what follows.
    let _ = rustix::fs::fchmod(dir, Mode::RWXU);
    let mut full = BTreeSet::new();
    loop {
        let mut changed = false;
        for entry in Dir::read_from(dir)? {
            let entry = match entry {
                Err(Errno::NOENT) => break,
                entry => entry?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") || (top.is_none() && full.contains(name)) {
                continue;
            }
            changed = true;
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
            match top {
                Some(top) => full.extend(move_up(dir, name, top, next)?),
                None => drop(full.insert(name.to_owned())),
            }
        }
        if !changed {
            return Ok(full.into_iter().collect());
        }
    }
}

/// Moves a directory to the top under a name that is free there. `None`: it is gone.
fn move_up(
    dir: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    next: &mut u64,
) -> io::Result<Option<CString>> {
    loop {
        *next += 1;
        let new = CString::new(format!(".glass-{next}"))?;
        match rustix::fs::renameat_with(dir, name, top, new.as_c_str(), rustix::fs::RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(Some(new)),
            Err(Errno::NOENT) => return Ok(None),
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

    #[test]
    fn two_at_once_remove_one_tree_without_a_quarrel() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..20 {
            for n in 0..300 {
                std::fs::create_dir_all(dir.path().join(format!("tree/{}/{n}/x", n % 7))).unwrap();
                std::fs::write(dir.path().join(format!("tree/{}/{n}/file", n % 7)), "x").unwrap();
            }
            let remove_it = || {
                let parent = File::open(dir.path()).unwrap();
                remove(parent.as_fd(), "tree").unwrap();
            };
            std::thread::scope(|scope| {
                scope.spawn(remove_it);
                scope.spawn(remove_it);
            });
            assert!(!dir.path().join("tree").exists(), "round {round}");
        }
    }
}
