//! Putting a new root in the place of the root of a box that lives.
//!
//! We are in the box's mount namespace. The new root is laid over the old one, what is mounted in the old one moves along,
//! and the pivot makes it the root. Then the old one is let go, with what did not move along: that is what takes the kernel
//! longest, so it is done once, and the host goes on meanwhile. What fails on the way to the pivot is taken back; what cannot
//! be taken back, or fails after it, is told as that.

use super::*;

/// A mount, in which root it was, and where there.
type Moved<'a> = (OwnedFd, BorrowedFd<'a>, &'a str);

/// How a root is replaced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Only if nothing in the old one is open for writing.
    pub(super) quiet: bool,
    /// The new one cannot be written.
    pub(super) read_only: bool,
}

/// Replaces the root. What the box had comes back: as long as it is held, the kernel need not clear it away.
pub(super) fn replace_root(
    new: BorrowedFd<'_>,
    (moved, leaves): (&[String], &[&str]),
    volumes: (&[(String, OwnedFd)], Option<u32>),
    Manner { quiet, read_only: read_only_root }: Manner,
) -> Result<Vec<OwnedFd>, Stumble> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let old = on("/", rustix::fs::openat(CWD, "/", flags, Mode::empty()))?;
    if quiet {
        on("the old root", mount::close_to_writers(old.as_fd()))?;
    }
    let mut way_back = Vec::new();
    // A mount that is attached nowhere takes no others.
    let attached = on("the new root", mount::attach(new, old.as_fd()));
    let is_attached = attached.is_ok();
    let done = attached
        .and_then(|()| move_all(old.as_fd(), new, (moved, volumes.1), &mut way_back))
        .and_then(|()| leave_all(new, leaves, &mut way_back))
        .and_then(|()| attach_as(new, volumes))
        .and_then(|()| match read_only_root {
            true => on("/", mount::set_attributes(new, read_only(), false)),
            false => Ok(()),
        })
        .and_then(|()| on("/", mount::change_root(new)));
    let Err(stumble) = done else {
        drop(way_back);
        return Ok(vec![old]);
    };
    let mut undone = put_back(&way_back);
    if is_attached {
        undone = undone.and(let_go(new));
    }
    if quiet {
        undone = undone.and(on("the old root", mount::open_to_writers(old.as_fd())));
    }
    Err(match undone {
        Ok(()) => stumble,
        Err(worse) => {
            let on = format!("{}, and on the way back {} ({})", stumble.on, worse.on, worse.source);
            Stumble { on, torn: true, ..stumble }
        }
    })
}

fn move_all<'a>(
    old: BorrowedFd<'a>,
    new: BorrowedFd<'_>,
    (paths, box_root): (&'a [String], Option<u32>),
    way_back: &mut Vec<Moved<'a>>,
) -> StepResult {
    for path in paths {
        let Some(mounted) = on(path, mount::mounted_at(old, path))? else { continue };
        let find = || on(path, mount::find_or_make_dir(new, path));
        // An image need not have it, and what is made in the box's root is the box's.
        let place = find().or_else(|_| as_box_root(box_root, find))?;
        on(path, mount::attach(mounted.as_fd(), place.as_fd()))?;
        way_back.push((mounted, old, path));
    }
    Ok(())
}

/// Puts what is not to stay back into the old root, onto a directory there that nothing covers any more.
fn leave_all<'a>(new: BorrowedFd<'a>, paths: &[&'a str], way_back: &mut Vec<Moved<'a>>) -> StepResult {
    for path in paths {
        let path = path.trim_start_matches('/');
        let Some((_, old, uncovered)) = way_back.first() else { continue };
        let Some(mounted) = on(path, mount::mounted_at(new, path))? else { continue };
        let place = on(path, mount::find(*old, uncovered))?;
        on(path, mount::attach(mounted.as_fd(), place.as_fd()))?;
        way_back.push((mounted, new, path));
    }
    Ok(())
}

/// Attaches volumes to a root that is not in force yet. What is made for them there is made by the root of the box: where owners
/// are shifted, that of the host is nobody.
fn attach_as(new: BorrowedFd<'_>, (volumes, box_root): (&[(String, OwnedFd)], Option<u32>)) -> StepResult {
    as_box_root(box_root.filter(|_| !volumes.is_empty()), || attach_volumes(new, volumes))
}

/// Does something to files as the root of the box, where that is another user than ours.
fn as_box_root<T>(box_root: Option<u32>, work: impl FnOnce() -> Result<T, Stumble>) -> Result<T, Stumble> {
    let Some(id) = box_root else { return work() };
    let lent = identity::set_fs_user(id, id).and_then(|()| caps::raise_permitted());
    let done = on("root of the box", lent).and_then(|()| work());
    let back = on("root again", identity::set_fs_user(0, 0).and_then(|()| caps::raise_permitted()));
    done.and_then(|done| back.map(|()| done))
}

/// Moves back what was moved, as much of it as goes. The first that does not is told.
fn put_back(way_back: &[Moved<'_>]) -> StepResult {
    // What it covered there is in sight again.
    let back = |(mount, root, path): &Moved<'_>| {
        let place = on(*path, mount::find(*root, path))?;
        on(*path, mount::attach(mount.as_fd(), place.as_fd()))
    };
    way_back.iter().rev().map(back).fold(Ok(()), Result::and)
}

fn let_go(new: BorrowedFd<'_>) -> StepResult {
    on("the new root", rustix::process::fchdir(new))?;
    on("the new root", mount::detach("."))
}

/// Directories in memory, empty again; they belong to the root of the box.
pub(super) fn refresh_all(start: &Startup, fresh: &[(String, u64)], become_root: bool) -> StepResult {
    if become_root && !fresh.is_empty() {
        on("user namespace", namespace::enter(given(start, FdRole::UserNamespace)?))?;
        on("root of the box", identity::become_user(0, 0, Some(&[])))?;
    }
    fresh.iter().try_for_each(|(path, bytes)| refresh(path, *bytes))
}

/// A directory in memory, empty again.
fn refresh(path: &str, bytes: u64) -> StepResult {
    let size = bytes.to_string();
    let attributes = Attributes { no_exec: path == "/dev/shm", ..Attributes::default() };
    let options = [("size", Some(&*size)), ("mode", Some("1777"))];
    let tmpfs = on("tmpfs", mount::make("tmpfs", &options, attributes))?;
    on(path, mount::attach_at(tmpfs.as_fd(), path))
}
