//! Snapshots that go from one home to another, in one file.
//!
//! ```text
//!  zstd ( tar ( snapshot.json   what it is: image, user, environment, digest of the tree, digests of the layers
//!               layer-1.tar     its layers, lowest first; of the image `host`, those on top of that
//!               layer-2.tar … ) )
//! ```
//! Layers keep what they share: one that is here already is not unpacked again. They hold what upper ones hide, too; *flat*,
//! all that the snapshot shows is one layer, and nothing else travels. Files of version 1 had one layer, `layer.tar`.
//!
//! Whoever imports one trusts nothing in it: the layers are unpacked as those of images are, within their bounds, their
//! contents have to have the promised digests, and the tree that comes out of them too. Without root, owners and set-id
//! bits of files cannot be kept; then the tree may have another digest, and that is said.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::look::{Found, State, shelf_state};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, variables};
use crate::image;
use crate::sandboxes::{Sandboxes, check_name, new_id};
use crate::snapshot::digest::Digest;
use crate::snapshot::index::Index;
use crate::snapshot::layers;
use crate::snapshot::pack::{Form, Packed, Stack, pack, pack_layer, stands_alone};
use crate::snapshot::records::{self, Method, SnapshotInfo};
use crate::snapshot::shelf::Shelf;
use crate::snapshot::{Marks, Reach};
use crate::spec::{Image, Recording};
use crate::task::TaskInfo;
use crate::threads::blocking;

const FORMAT: &str = "glasshouse snapshot";
const VERSION: u64 = 2;
/// The one that had a single layer.
const VERSION_FLAT: u64 = 1;
const MANIFEST: &str = "snapshot.json";
/// Layers of a file. Of a longer chain, the lowest ones become one.
const LAYERS_MAX: usize = 100;
/// Bytes of what a file says of itself.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;
/// Memory for decompression, as for layers of images.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// How hard to compress: 0 is what zstd takes for the best bargain.
const ZSTD_LEVEL: i32 = 0;

/// How a snapshot is to be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExportOptions {
    /// All that it shows as one layer, without what upper layers hide of lower ones.
    pub flat: bool,
}

/// A snapshot that was written to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Which.
    pub id: String,
    /// The digest of its tree.
    pub digest: String,
    /// How many layers are in the file.
    pub layers: usize,
    /// Bytes of its layers before they were compressed.
    pub layer_bytes: u64,
    /// Devices and sockets, which are not in the file.
    pub left_out: u64,
    /// Files and directories with attributes that are not in the file, as [`Packed`] says.
    pub attributes_left_out: u64,
}

/// A snapshot that came from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// What it is here.
    pub snapshot: SnapshotInfo,
    /// The digest of its tree here.
    pub digest: String,
    /// It is the same as where it came from.
    pub exact: bool,
}

/// What a file says of itself.
struct Manifest {
    image: Image,
    from: String,
    /// The layer of the image `host` that it stands on.
    base: Option<String>,
    digest: String,
    /// The names of the layers' files, and the digests of their contents, lowest first.
    layers: Vec<(String, String)>,
    left_out: u64,
    /// Older files do not say.
    attributes_left_out: u64,
    user: String,
    cwd: String,
    env: Vec<(String, String)>,
    /// It was taken of a deterministic box. Older files do not say.
    deterministic: bool,
    /// What was put on record of the steps of that box. Older files do not say.
    recording: Recording,
    /// The task of that box. Older files do not say.
    task: Option<TaskInfo>,
}

impl Sandboxes {
    /// Writes a snapshot to a file that another home can import.
    pub async fn export(
        &self,
        name: &str,
        options: ExportOptions,
        out: impl Write + Send + 'static,
    ) -> Result<Exported> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || {
            let snapshot = records::find(house.home(), &name)?;
            let _share = house.home().store_shared()?;
            house.write_out(snapshot, options, out)
        })
        .await
    }

    fn write_out(
        &self,
        mut snapshot: SnapshotInfo,
        options: ExportOptions,
        out: impl Write,
    ) -> Result<Exported> {
        let home = self.home();
        // An engine's image stays where it is; what it shows is in the layers above it.
        snapshot.chain.retain(|name| layers::engine_of(name).is_none());
        self.know(&snapshot.chain)?;
        snapshot.chain = layers::expand(home, &snapshot.chain);
        if snapshot.chain.is_empty() {
            let message = "the layers of this snapshot are the engine's, and cannot be read from here";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut shelf = Shelf::new(home);
        let base = host_layer(&snapshot);
        let empty = shelf.empty();
        let state = self.state(&mut shelf, Found::Snapshot(Box::new(snapshot.clone())))?;
        let own = state.indexes.len() - usize::from(base.is_some());
        // An archive says how long a file is before the file comes.
        let mut file = scratch(home)?;
        let (mut layers, mut layer_bytes, mut left_out, mut attributes_left_out) = (Vec::new(), 0, 0, 0);
        for (n, cut) in cuts(own, options).into_iter().enumerate() {
            let mut layer = Hashed { to: &mut file, hash: Sha256::new(), bytes: 0 };
            let packed = pack_cut(&state, shelf.reach(), cut, &empty, io::BufWriter::new(&mut layer))?;
            left_out += packed.left_out;
            attributes_left_out += packed.attributes_left_out;
            layer_bytes += layer.bytes;
            let content = image::digest_text(&layer.hash.finalize());
            layers.push((layer_name(n), content, layer.bytes));
        }
        file.seek(SeekFrom::Start(0)).context("read the layers")?;
        let digest = state.digest()?.to_string();
        let (id, count) = (snapshot.id.clone(), layers.len());
        let exported = Exported { id, digest, layers: count, layer_bytes, left_out, attributes_left_out };
        let manifest = Manifest {
            image: snapshot.image,
            from: snapshot.from,
            base,
            digest: exported.digest.clone(),
            layers: layers.iter().map(|(name, content, _)| (name.clone(), content.clone())).collect(),
            left_out,
            attributes_left_out,
            user: snapshot.user,
            cwd: snapshot.cwd,
            env: snapshot.env,
            deterministic: snapshot.deterministic,
            recording: snapshot.recording,
            task: snapshot.task,
        };
        let manifest = manifest.to_json().to_string();
        let written = zstd::Encoder::new(out, ZSTD_LEVEL).and_then(|out| {
            let mut archive = tar::Builder::new(out);
            put(&mut archive, MANIFEST, manifest.len() as u64, manifest.as_bytes())?;
            for (name, _, bytes) in &layers {
                put(&mut archive, name, *bytes, (&mut file).take(*bytes))?;
            }
            archive.into_inner()?.finish()?.flush()
        });
        written.context("write the snapshot")?;
        Ok(exported)
    }

    /// Takes a snapshot from a file that [`Sandboxes::export`] wrote, wherever that was.
    pub async fn import(&self, from: impl Read + Send + 'static, name: Option<&str>) -> Result<Imported> {
        check_name(name)?;
        let (house, name) = (self.clone(), name.map(str::to_owned));
        blocking(move || {
            let taken = {
                let _share = house.home().store_shared()?;
                house.take_in(from, name)
            };
            if taken.is_err() {
                // What was unpacked is nobody's.
                layers::sweep(house.home())?;
            }
            taken
        })
        .await
    }

    fn take_in(&self, from: impl Read, name: Option<String>) -> Result<Imported> {
        let home = self.home();
        let start = Instant::now();
        let mut plain = zstd::Decoder::new(from).context("read the snapshot")?;
        plain.window_log_max(ZSTD_WINDOW_LOG_MAX).context("bound the memory for the snapshot")?;
        let mut archive = tar::Archive::new(plain);
        // Raw: names that are longer than a header are none of ours, and would be read into memory.
        let mut files = archive.entries().map_err(broken)?.raw(true);
        let mut text = String::new();
        next_file(&mut files, MANIFEST)?
            .take(MANIFEST_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(broken)?;
        let manifest = Manifest::from_text(&text)?;
        let base = manifest.base(home)?;
        let mut intake = image::Intake::new(home)?;
        for (name, content) in &manifest.layers {
            let layer = next_file(&mut files, name)?;
            intake
                .take(layer, Some(content))
                .map_err(|e| Error::new(e.kind(), format!("cannot import the snapshot: {e}")))?;
        }
        let mut chain = intake.publish()?;
        chain.extend(base);
        let mut shelf = Shelf::new(home);
        let digest = shelf_state(&mut shelf, String::new(), &chain)?.digest()?.to_string();
        let same = digest == manifest.digest;
        let kept = Marks::here() == Marks::Trusted && manifest.left_out == 0;
        // The digest does not see such attributes.
        let exact = same && manifest.attributes_left_out == 0;
        if !same && kept {
            let message = format!(
                "cannot import the snapshot: its tree has the digest {digest}, and {} was promised; it is damaged, \
                 or somebody changed it",
                manifest.digest
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        // They were on the disk before they were moved to their places; now they are so there.
        layers::sync(home)?;
        let snapshot = SnapshotInfo {
            id: new_id()?,
            name,
            label: None,
            from: manifest.from,
            image: manifest.image,
            created_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            chain,
            method: Method::Copy,
            // From another home; nothing of a box was in the way.
            copied_for: None,
            took_us: start.elapsed().as_micros() as u64,
            processes: 0,
            durable: true,
            boot: records::boot(),
            user: manifest.user,
            cwd: manifest.cwd,
            env: manifest.env,
            deterministic: manifest.deterministic,
            recording: manifest.recording,
            task: manifest.task,
            // How the task begins is known by what was made here.
            key: None,
            step: None,
        };
        let snapshot = records::write(home, snapshot)?;
        Ok(Imported { snapshot, digest, exact })
    }
}

impl Manifest {
    fn to_json(&self) -> Value {
        let layers: Vec<&String> = self.layers.iter().map(|(_, content)| content).collect();
        json!({
            "format": FORMAT, "version": VERSION, "image": self.image.to_string(), "from": self.from,
            "base": self.base, "digest": self.digest, "layers": layers, "left_out": self.left_out,
            "attributes_left_out": self.attributes_left_out,
            "user": self.user, "cwd": self.cwd, "env": self.env, "deterministic": self.deterministic,
            "recording": self.recording.name(), "task": self.task.as_ref().map(TaskInfo::to_json),
        })
    }

    fn from_text(text: &str) -> Result<Manifest> {
        let value: Value = serde_json::from_str(text).map_err(|_| unknown("its description is no JSON"))?;
        let word = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        if word("format").as_deref() != Some(FORMAT) {
            return Err(unknown("it does not say that it is one"));
        }
        let version = value.get("version").and_then(Value::as_u64);
        if !matches!(version, Some(VERSION | VERSION_FLAT)) {
            return Err(unknown("it is of a version that is not known here"));
        }
        let read = || {
            let image: Image = word("image")?.parse().ok()?;
            let plain = |text: &String| !text.contains(|c: char| c.is_control());
            let layers = match version {
                Some(VERSION_FLAT) => {
                    vec![("layer.tar".to_owned(), word("layer").filter(|text| is_digest(text))?)]
                }
                _ => layers_of(value.get("layers")?)?,
            };
            let is_variable = |(key, value): &(String, String)| {
                !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0')
            };
            let deterministic = match value.get("deterministic") {
                None => false,
                Some(told) => told.as_bool()?,
            };
            Some(Manifest {
                image: Some(image).filter(|image| !matches!(image, Image::Snapshot(_)))?,
                from: word("from").filter(plain)?,
                base: word("base"),
                digest: word("digest").filter(|digest| digest.parse::<Digest>().is_ok())?,
                layers,
                left_out: value.get("left_out")?.as_u64()?,
                attributes_left_out: match value.get("attributes_left_out") {
                    None => 0,
                    Some(told) => told.as_u64()?,
                },
                user: word("user").filter(plain)?,
                cwd: word("cwd").filter(plain).filter(|cwd| cwd.starts_with('/'))?,
                env: variables(value.get("env")?).filter(|env| env.iter().all(is_variable))?,
                deterministic,
                recording: match value.get("recording") {
                    None => Recording::of(deterministic),
                    Some(told) => told.as_str()?.parse().ok()?,
                },
                task: match value.get("task") {
                    None | Some(Value::Null) => None,
                    Some(told) => Some(TaskInfo::from_json(told).filter(is_plain_task)?),
                },
            })
        };
        read().ok_or_else(|| unknown("its description is damaged"))
    }

    /// The layer of this host that it stands on, if it stands on one.
    fn base(&self, home: &Home) -> Result<Option<String>> {
        match (&self.image, &self.base) {
            (Image::Host, Some(base)) => {
                image::resolve(home, &Image::Host)?;
                let is_name = base
                    .strip_prefix("host-")
                    .is_some_and(|hex| !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
                if is_name && layers::path(home, base).is_dir() {
                    return Ok(Some(base.clone()));
                }
                let message = "cannot import the snapshot: it is of the image `host` of another machine, or of \
                    another time of this one; its programs are not in the file";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            (Image::Host, None) => Err(unknown("it does not say which host it is of")),
            (_, Some(_)) => Err(unknown("it stands on a host, and is not of one")),
            (_, None) => Ok(None),
        }
    }
}

/// Whether nothing in it does more to a terminal than to be shown there. Lines of set-up may be long.
fn is_plain_task(task: &TaskInfo) -> bool {
    let TaskInfo { repo, asked, commit, setup, test, dir } = task;
    let is_text = |text: &String| !text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t'));
    let is_line = |text: &&String| !text.contains(|c: char| c.is_control());
    [repo, asked, commit, dir].iter().all(is_line)
        && setup.iter().chain(test).all(is_text)
        && dir.starts_with('/')
}

/// Whether this is one of the digests that become parts of paths.
fn is_digest(text: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:").is_some_and(|rest| rest.len() == 64 && rest.bytes().all(hex))
}

fn layers_of(value: &Value) -> Option<Vec<(String, String)>> {
    let layers = value.as_array().filter(|layers| layers.len() <= LAYERS_MAX)?;
    let content = |layer: &Value| layer.as_str().filter(|text| is_digest(text)).map(str::to_owned);
    layers.iter().enumerate().map(|(n, layer)| Some((layer_name(n), content(layer)?))).collect()
}

/// The file of a layer, counted from the lowest.
fn layer_name(n: usize) -> String {
    format!("layer-{}.tar", n + 1)
}

/// Which layers of a chain, uppermost first, become one each; lowest first.
fn cuts(own: usize, options: ExportOptions) -> Vec<Range<usize>> {
    let most = if options.flat { 1 } else { LAYERS_MAX };
    // Those above stay as they are; the last takes all that is left.
    let alone = own.min(most.saturating_sub(usize::from(own > most)));
    let mut cuts: Vec<_> = (0..alone).map(|n| n..n + 1).collect();
    if alone < own {
        cuts.push(alone..own);
    }
    cuts.reverse();
    cuts
}

/// Packs neighbours of a state's chain as one layer.
fn pack_cut(
    state: &State,
    reach: &Reach,
    cut: Range<usize>,
    empty: &Index,
    out: impl Write,
) -> Result<Packed> {
    let chain = state.chain();
    if cut.len() == 1 && stands_alone(chain[cut.start]) {
        let (indexes, trees) = (&chain[cut.clone()], &state.trees[cut]);
        return pack_layer(Stack { indexes, trees, reach }, out);
    }
    let below = if cut.end == chain.len() { vec![empty] } else { chain[cut.end..].to_vec() };
    let to = Stack { indexes: &chain[cut.start..], trees: &state.trees[cut.start..], reach };
    pack(&below, to, Form::Own, out)
}

/// The layer of the host that a snapshot of the image `host` stands on.
fn host_layer(snapshot: &SnapshotInfo) -> Option<String> {
    let host = |name: &&String| name.starts_with("host-");
    snapshot.chain.iter().find(host).filter(|_| snapshot.image == Image::Host).cloned()
}

/// A file without a name: it goes with us.
fn scratch(home: &Home) -> Result<File> {
    let path = home.path("incoming").join(format!("export-{}", new_id()?));
    let file = File::options().create_new(true).read(true).write(true).open(&path);
    let file = file.context(format_args!("make {}", path.display()))?;
    match std::fs::remove_file(&path) {
        // Whoever cleans up was faster.
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        removed => removed.context(format_args!("take the name from {}", path.display()))?,
    }
    Ok(file)
}

/// Writes, counts and hashes.
struct Hashed<'a> {
    to: &'a mut File,
    hash: Sha256,
    bytes: u64,
}

impl Write for Hashed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn put(archive: &mut tar::Builder<impl Write>, name: &str, bytes: u64, data: impl Read) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o600);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes);
    archive.append_data(&mut header, name, data)
}

/// The next file of an archive, which has to be this one.
fn next_file<'a, R: Read>(files: &mut tar::Entries<'a, R>, name: &str) -> Result<tar::Entry<'a, R>> {
    let missing = || unknown(&format!("it has no {name} where that belongs"));
    let file = files.next().ok_or_else(missing)?.map_err(broken)?;
    let is_it =
        file.header().entry_type() == tar::EntryType::Regular && *file.path_bytes() == *name.as_bytes();
    if is_it { Ok(file) } else { Err(missing()) }
}

fn unknown(why: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("cannot import it as a snapshot: {why}"))
}

fn broken(error: io::Error) -> Error {
    unknown(&format!("it is no archive of one ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandboxes::Settings;

    fn house() -> (tempfile::TempDir, Sandboxes) {
        let dir = tempfile::tempdir().unwrap();
        let house = Sandboxes::open(Settings { home: dir.path().join("home") }).unwrap();
        (dir, house)
    }

    fn manifest() -> Value {
        json!({
            "format": FORMAT, "version": VERSION_FLAT, "image": "dir:/nowhere", "from": "abc", "base": null,
            "digest": format!("b3:{}", "0".repeat(64)), "layer": format!("sha256:{}", "0".repeat(64)),
            "left_out": 0, "user": "root", "cwd": "/", "env": [["A", "b"]],
        })
    }

    fn task() -> Value {
        json!({
            "repo": "https://forge/r", "asked": "main", "commit": "c0ffee", "setup": ["cat <<E\n\tx\nE"], "test": null,
            "dir": "/work",
        })
    }

    #[test]
    fn what_a_box_was_goes_along() {
        let mut value = manifest();
        let older = Manifest::from_text(&value.to_string()).unwrap();
        assert_eq!((older.deterministic, older.recording, older.task), (false, Recording::Commands, None));
        (value["deterministic"], value["task"]) = (true.into(), task());
        let mut told = Manifest::from_text(&value.to_string()).unwrap();
        assert_eq!(told.recording, Recording::Steps, "which is what such boxes have unless told otherwise");
        told.recording = Recording::Snapshots;
        assert_eq!((told.deterministic, told.task.as_ref().map(TaskInfo::to_json)), (true, Some(task())));
        told.layers = vec![(layer_name(0), format!("sha256:{}", "0".repeat(64)))];
        let again = Manifest::from_text(&told.to_json().to_string()).unwrap();
        assert_eq!(
            (again.deterministic, again.recording, again.task),
            (true, Recording::Snapshots, told.task)
        );
    }

    #[test]
    fn a_task_that_is_none_is_refused() {
        let mut hostile = task();
        hostile["repo"] = "\u{1b}[2J".into();
        let mut elsewhere = task();
        elsewhere["dir"] = "work".into();
        for (key, told) in [
            ("task", hostile),
            ("task", elsewhere),
            ("task", json!({})),
            ("deterministic", json!("yes")),
            ("recording", json!("all")),
        ] {
            let mut value = manifest();
            value[key] = told;
            assert!(Manifest::from_text(&value.to_string()).is_err(), "{value}");
        }
    }

    /// A file with this description and this layer, whose digest is put right.
    fn file(mut manifest: Value, layer: &[u8]) -> Vec<u8> {
        if manifest["layer"].as_str().is_some_and(|text| text.starts_with("sha256:0")) {
            manifest["layer"] = image::digest_text(&Sha256::digest(layer)).into();
        }
        let mut archive = tar::Builder::new(Vec::new());
        let text = manifest.to_string();
        put(&mut archive, MANIFEST, text.len() as u64, text.as_bytes()).unwrap();
        put(&mut archive, "layer.tar", layer.len() as u64, layer).unwrap();
        zstd::encode_all(archive.into_inner().unwrap().as_slice(), 0).unwrap()
    }

    /// A layer with one entry of this name, which no honest tool would write.
    fn layer(name: &[u8]) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(4);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, &b"evil"[..]).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn descriptions_that_lead_somewhere_else_are_refused() {
        let (dir, house) = house();
        for (key, value) in [
            ("format", json!("something")),
            ("version", json!(3)),
            ("layer", json!("sha256:../../../etc")),
            ("layer", json!(format!("sha256:{}", "A".repeat(64)))),
            ("digest", json!("b3:x")),
            ("image", json!("snapshot:abc")),
            ("image", json!("host")),
            ("base", json!("host-0000000000000000")),
            ("base", json!("../../x")),
            ("cwd", json!("relative")),
            ("user", json!("a\u{1b}[31m")),
            ("env", json!([["A=B", "c"]])),
            ("env", json!([["A", "b\0"]])),
            ("left_out", json!(-1)),
        ] {
            let mut manifest = manifest();
            manifest[key] = value.clone();
            let taken = house.take_in(file(manifest, &layer(b"x")).as_slice(), None);
            let sentence = taken.unwrap_err().to_string();
            assert!(
                sentence.contains("import it as a snapshot") || sentence.contains("`host`"),
                "{key}: {sentence}"
            );
        }
        for base in ["../../x", "host-../x", "host-"] {
            let mut manifest = manifest();
            (manifest["image"], manifest["base"]) = (json!("host"), json!(base));
            assert!(house.take_in(file(manifest, &layer(b"x")).as_slice(), None).is_err(), "{base}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "only the home is there");
    }

    #[test]
    fn layers_that_lead_outside_or_are_others_are_refused() {
        let (dir, house) = house();
        let outside = house.take_in(file(manifest(), &layer(b"../../../evil")).as_slice(), None);
        assert!(outside.unwrap_err().to_string().contains("evil"));
        assert!(!dir.path().join("evil").exists());
        let mut other = manifest();
        other["layer"] = format!("sha256:{}", "1".repeat(64)).into();
        let other = house.take_in(file(other, &layer(b"x")).as_slice(), None).unwrap_err();
        assert!(other.to_string().contains("promised"), "{other}");
        let whole = house.take_in(file(manifest(), &layer(b"x")).as_slice(), None);
        // The tree is not the promised one: with root that is the end of it, without it is said.
        match Marks::here() {
            Marks::Trusted => assert!(whole.unwrap_err().to_string().contains("promised")),
            Marks::User => assert!(!whole.unwrap().exact),
        }
    }
}
