//! A home with one trace and a blob store, in a scratch directory.

#![allow(dead_code, reason = "each test program uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

use glasshouse_protocol::{Exit, ExitReport, Program};
use glasshouse_trace::{
    Base, BaseTask, BoxCreated, ChangeKind, Event, ExecStarted, FileChange, FileFacts, FileOperation,
    LimitInForce, Line, Payload, Reader, Recorder, Redaction, Report, Settings, Step, StepState, Writer,
    limits::Limits, verify,
};

pub(crate) struct Home {
    root: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Home { root: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root().join("traces/box-1")
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir().join("trace.jsonl")
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.root().join("blobs")
    }

    pub(crate) fn settings(&self) -> Settings {
        settings_at(self.root())
    }

    pub(crate) fn settings_with(&self, limits: Limits) -> Settings {
        Settings { limits, ..self.settings() }
    }

    pub(crate) fn settings_hiding(&self, secrets: &[&[u8]]) -> Settings {
        let secrets = secrets.iter().map(|secret| secret.to_vec()).collect();
        Settings { redaction: Redaction { secrets, ..Redaction::default() }, ..self.settings() }
    }

    pub(crate) fn writer(&self) -> Writer {
        Writer::open(self.settings()).unwrap()
    }

    pub(crate) fn recorder(&self) -> Recorder {
        Recorder::new(self.settings())
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        Reader::open(&self.dir(), &self.blobs()).unwrap().map(Result::unwrap).collect()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.lines().into_iter().map(|line| line.event).collect()
    }

    pub(crate) fn verify(&self) -> Report {
        verify(&self.dir(), &self.blobs()).unwrap()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.file()).unwrap()
    }

    /// Every file below the home.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut dirs = vec![self.root().to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { dirs.push(path) } else { files.push(path) }
            }
        }
        files
    }
}

/// The settings of a home that another process may have made.
pub(crate) fn settings_at(root: &Path) -> Settings {
    Settings { dir: root.join("traces/box-1"), blobs: root.join("blobs"), ..Settings::default() }
}

pub(crate) fn signal(exec: u64) -> Event {
    Event::Signal { exec, signal: 15 }
}

pub(crate) fn ended(exec: u64, stdout: &[u8], stderr: &[u8]) -> Event {
    let report = ExitReport {
        wall_us: 31_000,
        cpu_us: 28_100,
        peak_memory_bytes: 10_276_864,
        stdout_bytes: stdout.len() as u64,
        stderr_bytes: stderr.len() as u64,
        ..ExitReport::never_ran(Exit::Code { code: 0 })
    };
    Event::ExecEnded { exec, report, stdout: Payload::whole(stdout), stderr: Payload::whole(stderr) }
}

/// One event of each kind, with `text` wherever there is room for text.
pub(crate) fn one_of_each(text: &str) -> Vec<Event> {
    let text = || text.to_owned();
    let limit = LimitInForce { value: 1 << 29, mechanism: text() };
    let created = BoxCreated {
        id: text(),
        name: Some(text()),
        runtime: text(),
        level: text(),
        image: text(),
        limits: [(text(), limit)].into(),
        labels: [(text(), text())].into(),
        env_names: vec![text()],
        user: Some(text()),
        cwd: Some(text()),
        read_only: true,
        uncontrolled: vec![text()],
        forked_from: Some(text()),
        redact: vec![text()],
    };
    let started = |program| ExecStarted {
        exec: 1,
        program,
        cwd: Some(text()),
        user: Some(text()),
        env_names: vec![text()],
        ..ExecStarted::default()
    };
    let file = FileOperation {
        op: text(),
        path: text(),
        bytes: Some(4),
        payload: Some(Payload::whole(text())),
        error: Some(text()),
    };
    let not_started = Exit::NotStarted { why: glasshouse_protocol::NotStarted::NotFound, message: text() };
    let failed = |exit| Event::ExecEnded {
        exec: 1,
        report: ExitReport::never_ran(exit),
        stdout: Payload::whole(text()),
        stderr: Payload::cut(1 << 20, text(), text()),
    };
    vec![
        Event::BoxCreated(created),
        Event::ExecStarted(started(Program::Argv(vec![text(), text()]))),
        Event::ExecStarted(started(Program::Shell(text()))),
        failed(not_started),
        failed(Exit::Forbidden { what: text() }),
        failed(Exit::BoxGone { why: text() }),
        Event::Stdin { exec: 1, payload: Payload::whole(text()) },
        signal(1),
        Event::File(file),
        Event::Lost { events: 1, bytes: 2, why: text() },
        Event::Repaired { dropped_bytes: 3 },
        Event::BoxEnded { why: text() },
    ]
}

/// The same, and those of version 2.
pub(crate) fn one_of_each_version(text: &str) -> Vec<Event> {
    let mut events = one_of_each(text);
    let text = || text.to_owned();
    let task = BaseTask {
        repo: text(),
        commit: text(),
        setup: vec![text()],
        test: Some(text()),
        dir: text(),
        image: Some(text()),
    };
    let base = Base { digest: text(), deterministic: true, uncontrolled: vec![text()], task: Some(task) };
    let facts = FileFacts { kind: text(), mode: text(), text: Some(text()), ..FileFacts::default() };
    let change = FileChange { path: text(), change: ChangeKind::Added, now: Some(facts) };
    let state = StepState {
        digest: text(),
        processes: vec![text()],
        changed: 1,
        changes: Some(Payload::whole(serde_json::to_vec(&[change]).unwrap())),
        ..StepState::default()
    };
    let step = Step {
        step: 1,
        tool: Some(text()),
        params: Some(Payload::whole(text())),
        output: Some(Payload::whole(text())),
        stderr: Some(Payload::whole(text())),
        end: Some(Exit::BoxGone { why: text() }),
        error: Some(text()),
        state: Some(state),
        no_state: Some(text()),
        snapshot: Some(text()),
        ..Step::default()
    };
    events.extend([Event::Base(base), Event::Step(Box::new(step))]);
    events
}
