//! Clients: what they ask for, and what they send.

use std::ops::ControlFlow;

use super::*;

/// The version from which on hosts know of code. Older ones are not told of it: they would not understand the rest either.
const CODE_SINCE: u32 = 5;

/// Values of commands that are told at once with those whose end nobody has seen: one frame has to hold them.
const SECRETS_TOLD_BYTES: usize = 64 * 1024;

impl Agent {
    pub(super) fn accept(&mut self) -> Result<()> {
        let Some(listener) = &self.listener else { return Ok(()) };
        let fd = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            // One that is gone already, or no descriptor left: the next one has better luck.
            Err(_) => return Ok(()),
            Ok(fd) => fd,
        };
        if self.connections.iter().flatten().count() >= CONNECTIONS_MAX {
            return Ok(());
        }
        let slot = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let connection = Connection::new(fd)?;
        watch(&self.epoll, connection.fd(), Cause::Connection(slot))?;
        self.connections[slot] = Some(connection);
        Ok(())
    }

    pub(super) fn receive(&mut self, n: usize) -> Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let Some(connection) = self.connections.get_mut(n).and_then(Option::as_mut) else {
            self.buffer = buffer;
            return Ok(());
        };
        let open = connection.receive(&mut buffer).unwrap_or(false);
        self.buffer = buffer;
        loop {
            let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
            match connection.next_frame() {
                Ok(Some(frame)) => {
                    if self.frame(n, frame)?.is_break() {
                        return self.disconnect(n);
                    }
                }
                Ok(None) => break,
                // Not made of frames: there is no way back into step.
                Err(_) => return self.disconnect(n),
            }
        }
        if !open {
            return self.disconnect(n);
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, n: usize) -> Result<()> {
        let Some(connection) = self.connections[n].take() else { return Ok(()) };
        if self.hold.as_ref().is_some_and(|hold| hold.connection == n) {
            // Nobody can tell how far it came: the root is looked at anew.
            self.release(After::Restacked(None))?;
        }
        // Who walks for it finds nobody to tell it to; whoever is given its number next has nothing to do with that.
        self.walk.take_if(|walk| walk.is_for(n));
        // An error here means that it is not watched, which is all we want.
        let _ = epoll::delete(&self.epoll, connection.fd());
        for id in connection.tunnels.values() {
            self.tunnels.remove(id);
        }
        for context in self.contexts.values_mut() {
            context.client = context.client.filter(|client| client.0 != n);
        }
        let ids: Vec<u64> = self.execs.keys().copied().collect();
        for id in ids {
            let Some(exec) = self.execs.get_mut(&id) else { continue };
            let was_waited_for = exec.readers.iter().any(|r| r.connection == n && r.waited_for);
            exec.readers.retain(|r| r.connection != n);
            exec.starter = exec.starter.filter(|&starter| starter != n);
            if exec.stdin.as_ref().is_some_and(|stdin| stdin.client.0 == n) {
                exec.stdin = None;
            }
            if exec.main.is_none() && was_waited_for && !exec.background {
                self.kill(id, Exit::Killed { by: Killer::Disconnect })?;
            } else {
                self.watch_outputs(id)?;
            }
        }
        Ok(())
    }

    pub(super) fn frame(&mut self, n: usize, frame: Frame) -> Result<ControlFlow<()>> {
        use ControlFlow::{Break, Continue};
        match frame.kind {
            Kind::Request => match serde_json::from_slice(&frame.body) {
                Ok(request) => self.request(n, frame.stream, request)?,
                Err(e) => {
                    let Some(connection) = self.connections[n].as_mut() else { return Ok(Break(())) };
                    connection.fail(frame.stream, FailureKind::Unsupported, format!("not understood: {e}"));
                }
            },
            Kind::Data => return self.data(n, frame.stream, &frame.body),
            Kind::End => self.data_ended(n, frame.stream)?,
            Kind::Credit => {
                let Ok(bytes) = frame.credit() else { return Ok(Break(())) };
                self.granted(n, frame.stream, bytes)?;
            }
            Kind::Cancel => self.cancelled(n, frame.stream)?,
            Kind::Reply | Kind::Stdout | Kind::Stderr | Kind::Results => return Ok(Break(())),
        }
        Ok(Continue(()))
    }

    pub(super) fn request(&mut self, n: usize, stream: u32, request: Request) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if connection.streams() >= STREAMS_MAX {
            let message = format!("more than {STREAMS_MAX} streams on one connection");
            connection.fail(stream, FailureKind::Limit, message);
            return Ok(());
        }
        if self.pause.is_some() && pausing::is_refused(&request) {
            connection.fail(stream, FailureKind::Paused, pausing::REFUSED);
            return Ok(());
        }
        match request {
            Request::Hello(hello) => {
                connection.version = hello.version;
                connection.reply(stream, &Reply::Hello(Hello { version: VERSION, features: Vec::new() }));
            }
            Request::Ping => connection.reply(stream, &Reply::Ok),
            Request::Exec(spec) => self.exec(n, stream, &spec)?,
            Request::Attach { exec, from, follow } => self.attach(n, stream, exec, from, follow),
            Request::Signal { exec, signal, tree } => self.signal(n, stream, exec, signal, tree),
            Request::Kill { exec } => match self.execs.get(&exec) {
                Some(_) => {
                    self.kill(exec, Exit::Killed { by: Killer::Caller })?;
                    self.reply(n, stream, &Reply::Ok);
                }
                None => self.no_such_exec(n, stream, exec),
            },
            Request::Resize(size) => self.resize(n, stream, size),
            Request::Execs => self.list_execs(n, stream),
            Request::Unrecorded => self.unrecorded(n, stream),
            Request::Recorded { exec } => {
                if let Some(exec) = self.execs.get_mut(&exec) {
                    exec.recorded = true;
                }
                self.forget();
            }
            Request::File { file, user } => self.file(n, stream, file, user.as_deref())?,
            Request::Carry { program, bytes } => self.carry(n, stream, program, bytes),
            Request::Hold { kill, stop, top, settle, same } => {
                self.hold(n, stream, holding::Wish { kill, stop, top, settle, pause: false, same })?
            }
            Request::Dial { port } => self.dial(n, stream, port)?,
            Request::Ports => match crate::ports::listening() {
                Ok(ports) => self.reply(n, stream, &Reply::Ports { ports }),
                Err(e) => self.fail(n, stream, FailureKind::Io, format!("cannot see what listens: {e}")),
            },
            Request::Answer { port } => self.answer(n, stream, port)?,
            Request::CreateContext(spec) => self.create_context(n, stream, *spec)?,
            Request::Contexts => self.list_contexts(n, stream),
            Request::InterruptContext { context } => self.interrupt_context(n, stream, &context)?,
            Request::RestartContext { context } => self.restart_context(n, stream, &context)?,
            Request::DeleteContext { context } => self.delete_context(n, stream, &context)?,
            Request::Pause => self.pause_all(n, stream)?,
            Request::Resume => {
                self.resume_all();
                self.bear_all()?;
                self.reply(n, stream, &Reply::Ok);
            }
            Request::Top { generation } => self.keep_top(n, generation),
            Request::Walk => self.walk(n, stream)?,
            Request::Release { restacked, renewed, generation } => {
                self.released_by(n, stream, After::said(restacked, renewed, generation))?;
            }
            Request::Shutdown => {
                self.end_all(Killer::Destroy);
                self.reply(n, stream, &Reply::Ok);
                self.shutdown = true;
            }
        }
        Ok(())
    }

    fn resize(&mut self, n: usize, stream: u32, size: glasshouse_protocol::TtySize) {
        let Some(connection) = self.connections[n].as_ref() else { return };
        let exec = connection.execs.get(&stream).and_then(|id| self.execs.get(id));
        if let Some(master) = exec.and_then(|exec| exec.terminal.as_ref()) {
            // A terminal that is gone has no size.
            let _ = terminal::resize(master.as_fd(), size.rows, size.cols);
        }
    }

    fn list_execs(&mut self, n: usize, stream: u32) {
        let Some(connection) = self.connections[n].as_ref() else { return };
        let knows_code = connection.version >= CODE_SINCE;
        let is_shown = |exec: &&Exec| !exec.hidden && (knows_code || exec.run.is_none());
        let execs = self.execs.values().filter(is_shown).map(Exec::info).collect();
        self.reply(n, stream, &Reply::Execs { execs });
    }

    /// Tells once of each command that ended with nobody there to see it.
    fn unrecorded(&mut self, n: usize, stream: u32) {
        let knows_code =
            self.connections[n].as_ref().is_some_and(|connection| connection.version >= CODE_SINCE);
        let (mut execs, mut secrets, mut bytes) = (Vec::new(), Vec::new(), 0);
        for exec in self.execs.values_mut() {
            if bytes > SECRETS_TOLD_BYTES {
                // The rest is told to whoever asks next.
                break;
            }
            if exec.run.is_some() && !knows_code {
                continue;
            }
            if exec.report.is_some() && !exec.recorded && !exec.hidden && exec.starter.is_none() {
                exec.recorded = true;
                // Whoever asked will come for its output.
                exec.background = true;
                execs.push(exec.info());
                let own = std::mem::take(&mut exec.secrets);
                bytes += own.iter().map(String::len).sum::<usize>();
                secrets.extend(own);
            }
        }
        secrets.extend(self.config.env.iter().map(|(_, value)| value.clone()));
        self.reply(n, stream, &Reply::Unrecorded { execs, secrets });
    }

    pub(super) fn reply(&mut self, n: usize, stream: u32, reply: &Reply) {
        if let Some(connection) = self.connections[n].as_mut() {
            connection.reply(stream, reply);
        }
    }

    pub(super) fn fail(&mut self, n: usize, stream: u32, kind: FailureKind, message: impl Into<String>) {
        if let Some(connection) = self.connections[n].as_mut() {
            connection.fail(stream, kind, message);
        }
    }

    pub(super) fn no_such_exec(&mut self, n: usize, stream: u32, exec: u64) {
        let message = format!("the box has no command {exec}; `glass ps` lists those that it knows");
        self.fail(n, stream, FailureKind::NotFound, message);
    }

    /// Who a request is to be done as: the account, and the kernel's change of user if one is needed.
    pub(super) fn account(
        &self,
        user: Option<&str>,
    ) -> std::result::Result<(Account, Option<(u32, u32)>), String> {
        let named = user.or(Some(self.config.user.as_str()).filter(|user| !user.is_empty()));
        let account = match named {
            Some(user) => Account::find(user)?,
            None => Account::own(),
        };
        if self.config.apart.is_some() && account.uid == LANDING_USER {
            let message = "is who connects the box with its host; on an engine that does not see the host's files, nobody \
                else can be";
            return Err(format!("user {LANDING_USER} {message}"));
        }
        if self.config.switch_users {
            let ids = (account.uid, account.gid);
            return Ok((account, Some(ids)));
        }
        if account.uid != self.own_uid {
            return Err(format!(
                "this box has only the user {}; create it with --user to choose another",
                self.own_uid
            ));
        }
        Ok((account, None))
    }

    pub(super) fn attach(&mut self, n: usize, stream: u32, exec: u64, from: u64, follow: bool) {
        let Some(exec) = self.execs.get_mut(&exec).filter(|exec| !exec.hidden) else {
            return self.no_such_exec(n, stream, exec);
        };
        exec.readers.push(Reader {
            connection: n,
            stream,
            place: from,
            credit: STREAM_CREDIT,
            follow,
            waited_for: false,
        });
        let (id, pid) = (exec.id, exec.pid as u32);
        if let Some(connection) = self.connections[n].as_mut() {
            connection.execs.insert(stream, id);
            connection.reply(stream, &Reply::Started { exec: id, pid });
        }
    }

    pub(super) fn signal(&mut self, n: usize, stream: u32, exec: u64, signal: i32, tree: bool) {
        let Some(exec) = self.execs.get(&exec) else {
            return self.no_such_exec(n, stream, exec);
        };
        let run = exec.run.filter(|_| exec.main.is_none());
        let result = match &exec.process {
            None if run.is_some() && signal == rustix::process::Signal::INT.as_raw() => {
                self.interrupt_run(run);
                Ok(())
            }
            None if run.is_some() && tree => process::signal_group(exec.pid, signal),
            None if run.is_some() => process::signal_pid(exec.pid, signal),
            None => Ok(()),
            Some(_) if tree => process::signal_group(exec.pid, signal),
            Some(process) => process.signal(signal),
        };
        match result {
            Ok(()) => self.reply(n, stream, &Reply::Ok),
            Err(e) => self.fail(n, stream, FailureKind::Invalid, format!("cannot send signal {signal}: {e}")),
        }
    }

    /// Bytes from a client: for a command's stdin, or for a file.
    pub(super) fn data(&mut self, n: usize, stream: u32, bytes: &[u8]) -> Result<ControlFlow<()>> {
        use ControlFlow::{Break, Continue};
        let Some(connection) = self.connections[n].as_mut() else { return Ok(Break(())) };
        if let Some(upload) = connection.uploads.get_mut(&stream) {
            let Some(credit) = upload.credit.checked_sub(bytes.len() as u64) else { return Ok(Break(())) };
            upload.credit = credit + bytes.len() as u64;
            match upload.write(bytes) {
                Ok(()) => connection.grant(stream, bytes.len() as u64),
                Err(failure) => {
                    connection.uploads.remove(&stream);
                    connection.reply(stream, &Reply::Failed(failure));
                }
            }
            return Ok(Continue(()));
        }
        if connection.carries.contains_key(&stream) {
            return Ok(self.carry_piece(n, stream, bytes));
        }
        if let Some(&id) = connection.tunnels.get(&stream) {
            return self.tunnel_data(id, bytes);
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(Continue(())) };
        let Some(stdin) = self.execs.get_mut(&id).and_then(|exec| exec.stdin.as_mut()) else {
            // The command does not read any more: what comes is thrown away, and so is the wait for it.
            connection.grant(stream, bytes.len() as u64);
            return Ok(Continue(()));
        };
        let Some(credit) = stdin.credit.checked_sub(bytes.len() as u64) else { return Ok(Break(())) };
        stdin.credit = credit;
        stdin.waiting.extend(bytes);
        self.write_stdin(id)?;
        Ok(Continue(()))
    }

    /// The client has given a stream up: a file that was being written is not, a tree's worker ends, a reader is gone.
    pub(super) fn cancelled(&mut self, n: usize, stream: u32) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        connection.uploads.remove(&stream);
        connection.carries.remove(&stream);
        connection.downloads.remove(&stream);
        if let Some(id) = connection.tunnels.remove(&stream) {
            self.tunnels.remove(&id);
        }
        let Some(id) = connection.execs.remove(&stream) else { return Ok(()) };
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        exec.readers.retain(|r| (r.connection, r.stream) != (n, stream));
        if exec.hidden {
            return self.kill(id, Exit::Killed { by: Killer::Caller });
        }
        self.watch_outputs(id)
    }

    pub(super) fn data_ended(&mut self, n: usize, stream: u32) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if let Some(upload) = connection.uploads.remove(&stream) {
            let reply = match upload.finish() {
                Ok(bytes) => Reply::File(FileResult::Done { bytes }),
                Err(failure) => Reply::Failed(failure),
            };
            connection.reply(stream, &reply);
            return Ok(());
        }
        if let Some(carry) = connection.carries.remove(&stream) {
            self.carried(n, stream, carry);
            return Ok(());
        }
        if let Some(&id) = connection.tunnels.get(&stream) {
            return self.tunnel_ended(id);
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(()) };
        if let Some(exec) = self.execs.get_mut(&id)
            && let Some(stdin) = exec.stdin.as_mut()
        {
            if exec.terminal.is_some() {
                // The end of a terminal's input is a character.
                stdin.waiting.push_back(4);
            } else {
                stdin.ended = true;
            }
        }
        self.write_stdin(id)
    }

    pub(super) fn granted(&mut self, n: usize, stream: u32, bytes: u64) -> Result<()> {
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        if let Some(download) = connection.downloads.get_mut(&stream) {
            download.credit = download.credit.saturating_add(bytes).min(2 * STREAM_CREDIT);
        }
        if let Some(tunnel) = connection.tunnels.get(&stream).and_then(|id| self.tunnels.get_mut(id)) {
            tunnel.granted(bytes);
        }
        let Some(&id) = connection.execs.get(&stream) else { return Ok(()) };
        let Some(exec) = self.execs.get_mut(&id) else { return Ok(()) };
        for reader in exec.readers.iter_mut().filter(|r| (r.connection, r.stream) == (n, stream)) {
            reader.credit = reader.credit.saturating_add(bytes).min(2 * STREAM_CREDIT);
        }
        Ok(())
    }

    pub(super) fn file(
        &mut self,
        n: usize,
        stream: u32,
        op: glasshouse_protocol::FileOp,
        user: Option<&str>,
    ) -> Result<()> {
        self.touch()?;
        let (account, ids) = match self.account(user) {
            Ok(found) => found,
            Err(message) => {
                self.fail(n, stream, FailureKind::NotFound, message);
                return Ok(());
            }
        };
        // Without the right to change users there is nobody else to be. Root as its own group needs no change, and keeps
        // the rights of the guest to files.
        let own = (self.own_uid, rustix::process::getgid().as_raw());
        let user = ids.filter(|&ids| ids != own);
        let outcome = files::as_user(user, || files::perform(op, &self.config.cwd))?;
        let Some(connection) = self.connections[n].as_mut() else { return Ok(()) };
        match outcome {
            Ok(Outcome::Done(result)) => connection.reply(stream, &Reply::File(result)),
            Ok(Outcome::Upload(upload)) => {
                connection.uploads.insert(stream, upload.by(user));
                connection.reply(stream, &Reply::Ready);
            }
            Ok(Outcome::Download(download)) => {
                connection.downloads.insert(stream, download);
            }
            Ok(Outcome::Work(op)) => self.work(n, stream, op, &account, ids)?,
            Err(failure) => connection.reply(stream, &Reply::Failed(failure)),
        }
        Ok(())
    }

    /// Hands a whole tree to a process of its own, which is told of as a command is.
    pub(super) fn work(
        &mut self,
        n: usize,
        stream: u32,
        op: glasshouse_protocol::FileOp,
        account: &Account,
        ids: Option<(u32, u32)>,
    ) -> Result<()> {
        if self.running().count() >= EXECS_RUNNING_MAX {
            let message = format!("{EXECS_RUNNING_MAX} commands run in this box already");
            self.fail(n, stream, FailureKind::Limit, message);
            return Ok(());
        }
        let id = self.next_exec;
        self.next_exec += 1;
        let mark = self.tracker.prepare()?;
        let job = files::Job { op, groups: account.groups.clone(), ids };
        match job.start(mark.cgroup(), &self.enter) {
            Ok((child, stdio)) => {
                let pid = child.pid;
                let mut exec = Exec::worker(id, child, stdio, (n, stream), mark);
                exec.readers.push(Reader {
                    connection: n,
                    stream,
                    place: 0,
                    credit: STREAM_CREDIT,
                    follow: true,
                    waited_for: true,
                });
                if let Some(end) = exec.process.as_ref().and_then(Child::end) {
                    watch(&self.epoll, end, Cause::Exit(id))?;
                }
                self.execs.insert(id, exec);
                self.watch_outputs(id)?;
                if let Some(connection) = self.connections[n].as_mut() {
                    connection.execs.insert(stream, id);
                    connection.reply(stream, &Reply::Started { exec: id, pid: pid as u32 });
                }
            }
            Err(e) => {
                self.tracker.release(mark);
                self.fail(n, stream, FailureKind::Io, format!("cannot start the work: {e}"));
            }
        }
        Ok(())
    }
}
