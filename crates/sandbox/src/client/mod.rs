//! The host's end of the wall: frames over one byte stream, many conversations at once.
//!
//! The guest is hostile: its frames are checked before they are believed, what it sends on a stream is held against
//! the credit that it was given, and one word out of place closes the link for good.

mod line;

pub(crate) use line::Line;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use glasshouse_protocol::frame::{self, Decoder, Frame, Kind};
use glasshouse_protocol::limits::{FRAME_BODY_MAX, FRAME_COST, STREAM_CREDIT};
use glasshouse_protocol::{Failure, FailureKind, Hello, Reply, Request, VERSION};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::limits::{REPLY_TIMEOUT, STREAM_FRAMES, UNSENT_BYTES_HIGH};

/// The stream of what needs no answer: nobody listens there.
const NOBODY: u32 = u32::MAX;

/// A connection to a guest.
#[derive(Clone)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

struct Shared {
    outgoing: Arc<Outgoing>,
    streams: Mutex<Streams>,
    /// The guest cannot be reached any more.
    over: Notify,
    tasks: Mutex<Vec<tokio::task::AbortHandle>>,
}

#[derive(Default)]
struct Streams {
    last: u32,
    open: HashMap<u32, Open>,
    /// Why no more streams can be opened.
    closed: Option<String>,
}

struct Open {
    frames: mpsc::Sender<Frame>,
    allowance: Arc<AtomicI64>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

/// What is on its way to the guest. Frames are put here whole, and what the socket does not take at once is sent by a
/// task of its own: a caller that is dropped leaves no half frame, and one that stands still holds up nobody.
struct Outgoing {
    half: OwnedWriteHalf,
    queue: Mutex<Queue>,
    /// There is something to send.
    more: Notify,
    /// Something was sent, or nothing ever will be.
    moved: Notify,
}

#[derive(Default)]
struct Queue {
    unsent: Vec<u8>,
    /// All bytes that were sent, ever.
    sent: u64,
    /// Why nothing is sent any more.
    failed: Option<io::ErrorKind>,
}

impl Outgoing {
    fn new(half: OwnedWriteHalf) -> Outgoing {
        Outgoing { half, queue: Mutex::default(), more: Notify::new(), moved: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame: waits for room, puts it there, and waits until it is gone.
    async fn send(&self, stream: u32, kind: Kind, body: &[u8]) -> io::Result<()> {
        let mut ends_at = None;
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // From here on: what moves while we look is not missed.
            moved.as_mut().enable();
            {
                let mut queue = self.queue();
                if ends_at.is_none() && queue.unsent.len() < UNSENT_BYTES_HIGH {
                    frame::put(&mut queue.unsent, stream, kind, body);
                    ends_at = Some(queue.sent + queue.unsent.len() as u64);
                    self.send_now(&mut queue);
                    if !queue.unsent.is_empty() {
                        self.more.notify_one();
                    }
                }
                if ends_at.is_some_and(|end| queue.sent >= end) {
                    return Ok(());
                }
                if let Some(kind) = queue.failed {
                    return Err(kind.into());
                }
            }
            moved.await;
        }
    }

    /// Sends as much as goes without waiting.
    fn send_now(&self, queue: &mut Queue) {
        while queue.failed.is_none() && !queue.unsent.is_empty() {
            match self.half.try_write(&queue.unsent) {
                Ok(n) => {
                    queue.unsent.drain(..n);
                    queue.sent += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => queue.failed = Some(e.kind()),
            }
        }
    }
}

/// Sends what callers have put into the queue, for as long as that goes.
async fn send_on(outgoing: Arc<Outgoing>) {
    loop {
        outgoing.more.notified().await;
        loop {
            let ready = outgoing.half.writable().await;
            let over = {
                let mut queue = outgoing.queue();
                if let Err(e) = ready {
                    queue.failed = Some(e.kind());
                }
                outgoing.send_now(&mut queue);
                queue.unsent.is_empty() || queue.failed.is_some()
            };
            outgoing.moved.notify_waiters();
            if over {
                break;
            }
        }
    }
}

/// One request and all that belongs to it. Dropped before its last reply, it tells the guest so.
pub(crate) struct Stream {
    id: u32,
    link: Link,
    frames: mpsc::Receiver<Frame>,
    allowance: Arc<AtomicI64>,
    over: bool,
}

impl Link {
    /// Takes over a stream to a guest and greets it.
    pub(crate) async fn start(stream: std::os::unix::net::UnixStream) -> Result<Link> {
        stream.set_nonblocking(true).context("use the stream to the guest")?;
        let stream = UnixStream::from_std(stream).context("use the stream to the guest")?;
        let (read, write) = stream.into_split();
        let shared = Arc::new(Shared {
            outgoing: Arc::new(Outgoing::new(write)),
            streams: Mutex::default(),
            over: Notify::new(),
            tasks: Mutex::default(),
        });
        let reader = tokio::spawn(receive(read, Arc::downgrade(&shared)));
        let sender = tokio::spawn(send_on(shared.outgoing.clone()));
        *shared.tasks.lock().unwrap_or_else(PoisonError::into_inner) =
            vec![reader.abort_handle(), sender.abort_handle()];
        let link = Link { shared };
        link.send(0, &Request::Hello(Hello { version: VERSION, features: Vec::new() })).await?;
        Ok(link)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.shared.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the guest cannot be reached any more, if so.
    pub(crate) fn closed(&self) -> Option<String> {
        self.streams().closed.clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.streams().closed.is_some()
    }

    /// Waits until the guest cannot be reached any more.
    pub(crate) async fn wait_closed(&self) {
        loop {
            let mut over = std::pin::pin!(self.shared.over.notified());
            // From here on: an end that comes while we look is not missed.
            over.as_mut().enable();
            if self.closed().is_some() {
                return;
            }
            over.await;
        }
    }

    /// Opens a stream with a request.
    pub(crate) async fn open(&self, request: &Request) -> Result<Stream> {
        let (sender, frames) = mpsc::channel(STREAM_FRAMES);
        let allowance = Arc::new(AtomicI64::new(STREAM_CREDIT as i64));
        let id = {
            let mut streams = self.streams();
            if let Some(why) = &streams.closed {
                return Err(Error::new(ErrorKind::Gone, format!("the box is gone: {why}")));
            }
            loop {
                // 0 is for greetings.
                streams.last = streams.last.wrapping_add(1).max(1);
                if streams.last != NOBODY && !streams.open.contains_key(&streams.last) {
                    break;
                }
            }
            let id = streams.last;
            streams.open.insert(id, Open { frames: sender, allowance: allowance.clone() });
            id
        };
        let stream = Stream { id, link: self.clone(), frames, allowance, over: false };
        self.send(id, request).await?;
        Ok(stream)
    }

    /// Asks a short question. A guest that is silent for too long is as good as gone.
    pub(crate) async fn call(&self, request: &Request) -> Result<Reply> {
        let mut stream = self.open(request).await?;
        match tokio::time::timeout(REPLY_TIMEOUT, stream.reply()).await {
            Ok(reply) => reply,
            Err(_) => Err(Error::new(
                ErrorKind::Failed,
                "the box's guest does not answer; `glass kill` removes the box",
            )),
        }
    }

    /// Says something that needs no answer.
    pub(crate) async fn tell(&self, request: &Request) -> Result<()> {
        self.send(NOBODY, request).await
    }

    async fn send(&self, stream: u32, request: &Request) -> Result<()> {
        let body = serde_json::to_vec(request)
            .map_err(|e| Error::new(ErrorKind::Invalid, format!("cannot put the request into words: {e}")))?;
        if body.len() > FRAME_BODY_MAX {
            let message = format!("the request is {} bytes, more than {FRAME_BODY_MAX}", body.len());
            return Err(Error::new(ErrorKind::Limit, message));
        }
        self.send_frame(stream, Kind::Request, &body).await
    }

    async fn send_frame(&self, stream: u32, kind: Kind, body: &[u8]) -> Result<()> {
        self.shared.outgoing.send(stream, kind, body).await.map_err(|e| {
            let message = format!("the box is gone: {e}");
            Error::new(ErrorKind::Gone, message)
        })
    }
}

impl Stream {
    /// The next frame. `None`: the link is closed, and so is the box, as far as we can tell.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        let frame = self.frames.recv().await;
        self.over |= frame.as_ref().is_none_or(is_last);
        frame
    }

    /// The next frame, which has to be a reply.
    pub(crate) async fn reply(&mut self) -> Result<Reply> {
        loop {
            let Some(frame) = self.next().await else {
                let why = self.link.closed().unwrap_or_else(|| "the link was closed".into());
                return Err(Error::new(ErrorKind::Gone, format!("the box is gone: {why}")));
            };
            match frame.kind {
                Kind::Reply => return understand(&frame),
                _ => continue,
            }
        }
    }

    /// Gives back what a frame with so many bytes cost, once it has been dealt with.
    pub(crate) async fn grant(&self, bytes: u64) -> Result<()> {
        let bytes = bytes + FRAME_COST;
        self.allowance.fetch_add(bytes as i64, Ordering::Relaxed);
        self.link.send_frame(self.id, Kind::Credit, &bytes.to_le_bytes()).await
    }

    /// Why nothing more comes, if the link is closed.
    pub(crate) fn closed(&self) -> Option<String> {
        self.link.closed()
    }

    /// The way to send on this stream from elsewhere.
    pub(crate) fn sender(&self) -> StreamSender {
        StreamSender { id: self.id, link: self.link.clone() }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.link.streams().open.remove(&self.id);
        if !self.over
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (link, id) = (self.link.clone(), self.id);
            runtime.spawn(async move {
                // A guest that is gone has nothing to undo.
                let _ = link.send_frame(id, Kind::Cancel, &[]).await;
            });
        }
    }
}

/// Whether a frame ends its stream: every reply but those that announce more.
fn is_last(frame: &Frame) -> bool {
    let more = [r#"{"reply":"started""#, r#"{"reply":"ready""#, r#"{"reply":"gap""#];
    frame.kind == Kind::Reply && !more.iter().any(|start| frame.body.starts_with(start.as_bytes()))
}

/// Sends on a stream.
#[derive(Clone)]
pub(crate) struct StreamSender {
    id: u32,
    link: Link,
}

impl StreamSender {
    pub(crate) async fn data(&self, bytes: &[u8]) -> Result<()> {
        self.link.send_frame(self.id, Kind::Data, bytes).await
    }

    pub(crate) async fn end(&self) -> Result<()> {
        self.link.send_frame(self.id, Kind::End, &[]).await
    }

    pub(crate) async fn request(&self, request: &Request) -> Result<()> {
        self.link.send(self.id, request).await
    }
}

/// Reads a reply; one that says no becomes an error.
pub(crate) fn understand(frame: &Frame) -> Result<Reply> {
    match serde_json::from_slice(&frame.body) {
        Ok(Reply::Failed(failure)) => Err(failed(failure)),
        Ok(reply) => Ok(reply),
        Err(e) => Err(Error::new(ErrorKind::Failed, format!("the guest's answer is not understood: {e}"))),
    }
}

fn failed(failure: Failure) -> Error {
    let kind = match failure.kind {
        FailureKind::NotFound => ErrorKind::NotFound,
        FailureKind::Exists => ErrorKind::Exists,
        FailureKind::Denied => ErrorKind::Denied,
        FailureKind::WrongKind | FailureKind::Invalid => ErrorKind::Invalid,
        FailureKind::Limit => ErrorKind::Limit,
        FailureKind::DiskFull => ErrorKind::DiskFull,
        FailureKind::Paused => ErrorKind::Paused,
        FailureKind::Refused => ErrorKind::Refused,
        FailureKind::Busy => ErrorKind::Busy,
        FailureKind::Unsupported => ErrorKind::Unsupported,
        FailureKind::Io => ErrorKind::Failed,
    };
    Error::new(kind, failure.message)
}

/// An answer that makes no sense for the question.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let text = format!("{reply:?}");
    let shown: String = text.chars().take(100).collect();
    Error::new(ErrorKind::Failed, format!("the guest answered something else than was asked: {shown}"))
}

async fn receive(mut read: OwnedReadHalf, shared: std::sync::Weak<Shared>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 * 1024];
    let why = loop {
        let n = match read.read(&mut buffer).await {
            Ok(0) => break "its first process has ended".to_owned(),
            Ok(n) => n,
            Err(e) => break e.to_string(),
        };
        decoder.feed(&buffer[..n]);
        match dispatch(&mut decoder, &shared).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(why) => break why,
        }
    };
    if let Some(shared) = shared.upgrade() {
        let mut streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.closed = Some(why);
        // Every reader learns it from the end of its stream.
        streams.open.clear();
        drop(streams);
        shared.over.notify_waiters();
    }
}

/// Hands whole frames to their streams. `Ok(false)`: nobody is there any more.
async fn dispatch(
    decoder: &mut Decoder,
    shared: &std::sync::Weak<Shared>,
) -> std::result::Result<bool, String> {
    while let Some(frame) = decoder.next_frame().map_err(|e| e.to_string())? {
        let Some(shared) = shared.upgrade() else { return Ok(false) };
        let target = {
            let streams = shared.streams.lock().unwrap_or_else(PoisonError::into_inner);
            streams.open.get(&frame.stream).map(|open| (open.frames.clone(), open.allowance.clone()))
        };
        drop(shared);
        // What comes after a stream was given up is of no interest.
        let Some((frames, allowance)) = target else { continue };
        if matches!(frame.kind, Kind::Data | Kind::Stdout | Kind::Stderr | Kind::Results) {
            let size = frame.body.len() as i64 + FRAME_COST as i64
                - if frame.kind == Kind::Data { 0 } else { frame::OFFSET_BYTES as i64 };
            if allowance.fetch_sub(size, Ordering::Relaxed) < size {
                return Err("its guest sent more than it was allowed to".into());
            }
        }
        let _ = frames.send(frame).await;
    }
    Ok(true)
}
