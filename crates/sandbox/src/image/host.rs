//! The image `host`: the host's own programs, an /etc of our making, and nothing else of the host.
//!
//! `/usr` (and `/bin`, `/lib`… where they are no links into it) is shown read-only. Everything else is a small layer
//! that is made once and made anew when what it was copied from has changed. No shadow, no keys, no machine id.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use glasshouse_protocol::plan::Source;

use crate::error::{Context, Result};
use crate::home::Home;
use crate::image::{Base, source};
use crate::snapshot::layers;
use crate::spec::Image;

/// Counted up when what the layer holds changes.
const LAYER_VERSION: u32 = 4;
/// Top-level names that are the host's programs.
const PROGRAMS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files and trees of the host's /etc that programs need and that hold no secret.
const COPIED: [&str; 9] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl/certs",
    "ssl/openssl.cnf",
    "services",
    "protocols",
    "mime.types",
];
/// Further trees of /etc, each for one version of what it belongs to: a beginning and an end of their names. Debian's Java
/// looks there for the list of its machines, and does not start without.
const COPIED_BY_NAME: [(&str, &str); 1] = [("java-", "-openjdk")];
/// So many of those, at the most.
const COPIED_BY_NAME_MAX: usize = 16;
/// A tree of /etc that is larger than this is not copied further.
const COPY_ENTRIES_MAX: usize = 20_000;

const USER_ID: u32 = 1000;
const ROOT_ID: u32 = 0;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    user:x:1000:1000:user:/home/user:/bin/bash\n\
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost box\n::1 localhost box\n";
const NSSWITCH: &str =
    "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n";
const PROFILE: &str = "export PATH=/usr/local/bin:/usr/bin:/bin\nexport PS1='\\u@\\h:\\w\\$ '\n";

pub(super) fn base(home: &Home) -> Result<Base> {
    let trees = trees()?;
    let name = current_layer();
    let layer = home.path("layers").join(&name);
    if !layer.is_dir() {
        make(home, &layer)?;
    }
    Ok(Base {
        image: Image::Host,
        layers: layers::sources(home, std::slice::from_ref(&name))?,
        chain: vec![name],
        trees,
        user: "user".into(),
        cwd: "/workspace".into(),
        env: vec![("LANG".into(), "C.UTF-8".into())],
    })
}

/// The layer of this moment's host.
pub(crate) fn current_layer() -> String {
    format!("host-{:016x}", fingerprint())
}

/// The host's programs, and where they are shown.
pub(super) fn trees() -> Result<Vec<(Source, String)>> {
    let mut trees = vec![(source(Path::new("/usr"))?, "usr".to_owned())];
    for name in PROGRAMS {
        let path = Path::new("/").join(name);
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            trees.push((source(&path)?, name.to_owned()));
        }
    }
    Ok(trees)
}

/// Changes when something that the layer is made of does.
fn fingerprint() -> u64 {
    let mut hasher = DefaultHasher::new();
    LAYER_VERSION.hash(&mut hasher);
    for name in PROGRAMS {
        fs::read_link(Path::new("/").join(name)).ok().hash(&mut hasher);
    }
    for name in copied(Path::new("/etc")) {
        if let Ok(meta) = fs::symlink_metadata(Path::new("/etc").join(&name)) {
            (name, meta.mtime(), meta.mtime_nsec(), meta.ino(), meta.len()).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Makes the layer beside its place and moves it there when it is whole: whoever comes second finds it made.
fn make(home: &Home, layer: &Path) -> Result<()> {
    // Nobody looks what is in the trash, and nobody else makes the layer, while we do.
    let _lock = home.lock()?;
    if layer.is_dir() {
        return Ok(());
    }
    // A name of its own: somebody may be removing what a maker left who was killed.
    let build = home.path("trash").join(layers::new_name("layer")?);
    let made = fill(&build.join("tree")).and_then(|()| fs::rename(&build, layer));
    if made.is_err() {
        let _ = fs::remove_dir_all(&build);
    }
    made.context(format_args!("make the layer of the host image, {}", layer.display()))
}

fn fill(root: &Path) -> std::io::Result<()> {
    let dir = |path: &str, mode: u32| -> std::io::Result<PathBuf> {
        let path = root.join(path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    };
    dir("", 0o755)?;
    for name in [
        "usr",
        "etc",
        "var",
        "var/lib",
        "var/log",
        "var/cache",
        "run",
        "home",
        "proc",
        "sys",
        "dev",
        "opt",
        "mnt",
    ] {
        dir(name, 0o755)?;
    }
    dir("tmp", 0o1777)?;
    dir("var/tmp", 0o1777)?;
    dir("root", 0o700)?;
    // Root of a box has no rights over files but its own, so where work is done it is let in by its group.
    for (owned, group) in [(dir("home/user", 0o755)?, USER_ID), (dir("workspace", 0o775)?, ROOT_ID)] {
        // Without privilege all files are the box's one user's anyway.
        let _ = chown(&owned, Some(USER_ID), Some(group));
    }
    for name in PROGRAMS {
        let host = Path::new("/").join(name);
        match fs::read_link(&host) {
            Ok(target) => symlink(target, root.join(name))?,
            Err(_) if host.is_dir() => {
                dir(name, 0o755)?;
            }
            Err(_) => {}
        }
    }
    for (name, text) in [
        ("passwd", PASSWD),
        ("group", GROUP),
        ("hosts", HOSTS),
        ("hostname", "box\n"),
        ("nsswitch.conf", NSSWITCH),
        ("resolv.conf", ""),
        ("profile", PROFILE),
    ] {
        fs::write(root.join("etc").join(name), text)?;
    }
    symlink("../usr/lib/os-release", root.join("etc/os-release"))?;
    let mut left = COPY_ENTRIES_MAX;
    for name in copied(Path::new("/etc")) {
        copy(&Path::new("/etc").join(&name), &root.join("etc").join(&name), &mut left)?;
    }
    Ok(())
}

/// What is copied of the host's /etc.
fn copied(etc: &Path) -> Vec<String> {
    let is_wanted = |name: &String| {
        let matches = |(start, end): &(&str, &str)| {
            name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)).is_some()
        };
        COPIED_BY_NAME.iter().any(matches)
    };
    let entries = fs::read_dir(etc).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut named: Vec<String> =
        dirs.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_wanted).collect();
    named.sort_unstable();
    named.truncate(COPIED_BY_NAME_MAX);
    COPIED.into_iter().map(str::to_owned).chain(named).collect()
}

/// Copies files and links that everybody may read, and nothing else.
fn copy(from: &Path, to: &Path, left: &mut usize) -> std::io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(from) else { return Ok(()) };
    *left = left.saturating_sub(1);
    if *left == 0 {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    if meta.is_symlink() {
        symlink(fs::read_link(from)?, to)?;
    } else if meta.is_dir() {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), left)?;
        }
    } else if meta.is_file() && meta.mode() & 0o004 != 0 {
        fs::write(to, fs::read(from)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_java_needs_is_copied_and_nothing_that_is_only_called_alike() {
        let etc = tempfile::tempdir().unwrap();
        for dir in ["java-17-openjdk", "java-21-openjdk", "java", "java-17-openjdk.d", "ssh"] {
            fs::create_dir(etc.path().join(dir)).unwrap();
        }
        fs::write(etc.path().join("java-8-openjdk"), "a file").unwrap();
        symlink("/root", etc.path().join("java-9-openjdk")).unwrap();
        assert_eq!(copied(etc.path())[COPIED.len()..], ["java-17-openjdk", "java-21-openjdk"]);
        // What only its owner may read stays where it is.
        let (from, to) = (etc.path().join("java-17-openjdk"), etc.path().join("copy"));
        for (name, mode) in [("jvm.cfg", 0o644), ("jmxremote.password", 0o600)] {
            fs::write(from.join(name), name).unwrap();
            fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        copy(&from, &to, &mut 100).unwrap();
        assert!(to.join("jvm.cfg").exists() && !to.join("jmxremote.password").exists());
    }
}
