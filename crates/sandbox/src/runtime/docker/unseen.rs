//! States that cannot be read in a directory: of boxes and images on engines that are elsewhere, that remap users, or that keep
//! them by another storage driver than overlay2.
//!
//! | of what | who tells |
//! |---|---|
//! | a box that runs | its guest, while it holds still: it walks through its root and hashes what changed ([`crate::snapshot::index::hear`]) |
//! | what a file of it holds, for a comparison of lines | the engine, by its archive API |
//! | an image, a snapshot | the engine: it is saved once, and its layers are unpacked into our store like any image's |
//! | a box that is stopped | nobody: it is started, or its snapshot is looked at |
//!
//! The engine's list of changes spares nobody a walk: it leaves out what a box can hide from it (`missed` says what, and what the
//! list is good for).
//!
//! A chain of such an engine is `tree:ID, engine:ID`. What it shows is known when somebody asks (`Sandboxes::know`), and not
//! before: a whole image has to come here for that.

use std::cell::RefCell;
use std::fmt;
use std::io::{Read, Seek, SeekFrom, Write};

use bollard::query_parameters::DownloadFromContainerOptionsBuilder;
use futures_util::StreamExt;
use glasshouse_linux::descriptor;
use glasshouse_protocol::walk::{Answer, Item, Misheard, Wanted};

use super::engine::Engine;
use super::{Docker, image};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::runtime::native::Held;
use crate::snapshot::{Elsewhere, layers};

/// Bytes of a file that are fetched to be compared.
const CONTENT_BYTES_MAX: u64 = 16 << 20;
/// What an archive with one file may have beside it.
const ARCHIVE_BYTES: u64 = 64 * 1024;

/// The root of a box that its guest tells of.
pub(super) struct Unseen {
    engine: Engine,
    container: String,
    chain: Vec<String>,
    /// As long as it stands still.
    held: RefCell<Option<Held>>,
}

impl fmt::Debug for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unseen").field(&self.container).finish()
    }
}

impl Unseen {
    pub(super) fn new(engine: &Engine, container: String, chain: &[String], held: Held) -> Unseen {
        Unseen { engine: engine.clone(), container, chain: chain.to_vec(), held: RefCell::new(Some(held)) }
    }

    /// Gives back what holds the box.
    pub(super) fn take_held(&self) -> Option<Held> {
        self.held.borrow_mut().take()
    }

    fn with_held<T>(&self, work: impl FnOnce(&mut Held) -> Result<T>) -> Result<T> {
        let mut held = self.held.borrow_mut();
        let let_go = || Error::new(ErrorKind::Failed, "the box is not held still any more");
        work(held.as_mut().ok_or_else(let_go)?)
    }
}

fn misheard(e: Misheard) -> Error {
    Error::new(ErrorKind::Failed, e.to_string())
}

impl Elsewhere for Unseen {
    fn walk(&self, take: &mut dyn FnMut(Item) -> Result<()>) -> Result<()> {
        self.with_held(|held| {
            held.begin_walk()?;
            loop {
                let body = held.hear_walker()?;
                let mut bytes = body.as_slice();
                while let Some(item) = Item::take(&mut bytes).map_err(misheard)? {
                    let is_last = item == Item::End;
                    take(item)?;
                    if is_last && bytes.is_empty() {
                        return Ok(());
                    }
                }
            }
        })
    }

    fn read(&self, wanted: &Wanted) -> Result<Vec<Answer>> {
        self.with_held(|held| {
            held.say_to_walker(&wanted.to_bytes())?;
            let mut answers = Vec::with_capacity(wanted.paths.len());
            while answers.len() < wanted.paths.len() {
                let body = held.hear_walker()?;
                let mut bytes = body.as_slice();
                while let Some(answer) = Answer::take(&mut bytes).map_err(misheard)? {
                    answers.push(answer);
                }
            }
            Ok(answers)
        })
    }

    fn done(&self) -> Result<()> {
        self.with_held(|held| {
            held.say_to_walker(&Wanted::default().to_bytes())?;
            // What is said before that would be for whoever walks.
            held.hear_walker().map(drop)
        })
    }

    fn content(&self, path: &[u8], size: u64) -> Result<Vec<u8>> {
        let shown = String::from_utf8_lossy(path).into_owned();
        if size > CONTENT_BYTES_MAX {
            let message =
                format!("{shown} is too large to be fetched: {CONTENT_BYTES_MAX} bytes are the most");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let what = format!("fetch {shown} from the container");
        let text = std::str::from_utf8(path).map_err(std::io::Error::other).context(&what)?;
        let options = DownloadFromContainerOptionsBuilder::new().path(&format!("/{text}")).build();
        let archive = self.engine.ask(&what, async |docker| {
            let mut pieces = docker.download_from_container(&self.container, Some(options));
            let mut archive = Vec::new();
            while let Some(piece) = pieces.next().await {
                archive.extend_from_slice(&piece?);
                if archive.len() as u64 > size + ARCHIVE_BYTES {
                    break;
                }
            }
            Ok(archive)
        })?;
        let mut archive = tar::Archive::new(archive.as_slice());
        let mut bytes = Vec::new();
        if let Some(entry) = archive.entries().context(&what)?.next() {
            entry.context(&what)?.take(size).read_to_end(&mut bytes).context(&what)?;
        }
        Ok(bytes)
    }

    fn below(&self) -> &[String] {
        &self.chain
    }
}

impl Docker {
    /// Sees to it that the layers of an engine's image are here. Whoever asks shares the store's lock.
    pub(crate) fn know(&self, image: &str) -> Result<()> {
        if layers::known_tree(&self.home, image).is_some() {
            return Ok(());
        }
        let lock = self.home.path("engine").join("fetch");
        // Who waited for somebody who fetched the same has it.
        let _alone = descriptor::lock_path(&lock).context("lock what is fetched")?;
        if layers::known_tree(&self.home, image).is_some() {
            return Ok(());
        }
        let mut file = image::scratch(&self.home)?;
        let room = crate::image::room(&self.home)?;
        let mut bytes = 0;
        self.engine.ask("have the engine save an image", async |docker| {
            let mut pieces = docker.export_image(image);
            while let Some(piece) = pieces.next().await {
                let piece = piece?;
                bytes += piece.len() as u64;
                if bytes > room {
                    return Err(std::io::Error::from(std::io::ErrorKind::StorageFull).into());
                }
                file.write_all(&piece)?;
            }
            Ok(())
        })?;
        file.seek(SeekFrom::Start(0)).context("read what the engine saved")?;
        let layers = crate::image::unpack_saved(&self.home, file, image)?;
        layers::note_tree(&self.home, image, &layers)
    }
}
