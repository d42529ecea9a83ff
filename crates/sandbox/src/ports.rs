//! The way to TCP ports of a box that has no network.
//!
//! ```text
//!  caller ◀──▶ Tunnel ══ two pipes in memory ══ carrier ── data, end, credit ──▶ guest ──▶ 127.0.0.1 or ::1 of the box
//! ```
//! The guest connects, inside of the box's network, and its bytes come over a stream of the link as those of stdin do. So
//! nothing is opened between the box and the host but what a caller has asked for, from outside in: a box cannot dial out.
//! Each side may close its direction by itself, and who does not read stops who writes, on either side.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use glasshouse_protocol::frame::Kind;
use glasshouse_protocol::limits::{DATA_CHUNK_MAX, STDIN_CREDIT};
use glasshouse_protocol::{Port, Reply, Request};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::{Semaphore, oneshot};

use crate::client::{self, Stream};
use crate::driver::Act;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{REPLY_TIMEOUT, TUNNEL_BYTES, TUNNEL_LINGER};
use crate::sandbox::Sandbox;

/// A connection to a port of a box. It ends with the box, and when the box is paused: then reading fails, so that a part is
/// not taken for the whole.
#[derive(Debug)]
pub struct Tunnel {
    pipe: DuplexStream,
    /// Why it broke off, if it did.
    fate: Arc<OnceLock<String>>,
    /// Dropped with us: nobody holds it any more.
    _held: oneshot::Sender<()>,
}

impl Sandbox {
    /// Connects to a TCP port of the box, on its loopback device.
    pub async fn dial(&self, port: u16) -> Result<Tunnel> {
        let dialled = self.dial_now(port).await;
        let error = dialled.as_ref().err().map(ToString::to_string);
        self.driver.tell(Act::File { op: "dial", path: format!("port {port}"), bytes: None, error }).await;
        dialled
    }

    async fn dial_now(&self, port: u16) -> Result<Tunnel> {
        let link = self.driver.line.link().await?;
        let mut stream = link.open(&Request::Dial { port }).await?;
        match tokio::time::timeout(REPLY_TIMEOUT, stream.reply()).await {
            Ok(reply) => match reply? {
                Reply::Ready => {}
                other => return Err(client::unexpected(&other)),
            },
            Err(_) => {
                let message = format!("the box's guest does not connect to port {port}");
                return Err(Error::new(ErrorKind::Failed, message));
            }
        }
        let (pipe, other_end) = tokio::io::duplex(TUNNEL_BYTES);
        let fate = Arc::new(OnceLock::new());
        let (held, dropped) = oneshot::channel();
        tokio::spawn(carry(stream, other_end, fate.clone(), dropped));
        Ok(Tunnel { pipe, fate, _held: held })
    }

    /// Lets a TCP port of the box answer, on its loopback device, and do nothing else. Whoever waits for it finds it.
    pub async fn answer(&self, port: u16) -> Result<()> {
        match self.call(Request::Answer { port }).await? {
            Reply::Ok => Ok(()),
            other => Err(client::unexpected(&other)),
        }
    }

    /// The TCP ports that something in the box listens on, at most 1024.
    pub async fn ports(&self) -> Result<Vec<Port>> {
        match self.call(Request::Ports).await? {
            Reply::Ports { ports } => Ok(ports),
            other => Err(client::unexpected(&other)),
        }
    }
}

/// Carries bytes both ways until both sides have ended, or the box has. Whoever has let go of his end is not waited for long.
async fn carry(
    mut stream: Stream,
    pipe: DuplexStream,
    fate: Arc<OnceLock<String>>,
    dropped: oneshot::Receiver<()>,
) {
    let (from_caller, to_caller) = tokio::io::split(pipe);
    let room = Semaphore::new(STDIN_CREDIT as usize);
    let sender = stream.sender();
    let inwards = async {
        if let Err(e) = carry_in(from_caller, &sender, &room).await {
            // The other direction tells why.
            drop(e);
        }
        std::future::pending::<()>().await;
    };
    let given_up = async {
        let _ = dropped.await;
        tokio::time::sleep(TUNNEL_LINGER).await;
    };
    let outwards = carry_out(&mut stream, to_caller, &room, &fate);
    tokio::select! {
        () = outwards => {}
        () = inwards => {}
        () = given_up => {}
    }
}

/// From the caller into the box.
async fn carry_in(
    mut from: ReadHalf<DuplexStream>,
    sender: &client::StreamSender,
    room: &Semaphore,
) -> Result<()> {
    let mut buffer = vec![0; DATA_CHUNK_MAX];
    // A pipe in memory does not fail.
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let closed = |_| Error::new(ErrorKind::Gone, "the connection has ended");
        room.acquire_many(n as u32).await.map_err(closed)?.forget();
        sender.data(&buffer[..n]).await?;
    }
    sender.end().await
}

/// From the box to the caller, and credit the other way: what waits for the caller must not keep that from coming.
async fn carry_out(
    stream: &mut Stream,
    mut to: WriteHalf<DuplexStream>,
    room: &Semaphore,
    fate: &OnceLock<String>,
) {
    // At most as much as the guest was given credit for.
    let mut waiting: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut written, mut ended, mut last) = (0, false, None);
    loop {
        if waiting.is_empty() {
            if let Some(last) = last {
                if let Err(why) = last {
                    // Before the end can be seen.
                    let _ = fate.set(why);
                }
                return;
            }
            if std::mem::take(&mut ended) {
                let _ = to.shutdown().await;
            }
        }
        let front = waiting.front().map_or(&[][..], |front| &front[written..]);
        tokio::select! {
            frame = stream.next(), if last.is_none() => match frame {
                None => last = Some(Err(stream.closed().unwrap_or_else(|| "the box is gone".into()))),
                Some(frame) => match frame.kind {
                    Kind::Data => waiting.push_back(frame.body),
                    Kind::End => ended = true,
                    Kind::Credit => grant(room, frame.credit().unwrap_or(0)),
                    Kind::Reply => {
                        last = Some(client::understand(&frame).map(drop).map_err(|e| e.to_string()));
                    }
                    _ => {}
                },
            },
            n = to.write(front), if !front.is_empty() => {
                // A caller who does not read any more is no reason to stop the box.
                written += n.unwrap_or(front.len());
                if let Some(done) = waiting.pop_front_if(|front| front.len() == written) {
                    written = 0;
                    // A guest that is gone needs none, which is seen above.
                    let _ = stream.grant(done.len() as u64).await;
                }
            }
        }
    }
}

/// What a guest grants beyond any sense is not kept.
fn grant(room: &Semaphore, bytes: u64) {
    let most = (STDIN_CREDIT as usize).saturating_sub(room.available_permits());
    room.add_permits(most.min(bytes as usize));
}

impl Tunnel {
    fn broken(&self) -> Option<io::Error> {
        self.fate.get().map(|why| io::Error::new(io::ErrorKind::ConnectionReset, why.clone()))
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, has_room) = (buffer.filled().len(), buffer.remaining() > 0);
        ready!(Pin::new(&mut self.pipe).poll_read(context, buffer))?;
        let at_end = has_room && buffer.filled().len() == before;
        Poll::Ready(self.broken().filter(|_| at_end).map_or(Ok(()), Err))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.pipe).poll_write(context, bytes));
        Poll::Ready(written.map_err(|e| self.broken().unwrap_or(e)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}
