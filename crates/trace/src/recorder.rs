//! The recorder: a writer that never fails its caller.
//!
//! What it cannot write it counts, and says so in the trace with a `lost` event as soon as it can write
//! again, at the latest when it is dropped. A lock that somebody sits on is waited for once, and then only
//! looked at.
//!
//! Whoever must not be held up meanwhile, such as a task of a loop, begins an event and looks again later:
//! ```text
//!  begin ──▶ over: recorded, or lost
//!    └─▶ waits ── go_on ──▶ over
//!          ▲        │
//!          └────────┘ until `lock_wait_max` has passed
//! ```
//! Events stay in their order: there is one at most that waits, and another one ends its wait.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind};
use crate::event::{Event, Step};
use crate::limits::{LOCK_GLANCE, LOCK_PAUSE_MAX, SECRET_BYTES_MIN, SECRETS_BYTES_MAX, SECRETS_MAX};
use crate::payload::Payload;
use crate::writer::{Ready, Settings, Settled, Writer};

/// Records events, and counts those that it could not.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    hidden: Hidden,
    writer: Option<Writer>,
    waiting: Option<Waiting>,
    lost_total: u64,
    /// Lost, and not yet on record as lost.
    pending: Pending,
    /// Why the last event could not be written, if it could not.
    failing: Option<ErrorKind>,
    why: Option<String>,
}

/// The secrets that are looked for.
#[derive(Default)]
struct Hidden {
    secrets: HashSet<Vec<u8>>,
    bytes: usize,
    /// There are more than can be looked for. Nothing says so yet, or the trace does.
    withheld: Option<Told>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    NotYet,
    OnRecord,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hidden {{ {} secrets, withheld: {:?} }}", self.secrets.len(), self.withheld)
    }
}

/// How far an event has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Turn {
    /// It has its number in the trace, or is counted as lost.
    Over(Option<u64>),
    /// Somebody else sits on the trace: look again, after `LOCK_PAUSE_MAX`.
    Waits,
}

/// An event that somebody else's lock keeps from being written.
#[derive(Debug)]
struct Waiting {
    ready: Ready,
    bytes: u64,
    last_words: bool,
    until: Instant,
}

#[derive(Debug, Default)]
struct Pending {
    events: u64,
    bytes: u64,
    why: String,
}

impl Recorder {
    /// A recorder of this trace. It cannot fail: what goes wrong with the trace shows in `lost`.
    pub fn new(mut settings: Settings) -> Self {
        let secrets = std::mem::take(&mut settings.redaction.secrets);
        let mut recorder = Recorder {
            settings,
            hidden: Hidden::default(),
            writer: None,
            waiting: None,
            lost_total: 0,
            pending: Pending::default(),
            failing: None,
            why: None,
        };
        recorder.hide(secrets.iter().map(Vec::as_slice));
        if let Some(e) = recorder.writer().err() {
            recorder.note(&e);
        }
        recorder
    }

    /// From now on these secrets are not written down, either. There is room for `SECRETS_MAX` of them, and
    /// `SECRETS_BYTES_MAX`; to forget one would be to let it through. So with one more than that, no text of a caller's and no
    /// content of a box's is written down any more, by this recorder: of each event, what is left is that it happened.
    pub fn hide<'a>(&mut self, secrets: impl Iterator<Item = &'a [u8]>) {
        for secret in secrets {
            let hidden = &mut self.hidden;
            let is_known = secret.len() < SECRET_BYTES_MIN || hidden.secrets.contains(secret);
            if is_known || hidden.withheld.is_some() {
                continue;
            }
            if hidden.secrets.len() == SECRETS_MAX || hidden.bytes + secret.len() > SECRETS_BYTES_MAX {
                hidden.withheld = Some(Told::NotYet);
                self.writer.iter_mut().for_each(Writer::withhold);
                continue;
            }
            hidden.bytes += secret.len();
            hidden.secrets.insert(secret.to_vec());
            self.writer.iter_mut().for_each(|writer| writer.hide(secret));
        }
    }

    /// Records an event and returns its number in the trace, or counts it as lost. Waits for whoever sits on the trace.
    pub fn record(&mut self, event: Event) -> Option<u64> {
        let mut turn = self.begin(event);
        loop {
            match turn {
                Turn::Over(seq) => return seq,
                Turn::Waits => std::thread::sleep(LOCK_PAUSE_MAX),
            }
            turn = self.go_on();
        }
    }

    /// The same for whoever must not be held up: if the event waits, `go_on` is to be called until it does not.
    pub fn begin(&mut self, event: Event) -> Turn {
        self.begin_with(event, None)
    }

    /// The same for a step whose changes were settled before.
    pub fn begin_step(&mut self, step: Step, changes: Settled) -> Turn {
        self.begin_with(Event::Step(Box::new(step)), Some(changes))
    }

    /// Looks again whether the event that waits can be written.
    pub fn go_on(&mut self) -> Turn {
        self.advance(Duration::ZERO)
    }

    /// Looks through what a step changed, and stores it, ahead of the step. If that does not go, they have to be recorded
    /// with it, and the reason will show then.
    pub fn settle_changes(&self, changes: Payload) -> Option<Settled> {
        self.writer.as_ref()?.settle_changes(changes).ok()
    }

    fn begin_with(&mut self, event: Event, changes: Option<Settled>) -> Turn {
        self.give_up_waiting();
        let last_words = matches!(event, Event::BoxEnded { .. });
        let kept = |payload: &&Payload| payload.bytes_total.saturating_sub(payload.bytes_cut);
        let bytes = event.payloads().iter().map(kept).fold(0, u64::saturating_add);
        let wait = self.wait_max();
        match self.writer().and_then(|writer| writer.prepare(event, changes)) {
            Ok(ready) => {
                self.waiting = Some(Waiting { ready, bytes, last_words, until: Instant::now() + wait });
                self.advance(wait.min(LOCK_GLANCE))
            }
            Err(e) => {
                self.lose(bytes, &e);
                Turn::Over(None)
            }
        }
    }

    /// Writes what waits if the lock can be had within this time.
    fn advance(&mut self, wait: Duration) -> Turn {
        let Some(waiting) = self.waiting.take() else { return Turn::Over(None) };
        match self.write(&waiting, wait) {
            Ok(seq) => Turn::Over(Some(seq)),
            Err(e) if e.kind == ErrorKind::Busy && Instant::now() < waiting.until => {
                self.waiting = Some(waiting);
                Turn::Waits
            }
            Err(e) => {
                self.lose(waiting.bytes, &e);
                Turn::Over(None)
            }
        }
    }

    /// What was lost before first, so that it is told where it is missing.
    fn write(&mut self, waiting: &Waiting, wait: Duration) -> Result<u64, Error> {
        if self.failing != Some(ErrorKind::Full) || waiting.last_words {
            match self.confess(wait) {
                Err(e) if e.kind == ErrorKind::Busy => return Err(e),
                Err(e) => self.note(&e),
                Ok(()) => {}
            }
        }
        let seq = self.writer()?.append_ready(&waiting.ready, wait)?;
        self.failing = None;
        Ok(seq)
    }

    /// Whoever waited for it looks no more: it is written now, or lost.
    fn give_up_waiting(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.until = Instant::now();
            let _ = self.advance(Duration::ZERO);
        }
    }

    fn lose(&mut self, bytes: u64, error: &Error) {
        self.lost_total += 1;
        if self.pending.events == 0 {
            self.pending.why = error.with_source();
        }
        self.pending.events += 1;
        self.pending.bytes += bytes;
        self.note(error);
    }

    /// How many events were lost so far, whether the trace says so already or not.
    pub fn lost(&self) -> u64 {
        self.lost_total
    }

    /// Why the last of them was lost; also set when the trace could not be opened, before anything was lost.
    pub fn why_lost(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// Puts on record what was lost, or will be. If that fails too, it stays for the next time.
    fn confess(&mut self, wait: Duration) -> Result<(), Error> {
        if self.hidden.withheld == Some(Told::NotYet) {
            let why = format!(
                "from here on, all texts and contents are withheld: more than {SECRETS_MAX} values of variables, or \
                 {SECRETS_BYTES_MAX} bytes of them, would have to be looked for"
            );
            self.writer()?.append_within(Event::Lost { events: 0, bytes: 0, why }, wait)?;
            self.hidden.withheld = Some(Told::OnRecord);
        }
        if self.pending.events == 0 {
            return Ok(());
        }
        let Pending { events, bytes, why } = &self.pending;
        let event = Event::Lost { events: *events, bytes: *bytes, why: why.clone() };
        self.writer()?.append_within(event, wait)?;
        self.pending = Pending::default();
        self.failing = None;
        Ok(())
    }

    /// How long the next event may wait.
    fn wait_max(&self) -> Duration {
        match self.failing {
            Some(ErrorKind::Busy) => Duration::ZERO,
            _ => self.settings.limits.lock_wait_max,
        }
    }

    fn writer(&mut self) -> Result<&mut Writer, Error> {
        match &mut self.writer {
            Some(writer) => Ok(writer),
            closed => {
                let mut writer = Writer::open(self.settings.clone())?;
                self.hidden.secrets.iter().for_each(|secret| writer.hide(secret));
                if self.hidden.withheld.is_some() {
                    writer.withhold();
                }
                Ok(closed.insert(writer))
            }
        }
    }

    fn note(&mut self, error: &Error) {
        self.failing = Some(error.kind);
        self.why = Some(error.with_source());
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.give_up_waiting();
        // Nobody can look again for us: what was lost is told, or never.
        let wait = self.wait_max();
        let _ = self.confess(wait);
    }
}
