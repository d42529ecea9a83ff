//! Directories of the host in a box.
//!
//! A box is given one only below a directory that the house allows ([`crate::Sandboxes::allow_volumes`]; none by itself). The
//! way there is walked by descriptor, and no link is followed: what lies in a volume may be another box's work. What was
//! found is known by its device and inode from then on, and whoever mounts it mounts that or nothing.
//!
//! A volume is no part of the box's state: not of snapshots, digests and diffs, and a reset does not empty it. The directory
//! that it covers is, where the image or the box has one; a native box whose image has none is shown one that is nobody's
//! (`native/places.rs`), and an engine makes it in the container.

use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};

use glasshouse_linux::{mount, rustix};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::spec::{SandboxSpec, Volume};

/// Volumes of one box.
pub(crate) const VOLUMES_MAX: usize = 16;
/// Where no volume goes: what is there is not the box's files.
const TAKEN: [&str; 3] = ["proc", "sys", "dev"];

/// Looks for the volumes that a box is to have, and refuses what it may not.
pub(crate) fn admit(spec: &mut SandboxSpec, allowed: &[PathBuf], home: &Home) -> Result<()> {
    if spec.volumes.len() > VOLUMES_MAX {
        return Err(Error::new(ErrorKind::Invalid, format!("a box has at most {VOLUMES_MAX} volumes")));
    }
    for (at, volume) in spec.volumes.iter().enumerate() {
        check_place(volume, spec.read_only)?;
        let overlaps = |other: &Volume| {
            let (one, two) = (Path::new(&volume.path), Path::new(&other.path));
            one.starts_with(two) || two.starts_with(one)
        };
        if let Some(other) = spec.volumes[..at].iter().find(|other| overlaps(other)) {
            let message =
                format!("the volumes at {} and {} are in each other's way", other.path, volume.path);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
    }
    for volume in &mut spec.volumes {
        volume.seen = Some(find(volume, allowed, home)?);
    }
    Ok(())
}

/// Refuses places that are no place for a volume.
fn check_place(volume: &Volume, read_only_root: bool) -> Result<()> {
    let refused = |why: &str| {
        let message = format!("{:?} cannot be the place of a volume: {why}", volume.path);
        Err(Error::new(ErrorKind::Invalid, message))
    };
    let path = Path::new(&volume.path);
    let mut parts = path.components();
    if parts.next() != Some(Component::RootDir) {
        return refused("it has to begin with `/`");
    }
    if !parts.clone().all(|part| matches!(part, Component::Normal(_))) || volume.path.contains('\0') {
        return refused("`..` has no meaning in it");
    }
    match parts.next().and_then(|part| part.as_os_str().to_str()) {
        None => refused("it is the root itself"),
        Some(first) if TAKEN.contains(&first) => refused("/proc, /sys and /dev are the box's own"),
        Some("tmp") if read_only_root => refused("/tmp is memory in a box with a read-only root"),
        Some(_) => Ok(()),
    }
}

/// The directory of the host, by device and inode.
fn find(volume: &Volume, allowed: &[PathBuf], home: &Home) -> Result<(u64, u64)> {
    let shown = volume.host.display();
    let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    if !volume.host.is_absolute() || !volume.host.components().all(plain) {
        let message = format!("{shown} cannot be a volume: say the whole path, without `..`");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let Some(root) = allowed.iter().find(|root| volume.host.starts_with(root)) else {
        let which = match allowed {
            [] => "none are allowed".to_owned(),
            _ => format!("only what is below {} is allowed", words(allowed)),
        };
        let message = format!(
            "{shown} cannot be a volume: {which}; name directories that boxes may be given in GLASSHOUSE_VOLUMES, \
             separated by `:`"
        );
        return Err(Error::new(ErrorKind::Denied, message));
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = openat(CWD, root, flags, Mode::empty()).context(format_args!("open {}", root.display()))?;
    let rest = volume.host.strip_prefix(root).unwrap_or(Path::new(""));
    let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
    let rest = rest.to_str().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{shown} cannot be a volume: its name is no UTF-8"))
    })?;
    let whole = |path: &Path| path.canonicalize().context(format_args!("look at {}", path.display()));
    // No link is followed below the root, so this is where it is, before anything is made there.
    let (host, state) = (whole(root)?.join(rest), whole(&home.path(""))?);
    if host.starts_with(&state) || state.starts_with(&host) {
        let message = format!("{shown} cannot be a volume: the state directory of all boxes is there");
        return Err(Error::new(ErrorKind::Denied, message));
    }
    let find = if volume.make { mount::find_or_make_dir } else { mount::find };
    let dir = match find(top.as_fd(), rest) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            let message = format!("{shown} cannot be a volume: a link is on the way, and none is followed");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        found => found.context(format_args!("open the volume {shown}"))?,
    };
    let kind = rustix::fs::fstat(&dir).context(format_args!("look at {shown}"))?;
    if !rustix::fs::FileType::from_raw_mode(kind.st_mode).is_dir() {
        let message = format!("{shown} cannot be a volume: it is no directory");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    mount::identity(dir.as_fd()).context(format_args!("look at {shown}"))
}

fn words(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(host: &Path, path: &str, allowed: &[PathBuf], home: &Home) -> Option<ErrorKind> {
        let volumes = vec![Volume::new(host, path, false)];
        let mut spec = SandboxSpec { volumes, ..SandboxSpec::default() };
        admit(&mut spec, allowed, home).err().map(|e| e.kind())
    }

    #[test]
    fn only_directories_below_what_is_allowed_are_given() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let home = Home::open(dir.join("state/home")).unwrap();
        std::fs::create_dir_all(dir.join("ok/deep")).unwrap();
        std::fs::write(dir.join("ok/file"), "").unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("ok/out")).unwrap();
        std::os::unix::fs::symlink("deep", dir.join("ok/within")).unwrap();
        let allowed = [dir.join("ok")];
        let check = |host: &str| refusal(&dir.join(host), "/data", &allowed, &home);
        assert_eq!((check("ok"), check("ok/deep")), (None, None));
        for host in ["ok/out", "ok/within", "state", "", "ok2"] {
            assert_eq!(check(host), Some(ErrorKind::Denied), "{host}");
        }
        assert_eq!(check("ok/none"), Some(ErrorKind::NotFound));
        for host in ["ok/file", "ok/deep/../.."] {
            assert!(check(host).is_some(), "{host}");
        }
        assert_eq!(refusal(Path::new("ok"), "/data", &allowed, &home), Some(ErrorKind::Invalid));
        assert_eq!(refusal(&dir.join("ok"), "/data", &[], &home), Some(ErrorKind::Denied));
        let all = [dir.clone()];
        for host in ["state", "state/home", "state/home/boxes", ""] {
            assert_eq!(refusal(&dir.join(host), "/data", &all, &home), Some(ErrorKind::Denied), "{host}");
        }
    }

    #[test]
    fn what_is_missing_is_made_if_it_may_be_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let home = Home::open(dir.join("ok/state")).unwrap();
        std::fs::create_dir_all(dir.join("outside")).unwrap();
        std::os::unix::fs::symlink(dir.join("outside"), dir.join("ok/link")).unwrap();
        std::fs::write(dir.join("ok/file"), "").unwrap();
        let make = |host: &str| {
            let volume = Volume { make: true, ..Volume::new(dir.join(host), "/data", false) };
            let mut spec = SandboxSpec { volumes: vec![volume], ..SandboxSpec::default() };
            admit(&mut spec, &[dir.join("ok")], &home).err().map(|e| e.kind())
        };
        assert_eq!((make("ok/a/b"), make("ok/a/b"), make("ok/a/c")), (None, None, None));
        assert!(dir.join("ok/a/b").is_dir() && dir.join("ok/a/c").is_dir());
        for host in ["ok/link/x", "ok/link", "ok/state/x", "other/x"] {
            assert_eq!(make(host), Some(ErrorKind::Denied), "{host}");
        }
        assert!(make("ok/file/x").is_some());
        assert_eq!(std::fs::read_dir(dir.join("outside")).unwrap().count(), 0);
        assert!(!dir.join("ok/state/x").exists() && !dir.join("other").exists());
    }

    #[test]
    fn some_places_are_taken() {
        let place = |path: &str| check_place(&Volume::new("/x", path, false), true).is_ok();
        for path in ["/data", "/a/b/c", "/var/tmp", "/procs"] {
            assert!(place(path), "{path}");
        }
        for path in
            ["", "/", "data", "/..", "/a/../proc", "/proc", "/proc/1", "/sys", "/dev/.glasshouse", "/tmp/x"]
        {
            assert!(!place(path), "{path:?}");
        }
    }

    #[test]
    fn two_volumes_are_not_in_one_another() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let home = Home::open(dir.join("home")).unwrap();
        std::fs::create_dir(dir.join("v")).unwrap();
        let both = |one: &str, two: &str| {
            let volumes = vec![Volume::new(dir.join("v"), one, true), Volume::new(dir.join("v"), two, true)];
            admit(&mut SandboxSpec { volumes, ..SandboxSpec::default() }, &[dir.join("v")], &home).is_ok()
        };
        assert!(both("/a", "/ab") && both("/a/b", "/a/c"));
        assert!(!both("/a", "/a") && !both("/a", "/a/b") && !both("/a/b/c", "/a"));
    }
}
