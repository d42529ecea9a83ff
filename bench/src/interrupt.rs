//! Ctrl-C: what was made is taken away before we leave.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Result, bail};

/// Whether somebody wants us to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    asked: Rc<Cell<bool>>,
}

impl Interrupt {
    /// Listens from now on, for as long as this process lives.
    pub(crate) fn listen(tasks: &tokio::task::LocalSet) -> Interrupt {
        let interrupt = Interrupt::default();
        let asked = interrupt.asked.clone();
        tasks.spawn_local(async move {
            // Without signals nobody can ask.
            if tokio::signal::ctrl_c().await.is_ok() {
                asked.set(true);
            }
        });
        interrupt
    }

    /// Between two things that are done whole or not at all: an error if somebody has asked.
    pub(crate) async fn check(&self) -> Result<()> {
        // Contenders that are processes keep the thread to themselves; here is where signals are heard.
        tokio::task::yield_now().await;
        if self.asked.get() {
            bail!("interrupted");
        }
        Ok(())
    }
}
