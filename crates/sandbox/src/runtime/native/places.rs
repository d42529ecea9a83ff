//! Places for what is mounted in every root: /dev, /proc, /sys, and /tmp where the root cannot be written.
//!
//! An image need not have them. Made in the box's top, they would be something that the box wrote: in its diff, in its
//! digest, and there again after each reset, which so never was clean. So each that is missing is a layer of its own below
//! all others, with nothing in it but this directory. It is in no chain: nobody's record, digest or image knows of it. It lies
//! in the state directory and not in memory, because a file keeps its number in an overlay only as long as all layers are of
//! one file system.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use glasshouse_protocol::plan::Source;

use crate::error::{Context, Result};
use crate::home::Home;
use crate::image;

/// Their names, and the modes that they show as long as nothing is mounted there.
const EVERYWHERE: [(&str, u32); 3] = [("dev", 0o755), ("proc", 0o755), ("sys", 0o755)];
const READ_ONLY: (&str, u32) = ("tmp", 0o1777);

/// What has to be laid below these layers.
pub(super) fn missing(home: &Home, layers: &[Source], read_only: bool) -> Result<Vec<Source>> {
    let wanted = EVERYWHERE.into_iter().chain(read_only.then_some(READ_ONLY));
    wanted.filter(|(name, _)| is_nowhere(layers, name)).map(|place| layer(home, place)).collect()
}

/// Most images have all of them in their lowest layer, so that one is asked first. What one above hides on purpose, a layer
/// below would not show.
fn is_nowhere(layers: &[Source], name: &str) -> bool {
    let has = |layer: &Source| fs::symlink_metadata(Path::new(&layer.path).join(name)).is_ok();
    !layers.iter().rev().any(has)
}

fn layer(home: &Home, (name, mode): (&str, u32)) -> Result<Source> {
    let root = home.path("places").join(name);
    let place = root.join(name);
    let make = || {
        fs::create_dir_all(&place)?;
        // Whoever made it may have had a mask of his own.
        fs::set_permissions(&place, Permissions::from_mode(mode))
    };
    if !place.is_dir() {
        make().context(format_args!("make {}", place.display()))?;
    }
    image::source(&root)
}
