//! `glass-bench`: what a box costs, side by side with what a user would pick instead.
//!
//! One run measures everything, interleaved: each round gives every contender one turn, in an order that is shuffled
//! anew, so that whatever else the machine does falls on all of them alike. As root it measures twice, the second
//! time as an ordinary user. Goals stand beside the figures; missing one is no failure, and nothing here asserts a
//! time.
//!
//! The walk: `options` → `stage` (a home, a live box, the programs) → `contender` (who takes part, who cannot and
//! why) → `round` (the turns) → `memory` (many idle boxes) → `report`, `goal`, `table`. `ordinary` is the second
//! pass, in a process of its own. `glass-bench state`, `glass-bench record`, `glass-bench docker` and
//! `glass-bench code` are walks of their own.

mod code;
mod contender;
mod docker;
mod floor;
mod goal;
mod interrupt;
mod machine;
mod memory;
mod options;
mod ordinary;
mod pace;
mod peer;
mod program;
mod progress;
mod record;
mod report;
mod round;
mod sample;
mod shots;
mod stage;
mod state;
mod table;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::options::{Asked, Options};
use crate::report::{Mode, Report};
use crate::stage::Stage;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("glass-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Measures on an event loop of its own, until somebody interrupts it, and tells what came of it, with the machine.
fn told(home: &Path, measure: impl AsyncFnOnce(&Interrupt) -> Result<Vec<String>>) -> Result<bool> {
    let machine = Machine::look(home)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let interrupt = Interrupt::listen(&tasks);
    let lines = tasks.block_on(&runtime, measure(&interrupt))?;
    print(&[machine.lines(), lines].concat().join("\n"))?;
    Ok(true)
}

/// Whether everything that was to be measured could be.
fn run() -> Result<bool> {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == "state").is_some() {
        return state::run(args);
    }
    if args.next_if(|arg| arg == "record").is_some() {
        return record::run(args);
    }
    if args.next_if(|arg| arg == "docker").is_some() {
        return docker::run(args);
    }
    if args.next_if(|arg| arg == "code").is_some() {
        return code::measured(args);
    }
    if args.next_if(|arg| arg == "shots").is_some() {
        return shots::measured(args);
    }
    let options = match options::parse(args)? {
        Asked::Help => {
            print(options::HELP)?;
            return Ok(true);
        }
        Asked::Measure(options) => options,
    };
    if options.common.ordinary {
        let report = pass(Mode::Rootless, &options, options.glass.clone())?;
        print(&report.to_json().to_string())?;
        return Ok(true);
    }
    let glass = program::glass(&options);
    let machine = Machine::look(&options.home)?;
    let mut reports = Vec::new();
    if machine::is_root()? {
        reports.push(pass(Mode::Root, &options, glass.clone())?);
        reports.push(ordinary::pass(&options, glass)?);
    } else {
        reports.push(pass(Mode::Rootless, &options, glass)?);
    }
    print(&table::all(&machine, &options, &reports))?;
    if let Some(path) = &options.common.json {
        let all = json!({
            "machine": machine.to_json(),
            "rounds": options.common.rounds,
            "seed": options.common.seed,
            "reports": reports.iter().map(|report| report.to_json_with_figures()).collect::<Vec<_>>(),
        });
        std::fs::write(path, format!("{all:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(reports.iter().all(Report::is_whole))
}

/// Measures as who we are.
fn pass(mode: Mode, options: &Options, glass: program::Glass) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let interrupt = Interrupt::listen(&tasks);
    tasks.block_on(&runtime, async {
        let stage = Stage::set(options, glass).await?;
        let report = measure(&stage, mode, options, &interrupt).await;
        // Whatever came of it, nothing stays.
        stage.clear().await?;
        report
    })
}

async fn measure(stage: &Stage, mode: Mode, options: &Options, interrupt: &Interrupt) -> Result<Report> {
    let load_before = machine::load();
    let rows = round::all(stage, mode, options, interrupt).await?;
    let memory = match options.wants("memory") {
        true => Some(memory::of_idle_boxes(stage, options, interrupt).await.map_err(|e| format!("{e:#}"))),
        false => None,
    };
    interrupt.check().await?;
    let level = stage.live.info().level.name().to_owned();
    Ok(Report { mode, rows, memory, level, load_before, load_after: machine::load() })
}

fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", text.trim_end()).context("cannot write the results")
}
