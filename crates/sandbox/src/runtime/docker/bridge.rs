//! The host's end of a bridge: a stream to a guest on a machine that we see nothing of.
//!
//! ```text
//!  caller ══ socket pair ══ thread here ══ attached stream ══ engine ══ `glass-guest bridge` ══ the guest's socket
//! ```
//! The engine is asked to execute something once for a connection, and never for a command. A thread carries bytes both
//! ways, with an event loop of its own, and ends with the connection. What one end does not take, the other does not read.
//!
//! | what happens | what the caller sees | what is left |
//! |---|---|---|
//! | he closes | – | nothing: the bridge's stdin ends, then the guest's connection, then all of it |
//! | the guest or the container ends | what it still said, then the end of the stream | nothing |
//! | the same, and the engine forgets the stream | the same, a moment later: the engine is also asked to tell of the container's end | nothing |
//! | the way to the engine is cut | the end of the stream | nothing: the engine ends the bridge's stdin |
//! | the engine is killed | the end of the stream | the bridge, until the box ends: who looks after it holds its stdin |
//! | the engine does not answer | `Unreachable` when he connects | nothing |
//! | the bridge cannot be executed, or does not find the guest | an error with the reason | nothing |

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error as EngineError;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt};
use glasshouse_protocol::plan::{BRIDGE_STANDS, DOOR, DOOR_GUEST, LANDING_USER};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::engine::{Engine, event_loop};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::limits::DOOR_TIMEOUT;

/// Bytes that are carried at once.
const PIECE_BYTES: usize = 64 * 1024;
/// How long the other side may take to end when the caller has.
const END_MAX: Duration = Duration::from_secs(10);
/// How long nothing may come from a container that has ended, before nothing more is waited for.
const REST_MAX: Duration = Duration::from_secs(1);
/// What is kept of what a bridge says of its failure.
const WORDS_MAX: usize = 1024;

type Output = Pin<Box<dyn Stream<Item = std::result::Result<LogOutput, EngineError>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// What becomes of the box when the caller's end is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It goes on.
    Ours,
    /// It ends, too.
    Both,
}

/// The bridges of this process that stand, by their containers.
#[derive(Debug, Default)]
pub(super) struct Standing {
    bridges: Mutex<HashMap<String, usize>>,
    changed: Condvar,
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.bridges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until none leads to a container that has ended. Who has one would not know yet that it has, and say something to
    /// nobody. One whose caller does not read is not waited for.
    pub(super) fn wait_down(&self, container: &str) {
        let stands = |bridges: &mut HashMap<String, usize>| bridges.contains_key(container);
        drop(self.changed.wait_timeout_while(self.lock(), 2 * REST_MAX, stands));
    }
}

/// One that stands, for as long as its thread has this.
struct Stands {
    standing: Arc<Standing>,
    container: String,
}

impl Stands {
    fn new(standing: &Arc<Standing>, container: &str) -> Stands {
        *standing.lock().entry(container.to_owned()).or_default() += 1;
        Stands { standing: standing.clone(), container: container.to_owned() }
    }
}

impl Drop for Stands {
    fn drop(&mut self) {
        let mut bridges = self.standing.lock();
        if let Some(left) = bridges.get_mut(&self.container) {
            *left -= 1;
            if *left == 0 {
                bridges.remove(&self.container);
            }
        }
        self.standing.changed.notify_all();
    }
}

/// A new stream to the guest in a container.
pub(super) fn connect(engine: &Engine, container: &str, end: End) -> Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair().context("make a socket pair")?;
    theirs.set_nonblocking(true).context("make a socket pair")?;
    let (stands, told) = channel();
    let (engine, container) = (engine.clone(), container.to_owned());
    let thread = std::thread::Builder::new().name("glass-bridge".into());
    let one = Stands::new(&engine.bridges, &container);
    let carry = move || {
        let _one = one;
        match event_loop() {
            Ok(event_loop) => event_loop.block_on(carry(&engine, &container, end, theirs, &stands)),
            Err(e) => drop(stands.send(Err(e))),
        }
    };
    thread.spawn(carry).context("start a thread for the stream to the guest")?;
    let ended = || Error::new(ErrorKind::Failed, "the stream to the guest ended before it was one");
    told.recv().map_err(|_| ended())??;
    Ok(ours)
}

/// Builds the bridge, says so, and carries until one end is closed.
async fn carry(engine: &Engine, container: &str, end: End, ours: UnixStream, stands: &Sender<Result<()>>) {
    let built = tokio::time::timeout(DOOR_TIMEOUT, build(engine, container, end)).await;
    let built = built.unwrap_or_else(|_| {
        let message = format!("the engine has not led to the guest of {container} in {DOOR_TIMEOUT:?}");
        Err(Error::new(ErrorKind::Unreachable, message))
    });
    let built = built.and_then(|built| {
        let ours = tokio::net::UnixStream::from_std(ours).context("use the stream to the guest")?;
        Ok((built, ours))
    });
    let ((rest, mut output, mut input), ours) = match built {
        Ok(built) => built,
        Err(e) => return drop(stands.send(Err(e))),
    };
    if stands.send(Ok(())).is_err() {
        return;
    }
    let (mut from_caller, mut to_caller) = ours.into_split();
    let there = async {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(n @ 1..) = from_caller.read(&mut piece).await {
            if input.write_all(&piece[..n]).await.is_err() || input.flush().await.is_err() {
                break;
            }
        }
        let _ = input.shutdown().await;
        // What is still to come back comes soon, or never.
        tokio::time::sleep(END_MAX).await;
    };
    let back = async {
        if to_caller.write_all(&rest).await.is_err() {
            return;
        }
        // An engine that learns of a bridge's end after the container's, which is removed by then, says nothing at all.
        let mut end = std::pin::pin!(engine.ended(container));
        let mut is_over = false;
        loop {
            let piece = tokio::select! {
                piece = output.next() => piece,
                () = &mut end, if !is_over => {
                    is_over = true;
                    continue;
                }
                () = tokio::time::sleep(REST_MAX), if is_over => return,
            };
            let Some(Ok(piece)) = piece else { return };
            if let LogOutput::StdOut { message } = piece
                && to_caller.write_all(&message).await.is_err()
            {
                return;
            }
        }
    };
    // Whichever ends first ends both. The caller's half is closed with the last of this.
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

/// Has the engine execute the bridge, and waits until it stands. With it, what the guest has said since.
async fn build(engine: &Engine, container: &str, end: End) -> Result<(Vec<u8>, Output, Input)> {
    let what = "have the engine lead to the guest";
    let docker = engine.reach().await?;
    let mut cmd = vec![format!("{DOOR}/{DOOR_GUEST}"), "bridge".to_owned()];
    cmd.extend((end == End::Both).then(|| "tied".to_owned()));
    let config = ExecConfig {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        privileged: Some(false),
        user: Some(format!("{LANDING_USER}:{LANDING_USER}")),
        working_dir: Some("/".into()),
        cmd: Some(cmd),
        ..ExecConfig::default()
    };
    let made = docker.create_exec(container, config).await.map_err(|e| gone(engine.told(what, e)))?;
    let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(PIECE_BYTES) };
    let started = docker.start_exec(&made.id, Some(options)).await;
    let started = started.map_err(|e| gone(engine.told(what, e)))?;
    let StartExecResults::Attached { mut output, input } = started else {
        return Err(Error::new(ErrorKind::Failed, format!("cannot {what}: it did not attach us")));
    };
    let mut words = String::new();
    while let Some(piece) = output.next().await {
        match piece.map_err(|e| engine.told(what, e))? {
            LogOutput::StdOut { message } => match message.split_first() {
                Some((&BRIDGE_STANDS, rest)) => return Ok((rest.to_vec(), output, input)),
                // Engines say in this way, too, that they could not execute it.
                _ => words.push_str(&String::from_utf8_lossy(&message)),
            },
            LogOutput::StdErr { message } | LogOutput::Console { message } => {
                words.push_str(&String::from_utf8_lossy(&message));
            }
            LogOutput::StdIn { .. } => {}
        }
        if words.len() > WORDS_MAX {
            break;
        }
    }
    let words = words.trim();
    let message = format!("cannot {what}: {}", if words.is_empty() { "it has ended" } else { words });
    Err(Error::new(ErrorKind::Failed, message))
}

/// An engine that does not know a container, or says that it does not run, says that the box is gone.
fn gone(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Exists => Error::new(ErrorKind::Gone, error.to_string()),
        _ => error,
    }
}
