//! What boxes are made from: a chain of read-only layers, and trees of the host that are shown in it.

mod host;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use glasshouse_protocol::plan::Source;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::spec::Image;

/// An image, ready to be mounted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Base {
    /// Layers, uppermost first.
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
    }
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
    Ok(Base {
        layers: vec![source(&path)?],
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
