//! What boxes are made from: a chain of read-only layers, and trees of the host that are shown in it.

pub(crate) mod host;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glasshouse_protocol::plan::Source;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::snapshot::layers;
use crate::snapshot::records::{self, SnapshotInfo};
use crate::spec::Image;

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
