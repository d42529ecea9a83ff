//! A command, as its caller sees it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use glasshouse_protocol::limits::{DATA_CHUNK_MAX, STDIN_CREDIT};
use glasshouse_protocol::{Chunk, CodeError, CodeResult, Exit, ExitReport, OutputStream, Request, TtySize};
use tokio::sync::{Semaphore, mpsc};

use crate::client::{Link, StreamSender};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{RESULT_LINE_BYTES, RESULTS_BYTES};

/// What happens to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum ExecEvent {
    /// It wrote something.
    Output(Chunk),
    /// What it wrote between these places was not kept.
    Gap {
        /// First byte that is missing.
        from: u64,
        /// First byte after the gap.
        to: u64,
    },
    /// Code told something: the value of its last expression, what it had shown, or why it failed.
    Result(CodeResult),
    /// A reader that does not follow has all there is.
    UpToDate {
        /// The place of the next byte.
        offset: u64,
    },
    /// It ended.
    Ended(ExitReport),
}

/// A command. Dropping it kills the command, unless that runs in the background.
#[derive(Debug)]
pub struct Exec {
    id: u64,
    events: mpsc::Receiver<ExecEvent>,
    input: ExecInput,
    kept_bytes: u64,
    over: bool,
    /// It was over before it began.
    stillborn: bool,
    /// What code told and has not been taken.
    results: Results,
}

impl Exec {
    pub(crate) fn new(id: u64, events: mpsc::Receiver<ExecEvent>, input: ExecInput, kept_bytes: u64) -> Exec {
        Exec { id, events, input, kept_bytes, over: false, stillborn: false, results: Results::default() }
    }

    pub(crate) fn stillborn(self) -> Exec {
        Exec { stillborn: true, ..self }
    }

    /// Whether nothing was started: its end says why, and comes next.
    pub fn is_stillborn(&self) -> bool {
        self.stillborn
    }

    /// Its number in the box.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What happens next. After the end: `None`.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        loop {
            if let Some(result) = self.results.next() {
                return Some(ExecEvent::Result(result));
            }
            if self.over {
                return None;
            }
            let event = self.events.recv().await.unwrap_or_else(|| {
                let why = self.input.link.closed().unwrap_or_else(|| "the link was closed".into());
                ExecEvent::Ended(ExitReport::never_ran(Exit::BoxGone { why }))
            });
            self.over = matches!(event, ExecEvent::Ended(_) | ExecEvent::UpToDate { .. });
            match event {
                ExecEvent::Output(chunk) if chunk.stream == OutputStream::Results => {
                    self.results.push(&chunk.bytes);
                }
                ExecEvent::Gap { .. } => {
                    self.results.lose();
                    return Some(event);
                }
                event => return Some(event),
            }
        }
    }

    /// The way to its stdin, its terminal, and to end it.
    pub fn input(&self) -> ExecInput {
        self.input.clone()
    }

    /// Waits for the end and gathers the output: head and tail of what is too long.
    pub async fn collect(mut self) -> ExecOutput {
        let (mut stdout, mut stderr) = (HeadTail::new(self.kept_bytes), HeadTail::new(self.kept_bytes));
        let mut report = None;
        let (mut results, mut room) = (Vec::new(), RESULTS_BYTES);
        while let Some(event) = self.next().await {
            match event {
                ExecEvent::Output(chunk) => match chunk.stream {
                    OutputStream::Stdout => stdout.push(&chunk.bytes),
                    OutputStream::Stderr => stderr.push(&chunk.bytes),
                    OutputStream::Results => {}
                },
                ExecEvent::Result(result) => {
                    // The last word of a run is its error, or its value: what is too much beside that is let go.
                    let cost = cost_of(&result);
                    let is_last_word = !matches!(result, CodeResult::Display(_));
                    if cost <= room || is_last_word {
                        room = room.saturating_sub(cost);
                        results.push(result);
                    }
                }
                ExecEvent::Gap { .. } | ExecEvent::UpToDate { .. } => {}
                ExecEvent::Ended(ended) => report = Some(ended),
            }
        }
        let report = report
            .unwrap_or_else(|| ExitReport::never_ran(Exit::BoxGone { why: "its end was not told".into() }));
        ExecOutput {
            exec: self.id,
            stdout: stdout.keep(report.stdout_bytes),
            stderr: stderr.keep(report.stderr_bytes),
            report,
            results,
        }
    }
}

fn cost_of(result: &CodeResult) -> usize {
    match result {
        CodeResult::Value(bundle) | CodeResult::Display(bundle) => {
            bundle.data.iter().map(|(mime, data)| mime.len() + data.len()).sum()
        }
        CodeResult::Error(error) => error.traceback.iter().map(String::len).sum(),
    }
}

/// Lines of results, as they come.
#[derive(Debug, Default)]
struct Results {
    line: Vec<u8>,
    /// The rest of this line means nothing: some of it is missing, or it is too long.
    broken: bool,
    ready: VecDeque<CodeResult>,
}

impl Results {
    fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let whole = piece.ends_with(b"\n");
            if self.line.len() + piece.len() > RESULT_LINE_BYTES {
                self.lose();
            } else if !self.broken {
                self.line.extend_from_slice(piece);
            }
            if whole {
                let broken = std::mem::take(&mut self.broken);
                let line = std::mem::take(&mut self.line);
                let understood = serde_json::from_slice(&line).ok().filter(|_| !broken);
                self.ready.push_back(understood.unwrap_or_else(not_understood));
            }
        }
    }

    /// What there is of a line is not all of it.
    fn lose(&mut self) {
        self.line = Vec::new();
        self.broken = true;
    }

    fn next(&mut self) -> Option<CodeResult> {
        self.ready.pop_front()
    }
}

/// What code told is its own affair, but that it makes no sense is said.
fn not_understood() -> CodeResult {
    CodeResult::Error(CodeError {
        name: "ResultLost".into(),
        value: "a result of this run was too long, was not kept, or makes no sense".into(),
        traceback: Vec::new(),
    })
}

/// The way into a command.
#[derive(Clone)]
pub struct ExecInput {
    exec: u64,
    link: Link,
    sender: StreamSender,
    room: Arc<Semaphore>,
    fed: Fed,
}

/// What was written to a command's stdin, for the record.
pub(crate) type Fed = Arc<Mutex<HeadTail>>;

impl std::fmt::Debug for ExecInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecInput").field("exec", &self.exec).finish_non_exhaustive()
    }
}

impl ExecInput {
    pub(crate) fn new(
        exec: u64,
        link: Link,
        sender: StreamSender,
        room: Arc<Semaphore>,
        fed: Fed,
    ) -> ExecInput {
        ExecInput { exec, link, sender, room, fed }
    }

    /// Room for what the guest is willing to take.
    pub(crate) fn first_room() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(STDIN_CREDIT as usize))
    }

    /// Writes to its stdin, as fast as it reads. What it does not want to read any more is dropped.
    pub async fn write(&self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(DATA_CHUNK_MAX) {
            let gone = |_| Error::new(ErrorKind::Gone, "the command does not read any more");
            self.room.acquire_many(piece.len() as u32).await.map_err(gone)?.forget();
            self.sender.data(piece).await?;
            self.fed.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
        }
        Ok(())
    }

    /// Ends its stdin.
    pub async fn close(&self) -> Result<()> {
        self.sender.end().await
    }

    /// Tells its terminal another size.
    pub async fn resize(&self, size: TtySize) -> Result<()> {
        self.sender.request(&Request::Resize(size)).await
    }

    /// Sends a signal to its main process.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.link.call(&Request::Signal { exec: self.exec, signal, tree: false }).await.map(|_| ())
    }

    /// Kills its whole tree.
    pub async fn kill(&self) -> Result<()> {
        self.link.call(&Request::Kill { exec: self.exec }).await.map(|_| ())
    }
}

/// A command that has ended, and what it wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecOutput {
    /// Its number.
    pub exec: u64,
    /// How it ended.
    pub report: ExitReport,
    /// Standard output, or the terminal.
    pub stdout: Kept,
    /// Standard error.
    pub stderr: Kept,
    /// What code told beside that.
    pub results: Vec<CodeResult>,
}

/// What was kept of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// All of it; or head and tail.
    pub bytes: Vec<u8>,
    /// How much there was.
    pub total: u64,
    /// Where in `bytes` something is missing.
    pub gap_at: Option<usize>,
}

/// The first and the last bytes of a stream.
#[derive(Debug)]
pub(crate) struct HeadTail {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    half: usize,
    total: u64,
}

impl HeadTail {
    pub(crate) fn new(kept_bytes: u64) -> HeadTail {
        HeadTail { head: Vec::new(), tail: VecDeque::new(), half: (kept_bytes / 2) as usize, total: 0 }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Head and tail.
    pub(crate) fn parts(self) -> (Vec<u8>, Vec<u8>) {
        (self.head, self.tail.into())
    }

    fn keep(self, total: u64) -> Kept {
        let total = total.max(self.total);
        let at = self.head.len();
        let mut bytes = self.head;
        bytes.extend(self.tail);
        let gap_at = (bytes.len() as u64 != total).then_some(at);
        Kept { bytes, total, gap_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_whole_however_they_are_cut() {
        let line = br#"{"value":{"data":{"text/plain":"2"}}}"#;
        let mut results = Results::default();
        line.iter().for_each(|byte| results.push(&[*byte]));
        assert_eq!(results.next(), None);
        results.push(b"\nnonsense\n");
        let Some(CodeResult::Value(bundle)) = results.next() else { panic!("it is a value") };
        assert_eq!(bundle.text(), Some("2"));
        assert_eq!(results.next(), Some(not_understood()));
        results.lose();
        results.push(&[&line[10..], b"\n", &line[..], b"\n"].concat());
        assert_eq!(results.next(), Some(not_understood()));
        assert!(matches!(results.next(), Some(CodeResult::Value(_))));
    }

    fn kept(limit: u64, pieces: &[&[u8]]) -> Kept {
        let mut parts = HeadTail::new(limit);
        pieces.iter().for_each(|piece| parts.push(piece));
        parts.keep(0)
    }

    #[test]
    fn what_fits_is_whole() {
        let kept = kept(10, &[b"abc", b"", b"defghi"]);
        assert_eq!(kept, Kept { bytes: b"abcdefghi".to_vec(), total: 9, gap_at: None });
    }

    #[test]
    fn head_and_tail_stay_of_what_does_not() {
        let check = |pieces: &[&[u8]]| {
            assert_eq!(kept(6, pieces), Kept { bytes: b"012789".to_vec(), total: 10, gap_at: Some(3) });
        };
        check(&[b"0123456789"]);
        check(&[b"01", b"23456", b"7", b"89"]);
        check(&[b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8", b"9"]);
    }
}
