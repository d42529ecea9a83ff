//! The writer: appends events to one trace, beside other processes that do the same.
//!
//! An append is, in this order: replace secrets, store long payloads, encode the event; then under the lock
//! learn the end of the trace (if somebody else wrote since), write the line with one call, note it in the
//! head. What is slow happens before the lock, and no line names a payload that is not stored yet. There is
//! no fsync: a record survives the death of any process, and not that of the machine.
//!
//! A writer that dies within its line leaves a line without a newline. Whoever appends next cuts it off and
//! says so with a `repaired` event; a write that the disk took only a part of is undone on the spot.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::blobs::{Blobs, create_dir};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Holds};
use crate::hash::Hash;
use crate::head::{self, Head};
use crate::limits::{LOCK_PAUSE_MAX, Limits, TRACE_BYTES_RESERVE};
use crate::line::{self, Prefix};
use crate::payload::{Content, Gap, Payload};
use crate::redaction::{Document, Edges, Redaction, Redactor};
use crate::tail::{self, TailError};

/// The name of the file in the directory of a trace.
pub(crate) const FILE: &str = "trace.jsonl";

/// What a writer has to be told.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The directory of the trace.
    pub dir: PathBuf,
    /// The blob store, shared by all traces of a home.
    pub blobs: PathBuf,
    /// What must not be on record.
    pub redaction: Redaction,
    /// The bounds.
    pub limits: Limits,
}

/// Appends events to a trace.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    blobs: Blobs,
    redactor: Redactor,
    limits: Limits,
    files: Files,
    /// The end of the trace after our own last append.
    end: Option<End>,
    /// The system refused the last append; the file that we hold may be no good any more.
    stale: bool,
}

#[derive(Debug)]
struct Files {
    trace: File,
    head: File,
}

/// Where the next line goes and what it follows.
#[derive(Debug, Clone, Copy)]
struct End {
    bytes: u64,
    seq: u64,
    prev: Hash,
}

/// What a step changed, looked through and stored ahead of the line that will name it.
#[derive(Debug)]
pub struct Settled(Payload);

/// An event on its way under the lock.
#[derive(Debug)]
pub(crate) struct Ready {
    event: Encoded,
    trace_bytes_max: u64,
}

/// Lines about to be written, and the end they lead to.
struct Batch {
    /// Where they go; what lies behind it in the file is a torn line.
    start: u64,
    bytes: Vec<u8>,
    end: End,
}

impl Writer {
    /// Opens the trace in `settings.dir`, or begins it.
    pub fn open(settings: Settings) -> Result<Writer> {
        let Settings { dir, blobs, redaction, limits } = settings;
        create_dir(&dir).map_err(|e| Error::io("create", &dir, e))?;
        let path = dir.join(FILE);
        let files = Files::open(&path)?;
        let redactor = redaction.compile();
        Ok(Writer {
            path,
            blobs: Blobs::new(blobs),
            redactor,
            limits: limits.clamped(),
            files,
            end: None,
            stale: false,
        })
    }

    /// Appends an event and returns its number.
    pub fn append(&mut self, event: Event) -> Result<u64> {
        let wait = self.limits.lock_wait_max;
        self.append_within(event, wait)
    }

    /// From now on this secret is not written down, either.
    pub(crate) fn hide(&mut self, secret: &[u8]) {
        self.redactor.hide(secret);
    }

    /// From now on no text and no content is written down.
    pub(crate) fn withhold(&mut self) {
        self.redactor.withhold();
    }

    /// Looks through what a step changed, and stores it. It is the slowest part of its record, and need not wait until
    /// all of the step is known.
    pub(crate) fn settle_changes(&self, changes: Payload) -> Result<Settled> {
        self.settle(Holds::Changes, changes).map(Settled)
    }

    /// The same, waiting no longer than this for other writers.
    pub(crate) fn append_within(&mut self, event: Event, wait: Duration) -> Result<u64> {
        let ready = self.prepare(event, None)?;
        self.append_ready(&ready, wait)
    }

    /// The same for an event that was made ready before.
    pub(crate) fn append_ready(&mut self, ready: &Ready, wait: Duration) -> Result<u64> {
        if self.stale {
            self.reopen()?;
        }
        match self.append_locked(ready, wait) {
            Err(e) if e.kind == ErrorKind::Gone => {
                self.reopen()?;
                self.append_locked(ready, wait)
            }
            Err(e) => {
                self.stale = e.kind == ErrorKind::Io;
                Err(e)
            }
            ok => ok,
        }
    }

    /// Opens the trace again: it may have been put back since. Its directory is not ours to create a second
    /// time.
    fn reopen(&mut self) -> Result<()> {
        self.end = None;
        self.files = Files::open(&self.path).map_err(|e| match e.kind {
            ErrorKind::NotFound => Error { kind: ErrorKind::Gone, ..e },
            _ => e,
        })?;
        self.stale = false;
        Ok(())
    }

    /// Does all that needs no lock. A step can have its changes from before.
    pub(crate) fn prepare(&self, mut event: Event, changes: Option<Settled>) -> Result<Ready> {
        if let Event::Unknown(event) = &event {
            let message = format!("write an event that this version does not know: {}", event.kind);
            return Err(Error::new(ErrorKind::Unwritable, message));
        }
        let asked = match &event {
            Event::ExecStarted(started) => Some(started.asked()),
            _ => None,
        };
        let is_ours = matches!(event, Event::Lost { .. } | Event::BoxEnded { .. });
        event.each_text(&mut |text| {
            let redacted = if is_ours { self.redactor.own_text(text) } else { self.redactor.text(text) };
            if let std::borrow::Cow::Owned(redacted) = redacted {
                *text = redacted;
            }
        });
        if let (Event::ExecStarted(started), Some(asked)) = (&mut event, asked) {
            started.redacted = started.has_mark().then(|| started.asked() != asked);
        }
        for (holds, payload) in event.payloads_mut() {
            *payload = self.settle(holds, std::mem::take(payload))?;
        }
        if let (Event::Step(step), Some(Settled(changes))) = (&mut event, changes)
            && let Some(state) = &mut step.state
        {
            state.changes = Some(changes);
        }
        let reserve = match event {
            Event::Lost { .. } | Event::BoxEnded { .. } => TRACE_BYTES_RESERVE,
            _ => 0,
        };
        let event = encode(&event)?;
        Ok(Ready { event, trace_bytes_max: self.limits.trace_bytes_max.saturating_add(reserve) })
    }

    /// Turns the bytes of a payload into what a line can hold.
    fn settle(&self, holds: Holds, payload: Payload) -> Result<Payload> {
        let mut head = in_memory(payload.head)?;
        let mut tail = in_memory(payload.tail)?;
        let kept = (head.len() + tail.len()) as u64;
        let bytes_total = payload.bytes_total.max(kept);
        let mut settled = Payload { bytes_total, bytes_cut: bytes_total - kept, ..Payload::default() };
        if settled.bytes_cut == 0 {
            // Nothing is missing between the two, and a secret may lie across.
            head.append(&mut tail);
        }
        let cut = settled.bytes_cut > 0;
        match holds {
            Holds::Params if !cut => self.redact_json(&mut head, Document::Theirs, &mut settled.redacted),
            Holds::Changes if !cut => self.redact_json(&mut head, Document::Ours, &mut settled.redacted),
            _ => {
                let (before, after) =
                    (Edges { end_cut: cut, start_cut: false }, Edges { start_cut: cut, end_cut: false });
                self.redact(&mut head, payload.gaps, before, &mut settled.redacted);
                self.redact(&mut tail, Vec::new(), after, &mut settled.redacted);
            }
        }
        // Only what was looked through may be cut further, else a cut could hide a secret from the search.
        settled.bytes_cut += bound(&mut head, &mut tail, self.limits.payload_bytes_max);
        settled.head = self.store(head)?;
        settled.tail = self.store(tail)?;
        Ok(settled)
    }

    /// Looks through a text that others may have cut before: at each of their cuts there may be a part of a secret.
    fn redact(&self, text: &mut Vec<u8>, mut gaps: Vec<Gap>, edges: Edges, count: &mut u64) {
        gaps.extend(cut_lines(text));
        gaps.sort_by_key(|gap| gap.place.start);
        if gaps.is_empty() {
            if let Some((redacted, found)) = self.redactor.replace(text, edges) {
                *text = redacted;
                *count += found;
            }
            return;
        }
        let mut out = Vec::with_capacity(text.len());
        let (mut done, mut start_cut) = (0, edges.start_cut);
        for Gap { place, goes_on } in gaps {
            let (Some(piece), Some(words)) = (text.get(done..place.start), text.get(place.clone())) else {
                continue;
            };
            self.redact_piece(piece, Edges { start_cut, end_cut: true }, &mut out, count);
            out.extend_from_slice(words);
            (done, start_cut) = (place.end, goes_on);
        }
        self.redact_piece(&text[done..], Edges { start_cut, ..edges }, &mut out, count);
        *text = out;
    }

    fn redact_piece(&self, piece: &[u8], edges: Edges, out: &mut Vec<u8>, count: &mut u64) {
        match self.redactor.replace(piece, edges) {
            Some((redacted, found)) => {
                out.extend_from_slice(&redacted);
                *count += found;
            }
            None => out.extend_from_slice(piece),
        }
    }

    fn redact_json(&self, bytes: &mut Vec<u8>, of: Document, count: &mut u64) {
        if let Some((redacted, found)) = self.redactor.replace_in_json(bytes, of) {
            *bytes = redacted;
            *count += found;
        }
    }

    fn store(&self, bytes: Vec<u8>) -> Result<Option<Content>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes.len() > self.limits.inline_bytes_max {
            return self.blobs.put(&bytes).map(|name| Some(Content::Blob(name)));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Content::Text(text))),
            Err(not_text) => self.blobs.put(not_text.as_bytes()).map(|name| Some(Content::Blob(name))),
        }
    }

    fn append_locked(&mut self, ready: &Ready, wait: Duration) -> Result<u64> {
        lock(&self.files.trace, &self.path, wait)?;
        let result = self.write(ready);
        // Closing the file unlocks it too, so nothing hangs on this.
        let _ = self.files.trace.unlock();
        self.end = result.as_ref().ok().copied();
        result.map(|end| end.seq)
    }

    /// Writes under the lock.
    fn write(&self, ready: &Ready) -> Result<End> {
        let failed = |what: &str, e| Error::io(what, &self.path, e);
        let meta = self.files.trace.metadata().map_err(|e| failed("look at", e))?;
        if meta.nlink() == 0 {
            return Err(Error::new(
                ErrorKind::Gone,
                format!("append to {}: it was removed", self.path.display()),
            ));
        }
        let mut batch = match self.end {
            Some(end) if end.bytes == meta.len() => Batch::new(end),
            _ => self.learn(meta.len())?,
        };
        let seq = batch.push(&ready.event);
        // Lines about the end of the trace count as well: they are rare, and this errs on the safe side.
        if batch.bytes.len() > self.limits.line_bytes_max {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("append a line of {} bytes", batch.bytes.len()),
            ));
        }
        if batch.end.bytes > ready.trace_bytes_max {
            return Err(Error::new(
                ErrorKind::Full,
                format!("append to {}: it is full", self.path.display()),
            ));
        }
        if batch.start < meta.len() {
            self.files.trace.set_len(batch.start).map_err(|e| failed("repair", e))?;
        }
        write_once(&self.files.trace, &batch.bytes).map_err(|e| {
            let _ = self.files.trace.set_len(batch.start);
            failed("append to", e)
        })?;
        // The line is on record, and a head that is behind is no lie.
        let _ = head::write(&self.files.head, Head { seq, hash: batch.end.prev });
        Ok(batch.end)
    }

    /// Reads the end of the trace, and notes what is wrong with it in lines of its own.
    fn learn(&self, len: u64) -> Result<Batch> {
        let tail = tail::learn(&self.files.trace, len).map_err(|e| {
            let kind = e.kind();
            match e {
                TailError::Io(e) => Error::io("read", &self.path, e),
                TailError::Corrupt(why) => {
                    Error::new(kind, format!("append to {}: {why}", self.path.display()))
                }
            }
        })?;
        let mut batch = Batch::new(End { bytes: tail.end, seq: tail.seq, prev: tail.prev });
        if tail.torn_bytes > 0 {
            batch.push(&encode(&Event::Repaired { dropped_bytes: tail.torn_bytes })?);
        }
        // Without this the next head would cover up that lines were cut off.
        if let Ok(Some(head)) = head::read(&self.files.head)
            && head.seq > tail.seq
        {
            let why = "the end of the trace was cut off".to_owned();
            batch.push(&encode(&Event::Lost { events: head.seq - tail.seq, bytes: 0, why })?);
        }
        Ok(batch)
    }
}

impl Files {
    fn open(path: &Path) -> Result<Files> {
        let open = |path: &Path, options: &mut OpenOptions| {
            options.read(true).create(true).mode(0o600).open(path).map_err(|e| Error::io("open", path, e))
        };
        Ok(Files {
            trace: open(path, OpenOptions::new().append(true))?,
            head: open(&path.with_file_name(head::FILE), OpenOptions::new().write(true).truncate(false))?,
        })
    }
}

impl Batch {
    fn new(end: End) -> Self {
        Batch { start: end.bytes, bytes: Vec::new(), end }
    }

    /// Adds the line of an event and returns its number.
    fn push(&mut self, event: &Encoded) -> u64 {
        let End { bytes, seq, prev } = self.end;
        let seq = seq + 1;
        let line = line::encode(Prefix { version: event.version, seq, time_ms: now_ms(), prev }, &event.json);
        self.end = End { bytes: bytes + line.len() as u64 + 1, seq, prev: Hash::of(&line) };
        self.bytes.extend_from_slice(&line);
        self.bytes.push(b'\n');
        seq
    }
}

/// Waits for the lock by looking again and again: the system's own waiting has no end, and a stopped process
/// that holds the lock would stop everybody.
fn lock(file: &File, path: &Path, wait: Duration) -> Result<()> {
    let started = Instant::now();
    let mut pause = Duration::from_micros(10);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", path, e)),
            Err(TryLockError::WouldBlock) if started.elapsed() < wait => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LOCK_PAUSE_MAX);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(ErrorKind::Busy, format!("lock {}: others hold it", path.display())));
            }
        }
    }
}

/// One call, so that readers and the death of this process see as little as possible of a part of a line.
fn write_once(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes)? {
        written if written == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

/// An event, as a line holds it.
#[derive(Debug)]
struct Encoded {
    version: u32,
    json: Vec<u8>,
}

fn encode(event: &Event) -> Result<Encoded> {
    let json = serde_json::to_vec(event)
        .map_err(|e| Error::new(ErrorKind::Unwritable, format!("encode an event: {e}")))?;
    Ok(Encoded { version: event.version(), json })
}

fn in_memory(content: Option<Content>) -> Result<Vec<u8>> {
    match content {
        None => Ok(Vec::new()),
        Some(Content::Bytes(bytes)) => Ok(bytes),
        Some(Content::Text(text)) => Ok(text.into_bytes()),
        Some(Content::Blob(name)) => {
            // What is in the store already was not looked through for our secrets.
            let message = format!("write blob {} again: a payload must come as bytes", name.hash);
            Err(Error::new(ErrorKind::Unwritable, message))
        }
    }
}

/// What `search` writes at the end of a line of which it shows the beginning: this, how long it is, and the rest.
const LINE_CUT: (&str, &str) = (" [… ", " bytes]");

/// Where lines of a text end that are not all there.
fn cut_lines(text: &[u8]) -> Vec<Gap> {
    let (words, end) = (LINE_CUT.0.as_bytes(), LINE_CUT.1.as_bytes());
    let mut gaps = Vec::new();
    let mut next = 0;
    // Looked for by the first byte of the dots, which most texts do not have at all.
    while let Some(found) = text[next..].iter().position(|byte| *byte == words[2]) {
        let start = (next + found).saturating_sub(2);
        next += found + 1;
        if !text[start..].starts_with(words) {
            continue;
        }
        let from = start + words.len();
        let line = text[from..].split(|byte| *byte == b'\n').next().unwrap_or_default();
        let count = line.strip_suffix(end).unwrap_or(b"x");
        if count.iter().all(u8::is_ascii_digit) {
            gaps.push(Gap { place: start..from + line.len(), goes_on: false });
        }
    }
    gaps
}

/// Cuts head and tail to `bytes_max` together, and returns how much was cut.
fn bound(head: &mut Vec<u8>, tail: &mut Vec<u8>, bytes_max: usize) -> u64 {
    let before = head.len() + tail.len();
    if before <= bytes_max {
        return 0;
    }
    if tail.is_empty() {
        *tail = head.split_off(head.len() / 2);
    }
    let tail_bytes = tail.len().min(bytes_max / 2);
    tail.drain(..tail.len() - tail_bytes);
    head.truncate(bytes_max - tail_bytes);
    (before - head.len() - tail.len()) as u64
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
