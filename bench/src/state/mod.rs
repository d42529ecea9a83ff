//! `glass-bench state`: what it costs to keep, to reset, to fork, to go back and to take a digest, beside a plain `cp -a`
//! and `docker commit` of the same tree; against the number of files and the bytes that changed.
//!
//! The walk: `options` → one pass for each disk and each user (an ordinary user's in a process of its own) → for each
//! size a tree in a box (`tree`) → rounds in shuffled order → a tree that came to be by many snapshots (`history`) →
//! `report`, `table`, `plot`.

mod history;
mod options;
mod plot;
mod report;
mod table;
mod tree;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::machine::{self, Machine};
use crate::options::Asked;
use crate::ordinary::ORDINARY;
use crate::report::Mode;
use crate::round::Dice;
use history::History;
use options::Options;
use report::Pass;
use tree::Tree;

/// Rounds that are not counted.
const WARM_UP_ROUNDS: usize = 1;

/// Whether everything that was to be measured could be.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<bool> {
    let options = match options::parse(args)? {
        Asked::Help => {
            crate::print(options::HELP)?;
            return Ok(true);
        }
        Asked::Measure(options) => options,
    };
    if let (true, Some(home)) = (options.common.ordinary, options.homes.first()) {
        crate::print(&pass(Mode::Rootless, &options, home)?.to_json().to_string())?;
        return Ok(true);
    }
    let mut passes = Vec::new();
    for home in &options.homes {
        if machine::is_root()? {
            passes.push(told(Mode::Root, home, pass(Mode::Root, &options, home)));
            passes.push(told(Mode::Rootless, home, as_ordinary(&options, home)));
        } else {
            passes.push(told(Mode::Rootless, home, pass(Mode::Rootless, &options, home)));
        }
    }
    let machine = Machine::look(options.homes.first().map_or(Path::new("/"), |home| home))?;
    crate::print(&table::all(&machine, &options, &passes))?;
    if let Some(path) = &options.common.json {
        let all = json!({
            "machine": machine.to_json(), "rounds": options.common.rounds, "seed": options.common.seed,
            "passes": passes.iter().map(Pass::to_json_with_figures).collect::<Vec<_>>(),
        });
        write(path, &format!("{all:#}\n"))?;
    }
    if let Some(path) = &options.plot {
        write(path, &plot::svg(&passes))?;
    }
    Ok(passes.iter().all(Pass::is_whole))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A pass that does not come about is one that says so.
fn told(mode: Mode, home: &Path, pass: Result<Pass>) -> Pass {
    pass.unwrap_or_else(|error| Pass::failed(mode, &disk(home), &format!("{error:#}")))
}

fn disk(home: &Path) -> String {
    fs::read_to_string("/proc/self/mountinfo")
        .ok()
        .and_then(|mounts| machine::disk_of(&mounts, home))
        .unwrap_or_else(|| "unknown".into())
}

/// Measures as who we are.
fn pass(mode: Mode, options: &Options, home: &Path) -> Result<Pass> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    let interrupt = Interrupt::listen(&tasks);
    tasks.block_on(&runtime, async {
        let mut pass = Pass { mode, disk: disk(home), rows: Vec::new(), load: machine::load() };
        for &(files, bytes) in &options.sizes() {
            let mut tree = Tree::grow(home, files, bytes).await?;
            let measured = rounds(&mut tree, options, &interrupt).await;
            let rows = tree.clear().await?;
            measured?;
            pass.rows.extend(rows);
        }
        let mut history = History::grow(home).await?;
        let read = reads(&mut history, options, &interrupt).await;
        let rows = history.clear().await?;
        read?;
        pass.rows.extend(rows);
        Ok(pass)
    })
}

async fn rounds(tree: &mut Tree, options: &Options, interrupt: &Interrupt) -> Result<()> {
    let mut order: Vec<usize> = (0..tree.turns()).collect();
    let mut dice = Dice(options.common.seed);
    for round in 0..WARM_UP_ROUNDS + options.common.rounds {
        dice.shuffle(&mut order);
        for &turn in &order {
            interrupt.check().await?;
            tree.take(turn, round, round >= WARM_UP_ROUNDS).await?;
        }
    }
    Ok(())
}

async fn reads(history: &mut History, options: &Options, interrupt: &Interrupt) -> Result<()> {
    for round in 0..WARM_UP_ROUNDS + options.common.rounds {
        interrupt.check().await?;
        history.take(round >= WARM_UP_ROUNDS).await?;
    }
    Ok(())
}

/// Measures as an ordinary user, in a process of its own.
fn as_ordinary(options: &Options, home: &Path) -> Result<Pass> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home)?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    let (bench, own) = (dir.path().join("glass-bench"), dir.path().join("ordinary"));
    fs::copy(std::env::current_exe()?, &bench).context("cannot copy this program")?;
    fs::create_dir(&own)?;
    chown(&own, Some(ORDINARY), Some(ORDINARY)).context("cannot give a directory away")?;
    let mut command = Command::new(&bench);
    command.arg("state").args(options.for_ordinary()).arg("--home").arg(&own);
    command.uid(ORDINARY).gid(ORDINARY).current_dir("/");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start the second pass")?;
    dir.close().context("cannot remove the directory of the second pass")?;
    if !output.status.success() {
        bail!("the second pass ended with {}", output.status);
    }
    let value: Value =
        serde_json::from_slice(&output.stdout).context("the second pass says what is no JSON")?;
    Pass::from_json(&value).context("the second pass tells what nobody understands")
}
