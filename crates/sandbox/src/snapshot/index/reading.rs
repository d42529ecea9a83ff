//! Reading files: attributes and content, and whether they changed meanwhile.
//!
//! The files of one directory are read by several threads if they are many or large. All of them take the next file
//! from one list, so nobody waits for a thread that starts late; whoever walks takes part, and waits for the rest only:
//!
//! ```text
//!  walk ─▶ list of files ──┬─▶ the walk's own thread ─┬─▶ entries, in the order of the names
//!                          └─▶ others, if any is free ┘
//! ```
//! Others read with our own rights. What these do not open, the walk reads once more, as far as it reaches.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::fstat;

use super::super::Marks;
use super::attributes::Attributes;
use super::opener::{Opener, Plain, Wanted};
use super::scan::is_gone;
use super::stat::stamp;
use super::{Entry, Kind};
use crate::threads;
use glasshouse_linux::content::{Contents, Kept, Room};

/// So many files are worth a second thread, or so many bytes.
const FILES_MANY: usize = 16;
const BYTES_MANY: u64 = 128 << 10;
/// Threads for one walk, its own among them.
const THREADS_MAX: usize = 4;

/// What came of a file.
pub(super) enum Read {
    Whole(Entry),
    /// It changed while it was read.
    Torn(Entry),
    /// It was there a moment ago.
    Gone,
    /// Its content is in another layer.
    Elsewhere,
}

/// Why a file was not read.
pub(super) enum Refused {
    Opening(io::Error),
    Reading(io::Error),
}

/// Reads files one by one. Holds the buffers, so that they are made once for many files.
pub(super) struct FileReader<'a> {
    pub(super) opener: &'a dyn Opener,
    pub(super) reach: &'a Reach,
    pub(super) attributes: Attributes,
}

impl FileReader<'_> {
    /// Fills in the entry of a file. In a marked directory, an empty one may be a whiteout.
    pub(super) fn read(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        mut entry: Entry,
        marked: bool,
        contents: &mut Contents,
    ) -> Result<Read, Refused> {
        let file = match self.opener.open(dir, name, Wanted::File) {
            Ok(file) => file,
            Err(e) if is_gone(&e) => return Ok(Read::Gone),
            Err(e) => return Err(Refused::Opening(e)),
        };
        let found = self.attributes.read(self.reach, file.as_fd()).map_err(Refused::Reading)?;
        if found.metacopy {
            return Ok(Read::Elsewhere);
        }
        if marked && found.whiteout && entry.size == 0 {
            entry.kind = Kind::Whiteout;
            return Ok(Read::Whole(entry));
        }
        entry.xattrs = found.xattrs;
        entry.content = match contents.hash(file.as_fd(), entry.size) {
            Ok(hash) => hash,
            Err(e) if is_gone(&e) => return Ok(Read::Gone),
            Err(e) => return Err(Refused::Reading(e)),
        };
        let after = fstat(&file).map_err(|e| Refused::Reading(e.into()))?;
        if stamp(&after) != entry.stamp || u64::try_from(after.st_size) != Ok(entry.size) {
            entry.stamp.ino = 0;
            return Ok(Read::Torn(entry));
        }
        Ok(Read::Whole(entry))
    }
}

/// A file that waits to be read.
pub(super) struct Waiting {
    /// Its place among the entries of its directory.
    pub(super) place: usize,
    pub(super) name: CString,
    pub(super) entry: Entry,
}

/// The files of a directory.
pub(super) struct Files {
    pub(super) dir: Arc<OwnedFd>,
    pub(super) waiting: Vec<Waiting>,
}

impl Files {
    fn is_worth_a_thread(&self) -> bool {
        let bytes = self.waiting.iter().map(|file| file.entry.size).fold(0, u64::saturating_add);
        self.waiting.len() > 1 && (self.waiting.len() >= FILES_MANY || bytes >= BYTES_MANY)
    }

    /// Reads them all. What came of each is told with its place.
    pub(super) fn read(
        self,
        reader: &mut FileReader<'_>,
        contents: &mut Contents,
        marks: Marks,
    ) -> Vec<(usize, CString, Result<Read, Refused>)> {
        if !self.is_worth_a_thread() {
            let Files { dir, waiting } = self;
            let one = |Waiting { place, name, entry }: Waiting| {
                let read = reader.read(dir.as_fd(), &name, entry, false, contents);
                (place, name, read)
            };
            return waiting.into_iter().map(one).collect();
        }
        let (others, room) = (threads_max().min(self.waiting.len()) - 1, contents.room());
        let shared = Arc::new(Shared { files: self, next: AtomicUsize::new(0) });
        let (told, hear) = channel();
        for _ in 0..others {
            let (shared, told) = (Arc::downgrade(&shared), told.clone());
            threads::lend(Box::new(move || {
                // It may have been done before this thread came.
                if let Some(shared) = shared.upgrade() {
                    shared.read_elsewhere(marks, room, &told);
                }
            }));
        }
        drop(told);
        let files = &shared.files;
        let mut read: Vec<_> = files.waiting.iter().map(|_| None).collect();
        let mut left = read.len();
        while let Some((n, file)) = shared.take() {
            read[n] = Some(reader.read(files.dir.as_fd(), &file.name, file.entry.clone(), false, contents));
            left -= 1;
        }
        // Not for those that came too late to read anything.
        while left > 0
            && let Ok((done, kept)) = hear.recv()
        {
            left -= done.len();
            contents.keep_too(kept);
            for (n, done) in done {
                read[n] = Some(done);
            }
        }
        let all = files.waiting.iter().zip(read).map(|(file, read)| {
            // Nobody could tell, or had no right: once more, as far as we reach.
            let again = !matches!(read, Some(Ok(_)));
            let read = read.filter(|_| !again).unwrap_or_else(|| {
                reader.read(files.dir.as_fd(), &file.name, file.entry.clone(), false, contents)
            });
            (file.place, file.name.clone(), read)
        });
        all.collect()
    }
}

/// What threads that read together share.
struct Shared {
    files: Files,
    next: AtomicUsize,
}

type Done = (Vec<(usize, Result<Read, Refused>)>, Kept);

impl Shared {
    fn take(&self) -> Option<(usize, &Waiting)> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        Some((n, self.files.waiting.get(n)?))
    }

    /// Takes part, on another thread than the walk's.
    fn read_elsewhere(&self, marks: Marks, room: Room, told: &Sender<Done>) {
        let reach = Reach::own();
        let mut contents = Contents::keeping(room);
        let attributes = Attributes::new(marks);
        let mut reader = FileReader { opener: &Plain(&reach), reach: &reach, attributes };
        let mut done = Vec::new();
        while let Some((n, file)) = self.take() {
            let read =
                reader.read(self.files.dir.as_fd(), &file.name, file.entry.clone(), false, &mut contents);
            done.push((n, read));
        }
        // Who walks has given up if nobody listens.
        let _ = told.send((done, contents.kept()));
    }
}

/// As many as there are processors for us. Asked once: the answer is read from files.
fn threads_max() -> usize {
    static ASKED: OnceLock<usize> = OnceLock::new();
    *ASKED.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX))
}
