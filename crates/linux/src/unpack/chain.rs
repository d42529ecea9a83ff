//! What a chain of layers shows, read without mounting it: by descriptor, one directory at a time, no link followed by
//! the kernel. Links are followed here, by hand, and never lead above the chain's root.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Shape, refuse};

/// Links that may be followed on the way to one name, as many as the kernel allows.
const LINKS_MAX: usize = 40;

/// Looks at directories for one layer. A few for each entry are usual; links and depth can make it many.
const STEPS_MAX: u64 = 500_000_000;

/// Layers, uppermost first, each the root of a tree.
#[derive(Debug)]
pub struct Chain {
    trees: Vec<OwnedFd>,
    opaque: &'static CStr,
}

/// What some trees show, uppermost first, and how often it was looked at.
pub(super) struct View<'a> {
    pub(super) trees: Vec<BorrowedFd<'a>>,
    pub(super) opaque: &'static CStr,
    /// How deep names may lead.
    pub(super) depth_max: usize,
    steps: Cell<u64>,
}

/// Something that a chain shows.
#[derive(Debug)]
pub struct Found {
    /// The directory that it is in, in its own layer.
    pub(super) dir: OwnedFd,
    /// Its number in the chain, from the top.
    pub(super) layer: usize,
    /// Its name there: a link may have led to it under another.
    name: OsString,
    pub(super) stat: Stat,
}

impl Found {
    /// What it is.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Chain {
    /// A chain of these trees. `opaque` is the attribute by which a directory hides what lies below it.
    pub fn new(trees: Vec<OwnedFd>, opaque: &'static CStr) -> Chain {
        Chain { trees, opaque }
    }

    /// Puts a tree on top.
    pub fn push(&mut self, tree: OwnedFd) {
        self.trees.insert(0, tree);
    }

    /// What it shows, with one more tree on top.
    pub(super) fn view<'a>(&'a self, top: Option<BorrowedFd<'a>>) -> View<'a> {
        let trees = top.into_iter().chain(self.trees.iter().map(AsFd::as_fd)).collect();
        View { trees, opaque: self.opaque, depth_max: Shape::IMAGE.depth, steps: Cell::new(0) }
    }

    /// What is at the path, with all links followed.
    pub fn find(&self, path: &Path) -> io::Result<Option<Found>> {
        self.find_as(path, Last::Followed)
    }

    /// What is at the path, with links followed on the way, but not at its end.
    pub fn find_link(&self, path: &Path) -> io::Result<Option<Found>> {
        self.find_as(path, Last::Kept)
    }

    fn find_as(&self, path: &Path, last: Last) -> io::Result<Option<Found>> {
        let view = self.view(None);
        let parts = view.resolve(&parts(path), last)?;
        let Some((last, parents)) = parts.split_last() else { return Ok(None) };
        view.lookup(0, parents, last)
    }

    /// The content of a regular file, as far as it is no larger than this. Nothing, if there is none.
    pub fn read(&self, path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(found) = self.find(path)? else { return Ok(None) };
        if found.kind() != FileType::RegularFile {
            return Ok(None);
        }
        let mut content = Vec::new();
        open_file(&found)?.take(bytes_max).read_to_end(&mut content)?;
        Ok(Some(content))
    }
}

/// Opens a regular file that was found.
pub(super) fn open_file(found: &Found) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(File::from(rustix::fs::openat(&found.dir, &found.name, flags, Mode::empty())?))
}

/// What becomes of a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Kept,
}

/// The parts of a path, without any that mean nothing. The root is where it begins.
pub(super) fn parts(path: &Path) -> Vec<OsString> {
    let part = |component| match component {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

impl View<'_> {
    /// Where a path really leads in what the trees show: parts that are no links. What is missing is left as it is written.
    pub(super) fn resolve(&self, wanted: &[OsString], last: Last) -> io::Result<Vec<OsString>> {
        self.resolve_from(Vec::new(), wanted, last)
    }

    /// The same from a directory on, whose own way is known.
    pub(super) fn resolve_from(
        &self,
        known: Vec<OsString>,
        wanted: &[OsString],
        last: Last,
    ) -> io::Result<Vec<OsString>> {
        let mut real = known;
        let mut todo: VecDeque<OsString> = wanted.iter().cloned().collect();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            if part == ".." {
                // Above the root is the root.
                real.pop();
                continue;
            }
            let at_end = todo.is_empty();
            let found = match at_end && last == Last::Kept {
                true => None,
                false => self.lookup(0, &real, &part)?,
            };
            match found {
                Some(found) if found.kind() == FileType::Symlink => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = rustix::fs::readlinkat(&found.dir, &part, Vec::new())?;
                    let target = PathBuf::from(OsStr::from_bytes(target.to_bytes()));
                    if target.is_absolute() {
                        real.clear();
                    }
                    parts(&target).into_iter().rev().for_each(|part| todo.push_front(part));
                }
                Some(found) if !at_end && found.kind() != FileType::Directory => {
                    let name: PathBuf = real.iter().chain([&part]).collect();
                    return Err(refuse(&name, "it is no directory, and something lies below it"));
                }
                _ => real.push(part),
            }
            if real.len() > self.depth_max || todo.len() > self.depth_max {
                return Err(refuse(&real.iter().collect::<PathBuf>(), "it is too deep"));
            }
        }
        Ok(real)
    }

    /// What the trees from `first` on show at `name` in the directory at `path`, whose parts are no links.
    pub(super) fn lookup(&self, first: usize, path: &[OsString], name: &OsStr) -> io::Result<Option<Found>> {
        for (layer, tree) in self.trees.iter().enumerate().skip(first) {
            self.steps.set(self.steps.get() + 1 + path.len() as u64);
            if self.steps.get() > STEPS_MAX {
                let name: PathBuf = path.iter().map(OsString::as_os_str).chain([name]).collect();
                return Err(refuse(&name, &format!("more than {STEPS_MAX} looks at directories are needed")));
            }
            let mut dir = tree.try_clone_to_owned()?;
            let mut last = is_opaque(dir.as_fd(), self.opaque);
            let mut there = true;
            for part in path {
                match rustix::fs::statat(&dir, part, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                        dir = open_dir(dir.as_fd(), part)?;
                        last |= is_opaque(dir.as_fd(), self.opaque);
                    }
                    // Whatever it is, nothing below shows through it.
                    Ok(_) => return Ok(None),
                    Err(Errno::NOENT) => {
                        there = false;
                        break;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            if there {
                match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) if is_whiteout(&stat) => return Ok(None),
                    Ok(stat) => return Ok(Some(Found { dir, layer, name: name.to_owned(), stat })),
                    Err(Errno::NOENT) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            if last {
                return Ok(None);
            }
        }
        Ok(None)
    }
}

pub(super) fn open_dir(dir: BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn is_opaque(dir: BorrowedFd<'_>, opaque: &CStr) -> bool {
    let mut value = [0; 2];
    rustix::fs::fgetxattr(dir, opaque, &mut value).is_ok_and(|n| &value[..n] == b"y")
}
