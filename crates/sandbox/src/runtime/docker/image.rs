//! Images of boxes in containers: which image of the engine, and what is on record of it.
//!
//! A chain of our own store becomes an image of the engine when it is first needed, by the digest of its tree; an image
//! of the engine (`docker:NAME`) is used as it is, and fetched by the engine if it has none of that name.
//!
//! An image may declare volumes: directories whose content the engine keeps beside the container, where no snapshot finds it.
//! Such an image is made anew once, with the same files and without that word: then they are directories as any other.
//!
//! The last name of a box's chain is `engine:ID`, the engine's image. Above it are the layers as directories of this host,
//! where they can be read: of our store, or of the engine's. Where they cannot, `tree:ID` stands for them (`unseen`).

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};

use bollard::models::{ImageConfig, ImageInspect};
use bollard::query_parameters::{
    CreateContainerOptions, CreateImageOptions, ListImagesOptions, RemoveImageOptionsBuilder,
};
use futures_util::StreamExt;

use super::engine::Engine;
use super::hull::LABEL_HOME;
use super::{Container, Docker};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::image::{Base, PullOptions};
use crate::snapshot::pack::{Form, Stack, pack};
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{digest, layers};
use crate::spec::Image;

/// What images are called that are made of chains of ours.
const REPOSITORY: &str = "glasshouse/chain";
/// What images are called that are others without their volumes.
const PLAIN: &str = "glasshouse/plain";
/// Bytes of an archive that are on their way at once.
const CHUNK_BYTES: usize = 256 * 1024;

/// A base, and the engine's image of it.
#[derive(Debug)]
pub(super) struct Rooted {
    pub(super) image: String,
    pub(super) base: Base,
}

impl Docker {
    /// Sees to it that the engine has what a box is made from.
    pub(super) fn root(&self, base: &Base) -> Result<Rooted> {
        if let (Image::Engine(name), true) = (&base.image, base.chain.is_empty()) {
            return self.root_of_engine(name, base);
        }
        if let Some(image) = layers::engine_image(&base.chain) {
            if self.look_for(image)?.is_none() {
                let message = format!("the engine has no image {image} any more: somebody removed it");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            return Ok(Rooted { image: image.to_owned(), base: base.clone() });
        }
        let image = carry(&self.engine, &self.home, &base.chain)?;
        let mut base = base.clone();
        base.chain.push(layers::of_engine(&image));
        Ok(Rooted { image, base })
    }

    /// What an image of the engine runs when nobody says what: its entry point and the words for it.
    pub(crate) fn own_command(&self, name: &str) -> Result<Vec<String>> {
        let config = self.have(name)?.config.unwrap_or_default();
        Ok([config.entrypoint, config.cmd].into_iter().flatten().flatten().collect())
    }

    /// An image of the engine, which fetches it if it has none of that name.
    fn have(&self, name: &str) -> Result<ImageInspect> {
        match self.look_for(name)? {
            Some(found) => Ok(found),
            None => self.fetch(name, PullOptions::default()),
        }
    }

    fn root_of_engine(&self, name: &str, base: &Base) -> Result<Rooted> {
        let found = self.have(name)?;
        let config = found.config.clone().unwrap_or_default();
        let found = match config.volumes.as_deref() {
            None | Some([]) => found,
            Some(_) => self.without_volumes(found)?,
        };
        let image = found.id.clone().unwrap_or_default();
        let mut chain = self.readable_layers(&found)?;
        if chain.is_empty() {
            chain.push(layers::of_tree(&image));
        }
        chain.push(layers::of_engine(&image));
        let given = given(&config);
        Ok(Rooted { image, base: Base { chain, user: given.0, cwd: given.1, env: given.2, ..base.clone() } })
    }

    /// An image with the files of this one that declares no volumes.
    fn without_volumes(&self, of: ImageInspect) -> Result<ImageInspect> {
        let id = of.id.unwrap_or_default();
        let name = format!("{PLAIN}:{}", id.trim_start_matches("sha256:"));
        if let Some(found) = self.look_for(&name)? {
            return Ok(found);
        }
        let body = super::hull::idle(&self.home_name()?, &id);
        let _share = self.hold_volumes()?;
        let idle = self.engine.ask("make a container to copy an image through", async |docker| {
            docker.create_container(None::<CreateContainerOptions>, body).await
        })?;
        // Its volumes go with it.
        let idle = Container { engine: &self.engine, name: idle.id, kept: false };
        let options = CreateImageOptions {
            from_src: Some("-".into()),
            repo: Some(name.clone()),
            ..CreateImageOptions::default()
        };
        self.engine.ask("make an image without volumes of it", async |docker| {
            let files = docker.export_container(&idle.name);
            let files = files.map(|piece| piece.map_err(std::io::Error::other));
            let mut progress =
                docker.create_image(Some(options), Some(bollard::body_try_stream(files)), None);
            while let Some(line) = progress.next().await {
                line?;
            }
            Ok(())
        })?;
        let lost = || {
            Error::new(ErrorKind::Failed, format!("the engine took the image {name} and does not have it"))
        };
        self.look_for(&name)?.ok_or_else(lost)
    }

    /// The layers of an image as directories of this host, uppermost first; none where they cannot be read.
    fn readable_layers(&self, image: &ImageInspect) -> Result<Vec<String>> {
        let Some(driver) = image.graph_driver.as_ref().filter(|driver| driver.name == "overlay2") else {
            return Ok(Vec::new());
        };
        let dirs = ["UpperDir", "LowerDir"].iter().filter_map(|key| driver.data.get(*key));
        let dirs: Vec<&str> = dirs.flat_map(|dirs| dirs.split(':')).collect();
        // Where users of containers are others on the host, so are the owners of these files.
        if self.engine.remaps()? || dirs.iter().any(|dir| std::fs::read_dir(dir).is_err()) {
            return Ok(Vec::new());
        }
        Ok(dirs.into_iter().map(layers::of_directory).collect())
    }

    /// The chain of an image that was committed of a box with this chain. One that nothing of ours is mounted in has names of
    /// ours in its files, where runtimes make them for what they mount: those are known where it is fetched.
    pub(super) fn chain_of_commit(
        &self,
        image: &str,
        before: &[String],
        is_far: bool,
    ) -> Result<Vec<String>> {
        let found = self.engine.ask("look at the image", async |docker| docker.inspect_image(image).await)?;
        let mut chain: Vec<String> =
            before.iter().filter(|name| layers::engine_of(name).is_none()).cloned().collect();
        let is_read = !is_far && !chain.iter().any(|name| layers::tree_of(name).is_some());
        match self.readable_layers(&found)?.into_iter().next() {
            Some(top) if is_read => chain.insert(0, top),
            // What is not read whole is not read at all.
            _ => chain = vec![layers::of_tree(image)],
        }
        chain.push(layers::of_engine(image));
        Ok(chain)
    }
}

impl Docker {
    /// Removes the images of this home's snapshots that no record names.
    pub(super) fn drop_images(&self, used: &BTreeSet<String>) -> Result<usize> {
        let label = format!("{LABEL_HOME}={}", self.home_name()?);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
        let images =
            self.engine.ask("list images", async |docker| docker.list_images(Some(options)).await)?;
        let mut dropped = 0;
        // The newest come first, and no image can go before those that stand on it.
        for image in images.into_iter().filter(|image| !used.contains(&layers::of_engine(&image.id))) {
            let options = RemoveImageOptionsBuilder::new().force(true).build();
            let removed = self.engine.ask_known("remove an image", async |docker| {
                docker.remove_image(&image.id, Some(options), None).await
            });
            match removed {
                // A container or another image stands on it: its time will come.
                Err(e) if e.kind() == ErrorKind::Exists => {}
                removed => dropped += usize::from(removed?.is_some()),
            }
        }
        Ok(dropped)
    }
}

/// User, directory and environment that come with an image.
fn given(config: &ImageConfig) -> (String, String, Vec<(String, String)>) {
    let word = |word: &Option<String>, other: &str| match word.as_deref() {
        None | Some("") => other.to_owned(),
        Some(word) => word.to_owned(),
    };
    let pair = |line: &String| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    let env = config.env.iter().flatten().filter_map(pair).collect();
    (word(&config.user, "root"), word(&config.working_dir, "/"), env)
}

/// Makes an image of the engine out of a chain of ours, unless it has one of the same tree.
fn carry(engine: &Engine, home: &Home, chain: &[String]) -> Result<String> {
    let mut shelf = Shelf::new(home);
    let indexes = shelf.chain(chain)?;
    let indexes: Vec<_> = indexes.iter().map(AsRef::as_ref).collect();
    let digest = digest::digest(&indexes)?.to_string();
    let name = format!("{REPOSITORY}:{}", digest.trim_start_matches("b3:"));
    let look = || engine.ask_known("look for the image", async |docker| docker.inspect_image(&name).await);
    if let Some(id) = look()?.and_then(|image| image.id) {
        return Ok(id);
    }
    let trees = shelf.trees(chain);
    let empty = shelf.empty();
    let mut file = scratch(home)?;
    let stack = Stack { indexes: &indexes, trees: &trees, reach: shelf.reach() };
    let mut out = BufWriter::new(&mut file);
    pack(&[&empty], stack, Form::Everybody, &mut out)?;
    out.flush().context("write the image for the engine")?;
    drop(out);
    file.seek(SeekFrom::Start(0)).context("read the image for the engine")?;
    let options = CreateImageOptions {
        from_src: Some("-".into()),
        // In one word: Podman does not look for a tag of its own here.
        repo: Some(name.clone()),
        ..CreateImageOptions::default()
    };
    engine.ask("give the image to the engine", async |docker| {
        let chunks = futures_util::stream::iter(std::iter::from_fn(move || {
            let mut chunk = vec![0; CHUNK_BYTES];
            match file.read(&mut chunk) {
                Ok(0) => None,
                Ok(n) => {
                    chunk.truncate(n);
                    Some(Ok(chunk.into()))
                }
                Err(e) => Some(Err(e)),
            }
        }));
        let mut progress = docker.create_image(Some(options), Some(bollard::body_try_stream(chunks)), None);
        while let Some(line) = progress.next().await {
            line?;
        }
        Ok(())
    })?;
    let lost =
        || Error::new(ErrorKind::Failed, format!("the engine took the image {name} and does not have it"));
    look()?.and_then(|image| image.id).ok_or_else(lost)
}

/// A file of nobody's, that is gone when it is closed.
pub(super) fn scratch(home: &Home) -> Result<File> {
    let path = home.path("incoming").join(format!("engine-{}~", crate::sandboxes::new_id()?));
    let made = File::options().read(true).write(true).create_new(true).open(&path);
    let file = made.context(format_args!("make {}", path.display()))?;
    std::fs::remove_file(&path).context(format_args!("make {}", path.display()))?;
    Ok(file)
}
