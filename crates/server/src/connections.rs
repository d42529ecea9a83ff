//! Connections: taken one by one, bounded in number, and let go of when nothing comes over them.
//!
//! A client has so long for the head of a request, and as long for the next one. What it sends as a body may pause as long
//! as is said, too. An answer may take as long as it wants: a command may run for days; but a client that does not take
//! what there is of it is not waited for without end (`Patient`). What becomes something else than HTTP keeps its place
//! among the connections for as long as it lives (`Held`).

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures_util::StreamExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Sleep;
use tower_service::Service as _;

use crate::config::Bounds;
use crate::limits::ADMISSION_LOOK;

/// Where a request came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The connection of a request: who outlives the request keeps this, and ends when the server does, or when whoever asked may no
/// longer.
#[derive(Clone)]
pub(crate) struct Held {
    _place: Arc<Option<OwnedSemaphorePermit>>,
    stopping: watch::Receiver<bool>,
    /// Whether whoever asked still may. Without: always.
    may: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

/// Why what a request opened is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The server ends.
    Server,
    /// Whoever asked may no longer: his key was revoked, say.
    Caller,
}

impl Held {
    /// The same for as long as this says so. It is looked at again and again, since nothing tells when it changes.
    pub(crate) fn while_may(mut self, may: impl Fn() -> bool + Send + Sync + 'static) -> Held {
        self.may = Some(Arc::new(may));
        self
    }

    /// Waits until all that was opened is to end.
    pub(crate) async fn stopped(&mut self) -> Stopped {
        let may = self.may.clone();
        let shut_out = async {
            let Some(may) = may else { return std::future::pending().await };
            while may() {
                tokio::time::sleep(ADMISSION_LOOK).await;
            }
        };
        tokio::select! {
            // A server that is gone has stopped.
            _ = self.stopping.wait_for(|stopping| *stopping) => Stopped::Server,
            () = shut_out => Stopped::Caller,
        }
    }
}

/// Takes connections until `stop` comes; then waits a little for what is under way.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let (room, stopping) = (Arc::new(Semaphore::new(bounds.connections)), watch::Sender::new(false));
    let mut stop = std::pin::pin!(stop);
    loop {
        let taken = async {
            // The semaphore is never closed.
            let place = room.clone().acquire_owned().await.ok();
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            taken = taken => taken,
            () = &mut stop => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(_) => {
                // A client that is gone already, or no descriptor left: neither is a reason to end, nor to spin.
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        // An answer goes out at once, and not when the last one has been seen; where that is refused, it is only slower.
        let _ = stream.set_nodelay(true);
        let (router, place) = (router.clone(), Arc::new(place));
        let held = Held { _place: place.clone(), stopping: stopping.subscribe(), may: None };
        let body_timeout = Duration::from_millis(bounds.body_timeout_ms);
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(|body| timed(body, body_timeout));
            request.extensions_mut().insert(Peer(peer));
            request.extensions_mut().insert(held.clone());
            router.clone().call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(Duration::from_millis(bounds.header_timeout_ms));
        let pause = Duration::from_millis(bounds.answer_timeout_ms);
        let stream = Patient { stream, pause, waiting: None };
        let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut stopped = stopping.subscribe();
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            // How a connection ends is its client's affair.
            let over = tokio::select! {
                _ = &mut connection => true,
                _ = stopped.wait_for(|stopped| *stopped) => false,
            };
            if !over {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
            drop(place);
        });
    }
    drop(listener);
    stopping.send_replace(true);
    // All places are free again when all are done. What takes longer is cut off.
    let all = room.acquire_many(u32::try_from(bounds.connections).unwrap_or(u32::MAX));
    let _ = tokio::time::timeout(Duration::from_millis(bounds.stop_timeout_ms), all).await;
}

/// How long to wait before the next connection is taken when one could not be.
const RETRY: Duration = Duration::from_millis(10);

/// A body that ends with an error when it pauses for too long.
fn timed(body: Incoming, pause: Duration) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let pieces = Some(Body::new(body).into_data_stream());
    let next = move |pieces: Option<BodyDataStream>| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(pause, pieces.next()).await {
            Ok(piece) => piece.map(|piece| (piece.map_err(io::Error::other), Some(pieces))),
            Err(_) => {
                let late =
                    io::Error::new(io::ErrorKind::TimedOut, "the rest of the body did not come in time");
                Some((Err(late), None))
            }
        }
    };
    Body::from_stream(futures_util::stream::unfold(pieces, next))
}

/// A connection that fails when its client takes nothing for too long.
struct Patient {
    stream: TcpStream,
    pause: Duration,
    /// Something could not be sent; this is when that has been so for too long.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    /// Looks at how sending went.
    fn sent<T>(&mut self, context: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.waiting = None;
            return sent;
        }
        let pause = self.pause;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no more")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.sent(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
