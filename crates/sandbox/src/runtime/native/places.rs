//! Places for what is mounted in every root: /dev, /proc, /sys, /tmp where the root cannot be written, and the box's volumes.
//!
//! An image need not have them. Made in the box's top, they would be something that the box wrote: in its diff, in its
//! digest, and there again after each reset, which so never was clean. So each that is missing is a layer of its own below
//! all others, with nothing in it but the way to this directory. It is in no chain: nobody's record, digest or image knows of it.
//! It lies in the state directory and not in memory, because a file keeps its number in an overlay only as long as all layers
//! are of one file system.

use std::fs::{self, Permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use glasshouse_linux::mount;
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use glasshouse_protocol::plan::Source;

use crate::error::{Context, Result};
use crate::home::Home;
use crate::image;
use crate::spec::SandboxSpec;

/// Their names, and the modes that they show as long as nothing is mounted there.
const EVERYWHERE: [(&str, u32); 3] = [("dev", 0o755), ("proc", 0o755), ("sys", 0o755)];
const READ_ONLY: (&str, u32) = ("tmp", 0o1777);
const VOLUME_MODE: u32 = 0o755;

/// What has to be laid below these layers.
pub(super) fn missing(home: &Home, layers: &[Source], spec: &SandboxSpec) -> Result<Vec<Source>> {
    let volume = |path: &str| path.trim_start_matches('/').to_owned();
    let volumes = spec.volumes.iter().map(|v| volume(&v.path)).filter(|path| is_no_way_to(layers, path));
    let own = EVERYWHERE.into_iter().chain(spec.read_only.then_some(READ_ONLY));
    let own = own.filter(|(name, _)| is_nowhere(layers, name)).map(|place| layer(home, place));
    own.chain(volumes.map(|path| layer(home, (&path, VOLUME_MODE)))).collect()
}

/// Most images have all of them in their lowest layer, so that one is asked first. What one above hides on purpose, a layer
/// below would not show.
fn is_nowhere(layers: &[Source], name: &str) -> bool {
    let has = |layer: &Source| fs::symlink_metadata(Path::new(&layer.path).join(name)).is_ok();
    !layers.iter().rev().any(has)
}

/// The same for a path. What lies on it is the image's, so no link is followed, and who finds one leaves it to whoever attaches
/// the volume, and refuses it.
fn is_no_way_to(layers: &[Source], path: &str) -> bool {
    let lacks = |layer: &Source| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, layer.path.as_str(), flags, Mode::empty());
        let found = root.map_err(std::io::Error::from).and_then(|root| mount::find(root.as_fd(), path));
        found.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    layers.iter().all(lacks)
}

fn layer(home: &Home, (path, mode): (&str, u32)) -> Result<Source> {
    let root = home.path("places").join(blake3::hash(path.as_bytes()).to_hex().as_str());
    let place = root.join(path);
    let make = || {
        fs::create_dir_all(&place)?;
        // Whoever made it may have had a mask of his own.
        for dir in place.ancestors().skip(1).take_while(|dir| *dir != root) {
            fs::set_permissions(dir, Permissions::from_mode(VOLUME_MODE))?;
        }
        fs::set_permissions(&place, Permissions::from_mode(mode))
    };
    if !place.is_dir() {
        make().context(format_args!("make {}", place.display()))?;
    }
    image::source(&root)
}
