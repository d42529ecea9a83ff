//! What a box has in memory beside its root, and whether that is as it was when the box was given the root.
//!
//! A box that is to begin anew is given a fresh root and fresh memory, unless nothing was written to either: then it has them
//! already. The root is looked at from outside, where it is a directory; this is looked at by us.

use std::io;

use glasshouse_linux::ipc;
use glasshouse_linux::rustix::fs::{listxattr, stat};

/// Where a box may have directories in memory; and its root, of which whoever is outside sees all but the attributes that are
/// nobody's but the kernel's to show.
const PLACES: [&str; 3] = [ROOT, "/dev/shm", "/tmp"];
const ROOT: &str = "/";

/// What was there when the box was given its root. Of one that cannot be looked at, nothing is ever known to be the same.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Option<Vec<Seen>>);

/// One directory. The kernel changes at least one of the times with whatever is done to it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    place: &'static str,
    inode: (u64, u64),
    mode: u32,
    owner: (u32, u32),
    changed: (i64, u64),
    modified: (i64, u64),
    attributes_bytes: usize,
}

impl Scratch {
    pub(crate) fn look() -> Scratch {
        Scratch(all().ok())
    }

    /// Looks again at those that are others now. Of those that are the same, what was there at first counts.
    pub(crate) fn renewed(self) -> Scratch {
        let Some(before) = self.0 else { return Scratch(None) };
        let now = all().ok();
        let first = |now: Seen| {
            let same = |before: &&Seen| (before.place, before.inode) == (now.place, now.inode);
            before.iter().find(same).cloned().unwrap_or(now)
        };
        Scratch(now.map(|now| now.into_iter().map(first).collect()))
    }

    /// Whether nothing was done to it since, and no System V object is there.
    pub(crate) fn is_as_it_was(&self) -> bool {
        let same = |now: Vec<Seen>| self.0.as_ref() == Some(&now) && now.iter().all(Seen::is_empty);
        all().is_ok_and(same) && ipc::is_empty().unwrap_or(false)
    }
}

impl Seen {
    /// The clock of the times is a coarse one: what came at once after we looked has the same.
    fn is_empty(&self) -> bool {
        self.place == ROOT || std::fs::read_dir(self.place).is_ok_and(|mut entries| entries.next().is_none())
    }
}

fn all() -> io::Result<Vec<Seen>> {
    let root = stat("/")?;
    let mut found = Vec::new();
    for place in PLACES {
        let stat = stat(place)?;
        // One that is part of the root is looked at with that, from outside.
        if place == ROOT || stat.st_dev != root.st_dev {
            found.push(Seen {
                place,
                inode: (stat.st_dev, stat.st_ino),
                mode: stat.st_mode,
                owner: (stat.st_uid, stat.st_gid),
                changed: (stat.st_ctime, stat.st_ctime_nsec),
                modified: (stat.st_mtime, stat.st_mtime_nsec),
                attributes_bytes: listxattr(place, &mut [0_u8; 0][..]).unwrap_or(0),
            });
        }
    }
    Ok(found)
}
