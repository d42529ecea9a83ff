//! The images that are here: a record each, and the layers that they name.
//!
//! A layer is `layers/sha256-<hex>/tree`, with `layer.json` beside it. The number is the digest of the layer's content; a
//! layer that leans on those below it is named by the digest of the chain up to it instead. It is unpacked under
//! `incoming`, and moved to its place when it is whole and on the disk: what is in `layers` is never half.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use glasshouse_linux::unpack::Unpacked;
use glasshouse_linux::{descriptor, rustix, tree};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::manifest::ImageConfig;
use super::reference::Reference;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, names_in};
use crate::snapshot::layers;
use crate::spec::Image;

/// The version of records, in every one of them.
const VERSION: u64 = 1;
/// A record; configurations are bounded too.
const RECORD_BYTES_MAX: u64 = 16 << 20;
/// What was downloaded of a layer waits this long to be continued.
const PART_KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// Its whole name, like `docker.io/library/debian:12`.
    pub name: String,
    /// The digest of its manifest; of its configuration, where it was imported without one.
    pub digest: String,
    /// How it wants its commands to be run.
    pub config: ImageConfig,
    /// Names of its layers, uppermost first.
    pub layers: Vec<String>,
    /// When it came here, milliseconds since 1970.
    pub created_ms: u64,
    /// Bytes of all its layers' files.
    pub size_bytes: u64,
    /// Devices and sockets that it brought, and that were left out.
    pub left_out: u64,
}

/// All images, by name.
pub(crate) fn images(home: &Home) -> Result<Vec<ImageInfo>> {
    let mut images = Vec::new();
    for path in records(home)? {
        images.extend(read(&path)?);
    }
    images.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(images)
}

/// One image.
pub(crate) fn image(home: &Home, name: &str) -> Result<ImageInfo> {
    let reference: Reference = name.parse()?;
    let unknown = || {
        let message = format!("there is no image {name:?} here; `glass image pull {name}` fetches it");
        Error::new(ErrorKind::NotFound, message)
    };
    read(&path_of(home, &reference))?.ok_or_else(unknown)
}

/// The layers that images name.
pub(crate) fn references(home: &Home) -> Result<Vec<String>> {
    Ok(images(home)?.into_iter().flat_map(|image| image.layers).collect())
}

/// Writes a record, at once or not at all.
pub(super) fn write(home: &Home, reference: &Reference, info: &ImageInfo) -> Result<()> {
    let path = path_of(home, reference);
    let temporary = home.path("images").join(format!(".{}~", super::random_name()?));
    let written = fs::write(&temporary, to_json(info).to_string())
        .and_then(|()| File::open(&temporary)?.sync_all())
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.context(format_args!("write {}", path.display()))
}

/// Removes what killed writers of records have left. Nobody may be writing one.
pub(crate) fn clean_records(home: &Home) -> Result<()> {
    for file in names_in(&home.path("images"))?.iter().filter(|file| file.ends_with('~')) {
        let path = home.path("images").join(file);
        fs::remove_file(&path).context(format_args!("remove {}", path.display()))?;
    }
    Ok(())
}

/// Forgets an image, and removes those of its layers that nobody needs.
pub(crate) fn remove(home: &Home, name: &str) -> Result<ImageInfo> {
    let info = image(home, name)?;
    let reference: Reference = name.parse()?;
    for id in home.ids()? {
        if let Ok(Some(of)) = home.read_info(&id)
            && is_of(&of.image, &reference)
        {
            let message = format!("the image {} is in use by box {id}; `glass kill {id}` ends it", info.name);
            return Err(Error::new(ErrorKind::Exists, message));
        }
    }
    let path = path_of(home, &reference);
    fs::remove_file(&path).context(format_args!("remove {}", path.display()))?;
    layers::sweep(home)?;
    Ok(info)
}

/// Whether a box was made from this image.
fn is_of(image: &Image, reference: &Reference) -> bool {
    match image {
        Image::Stored(name) | Image::Remote(name) => {
            name.parse().is_ok_and(|other: Reference| other == *reference)
        }
        _ => false,
    }
}

/// The tree of a layer.
pub(super) fn tree_of(home: &Home, layer: &str) -> PathBuf {
    home.path("layers").join(layer).join("tree")
}

/// The name of a layer with this digest.
pub(super) fn layer_name(digest: &str) -> String {
    digest.replacen(':', "-", 1)
}

/// The layer of this content, on exactly this chain, if it is here.
pub(super) fn find_layer(home: &Home, chain_id: &str, diff_id: &str) -> Result<Option<(String, Unpacked)>> {
    let name = layer_name(chain_id);
    if let Some(known) = read_layer(&home.path("layers").join(&name))? {
        return Ok(Some((name, known)));
    }
    let name = layer_name(diff_id);
    let known = read_layer(&home.path("layers").join(&name))?;
    Ok(known.filter(|known| !known.leaned).map(|known| (name, known)))
}

/// Writes what is known of a layer beside its tree.
pub(super) fn write_layer(dir: &Path, known: &Unpacked) -> Result<()> {
    let value = json!({
        "version": VERSION, "entries": known.entries, "bytes": known.bytes, "left_out": known.left_out,
        "leaned": known.leaned, "hides_all": known.hides_all,
    });
    fs::write(dir.join("layer.json"), value.to_string()).context(format_args!("write to {}", dir.display()))
}

fn read_layer(dir: &Path) -> Result<Option<Unpacked>> {
    let Some(value) = read_value(&dir.join("layer.json"))? else { return Ok(None) };
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    let flag = |key: &str| value.get(key).and_then(Value::as_bool);
    let known = || {
        Some(Unpacked {
            entries: number("entries")?,
            bytes: number("bytes")?,
            left_out: number("left_out")?,
            leaned: flag("leaned")?,
            hides_all: flag("hides_all")?,
        })
    };
    Ok(known())
}

/// A directory to work in, ours until the value is dropped; then it goes, whatever is in it.
#[derive(Debug)]
pub(crate) struct Incoming {
    home: Home,
    name: String,
    /// Locked: somebody works here.
    _lock: File,
    /// Whoever waits for the other end learns that nobody works here any more.
    _alive: Option<mpsc::Sender<()>>,
}

impl Incoming {
    pub(crate) fn new(home: &Home, alive: Option<mpsc::Sender<()>>) -> Result<Incoming> {
        clean_incoming(home)?;
        let _home = home.lock()?;
        let name = super::random_name()?;
        let path = home.path("incoming").join(&name);
        let made = fs::DirBuilder::new().mode(0o700).create(&path).and_then(|()| File::open(&path));
        let lock = made.context(format_args!("make {}", path.display()))?;
        descriptor::try_lock(lock.as_fd()).context(format_args!("lock {}", path.display()))?;
        Ok(Incoming { home: home.clone(), name, _lock: lock, _alive: alive })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.home.path("incoming").join(&self.name)
    }

    /// Makes a directory for a layer, with a tree in it.
    pub(super) fn layer(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path().join(name);
        let tree = dir.join("tree");
        let made = fs::create_dir(&dir).and_then(|()| fs::create_dir(&tree));
        made.context(format_args!("make {}", tree.display()))?;
        let open = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        fs::set_permissions(&tree, open).context(format_args!("open {}", tree.display()))?;
        Ok(dir)
    }

    /// Takes away what was unpacked for nothing.
    pub(super) fn discard(&self, name: &str) -> Result<()> {
        tree::remove(self._lock.as_fd(), name)
            .context(format_args!("remove {name} of {}", self.path().display()))
    }

    /// Moves layers to their places, once all that is in them is on the disk.
    pub(super) fn publish(&self, layers: &[String]) -> Result<()> {
        if layers.is_empty() {
            return Ok(());
        }
        rustix::fs::syncfs(&self._lock).context("write the layers to the disk")?;
        for name in layers {
            match fs::rename(self.path().join(name), self.home.path("layers").join(name)) {
                // Somebody else has made the same one.
                Err(e) if matches!(e.kind(), std::io::ErrorKind::DirectoryNotEmpty) => {}
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                renamed => renamed.context(format_args!("put layer {name} in its place"))?,
            }
        }
        Ok(())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // What cannot be removed now is found by the next one who comes: nobody holds its lock.
        if let Ok(incoming) = File::open(self.home.path("incoming")) {
            let _ = tree::remove(incoming.as_fd(), &self.name);
        }
    }
}

/// Removes what killed pulls and imports left, and what was downloaded long ago and never continued. How many.
pub(crate) fn clean_incoming(home: &Home) -> Result<usize> {
    let _lock = home.lock()?;
    let path = home.path("incoming");
    let dir = File::open(&path).context(format_args!("open {}", path.display()))?;
    let mut removed = 0;
    for entry in fs::read_dir(&path).context(format_args!("list {}", path.display()))?.flatten() {
        let name = entry.file_name();
        if name == "blobs" {
            continue;
        }
        let idle =
            File::open(entry.path()).is_ok_and(|dir| descriptor::try_lock(dir.as_fd()).unwrap_or(false));
        if idle {
            tree::remove(dir.as_fd(), &name).context(format_args!("remove {}", entry.path().display()))?;
            removed += 1;
        }
    }
    let blobs = path.join("blobs");
    for entry in fs::read_dir(&blobs).context(format_args!("list {}", blobs.display()))?.flatten() {
        // Nothing is lost with an empty one: somebody gave it up in the moment of its making.
        let empty = entry.metadata().is_ok_and(|meta| meta.len() == 0);
        let old = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|time| SystemTime::now().duration_since(time).is_ok_and(|age| age > PART_KEPT));
        let idle =
            || File::open(entry.path()).is_ok_and(|part| descriptor::try_lock(part.as_fd()).unwrap_or(false));
        if (old || empty) && idle() && fs::remove_file(entry.path()).is_ok() {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

fn path_of(home: &Home, reference: &Reference) -> PathBuf {
    home.path("images").join(reference.file_name())
}

fn records(home: &Home) -> Result<Vec<PathBuf>> {
    let dir = home.path("images");
    let mut paths = Vec::new();
    for entry in fs::read_dir(&dir).context(format_args!("list {}", dir.display()))? {
        let path = entry.context(format_args!("list {}", dir.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn read_value(path: &Path) -> Result<Option<Value>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.context(format_args!("open {}", path.display()))?,
    };
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut text).context(format_args!("read {}", path.display()))?;
    serde_json::from_slice(&text).map(Some).map_err(|_| damaged(path))
}

fn damaged(path: &Path) -> Error {
    let message = format!("{} is damaged; remove it, and pull or import the image again", path.display());
    Error::new(ErrorKind::Failed, message)
}

fn read(path: &Path) -> Result<Option<ImageInfo>> {
    let Some(value) = read_value(path)? else { return Ok(None) };
    from_json(&value).map(Some).ok_or_else(|| damaged(path))
}

fn to_json(info: &ImageInfo) -> Value {
    let config = &info.config;
    json!({
        "version": VERSION, "name": info.name, "digest": info.digest, "layers": info.layers,
        "created_ms": info.created_ms, "size": info.size_bytes, "left_out": info.left_out,
        "config": {
            "env": config.env, "entrypoint": config.entrypoint, "cmd": config.cmd, "user": config.user,
            "workdir": config.workdir, "labels": config.labels, "architecture": config.architecture,
        },
    })
}

fn from_json(value: &Value) -> Option<ImageInfo> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    let texts = |value: &Value, key: &str| -> Option<Vec<String>> {
        value.get(key)?.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
    };
    let pair = |value: &Value| Some((value.get(0)?.as_str()?.to_owned(), value.get(1)?.as_str()?.to_owned()));
    let config = value.get("config")?;
    let labels: BTreeMap<String, String> = config
        .get("labels")?
        .as_object()?
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    Some(ImageInfo {
        name: text(value, "name")?,
        digest: text(value, "digest")?,
        config: ImageConfig {
            env: config.get("env")?.as_array()?.iter().map(pair).collect::<Option<_>>()?,
            entrypoint: texts(config, "entrypoint")?,
            cmd: texts(config, "cmd")?,
            user: text(config, "user")?,
            workdir: text(config, "workdir")?,
            labels,
            architecture: text(config, "architecture")?,
        },
        layers: texts(value, "layers")?,
        created_ms: value.get("created_ms")?.as_u64()?,
        size_bytes: value.get("size")?.as_u64()?,
        left_out: value.get("left_out").and_then(Value::as_u64).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        (dir, home)
    }

    fn info(name: &str, layers: &[&str]) -> ImageInfo {
        ImageInfo {
            name: name.into(),
            digest: "sha256:1".into(),
            config: ImageConfig {
                env: vec![("A".into(), "b".into())],
                cmd: vec!["sh".into()],
                labels: [("k".to_owned(), "v\n\"".to_owned())].into(),
                ..ImageConfig::default()
            },
            layers: layers.iter().map(|name| name.to_string()).collect(),
            created_ms: 5,
            size_bytes: 7,
            left_out: 1,
        }
    }

    fn put(home: &Home, name: &str, layers: &[&str]) {
        for layer in layers {
            fs::create_dir_all(tree_of(home, layer)).unwrap();
        }
        write(home, &name.parse().unwrap(), &info(name, layers)).unwrap();
    }

    #[test]
    fn what_is_known_of_an_image_survives_the_disk() {
        let (_dir, home) = home();
        put(&home, "docker.io/library/x:1", &["sha256-1"]);
        assert_eq!(image(&home, "x:1").unwrap(), info("docker.io/library/x:1", &["sha256-1"]));
        let missing = image(&home, "y").unwrap_err();
        assert!(missing.to_string().contains("`glass image pull y`"), "{missing}");
    }

    #[test]
    fn layers_go_with_the_last_image_that_names_them() {
        let (_dir, home) = home();
        put(&home, "x", &["sha256-1", "sha256-2"]);
        put(&home, "y", &["sha256-2"]);
        remove(&home, "x").unwrap();
        assert!(!tree_of(&home, "sha256-1").exists() && tree_of(&home, "sha256-2").exists());
        let shared = home.store_shared().unwrap();
        remove(&home, "y").unwrap();
        assert!(tree_of(&home, "sha256-2").exists(), "somebody works in the store");
        drop(shared);
        assert_eq!(references(&home).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_a_killed_pull_left_is_told_from_what_is_in_work() {
        let (_dir, home) = home();
        let working = Incoming::new(&home, None).unwrap();
        working.layer("sha256-1").unwrap();
        fs::create_dir_all(home.path("incoming").join("left/tree")).unwrap();
        assert_eq!(clean_incoming(&home).unwrap(), 1);
        let path = working.path();
        assert!(path.join("sha256-1/tree").is_dir());
        working.publish(&["sha256-1".into()]).unwrap();
        drop(working);
        assert!(!path.exists() && tree_of(&home, "sha256-1").is_dir());
    }

    #[test]
    fn a_layer_that_leans_on_others_is_not_taken_for_one_that_stands_alone() {
        let (_dir, home) = home();
        let dir = home.path("layers").join("sha256-1");
        fs::create_dir(&dir).unwrap();
        for leaned in [false, true] {
            write_layer(&dir, &Unpacked { leaned, ..Unpacked::default() }).unwrap();
            assert_eq!(find_layer(&home, "sha256:9", "sha256:1").unwrap().is_some(), !leaned);
            assert!(find_layer(&home, "sha256:1", "sha256:1").unwrap().is_some());
        }
    }
}
