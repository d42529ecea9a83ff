//! Pausing a box: everything in it stands still until it is resumed.
//!
//! The guest does it, alike on every runtime (`crates/guest/src/agent/pausing.rs`), and marks the lock that says that it lives:
//! whoever looks finds the truth, whatever became of the process that had asked for it. An engine that pauses a container
//! would stop the guest as well, and with it the end of the box's life and every answer. On another machine nobody sees that
//! lock: there, a note says that somebody asked for a pause, and whoever finds it asks the guest.

use glasshouse_protocol::{Reply, Request};

use crate::client::{self, Link};
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::Sandbox;
use crate::sandboxes::Sandboxes;
use crate::threads::blocking;

impl Sandboxes {
    /// Stops everything that runs in a box, until it is resumed. It keeps its memory and uses no CPU. Its life goes on to
    /// its end; the deadlines of its commands do not. Its id; one that is paused stays so.
    pub async fn pause(&self, name: &str) -> Result<String> {
        self.ask_alone(name, Request::Pause, "pause").await
    }

    /// Lets a box go on that was paused. Its id; one that runs goes on.
    pub async fn resume(&self, name: &str) -> Result<String> {
        self.ask_alone(name, Request::Resume, "resume").await
    }

    /// Asks a guest while nobody gives its box another root.
    async fn ask_alone(&self, name: &str, request: Request, what: &str) -> Result<String> {
        let (house, id) = (self.clone(), self.info(name).await?.id);
        let asks = request == Request::Pause;
        let (info, stream, _turn) = blocking(move || {
            let turn = house.home().lock_box(&id)?;
            let info = house.on_record(&id)?.info;
            if !info.state.is_alive() {
                let message = format!("box {id} is {}, and nothing runs in it", info.state.name());
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            let stream = house.runtime(info.runtime).connect(&info)?;
            if asks && house.home().is_far(&id) {
                // Before it is so: whoever finds the note asks the guest.
                house.home().note_pause(&id, true)?;
            }
            Ok((info, stream, turn))
        })
        .await?;
        match Link::start(stream).await?.call(&request).await? {
            Reply::Ok => {}
            other => return Err(client::unexpected(&other)),
        }
        if !asks {
            self.home().note_pause(&info.id, false)?;
        }
        self.record(&info, &[]).state(what, None, None, None).await;
        Ok(info.id)
    }
}

impl Sandbox {
    /// Stops everything that runs in it, until it is resumed.
    pub async fn pause(&self) -> Result<()> {
        self.house().pause(self.id()).await.map(drop)
    }

    /// Lets it go on.
    pub async fn resume(&self) -> Result<()> {
        self.house().resume(self.id()).await.map(drop)
    }
}
