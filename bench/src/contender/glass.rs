//! Us: the library in this process, and the program.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use glasshouse_sandbox::{ExecSpec, Program, Sandbox, SandboxSpec, Sandboxes, Settings};

use super::process::CommandLine;
use crate::report::Measure;
use crate::stage::Stage;

/// What a fresh box fills.
pub(super) const FRESH_ROWS: [(Measure, &str); 5] = [
    (Measure::First, "library"),
    (Measure::First, "library-and-destroy"),
    (Measure::Life, "create"),
    (Measure::Life, "first-exec"),
    (Measure::Life, "destroy"),
];

/// What a command in the live box fills.
pub(super) const LIVE_ROWS: [(Measure, &str); 2] =
    [(Measure::Exec, "library"), (Measure::Exec, "library-in-guest")];

/// A box from nothing to nothing, by a house that has begun none ahead.
pub(super) async fn fresh(stage: &Stage, spec: SandboxSpec, argv: &[String]) -> Result<Vec<Duration>> {
    let house = Sandboxes::open(Settings { home: stage.home() })?;
    made_by(&house, spec, argv).await
}

/// The same by a house that makes boxes one after the other, and has one begun.
pub(super) async fn begun(stage: &Stage, argv: &[String]) -> Result<Vec<Duration>> {
    stage.house.settle().await;
    let times = made_by(&stage.house, crate::stage::spec(), argv).await?;
    Ok(times.into_iter().take(1).collect())
}

/// The same by this house.
pub(super) async fn made_by(house: &Sandboxes, spec: SandboxSpec, argv: &[String]) -> Result<Vec<Duration>> {
    let start = Instant::now();
    let sandbox = house.create(spec).await?;
    let created = start.elapsed();
    let ran = run(&sandbox, argv).await;
    let first = start.elapsed();
    sandbox.destroy().await?;
    let all = start.elapsed();
    ran?;
    Ok(vec![first, all, created, first - created, all - first])
}

/// A command in the live box: as the caller sees it, and as the guest does.
pub(super) async fn live(sandbox: &Sandbox, argv: &[String]) -> Result<Vec<Duration>> {
    let start = Instant::now();
    let in_guest = run(sandbox, argv).await?;
    Ok(vec![start.elapsed(), in_guest])
}

async fn run(sandbox: &Sandbox, argv: &[String]) -> Result<Duration> {
    let spec = ExecSpec { program: Program::Argv(argv.to_vec()), ..ExecSpec::default() };
    let output = sandbox.exec(spec).await?.collect().await;
    let exit = &output.report.exit;
    ensure!(exit.success(), "the command in the box ended: {exit}");
    Ok(Duration::from_micros(output.report.wall_us))
}

/// The whole program: a fresh box.
pub(super) fn run_line(stage: &Stage, argv: &[&str]) -> Result<CommandLine, String> {
    Ok(line(stage)?.args(&["run", "--"]).args(argv))
}

/// The whole program: a command in the live box.
pub(super) fn exec_line(stage: &Stage, argv: &[&str]) -> Result<CommandLine, String> {
    Ok(line(stage)?.args(&["exec", stage.live.id(), "--"]).args(argv))
}

fn line(stage: &Stage) -> Result<CommandLine, String> {
    Ok(CommandLine::new(&[stage.glass.path()?]).env("GLASSHOUSE_HOME", stage.home()))
}
