//! What the kernel says of a file that is not opened.

use glasshouse_linux::rustix::fs::{FileType, Stat};

use super::{Entry, Kind, Stamp, Time};

/// A file that was changed so shortly before a walk may have been changed once more, within the same tick of
/// the kernel's clock, after it was read: its times prove nothing.
const SETTLED_NS: i128 = 20_000_000;

/// Whether the entry is what it was, for certain.
pub(super) fn is_settled(before: &Option<Time>, old: &Entry, stat: &Stat) -> bool {
    let is_old = before.is_some_and(|at| old.stamp.ctime.total_ns() + SETTLED_NS < at.total_ns());
    let kind = kind(stat);
    is_old
        && old.stamp == stamp(stat)
        && (old.kind, old.mode, old.size) == (kind, mode(stat), size(kind, stat))
}

/// The same for one that somebody else looked at: what he says of it now.
pub(super) fn is_same(before: Time, old: &Entry, now: &Entry) -> bool {
    let fields = |e: &Entry| (e.stamp, e.kind, e.mode, e.uid, e.gid, e.size);
    old.stamp.ctime.total_ns() + SETTLED_NS < before.total_ns() && fields(old) == fields(now)
}

pub(super) fn kind(stat: &Stat) -> Kind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice if stat.st_rdev == 0 => Kind::Whiteout,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}

pub(super) fn mode(stat: &Stat) -> u16 {
    (stat.st_mode & 0o7777) as u16
}

pub(super) fn size(kind: Kind, stat: &Stat) -> u64 {
    match kind {
        Kind::File | Kind::Symlink => u64::try_from(stat.st_size).unwrap_or_default(),
        _ => 0,
    }
}

pub(crate) fn stamp(stat: &Stat) -> Stamp {
    Stamp {
        ino: stat.st_ino,
        ctime: Time { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 },
        mtime: Time { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 },
    }
}
