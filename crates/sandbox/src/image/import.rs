//! Images from files: archives as skopeo, podman and docker write them, directories of the OCI's layout, and plain roots.
//!
//! An archive is read twice: once to learn where in it each file lies, then file by file. Nothing of it is unpacked
//! but its layers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use glasshouse_linux::archive::{self, Bits};
use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::{Mode, OFlags, ResolveFlags};
use serde_json::Value;

use super::assembly::{Assembly, Blob};
use super::manifest::{
    self, Config, DOCUMENT_BYTES_MAX, Descriptor, Document, ImageConfig, NAME_NOTE, Platform, digest_of,
};
use super::reference::Reference;
use super::store::{ImageInfo, Incoming, image};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::snapshot::layers;

/// Files of one archive; an image has one for each layer, and few more.
const FILES_MAX: usize = 10_000;
/// Indexes that lead to each other before one leads to an image.
const INDEXES_MAX: usize = 3;
/// Names in archives by `docker save` that lead to each other.
const LINKS_MAX: usize = 8;

/// What images are called that nobody gave a name to, together with their digests: what an archive calls itself is
/// somebody else's word, and must not become what a name of ours stands for.
const OURS: &str = "localhost/archive";
/// What a file's name ends with that is no part of the image's.
const ENDINGS: [&str; 3] = [".tar", ".tar.gz", ".tar.zst"];

/// What an image is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Called {
    /// This.
    Given(Reference),
    /// What the archive says, or else as its file; nothing else that is here loses its name to it.
    Itself,
    /// By its digest, whatever it says.
    ByDigest,
}

/// Takes an image from an archive or a directory.
pub(super) fn import(home: &Home, path: &Path, called: Called, halt: Arc<AtomicBool>) -> Result<ImageInfo> {
    let path = std::fs::canonicalize(path).context(format_args!("import {}", path.display()))?;
    let store = home.store_shared()?;
    let incoming = Arc::new(Incoming::new(home, None)?);
    let work = Work { home, path: &path, called, incoming: Arc::clone(&incoming), halt };
    let (info, before) = work.run()?;
    drop((incoming, store));
    if before.is_some() {
        layers::sweep(home)?;
    }
    Ok(info)
}

/// Unpacks the layers of an image that an engine has saved. Their names, uppermost first; no record names them yet.
pub(crate) fn unpack_saved(home: &Home, file: File, image: &str) -> Result<Vec<String>> {
    let (incoming, path) = (Arc::new(Incoming::new(home, None)?), PathBuf::from(image));
    let work = Work { home, path: &path, called: Called::ByDigest, incoming, halt: Arc::default() };
    let files = Files::of_archive(file, &path)?;
    work.unpack(&files, &work.find(&files)?)?.publish()
}

struct Work<'a> {
    home: &'a Home,
    path: &'a Path,
    called: Called,
    incoming: Arc<Incoming>,
    /// Somebody wants it to end.
    halt: Arc<AtomicBool>,
}

/// An image that was found in a file, before its layers are.
struct Found {
    /// The name that it brings.
    name: Option<String>,
    digest: String,
    /// Those of the indexes that led to it, by which it is known, too.
    indexes: Vec<String>,
    config: Config,
    /// Where its layers are, lowest first, and their digests as far as they are told.
    layers: Vec<(String, Option<String>)>,
}

type Done = (ImageInfo, Option<ImageInfo>);

impl Work<'_> {
    fn run(self) -> Result<Done> {
        let is_dir = self.path.is_dir();
        if is_dir && !self.path.join("oci-layout").is_file() {
            return self.root();
        }
        let files = if is_dir { Files::of_directory(self.path)? } else { self.archive()? };
        let found = self.find(&files)?;
        Platform::parse(None)?.check(&found.config).map_err(|e| self.failed(e))?;
        let reference = self.reference(&found)?;
        let assembly = self.unpack(&files, &found)?;
        self.finish(assembly, &reference, &found.digest, found.config)
    }

    /// Finds the image in these files.
    fn find(&self, files: &Files) -> Result<Found> {
        let found = match files.document("manifest.json")? {
            Some(bytes) if files.find("index.json")?.is_none() => docker(files, &bytes),
            _ => match files.document("index.json")? {
                Some(bytes) => oci(files, bytes),
                None => Err(Error::new(
                    ErrorKind::Invalid,
                    "it is neither of the OCI's layout nor by `docker save` (no index.json, no manifest.json)",
                )),
            },
        };
        let found = found.map_err(|e| self.failed(e))?;
        if found.config.diff_ids.len() != found.layers.len() {
            let error =
                Error::new(ErrorKind::Invalid, "its manifest and its configuration count layers differently");
            return Err(self.failed(error));
        }
        Ok(found)
    }

    fn unpack(&self, files: &Files, found: &Found) -> Result<Assembly> {
        let mut assembly = self.assembly();
        for ((file, digest), diff_id) in found.layers.iter().zip(&found.config.diff_ids) {
            if assembly.reuse(diff_id)? {
                continue;
            }
            let missing = || self.failed(Error::new(ErrorKind::Invalid, format!("it has no {file:?}")));
            let stream = files.open(file)?.ok_or_else(missing)?;
            let blob = Blob { stream, digest: digest.clone() };
            assembly.unpack(blob, Some(diff_id), &|_| {}).map_err(|e| self.failed(e))?;
        }
        Ok(assembly)
    }

    fn failed(&self, error: Error) -> Error {
        Error::new(error.kind(), format!("cannot import {}: {error}", self.path.display()))
    }

    fn assembly(&self) -> Assembly {
        Assembly::new(self.home, Arc::clone(&self.incoming), Arc::clone(&self.halt))
    }

    /// What it will be called. A name with a digest that it does not have would lie to whoever reads it.
    fn reference(&self, found: &Found) -> Result<Reference> {
        let is_true = |reference: &Reference| match &reference.digest {
            Some(digest) => *digest == found.digest || found.indexes.contains(digest),
            None => true,
        };
        match &self.called {
            Called::Given(reference) if is_true(reference) => Ok(reference.clone()),
            Called::Given(reference) => {
                let message = format!("it cannot be called {reference}: its digest is {}", found.digest);
                Err(self.failed(Error::new(ErrorKind::Invalid, message)))
            }
            Called::ByDigest => format!("{OURS}@{}", found.digest).parse(),
            Called::Itself => {
                // A name of the archive's own is somebody else's word: one that is none, or not true, is not used.
                let own = found.name.as_ref().and_then(|name| name.parse::<Reference>().ok());
                let reference = own.filter(is_true).map_or_else(|| self.name_of_file(), Ok)?;
                self.check_free(&reference, &found.digest)?;
                Ok(reference)
            }
        }
    }

    /// Nobody asked for this name, so what has it keeps it.
    fn check_free(&self, reference: &Reference, digest: &str) -> Result<()> {
        match image(self.home, &reference.to_string()) {
            Ok(other) if other.digest != digest => {
                let message = format!(
                    "{reference} is the name of another image here (digest {}, this one has {digest}); \
                     `--name {reference}` replaces it, another name keeps both",
                    other.digest
                );
                Err(self.failed(Error::new(ErrorKind::Exists, message)))
            }
            _ => Ok(()),
        }
    }

    fn finish(
        &self,
        assembly: Assembly,
        reference: &Reference,
        digest: &str,
        config: Config,
    ) -> Result<Done> {
        let before = image(self.home, &reference.to_string()).ok();
        let info = assembly.finish(reference, digest, config).map_err(|e| self.failed(e))?;
        Ok((info, before))
    }

    fn name_of_file(&self) -> Result<Reference> {
        let name =
            self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        let name = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(&name);
        name.parse::<Reference>().map_err(|_| {
            let message = format!("{} gives no name for an image; say --name", self.path.display());
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// A directory that holds a root: one layer, and nothing said of how to run it.
    fn root(self) -> Result<Done> {
        if self.path == Path::new("/") {
            let message = "cannot import /: it is the whole host; import a directory that holds a root";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let (reader, writer) = io::pipe().context("make a pipe")?;
        let from = self.path.to_owned();
        let packing = std::thread::Builder::new().name("glasshouse".into());
        let packing = packing.spawn(move || {
            archive::pack(&from, ResolveFlags::empty(), Bits::All, io::BufWriter::new(writer))
        });
        let packing = packing.context("start a thread (is the limit of processes reached?)")?;
        // Nothing lies below a root: what is called as deletions are in layers is a file like any other, and would be lost.
        let mut assembly = self.assembly().without_deletions();
        let unpacked = assembly.unpack(Blob { stream: reader, digest: None }, None, &|_| {});
        // Whoever packs is stopped by the end of the pipe if we gave up.
        let packed =
            packing.join().map_err(|_| Error::new(ErrorKind::Failed, "the packing was broken off"))?;
        if let Err(e) = packed
            && e.kind() != io::ErrorKind::BrokenPipe
        {
            return Err(Error::io(format_args!("import {}", self.path.display()), e));
        }
        unpacked.map_err(|e| self.failed(e))?;
        let diff_ids = assembly.contents().to_vec();
        let digest = diff_ids.first().cloned().unwrap_or_default();
        let config = Config { image: ImageConfig::default(), platform: None, diff_ids };
        let found = Found { name: None, digest, indexes: Vec::new(), config, layers: Vec::new() };
        let reference = self.reference(&found)?;
        self.finish(assembly, &reference, &found.digest, found.config)
    }

    /// Opens an archive, decompressed first if it is compressed as a whole.
    fn archive(&self) -> Result<Files> {
        let context = format!("read {}", self.path.display());
        let mut file = File::open(self.path).context(&context)?;
        let mut magic = [0; 4];
        let n = file.read(&mut magic).context(&context)?;
        file.seek(SeekFrom::Start(0)).context(&context)?;
        let plain: Box<dyn Read> = match magic[..n] {
            [0x1f, 0x8b, ..] => Box::new(flate2::bufread::MultiGzDecoder::new(BufReader::new(file))),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(file).context(&context)?),
            _ => return Files::of_archive(file, self.path),
        };
        let room = super::room(self.home)?;
        let path = self.incoming.path().join("archive");
        let mut copy =
            File::options().create_new(true).read(true).write(true).open(&path).context(&context)?;
        let copied = io::copy(&mut plain.take(room), &mut copy).context(&context)?;
        if copied == room {
            let message = format!("it is larger than the {room} bytes that the disk has room for");
            return Err(self.failed(Error::new(ErrorKind::DiskFull, message)));
        }
        copy.seek(SeekFrom::Start(0)).context(&context)?;
        Files::of_archive(copy, self.path)
    }
}

/// The files that an image is made of, wherever they lie.
enum Files {
    Directory(OwnedFd),
    Archive {
        file: File,
        /// Where each file begins, and its length.
        places: HashMap<String, (u64, u64)>,
        links: HashMap<String, String>,
    },
}

impl Files {
    fn of_directory(path: &Path) -> Result<Files> {
        let dir = File::open(path).context(format_args!("open {}", path.display()))?;
        Ok(Files::Directory(dir.into()))
    }

    fn of_archive(file: File, path: &Path) -> Result<Files> {
        let context = format!("read {}", path.display());
        let broken = |e: io::Error| {
            // Its own words are of the header's fields, with what stands in their place.
            let why = match e.raw_os_error() {
                Some(_) => e.to_string(),
                None => {
                    "it is none by tar, or a broken one; one that is compressed is unpacked first".to_owned()
                }
            };
            let message = format!("cannot read {} as an archive: {why}", path.display());
            Error::new(ErrorKind::Invalid, message)
        };
        let (mut places, mut links) = (HashMap::new(), HashMap::new());
        let mut archive = tar::Archive::new(file.try_clone().context(&context)?);
        // Names that are longer than a header are not among those that we look for, so they need not be put together.
        for entry in archive.entries_with_seek().map_err(broken)?.raw(true) {
            let entry = entry.map_err(broken)?;
            let Some(name) = entry.path().ok().and_then(|path| plain(&path)) else { continue };
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    places.insert(name, (entry.raw_file_position(), entry.size()));
                }
                tar::EntryType::Symlink | tar::EntryType::Link => {
                    let target = entry.link_name().ok().flatten().map(std::borrow::Cow::into_owned);
                    links.extend(
                        target.and_then(|target| beside(&name, &target)).map(|target| (name, target)),
                    );
                }
                _ => {}
            }
            if places.len() + links.len() > FILES_MAX {
                let message = format!("cannot import {}: it has more than {FILES_MAX} files", path.display());
                return Err(Error::new(ErrorKind::Limit, message));
            }
        }
        let file = archive.into_inner();
        Ok(Files::Archive { file, places, links })
    }

    /// Where a file is, with links followed, and its length.
    fn find(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.open(name)?.map(|stream| stream.limit()))
    }

    fn open(&self, name: &str) -> Result<Option<Take<File>>> {
        match self {
            Files::Directory(dir) => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
                let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                let opened = rustix::fs::openat2(dir.as_fd(), name, flags, Mode::empty(), resolve);
                let file = match opened {
                    Err(rustix::io::Errno::NOENT) => return Ok(None),
                    opened => File::from(opened.context(format_args!("open {name}"))?),
                };
                let meta = file.metadata().context(format_args!("look at {name}"))?;
                Ok(meta.is_file().then(|| file.take(meta.len())))
            }
            Files::Archive { file, places, links } => {
                let mut name = name;
                for _ in 0..LINKS_MAX {
                    if let Some((from, length)) = places.get(name) {
                        let mut file = file.try_clone().context("read the archive")?;
                        file.seek(SeekFrom::Start(*from)).context("read the archive")?;
                        return Ok(Some(file.take(*length)));
                    }
                    match links.get(name) {
                        Some(target) => name = target,
                        None => break,
                    }
                }
                Ok(None)
            }
        }
    }

    /// A small file as a whole.
    fn document(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(mut stream) = self.open(name)? else { return Ok(None) };
        if stream.limit() > DOCUMENT_BYTES_MAX {
            let message = format!("{name} has {} bytes; {DOCUMENT_BYTES_MAX} are the most", stream.limit());
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).context(format_args!("read {name}"))?;
        Ok(Some(bytes))
    }

    /// A document that is named by its digest.
    fn blob(&self, part: &Descriptor) -> Result<Vec<u8>> {
        let missing = || Error::new(ErrorKind::Invalid, format!("it has no {}", part.digest));
        let bytes = self.document(&path_of(&part.digest))?.ok_or_else(missing)?;
        let found = digest_of(&bytes);
        if found != part.digest {
            let message =
                format!("its part {} has the digest {found}: it is damaged, or was changed", part.digest);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(bytes)
    }
}

fn path_of(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// A name in an archive, if it is one that a file of an image can have.
fn plain(path: &Path) -> Option<String> {
    let mut parts = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::CurDir => {}
            _ => return None,
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// What a link in an archive leads to, as `docker save` makes them: `../<id>/layer.tar`.
fn beside(name: &str, target: &Path) -> Option<String> {
    let mut path: PathBuf = Path::new(name).parent()?.to_owned();
    for component in target.components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            _ => return None,
        }
    }
    plain(&path)
}

/// An image of the OCI's layout.
fn oci(files: &Files, mut bytes: Vec<u8>) -> Result<Found> {
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::new(ErrorKind::Invalid, format!("its index.json is no JSON: {e}")))?;
    let platform = Platform::parse(None)?;
    let mut digest = digest_of(&bytes);
    let (mut name, mut indexes) = (None, Vec::new());
    for n in 0..INDEXES_MAX {
        match manifest::document(&bytes, &platform)? {
            Document::Index(inner) => {
                bytes = files.blob(&inner)?;
                match n {
                    // What names images is the first index, of the one that was chosen there; its own digest nobody knows.
                    0 => name = name_of(&value, &inner.digest),
                    _ => indexes.push(digest),
                }
                digest = inner.digest;
            }
            Document::Manifest(manifest) => {
                let config = manifest::config(&files.blob(&manifest.config)?)?;
                let layer = |layer: &Descriptor| (path_of(&layer.digest), Some(layer.digest.clone()));
                let layers = manifest.layers.iter().map(layer).collect();
                return Ok(Found { name, digest, indexes, config, layers });
            }
        }
    }
    let message = format!("more than {INDEXES_MAX} indexes lead to each other");
    Err(Error::new(ErrorKind::Limit, message))
}

/// What an index calls the image of this digest, under the first of its names that is one.
fn name_of(index: &Value, digest: &str) -> Option<String> {
    let note = |entry: &Value, key: &str| {
        entry.get("annotations").and_then(|notes| notes.get(key)).and_then(Value::as_str).map(str::to_owned)
    };
    let entries = index.get("manifests").and_then(Value::as_array).into_iter().flatten();
    let mut chosen =
        entries.filter(|entry| entry.get("digest").and_then(Value::as_str).is_some_and(|of| of == digest));
    chosen.find_map(|entry| {
        // A bare tag is no name.
        let named = note(entry, NAME_NOTE).filter(|name| name.contains([':', '/']));
        note(entry, "io.containerd.image.name").or(named)
    })
}

/// An image by `docker save`.
fn docker(files: &Files, bytes: &[u8]) -> Result<Found> {
    let broken = |what: &str| Error::new(ErrorKind::Invalid, format!("its manifest.json {what}"));
    let value: Value = serde_json::from_slice(bytes).map_err(|e| broken(&format!("is no JSON: {e}")))?;
    let images = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let [image] = images else {
        return Err(broken(&format!("names {} images; save one at a time", images.len())));
    };
    let path = image.get("Config").and_then(Value::as_str).ok_or_else(|| broken("names no configuration"))?;
    let config = files.document(path)?.ok_or_else(|| broken("names a configuration that is not there"))?;
    let layers = image.get("Layers").and_then(Value::as_array).ok_or_else(|| broken("names no layers"))?;
    manifest::check_count(layers.len())?;
    let layer = |layer: &Value| Some((layer.as_str()?.to_owned(), None));
    let layers = layers.iter().map(layer).collect::<Option<_>>();
    Ok(Found {
        name: image.pointer("/RepoTags/0").and_then(Value::as_str).map(str::to_owned),
        digest: digest_of(&config),
        indexes: Vec::new(),
        config: manifest::config(&config)?,
        layers: layers.ok_or_else(|| broken("names layers by something else than words"))?,
    })
}
