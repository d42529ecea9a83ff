//! State: layers, and what is made of them.
//!
//! A box's root is a chain of read-only layers with one writable top. To *restack* is to mount another chain with a fresh
//! top in the box's mount namespace and to pivot to it; the box's first process lives on. Everything else is a use
//! of it:
//!
//! ```text
//!  snapshot, nothing runs   top becomes a layer ─▶ restack on [it, chain…]        method `rotate`
//!  snapshot, something runs freeze, clone the top into a layer, thaw               method `reflink` or `copy`
//!            or top in memory
//!  reset                    kill all but PID 1 ─▶ restack on the chain it began with
//!  restore                  the same, on the chain of a snapshot
//!  fork                     snapshot, then create on its chain
//!  stop, start              end the guest, keep the top; build again around it
//! ```
//! A top in memory (a box with a limited disk) has no path: the guest hands out its descriptor when it holds still. It is
//! copied where others are moved; what a stopped box had in memory becomes a layer when the box is started again.
//!
//! | file | what it does |
//! |---|---|
//! | `layers` | the store: which layers there are, who refers to them, what nobody refers to |
//! | `index` | what one layer holds, with the hash of every content, in a file that is read in parts |
//! | `shelf` | indexes that are kept, and made when they are missing |
//! | `digest` | one number for the merged view of a chain |
//! | `diff` | what differs between two chains |
//! | `pack` | what differs as a layer in a tar stream |
//! | `copy` | a layer as the copy of a live top |
//! | `merge` | one layer out of several neighbours, so that chains stay short |
//!
//! A layer on disk is what overlayfs made of it: a file that is there, a *whiteout* (a character device 0:0) for a
//! name that is not there any more, and a directory that is *opaque* (an attribute) when nothing below shows
//! through it, or *redirected* (an attribute, only with privilege) when it was moved.
//! Everything in a layer was written by a box: it is read by descriptor, no link is followed, and nothing but
//! regular files and directories is opened.

pub(crate) mod copy;
pub(crate) mod diff;
pub(crate) mod digest;
pub(crate) mod index;
pub(crate) mod layers;
pub(crate) mod merge;
pub(crate) mod pack;
pub(crate) mod records;
pub(crate) mod shelf;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glasshouse_linux::layer;
pub(crate) use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use glasshouse_protocol::walk::{Answer, Item, Wanted};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, UID_RANGE};
use crate::state::steps;

/// A line of a note, at the most.
const NOTE_LINE_MAX: u64 = 8192;
/// Who owns what has no owner in a box, as the kernel shows it.
const NOBODY: u32 = 65_534;

/// How far we reach into layers: as far as who wrote them. Without root, a box's user can lock himself out, and us.
pub(crate) fn reach() -> Reach {
    if rustix::process::geteuid().is_root() { Reach::own() } else { Reach::helped(crate::runtime::reader) }
}

/// A tree that is read as a layer.
#[derive(Debug, Clone)]
pub(crate) enum Tree {
    /// A directory of the host.
    At(PathBuf),
    /// The top of a box that keeps what it writes in memory.
    InMemory(Rc<MemoryTop>),
    /// All that a box shows, which only its guest can look at. Nothing stands below it.
    Elsewhere(Rc<dyn Elsewhere>),
}

/// A root that is told of.
pub(crate) trait Elsewhere: fmt::Debug {
    /// Has all of it told, in order.
    fn walk(&self, take: &mut dyn FnMut(Item) -> Result<()>) -> Result<()>;
    /// Asks for what files hold: an answer for each, in their order.
    fn read(&self, wanted: &Wanted) -> Result<Vec<Answer>>;
    /// Nothing more is wanted.
    fn done(&self) -> Result<()>;
    /// What a file of this size holds, whether the box is held or not.
    fn content(&self, path: &[u8], size: u64) -> Result<Vec<u8>>;
    /// The layers that the box was made from.
    fn below(&self) -> &[String];
}

/// A top that has no path. Files in it have the owners that they have outside of the box.
#[derive(Debug)]
pub(crate) struct MemoryTop {
    pub(crate) dir: OwnedFd,
    /// Who is 0 in the box.
    first_id: u32,
    /// What it can hold.
    bytes: u64,
}

impl MemoryTop {
    /// A top of a box that can hold so much, if it is one: the descriptor comes from the box's side of the wall.
    pub(crate) fn checked(dir: OwnedFd, first_id: u32, bytes: u64) -> Result<MemoryTop> {
        layer::is_memory(dir.as_fd(), bytes).context("use what the box's guest says is its top")?;
        Ok(MemoryTop { dir, first_id, bytes })
    }

    pub(crate) fn id_in_box(&self, id: u32) -> u32 {
        id_in_box(id, self.first_id)
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tree::At(path) => path.display().fmt(f),
            Tree::InMemory(_) => f.write_str("the memory of a box"),
            Tree::Elsewhere(_) => f.write_str("the root of a box elsewhere"),
        }
    }
}

impl Tree {
    /// Opens its root, for reading.
    pub(crate) fn open(&self, reach: &Reach) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = match self {
            Tree::At(path) => {
                let parent = path.parent().zip(path.file_name());
                match (rustix::fs::open(path, flags, Mode::empty()), parent) {
                    // Its own mode, most likely: whoever wrote in it may have locked everybody out.
                    (Err(rustix::io::Errno::ACCESS), Some((parent, name))) => {
                        let look = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                        rustix::fs::openat(CWD, parent, look, Mode::empty()).and_then(|dir| {
                            reach.open(dir.as_fd(), name.as_bytes(), flags, ResolveFlags::NO_SYMLINKS)
                        })
                    }
                    (opened, _) => opened,
                }
            }
            // A descriptor of our own: the guest has a copy of this one.
            Tree::InMemory(top) => reach.open(top.dir.as_fd(), b".", flags, ResolveFlags::NO_XDEV),
            Tree::Elsewhere(_) => {
                let message = "the files of this box are the engine's, and are not read from here; take a snapshot, and \
                    look at that";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        opened.context(format_args!("open {self}"))
    }

    /// Makes the empty directory the copy of it.
    pub(crate) fn copy(&self, into: BorrowedFd<'_>, share: Option<copy::Shared<'_>>) -> Result<copy::Copied> {
        let reach = reach();
        let from = self.open(&reach)?;
        let bytes_max = match self {
            Tree::At(_) | Tree::Elsewhere(_) => u64::MAX,
            Tree::InMemory(top) => top.bytes,
        };
        let (tree, first_id) = (from.as_fd(), self.first_id());
        copy::copy(copy::Original { tree, reach: &reach, first_id, bytes_max }, into, share)
    }

    /// The user and group that are 0 in the box.
    fn first_id(&self) -> u32 {
        match self {
            Tree::At(_) | Tree::Elsewhere(_) => 0,
            Tree::InMemory(top) => top.first_id,
        }
    }
}

/// The number in a box of a user or group that has this one outside, where the box's ids begin at `first`.
fn id_in_box(id: u32, first: u32) -> u32 {
    match first {
        0 => id,
        first => id.checked_sub(first).filter(|id| *id < UID_RANGE).unwrap_or(NOBODY),
    }
}

/// Where overlayfs keeps its own attributes in the layers of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marks {
    /// `trusted.overlay.*`: mounts with privilege.
    Trusted,
    /// `user.overlay.*`: mounts without.
    User,
}

impl Marks {
    /// Those of the layers that we make: root mounts with privilege, everybody else without.
    pub(crate) fn here() -> Marks {
        if rustix::process::geteuid().is_root() { Marks::Trusted } else { Marks::User }
    }

    /// The beginning of the attributes' names.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Marks::Trusted => "trusted.overlay.",
            Marks::User => "user.overlay.",
        }
    }
}

/// Makes a layer of a live top that stands still, by copying it. What did not change since the copy before of the same top
/// is shared with that one.
pub(crate) fn copy_top(home: &Home, id: &str, top: &Tree, layer: &str) -> Result<records::Method> {
    let upper = match top {
        Tree::At(upper) => upper,
        // Times say nothing in memory.
        Tree::InMemory(_) | Tree::Elsewhere(_) => {
            return layers::build(home, layer, |into| top.copy(into, None)).map(|_| records::Method::Copy);
        }
    };
    let noted = home.box_dir(id).join("copied");
    let before = read_note(&noted, upper);
    let tree = before.as_ref().and_then(|(layer, _)| File::open(layers::path(home, layer)).ok());
    let share = match (&before, &tree) {
        (Some((_, record)), Some(tree)) => Some(copy::Shared { tree: tree.as_fd(), record }),
        _ => None,
    };
    let copied = layers::build(home, layer, |into| top.copy(into, share))?;
    // Without the note the next copy shares nothing, and is as right.
    let _ = write_note(&noted, upper, layer, &copied.record);
    Ok(match copied.method {
        copy::Method::Reflink => records::Method::Reflink,
        copy::Method::Copy => records::Method::Copy,
    })
}

/// A note of the copy before: which layer it made, of which top, and what it saw.
fn read_note(path: &Path, upper: &Path) -> Option<(String, copy::Record)> {
    let mut bytes = Vec::new();
    let limit = copy::Record::BYTES_MAX as u64 + 2 * NOTE_LINE_MAX;
    File::open(path).ok()?.take(limit).read_to_end(&mut bytes).ok()?;
    let mut parts = bytes.splitn(3, |&byte| byte == b'\n');
    let (layer, top, record) = (parts.next()?, parts.next()?, parts.next()?);
    (top == upper.as_os_str().as_bytes())
        .then(|| (String::from_utf8_lossy(layer).into_owned(), copy::Record::from_bytes(record)))
}

fn write_note(path: &Path, upper: &Path, layer: &str, record: &copy::Record) -> std::io::Result<()> {
    let parts = [layer.as_bytes(), upper.as_os_str().as_bytes(), &record.to_bytes()];
    std::fs::write(path, parts.join(&b'\n'))
}

/// Merges neighbours in the chain of a box, so that it stays short. The box stands on the old ones until it is next
/// given another root; both show the same.
pub(crate) fn compact(home: &Home, id: &str) -> Result<()> {
    compact_with(home, id, |parts, merged| steps::merged(home, id, parts, merged))
}

/// The same for who tells himself what is compared with the next step. `merged_into` is given the layers, and what they became.
pub(crate) fn compact_with(
    home: &Home,
    id: &str,
    mut merged_into: impl FnMut(&[String], &str) -> Result<()>,
) -> Result<()> {
    loop {
        let Some(record) = home.read_record(id)? else { return Ok(()) };
        let chain = &record.info.chain;
        let levels: Vec<u32> = chain.iter().map(|name| layers::level(name)).collect();
        let Some(run) = merge::plan_merges(&levels) else { return Ok(()) };
        let parts = chain[run.clone()].to_vec();
        let merged = layers::new_name(&format!("merge{}", levels[run.start] + 1))?;
        let reach = reach();
        let open = |name: &String| Tree::At(layers::path(home, name)).open(&reach);
        let trees = parts.iter().map(open).collect::<Result<Vec<_>>>()?;
        let trees: Vec<_> = trees.iter().map(AsFd::as_fd).collect();
        let base = run.end == chain.len();
        match layers::build(home, &merged, |into| merge::merge(&reach, &trees, into, Marks::here(), base)) {
            Ok(_) => {}
            // One layer cannot show it: the chain stays as it is.
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
            Err(e) => return Err(e),
        }
        {
            let _turn = home.lock_box(id)?;
            let Some(mut record) = home.read_record(id)? else { return Ok(()) };
            if !steps::splice(&mut record.info.chain, &parts, &merged) {
                // It stands on something else by now; what was made is swept away.
                return Ok(());
            }
            home.write_record(&record)?;
        }
        // Not under the lock: whoever looks at a step takes the two the other way round.
        merged_into(&parts, &merged)?;
    }
}
