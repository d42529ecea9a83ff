//! A run that is under way: its pipes, what waits to be written to them, and how far the kernel is with it.
//!
//! ```text
//!          busy            execute_input, or anything but a status        idle, and the reply
//!  Asked ────────▶ Taken ───────────────────────────────────────▶ Begun ─────────────────────▶ Over
//! ```
//! A kernel says both `idle` and its reply, on two channels, in any order. All of its output comes before `idle`. One that says
//! neither in time after the other is not waited for: a reply is lost when an interrupt hits a kernel in its own code, and
//! `idle` when nobody has read what a kernel published. Then it is asked what it is, and the end of that answer is the end of
//! this run.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::time::Duration;

use glasshouse_protocol::limits::CODE_BYTES_MAX;
use serde_json::{Value, json};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::channels::{Channel, Heard};
use super::line::Handed;
use super::results;

/// Bytes that wait to be written before the kernel has to stand still, and when it was interrupted and has to answer that.
const WAITING_BYTES_MAX: usize = 8 << 20;
const WAITING_BYTES_MAX_INTERRUPTED: usize = 64 << 20;
/// The longest line that is read of stdin at once.
const INPUT_LINE_MAX: usize = 1 << 20;
/// After this, a kernel that has taken the code counts as having begun, though it has not said so.
const BEGINS: Duration = Duration::from_millis(200);
/// How long one of the two words of the end may be later than the other.
const SECOND_WORD: Duration = Duration::from_secs(1);
/// How long an interrupted run is given to end before its kernel is woken again, and how often it is.
const WAKE_AGAIN: Duration = Duration::from_millis(300);
const WAKES_MAX: u32 = 50;
/// What clients answer for a line when there is none any more.
const END_OF_INPUT: &str = "\u{4}";

/// Where a piece of output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    Stdout,
    Stderr,
    Results,
}

/// The run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) exec: u64,
    /// The number of our request for it.
    request: String,
    pub(crate) outputs: Outputs,
    pub(crate) input: Input,
    /// The kernel has taken it, since then.
    taken: Option<Instant>,
    pub(crate) begun: bool,
    interrupted: bool,
    /// When a kernel that was interrupted is woken again, and how often yet.
    wakes: Option<(Instant, u32)>,
    told_error: bool,
    idle: Option<Instant>,
    replied: Option<(Instant, bool)>,
    /// Our request whose end stands for that of the run.
    stand_in: Option<String>,
    /// What the kernel has written by itself was read to the end.
    pub(crate) drained: bool,
}

/// What is to be done about a run now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// To tell that it has begun.
    Begun,
    /// To wake the kernel, which may not have noticed that it was interrupted.
    Wake,
    /// To ask the kernel for a sign.
    Ask,
    /// To wait no longer for its reply.
    NoReply,
}

impl Run {
    pub(crate) fn new(handed: Handed, request: String) -> io::Result<Run> {
        let Handed { exec, stdin, outputs, code: _ } = handed;
        Ok(Run {
            exec,
            request,
            outputs: Outputs::new(outputs)?,
            input: Input::new(stdin),
            taken: None,
            begun: false,
            interrupted: false,
            wakes: None,
            told_error: false,
            idle: None,
            replied: None,
            stand_in: None,
            drained: false,
        })
    }

    /// Takes a message of the kernel's, as far as it is about this run.
    pub(crate) fn hear(&mut self, heard: Heard) {
        match heard.channel {
            Channel::Iopub if heard.parent == self.request => self.published(&heard),
            Channel::Iopub => self.published_by_other(&heard),
            Channel::Shell if heard.parent == self.request && heard.kind == "execute_reply" => {
                self.replied(&heard.content);
            }
            Channel::Stdin if heard.kind == "input_request" && !self.is_told() => self.asked(heard),
            _ => {}
        }
    }

    fn published(&mut self, heard: &Heard) {
        let content = &heard.content;
        if heard.kind == "status" {
            match content.get("execution_state").and_then(Value::as_str) {
                Some("busy") => drop(self.taken.get_or_insert_with(Instant::now)),
                Some("idle") => drop(self.idle.get_or_insert_with(Instant::now)),
                _ => {}
            }
            return;
        }
        self.taken.get_or_insert_with(Instant::now);
        match heard.kind.as_str() {
            "execute_result" => self.outputs.push(To::Results, results::value(content)),
            "error" => {
                self.told_error = true;
                self.outputs.push(To::Results, results::error(content));
            }
            _ => self.shown(heard),
        }
    }

    /// What an earlier run still had to say, in a thread perhaps, is said now. What ends another request may stand for our own end.
    fn published_by_other(&mut self, heard: &Heard) {
        let is_idle = heard.kind == "status" && heard.content["execution_state"] == "idle";
        if is_idle && self.stand_in.as_ref() == Some(&heard.parent) {
            let note = "[the kernel did not say when it was done: some of its output may be lost]\n";
            self.outputs.push(To::Stderr, note.into());
            self.idle.get_or_insert_with(Instant::now);
        }
        self.shown(heard);
    }

    fn shown(&mut self, heard: &Heard) {
        let content = &heard.content;
        match heard.kind.as_str() {
            "stream" | "display_data" | "update_display_data" if content.is_null() => {
                let note =
                    format!("[a message of the kernel's ({}) is left out: it is no JSON]\n", heard.kind);
                self.outputs.push(To::Stderr, note.into());
            }
            "stream" => {
                let text = content.get("text").and_then(Value::as_str).unwrap_or_default();
                let to = if content["name"] == "stderr" { To::Stderr } else { To::Stdout };
                self.outputs.push(to, text.into());
            }
            "display_data" | "update_display_data" => {
                self.outputs.push(To::Results, results::display(content))
            }
            _ => {}
        }
    }

    fn replied(&mut self, content: &Value) {
        // What a pager would show is shown.
        let payload = content.get("payload").and_then(Value::as_array);
        for page in payload.into_iter().flatten().filter(|said| said["source"] == "page") {
            self.outputs.push(To::Results, results::page(page));
        }
        let is_ok = content["status"] == "ok";
        if !is_ok && !self.told_error {
            // Some say no more of an interrupt than that they have aborted.
            let error = match content.get("ename") {
                Some(_) => content.clone(),
                None if self.interrupted => {
                    json!({ "ename": "Interrupted", "evalue": "the run was interrupted" })
                }
                None => json!({ "ename": "Aborted", "evalue": "the kernel did not run the code to its end" }),
            };
            self.outputs.push(To::Results, results::error(&error));
            self.told_error = true;
        }
        self.replied = Some((Instant::now(), is_ok));
    }

    fn asked(&mut self, question: Heard) {
        let prompt = question.content.get("prompt").and_then(Value::as_str).unwrap_or_default();
        self.outputs.push(To::Stdout, prompt.into());
        self.taken.get_or_insert_with(Instant::now);
        self.input.question = Some(question);
    }

    /// Whether the kernel has begun with it, as far as one can tell, and nobody was told yet.
    pub(crate) fn begins(&mut self, heard: &str) -> bool {
        let begins = !self.begun && self.taken.is_some() && heard != "status";
        self.begun |= begins;
        begins
    }

    /// Whether the kernel has told all of it.
    pub(crate) fn is_told(&self) -> bool {
        self.idle.is_some() && self.replied.is_some()
    }

    /// The code that it ended with.
    pub(crate) fn code(&self) -> u8 {
        u8::from(!self.replied.is_some_and(|(_, is_ok)| is_ok))
    }

    /// Whether so much waits to be written that the kernel has to wait, too.
    pub(crate) fn is_full(&self) -> bool {
        let most = if self.interrupted { WAITING_BYTES_MAX_INTERRUPTED } else { WAITING_BYTES_MAX };
        self.outputs.bytes > most
    }

    /// The next thing that is due by itself, and when.
    pub(crate) fn due(&self) -> Option<(Instant, Due)> {
        let wake = self.wakes.filter(|_| self.idle.is_none()).map(|(at, _)| (at, Due::Wake));
        wake.into_iter().chain(self.second_word()).min_by_key(|(at, _)| *at)
    }

    fn second_word(&self) -> Option<(Instant, Due)> {
        match (self.taken, self.idle, self.replied) {
            (_, Some(idle), None) => Some((idle + SECOND_WORD, Due::NoReply)),
            // Not while there is something to be read: `idle` may be behind it.
            (_, None, Some((replied, _))) if !self.is_full() => Some((replied + SECOND_WORD, Due::Ask)),
            (Some(taken), None, None) if !self.begun => Some((taken + BEGINS, Due::Begun)),
            _ => None,
        }
    }

    /// It is interrupted now.
    pub(crate) fn is_interrupted(&mut self) {
        self.interrupted = true;
        self.wakes = Some((Instant::now() + WAKE_AGAIN, WAKES_MAX));
    }

    /// Its kernel was woken.
    pub(crate) fn was_woken(&mut self) {
        let left = self.wakes.map_or(0, |(_, left)| left);
        self.wakes = (left > 1).then(|| (Instant::now() + WAKE_AGAIN, left - 1));
    }

    /// It was asked for a sign, by this request.
    pub(crate) fn asked_for_sign(&mut self, request: String) {
        self.stand_in = Some(request);
        self.replied = self.replied.map(|(_, is_ok)| (Instant::now(), is_ok));
    }

    /// The kernel has ended the run and will not say how.
    pub(crate) fn give_reply_up(&mut self) {
        self.replied(&json!({
            "status": "error", "ename": "NoReply", "evalue": "the kernel has ended the run without a reply",
        }));
    }
}

/// The code of a run.
pub(crate) fn read_code(code: &OwnedFd) -> io::Result<String> {
    let mut bytes = Vec::new();
    // The guest has written it, and its place is our own.
    File::from(code.try_clone()?).take(CODE_BYTES_MAX as u64).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What is written to the pipes of a run, in the order in which the kernel told it.
#[derive(Debug)]
pub(crate) struct Outputs {
    pipes: [pipe::Sender; 3],
    waiting: VecDeque<(To, Vec<u8>)>,
    /// Of the first that waits, how much was written.
    written: usize,
    /// How much waits.
    bytes: usize,
}

impl Outputs {
    fn new(pipes: [OwnedFd; 3]) -> io::Result<Outputs> {
        let [stdout, stderr, results] = pipes.map(pipe::Sender::from_owned_fd);
        Ok(Outputs { pipes: [stdout?, stderr?, results?], waiting: VecDeque::new(), written: 0, bytes: 0 })
    }

    pub(crate) fn push(&mut self, to: To, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            self.waiting.push_back((to, bytes));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes what can be written, as soon as something can be. One that is not waited for to the end has done nothing.
    async fn write(&mut self) {
        let Some((to, bytes)) = self.waiting.front() else { return std::future::pending().await };
        let pipe = &self.pipes[*to as usize];
        let written = match pipe.writable().await.and_then(|()| pipe.try_write(&bytes[self.written..])) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
            // Nobody reads it any more.
            Err(_) => bytes.len() - self.written,
        };
        self.written += written;
        self.bytes -= written;
        if self.written == bytes.len() {
            self.waiting.pop_front();
            self.written = 0;
        }
    }
}

/// The same for a run that may not be there.
pub(crate) async fn write(outputs: Option<&mut Outputs>) {
    match outputs {
        Some(outputs) => outputs.write().await,
        None => std::future::pending().await,
    }
}

/// What a run reads.
#[derive(Debug)]
pub(crate) struct Input {
    /// None: it is at its end.
    pipe: Option<pipe::Receiver>,
    /// What was read and not asked for yet.
    buffer: Vec<u8>,
    /// What the kernel waits for.
    question: Option<Heard>,
}

impl Input {
    /// What is no pipe has nothing in it.
    fn new(stdin: OwnedFd) -> Input {
        Input { pipe: pipe::Receiver::from_owned_fd(stdin).ok(), buffer: Vec::new(), question: None }
    }

    /// The next answer to a question of the kernel's. One that is not waited for to the end is not lost.
    async fn answer(&mut self) -> (Heard, String) {
        if self.question.is_none() {
            return std::future::pending().await;
        }
        let line = self.line().await;
        match self.question.take() {
            Some(question) => (question, line),
            None => std::future::pending().await,
        }
    }

    async fn line(&mut self) -> String {
        loop {
            let end = self.buffer.iter().position(|&byte| byte == b'\n');
            let is_last = self.pipe.is_none() || self.buffer.len() >= INPUT_LINE_MAX;
            if end.is_some() || is_last {
                if end.is_none() && self.buffer.is_empty() {
                    return END_OF_INPUT.to_owned();
                }
                let taken = end.map_or(self.buffer.len(), |end| end + 1);
                let line: Vec<u8> = self.buffer.drain(..taken).collect();
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                return String::from_utf8_lossy(line).into_owned();
            }
            let Some(pipe) = &self.pipe else { continue };
            let mut buffer = [0; 4096];
            match pipe.readable().await.and_then(|()| pipe.try_read(&mut buffer)) {
                Ok(n @ 1..) => self.buffer.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => self.pipe = None,
            }
        }
    }
}

/// The same for a run that may not be there.
pub(crate) async fn answer(input: Option<&mut Input>) -> (Heard, String) {
    match input {
        Some(input) => input.answer().await,
        None => std::future::pending().await,
    }
}
