//! What the driver puts on record, in the trace's words.

use glasshouse_protocol::{ExecInfo, ExecSpec, ExecState, ExitReport};
use glasshouse_trace::limits::LOCK_PAUSE_MAX;
use glasshouse_trace::{
    BoxCreated, ContextChange, Event, ExecStarted, FileOperation, LimitInForce, Payload, Recorder, Redaction,
    SecretPattern, Settings, Settled, Turn,
};

use crate::exec::HeadTail;
use crate::home::Home;
use crate::spec::SandboxInfo;
use crate::state::steps::{Changes, Taken};

/// Writes the record of one box.
pub(crate) struct Record {
    recorder: Recorder,
}

/// Whether the value of a variable has to be hidden. What languages have words for is nobody's secret, and with it the
/// commands of a box with `CI=true` would be on record with holes, and could not be done again.
pub(crate) fn may_be_secret(value: &str) -> bool {
    !["true", "false", "none", "null"].iter().any(|word| value.eq_ignore_ascii_case(word))
}

impl Record {
    /// `secrets`: values that must not be written down, such as those of the box's environment; `patterns`: what others
    /// look like.
    pub(crate) fn open(home: &Home, id: &str, secrets: Vec<Vec<u8>>, patterns: Vec<SecretPattern>) -> Record {
        let settings = Settings {
            dir: home.path("traces").join(id),
            blobs: home.path("blobs"),
            redaction: Redaction { secrets, patterns, ..Redaction::default() },
            ..Settings::default()
        };
        Record { recorder: Recorder::new(settings) }
    }

    /// From now on these values are not written down either.
    pub(crate) fn hide<'a>(&mut self, values: impl Iterator<Item = &'a String>) {
        self.recorder.hide(values.filter(|value| may_be_secret(value)).map(String::as_bytes));
    }

    pub(crate) async fn created(
        &mut self,
        info: &SandboxInfo,
        env: &[(String, String)],
        forked_from: Option<String>,
    ) {
        let unit = |name: &str| match name {
            "memory" | "disk" | "output" => format!("{name}_bytes"),
            "timeout" | "ttl" => format!("{name}_ms"),
            "cpu" => "cpu_milli".into(),
            other => other.to_owned(),
        };
        let limits = info.limits.iter().filter_map(|limit| {
            let in_force = LimitInForce { value: limit.amount?, mechanism: limit.mechanism.clone() };
            Some((unit(&limit.name), in_force))
        });
        self.write(Event::BoxCreated(BoxCreated {
            id: info.id.clone(),
            name: info.name.clone(),
            runtime: info.runtime.name().into(),
            level: info.level.name().into(),
            image: info.image.to_string(),
            limits: limits.collect(),
            labels: info.labels.clone(),
            env_names: env.iter().map(|(name, _)| name.clone()).collect(),
            user: Some(info.user.clone()).filter(|user| !user.is_empty()),
            cwd: Some(info.cwd.clone()).filter(|cwd| !cwd.is_empty()),
            read_only: info.read_only,
            uncontrolled: info.uncontrolled.clone(),
            forked_from,
            redact: info.redact.clone(),
        }))
        .await;
    }

    pub(crate) async fn started(&mut self, exec: u64, spec: &ExecSpec) {
        self.write(Event::ExecStarted(ExecStarted {
            exec,
            program: spec.program.clone(),
            cwd: spec.cwd.clone(),
            user: spec.user.clone(),
            tty: spec.tty,
            background: spec.background,
            label: spec.label.clone().filter(|_| spec.background),
            stdin: spec.stdin,
            env_names: spec.env.iter().map(|(name, _)| name.clone()).collect(),
            timeout_ms: spec.timeout_ms,
            grace_ms: spec.grace_ms,
            output_bytes_max: spec.output_bytes_max,
            rlimits: spec.rlimits.clone(),
            ..ExecStarted::default()
        }))
        .await;
    }

    pub(crate) async fn ended(&mut self, exec: u64, report: ExitReport, stdout: HeadTail, stderr: HeadTail) {
        let (stdout, stderr) = (payload(stdout, report.stdout_bytes), payload(stderr, report.stderr_bytes));
        self.write(Event::ExecEnded { exec, report, stdout, stderr }).await;
    }

    pub(crate) async fn stdin(&mut self, exec: u64, bytes: HeadTail) {
        let total = bytes.total();
        self.write(Event::Stdin { exec, payload: payload(bytes, total) }).await;
    }

    /// What code told, if it did.
    pub(crate) async fn results(&mut self, exec: u64, bytes: HeadTail) {
        let total = bytes.total();
        if total > 0 {
            self.write(Event::Results { exec, payload: payload(bytes, total) }).await;
        }
    }

    pub(crate) async fn context(&mut self, change: ContextChange) {
        self.write(Event::Context(change)).await;
    }

    pub(crate) async fn signal(&mut self, exec: u64, signal: i32) {
        self.write(Event::Signal { exec, signal }).await;
    }

    pub(crate) async fn file(&mut self, op: &str, path: &str, bytes: Option<u64>, error: Option<String>) {
        self.write(Event::File(FileOperation {
            op: op.into(),
            path: path.into(),
            bytes,
            error,
            ..FileOperation::default()
        }))
        .await;
    }

    pub(crate) async fn state(
        &mut self,
        what: &str,
        snapshot: Option<&str>,
        method: Option<&str>,
        step: Option<u64>,
    ) {
        let (snapshot, method) = (snapshot.map(str::to_owned), method.map(str::to_owned));
        self.write(Event::State { what: what.into(), snapshot, method, step }).await;
    }

    /// The box was forked. For a thread that may wait.
    pub(crate) fn forked(&mut self, method: &str) {
        let (what, method) = ("fork".into(), Some(method.to_owned()));
        self.recorder.record(Event::State { what, snapshot: None, method, step: None });
    }

    /// Looks through what a step has changed, and stores it. As it was, if that does not go.
    pub(crate) fn settle(&self, changes: Changes) -> Result<Settled, Changes> {
        let settled = changes.payload().and_then(|payload| self.recorder.settle_changes(payload));
        settled.ok_or(changes)
    }

    /// A step, with what it has changed.
    pub(crate) async fn step(&mut self, taken: Taken, changes: Option<Result<Settled, Changes>>) {
        let Taken { base, mut step } = taken;
        if let Some(base) = base {
            self.write(Event::Base(base)).await;
        }
        match (changes, &mut step.state) {
            (Some(Ok(settled)), Some(_)) => {
                let turn = self.recorder.begin_step(step, settled);
                self.see_through(turn).await;
            }
            (Some(Err(changes)), Some(state)) => {
                state.changes = changes.payload();
                self.write(Event::Step(Box::new(step))).await;
            }
            // What cannot be said of the box after it cannot be said of what it changed either.
            (_, None) | (None, _) => self.write(Event::Step(Box::new(step))).await,
        }
    }

    pub(crate) async fn box_ended(&mut self, why: &str) {
        self.write(Event::BoxEnded { why: why.into() }).await;
    }

    /// Writes an event, at once if it can be.
    async fn write(&mut self, event: Event) {
        let turn = self.recorder.begin(event);
        self.see_through(turn).await;
    }

    /// Looks again until it is over, and lets others go on meanwhile: another process may sit on the record for seconds.
    async fn see_through(&mut self, mut turn: Turn) {
        while turn == Turn::Waits {
            tokio::time::sleep(LOCK_PAUSE_MAX).await;
            turn = self.recorder.go_on();
        }
    }
}

fn payload(bytes: HeadTail, total: u64) -> Payload {
    let seen = bytes.total();
    let (head, tail) = bytes.parts();
    if (head.len() + tail.len()) as u64 == seen.max(total) {
        return Payload::whole([head, tail].concat());
    }
    Payload::cut(seen.max(total), head, tail)
}

/// The report of a command that has ended.
pub(crate) fn report_of(info: &ExecInfo) -> Option<ExitReport> {
    match &info.state {
        ExecState::Ended(report) => Some(report.clone()),
        ExecState::Running => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glasshouse_trace::Reader;

    fn on_one_thread<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn events(home: &Home) -> Vec<Event> {
        let lines = Reader::open(&home.path("traces").join("a"), &home.path("blobs")).unwrap();
        lines.map(|line| line.unwrap().event).collect()
    }

    #[test]
    fn who_waits_for_the_lock_of_a_record_holds_up_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let mut record = Record::open(&home, "a", Vec::new(), Vec::new());
        let lock = std::fs::File::open(home.path("traces").join("a/trace.jsonl")).unwrap();
        lock.lock().unwrap();
        // On one thread, in this order: whoever waited there would keep the lock from being given back.
        on_one_thread(async { tokio::join!(record.signal(1, 15), async { drop(lock) }) });
        assert_eq!(events(&home), [Event::Signal { exec: 1, signal: 15 }]);
    }

    #[test]
    fn an_event_whose_writer_was_broken_off_is_written_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let mut record = Record::open(&home, "a", Vec::new(), Vec::new());
        let lock = std::fs::File::open(home.path("traces").join("a/trace.jsonl")).unwrap();
        lock.lock().unwrap();
        on_one_thread(async {
            tokio::select! {
                biased;
                () = record.signal(1, 15) => panic!("somebody else holds the lock"),
                () = async {} => drop(lock),
            }
            record.signal(2, 9).await;
        });
        let signals = [(1, 15), (2, 9)].map(|(exec, signal)| Event::Signal { exec, signal });
        assert_eq!(events(&home), signals);
    }
}
