//! One-shots: many pieces of code, one after the other, each in a box that begins anew.
//!
//! ```text
//!              take                          done: reset, next context
//!  (nothing) ────────▶ in use ───────────────────────────────────────────▶ at hand ── take ──▶ in use
//!      a box is made     │ dropped, or what was to begin anew cannot
//!                        └──▶ destroyed
//! ```
//! A box costs more to make than to reset, and an interpreter that is kept warm outlives the reset (`docs/code.md`). Nothing else
//! does: files, processes, shared memory, temporary files are those of a new box. Where a runtime has no reset, every piece
//! of code has a new box.

use std::sync::{Arc, Mutex, PoisonError};

use glasshouse_protocol::{ContextInfo, ContextSpec};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::code::CodeSpec;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::ExecOutput;
use crate::sandbox::Sandbox;
use crate::sandboxes::Sandboxes;
use crate::spec::SandboxSpec;

/// What all one-shots have in common.
#[derive(Debug, Clone)]
pub struct ShotsSpec {
    /// The boxes. They need no owner and have no name.
    pub sandbox: SandboxSpec,
    /// The context that each piece of code has to itself. With `warm`, it is forked where that is possible.
    pub context: ContextSpec,
    /// How many may run at once: as many boxes there will be.
    pub boxes: usize,
}

/// Boxes for one-shots. Copies are the same boxes.
#[derive(Clone)]
pub struct Shots {
    house: Sandboxes,
    spec: Arc<ShotsSpec>,
    turns: Arc<Semaphore>,
    at_hand: Arc<Mutex<Vec<Ready>>>,
}

impl std::fmt::Debug for Shots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shots").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// A box in which nothing has run yet, and a context in it.
#[derive(Debug)]
struct Ready {
    sandbox: Sandbox,
    context: ContextInfo,
}

/// A box for one piece of code. To be given back with [`Shot::done`]; dropped, it is destroyed.
#[derive(Debug)]
pub struct Shot {
    ready: Option<Ready>,
    shots: Shots,
    turn: Option<OwnedSemaphorePermit>,
}

impl Sandboxes {
    /// Boxes for many pieces of code. They are made as they are needed.
    pub fn shots(&self, spec: ShotsSpec) -> Shots {
        let turns = Arc::new(Semaphore::new(spec.boxes.max(1)));
        Shots { house: self.clone(), spec: Arc::new(spec), turns, at_hand: Arc::default() }
    }
}

impl Shots {
    /// A box in which nothing has run, as soon as there is one.
    pub async fn take(&self) -> Result<Shot> {
        let turn = self.turns.clone().acquire_owned().await;
        let turn = turn.map_err(|_| Error::new(ErrorKind::Gone, "these boxes were closed"))?;
        let at_hand = self.at_hand().pop();
        let ready = match at_hand {
            Some(ready) => ready,
            None => {
                let sandbox = self.house.create(self.spec.sandbox.clone()).await?;
                self.make_ready(sandbox).await?
            }
        };
        Ok(Shot { ready: Some(ready), shots: self.clone(), turn: Some(turn) })
    }

    /// Runs one piece of code.
    pub async fn run(&self, code: CodeSpec) -> Result<ExecOutput> {
        let shot = self.take().await?;
        let output = shot.sandbox()?.run_code(shot.context()?, code).await?.collect().await;
        shot.done();
        Ok(output)
    }

    /// Waits for what is under way, and destroys all boxes.
    pub async fn close(self) -> Result<()> {
        let all = u32::try_from(self.spec.boxes.max(1)).unwrap_or(u32::MAX);
        let turns = self.turns.acquire_many(all).await;
        self.turns.close();
        drop(turns);
        let mut first = Ok(());
        let at_hand = std::mem::take(&mut *self.at_hand());
        for ready in at_hand {
            first = first.and(ready.sandbox.destroy().await);
        }
        first
    }

    fn at_hand(&self) -> std::sync::MutexGuard<'_, Vec<Ready>> {
        self.at_hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the context of a box that has just begun. One in which that fails is of no use.
    async fn make_ready(&self, sandbox: Sandbox) -> Result<Ready> {
        match sandbox.create_context(self.spec.context.clone()).await {
            Ok(context) => Ok(Ready { sandbox, context }),
            Err(e) => {
                let _ = sandbox.destroy().await;
                Err(e)
            }
        }
    }

    /// A box begins anew, and is at hand again. If it cannot, it goes, and the next one is a new one.
    async fn renew(&self, sandbox: Sandbox) {
        if sandbox.reset().await.is_err() {
            let _ = sandbox.destroy().await;
            return;
        }
        if let Ok(ready) = self.make_ready(sandbox).await {
            self.at_hand().push(ready);
        }
    }
}

impl Shot {
    /// The box.
    pub fn sandbox(&self) -> Result<&Sandbox> {
        self.ready.as_ref().map(|ready| &ready.sandbox).ok_or_else(given_back)
    }

    /// The context in it, in which nothing was run.
    pub fn context(&self) -> Result<&ContextInfo> {
        self.ready.as_ref().map(|ready| &ready.context).ok_or_else(given_back)
    }

    /// Gives the box back: it begins anew while the caller goes on.
    pub fn done(mut self) {
        let (shots, turn) = (self.shots.clone(), self.turn.take());
        if let Some(ready) = self.ready.take() {
            shots.house.clone().chore(async move {
                shots.renew(ready.sandbox).await;
                drop(turn);
            });
        }
    }
}

impl Drop for Shot {
    fn drop(&mut self) {
        let (house, turn) = (self.shots.house.clone(), self.turn.take());
        // Without anybody to do it, it is left to its owner, or to `glass kill`.
        let is_possible = tokio::runtime::Handle::try_current().is_ok();
        if let Some(ready) = self.ready.take().filter(|_| is_possible) {
            house.chore(async move {
                let _ = ready.sandbox.destroy().await;
                drop(turn);
            });
        }
    }
}

fn given_back() -> Error {
    Error::new(ErrorKind::Gone, "the box was given back")
}
