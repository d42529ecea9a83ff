//! One layer out of several neighbours, so that chains stay short.
//!
//! The merged layer shows over what lies below the run exactly what the run showed. Files come over as hard
//! links, directories are made anew with the attributes of the uppermost layer that has them.
//!
//! What a name leads to is looked up as overlayfs does it: from the uppermost layer down, a whiteout or a
//! file ends the search, a directory goes on below it unless it is opaque, and where it was moved
//! (`redirect`) it goes on at the old place: under another name in the same directory, or at a path from the
//! root of the layers below. What comes out of a directory's search is where its contents lie in the run, and
//! where it goes on below the run: nowhere, or at some place. The merged directory is marked so that
//! overlayfs goes on there.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use glasshouse_linux::layer::{self, Copier, Spot, Way};
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{FileType, Mode, fstat, mkdirat};
use glasshouse_linux::rustix::io::Errno;

use super::Marks;
use super::copy::{DEPTH_MAX, ENTRIES_MAX, failed, too_deep, too_many};
use crate::error::{Context, Error, ErrorKind, Result};

/// Layers of one merge.
pub(crate) const LAYERS_MAX: usize = 500;
/// Bytes of the place that a moved directory's mark may name. The file system keeps a few kilobytes at most.
const REDIRECT_BYTES_MAX: usize = 1024;
/// So many neighbours of one level are merged into one of the next.
const FAN: usize = 8;

/// A layer that is never merged: an image's.
pub(crate) const LEVEL_FIXED: u32 = u32::MAX;

/// A finished merge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// Directories made.
    pub(crate) directories: u64,
    /// Everything else that the layer holds, as links to what was there.
    pub(crate) linked: u64,
    /// What had to be copied, for want of links.
    pub(crate) copied: u64,
}

/// Which neighbours of a chain to merge next, if any. The levels stand as the layers do, uppermost first. A
/// new layer has level 0, a merged one the next level after its parts'.
///
/// With `FAN` of each level to a merge, n layers leave less than `FAN` of each of log(n) levels, and each
/// file is linked once per level.
pub(crate) fn plan_merges(chain_levels: &[u32]) -> Option<Range<usize>> {
    let mut start = 0;
    for run in chain_levels.chunk_by(|a, b| a == b) {
        if run.len() >= FAN && run[0] != LEVEL_FIXED {
            // The older ones: what is newest is merged with what comes next.
            return Some(start + run.len() - FAN..start + run.len());
        }
        start += run.len();
    }
    None
}

/// Makes the empty directory `into` the one layer that shows what `layers` (uppermost first) show. `base`:
/// nothing lies below them. After an error the caller removes `into`. An error of the kind `Unsupported` says
/// that one layer cannot show it: the caller keeps the layers.
pub(crate) fn merge(
    reach: &Reach,
    layers: &[BorrowedFd<'_>],
    into: BorrowedFd<'_>,
    marks: Marks,
    base: bool,
) -> Result<Merged> {
    if layers.is_empty() || layers.len() > LAYERS_MAX {
        let message = format!("cannot merge {} layers: from 1 to {LAYERS_MAX} at once", layers.len());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let mut work = Work {
        reach,
        layers,
        into,
        marks,
        base,
        opaque: mark(marks, "opaque")?,
        redirect: mark(marks, "redirect")?,
        origin: mark(marks, "origin")?,
        copier: Copier::default(),
        copies: HashMap::new(),
        entries: 0,
        done: Merged::default(),
    };
    // Roots are never looked up, so no mark on one has a meaning.
    let sources = (0..layers.len()).map(|layer| Source { layer, way: Way::default() }).collect();
    let root = Directory { way: Way::default(), sources, below: Some(Way::default()), mark: Mark::None };
    let mut tasks = vec![Task::Enter(root)];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Enter(directory) => {
                let (children, whiteouts) = work.enter(&directory)?;
                tasks.push(Task::Leave(directory, whiteouts));
                tasks.extend(children.into_iter().map(Task::Enter));
            }
            Task::Leave(directory, whiteouts) => work.leave(&directory, whiteouts)?,
        }
    }
    Ok(work.done)
}

fn mark(marks: Marks, name: &str) -> Result<CString> {
    CString::new(format!("{}{name}", marks.prefix())).context("name a mark")
}

/// A directory gets its attributes last: what is put into it changes its times.
enum Task {
    Enter(Directory),
    Leave(Directory, Whiteouts),
}

/// Whether a directory holds whiteouts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whiteouts {
    None,
    Some,
}

/// A directory of the merged layer.
struct Directory {
    way: Way,
    /// Where its contents are, uppermost first.
    sources: Vec<Source>,
    /// Where it goes on in the view of what lies below the run. `None`: nowhere.
    below: Option<Way>,
    mark: Mark,
}

/// A way from the root of the layers below, as marks name it.
type Path = Vec<CString>;

struct Source {
    layer: usize,
    way: Way,
}

#[derive(Debug, PartialEq, Eq)]
enum Mark {
    None,
    Opaque,
    Redirect(Vec<u8>),
}

/// What a directory in a layer says about what is below it.
enum Says {
    GoOn,
    Stop,
    SameDirectory(CString),
    Elsewhere(Path),
}

/// A directory of the run, open.
struct Opened<'a> {
    source: &'a Source,
    fd: OwnedFd,
}

struct Work<'a> {
    reach: &'a Reach,
    layers: &'a [BorrowedFd<'a>],
    into: BorrowedFd<'a>,
    marks: Marks,
    base: bool,
    opaque: CString,
    redirect: CString,
    origin: CString,
    copier: Copier,
    /// Where copies of files lie that have several names: layer and inode, directory and name.
    copies: HashMap<(usize, u64), (Way, CString)>,
    entries: usize,
    done: Merged,
}

impl Work<'_> {
    /// Fills a directory with what is not a directory, makes those that are, and says which.
    fn enter(&mut self, directory: &Directory) -> Result<(Vec<Directory>, Whiteouts)> {
        let way = &directory.way;
        if way.depth() > DEPTH_MAX {
            return Err(too_deep(way));
        }
        let into =
            layer::open_dir(self.reach, self.into, way).map_err(|e| failed("open the merged", way, e))?;
        let mut opened = Vec::with_capacity(directory.sources.len());
        let mut names: BTreeMap<CString, (usize, FileType)> = BTreeMap::new();
        for (index, source) in directory.sources.iter().enumerate() {
            let fd = layer::open_dir(self.reach, self.layers[source.layer], &source.way)
                .map_err(|e| failed("read the directory", &source.way, e))?;
            let found = layer::entries(self.reach, fd.as_fd(), ENTRIES_MAX - self.entries)
                .map_err(|e| failed("read the directory", &source.way, e))?;
            self.entries += found.len();
            if self.entries > ENTRIES_MAX {
                return Err(too_many());
            }
            for (name, kind) in found {
                names.entry(name).or_insert((index, kind));
            }
            opened.push(Opened { source, fd });
        }
        let (mut children, mut whiteouts) = (Vec::new(), Whiteouts::None);
        for (name, (first, kind)) in names {
            if kind == FileType::Directory {
                let child = self.look_up(directory, &opened[first..], &name)?;
                mkdirat(&into, name.as_c_str(), Mode::RWXU)
                    .map_err(|e| failed("make the directory", &child.way, e.into()))?;
                children.push(child);
                continue;
            }
            if kind == FileType::CharacterDevice && self.is_whiteout(directory, &opened[first], &name)? {
                // Where nothing is below, there is nothing that it could hide.
                if self.base || directory.below.is_none() {
                    continue;
                }
                whiteouts = Whiteouts::Some;
            }
            self.one(directory, &opened[first], into.as_fd(), &name)?;
        }
        Ok((children, whiteouts))
    }

    fn leave(&mut self, directory: &Directory, whiteouts: Whiteouts) -> Result<()> {
        let way = &directory.way;
        let into =
            layer::open_dir(self.reach, self.into, way).map_err(|e| failed("open the merged", way, e))?;
        let Some(uppermost) = directory.sources.first() else { return Ok(()) };
        let from = layer::open_dir(self.reach, self.layers[uppermost.layer], &uppermost.way)
            .map_err(|e| failed("read the directory", &uppermost.way, e))?;
        let mark = match &directory.mark {
            _ if self.base => None,
            Mark::None => None,
            Mark::Opaque => Some((&self.opaque, &b"y"[..])),
            Mark::Redirect(to) => Some((&self.redirect, to.as_slice())),
        };
        // Without it, overlayfs lists the whiteouts of a directory that no other layer has. Empty: of unknown
        // origin.
        let origin = (whiteouts == Whiteouts::Some).then_some((&self.origin, &b""[..]));
        // Before the mode, which may forbid it to its owner.
        for (name, value) in mark.into_iter().chain(origin) {
            layer::set_attribute(into.as_fd(), name, value).map_err(|e| failed("mark", way, e))?;
        }
        let stat = fstat(&from).context("look at a directory")?;
        let prefix = self.marks.prefix().as_bytes();
        let mut unknown = None;
        let wanted = |name: &[u8]| match name.strip_prefix(prefix) {
            None => true,
            // A mark of a box's own overlay, which ours keeps under a longer name.
            Some(own) if own.starts_with(b"overlay.") => true,
            Some(b"protattr") => true,
            // Made anew above, or of use only in a top.
            Some(b"opaque" | b"redirect" | b"origin" | b"impure" | b"nlink" | b"upper" | b"uuid") => false,
            Some(_) => {
                unknown = Some(name.escape_ascii().to_string());
                false
            }
        };
        self.copier
            .attributes(self.reach, Spot::Open(from.as_fd()), Spot::Open(into.as_fd()), &stat, wanted)
            .map_err(|e| failed("copy the attributes of", way, e))?;
        if let Some(name) = unknown {
            return Err(inexpressible(way, &format!("it has the mark {name}, which is not known here")));
        }
        self.done.directories += 1;
        Ok(())
    }

    fn is_whiteout(&self, directory: &Directory, from: &Opened<'_>, name: &CStr) -> Result<bool> {
        let stat = layer::stat(self.reach, from.fd.as_fd(), name);
        Ok(layer::is_whiteout(&stat.map_err(|e| failed("look at", &directory.way.join(name), e))?))
    }

    /// Takes over what is no directory.
    fn one(
        &mut self,
        directory: &Directory,
        from: &Opened<'_>,
        into: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<()> {
        let here = |e| failed("merge", &directory.way.join(name), e);
        match self.reach.link(from.fd.as_fd(), name, into, name) {
            Ok(()) => {
                self.done.linked += 1;
                Ok(())
            }
            // Too many links, another file system, or one that allows none to us.
            Err(Errno::MLINK | Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP) => {
                self.copy(directory, from, into, name).map_err(here)
            }
            Err(e) => Err(here(e.into())),
        }
    }

    fn copy(
        &mut self,
        directory: &Directory,
        from: &Opened<'_>,
        into: BorrowedFd<'_>,
        name: &CStr,
    ) -> std::io::Result<()> {
        let old = from.fd.as_fd();
        let stat = layer::stat(self.reach, old, name)?;
        let key = (from.source.layer, stat.st_ino);
        if let Some((way, first)) = self.copies.get(&key) {
            let dir = layer::open_dir(self.reach, self.into, way)?;
            match self.reach.link(dir.as_fd(), first, into, name) {
                Ok(()) => return Ok(()),
                Err(Errno::MLINK) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if layer::kind(&stat) == FileType::RegularFile {
            let content = layer::open_file(self.reach, old, name)?;
            let new = layer::create_file(into, name)?;
            self.copier.content(content.as_fd(), new.as_fd(), &stat)?;
            let (content, new) = (Spot::Open(content.as_fd()), Spot::Open(new.as_fd()));
            self.copier.attributes(self.reach, content, new, &stat, |_| true)?;
        } else {
            layer::create_other(self.reach, old, into, name, &stat)?;
            self.copier.attributes(
                self.reach,
                Spot::Named(old, name),
                Spot::Named(into, name),
                &stat,
                |_| true,
            )?;
        }
        if stat.st_nlink > 1 {
            self.copies.insert(key, (directory.way.clone(), name.to_owned()));
        }
        self.done.copied += 1;
        Ok(())
    }

    /// Searches a directory of which the first of `parents` has a part.
    fn look_up(&self, above: &Directory, parents: &[Opened<'_>], name: &CStr) -> Result<Directory> {
        let way = above.way.join(name);
        let mut sources = Vec::new();
        let mut at = name.to_owned();
        let mut stop = false;
        for parent in parents {
            let here = |e| failed("look up", &parent.source.way.join(&at), e);
            let stat = match layer::stat(self.reach, parent.fd.as_fd(), &at) {
                Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => continue,
                stat => stat.map_err(here)?,
            };
            if layer::kind(&stat) != FileType::Directory {
                stop = true;
                break;
            }
            sources.push(Source { layer: parent.source.layer, way: parent.source.way.join(&at) });
            match self.says(parent.fd.as_fd(), &at, &way)? {
                Says::GoOn => {}
                Says::Stop => {
                    stop = true;
                    break;
                }
                Says::SameDirectory(other) => at = other,
                Says::Elsewhere(path) => {
                    let path = self.look_elsewhere(parent.source.layer + 1, path, &mut sources, &way)?;
                    let mark = mark_elsewhere(above, name, &way, path.as_deref())?;
                    let below = path.map(|path| path.iter().fold(Way::default(), |way, step| way.join(step)));
                    return Ok(Directory { way, sources, below, mark });
                }
            }
        }
        let (below, mark) = match &above.below {
            // Where nothing shows through the parent, nothing shows through the child.
            None => (None, Mark::None),
            Some(_) if stop => (None, Mark::Opaque),
            Some(place) if at.as_c_str() == name => (Some(place.join(&at)), Mark::None),
            Some(place) => (Some(place.join(&at)), Mark::Redirect(at.to_bytes().to_vec())),
        };
        Ok(Directory { way, sources, below, mark })
    }

    /// Goes on with the search at a path, from the root of each layer from this one on. Returns where it goes
    /// on below.
    fn look_elsewhere(
        &self,
        first: usize,
        mut path: Path,
        sources: &mut Vec<Source>,
        way: &Way,
    ) -> Result<Option<Path>> {
        for layer in first..self.layers.len() {
            let mut stop = false;
            let mut at: Option<OwnedFd> = None;
            let mut place = Way::default();
            let mut step = 0;
            while let Some(name) = path.get(step).cloned() {
                let here = |e| failed("look up", &place.join(&name), e);
                let dir = at.as_ref().map_or(self.layers[layer], AsFd::as_fd);
                let stat = match layer::stat(self.reach, dir, &name) {
                    // Perhaps further down. If a directory on the way is opaque, not even there.
                    Err(e) if e.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => break,
                    stat => stat.map_err(here)?,
                };
                if layer::kind(&stat) != FileType::Directory {
                    stop = true;
                    break;
                }
                let says = self.says(dir, &name, way)?;
                let next = layer::open_step(self.reach, dir, &name).map_err(here)?;
                place = place.join(&name);
                at = Some(next);
                match says {
                    Says::GoOn => {}
                    Says::Stop => stop = true,
                    Says::SameDirectory(other) => path[step] = other,
                    Says::Elsewhere(other) => {
                        // The rest of the path is looked for there, in the layers below this one.
                        stop = false;
                        let steps = other.len();
                        path.splice(..=step, other);
                        step = steps - 1;
                    }
                }
                step += 1;
                if step == path.len() {
                    sources.push(Source { layer, way: place.clone() });
                }
                if step > DEPTH_MAX {
                    return Err(too_deep(way));
                }
            }
            if stop {
                return Ok(None);
            }
        }
        Ok(Some(path))
    }

    /// Reads the marks of a directory in a layer. `way` is where it shows.
    fn says(&self, dir: BorrowedFd<'_>, name: &CStr, way: &Way) -> Result<Says> {
        let read = |mark: &CStr| {
            layer::attribute(self.reach, dir, name, mark).map_err(|e| failed("read the marks of", way, e))
        };
        match read(&self.opaque)?.as_deref() {
            None => {}
            Some(b"y") => return Ok(Says::Stop),
            Some(_) => return Err(inexpressible(way, "it is opaque in a way that is not known here")),
        }
        let Some(to) = read(&self.redirect)? else { return Ok(Says::GoOn) };
        if self.marks == Marks::User {
            return Err(inexpressible(way, "it was moved, which is not followed without privilege"));
        }
        let bad = || inexpressible(way, "the mark that says from where it was moved makes no sense");
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
        match to.strip_prefix(b"/") {
            None if is_name(&to) && !to.contains(&b'/') => {
                Ok(Says::SameDirectory(CString::new(to).map_err(|_| bad())?))
            }
            Some(path) if path.split(|&b| b == b'/').all(is_name) => {
                let path =
                    path.split(|&b| b == b'/').map(CString::new).collect::<std::result::Result<_, _>>();
                Ok(Says::Elsewhere(path.map_err(|_| bad())?))
            }
            _ => Err(bad()),
        }
    }
}

/// The mark by which overlayfs goes on at a path from the root for the directory `name` in `above`.
fn mark_elsewhere(above: &Directory, name: &CStr, way: &Way, path: Option<&[CString]>) -> Result<Mark> {
    let Some(path) = path else {
        return Ok(if above.below.is_some() { Mark::Opaque } else { Mark::None });
    };
    if let (Some(place), Some((last, parent))) = (&above.below, path.split_last())
        && place.names().into_iter().eq(parent.iter().map(CString::as_c_str))
    {
        let back = last.as_c_str() == name;
        return Ok(if back { Mark::None } else { Mark::Redirect(last.to_bytes().to_vec()) });
    }
    let to: Vec<u8> = path.iter().flat_map(|step| [b"/", step.to_bytes()].concat()).collect();
    if to.len() > REDIRECT_BYTES_MAX {
        let why = format!("it goes on at a place whose name is longer than {REDIRECT_BYTES_MAX} bytes");
        return Err(inexpressible(way, &why));
    }
    Ok(Mark::Redirect(to))
}

fn inexpressible(way: &Way, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot merge layers at {way}: {why}; they stay as they are"))
}

#[cfg(test)]
pub(crate) mod tests;
