//! Programs that are not in the box's image: carried over the link when first needed, once for each life of a box.
//!
//! The guest keeps them in sealed memory, under names that say their content, and runs them as it runs any command:
//! with all walls, as the box's user, held to the box's limits. Nothing appears among the box's files.

use std::sync::OnceLock;

use glasshouse_protocol::limits::DATA_CHUNK_MAX;
use glasshouse_protocol::{Reply, Request};

use crate::client;
use crate::error::{Error, ErrorKind, Result};
use crate::files::Upload;
use crate::limits::{CARRY_MEMORY_BYTES_MIN, CARRY_TIMEOUT};
use crate::sandbox::Sandbox;
use crate::tools::running;

/// A program of ours for boxes.
pub(crate) struct Carried {
    bytes: &'static [u8],
    name: OnceLock<String>,
}

/// The search, which is too large to be part of every guest.
pub(crate) static SEARCH: Carried = Carried::new(include_bytes!(env!("GLASSHOUSE_SEARCH")));
/// What speaks with kernels of Jupyter's.
pub(crate) static KERNEL: Carried = Carried::new(include_bytes!(env!("GLASSHOUSE_KERNEL")));

impl Carried {
    const fn new(bytes: &'static [u8]) -> Carried {
        Carried { bytes, name: OnceLock::new() }
    }

    /// Sees to it that the box has the program. The name under which it does.
    pub(crate) async fn bring_into(&self, sandbox: &Sandbox) -> Result<String> {
        if let Some(memory) =
            running::limit(sandbox, "memory").filter(|&bytes| bytes < CARRY_MEMORY_BYTES_MIN)
        {
            let message = format!(
                "this needs a box with {CARRY_MEMORY_BYTES_MIN} bytes of memory; this one has {memory}"
            );
            return Err(Error::new(ErrorKind::Limit, message));
        }
        // The guest is not to be trusted with our time.
        match tokio::time::timeout(CARRY_TIMEOUT, self.send(sandbox)).await {
            Ok(sent) => sent,
            Err(_) => {
                Err(Error::new(ErrorKind::Failed, "the box's guest does not take the program that does this"))
            }
        }
    }

    async fn send(&self, sandbox: &Sandbox) -> Result<String> {
        let name = self.name.get_or_init(|| format!("glass-{}", blake3::hash(self.bytes).to_hex()));
        let request = Request::Carry { program: name.clone(), bytes: self.bytes.len() as u64 };
        let mut stream = sandbox.driver.line.link().await?.open(&request).await?;
        match stream.reply().await.map_err(older)? {
            // It is there already.
            Reply::Ok => return Ok(name.clone()),
            Reply::Ready => {}
            other => return Err(client::unexpected(&other)),
        }
        let mut upload = Upload::begun(stream);
        for piece in self.bytes.chunks(DATA_CHUNK_MAX) {
            upload.send(piece).await?;
        }
        match upload.end().await? {
            Reply::Ok => Ok(name.clone()),
            other => Err(client::unexpected(&other)),
        }
    }
}

/// A guest that was made before this was invented does not know the word.
fn older(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unsupported => Error::new(
            ErrorKind::Unsupported,
            "this box was made by an older glass, whose guest cannot take the program that does this; make the box anew",
        ),
        _ => error,
    }
}
