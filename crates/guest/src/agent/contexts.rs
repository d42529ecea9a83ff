//! Contexts: how they start, what is run in them, how they end. The words that pass are in `context`.

use glasshouse_linux::process::{Ended, How};
use glasshouse_protocol::limits::{CODE_BYTES_MAX, CONTEXT_NAME_MAX, CONTEXT_START_MS, CONTEXTS_MAX};
use glasshouse_protocol::{Code, ContextSpec, Language};

use super::*;
use crate::context::{self, Context, Line, Process, State, Warmth, Word};
use crate::exec::{Run, launch, now_ms};
use crate::zygote;

/// How long an interpreter that has closed the line may take to end. One that ends closes it a little before.
const ENDING: Duration = Duration::from_secs(1);

impl Agent {
    pub(super) fn create_context(&mut self, n: usize, stream: u32, spec: ContextSpec) -> Result<()> {
        let id = match &spec.id {
            Some(id) => id.clone(),
            None => self.free_name(),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
        if id.is_empty() || id.len() > CONTEXT_NAME_MAX || !id.chars().all(plain) {
            let message =
                format!("a context's name has up to {CONTEXT_NAME_MAX} letters, digits, `-`, `_` and `.`");
            self.fail(n, stream, FailureKind::Invalid, message);
            return Ok(());
        }
        if self.context_called(&id).is_some() {
            self.fail(n, stream, FailureKind::Exists, format!("the box has a context {id} already"));
            return Ok(());
        }
        if let Some(message) = spec.warm.as_ref().and_then(|warm| zygote::bad_imports(&warm.imports)) {
            self.fail(n, stream, FailureKind::Invalid, message);
            return Ok(());
        }
        // Without it there is none: what is named is not looked for among the box's own programs.
        let is_there = |name: &String| self.programs.contains_key(name);
        if (spec.language == Language::Jupyter) != spec.carried.as_ref().is_some_and(is_there) {
            let message = "a context of Jupyter, and no other, needs a program that was carried in";
            self.fail(n, stream, FailureKind::Invalid, message);
            return Ok(());
        }
        if self.contexts.len() >= CONTEXTS_MAX {
            let message = format!("the box has {CONTEXTS_MAX} contexts already; delete one");
            self.fail(n, stream, FailureKind::Limit, message);
            return Ok(());
        }
        self.open_context(n, stream, id, spec)
    }

    pub(super) fn restart_context(&mut self, n: usize, stream: u32, id: &str) -> Result<()> {
        let Some(number) = self.context_called(id) else { return self.no_such_context(n, stream, id) };
        self.end_context(number, Exit::Killed { by: Killer::Caller }, "it was restarted")?;
        match self.contexts.remove(&number) {
            Some(context) => self.open_context(n, stream, context.id, context.spec),
            None => Ok(()),
        }
    }

    pub(super) fn delete_context(&mut self, n: usize, stream: u32, id: &str) -> Result<()> {
        let Some(number) = self.context_called(id) else { return self.no_such_context(n, stream, id) };
        self.end_context(number, Exit::Killed { by: Killer::Caller }, "it was deleted")?;
        self.contexts.remove(&number);
        self.reply(n, stream, &Reply::Ok);
        Ok(())
    }

    pub(super) fn interrupt_context(&mut self, n: usize, stream: u32, id: &str) -> Result<()> {
        let Some(number) = self.context_called(id) else { return self.no_such_context(n, stream, id) };
        if let Some(context) = self.contexts.get_mut(&number) {
            context.interrupt();
        }
        self.reply(n, stream, &Reply::Ok);
        Ok(())
    }

    /// Interrupts what runs in a context.
    pub(super) fn interrupt_run(&mut self, run: Option<Run>) {
        if let Some(context) = run.and_then(|run| self.contexts.get_mut(&run.context)) {
            context.interrupt();
        }
    }

    pub(super) fn list_contexts(&mut self, n: usize, stream: u32) {
        let contexts = self.contexts.values().map(Context::info).collect();
        self.reply(n, stream, &Reply::Contexts { contexts });
    }

    /// Kills all contexts and forgets them.
    pub(super) fn end_contexts(&mut self, cause: &Exit, why: &str) -> Result<()> {
        let numbers: Vec<u64> = self.contexts.keys().copied().collect();
        for number in numbers {
            self.end_context(number, cause.clone(), why)?;
            self.contexts.remove(&number);
        }
        self.context_names = 0;
        Ok(())
    }

    fn context_called(&self, id: &str) -> Option<u64> {
        self.contexts.iter().find(|(_, context)| context.id == id).map(|(number, _)| *number)
    }

    /// The context whose interpreter has this number.
    pub(super) fn context_of(&self, pid: i32) -> Option<u64> {
        let is_its = |context: &Context| context.process.as_ref().is_some_and(|process| process.pid == pid);
        self.contexts.iter().find(|(_, context)| is_its(context)).map(|(number, _)| *number)
    }

    fn no_such_context(&mut self, n: usize, stream: u32, id: &str) -> Result<()> {
        let shown: String = id.chars().take(CONTEXT_NAME_MAX).collect();
        let message = format!("the box has no context {shown}; `glass context list` shows those that it has");
        self.fail(n, stream, FailureKind::NotFound, message);
        Ok(())
    }

    fn free_name(&mut self) -> String {
        loop {
            self.context_names += 1;
            let name = format!("c{}", self.context_names);
            if self.context_called(&name).is_none() {
                return name;
            }
        }
    }

    fn open_context(&mut self, n: usize, stream: u32, id: String, spec: ContextSpec) -> Result<()> {
        let warmth = match spec.warm.as_ref().map(|_| self.why_cold(&spec)) {
            None => Warmth::None,
            Some(None) => Warmth::Awaited,
            Some(Some(why)) => Warmth::Cold(why.to_owned()),
        };
        let is_awaited = warmth == Warmth::Awaited;
        let number = self.next_context;
        self.next_context += 1;
        let until = Instant::now() + Duration::from_millis(CONTEXT_START_MS);
        let context = Context {
            spec,
            id,
            version: None,
            started_ms: now_ms(),
            state: State::Starting(until),
            runs: 0,
            process: None,
            client: Some((n, stream)),
            warmth,
        };
        self.contexts.insert(number, context);
        if is_awaited { self.await_fork(number) } else { self.start_cold(number) }
    }

    /// Starts the interpreter of a context that has none.
    pub(super) fn start_cold(&mut self, number: u64) -> Result<()> {
        self.touch()?;
        let Some(context) = self.contexts.get(&number) else { return Ok(()) };
        let spec = context.spec.clone();
        let (command, driver) = context::command(&spec);
        let process = match self.launch_interpreter(&spec, &command, &driver, true) {
            Ok((process, _)) => process,
            Err(failure) => return self.never_started(number, failure),
        };
        if let Some(end) = process.child.end() {
            watch(&self.epoll, end, Cause::ContextEnd(number))?;
        }
        watch(&self.epoll, process.line.as_fd(), Cause::ContextLine(number))?;
        if let Some(context) = self.contexts.get_mut(&number) {
            context.process = Some(process);
        }
        Ok(())
    }

    /// A context came to nothing, so there is nothing to remember.
    pub(super) fn never_started(&mut self, number: u64, failure: Failure) -> Result<()> {
        let client = self.contexts.remove(&number).and_then(|context| context.client);
        if let Some((n, stream)) = client {
            self.reply(n, stream, &Reply::Failed(failure));
        }
        Ok(())
    }

    /// Starts an interpreter, inside the same walls as any command, but for Landlock's fence if it is not to be `fenced`. And whom
    /// we have to be to make files of its user's.
    pub(super) fn launch_interpreter(
        &mut self,
        spec: &ContextSpec,
        command: &ExecSpec,
        driver: &str,
        fenced: bool,
    ) -> std::result::Result<(Process, Option<(u32, u32)>), Failure> {
        let failure = |kind, message| Failure { kind, message };
        let io = |e: io::Error| failure(FailureKind::Io, format!("cannot start an interpreter: {e}"));
        let (account, ids) =
            self.account(spec.user.as_deref()).map_err(|message| failure(FailureKind::NotFound, message))?;
        let line = Line::new(driver).map_err(io)?;
        let code = context::code_file(spec.language).map_err(io)?;
        let mut mark = self.tracker.prepare().map_err(io)?;
        let turn = self.next_turn();
        let mut around = self.surroundings(&account, ids, None, turn);
        around.landlock = around.landlock.filter(|_| fenced);
        around.program = command.carried.as_ref().and_then(|name| self.programs.get(name)).map(AsFd::as_fd);
        let stdin = code.as_ref().map_or(self.null.as_fd(), AsFd::as_fd);
        let stdio = [stdin, self.null.as_fd(), line.their_noise.as_fd()];
        let launched = launch(command, &around, stdio, Some(line.theirs.as_fd()), &mark);
        let child = match launched {
            Ok(child) => child,
            Err(exit) => {
                self.tracker.release(mark);
                return Err(not_launched(&exit, spec));
            }
        };
        if let Err(e) = self.tracker.started(&mut mark, child.pid) {
            // What cannot be told from others could not be killed for certain: it must not run.
            let _ = child.signal(rustix::process::Signal::KILL.as_raw());
            return Err(io(e));
        }
        let ids = ids.filter(|&(uid, _)| uid != self.own_uid);
        let mut process = Process::new(child, mark, (line.ours, line.noise), ids);
        process.code = code;
        process.has_kernel = spec.language == Language::Jupyter;
        Ok((process, ids))
    }

    /// Runs code in a context.
    pub(super) fn run_code(&mut self, n: usize, stream: u32, spec: &ExecSpec, code: &Code) -> Result<()> {
        let Some(number) = self.context_called(&code.context) else {
            return self.no_such_context(n, stream, &code.context);
        };
        if let Err((kind, message)) = self.may_run(number, spec, code) {
            self.fail(n, stream, kind, message);
            return Ok(());
        }
        let id = self.next_exec;
        let before = self.counters();
        self.oom_kills = before.oom_kills;
        let bounds = self.bounds();
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        let Some(process) = context.process.as_mut() else { return Ok(()) };
        let handed = process.hand_over(id, code, spec.stdin, self.null.as_fd());
        let ends = match handed {
            Ok(ends) => ends,
            Err(e) => {
                let message = format!("cannot hand the code to context {}: {e}", code.context);
                self.fail(n, stream, FailureKind::Io, message);
                return Ok(());
            }
        };
        self.next_exec += 1;
        context.state = State::Busy(id);
        context.runs += 1;
        let cpu_before = process.cpu(self.tracker.cpu_us(&process.mark));
        let run = Run { context: number, cpu_before };
        let pid = process.pid;
        let mut exec = Exec::in_context(id, spec, bounds, (pid, run), ends, (n, stream));
        exec.before = before;
        exec.readers.push(Reader {
            connection: n,
            stream,
            place: 0,
            credit: STREAM_CREDIT,
            follow: true,
            waited_for: !spec.background,
        });
        self.execs.insert(id, exec);
        self.watch_outputs(id)?;
        if let Some(connection) = self.connections[n].as_mut() {
            connection.execs.insert(stream, id);
            connection.reply(stream, &Reply::Started { exec: id, pid: pid as u32 });
        }
        Ok(())
    }

    /// Whether code can be run now.
    fn may_run(
        &self,
        number: u64,
        spec: &ExecSpec,
        code: &Code,
    ) -> std::result::Result<(), (FailureKind, String)> {
        let Some(context) = self.contexts.get(&number) else { return Ok(()) };
        let id = &context.id;
        if spec.tty.is_some() || spec.carried.is_some() {
            return Err((
                FailureKind::Invalid,
                "code runs in no terminal, and in its own interpreter".into(),
            ));
        }
        if spec.cwd.is_some() || spec.user.is_some() || !spec.env.is_empty() || !spec.rlimits.is_empty() {
            let message = "directory, user, environment and kernel limits are those of the context; a run has none of its own";
            return Err((FailureKind::Invalid, message.into()));
        }
        if code.language != context.spec.language {
            let message =
                format!("context {id} speaks {}, not {}", context.spec.language.name(), code.language.name());
            return Err((FailureKind::Invalid, message));
        }
        if code.code.len() > CODE_BYTES_MAX {
            let message = format!("the code is {} bytes, more than {CODE_BYTES_MAX}", code.code.len());
            return Err((FailureKind::Limit, message));
        }
        if self.running().count() >= EXECS_RUNNING_MAX {
            return Err((
                FailureKind::Limit,
                format!("{EXECS_RUNNING_MAX} commands run in this box already"),
            ));
        }
        match &context.state {
            State::Idle => Ok(()),
            State::Starting(_) => Err((FailureKind::Busy, format!("context {id} is not there yet"))),
            State::Busy(exec) => Err((FailureKind::Busy, format!("context {id} is busy with run {exec}"))),
            State::Lost(why) => Err((
                FailureKind::NotFound,
                format!("context {id} was lost: {why}; restart it, or make another"),
            )),
        }
    }

    /// Something came on the line of a context.
    pub(super) fn context_line(&mut self, number: u64) -> Result<()> {
        loop {
            let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
            let Some(process) = context.process.as_mut() else { return Ok(()) };
            let word = match process.next_word() {
                Ok(Some(word)) => word,
                Ok(None) => return Ok(()),
                Err(why) => return self.line_broke(number, why),
            };
            match (word, &context.state) {
                (Word::Hello(version), State::Starting(_)) => {
                    context.version = Some(version);
                    context.state = State::Idle;
                    process.is_there();
                    let info = context.info();
                    if let Some((n, stream)) = context.client.take() {
                        self.reply(n, stream, &Reply::Context(info));
                    }
                }
                (Word::Begun(exec), State::Busy(busy)) if exec == *busy => {
                    if process.has_begun() {
                        context.interrupt();
                    }
                }
                (Word::Heard(exec), State::Busy(busy)) if exec == *busy => process.has_heard(),
                (Word::Done { exec, code }, State::Busy(busy)) if exec == *busy => {
                    let cpu = process.cpu(self.tracker.cpu_us(&process.mark));
                    let peak_bytes = process.peak_bytes();
                    process.is_done();
                    context.state = State::Idle;
                    self.run_ended(exec, How::Code(code), cpu, peak_bytes)?;
                }
                (Word::Broken(why), _) => {
                    return self.end_context(number, Exit::Killed { by: Killer::Broken }, &why);
                }
                _ => {
                    let why = "its interpreter spoke to the guest out of turn";
                    return self.end_context(number, Exit::Killed { by: Killer::Broken }, why);
                }
            }
        }
    }

    /// A run is over, its interpreter's CPU time now being this.
    fn run_ended(&mut self, id: u64, how: How, cpu: Duration, peak_bytes: u64) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.main.is_none()) else { return Ok(()) };
        let Some(run) = exec.run else { return Ok(()) };
        exec.main = Some(Ended { how, cpu: cpu.saturating_sub(run.cpu_before), peak_bytes });
        exec.drain_until = Some(Instant::now() + Duration::from_millis(DRAIN_MS));
        exec.stdin = None;
        self.try_finish(id)
    }

    /// The line of a context is no use any more. One that has closed it may be about to end, and that is then the cause.
    fn line_broke(&mut self, number: u64, why: String) -> Result<()> {
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        let Some(process) = context.process.as_mut() else { return Ok(()) };
        if process.ends_by.is_some() {
            return Ok(());
        }
        if !process.is_closed() {
            return self.end_context(number, Exit::Killed { by: Killer::Broken }, &why);
        }
        epoll::delete(&self.epoll, &process.line)?;
        process.ends_by = Some((Instant::now() + ENDING, why));
        Ok(())
    }

    /// An interpreter has ended by itself, or by somebody else.
    pub(super) fn context_ended(&mut self, number: u64) -> Result<()> {
        // What it said before comes first: its last run may have been over.
        self.context_line(number)?;
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        let Some(ended) = context.process.as_ref().map(|process| process.child.reap()) else {
            return Ok(());
        };
        let Some(ended) = ended? else { return Ok(()) };
        if self.was_a_fork(number, "it ended at once")? {
            return Ok(());
        }
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        let Some(process) = context.process.take() else { return Ok(()) };
        let busy = match context.state {
            State::Busy(exec) => Some(exec),
            _ => None,
        };
        // One that is idle was killed for somebody else's memory, who was there when this was last looked at.
        let before =
            busy.and_then(|exec| self.execs.get(&exec)).map_or(self.oom_kills, |exec| exec.before.oom_kills);
        let out_of_memory = self.counters().oom_kills > before;
        let mut why = match ended.how {
            How::Signal(9) if out_of_memory => {
                "the box ran out of memory, and the kernel killed it".to_owned()
            }
            How::Code(code) => format!("its interpreter ended with code {code}"),
            How::Signal(signal) => format!("its interpreter was ended by signal {signal}"),
        };
        if let Some(noise) = process.last_noise() {
            why = format!("{why}: {noise}");
        }
        let cpu = match self.tracker.cpu_us(&process.mark) {
            Some(us) => Duration::from_micros(us),
            None => ended.cpu,
        };
        self.put_away(number, process, &why)?;
        match busy {
            Some(exec) => self.run_ended(exec, ended.how, cpu, ended.peak_bytes),
            None => Ok(()),
        }
    }

    /// Kills an interpreter and all that it started. What runs in it ends for this cause, unless it has one already.
    pub(super) fn end_context(&mut self, number: u64, cause: Exit, why: &str) -> Result<()> {
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        let Some(process) = context.process.take() else {
            // It waits to be forked, and need not any more.
            let message = format!("context {} did not come to be: {why}", context.id);
            let failure = Failure { kind: FailureKind::Unsupported, message };
            return if context.is_awaited() { self.never_started(number, failure) } else { Ok(()) };
        };
        let busy = match context.state {
            State::Busy(exec) => Some(exec),
            _ => None,
        };
        let cpu = process.cpu(self.tracker.cpu_us(&process.mark));
        let peak_bytes = process.peak_bytes();
        process.child.signal(rustix::process::Signal::KILL.as_raw())?;
        self.put_away(number, process, why)?;
        if let Some(exec) = busy.and_then(|id| self.execs.get_mut(&id)) {
            let id = exec.id;
            exec.cause.get_or_insert(cause);
            exec.kill_at = None;
            self.run_ended(id, How::Signal(rustix::process::Signal::KILL.as_raw()), cpu, peak_bytes)?;
            // Nothing is lost by a reader that was too slow: what is in the pipes is read at the end.
            self.watch_outputs(id)?;
        }
        Ok(())
    }

    /// What is left to do when an interpreter is gone. Its number is collected as a stranger's, if it was not yet.
    fn put_away(&mut self, number: u64, process: Process, why: &str) -> Result<()> {
        // One that was closed is not watched any more.
        let _ = epoll::delete(&self.epoll, &process.line);
        if let Some(end) = process.child.end() {
            let _ = epoll::delete(&self.epoll, end);
        }
        self.tracker.kill(&process.mark)?;
        process.clear_up();
        self.tracker.release(process.mark);
        let Some(context) = self.contexts.get_mut(&number) else { return Ok(()) };
        context.state = State::Lost(why.to_owned());
        if let Some((n, stream)) = context.client.take() {
            // Nobody was told of it yet, so there is nothing to remember.
            let message = format!("context {} did not come to be: {why}", context.id);
            self.contexts.remove(&number);
            self.fail(n, stream, FailureKind::Unsupported, message);
        }
        Ok(())
    }

    /// Ends a run for a reason: asked first, and killed with its context when that is of no use, or asked for again.
    pub(super) fn kill_run(&mut self, id: u64, run: Run, why: Exit) -> Result<()> {
        let Some(exec) = self.execs.get_mut(&id).filter(|exec| exec.main.is_none()) else { return Ok(()) };
        if exec.kill_at.is_none() {
            let run = exec.ask_to_end(why, Instant::now());
            self.interrupt_run(run);
            return self.watch_outputs(id);
        }
        if why == (Exit::Killed { by: Killer::Disconnect }) {
            // Whoever asked has gone, and asks for nothing more: it has its time.
            return Ok(());
        }
        let cause = exec.cause.clone().unwrap_or(why);
        let lost = match cause {
            Exit::TimedOut => "its run did not end when its time was up, so it was killed",
            Exit::OutputLimit => "its run did not end when it had written too much, so it was killed",
            _ => "its run did not end when it was interrupted, so it was killed",
        };
        self.end_context(run.context, cause, lost)
    }

    /// The next moment at which something has to be done about a context.
    pub(super) fn context_moment(&self) -> Option<Instant> {
        self.contexts.values().filter_map(Context::next_moment).min()
    }

    /// Interrupts again what has not heard it, and gives up those that are late.
    pub(super) fn context_moments(&mut self, now: Instant) -> Result<()> {
        self.contexts.values_mut().for_each(|context| context.interrupt_again(now));
        let is_late = |context: &Context| context.given_up_at().is_some_and(|at| at <= now);
        let late: Vec<u64> = self.contexts.iter().filter(|(_, c)| is_late(c)).map(|(n, _)| *n).collect();
        for number in late {
            if self.was_a_fork(number, "it did not answer")? {
                continue;
            }
            let closed =
                self.contexts.get(&number).and_then(|context| context.process.as_ref()?.ends_by.clone());
            let why = match closed {
                Some((_, why)) => why,
                None => format!("its interpreter was not there after {CONTEXT_START_MS} ms"),
            };
            self.end_context(number, Exit::Killed { by: Killer::Broken }, &why)?;
        }
        Ok(())
    }
}

/// What to say of an interpreter that cannot be started.
fn not_launched(exit: &Exit, spec: &ContextSpec) -> Failure {
    let (kind, why) = match exit {
        Exit::NotStarted { why: NotStarted::NotFound, message } => {
            (FailureKind::Unsupported, message.clone())
        }
        Exit::NotStarted { why: NotStarted::BadCwd, message } => (FailureKind::Invalid, message.clone()),
        Exit::NotStarted { message, .. } => (FailureKind::Io, message.clone()),
        Exit::PidsLimit { .. } => (FailureKind::Limit, "the box has as many processes as it may".into()),
        other => (FailureKind::Io, other.to_string()),
    };
    let message = format!("cannot start a {} context: {why}", spec.language.name());
    Failure { kind, message }
}
