//! What an append costs: `cargo run --release -p glasshouse-trace --example append_cost -- <directory>`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement talks, and may panic")]

use std::path::PathBuf;
use std::time::Instant;

use glasshouse_protocol::{Exit, ExitReport, Program};
use glasshouse_trace::{Event, ExecStarted, Payload, Redaction, Settings, Writer};

const ROUNDS: u32 = 20_000;

fn main() {
    let root = PathBuf::from(std::env::args().nth(1).expect("a directory to write to"));
    let secrets = (0..10).map(|n| format!("{n}hunter-{n}").into_bytes()).collect();
    let redaction = Redaction { secrets, ..Redaction::default() };
    let settings = |name: &str| Settings {
        dir: root.join(name),
        blobs: root.join("blobs"),
        redaction: redaction.clone(),
        ..Settings::default()
    };

    let mut alone = Writer::open(settings("alone")).unwrap();
    measure("exec_started, alone", ROUNDS, |n| alone.append(started(n)));
    measure("exec_ended with a short output, alone", ROUNDS, |n| {
        alone.append(ended(n, b"it works\n".to_vec()))
    });

    let mut pair = [Writer::open(settings("pair")).unwrap(), Writer::open(settings("pair")).unwrap()];
    measure("exec_started, two writers in turn", ROUNDS, |n| pair[n as usize % 2].append(started(n)));

    let blob = |n: u32| [n.to_le_bytes().to_vec(), vec![0xff; 5000]].concat();
    measure("exec_ended with a new blob", ROUNDS / 20, |n| alone.append(ended(n, blob(n))));
    measure("exec_ended with a blob that is there", ROUNDS / 20, |n| alone.append(ended(n, blob(0))));
    let text: Vec<u8> =
        b"a line of ordinary output, as programs write it\n".iter().cycle().take(1 << 20).copied().collect();
    measure("exec_ended with 1 MiB of text that is there", 50, |n| alone.append(ended(n, text.clone())));
    measure("open and the first exec_started", ROUNDS / 20, |n| {
        Writer::open(settings("alone"))?.append(started(n))
    });
}

fn measure(what: &str, rounds: u32, mut append: impl FnMut(u32) -> glasshouse_trace::Result<u64>) {
    let mut times: Vec<u128> = (0..rounds)
        .map(|n| {
            let started = Instant::now();
            append(n).unwrap();
            started.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100] as f64 / 1000.0;
    println!("{what}: p50 {:.1} µs, p99 {:.1} µs", at(50), at(99));
}

fn started(n: u32) -> Event {
    let argv = ["python3", "-c", "print('it works')"].map(str::to_owned).to_vec();
    let env_names = vec!["PATH".to_owned(), "HOME".to_owned()];
    Event::ExecStarted(ExecStarted {
        exec: n.into(),
        program: Program::Argv(argv),
        env_names,
        ..Default::default()
    })
}

fn ended(n: u32, stdout: Vec<u8>) -> Event {
    let report = ExitReport::never_ran(Exit::Code { code: 0 });
    Event::ExecEnded { exec: n.into(), report, stdout: Payload::whole(stdout), stderr: Payload::default() }
}
