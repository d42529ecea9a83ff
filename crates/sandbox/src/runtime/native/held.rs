//! A guest that holds still: asked, waited for, talked to meanwhile, and let go.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use glasshouse_linux::descriptor::{self, Either};
use glasshouse_protocol::frame::{self, Decoder, Frame, Kind};
use glasshouse_protocol::plan::FdRole;
use glasshouse_protocol::walk::FRAME_FULL;
use glasshouse_protocol::{Reply, Request};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{BoxRecord, Home};
use crate::limits::REPLY_TIMEOUT;
use crate::runtime::connect_in;

/// How long somebody who was killed may still hold a box, by what he had started.
const HELD_MAX: Duration = Duration::from_secs(5);
/// How often to ask: nothing tells when he is gone.
const HELD_LOOK: Duration = Duration::from_millis(2);

/// How long a guest may hash one file, and say nothing.
const WALK_SILENCE_MAX: Duration = Duration::from_secs(600);

/// Namespaces that come with the guest's answer.
pub(super) const NAMESPACES: [FdRole; 3] =
    [FdRole::UserNamespace, FdRole::MountNamespace, FdRole::IpcNamespace];

/// A guest that holds still, until this is released or dropped.
pub(crate) struct Held {
    pub(super) stream: UnixStream,
    /// How long it may take to say something, all of it.
    patience: Duration,
    decoder: Decoder,
    pub(super) namespaces: Vec<OwnedFd>,
    /// The directory that changes go to, if that is in memory and the guest is not too old to show it.
    pub(super) top: Option<OwnedFd>,
    pub(crate) processes: u64,
    pub(crate) names: Vec<String>,
    pub(crate) at_work: bool,
    pub(super) generation: u64,
    /// It says that nothing is left beside files of what was done since it has its root.
    pub(super) clean: bool,
    /// It goes on: somebody else has told it, and it has answered.
    is_free: bool,
}

/// What becomes of what runs in a box that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Running {
    Killed,
    /// Killed, and the box begins anew on what it began with.
    Renewed,
    Stopped,
    /// Stopped when it has come to rest, if that is soon.
    Settled,
}

impl Held {
    /// Holds it, and does something else while it comes to rest. Waits a while for a builder whose maker was killed: nobody
    /// else holds a box whose lock we have.
    pub(crate) fn take<T>(
        home: &Home,
        record: &BoxRecord,
        running: Running,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Held, T)> {
        Held::take_by(&|| connect_in(home, &record.info), false, running, meanwhile)
    }

    /// The same of a guest that is reached in another way. `far`: none of its descriptors comes through.
    pub(crate) fn take_by<T>(
        connect: &dyn Fn() -> Result<UnixStream>,
        far: bool,
        running: Running,
        meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<(Held, T)> {
        let until = Instant::now() + HELD_MAX;
        let mut held = Held::ask_for(connect()?, running)?;
        let done = meanwhile()?;
        loop {
            match held.wait(far) {
                Err(e) if e.kind() == ErrorKind::Limit && Instant::now() < until => {
                    std::thread::sleep(HELD_LOOK);
                    held = Held::ask_for(connect()?, running)?;
                }
                taken => return Ok((taken?, done)),
            }
        }
    }

    fn ask_for(stream: UnixStream, running: Running) -> Result<Held> {
        stream.set_nonblocking(false).context("use the stream to the guest")?;
        let patience = REPLY_TIMEOUT;
        stream.set_read_timeout(Some(patience)).context("use the stream to the guest")?;
        let (decoder, namespaces, names) = (Decoder::default(), Vec::new(), Vec::new());
        let (processes, at_work, generation, top) = (0, false, 0, None);
        let (clean, is_free) = (false, false);
        let mut held = Held {
            stream,
            patience,
            decoder,
            namespaces,
            top,
            processes,
            names,
            at_work,
            generation,
            clean,
            is_free,
        };
        let same = running == Running::Renewed;
        let kill = same || running == Running::Killed;
        let settle = running == Running::Settled;
        held.say(&Request::Hold { kill, stop: !kill, top: true, settle, same })?;
        Ok(held)
    }

    fn wait(mut self, far: bool) -> Result<Held> {
        let reply = self.answer()?;
        if self.namespaces.len() > NAMESPACES.len() {
            self.top = self.namespaces.pop();
        }
        match reply {
            Reply::Held { processes, generation, names, at_work, clean }
                if far || self.namespaces.len() == NAMESPACES.len() =>
            {
                (self.processes, self.names, self.at_work) = (processes, names, at_work);
                (self.generation, self.clean) = (generation, clean);
                Ok(self)
            }
            other => Err(crate::client::unexpected(&other)),
        }
    }

    /// Lets it go, without waiting for its word that it went.
    pub(super) fn let_go(&mut self, restacked: bool) -> Result<()> {
        self.say(&Request::Release { restacked, renewed: false, generation: None })
    }

    /// Lets it go on as if it had just begun.
    pub(super) fn renew(mut self) -> Result<()> {
        self.say(&Request::Release { restacked: false, renewed: true, generation: None })?;
        self.answer().map(drop)
    }

    pub(crate) fn release(mut self, restacked: bool) -> Result<()> {
        if self.is_free {
            return Ok(());
        }
        self.let_go(restacked)?;
        self.answer().map(drop)
    }

    /// Waits until it says that it goes on, because whoever changed its root has told it so. Whether it does: he may say why
    /// not, or be gone.
    pub(super) fn is_released_by(&mut self, builder: BorrowedFd<'_>) -> Result<bool> {
        let heard = descriptor::await_either(self.stream.as_fd(), builder, REPLY_TIMEOUT);
        if heard.context("wait for the guest")? != Some(Either::First) {
            return Ok(false);
        }
        self.is_free = true;
        self.answer().map(|_| true)
    }

    fn say(&mut self, request: &Request) -> Result<()> {
        let mut bytes = Vec::new();
        let body = serde_json::to_vec(request)
            .map_err(|e| Error::new(ErrorKind::Failed, format!("cannot put the request into words: {e}")))?;
        frame::put(&mut bytes, 1, Kind::Request, &body);
        self.stream.write_all(&bytes).context("talk to the guest")
    }

    /// Has the guest tell of its root. It speaks when it has something to say, which may be long after.
    pub(crate) fn begin_walk(&mut self) -> Result<()> {
        self.patience = WALK_SILENCE_MAX;
        self.stream.set_read_timeout(Some(self.patience)).context("use the stream to the guest")?;
        self.say(&Request::Walk)
    }

    /// Says something to whoever walks.
    pub(crate) fn say_to_walker(&mut self, body: &[u8]) -> Result<()> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, 1, Kind::Data, body);
        self.stream.write_all(&bytes).context("talk to the guest")
    }

    /// What he says next.
    pub(crate) fn hear_walker(&mut self) -> Result<Vec<u8>> {
        let frame = self.next_frame()?;
        match frame.kind {
            Kind::Data => Ok(frame.body),
            _ => crate::client::understand(&frame).and_then(|reply| Err(crate::client::unexpected(&reply))),
        }
    }

    fn answer(&mut self) -> Result<Reply> {
        crate::client::understand(&self.next_frame()?)
    }

    fn next_frame(&mut self) -> Result<Frame> {
        let mut buffer = vec![0; FRAME_FULL];
        let asked = Instant::now();
        loop {
            let broken = |e: &dyn std::fmt::Display| {
                Error::new(ErrorKind::Gone, format!("the box's guest does not hold still: {e}"))
            };
            if let Some(frame) = self.decoder.next_frame().map_err(|e| broken(&e))? {
                return Ok(frame);
            }
            let (n, fds) =
                descriptor::receive_with_fds(self.stream.as_fd(), &mut buffer).map_err(|e| broken(&e))?;
            if n == 0 {
                return Err(broken(&"it has ended"));
            }
            // Whoever says one byte after the other, or has descriptors without end, is not waited for.
            if asked.elapsed() > self.patience {
                return Err(broken(&"it does not finish what it says"));
            }
            if self.namespaces.len() + fds.len() > NAMESPACES.len() + 1 {
                return Err(broken(&"it hands out more than it was asked for"));
            }
            self.namespaces.extend(fds);
            self.decoder.feed(&buffer[..n]);
        }
    }
}
