//! A house from which others are made: the layer of the image `host` costs half a second on some disks, so the tests of
//! one process make it once and then link it. A house that finds no layer makes its own, as ever.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use glasshouse_sandbox::{ErrorKind, RuntimeKind, SandboxSpec};
use glasshouse_tests::{is_root, scratch};

use crate::stage::{open, remove_cgroups};

/// A house that has its layers. It lasts as long as a test needs it.
pub(crate) struct Pattern {
    dir: tempfile::TempDir,
    /// Why this host has no boxes of the runtime `native`, if so.
    no_native: Option<String>,
}

/// What tests of `native` are called where they must run.
pub(crate) fn native_group() -> &'static str {
    if is_root() { "native-root" } else { "native-rootless" }
}

/// There is no moment after the last test, so whoever holds it last removes it.
static CURRENT: Mutex<Weak<Pattern>> = Mutex::new(Weak::new());

/// Where layers lie in a house.
const LAYERS: &str = "layers";

impl Pattern {
    /// The one of this process.
    pub(crate) fn current() -> Arc<Pattern> {
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pattern) = current.upgrade() {
            return pattern;
        }
        let pattern = Arc::new(Pattern::make());
        *current = Arc::downgrade(&pattern);
        pattern
    }

    fn make() -> Pattern {
        let dir = scratch();
        let home = dir.path().join("home");
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let no_native = executor.block_on(async {
            let spec = |runtime| SandboxSpec { runtime, ..SandboxSpec::default() };
            let house = open(&home);
            house.create(spec(RuntimeKind::Process)).await.unwrap().destroy().await.unwrap();
            match house.create(spec(RuntimeKind::Native)).await {
                Ok(sandbox) => sandbox.destroy().await.map(|()| None).unwrap(),
                Err(error) if error.kind() == ErrorKind::Unsupported => Some(error.to_string()),
                Err(error) => panic!("{error}"),
            }
        });
        remove_cgroups(&home);
        Pattern { dir, no_native }
    }

    /// Why boxes of this runtime cannot be made on this host, if so.
    pub(crate) fn missing(&self, runtime: RuntimeKind) -> Option<&str> {
        self.no_native.as_deref().filter(|_| runtime == RuntimeKind::Native)
    }

    /// Gives a new house the layers of this one.
    pub(crate) fn copy_to(&self, home: &Path) {
        let (from, to) = (self.dir.path().join("home").join(LAYERS), home.join(LAYERS));
        if from.is_dir() && to.is_dir() {
            for entry in std::fs::read_dir(&from).unwrap() {
                let name = entry.unwrap().file_name();
                link_tree(&from.join(&name), &to.join(&name));
            }
        }
    }
}

/// The same files in directories of their own.
fn link_tree(from: &Path, to: &Path) {
    let meta = from.symlink_metadata().unwrap();
    if !meta.is_dir() {
        return std::fs::hard_link(from, to).unwrap();
    }
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        link_tree(&from.join(&name), &to.join(&name));
    }
    chown(to, Some(meta.uid()), Some(meta.gid())).unwrap();
    std::fs::set_permissions(to, meta.permissions()).unwrap();
}
