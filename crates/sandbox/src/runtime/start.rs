//! Starting a guest: a builder is given its plan, and listened to until the box is ready.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use glasshouse_linux::reach::Helper;
use glasshouse_linux::{descriptor, process};
use glasshouse_protocol::frame::{self, Decoder, Kind};
use glasshouse_protocol::plan::{FdRole, Plan, Report, Rest, StepFailure};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::limits::BUILD_TIMEOUT;
use crate::runtime::builders::{Builder, Mode, execute_on, was_not_read};

/// Why no box came of it.
#[derive(Debug)]
pub(super) enum Failed {
    /// A step of the plan.
    Step(StepFailure),
    /// Something else.
    Other(Error),
}

/// Why a box that lives was not changed.
#[derive(Debug)]
pub(super) enum Unchanged {
    /// It is as it was.
    Whole(Failed),
    /// Whoever changed it failed and could not take it back, or ended without a word. What it stands on, nobody knows.
    Between(Option<StepFailure>),
}

impl From<Error> for Unchanged {
    fn from(error: Error) -> Unchanged {
        Unchanged::Whole(Failed::Other(error))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Other(error)
    }
}

/// A guest that is ready, and waits for the word that it is on record.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    /// What could not be pinned in a deterministic box.
    pub(super) lacking: Vec<String>,
    stream: UnixStream,
    committed: bool,
}

impl Ready {
    /// The box is on record: lets the guest go. From here on the stream speaks the protocol.
    pub(super) fn commit(mut self) -> Result<(UnixStream, OwnedFd)> {
        // First what can fail: a guest that has been let go is on its own.
        let stream = self.stream.try_clone().context("keep the stream to the guest")?;
        let pidfd = self.pidfd.try_clone().context("keep the box's first process")?;
        (&self.stream).write_all(b"!").context("tell the guest to go on")?;
        self.committed = true;
        Ok((stream, pidfd))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if !self.committed {
            end(self.pidfd.as_fd());
        }
    }
}

/// Kills a process of ours, waits for its end and collects it if it is our child.
pub(super) fn end(pidfd: BorrowedFd<'_>) {
    let _ = process::signal(pidfd, 9);
    let _ = process::wait_end(pidfd, crate::limits::DEATH_TIMEOUT);
    // Not our child: somebody else collects it.
    let _ = process::reap(pidfd);
}

/// Has a builder build a box, or the guest serve where it is.
pub(super) fn start(
    builder: Builder,
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
) -> std::result::Result<Ready, Failed> {
    let (watch, told) = conduct(builder, plan, fds, || ())?;
    // One that serves is the guest itself and lives on; one that builds has ended or is about to.
    watch.ready(told, plan.steps.is_empty())
}

/// A guest whose building was begun, and that waits for what is particular to its box. Dropped, it never was.
#[derive(Debug)]
pub(super) struct Begun(Option<Watch>);

/// Has a builder begin a box that nobody wants yet.
pub(super) fn begin(
    builder: Builder,
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
) -> std::result::Result<Begun, Failed> {
    let (watch, told) = conduct(builder, plan, fds, || ())?;
    let begun = Begun(Some(watch));
    told.map(|()| begun)
}

impl Begun {
    /// Somebody wants the box: tells what it is, and listens until it is ready.
    pub(super) fn finish(
        mut self,
        rest: &Rest,
        fds: &[BorrowedFd<'_>],
    ) -> std::result::Result<Ready, Failed> {
        let Some(mut watch) = self.0.take() else { return Err(broken("it was finished before").into()) };
        let told = watch.send(serde_json::to_vec(rest), fds).and_then(|()| watch.listen());
        watch.ready(told, false)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            watch.give_up();
        }
    }
}

/// Sends a plan to a guest that somebody else has started, and listens until it is ready.
pub(super) fn greet(
    stream: UnixStream,
    pid: i32,
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
) -> std::result::Result<Ready, Failed> {
    let pidfd = process::open(pid).context("watch the box's first process")?;
    let mut watch = Watch::new(Builder::met(stream));
    watch.send(serde_json::to_vec(plan), fds)?;
    watch.listen()?;
    let Watch { lacking, builder, .. } = watch;
    let stream = builder.keep();
    Ok(Ready { pid, pidfd, lacking, stream, committed: false })
}

/// A guest on another machine that is ready, and waits for the word that it is on record.
#[derive(Debug)]
pub(super) struct FarReady {
    /// What it does not have there, each with the reason.
    pub(super) lacking: Vec<String>,
    /// The release of the kernel that it sees.
    pub(super) kernel: Option<String>,
    stream: UnixStream,
}

impl FarReady {
    /// The box is on record: lets the guest go.
    pub(super) fn commit(mut self) -> Result<UnixStream> {
        self.stream.write_all(b"!").context("tell the guest to go on")?;
        Ok(self.stream)
    }
}

/// The same where nobody of this machine can watch the guest. If it comes to nothing, whoever started it ends it.
pub(super) fn greet_far(stream: UnixStream, plan: &Plan) -> std::result::Result<FarReady, Failed> {
    let mut watch = Watch::new(Builder::met(stream));
    watch.send(serde_json::to_vec(plan), &[])?;
    watch.listen()?;
    let Watch { lacking, kernel, builder, .. } = watch;
    Ok(FarReady { lacking, kernel, stream: builder.keep() })
}

/// A builder that has given a box that lives another root, and lets go of the old one. When it has, it releases the box. It is
/// to be let go when nobody waits for the box any more.
#[derive(Debug)]
pub(super) struct Swapped(Watch);

impl Swapped {
    /// Its stream: it says no more on it, unless something goes wrong.
    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.0.builder.stream.as_fd()
    }

    /// Why it said something, or ended: where it stumbled, if it could tell.
    pub(super) fn why(mut self) -> Option<StepFailure> {
        match self.0.listen() {
            Err(Failed::Step(failure)) => Some(failure),
            _ => None,
        }
    }

    pub(super) fn builder(self) -> Builder {
        self.0.builder
    }
}

/// Has a builder give a box that lives another root, and does something else while it is at work.
pub(super) fn carry_out(
    builder: Builder,
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    meanwhile: impl FnOnce(),
) -> std::result::Result<Swapped, Unchanged> {
    let (watch, told) = conduct(builder, plan, fds, meanwhile)?;
    match told {
        Ok(()) => Ok(Swapped(watch)),
        Err(Failed::Step(failure)) if watch.torn => Err(Unchanged::Between(Some(failure))),
        Err(Failed::Other(_)) if watch.changing => Err(Unchanged::Between(None)),
        Err(failed) => Err(Unchanged::Whole(failed)),
    }
}

/// A process that reads what we own and may not read.
pub(crate) fn reader() -> std::io::Result<Helper> {
    let (ours, theirs) = descriptor::packet_pair()?;
    let process = execute_on(Mode::Read, theirs).map_err(std::io::Error::other)?;
    Ok(Helper::new(ours, process))
}

/// Gives a builder its plan and listens to the end. One that had ended before it was asked is replaced: nobody but us knew
/// of it, and it has done nothing.
fn conduct(
    builder: Builder,
    plan: &Plan,
    fds: &[BorrowedFd<'_>],
    meanwhile: impl FnOnce(),
) -> Result<(Watch, std::result::Result<(), Failed>)> {
    let mut watch = Watch::new(builder);
    let sent = watch.send(serde_json::to_vec(plan), fds);
    meanwhile();
    let mut told = sent.and_then(|()| watch.listen());
    let did_nothing = watch.unread && watch.spawned.is_none() && !watch.changing;
    if told.is_err() && watch.builder.is_spare && did_nothing {
        watch = Watch::new(Builder::execute(Mode::Jail)?);
        told = watch.send(serde_json::to_vec(plan), fds).and_then(|()| watch.listen());
    }
    Ok((watch, told))
}

#[derive(Debug)]
struct Watch {
    spawned: Option<(i32, OwnedFd)>,
    /// The box's first process, while there is no descriptor for it.
    unwatched: Option<i32>,
    /// A box that lives is being changed.
    changing: bool,
    /// And was left half changed.
    torn: bool,
    /// The builder had ended before it had read its plan.
    unread: bool,
    lacking: Vec<String>,
    kernel: Option<String>,
    builder: Builder,
    decoder: Decoder,
}

impl Watch {
    fn new(builder: Builder) -> Watch {
        let (lacking, decoder) = (Vec::new(), Decoder::default());
        Watch {
            spawned: None,
            unwatched: None,
            changing: false,
            torn: false,
            unread: false,
            lacking,
            kernel: None,
            builder,
            decoder,
        }
    }

    /// What came of it: a guest that is ready, or nothing, of which nothing is left.
    fn ready(
        mut self,
        told: std::result::Result<(), Failed>,
        serves: bool,
    ) -> std::result::Result<Ready, Failed> {
        match (told, self.spawned.take()) {
            (Ok(()), Some((pid, pidfd))) => {
                let Watch { lacking, builder, .. } = self;
                let stream = if serves { builder.keep() } else { builder.collect() };
                Ok(Ready { pid, pidfd, lacking, stream, committed: false })
            }
            (Ok(()), None) => {
                Err(Error::new(ErrorKind::Failed, "cannot build the box: no process was started").into())
            }
            (Err(failed), spawned) => {
                self.spawned = spawned;
                self.give_up();
                Err(failed)
            }
        }
    }

    /// Ends all that was started.
    fn give_up(self) {
        drop(self.builder);
        if let Some((_, pidfd)) = self.spawned {
            end(pidfd.as_fd());
        }
        if let Some(pid) = self.unwatched {
            // Not our child: somebody else collects it.
            let _ = process::end_child(pid);
        }
    }

    fn send(
        &mut self,
        words: serde_json::Result<Vec<u8>>,
        fds: &[BorrowedFd<'_>],
    ) -> std::result::Result<(), Failed> {
        let body = words.map_err(|e| Error::new(ErrorKind::Failed, format!("cannot write the plan: {e}")))?;
        let mut bytes = Vec::new();
        frame::put(&mut bytes, 0, Kind::Request, &body);
        let sent = descriptor::send_with_fds(self.builder.stream.as_fd(), &bytes, fds);
        self.unread = sent.as_ref().is_err_and(was_not_read);
        Ok(sent.map_err(|e| broken(&format!("its builder ended before it had its plan ({e})")))?)
    }

    /// Reads reports until the box is ready, or is begun and waits to be wanted.
    fn listen(&mut self) -> std::result::Result<(), Failed> {
        let deadline = Instant::now() + BUILD_TIMEOUT;
        let mut buffer = [0; 4096];
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(|e| broken(&e.to_string()))? {
                let report: Report =
                    serde_json::from_slice(&frame.body).map_err(|e| broken(&e.to_string()))?;
                match report {
                    Report::Spawned { pid } => {
                        self.unwatched = Some(pid);
                        let pidfd = process::open(pid).context("watch the box's first process")?;
                        self.unwatched = None;
                        self.spawned = Some((pid, pidfd));
                    }
                    Report::Changing => self.changing = true,
                    Report::Begun | Report::Swapped => return Ok(()),
                    Report::Ready { lacking, kernel } => {
                        (self.lacking, self.kernel) = (lacking, kernel);
                        self.builder.stream.set_read_timeout(None).context("use the stream to the guest")?;
                        return Ok(());
                    }
                    Report::Failed(failure) => return Err(Failed::Step(failure)),
                    Report::Torn(failure) => {
                        self.torn = true;
                        return Err(Failed::Step(failure));
                    }
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(broken("it took too long").into());
            }
            self.builder.stream.set_read_timeout(Some(left)).context("wait for the guest")?;
            match self.builder.stream.read(&mut buffer) {
                Ok(0) => return Err(broken("its first process ended without a word").into()),
                Ok(n) => self.decoder.feed(&buffer[..n]),
                // Time may be up; or a signal came, after which a read with a time-out is not taken up again.
                Err(e)
                    if matches!(
                        e.kind(),
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => {
                    self.unread = was_not_read(&e);
                    return Err(Error::io("listen to the guest", e).into());
                }
            }
        }
    }
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::Failed, format!("cannot build the box: {why}"))
}

/// Descriptors and what they are for, side by side.
#[derive(Debug, Default)]
pub(super) struct Parcel {
    pub(super) roles: Vec<FdRole>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Parcel {
    pub(super) fn add(&mut self, role: FdRole, fd: OwnedFd) {
        self.roles.push(role);
        self.fds.push(fd);
    }

    pub(super) fn borrow(&self) -> Vec<BorrowedFd<'_>> {
        self.fds.iter().map(AsFd::as_fd).collect()
    }

    /// What every guest gets: its life's lock and its socket.
    pub(super) fn for_box(claim: &crate::home::Claim) -> Result<Parcel> {
        let mut parcel = Parcel::default();
        let (dir, alive) = claim.held()?;
        parcel.add(FdRole::Alive, alive.try_clone().context("copy the lock")?);
        let listener = descriptor::listen_at(dir.as_fd(), "sock", crate::limits::BACKLOG);
        parcel.add(FdRole::Listener, listener.context("make the guest's socket")?);
        Ok(parcel)
    }

    /// Whom it dies with, if anybody.
    pub(super) fn add_owner(&mut self, owner: Option<u32>) -> Result<()> {
        let Some(pid) = owner else { return Ok(()) };
        let fd = process::open(pid as i32).map_err(|e| {
            let message = format!("cannot give the box to process {pid} as its owner: {e}");
            Error::new(ErrorKind::Invalid, message)
        })?;
        self.add(FdRole::Owner, fd);
        Ok(())
    }
}

/// Reads the whole of a small file, for probes.
pub(super) fn read_small(path: impl AsRef<std::path::Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(64 * 1024).read_to_string(&mut text).ok()?;
    Some(text)
}
