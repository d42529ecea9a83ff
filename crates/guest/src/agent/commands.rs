//! Commands: how they start, what they write, how they end.

use glasshouse_linux::process::How;

use super::*;

/// What a read from a pipe came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PipeRead {
    /// There may be more.
    More,
    /// Nothing more for now, or for ever.
    Empty,
    /// It must not be read now.
    Held,
}

impl Agent {
    /// Children that are nobody's command: orphans of the box. A command's main process is never collected as one of them,
    /// so that its status is not lost; where it has no descriptor, this is how its end is known.
    pub(super) fn reap_strangers(&mut self) -> Result<()> {
        let mut buffer = [0; 1024];
        while rustix::io::read(&self.signals, &mut buffer[..]).is_ok_and(|n| n == buffer.len()) {}
        while let Some(pid) = process::peek_ended()? {
            let is_its = |exec: &&Exec| exec.main.is_none() && exec.process.is_some() && exec.pid == pid;
            match (self.execs.values().find(is_its), self.context_of(pid), self.zygote_of(pid)) {
                (Some(exec), _, _) => self.main_ended(exec.id)?,
                (None, Some(number), _) => self.context_ended(number)?,
                (None, None, Some((which, false))) => self.zygote_ended(which)?,
                (None, None, Some((which, true))) => self.spare_ended(which)?,
                (None, None, None) => {
                    let ended = process::reap_pid(pid)?;
                    self.walk_ended(pid, ended)?;
                }
            }
        }
        self.tracker.tidy();
        Ok(())
    }

    pub(super) fn running(&self) -> impl Iterator<Item = u64> + '_ {
        self.execs.values().filter(|exec| exec.main.is_none()).map(|exec| exec.id)
    }

    pub(super) fn exec(&mut self, n: usize, stream: u32, spec: &ExecSpec) -> Result<()> {
        if let Some(path) = spec.only_without.as_ref().filter(|path| is_there(path)) {
            let message = format!("{path} is there, and the command was to be started only without it");
            self.fail(n, stream, FailureKind::Exists, &message);
            return Ok(());
        }
        self.touch()?;
        if let glasshouse_protocol::Program::Code(code) = &spec.program {
            return self.run_code(n, stream, spec, code);
        }
        let id = self.next_exec;
        self.next_exec += 1;
        match self.start(id, n, stream, spec) {
            Ok(mut exec) => {
                exec.readers.push(Reader {
                    connection: n,
                    stream,
                    place: 0,
                    credit: STREAM_CREDIT,
                    follow: true,
                    waited_for: !spec.background,
                });
                let pid = exec.pid as u32;
                if let Some(end) = exec.process.as_ref().and_then(Child::end) {
                    watch(&self.epoll, end, Cause::Exit(id))?;
                }
                self.execs.insert(id, exec);
                self.watch_outputs(id)?;
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.execs.insert(stream, id);
                    connection.reply(stream, &Reply::Started { exec: id, pid });
                }
            }
            Err(exit) => {
                let report = ExitReport::never_ran(exit);
                self.reply(n, stream, &Reply::Ended { exec: id, report });
            }
        }
        Ok(())
    }

    pub(super) fn start(
        &mut self,
        id: u64,
        n: usize,
        stream: u32,
        spec: &ExecSpec,
    ) -> std::result::Result<Exec, Exit> {
        if self.running().count() >= EXECS_RUNNING_MAX {
            let message = format!("{EXECS_RUNNING_MAX} commands run in this box already");
            return Err(not_started(NotStarted::TooMany, message));
        }
        if let Some(name) = spec.carried.as_ref().filter(|name| !self.programs.contains_key(*name)) {
            let message = format!("no program {name} was carried into this box");
            return Err(not_started(NotStarted::NotFound, message));
        }
        let bad_user = |message| not_started(NotStarted::BadUser, message);
        let (account, ids) = self.account(spec.user.as_deref()).map_err(bad_user)?;
        let mark = self
            .tracker
            .prepare()
            .map_err(|e| not_started(NotStarted::Other, format!("cannot make its cgroup: {e}")))?;
        let before = self.counters();
        self.oom_kills = before.oom_kills;
        let turn = self.next_turn();
        let program = spec.carried.as_ref().and_then(|name| self.programs.get(name));
        let around = self.surroundings(&account, ids, program, turn);
        match Exec::start(id, spec, &around, mark, (n, stream)) {
            Ok(mut exec) => {
                exec.before = before;
                let marked = exec.mark.as_mut().map_or(Ok(()), |mark| self.tracker.started(mark, exec.pid));
                if let Err(e) = marked {
                    // What cannot be told from others could not be killed for certain: it must not run.
                    if let Some(process) = &exec.process {
                        let _ = process.signal(rustix::process::Signal::KILL.as_raw());
                    }
                    let message = format!("its processes cannot be told from others: {e}");
                    return Err(not_started(NotStarted::Other, message));
                }
                Ok(exec)
            }
            Err((exit, mark)) => {
                self.tracker.release(mark);
                Err(exit)
            }
        }
    }

    /// The box's part in a command, or in a context.
    pub(super) fn surroundings<'a>(
        &'a self,
        account: &'a Account,
        ids: Option<(u32, u32)>,
        program: Option<&'a OwnedFd>,
        turn: (u64, i32),
    ) -> Surroundings<'a> {
        let groups = Some(account.groups.clone());
        Surroundings {
            image_env: &self.config.image_env,
            env: &self.config.env,
            cwd: &self.config.cwd,
            bounds: self.bounds(),
            rlimits: &self.config.rlimits,
            account,
            user: ids.map(|(uid, gid)| glasshouse_linux::spawn::User { uid, gid, groups }),
            devpts: self.devpts.as_ref().map(AsFd::as_fd),
            null: self.null.as_fd(),
            landlock: self.landlock.as_ref().map(AsFd::as_fd),
            filter: self.filter.as_ref(),
            enter: &self.enter,
            tag: self.tracker.wants_tag(),
            contained: self.config.contained,
            knobs: &self.knobs,
            program: program.map(AsFd::as_fd),
            pin: self.config.pinned.as_ref().map(|pinned| Pin { pinned, command: turn.0, pid: turn.1 }),
        }
    }

    /// What the box bounds every command by.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds { timeout_ms: self.config.timeout_ms, kept_output_bytes: self.config.kept_output_bytes }
    }

    /// Which command of a deterministic box this is, and the number of its first process. The numbers begin again when
    /// the kernel has no more.
    pub(super) fn next_turn(&mut self) -> (u64, i32) {
        if self.config.pinned.is_none() {
            return (0, 0);
        }
        self.turns += 1;
        let places = (self.pid_max / PIDS_OF_COMMAND - 1).max(1) as u64;
        let place = (self.turns - 1) % places + 1;
        (self.turns, place as i32 * PIDS_OF_COMMAND)
    }

    pub(super) fn counters(&self) -> Counters {
        let read = |fd: &Option<OwnedFd>, key| {
            fd.as_ref().and_then(|fd| cgroup::counter(fd.as_fd(), key).ok()).unwrap_or(0)
        };
        Counters {
            oom_kills: read(&self.oom_events, "oom_kill "),
            pids_refused: read(&self.pids_events, "max "),
        }
    }

    /// Kills the whole tree of a command, for a reason that becomes its end unless it has one already.
    pub(super) fn kill(&mut self, id: u64, why: Exit) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        if let Some(run) = exec.run {
            return self.kill_run(id, run, why);
        }
        if exec.main.is_none() && exec.cause.is_none() {
            exec.cause = Some(why);
        }
        exec.kill_at = None;
        if let Some(mark) = &exec.mark {
            self.tracker.kill(mark)?;
        }
        if let Some(process) = &exec.process {
            process.signal(rustix::process::Signal::KILL.as_raw())?;
        }
        // Nothing is lost by a reader that was too slow: what is in the pipes is read at the end.
        self.watch_outputs(id)
    }

    /// What is over by now.
    pub(super) fn moments(&mut self, now: Instant) -> Result<()> {
        if self.ends_at.is_some_and(|at| at <= now) {
            self.end_all(Killer::Ttl);
            self.shutdown = true;
            return Ok(());
        }
        self.guard_disk(now)?;
        self.give_up_dialling(now)?;
        self.context_moments(now)?;
        self.zygote_moments(now)?;
        let due = |exec: &&Exec| self.has_moments(exec) && exec.next_moment().is_some_and(|at| at <= now);
        let ids: Vec<u64> = self.execs.values().filter(due).map(|exec| exec.id).collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            if exec.main.is_some() {
                self.try_finish(id)?;
                continue;
            }
            if exec.cause.is_none() && exec.deadline.is_some_and(|at| at <= now) {
                let run = exec.ask_to_end(Exit::TimedOut, now);
                self.interrupt_run(run);
            }
            if self.execs.get(&id).and_then(|exec| exec.kill_at).is_some_and(|at| at <= now) {
                self.kill(id, Exit::TimedOut)?;
            }
        }
        Ok(())
    }

    /// While commands run, looks now and then whether they leave the host the room that it wants to keep.
    pub(super) fn guard_disk(&mut self, now: Instant) -> Result<()> {
        let Some(reserve) = self.config.disk_reserve_bytes else { return Ok(()) };
        if self.running().next().is_none() || self.pause.is_some() {
            self.look_at_disk = None;
            return Ok(());
        }
        if self.look_at_disk.is_some_and(|at| at <= now) {
            let free =
                rustix::fs::statvfs("/").map_or(u64::MAX, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
            if free < reserve {
                let running: Vec<u64> = self.running().collect();
                for id in running {
                    self.kill(id, Exit::DiskFull { code: None })?;
                }
            }
            self.look_at_disk = None;
        }
        if self.look_at_disk.is_none() {
            self.look_at_disk = Some(now + DISK_LOOK);
        }
        Ok(())
    }

    pub(super) fn main_ended(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.main.is_none()) else {
            return Ok(());
        };
        let Some(process) = &exec.process else { return Ok(()) };
        let Some(ended) = process.reap()? else { return Ok(()) };
        if let Some(end) = process.end() {
            let _ = epoll::delete(&self.epoll, end);
        }
        exec.process = None;
        exec.main = Some(ended);
        exec.drain_until = Some(Instant::now() + Duration::from_millis(DRAIN_MS));
        exec.stdin = None;
        if exec.cause.is_some()
            && let Some(mark) = &exec.mark
        {
            // It was being ended: what it left behind goes with it.
            self.tracker.kill(mark)?;
        }
        self.try_finish(id)
    }

    /// Ends a command whose main process is gone, once its pipes are at their end or have had their time.
    pub(super) fn try_finish(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        if exec.main.is_none() || exec.report.is_some() {
            return Ok(());
        }
        // What it wrote itself is in the pipes by now and is never given up; the time is for what others still write.
        if !self.drain(id)? {
            return self.watch_outputs(id);
        }
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        let open = exec.outputs.iter().flatten().count() > 0;
        if open && exec.drain_until.is_none_or(|until| Instant::now() < until) {
            return Ok(());
        }
        for output in std::mem::take(&mut exec.outputs).into_iter().flatten() {
            if output.watched {
                epoll::delete(&self.epoll, &output.fd)?;
            }
            hold(&self.epoll, &mut self.held, output)?;
        }
        let mark = exec.mark.take();
        let succeeded = exec.cause.is_none() && exec.main.is_some_and(|main| main.how == How::Code(0));
        let cpu_us = mark.as_ref().and_then(|mark| self.tracker.cpu_us(mark));
        let after = self.counters();
        // Only a bad end is looked into further.
        let peak = self.memory_peak.as_ref().filter(|_| !succeeded);
        let peak = peak.and_then(|fd| cgroup::counter(fd.as_fd(), "").ok());
        if let Some(exec) = self.execs.get_mut(&id) {
            exec.finish(cpu_us, after, peak, !succeeded && disk_full());
            if exec.background {
                // It stays a while. Where it cannot be stowed, it stays where it is.
                let _ = exec.log.stow();
            }
        }
        if let Some(mark) = mark {
            self.tracker.release(mark);
        }
        self.forget();
        Ok(())
    }

    /// Lets the oldest ended commands go that are beyond what is kept, and those that nobody can ask for again.
    pub(super) fn forget(&mut self) {
        let done = |exec: &Exec| exec.report.is_some() && exec.readers.is_empty();
        self.execs.retain(|_, exec| !(done(exec) && (exec.hidden || (exec.recorded && !exec.background))));
        let mut cost: usize = self.execs.values().map(|exec| exec.log.cost()).sum();
        let mut ended: Vec<(u64, usize)> =
            self.execs.values().filter(|exec| done(exec)).map(|exec| (exec.id, exec.log.cost())).collect();
        ended.reverse();
        let mut left = ended.len();
        while let Some((id, size)) = ended.pop() {
            if left <= EXECS_ENDED_MAX && cost as u64 <= KEPT_TOTAL_BYTES {
                break;
            }
            self.execs.remove(&id);
            left -= 1;
            cost -= size;
        }
    }

    pub(super) fn watch_outputs(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        let wanted = exec.may_read();
        for (which, output) in exec.outputs.iter_mut().enumerate() {
            let Some(output) = output else { continue };
            if wanted && !output.watched {
                watch(&self.epoll, output.fd.as_fd(), Cause::Output(id, which))?;
            } else if !wanted && output.watched {
                epoll::delete(&self.epoll, &output.fd)?;
            }
            output.watched = wanted;
        }
        Ok(())
    }

    pub(super) fn read_output(&mut self, id: u64, which: usize) -> Result<()> {
        for _ in 0..PIPE_READS_MAX {
            if self.read_once(id, which)? != PipeRead::More {
                break;
            }
        }
        self.watch_outputs(id)?;
        self.try_finish(id)
    }

    /// Reads once from a pipe of a command, unless a reader that it waits for is too far behind.
    fn read_once(&mut self, id: u64, which: usize) -> Result<PipeRead> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(PIPE_BYTES, 0);
        let result = self.read_into(&mut buffer, id, which);
        self.buffer = buffer;
        result
    }

    fn read_into(&mut self, buffer: &mut [u8], id: u64, which: usize) -> Result<PipeRead> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(PipeRead::Empty) };
        let may_read = exec.may_read();
        let Some(output) = &mut exec.outputs[which] else { return Ok(PipeRead::Empty) };
        if !may_read {
            return Ok(PipeRead::Held);
        }
        match rustix::io::read(&output.fd, &mut *buffer) {
            Err(rustix::io::Errno::INTR) => Ok(PipeRead::More),
            Err(rustix::io::Errno::AGAIN) => Ok(PipeRead::Empty),
            // A terminal whose other side is closed answers with EIO.
            Ok(0) | Err(_) => {
                if output.watched {
                    epoll::delete(&self.epoll, &output.fd)?;
                }
                exec.outputs[which] = None;
                Ok(PipeRead::Empty)
            }
            Ok(n) => {
                output.was_read(n);
                let stream = match which {
                    0 => OutputStream::Stdout,
                    1 => OutputStream::Stderr,
                    _ => OutputStream::Results,
                };
                if exec.wrote(stream, &buffer[..n]) {
                    self.kill(id, Exit::OutputLimit)?;
                }
                Ok(PipeRead::More)
            }
        }
    }

    /// Reads all that a command whose main process is gone has left in its pipes. Whether that was all. What others go on writing
    /// there is read as it comes: whoever waited for its end here would let nobody else have a turn.
    fn drain(&mut self, id: u64) -> Result<bool> {
        for which in 0..OUTPUTS {
            loop {
                let read = self.read_once(id, which)?;
                let exec = self.execs.get_mut(&id);
                let output = exec.and_then(|exec| exec.outputs[which].as_mut());
                let owed = read != PipeRead::Empty && output.is_some_and(Output::is_owed);
                match read {
                    PipeRead::More if owed => {}
                    PipeRead::Held if owed => return Ok(false),
                    _ => break,
                }
            }
        }
        Ok(true)
    }

    pub(super) fn drain_held(&mut self, n: usize) {
        let mut buffer = [0; 16 * 1024];
        let Some(fd) = self.held.get(n).and_then(Option::as_ref) else { return };
        match rustix::io::read(fd, &mut buffer[..]) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(n) if n > 0 => {}
            _ => self.held[n] = None,
        }
    }

    pub(super) fn write_stdin(&mut self, id: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        let Some(stdin) = exec.stdin.as_mut() else { return Ok(()) };
        let (n, stream) = stdin.client;
        let mut written = 0;
        let mut gone = false;
        while !stdin.waiting.is_empty() {
            let (front, _) = stdin.waiting.as_slices();
            match rustix::io::write(&stdin.fd, front) {
                Ok(n) => {
                    stdin.waiting.drain(..n);
                    written += n as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Err(_) => {
                    gone = true;
                    written += stdin.waiting.len() as u64;
                    break;
                }
            }
        }
        stdin.credit += written;
        let wants = !stdin.waiting.is_empty() && !gone;
        if wants && !stdin.watched {
            let data = EventData::new_u64(Cause::Stdin(id).token());
            epoll::add(&self.epoll, &stdin.fd, data, EventFlags::OUT)?;
        } else if !wants && stdin.watched {
            epoll::delete(&self.epoll, &stdin.fd)?;
        }
        stdin.watched = wants;
        if gone || (stdin.ended && stdin.waiting.is_empty()) {
            exec.stdin = None;
        }
        if written > 0
            && let Some(connection) = self.connections[n].as_mut()
        {
            connection.grant(stream, written);
        }
        Ok(())
    }
}

fn hold(epoll: &OwnedFd, held: &mut Vec<Option<OwnedFd>>, output: Output) -> Result<()> {
    let slot = match held.iter().position(Option::is_none) {
        Some(slot) => slot,
        None if held.len() < HELD_PIPES_MAX => {
            held.push(None);
            held.len() - 1
        }
        // Too many: this one is closed, and its writers learn it.
        None => return Ok(()),
    };
    watch(epoll, output.fd.as_fd(), Cause::Held(slot))?;
    held[slot] = Some(output.fd);
    Ok(())
}

/// Whether anything is at a path. In doubt there is.
fn is_there(path: &str) -> bool {
    use rustix::io::Errno;
    !matches!(rustix::fs::lstat(path), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Whether nothing more can be written to the root.
fn disk_full() -> bool {
    rustix::fs::statvfs("/")
        .is_ok_and(|fs| fs.f_blocks > 0 && (fs.f_bavail == 0 || (fs.f_files > 0 && fs.f_favail == 0)))
}
