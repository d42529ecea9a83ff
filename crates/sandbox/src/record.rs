//! What the driver puts on record, in the trace's words.

use glasshouse_protocol::{ExecInfo, ExecSpec, ExecState, ExitReport};
use glasshouse_trace::{
    BoxCreated, ContextChange, Event, ExecStarted, FileOperation, LimitInForce, Payload, Recorder, Redaction,
    SecretPattern, Settings, Settled,
};

use crate::exec::HeadTail;
use crate::home::Home;
use crate::spec::SandboxInfo;
use crate::state::steps::{Changes, Taken};

/// Writes the record of one box.
pub(crate) struct Record {
    recorder: Recorder,
    settings: Settings,
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
        Record { recorder: Recorder::new(settings.clone()), settings }
    }

    /// From now on these values are not written down either.
    pub(crate) fn hide<'a>(&mut self, values: impl Iterator<Item = &'a String>) {
        let known = self.settings.redaction.secrets.len();
        for value in values.filter(|value| may_be_secret(value)) {
            let value = value.clone().into_bytes();
            if !self.settings.redaction.secrets.contains(&value) {
                self.settings.redaction.secrets.push(value);
            }
        }
        if self.settings.redaction.secrets.len() > known {
            self.recorder = Recorder::new(self.settings.clone());
        }
    }

    pub(crate) fn created(
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
        self.recorder.record(Event::BoxCreated(BoxCreated {
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
        }));
    }

    pub(crate) fn started(&mut self, exec: u64, spec: &ExecSpec) {
        self.recorder.record(Event::ExecStarted(ExecStarted {
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
        }));
    }

    pub(crate) fn ended(&mut self, exec: u64, report: ExitReport, stdout: HeadTail, stderr: HeadTail) {
        let (stdout, stderr) = (payload(stdout, report.stdout_bytes), payload(stderr, report.stderr_bytes));
        self.recorder.record(Event::ExecEnded { exec, report, stdout, stderr });
    }

    pub(crate) fn stdin(&mut self, exec: u64, bytes: HeadTail) {
        let total = bytes.total();
        self.recorder.record(Event::Stdin { exec, payload: payload(bytes, total) });
    }

    /// What code told, if it did.
    pub(crate) fn results(&mut self, exec: u64, bytes: HeadTail) {
        let total = bytes.total();
        if total > 0 {
            self.recorder.record(Event::Results { exec, payload: payload(bytes, total) });
        }
    }

    pub(crate) fn context(&mut self, change: ContextChange) {
        self.recorder.record(Event::Context(change));
    }

    pub(crate) fn signal(&mut self, exec: u64, signal: i32) {
        self.recorder.record(Event::Signal { exec, signal });
    }

    pub(crate) fn file(&mut self, op: &str, path: &str, bytes: Option<u64>, error: Option<String>) {
        self.recorder.record(Event::File(FileOperation {
            op: op.into(),
            path: path.into(),
            bytes,
            error,
            ..FileOperation::default()
        }));
    }

    pub(crate) fn state(
        &mut self,
        what: &str,
        snapshot: Option<&str>,
        method: Option<&str>,
        step: Option<u64>,
    ) {
        let (snapshot, method) = (snapshot.map(str::to_owned), method.map(str::to_owned));
        self.recorder.record(Event::State { what: what.into(), snapshot, method, step });
    }

    /// Looks through what a step has changed, and stores it. As it was, if that does not go.
    pub(crate) fn settle(&self, changes: Changes) -> Result<Settled, Changes> {
        let settled = changes.payload().and_then(|payload| self.recorder.settle_changes(payload));
        settled.ok_or(changes)
    }

    /// A step, with what it has changed.
    pub(crate) fn step(&mut self, taken: Taken, changes: Option<Result<Settled, Changes>>) {
        let Taken { base, mut step } = taken;
        if let Some(base) = base {
            self.recorder.record(Event::Base(base));
        }
        match (changes, &mut step.state) {
            (Some(Ok(settled)), Some(_)) => drop(self.recorder.record_step(step, settled)),
            (Some(Err(changes)), Some(state)) => {
                state.changes = changes.payload();
                self.recorder.record(Event::Step(Box::new(step)));
            }
            // What cannot be said of the box after it cannot be said of what it changed either.
            (_, None) | (None, _) => drop(self.recorder.record(Event::Step(Box::new(step)))),
        }
    }

    pub(crate) fn box_ended(&mut self, why: &str) {
        self.recorder.record(Event::BoxEnded { why: why.into() });
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
