//! A snapshot becomes an image.

use std::io::{self, BufWriter, Read};
use std::sync::Arc;

use super::assembly::{Assembly, Blob};
use super::manifest::ImageConfig;
use super::reference::Reference;
use super::store::{self, ImageInfo, Incoming};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::snapshot::index::{Index, Kind};
use crate::snapshot::pack::{Stack, pack_layer};
use crate::snapshot::records::SnapshotInfo;
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{diff, digest, layers};
use crate::spec::Image;

/// Writes an image that shows what the snapshot shows, and runs commands as its box did.
pub(super) fn commit(home: &Home, snapshot: &SnapshotInfo, name: &str) -> Result<ImageInfo> {
    let reference: Reference = name.parse()?;
    if reference.digest.is_some() {
        let message = format!(
            "cannot call the image {reference}: a name with a digest is that of an image of a registry, and what is \
             committed has no such digest"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    snapshot.check_durable()?;
    let store = home.store_shared()?;
    let before = store::image(home, name).is_ok();
    let mut chain = snapshot.chain.clone();
    if let Some(image) = layers::engine_image(&chain) {
        let message = format!(
            "snapshot {} is of a container, and an image of the engine already: `docker tag {image} {name}` names it; \
             `glass export` takes it elsewhere",
            snapshot.id
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mut config = ImageConfig::default();
    match &snapshot.image {
        Image::Host => {
            let message = format!(
                "snapshot {} is of the image `host`: its /usr is this machine's and in no layer, so it cannot be \
                 an image; `glass fork {0}` makes boxes of it, `glass diff {0} --tar` writes what was done",
                snapshot.id
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Image::Directory(path) => {
            // An image does not stand on a directory that its owner may change.
            let root = layers::of_directory(&path.to_string_lossy());
            let at = chain.iter().position(|layer| *layer == root).unwrap_or(chain.len());
            chain.splice(at.., take_in(home, root)?);
        }
        Image::Stored(image) | Image::Remote(image) => {
            config = store::image(home, image).map(|info| info.config).unwrap_or_default();
        }
        Image::Snapshot(_) | Image::OciArchive(_) | Image::DockerArchive(_) | Image::Engine(_) => {}
    }
    config.env = snapshot.env.clone();
    config.user = snapshot.user.clone();
    config.workdir = snapshot.cwd.clone();
    let mut shelf = Shelf::new(home);
    let empty = shelf.empty();
    let indexes = shelf.chain(&chain)?;
    let indexes: Vec<&Index> = indexes.iter().map(AsRef::as_ref).collect();
    let mut size_bytes = 0;
    diff::diff(&[&empty], &indexes, |change| {
        let file = change.to.filter(|node| node.entry.kind == Kind::File);
        size_bytes += file.map_or(0, |node| node.entry.size);
        Ok(())
    })?;
    layers::sync(home)?;
    let info = ImageInfo {
        name: reference.to_string(),
        digest: digest::digest(&indexes)?.to_string(),
        config,
        layers: chain,
        created_ms: store::now_ms(),
        size_bytes,
        left_out: 0,
    };
    store::write(home, &reference, &info)?;
    drop(store);
    if before {
        layers::sweep(home)?;
    }
    Ok(info)
}

/// Makes a layer of the store out of a directory of the host. Its name.
fn take_in(home: &Home, root: String) -> Result<Vec<String>> {
    let (reader, writer) = io::pipe().context("make a pipe")?;
    let house = home.clone();
    let packing = std::thread::Builder::new().name("glasshouse".into()).spawn(move || {
        let mut shelf = Shelf::new(&house);
        let index = shelf.layer(&root)?;
        let trees = shelf.trees(&[root]);
        let stack = Stack { indexes: &[&index], trees: &trees, reach: shelf.reach() };
        pack_layer(stack, BufWriter::new(writer))
    });
    let packing = packing.context("start a thread (is the limit of processes reached?)")?;
    let mut intake = Intake::new(home)?;
    let unpacked = intake.take(reader, None).and_then(|()| intake.publish());
    let packed = packing.join().map_err(|_| Error::new(ErrorKind::Failed, "the packing was broken off"))?;
    // Who gives up closes the pipe, and the other one only knows that it broke.
    match packed {
        Err(e) if !is_broken_pipe(&e) => Err(e),
        _ => unpacked,
    }
}

/// Layers of somebody's on their way into the store, lowest first.
pub(crate) struct Intake(Assembly);

impl Intake {
    pub(crate) fn new(home: &Home) -> Result<Intake> {
        Ok(Intake(Assembly::of_state(home, Arc::new(Incoming::new(home, None)?))))
    }

    /// Takes the next one; with a digest, its content has to have it, and one that is here is not unpacked again.
    pub(crate) fn take(&mut self, stream: impl Read, content: Option<&str>) -> Result<()> {
        match content {
            Some(content) if self.0.reuse(content)? => Ok(()),
            _ => self.0.unpack(Blob { stream, digest: None }, content, &|_| {}),
        }
    }

    /// Puts them in their places. Their names, uppermost first.
    pub(crate) fn publish(self) -> Result<Vec<String>> {
        self.0.publish()
    }
}

fn is_broken_pipe(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| source.kind() == io::ErrorKind::BrokenPipe)
}
