//! An image, put together from its layers: decompressed, checked, unpacked from the lowest to the uppermost.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::FileType;
use glasshouse_linux::unpack::{self, Bounds, Chain, Owners, Shape, Unpacked};
use glasshouse_protocol::plan::DOOR_NAMES;
use sha2::{Digest as _, Sha256};

use super::manifest::{Config, chain_id, digest_text};
use super::reference::Reference;
use super::store::{self, ImageInfo, Incoming};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;

/// One layer, unpacked.
const LAYER_BYTES_MAX: u64 = 64 << 30;
/// Files of a whole image.
const IMAGE_ENTRIES_MAX: u64 = 4_000_000;
/// A layer may be this small without anybody asking how well it was compressed.
const UNSUSPICIOUS_BYTES: u64 = 256 << 20;
/// Larger ones are not compressed better than this, or somebody means harm.
const RATIO_MAX: u64 = 200;
/// Memory for decompression: 2^27 bytes is what the format's specification asks every reader to bear.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// The layer that is being unpacked, as long as nobody knows its name.
const LAYER: &str = "next";

/// Where the system's own file systems are mounted in every box, so the image has to have directories there.
const MOUNT_POINTS: [(&str, u32); 4] = [("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777)];

/// Hears how many bytes of a layer have been read.
pub(super) type Heard<'a> = &'a dyn Fn(u64);

/// A layer's bytes, as they were sent or stored.
pub(super) struct Blob<R> {
    pub(super) stream: R,
    /// What they have to be, where that is not known yet.
    pub(super) digest: Option<String>,
}

/// The work on one image.
pub(super) struct Assembly {
    home: Home,
    incoming: Arc<Incoming>,
    owners: Owners,
    shape: Shape,
    /// Layers delete what is below them.
    deletions: bool,
    chain: Chain,
    /// Contents so far, lowest first.
    diff_ids: Vec<String>,
    /// Names of layers so far, lowest first.
    layers: Vec<String>,
    /// Those of them that are not in the store yet.
    fresh: Vec<String>,
    bytes: u64,
    entries: u64,
    left_out: u64,
    stop: Arc<AtomicBool>,
}

impl Assembly {
    pub(super) fn new(home: &Home, incoming: Arc<Incoming>, stop: Arc<AtomicBool>) -> Assembly {
        let root = rustix::process::geteuid().is_root();
        let (owners, opaque) = match root {
            true => (Owners::Kept, c"trusted.overlay.opaque"),
            false => (Owners::Ours, c"user.overlay.opaque"),
        };
        Assembly {
            home: home.clone(),
            incoming,
            owners,
            shape: Shape::IMAGE,
            deletions: true,
            chain: Chain::new(Vec::new(), opaque),
            diff_ids: Vec::new(),
            layers: Vec::new(),
            fresh: Vec::new(),
            bytes: 0,
            entries: 0,
            left_out: 0,
            stop,
        }
    }

    /// The same for a tree of our own kind: modes are kept even where they lock us out, as far as that goes, and all that a box
    /// can write finds room.
    pub(super) fn of_state(home: &Home, incoming: Arc<Incoming>) -> Assembly {
        let mut assembly = Assembly::new(home, incoming, Arc::default());
        assembly.shape = Shape::STATE;
        if assembly.owners == Owners::Ours {
            assembly.owners = Owners::OursAsTheyAre;
        }
        assembly
    }

    /// The same for a tree that is no layer: names of deletions are refused in it.
    pub(super) fn without_deletions(self) -> Assembly {
        Assembly { deletions: false, ..self }
    }

    /// Takes the next layer from the store. Whether it is there.
    pub(super) fn reuse(&mut self, diff_id: &str) -> Result<bool> {
        let mut ids = self.diff_ids.clone();
        ids.push(diff_id.to_owned());
        let known = store::find_layer(&self.home, &chain_id(&ids), diff_id)?;
        let Some((name, known)) = known else { return Ok(false) };
        let tree = store::tree_of(&self.home, &name);
        let tree = File::open(&tree).context(format_args!("open {}", tree.display()))?;
        self.diff_ids = ids;
        self.put(name, tree.into(), &known);
        Ok(true)
    }

    /// Digests of the contents so far, lowest first.
    pub(super) fn contents(&self) -> &[String] {
        &self.diff_ids
    }

    fn put(&mut self, name: String, tree: OwnedFd, known: &Unpacked) {
        if known.hides_all {
            // Overlayfs shows all layers at the root, whatever one of them says.
            self.layers.clear();
        }
        // The same layer a second time brings all that it brought before: once is enough, and all that overlayfs bears.
        self.layers.retain(|other| *other != name);
        self.layers.push(name);
        self.chain.push(tree);
        self.bytes += known.bytes;
        self.entries += known.entries;
        self.left_out += known.left_out;
    }

    /// Unpacks the next layer, and checks that it is what the configuration says.
    pub(super) fn unpack(
        &mut self,
        blob: Blob<impl Read>,
        diff_id: Option<&str>,
        heard: Heard<'_>,
    ) -> Result<()> {
        let dir = self.incoming.layer(LAYER)?;
        let tree = dir.join("tree");
        let tree: OwnedFd = File::open(&tree).context(format_args!("open {}", tree.display()))?.into();
        let (unpacked, found, digest) = self.read(blob.stream, &tree, diff_id, heard)?;
        for (wanted, found, what) in
            [(blob.digest.as_deref(), &digest, "digest"), (diff_id, &found, "content")]
        {
            if wanted.is_some_and(|wanted| wanted != found.as_str()) {
                let wanted = wanted.unwrap_or_default();
                let message = format!(
                    "a layer of the image is not what it says: its {what} is {found}, and {wanted} was \
                     promised; it is damaged, or somebody changed it"
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        }
        store::write_layer(&dir, &unpacked)?;
        self.diff_ids.push(found.clone());
        let name = match unpacked.leaned {
            true => store::layer_name(&chain_id(&self.diff_ids)),
            false => store::layer_name(&found),
        };
        if self.fresh.contains(&name) {
            // The same one once more, as some tools write it.
            self.incoming.discard(LAYER)?;
        } else {
            let place = self.incoming.path().join(&name);
            std::fs::rename(&dir, &place).context(format_args!("rename {}", dir.display()))?;
            self.fresh.push(name.clone());
        }
        self.put(name, tree, &unpacked);
        Ok(())
    }

    /// Unpacks what the stream holds. What it was, the digest of its content, and the digest of the stream.
    fn read(
        &self,
        stream: impl Read,
        tree: &OwnedFd,
        diff_id: Option<&str>,
        heard: Heard<'_>,
    ) -> Result<(Unpacked, String, String)> {
        let room = super::room(&self.home)?;
        let sent = Sent { stream, hash: Sha256::new(), bytes: 0, heard, stop: &self.stop };
        let sent = RefCell::new(sent);
        let (unpacked, content) = {
            let stream = decompressed(&sent)?;
            let mut plain = Plain { stream, sent: &sent, hash: Sha256::new(), bytes: 0, room };
            let entries =
                super::room_entries(&self.home)?.min(IMAGE_ENTRIES_MAX.saturating_sub(self.entries));
            let (bytes, shape, deletions) = (LAYER_BYTES_MAX.min(room), self.shape, self.deletions);
            let bounds = Bounds { bytes, entries, except: &DOOR_NAMES, shape, deletions };
            let unpacked = unpack::unpack(&mut plain, tree.as_fd(), &self.chain, self.owners, bounds);
            (unpacked.map_err(|e| refused(e, diff_id))?, plain.hash.finalize())
        };
        let mut sent = sent.into_inner();
        // What follows the compressed stream belongs to the digest too.
        io::copy(&mut sent, &mut io::sink()).map_err(|e| refused(e, diff_id))?;
        Ok((unpacked, digest_text(&content), digest_text(&sent.hash.finalize())))
    }

    /// Moves the layers to their places, and no more. Their names, uppermost first.
    pub(super) fn publish(mut self) -> Result<Vec<String>> {
        self.fresh.retain(|name| self.layers.contains(name));
        self.incoming.publish(&self.fresh)?;
        Ok(self.layers.into_iter().rev().collect())
    }

    /// Adds what is missing to run boxes from it, moves the layers to their places and writes the record.
    pub(super) fn finish(mut self, reference: &Reference, digest: &str, config: Config) -> Result<ImageInfo> {
        if self.layers.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the image has no layers: there is nothing to run in it",
            ));
        }
        let mut config = config.image;
        config.workdir = absolute(&config.workdir);
        if let Some(stream) = self.missing(&config.workdir)? {
            self.unpack(Blob { stream: stream.as_slice(), digest: None }, None, &|_| {})?;
        }
        self.fresh.retain(|name| self.layers.contains(name));
        self.incoming.publish(&self.fresh)?;
        let info = ImageInfo {
            name: reference.to_string(),
            digest: digest.to_owned(),
            config,
            layers: self.layers.iter().rev().cloned().collect(),
            created_ms: store::now_ms(),
            size_bytes: self.bytes,
            left_out: self.left_out,
        };
        store::write(&self.home, reference, &info)?;
        Ok(info)
    }

    /// One more layer, where the image needs it: places for the system's own mounts that the image has put something
    /// else at, a link for example, and the working directory.
    fn missing(&self, workdir: &str) -> Result<Option<Vec<u8>>> {
        let mut wanted = Vec::new();
        for (name, mode) in MOUNT_POINTS {
            let found = self.chain.find_link(Path::new(name)).context(format_args!("look for /{name}"))?;
            if found.is_some_and(|found| found.kind() != FileType::Directory) {
                wanted.push((name, mode));
            }
        }
        let inside = workdir.trim_start_matches('/');
        if !inside.is_empty() {
            match self.chain.find(Path::new(inside)).context(format_args!("look for {workdir}"))? {
                None => wanted.push((inside, 0o755)),
                Some(found) if found.kind() == FileType::Directory => {}
                Some(_) => {
                    let message = format!("the image's working directory {workdir:?} is no directory");
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
            }
        }
        if wanted.is_empty() {
            return Ok(None);
        }
        let mut builder = tar::Builder::new(Vec::new());
        for (name, mode) in wanted {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Directory);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_size(0);
            builder.append_data(&mut header, name, io::empty()).context(format_args!("make {name}"))?;
        }
        builder.into_inner().context("make a layer").map(Some)
    }
}

/// Docker takes a relative one as below the root, and so do we.
fn absolute(workdir: &str) -> String {
    if workdir.is_empty() || workdir.contains('\0') {
        "/".into()
    } else {
        format!("/{}", workdir.trim_matches('/'))
    }
}

fn refused(error: io::Error, diff_id: Option<&str>) -> Error {
    let short = diff_id.map(|id| format!(" {}", &id[..id.len().min(19)])).unwrap_or_default();
    if error.kind() == io::ErrorKind::InvalidData {
        return Error::new(ErrorKind::Invalid, format!("the image's layer{short} is refused: {error}"));
    }
    if error.kind() == io::ErrorKind::ConnectionAborted {
        return stopped();
    }
    Error::io(format_args!("unpack the image's layer{short}"), error)
}

/// Somebody wanted it to end.
pub(super) fn stopped() -> Error {
    Error::new(ErrorKind::Failed, "it was stopped before it was done")
}

/// A layer as it was sent: counted, with its digest, and broken off when nobody wants it any more.
struct Sent<'a, R> {
    stream: R,
    hash: Sha256,
    bytes: u64,
    heard: Heard<'a>,
    stop: &'a AtomicBool,
}

impl<R: Read> Read for Sent<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            // Not the kind `Interrupted` itself: that one is tried again.
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "it was stopped before it was done",
            ));
        }
        let n = self.stream.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        (self.heard)(self.bytes);
        Ok(n)
    }
}

/// The same through a shared reference, so that its count can be asked for while it is read.
struct Shared<'a, 'b, R>(&'a RefCell<Sent<'b, R>>);

impl<R: Read> Read for Shared<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

/// By its first bytes: what a manifest says of the compression is not always true.
fn decompressed<'a, R: Read>(sent: &'a RefCell<Sent<'_, R>>) -> Result<Box<dyn Read + 'a>> {
    let mut stream = BufReader::with_capacity(64 * 1024, Shared(sent));
    let magic = stream.fill_buf().map_err(|e| refused(e, None))?;
    let unknown = |name: &str| {
        let message =
            format!("the image has a layer that is compressed by {name}; gzip and zstd are understood");
        Err(Error::new(ErrorKind::Unsupported, message))
    };
    match magic {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(stream))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::with_buffer(stream).context("start to decompress a layer")?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).context("bound the memory for a layer")?;
            Ok(Box::new(decoder))
        }
        [b'B', b'Z', b'h', ..] => unknown("bzip2"),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => unknown("xz"),
        _ => Ok(Box::new(stream)),
    }
}

/// A layer's content: counted, with its digest, and bounded.
struct Plain<'a, 'b, R> {
    stream: Box<dyn Read + 'a>,
    sent: &'a RefCell<Sent<'b, R>>,
    hash: Sha256,
    bytes: u64,
    room: u64,
}

impl<R> Read for Plain<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        let sent = self.sent.borrow().bytes;
        let bomb = self.bytes > UNSUSPICIOUS_BYTES && self.bytes / sent.max(1) > RATIO_MAX;
        let why = match () {
            () if bomb => format!("{sent} bytes became {}, more than {RATIO_MAX} times as many", self.bytes),
            () if self.bytes > LAYER_BYTES_MAX => format!("it is larger than {LAYER_BYTES_MAX} bytes"),
            () if self.bytes > self.room => {
                format!("it is larger than the {} bytes that the disk has room for", self.room)
            }
            () => return Ok(n),
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}
