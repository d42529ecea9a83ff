//! Terminals: a shell that a client talks to over a WebSocket, and comes back to.
//!
//! ```text
//!  made ── first client ──▶ its shell runs ──▶ ended          (a client may come and go at any time; one at once)
//!
//!  shell ──▶ `run` ──▶ what is kept: the last mebibyte ──▶ `show`, from the client's place on
//! ```
//! `run` reads all that the shell writes, whether somebody looks or not; while somebody looks and is far behind, it waits, and
//! so does the shell. The shell ends with the server: nobody could reach it afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use glasshouse_sandbox::{Error, Exec, ExecEvent, ExecInput, ExecSpec, Exit, OutputStream, Program, TtySize};
use tokio::sync::{oneshot, watch};

use super::{environment, stream};
use crate::dialect::opensandbox::fault::Answer;
use crate::dialect::opensandbox::rooms::Room;
use crate::limits::{TERMINAL_AHEAD_BYTES, TERMINAL_KEPT_BYTES, TERMINALS};
use crate::random;

/// Before a client has said how large its window is.
const FIRST_SIZE: TtySize = TtySize { rows: 24, cols: 80 };

/// The terminals of one box.
#[derive(Debug, Default)]
pub(crate) struct Terminals(Mutex<Vec<Arc<Terminal>>>);

impl Terminals {
    /// Makes one. If there are too many, one that has ended goes; if none has, there is none for this caller.
    pub(super) fn make(&self, cwd: Option<String>, command: Option<String>) -> Answer<Option<Arc<Terminal>>> {
        let id = random::hex()?;
        let mut all = locked(&self.0);
        if all.len() >= TERMINALS {
            let Some(over) = all.iter().position(|terminal| terminal.is_over()) else { return Ok(None) };
            all.remove(over);
        }
        let terminal = Arc::new(Terminal {
            id,
            cwd,
            command,
            screen: Mutex::default(),
            moved: watch::Sender::new(()),
            start: tokio::sync::Mutex::default(),
        });
        all.push(terminal.clone());
        Ok(Some(terminal))
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Terminal>> {
        locked(&self.0).iter().find(|terminal| terminal.id == id).cloned()
    }

    pub(super) fn remove(&self, id: &str) -> Option<Arc<Terminal>> {
        let mut all = locked(&self.0);
        let at = all.iter().position(|terminal| terminal.id == id)?;
        Some(all.remove(at))
    }
}

/// One terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) id: String,
    cwd: Option<String>,
    command: Option<String>,
    screen: Mutex<Screen>,
    /// Something was written, read or ended.
    moved: watch::Sender<()>,
    /// One starts it.
    start: tokio::sync::Mutex<Option<Started>>,
}

/// The way into a shell that runs.
#[derive(Debug, Clone)]
pub(super) struct Started {
    pub(super) input: ExecInput,
    /// It has a terminal, and not pipes.
    pub(super) tty: bool,
}

/// What a terminal shows.
#[derive(Debug, Default)]
struct Screen {
    kept: VecDeque<Piece>,
    /// Bytes of `kept`.
    bytes: usize,
    /// The place of what comes next.
    end: u64,
    running: bool,
    /// How it ended.
    exit: Option<Option<i32>>,
    viewer: Option<Viewer>,
    viewers: u64,
}

/// Something that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) stream: OutputStream,
    pub(super) bytes: Bytes,
}

/// The one client.
#[derive(Debug)]
struct Viewer {
    number: u64,
    place: u64,
    /// Tells it that another one has come.
    evict: Option<oneshot::Sender<()>>,
}

/// A client's place before a terminal, for as long as it has this.
#[derive(Debug)]
pub(super) struct Seat {
    terminal: Arc<Terminal>,
    number: u64,
    /// Another one takes it.
    evicted: oneshot::Receiver<()>,
    /// Where it begins to read.
    pub(super) from: u64,
    /// What is before this place was written before it came.
    pub(super) live_from: u64,
}

/// What a client is shown next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Piece(Piece),
    Over(Option<i32>),
}

impl Terminal {
    /// Whether its shell runs, and the place of what it writes next.
    pub(super) fn state(&self) -> (bool, u64) {
        let screen = locked(&self.screen);
        (screen.running, screen.end)
    }

    fn is_over(&self) -> bool {
        locked(&self.screen).exit.is_some()
    }

    /// Takes the one place before it; `since` is how far the client has read. None: somebody else has it, and keeps it.
    pub(super) fn sit(self: &Arc<Self>, since: Option<u64>, take_over: bool) -> Option<Seat> {
        let mut screen = locked(&self.screen);
        if screen.viewer.is_some() && !take_over {
            return None;
        }
        // One that is gone in this moment need not be told.
        let _ = screen.viewer.take().and_then(|mut old| old.evict.take()).map(|evict| evict.send(()));
        screen.viewers += 1;
        let (number, live_from) = (screen.viewers, screen.end);
        let from = since.unwrap_or(live_from).min(live_from);
        let (evict, evicted) = oneshot::channel();
        screen.viewer = Some(Viewer { number, place: from, evict: Some(evict) });
        Some(Seat { terminal: self.clone(), number, evicted, from, live_from })
    }

    /// Starts the shell, unless somebody has.
    pub(super) async fn started(self: &Arc<Self>, room: &Room, tty: bool) -> Answer<Started> {
        let mut start = self.start.lock().await;
        if let Some(started) = &*start {
            return Ok(started.clone());
        }
        let shell = super::command::shell(room).await?.to_owned();
        let argv = match &self.command {
            Some(line) => vec![shell, "-c".to_owned(), line.clone()],
            None => vec![shell],
        };
        let mut env = environment::of_commands(&room.sandbox).await?;
        if tty {
            env.push(("TERM".to_owned(), "xterm-256color".to_owned()));
        }
        let cwd = match &self.cwd {
            Some(cwd) => Some(environment::expand(&room.sandbox, cwd).await?),
            None => None,
        };
        let spec = ExecSpec {
            program: Program::Argv(argv),
            env,
            cwd,
            stdin: true,
            tty: tty.then_some(FIRST_SIZE),
            grace_ms: Some(0),
            label: Some(format!("pty-{}", self.id)),
            ..ExecSpec::default()
        };
        let exec = room.sandbox.exec(spec).await.map_err(super::fault)?;
        let started = Started { input: exec.input(), tty };
        locked(&self.screen).running = true;
        tokio::spawn(self.clone().run(exec));
        *start = Some(started.clone());
        Ok(started)
    }

    /// Ends the shell.
    pub(super) async fn kill(&self) -> Result<(), Error> {
        match &*self.start.lock().await {
            Some(started) if !self.is_over() => started.input.kill().await,
            _ => Ok(()),
        }
    }

    /// Reads all that the shell writes.
    async fn run(self: Arc<Self>, mut exec: Exec) {
        let exit = loop {
            match exec.next().await {
                Some(ExecEvent::Output(chunk)) => {
                    locked(&self.screen).push(chunk.stream, chunk.bytes.into());
                    self.moved.send_replace(());
                    self.wait_for_viewer().await;
                }
                Some(ExecEvent::Gap { .. } | ExecEvent::Result(_)) => {}
                Some(ExecEvent::Ended(report)) => break report.exit,
                Some(ExecEvent::UpToDate { .. }) | None => {
                    break Exit::BoxGone { why: "its end was not told".to_owned() };
                }
            }
        };
        let mut screen = locked(&self.screen);
        (screen.running, screen.exit) = (false, Some(stream::exit_code(&exit)));
        drop(screen);
        self.moved.send_replace(());
    }

    /// Waits while there is a client that is far behind.
    async fn wait_for_viewer(&self) {
        let mut moved = self.moved.subscribe();
        let near = |_: &()| {
            let screen = locked(&self.screen);
            screen.viewer.as_ref().is_none_or(|viewer| screen.end - viewer.place <= TERMINAL_AHEAD_BYTES)
        };
        // The sender is ours.
        let _ = moved.wait_for(near).await;
    }
}

impl Seat {
    /// What comes next for this client. None: it has no place here any more.
    pub(super) async fn next(&mut self) -> Option<Next> {
        let mut moved = self.terminal.moved.subscribe();
        loop {
            // What is written from here on is noticed.
            moved.borrow_and_update();
            let found = locked(&self.terminal.screen).after(self.from);
            if let Some(Next::Piece(piece)) = &found {
                self.from = piece.offset + piece.bytes.len() as u64;
                let mut screen = locked(&self.terminal.screen);
                let mine = screen.viewer.as_mut().filter(|viewer| viewer.number == self.number)?;
                mine.place = self.from;
                drop(screen);
                self.terminal.moved.send_replace(());
            }
            if found.is_some() {
                return found;
            }
            tokio::select! {
                changed = moved.changed() => changed.ok()?,
                // Whoever has taken it has said so, or is gone again.
                _ = &mut self.evicted => return None,
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut screen = locked(&self.terminal.screen);
        if screen.viewer.as_ref().is_some_and(|viewer| viewer.number == self.number) {
            screen.viewer = None;
        }
        drop(screen);
        self.terminal.moved.send_replace(());
    }
}

impl Screen {
    fn push(&mut self, stream: OutputStream, bytes: Bytes) {
        let (offset, length) = (self.end, bytes.len());
        self.end += length as u64;
        self.bytes += length;
        self.kept.push_back(Piece { offset, stream, bytes });
        while self.bytes > TERMINAL_KEPT_BYTES {
            let Some(first) = self.kept.pop_front() else { break };
            self.bytes -= first.bytes.len();
        }
    }

    /// What was written at a place, or the first that is kept after it.
    fn after(&self, place: u64) -> Option<Next> {
        let at = self.kept.partition_point(|piece| piece.offset + piece.bytes.len() as u64 <= place);
        match self.kept.get(at) {
            Some(piece) => {
                let skip = place.saturating_sub(piece.offset) as usize;
                let (offset, bytes) = (piece.offset + skip as u64, piece.bytes.slice(skip..));
                Some(Next::Piece(Piece { offset, stream: piece.stream, bytes }))
            }
            None => self.exit.map(Next::Over),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(screen: &Screen, place: u64) -> Option<(u64, Vec<u8>)> {
        match screen.after(place) {
            Some(Next::Piece(piece)) => Some((piece.offset, piece.bytes.to_vec())),
            _ => None,
        }
    }

    #[test]
    fn what_was_written_is_read_from_any_place_and_then_the_end() {
        let mut screen = Screen::default();
        screen.push(OutputStream::Stdout, Bytes::from_static(b"abc"));
        screen.push(OutputStream::Stderr, Bytes::from_static(b"de"));
        assert_eq!(piece(&screen, 0), Some((0, b"abc".to_vec())));
        assert_eq!(piece(&screen, 2), Some((2, b"c".to_vec())));
        assert_eq!(piece(&screen, 3), Some((3, b"de".to_vec())));
        assert_eq!(screen.after(5), None);
        screen.exit = Some(Some(7));
        assert_eq!(piece(&screen, 4), Some((4, b"e".to_vec())));
        assert_eq!(screen.after(5), Some(Next::Over(Some(7))));
    }

    #[test]
    fn no_more_is_kept_than_may_be_and_the_last() {
        let mut screen = Screen::default();
        let large = Bytes::from(vec![b'x'; TERMINAL_KEPT_BYTES / 2]);
        for _ in 0..3 {
            screen.push(OutputStream::Stdout, large.clone());
        }
        assert!(screen.bytes <= TERMINAL_KEPT_BYTES);
        let (offset, bytes) = piece(&screen, 0).unwrap();
        assert_eq!((offset, bytes.len()), (large.len() as u64, large.len()));
    }
}
