//! The recorder: a writer that never fails its caller.
//!
//! What it cannot write it counts, and says so in the trace with a `lost` event as soon as it can write
//! again, at the latest when it is dropped. A lock that somebody sits on is waited for once, and then only
//! looked at.

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::event::{Event, Step};
use crate::payload::Payload;
use crate::writer::{Settings, Settled, Writer};

/// Records events, and counts those that it could not.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    writer: Option<Writer>,
    lost_total: u64,
    /// Lost, and not yet on record as lost.
    pending: Pending,
    /// Why the last event could not be written, if it could not.
    failing: Option<ErrorKind>,
    why: Option<String>,
}

#[derive(Debug, Default)]
struct Pending {
    events: u64,
    bytes: u64,
    why: String,
}

impl Recorder {
    /// A recorder of this trace. It cannot fail: what goes wrong with the trace shows in `lost`.
    pub fn new(settings: Settings) -> Self {
        let mut recorder = Recorder {
            settings,
            writer: None,
            lost_total: 0,
            pending: Pending::default(),
            failing: None,
            why: None,
        };
        match Writer::open(recorder.settings.clone()) {
            Ok(writer) => recorder.writer = Some(writer),
            Err(e) => recorder.note(&e),
        }
        recorder
    }

    /// Records an event and returns its number in the trace, or counts it as lost.
    pub fn record(&mut self, event: Event) -> Option<u64> {
        self.record_with(event, None)
    }

    /// Looks through what a step changed, and stores it, ahead of the step. If that does not go, they have to be recorded
    /// with it, and the reason will show then.
    pub fn settle_changes(&self, changes: Payload) -> Option<Settled> {
        self.writer.as_ref()?.settle_changes(changes).ok()
    }

    /// Records a step whose changes were settled before.
    pub fn record_step(&mut self, step: Step, changes: Settled) -> Option<u64> {
        self.record_with(Event::Step(Box::new(step)), Some(changes))
    }

    fn record_with(&mut self, event: Event, changes: Option<Settled>) -> Option<u64> {
        let last_words = matches!(event, Event::BoxEnded { .. });
        let kept = |payload: &&Payload| payload.bytes_total.saturating_sub(payload.bytes_cut);
        let bytes = event.payloads().iter().map(kept).fold(0, u64::saturating_add);
        if self.failing != Some(ErrorKind::Full) || last_words {
            self.confess();
        }
        match self.append(event, changes) {
            Ok(seq) => Some(seq),
            Err(e) => {
                self.lost_total += 1;
                if self.pending.events == 0 {
                    self.pending.why = e.with_source();
                }
                self.pending.events += 1;
                self.pending.bytes += bytes;
                self.note(&e);
                None
            }
        }
    }

    /// How many events were lost so far, whether the trace says so already or not.
    pub fn lost(&self) -> u64 {
        self.lost_total
    }

    /// Why the last of them was lost; also set when the trace could not be opened, before anything was lost.
    pub fn why_lost(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Puts on record what was lost. If that fails too, it stays for the next time.
    fn confess(&mut self) {
        if self.pending.events == 0 {
            return;
        }
        let Pending { events, bytes, why } = &self.pending;
        let event = Event::Lost { events: *events, bytes: *bytes, why: why.clone() };
        match self.append(event, None) {
            Ok(_) => self.pending = Pending::default(),
            Err(e) => self.note(&e),
        }
    }

    fn append(&mut self, event: Event, changes: Option<Settled>) -> Result<u64, Error> {
        let wait = match self.failing {
            Some(ErrorKind::Busy) => Duration::ZERO,
            _ => self.settings.limits.lock_wait_max,
        };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            closed => closed.insert(Writer::open(self.settings.clone())?),
        };
        let seq = writer.append_within(event, changes, wait)?;
        self.failing = None;
        Ok(seq)
    }

    fn note(&mut self, error: &Error) {
        self.failing = Some(error.kind);
        self.why = Some(error.with_source());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.confess();
    }
}
