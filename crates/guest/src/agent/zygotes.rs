//! Zygotes: when they start, how contexts are forked from them, how they end. What they are is in `zygote`.

use glasshouse_protocol::limits::{CONTEXT_START_MS, FORK_MS, ZYGOTES_MAX};
use glasshouse_protocol::plan::Tracking;
use glasshouse_protocol::{ContextSpec, Language};

use super::*;
use crate::context::{self, Line, Process, State as ContextStands, Warmth};
use crate::zygote::{Birth, State, Zygote};

/// What a fork says first.
const BORN: &[u8] = b"born\n";

impl Agent {
    /// Why a context like this cannot be forked here.
    pub(super) fn why_cold(&self, spec: &ContextSpec) -> Option<&'static str> {
        if spec.language != Language::Python {
            return Some("only Python is kept warm");
        }
        if self.config.pinned.is_some() {
            return Some("in a deterministic box every interpreter is started anew");
        }
        if self.config.tracking == Tracking::Tag {
            return Some("without cgroups, forks of one interpreter could not be told apart");
        }
        None
    }

    /// Has a context wait for a fork of the zygote of its kind, which is started if there is none.
    pub(super) fn await_fork(&mut self, number: u64) -> Result<()> {
        let Some(context) = self.contexts.get(&number) else { return Ok(()) };
        let kind = Zygote::kind_of(&context.spec);
        let found = self.zygotes.iter().find(|(_, zygote)| zygote.kind == kind).map(|(n, _)| *n);
        let which = match found {
            Some(which) => which,
            None => match self.start_zygote(kind)? {
                Ok(which) => which,
                Err(failure) => return self.never_started(number, failure),
            },
        };
        if let Some(zygote) = self.zygotes.get_mut(&which) {
            zygote.waiting.push_back(number);
            zygote.used = number;
        }
        self.serve(which)
    }

    fn start_zygote(&mut self, kind: ContextSpec) -> Result<std::result::Result<u64, Failure>> {
        if self.zygotes.len() >= ZYGOTES_MAX {
            let oldest = self.zygotes.iter().min_by_key(|(_, zygote)| zygote.used).map(|(n, _)| *n);
            if let Some(oldest) = oldest {
                self.lose_zygote(oldest, "another one took its place")?;
            }
        }
        let directory = match kind.cwd.as_deref() {
            Some(cwd) if cwd.starts_with('/') => cwd.to_owned(),
            Some(cwd) => format!("{}/{cwd}", self.config.cwd.trim_end_matches('/')),
            None => self.config.cwd.clone(),
        };
        let (command, source) = context::zygote_command(&kind, &directory)?;
        let clean = !self.touched;
        // One that may outlive the root must not be fenced into it.
        let fenced = !clean && self.landlock.is_some();
        let (process, ids) = match self.launch_interpreter(&kind, &command, &source, fenced) {
            Ok(launched) => launched,
            Err(failure) => return Ok(Err(failure)),
        };
        let which = self.next_zygote;
        self.next_zygote += 1;
        watch(&self.epoll, process.line.as_fd(), Cause::Zygote(which))?;
        if let Some(end) = process.child.end() {
            watch(&self.epoll, end, Cause::ZygoteEnd(which))?;
        }
        let until = Instant::now() + Duration::from_millis(CONTEXT_START_MS);
        let zygote = Zygote {
            kind,
            process,
            state: State::Starting(until),
            clean,
            standing: None,
            fenced,
            birth: None,
            spare: None,
            waiting: Default::default(),
            used: 0,
            ids,
        };
        self.zygotes.insert(which, zygote);
        self.note_zygotes();
        Ok(Ok(which))
    }

    /// Something of the caller's is about to be in the box. A zygote that is to outlive it has to be there before.
    pub(super) fn touch(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.touched, true) {
            return Ok(());
        }
        let is_young = |zygote: &Zygote| zygote.clean && zygote.state != State::Ready;
        let young: Vec<u64> = self.zygotes.iter().filter(|(_, z)| is_young(z)).map(|(n, _)| *n).collect();
        for which in young {
            for number in self.end_zygote(which)? {
                self.await_fork(number)?;
            }
        }
        Ok(())
    }

    /// A zygote has said something.
    pub(super) fn zygote_spoke(&mut self, which: u64) -> Result<()> {
        loop {
            let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
            let text = match zygote.process.next_line() {
                Ok(Some(text)) => text,
                Ok(None) => return Ok(()),
                // How it ended is known when it has.
                Err(_) if zygote.process.is_closed() => {
                    // It may have been found closed before.
                    let _ = epoll::delete(&self.epoll, &zygote.process.line);
                    return Ok(());
                }
                Err(why) => return self.lose_zygote(which, &why),
            };
            let (word, rest) = text.split_once(' ').unwrap_or((&text, ""));
            match (word, zygote.state) {
                ("ready", State::Starting(_)) => {
                    zygote.state = State::Ready;
                    zygote.process.is_there();
                    zygote.standing =
                        self.tracker.standing(zygote.process.pid).filter(|_| zygote.clean && !self.touched);
                    zygote.clean = zygote.standing.is_some();
                    self.serve(which)?;
                }
                ("unable", State::Starting(_)) => return self.lose_zygote(which, rest),
                ("failed", State::Starting(_)) => {
                    let message = format!("cannot keep an interpreter warm: {rest}");
                    for number in self.end_zygote(which)? {
                        let failure = Failure { kind: FailureKind::Invalid, message: message.clone() };
                        self.never_started(number, failure)?;
                    }
                    return Ok(());
                }
                _ => return self.lose_zygote(which, "it spoke out of turn"),
            }
        }
    }

    /// Gives those who wait what there is, and sees to it that there is a spare.
    fn serve(&mut self, which: u64) -> Result<()> {
        loop {
            let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
            if zygote.spare.is_none() {
                break;
            }
            let Some(number) = zygote.waiting.pop_front() else { break };
            self.hand_over_spare(which, number)?;
        }
        self.bear(which)
    }

    /// Has a zygote make a fork, if it has none to spare and nothing has to stand still.
    fn bear(&mut self, which: u64) -> Result<()> {
        let stands_still = self.hold.is_some() || self.pause.is_some();
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        if stands_still || zygote.state != State::Ready || zygote.birth.is_some() || zygote.spare.is_some() {
            return Ok(());
        }
        let mark = match self.tracker.prepare() {
            Ok(mark) => mark,
            Err(e) => return self.not_born(which, &format!("cannot make its cgroup: {e}")),
        };
        let asked = (|| {
            let line = Line::silent()?;
            descriptor::ask_who(line.ours.as_fd(), true)?;
            let cgroup = mark.entrance()?;
            let mut fds = vec![line.theirs.as_fd(), line.their_noise.as_fd()];
            fds.extend(cgroup.as_ref().map(AsFd::as_fd));
            descriptor::send_with_fds(zygote.process.line.as_fd(), b"fork\n", &fds)?;
            watch(&self.epoll, line.ours.as_fd(), Cause::Spare(which))?;
            // It may have been stopped by whoever is of its user.
            zygote.process.child.signal(rustix::process::Signal::CONT.as_raw())?;
            Ok::<_, io::Error>((line.ours, line.noise))
        })();
        match asked {
            Ok((line, noise)) => {
                let until = Instant::now() + Duration::from_millis(FORK_MS);
                zygote.birth = Some(Birth { line, noise, mark, until });
                Ok(())
            }
            Err(e) => {
                self.tracker.release(mark);
                self.lose_zygote(which, &format!("it cannot be told to fork: {e}"))
            }
        }
    }

    /// Something came from a fork that is not a context yet.
    pub(super) fn spare_spoke(&mut self, which: u64) -> Result<()> {
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        let Some(birth) = &zygote.birth else {
            let is_silent = |spare: &mut Process| matches!(spare.next_line(), Ok(None));
            return match zygote.spare.as_mut().is_none_or(is_silent) {
                true => Ok(()),
                false => self.discard_spare(which),
            };
        };
        let mut buffer = [0; 16];
        match descriptor::receive_from(birth.line.as_fd(), &mut buffer) {
            Ok((n, Some(pid))) if buffer[..n] == *BORN => match self.is_born(which, pid) {
                Ok(()) => self.serve(which),
                Err(e) => self.not_born(which, &e.to_string()),
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            _ => self.not_born(which, "it could not be forked"),
        }
    }

    /// A fork is there: our child, in its own cgroup.
    fn is_born(&mut self, which: u64, pid: i32) -> io::Result<()> {
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        let Some(birth) = &mut zygote.birth else { return Ok(()) };
        let child = Child::adopted(pid)?;
        // Nobody else has the other end of its line. As long as that is open, the number is its own.
        let mut byte = [0];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        match rustix::net::recv(&birth.line, &mut byte[..], flags) {
            Err(rustix::io::Errno::AGAIN) => {}
            _ => return Err(io::Error::other("it has ended already")),
        }
        self.tracker.started(&mut birth.mark, pid)?;
        if !birth.mark.is_inhabited() {
            return Err(io::Error::other("it is not in its own cgroup"));
        }
        descriptor::ask_who(birth.line.as_fd(), false)?;
        if let Some(end) = child.end() {
            watch(&self.epoll, end, Cause::SpareEnd(which))?;
        }
        if let Some(Birth { line, noise, mark, .. }) = zygote.birth.take() {
            zygote.spare = Some(Process::new(child, mark, (line, noise), zygote.ids));
        }
        self.note_zygotes();
        Ok(())
    }

    /// Nothing came of a fork. Who waits for it is not kept waiting.
    fn not_born(&mut self, which: u64, why: &str) -> Result<()> {
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        let waiting = std::mem::take(&mut zygote.waiting);
        if let Some(birth) = zygote.birth.take() {
            self.end_birth(birth)?;
        }
        self.start_all_cold(waiting, why)
    }

    /// Makes a context of a spare.
    fn hand_over_spare(&mut self, which: u64, number: u64) -> Result<()> {
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        // It may have been deleted meanwhile.
        let Some(context) = self.contexts.get_mut(&number).filter(|context| context.is_awaited()) else {
            return Ok(());
        };
        let Some(spare) = &zygote.spare else { return Ok(()) };
        let fence = self.landlock.as_ref().filter(|_| !zygote.fenced).map(AsFd::as_fd);
        let word = format!(
            "become {} {} {}\n",
            if fence.is_some() { "fenced" } else { "open" },
            if self.config.contained { "free" } else { "bound" },
            std::process::id()
        );
        let fds: Vec<BorrowedFd<'_>> = fence.into_iter().collect();
        if descriptor::send_with_fds(spare.line.as_fd(), word.as_bytes(), &fds).is_err() {
            // It has just ended. The next one is his who has waited.
            zygote.waiting.push_front(number);
            return self.discard_spare(which);
        }
        let again = |fd: BorrowedFd<'_>, cause: Cause| {
            epoll::modify(&self.epoll, fd, EventData::new_u64(cause.token()), EventFlags::IN)
        };
        again(spare.line.as_fd(), Cause::ContextLine(number))?;
        if let Some(end) = spare.child.end() {
            again(end, Cause::ContextEnd(number))?;
        }
        // As with a zygote. One that is stopped again and again is given up.
        spare.child.signal(rustix::process::Signal::CONT.as_raw())?;
        context.process = zygote.spare.take();
        context.warmth = Warmth::Forked;
        context.state = ContextStands::Starting(Instant::now() + Duration::from_millis(FORK_MS));
        self.note_zygotes();
        Ok(())
    }

    /// A fork that was to be a context has never said hello, for this reason: the context is started cold. Whether it was one.
    pub(super) fn was_a_fork(&mut self, number: u64, why: &str) -> Result<bool> {
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(false) };
        if context.warmth != Warmth::Forked || !matches!(context.state, ContextStands::Starting(_)) {
            return Ok(false);
        }
        context.warmth = Warmth::Awaited;
        if let Some(process) = context.process.take() {
            self.put_down(process)?;
        }
        self.start_all_cold([number], &format!("its fork was lost: {why}"))?;
        Ok(true)
    }

    fn discard_spare(&mut self, which: u64) -> Result<()> {
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        let Some(spare) = zygote.spare.take() else { return Ok(()) };
        self.note_zygotes();
        self.put_down(spare)
    }

    /// Kills an interpreter that is no context. Its number is collected as a stranger's.
    fn put_down(&mut self, process: Process) -> Result<()> {
        // What was closed is not watched any more.
        let _ = epoll::delete(&self.epoll, &process.line);
        if let Some(end) = process.child.end() {
            let _ = epoll::delete(&self.epoll, end);
        }
        process.child.signal(rustix::process::Signal::KILL.as_raw())?;
        self.tracker.kill(&process.mark)?;
        self.tracker.release(process.mark);
        Ok(())
    }

    fn end_birth(&mut self, birth: Birth) -> Result<()> {
        let _ = epoll::delete(&self.epoll, &birth.line);
        self.tracker.kill(&birth.mark)?;
        self.tracker.release(birth.mark);
        Ok(())
    }

    /// A zygote, or its spare, has ended. One that was stopped or killed by whoever is of its user is missed by nobody.
    pub(super) fn zygote_ended(&mut self, which: u64) -> Result<()> {
        // What it said before comes first.
        self.zygote_spoke(which)?;
        let Some(zygote) = self.zygotes.get_mut(&which) else { return Ok(()) };
        let Some(ended) = zygote.process.child.reap()? else { return Ok(()) };
        let why = match (ended.how, zygote.process.last_noise()) {
            (process::How::Code(code), None) => format!("it ended with code {code}"),
            (process::How::Code(code), Some(noise)) => format!("it ended with code {code}: {noise}"),
            (process::How::Signal(signal), _) => format!("it was ended by signal {signal}"),
        };
        self.lose_zygote(which, &why)
    }

    pub(super) fn spare_ended(&mut self, which: u64) -> Result<()> {
        let Some(spare) = self.zygotes.get_mut(&which).and_then(|zygote| zygote.spare.as_ref()) else {
            return Ok(());
        };
        match spare.child.reap()? {
            Some(_) => self.discard_spare(which),
            None => Ok(()),
        }
    }

    /// The zygote that a process of this number is, or whose spare it is.
    pub(super) fn zygote_of(&self, pid: i32) -> Option<(u64, bool)> {
        let of = self.zygotes.iter().find(|(_, zygote)| zygote.pids().any(|own| own == pid));
        of.map(|(which, zygote)| (*which, zygote.process.pid != pid))
    }

    /// Ends a zygote. Who waits for it starts cold.
    fn lose_zygote(&mut self, which: u64, why: &str) -> Result<()> {
        let waiting = self.end_zygote(which)?;
        self.start_all_cold(waiting, why)
    }

    fn start_all_cold(&mut self, numbers: impl IntoIterator<Item = u64>, why: &str) -> Result<()> {
        for number in numbers {
            if let Some(context) = self.contexts.get_mut(&number).filter(|context| context.is_awaited()) {
                context.warmth = Warmth::Cold(format!("the interpreter that is kept warm: {why}"));
                context.state =
                    ContextStands::Starting(Instant::now() + Duration::from_millis(CONTEXT_START_MS));
                self.start_cold(number)?;
            }
        }
        Ok(())
    }

    /// Ends a zygote. Those who wait for it come back.
    fn end_zygote(&mut self, which: u64) -> Result<Vec<u64>> {
        let Some(zygote) = self.zygotes.remove(&which) else { return Ok(Vec::new()) };
        self.note_zygotes();
        for process in [Some(zygote.process), zygote.spare].into_iter().flatten() {
            self.put_down(process)?;
        }
        if let Some(birth) = zygote.birth {
            self.end_birth(birth)?;
        }
        Ok(zygote.waiting.into())
    }

    /// The box is about to be killed. Those zygotes live on that may, if `same` says that its root will be what it was.
    pub(super) fn end_zygotes(&mut self, same: bool) -> Result<()> {
        let may_stay = |zygote: &Zygote| same && zygote.clean && zygote.state == State::Ready;
        let going: Vec<u64> = self.zygotes.iter().filter(|(_, z)| !may_stay(z)).map(|(n, _)| *n).collect();
        for which in going {
            self.end_zygote(which)?;
        }
        Ok(())
    }

    /// The box has another root. Nothing but us and zygotes is there if it was `cleared`, and those only that stand as they stood.
    pub(super) fn check_zygotes(&mut self, cleared: bool) -> Result<()> {
        if !cleared {
            // What it began with, from now on, is not what they were started on.
            self.zygotes.values_mut().for_each(|zygote| zygote.clean = false);
            return Ok(());
        }
        self.touched = false;
        let stands = |pid: i32, zygote: &Zygote| {
            zygote.standing.is_some() && self.tracker.standing(pid) == zygote.standing
        };
        let fallen = |zygote: &Zygote| !zygote.pids().all(|pid| stands(pid, zygote));
        let going: Vec<u64> = self.zygotes.iter().filter(|(_, z)| fallen(z)).map(|(n, _)| *n).collect();
        for which in going {
            self.end_zygote(which)?;
        }
        Ok(())
    }

    /// Whether a fork is on its way. It is waited for before anything is stopped or killed: nobody knows its number yet.
    pub(super) fn is_bearing(&self) -> bool {
        self.zygotes.values().any(|zygote| zygote.birth.is_some())
    }

    /// Makes the spares that could not be made while everything stood still.
    pub(super) fn bear_all(&mut self) -> Result<()> {
        let all: Vec<u64> = self.zygotes.keys().copied().collect();
        all.into_iter().try_for_each(|which| self.serve(which))
    }

    /// Zygotes and their spares are nothing that runs in the box.
    fn note_zygotes(&mut self) {
        self.tracker.exempt(self.zygotes.values().flat_map(Zygote::pids).collect());
    }

    pub(super) fn zygote_moment(&self) -> Option<Instant> {
        let moments = self.zygotes.values().filter_map(Zygote::given_up_at);
        moments.min().filter(|_| self.pause.is_none())
    }

    /// Gives up those that are late.
    pub(super) fn zygote_moments(&mut self, now: Instant) -> Result<()> {
        if self.pause.is_some() {
            return Ok(());
        }
        let is_late = |zygote: &Zygote| zygote.given_up_at().is_some_and(|at| at <= now);
        let late: Vec<u64> = self.zygotes.iter().filter(|(_, z)| is_late(z)).map(|(n, _)| *n).collect();
        for which in late {
            let why = match self.zygotes.get(&which).map(|zygote| zygote.state) {
                Some(State::Ready) => format!("nothing was forked from it within {FORK_MS} ms"),
                _ => format!("it was not ready after {CONTEXT_START_MS} ms"),
            };
            self.lose_zygote(which, &why)?;
        }
        Ok(())
    }
}
