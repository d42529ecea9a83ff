//! Whether an engine has what a box writes. A runtime with a kernel of its own may keep that to itself: gVisor does, unless it is
//! told not to. A snapshot of such a box, which is what the engine has, would be without it; so would the box, were it
//! stopped and started again.
//!
//! It is found by trying: the guest makes a directory, and the engine is asked for it.

use bollard::query_parameters::ContainerArchiveInfoOptionsBuilder;
use glasshouse_protocol::{FileOp, Request};

use super::Docker;
use crate::error::{Error, ErrorKind, Result};
use crate::home::write_private;
use crate::runtime::{Runtime, native};
use crate::spec::SandboxInfo;

/// In a box's directory: the engine does not have what it writes.
const UNKEPT: &str = "unkept";

impl Docker {
    /// Finds out whether the engine has what a new box writes, and writes down if not.
    pub(super) fn note_kept(&self, info: &SandboxInfo) -> Result<()> {
        let note = self.home.box_dir(&info.id).join(UNKEPT);
        // What was noted of the container before is of no use any more.
        let _ = std::fs::remove_file(&note);
        let path = format!("/.glasshouse-{}", crate::sandboxes::new_id()?);
        let ask = |file: FileOp| {
            native::ask_once(self.connect(info)?, &Request::File { file, user: Some("0:0".into()) }).map(drop)
        };
        match ask(FileOp::Mkdir { path: path.clone(), parents: false, mode: None }) {
            // Where nothing can be written, nothing is lost.
            Err(e) if matches!(e.kind(), ErrorKind::Denied) => return Ok(()),
            made => made?,
        }
        let container = self.container_of(&info.id, info.generation)?;
        let options = ContainerArchiveInfoOptionsBuilder::new().path(&path).build();
        let seen = self.engine.ask_known("look for what the box writes", async |docker| {
            docker.get_container_archive_info(&container, Some(options)).await
        });
        ask(FileOp::Remove { path, recursive: false })?;
        match seen?.is_some() {
            true => Ok(()),
            false => write_private(&note, "the engine did not find what the guest had made"),
        }
    }

    /// Refuses what would be without all that the box has written.
    pub(super) fn must_keep(&self, id: &str, what: &str) -> Result<()> {
        if !self.home.box_dir(id).join(UNKEPT).exists() {
            return Ok(());
        }
        let message = format!(
            "{what} would be without all that box {id} has written: the engine's runtime keeps that to itself, where the engine \
             does not find it; gVisor leaves it to the engine with `--overlay2=none` among the runtime's arguments"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}
