//! The root directory of a box: overlay shows the uppermost layer's own mode, owner and attributes for it, so a fresh
//! top takes after what is below.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use glasshouse_linux::rustix;
use glasshouse_linux::rustix::fs::XattrFlags;
use glasshouse_linux::rustix::io::Errno;

use crate::error::{Context, Result};
use crate::snapshot::MemoryTop;

/// The kernel's own bound, for all names of attributes together and for one value.
const ATTRIBUTE_BYTES_MAX: usize = 65_536;

/// What a box sees of its root directory itself, but for times.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RootOf {
    mode: u32,
    /// `None` without privilege: then everything is ours, and nobody's else in the box.
    owner: Option<(u32, u32)>,
    /// Those that are the box's own.
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl RootOf {
    pub(super) fn read(path: &Path) -> Result<RootOf> {
        let look = || format!("look at {}", path.display());
        let meta = fs::metadata(path).context(look())?;
        let kept = rustix::process::geteuid().is_root();
        let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
        let listed = match rustix::fs::listxattr(path, &mut names[..]) {
            // The file system has none, or nobody may look.
            Err(Errno::OPNOTSUPP | Errno::ACCESS) => 0,
            listed => listed.map_err(std::io::Error::from).context(look())?,
        };
        let mut attributes = BTreeMap::new();
        for name in names[..listed].split(|byte| *byte == 0) {
            if !name.starts_with(b"user.") || name.starts_with(b"user.overlay.") {
                continue;
            }
            let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
            let got = match rustix::fs::getxattr(path, name, &mut value[..]) {
                Err(Errno::NODATA | Errno::ACCESS) => continue,
                got => got.map_err(std::io::Error::from).context(look())?,
            };
            attributes.insert(name.to_vec(), value[..got].to_vec());
        }
        let owner = kept.then(|| (meta.uid(), meta.gid()));
        Ok(RootOf { mode: meta.mode() & 0o7777, owner, attributes })
    }

    /// The root of a top in memory, as the box sees it.
    pub(super) fn of_memory(top: &MemoryTop) -> Result<RootOf> {
        let mut root = RootOf::read(Path::new(&format!("/proc/self/fd/{}", top.dir.as_raw_fd())))?;
        root.owner = root.owner.map(|(uid, gid)| (top.id_in_box(uid), top.id_in_box(gid)));
        Ok(root)
    }

    /// Gives it all to another directory, in the order in which none of them undoes another.
    pub(super) fn give(&self, path: &Path) -> Result<()> {
        let what = || format!("give {} the attributes of the layer below", path.display());
        if let Some((uid, gid)) = self.owner {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).context(what())?;
        }
        for (name, value) in &self.attributes {
            let set = rustix::fs::setxattr(path, name.as_slice(), value, XattrFlags::empty());
            set.map_err(std::io::Error::from).context(what())?;
        }
        fs::set_permissions(path, Permissions::from_mode(self.mode)).context(what())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_root_looks_like_the_one_below() {
        let dir = tempfile::tempdir().unwrap();
        let (below, top) = (dir.path().join("below"), dir.path().join("top"));
        fs::create_dir(&below).unwrap();
        fs::create_dir(&top).unwrap();
        for name in ["user.mark", "user.overlay.opaque"] {
            match rustix::fs::setxattr(&below, name, b"y", XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP) => {}
                set => set.unwrap(),
            }
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&below, Some(7), Some(8)).unwrap();
        }
        fs::set_permissions(&below, Permissions::from_mode(0o3751)).unwrap();
        let seen = RootOf::read(&below).unwrap();
        assert!(
            !seen.attributes.contains_key(&b"user.overlay.opaque"[..]),
            "overlay's own stay where they are"
        );
        assert_ne!(RootOf::read(&top).unwrap(), seen);
        seen.give(&top).unwrap();
        assert_eq!(RootOf::read(&top).unwrap(), seen);
    }
}
