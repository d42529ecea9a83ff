//! A box in the state after one of its own steps.

use glasshouse_trace::trajectory::{Divergence, Way};

use super::{Record, ReplayOptions, impossible};
use crate::error::{Error, ErrorKind, Result};
use crate::sandboxes::Sandboxes;
use crate::spec::{Recording, RuntimeKind, SandboxInfo};

/// How a box came to be in the state after one of its steps.
#[derive(Debug, Clone, Default)]
pub struct Jumped {
    /// The snapshot that it was put on, if it was put on one.
    pub snapshot: Option<String>,
    /// How many steps were done again.
    pub again: usize,
    /// The first of them that went another way.
    pub divergence: Option<Divergence>,
}

impl Sandboxes {
    /// Puts a box into the state after one of its steps; 0 is what it began with.
    pub async fn jump(&self, name: &str, step: u64) -> Result<Jumped> {
        let info = self.info(name).await?;
        if step == 0 {
            self.reset(&info.id).await?;
            return Ok(Jumped::default());
        }
        // A snapshot of a step holds its state, whatever was undone since.
        if let Some(snapshot) = self.snapshot_of_step(&info.id, step).await? {
            self.restore(&info.id, &snapshot).await?;
            return Ok(Jumped { snapshot: Some(snapshot), ..Jumped::default() });
        }
        let mut record = Record::open(self, &info.id)?;
        record.catch_up()?;
        let Some(Way { trajectory, numbers, snapshot }) = record.steps.finish_at(step) else {
            return Err(no_such_step(&info, step));
        };
        // What cannot be done again must not cost the box what it has.
        if let Some((index, why)) = impossible(&self.get(&info.id).await?, &trajectory.steps) {
            let number = numbers.get(index).copied().filter(|number| *number > 0).unwrap_or(index as u64 + 1);
            return Err(beyond(&info, step, number, &why));
        }
        if info.runtime != RuntimeKind::Native && !info.volumes.is_empty() {
            let message = format!(
                "step {step} of box {} cannot be reached without a snapshot of it: the engine makes the places of volumes \
                 among the files of the container, so it does not begin as it is on record; the box is as it was",
                info.id
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let recorded = trajectory.base.as_ref().and_then(|base| base.digest.clone());
        if let Some(expected) = recorded.filter(|_| info.recording != Recording::Commands) {
            let actual = match &snapshot {
                None => self.origin_digest(&info.id).await,
                Some(below) => self.digest(below).await.map(|found| found.digest),
            };
            if let Some(actual) = actual.ok().filter(|actual| *actual != expected) {
                return Err(elsewhere(&info, step, &actual, &expected));
            }
        }
        match &snapshot {
            None => self.reset(&info.id).await?,
            Some(below) => {
                self.restore(&info.id, below).await.map_err(|e| stands_on(&info, step, below, e))?
            }
        };
        let sandbox = self.get(&info.id).await?;
        let options = ReplayOptions::default();
        let replayed = self.replay(&sandbox, &trajectory, options).await?.run(|_| {}).await?;
        Ok(Jumped { snapshot, again: replayed.done, divergence: replayed.divergences.into_iter().next() })
    }

    async fn snapshot_of_step(&self, id: &str, step: u64) -> Result<Option<String>> {
        let snapshots = self.snapshots().await?;
        let found = snapshots.into_iter().rev().find(|kept| kept.from == id && kept.step == Some(step));
        Ok(found.map(|kept| kept.id))
    }
}

fn no_such_step(info: &SandboxInfo, step: u64) -> Error {
    let id = &info.id;
    let message = match info.recording != Recording::Commands {
        true => format!("box {id} has no step {step} on record; `glass log {id}` shows its steps"),
        false => {
            format!("box {id} does not record steps; make it with `--record steps`, or `--record snapshots`")
        }
    };
    Error::new(ErrorKind::NotFound, message)
}

/// Why a step cannot be reached: one on the way to it cannot be done again.
fn beyond(info: &SandboxInfo, step: u64, on_the_way: u64, why: &Error) -> Error {
    let message = format!(
        "step {step} of box {} cannot be reached: step {on_the_way} {why}; the box is as it was",
        info.id
    );
    Error::new(why.kind(), message)
}

/// Why steps cannot be done again on what a box would go back to.
fn elsewhere(info: &SandboxInfo, step: u64, actual: &str, expected: &str) -> Error {
    let message = format!(
        "step {step} of box {} cannot be reached: what its steps began with has the digest {actual} now, and {expected} on \
         record; the box is as it was",
        info.id
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Why a box cannot be put on the snapshot that a step stands on.
fn stands_on(info: &SandboxInfo, step: u64, snapshot: &str, error: Error) -> Error {
    let message = format!(
        "step {step} of box {} was done after a restore of snapshot {snapshot:?}, and cannot be reached without it: {error}",
        info.id
    );
    Error::new(error.kind(), message)
}
