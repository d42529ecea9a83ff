//! What boxes are made from: a chain of read-only layers, and trees of the host that are shown in it.
//!
//! | file | what it does |
//! |---|---|
//! | `host` | this machine's own programs |
//! | `reference` | names of images |
//! | `manifest` | what registries and archives say of an image |
//! | `registry` | a registry: documents, blobs, logins |
//! | `pull` | from a registry into the store |
//! | `import` | from an archive or a directory into the store |
//! | `commit` | from a snapshot into the store |
//! | `assembly` | layers decompressed, checked and unpacked, one on top of the other |
//! | `store` | records of images, and the layers that they name |
//! | `images` | what the library offers of all this |

mod assembly;
mod commit;
pub(crate) mod host;
mod images;
mod import;
mod manifest;
mod pull;
mod reference;
mod registry;
mod store;

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glasshouse_linux::rustix;
use glasshouse_linux::unpack::Chain;
use glasshouse_protocol::plan::Source;

pub(crate) use commit::Intake;
pub(crate) use import::unpack_saved;
pub use manifest::ImageConfig;
pub(crate) use manifest::digest_text;
pub use pull::{PullOptions, PullPhase, PullProgress, Stop};
pub(crate) use reference::Reference;
pub use registry::Credentials;
pub use store::ImageInfo;
pub(crate) use store::references;
pub(crate) use store::{Incoming, clean_incoming, clean_records, image};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::limits::DISK_RESERVE_BYTES;
use crate::snapshot::layers;
use crate::snapshot::records::{self, SnapshotInfo};
use crate::spec::Image;

/// Files that the host's disk keeps room for, whatever images bring.
const ENTRIES_RESERVE: u64 = 100_000;
/// No passwd file of an image is believed beyond this.
const PASSWD_BYTES_MAX: u64 = 1 << 20;

/// An image, ready to be mounted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Base {
    /// What it was made from in the first place.
    pub(crate) image: Image,
    /// Names of the layers, uppermost first.
    pub(crate) chain: Vec<String>,
    /// The layers themselves, in the same order.
    pub(crate) layers: Vec<Source>,
    /// Trees of the host, and where they are shown.
    pub(crate) trees: Vec<(Source, String)>,
    /// User of commands that name none.
    pub(crate) user: String,
    /// Working directory of commands that name none.
    pub(crate) cwd: String,
    /// Environment.
    pub(crate) env: Vec<(String, String)>,
}

/// Finds or makes what the image consists of.
pub(crate) fn resolve(home: &Home, image: &Image) -> Result<Base> {
    match image {
        Image::Host => host::base(home),
        Image::Directory(path) => directory(path),
        Image::Snapshot(name) => snapshot(home, name),
        Image::Stored(name) | Image::Remote(name) => stored(home, name),
        // What it is made of, the engine says when it is asked for a box.
        Image::Engine(_) => Ok(Base {
            image: image.clone(),
            chain: Vec::new(),
            layers: Vec::new(),
            trees: Vec::new(),
            user: String::new(),
            cwd: String::new(),
            env: Vec::new(),
        }),
        Image::OciArchive(path) | Image::DockerArchive(path) => {
            let message = format!("cannot use {} as image: it has not been imported", path.display());
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

/// Trees of the host that are shown in boxes of an image.
pub(crate) fn trees_of(image: &Image) -> Result<Vec<(Source, String)>> {
    if *image == Image::Host { host::trees() } else { Ok(Vec::new()) }
}

/// A snapshot, with the host's trees if it was made of the host's programs.
fn snapshot(home: &Home, name: &str) -> Result<Base> {
    let snapshot = records::find(home, name)?;
    snapshot.check_durable()?;
    let trees = trees_of(&snapshot.image)?;
    let layers = layers::sources(home, &snapshot.chain)?;
    let SnapshotInfo { image, chain, user, cwd, env, .. } = snapshot;
    Ok(Base { image, chain, layers, trees, user, cwd, env })
}

/// An image of the store.
fn stored(home: &Home, name: &str) -> Result<Base> {
    let info = image(home, name)?;
    let layers = layers::sources(home, &info.layers).map_err(|e| {
        let message =
            format!("the image {name:?} has lost a layer; `glass image pull {name}` fetches it: {e}");
        Error::new(ErrorKind::Failed, message)
    })?;
    let user = user(home, &info)?;
    let cwd = if info.config.workdir.is_empty() { "/".into() } else { info.config.workdir };
    let (image, chain, trees) = (Image::Stored(name.to_owned()), info.layers, Vec::new());
    Ok(Base { image, chain, layers, trees, user, cwd, env: info.config.env })
}

/// Who runs commands. Without root a box has one user, whose number has to be known before there is a box to look it
/// up in.
fn user(home: &Home, info: &ImageInfo) -> Result<String> {
    let user = match info.config.user.as_str() {
        "" => "root",
        user => user,
    };
    let name = user.split(':').next().unwrap_or_default();
    if rustix::process::geteuid().is_root() || name == "root" || name.parse::<u32>().is_ok() {
        return Ok(user.to_owned());
    }
    let mut trees = Vec::new();
    for layer in &info.layers {
        let tree = store::tree_of(home, layer);
        let tree = std::fs::File::open(&tree).context(format_args!("open {}", tree.display()))?;
        trees.push(tree.into());
    }
    let chain = Chain::new(trees, c"user.overlay.opaque");
    let passwd = chain.read(Path::new("etc/passwd"), PASSWD_BYTES_MAX);
    let passwd = passwd.context("read the image's /etc/passwd")?.unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd);
    let number = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() == Some(name) { fields.nth(1)?.parse::<u32>().ok() } else { None }
    });
    let number = number.ok_or_else(|| {
        let message =
            format!("the image wants the user {name:?}, whom its /etc/passwd does not know; say --user");
        Error::new(ErrorKind::Invalid, message)
    })?;
    Ok(number.to_string())
}

/// The registry that an image comes from, by the image's name.
pub fn registry_of(name: &str) -> Result<String> {
    Ok(name.parse::<Reference>()?.registry)
}

/// What may be written before the disk is as full as it may get.
pub(crate) fn room(home: &Home) -> Result<u64> {
    let disk = rustix::fs::statvfs(home.path("layers")).context("ask for the room on the disk")?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(DISK_RESERVE_BYTES))
}

/// How many files may be made before the disk has as few left as it may have.
fn room_entries(home: &Home) -> Result<u64> {
    let disk = rustix::fs::statvfs(home.path("layers")).context("ask for the room on the disk")?;
    // Some file systems have no such bound, and say nothing.
    Ok(if disk.f_files == 0 { u64::MAX } else { disk.f_favail.saturating_sub(ENTRIES_RESERVE) })
}

/// Whether that much can be put on the disk.
fn check_room(home: &Home, bytes: u64) -> Result<()> {
    let room = room(home)?;
    if bytes > room {
        let message = format!("the image has at least {bytes} bytes, and the disk has room for {room}");
        return Err(Error::new(ErrorKind::DiskFull, message));
    }
    Ok(())
}

/// A name that nobody else has.
fn random_name() -> Result<String> {
    let mut bytes = [0; 8];
    let random = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.context("read random numbers")?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

fn directory(path: &Path) -> Result<Base> {
    let path = std::fs::canonicalize(path).context(format_args!("use {} as image", path.display()))?;
    if !path.is_dir() {
        let message = format!("cannot use {} as image: it is not a directory", path.display());
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    if path == Path::new("/") {
        let message =
            "cannot use / as image: it would show the whole host; `--image host` shows its programs alone";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    std::fs::read_dir(&path).context(format_args!("read {}", path.display()))?;
    let layer = source(&path)?;
    Ok(Base {
        image: Image::Directory(path),
        chain: vec![layers::of_directory(&layer.path)],
        layers: vec![layer],
        trees: Vec::new(),
        user: "root".into(),
        cwd: "/".into(),
        env: vec![("HOME".into(), "/root".into())],
    })
}

/// A directory, with what tells whether it was swapped for another later.
pub(crate) fn source(path: &Path) -> Result<Source> {
    let meta = std::fs::symlink_metadata(path).context(format_args!("look at {}", path.display()))?;
    let path: PathBuf = path.into();
    let path = path.into_os_string().into_string().map_err(|path| {
        Error::new(
            ErrorKind::Invalid,
            format!("cannot use {}: its name is not UTF-8", path.to_string_lossy()),
        )
    })?;
    Ok(Source { path, dev: meta.dev(), ino: meta.ino() })
}
