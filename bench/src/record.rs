//! `glass-bench record`: what it costs to record steps, and not only commands.
//!
//! Three boxes that differ in nothing but what they record take the same command in turn, in shuffled order. What a step
//! costs is the difference of their medians; goals are 2 ms with 100 changed files, and 2 % of the wall time of a
//! command that works for a second.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use glasshouse_sandbox::{ExecSpec, Program, Recording, Sandbox, SandboxSpec, Sandboxes, Settings};

use crate::interrupt::Interrupt;
use crate::machine::{self, Machine};
use crate::options::Words;
use crate::round::Dice;
use crate::sample::Samples;
use crate::stage;
use crate::table::{NONE, milliseconds, table};

const HELP: &str = "\
glass-bench record [--rounds N] [--home DIR]: what recording steps costs, beside recording commands alone";

/// What is done in each round: what it is called, the line for the shell, and how often in as many rounds.
const WORKS: [(&str, &str, usize); 3] = [
    ("nothing (true)", "true", 1),
    ("100 files of 4 KiB written anew", FILES, 1),
    ("a second of work, 10 files changed", SECOND, 20),
];
const FILES: &str = "i=0; while [ $i -lt 100 ]; do printf '%4096d' $(( $(cat /proc/uptime | tr -d ' .') + i )) > f$i; i=$((i+1)); done";
const SECOND: &str = "for i in 0 1 2 3 4 5 6 7 8 9; do echo $$ > g$i; done; exec sleep 1";

/// Whether everything that was to be measured could be.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<bool> {
    let (mut rounds, mut home) = (100_usize, std::env::temp_dir());
    let mut words = Words::new(args);
    while words.go_on() {
        match words.name.as_str() {
            "--rounds" => rounds = words.number()?,
            "--home" => home = words.absolute()?,
            "--help" | "-h" => {
                crate::print(HELP)?;
                return Ok(true);
            }
            other => bail!("{other:?} is nothing that `record` knows\n{HELP}"),
        }
    }
    let machine = Machine::look(&home)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let interrupt = Interrupt::listen(&tasks);
    let lines = tasks.block_on(&runtime, measure(&home, rounds, &interrupt))?;
    crate::print(&[machine.lines(), lines].concat().join("\n"))?;
    Ok(true)
}

async fn measure(home: &std::path::Path, rounds: usize, interrupt: &Interrupt) -> Result<Vec<String>> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home)?;
    let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
    let mut boxes = Vec::new();
    for recording in Recording::ALL {
        boxes.push(house.create(SandboxSpec { recording, ..stage::spec() }).await?);
    }
    let mut rows = Vec::new();
    let mut dice = Dice(1);
    for (name, line, every) in WORKS {
        let mut samples = [Samples::default(), Samples::default(), Samples::default()];
        let mut order = [0, 1, 2];
        // One that is not counted.
        for round in 0..=rounds.div_ceil(every) {
            dice.shuffle(&mut order);
            for at in order {
                interrupt.check().await?;
                let took = once(&boxes[at], line).await?;
                if round > 0 {
                    samples[at].push(took);
                }
            }
        }
        rows.push(vec![name.to_owned()]);
        let plain = samples[0].figures().map(|figures| figures.p50);
        for (recording, samples) in Recording::ALL.into_iter().zip(&samples) {
            rows.push(row(recording, samples, plain));
        }
    }
    for sandbox in &boxes {
        sandbox.destroy().await?;
    }
    house.settle().await;
    dir.close().context("cannot remove the state directory")?;
    let head = format!("{rounds} rounds, in shuffled order; times in ms (load average {})", machine::load());
    let goals =
        "goals: a step costs at most 2 ms with 100 changed files, and 2 % of the wall time of real work";
    let table = table(&["", "min", "p50", "p99", "a step costs", "of the wall time"], &rows);
    Ok([vec![head, String::new()], table, vec![String::new(), goals.to_owned()]].concat())
}

async fn once(sandbox: &Sandbox, line: &str) -> Result<Duration> {
    let spec = ExecSpec { program: Program::Shell(line.to_owned()), ..ExecSpec::default() };
    let start = Instant::now();
    let output = sandbox.exec(spec).await?.collect().await;
    let took = start.elapsed();
    if !output.report.exit.success() {
        bail!("{line:?} failed: {}", output.report.exit);
    }
    Ok(took)
}

fn row(recording: Recording, samples: &Samples, plain: Option<Duration>) -> Vec<String> {
    let mut cells = vec![format!("  --record {}", recording.name())];
    let figures = samples.figures();
    match &figures {
        Some(f) => cells.extend([f.min, f.p50, f.p99].map(milliseconds)),
        None => cells.extend([NONE; 3].map(String::from)),
    }
    if let (Some(f), Some(plain), true) = (figures, plain, recording != Recording::Commands) {
        let cost = f.p50.saturating_sub(plain);
        cells.push(milliseconds(cost));
        cells.push(format!("{:.1} %", 100.0 * cost.as_secs_f64() / plain.as_secs_f64()));
    }
    cells
}
