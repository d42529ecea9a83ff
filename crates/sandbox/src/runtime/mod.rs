//! Runtimes: life, death and state of boxes, and never their work.
//!
//! Commands, files and terminals go over the connection to the guest, which does not know which runtime it lives in.

pub(crate) mod native;
mod process;
mod start;

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use glasshouse_linux::descriptor;

use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::image::Base;
use crate::spec::{Level, LimitInForce, RuntimeKind, SandboxInfo, SandboxSpec};

/// What a runtime can do on this host.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeReport {
    /// Which.
    pub runtime: RuntimeKind,
    /// How strongly it isolates.
    pub level: Level,
    /// Each thing that it uses, whether it is there, and what to do about it if not.
    pub features: Vec<Feature>,
    /// Default limits, each with what enforces it.
    pub limits: Vec<LimitInForce>,
}

/// Something that a runtime uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// What.
    pub name: String,
    /// It is there.
    pub ok: bool,
    /// How it is there, or why not.
    pub detail: String,
    /// What would help.
    pub hint: Option<String>,
}

/// A box that has been made, and the first stream to its guest.
pub(crate) struct Created {
    pub(crate) info: SandboxInfo,
    pub(crate) stream: UnixStream,
}

/// What every runtime does. All of it may block; callers see to that.
pub(crate) trait Runtime: Send + Sync {
    /// What it can do here.
    fn probe(&self) -> RuntimeReport;
    /// Makes a box. When this fails, nothing of it is left.
    fn create(&self, id: &str, spec: &SandboxSpec, base: &Base) -> Result<Created>;
    /// A new stream to the guest of a living box.
    fn connect(&self, info: &SandboxInfo) -> Result<UnixStream>;
    /// Ends a box and removes all of it. May be called again.
    fn destroy(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()>;
    /// The ids of boxes that have something outside of the home, so that nothing is forgotten.
    fn traces_outside(&self) -> Result<Vec<String>>;
}

/// All runtimes of one home.
#[derive(Clone)]
pub(crate) struct Runtimes {
    native: Arc<native::Native>,
    process: Arc<process::Process>,
}

impl Runtimes {
    pub(crate) fn new(home: &Home) -> Result<Runtimes> {
        Ok(Runtimes {
            native: Arc::new(native::Native::new(home.clone())?),
            process: Arc::new(process::Process::new(home.clone())?),
        })
    }

    pub(crate) fn get(&self, kind: RuntimeKind) -> &dyn Runtime {
        match kind {
            RuntimeKind::Native => &*self.native,
            RuntimeKind::Process => &*self.process,
        }
    }
}

/// Connects to a guest's socket in its box's directory.
fn connect_in(home: &Home, info: &SandboxInfo) -> Result<UnixStream> {
    use std::os::fd::AsFd;
    let gone = |e: std::io::Error| {
        let message =
            format!("box {} does not answer ({e}); if it has ended, `glass gc` removes it", info.id);
        Error::new(ErrorKind::Gone, message)
    };
    let dir = std::fs::File::open(home.box_dir(&info.id)).map_err(gone)?;
    let socket = descriptor::connect_at(dir.as_fd(), "sock").map_err(gone)?;
    Ok(UnixStream::from(socket))
}
