//! `glass-bench shots`: how many Python programs a second run once, each in full isolation, beside bare `python3` processes.
//!
//! The programs are those of HumanEval: prompt, canonical solution, and the test that has to pass. All sides run all of them, as many
//! at once, in rounds in shuffled order. Ours have a box each that was reset before, and what each of them does is recorded. The third
//! side has no walls and keeps no record: it forks a warm Python for each program, which is the least that anybody can do.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use glasshouse_sandbox::{CodeSpec, ContextSpec, Sandboxes, Settings, Shots, ShotsSpec, Volume, Warm};
use tokio::task::JoinSet;

use crate::interrupt::Interrupt;
use crate::options::Words;
use crate::round::Dice;
use crate::table::table;
use crate::{machine, stage};

const ROUNDS: usize = 5;
/// The system's own: the packages were installed with it.
const PYTHON: &str = "/usr/bin/python3";
/// What a warm Python loads where nobody has said what, as ours does.
const USUAL: &[&str] = &[
    "bisect",
    "collections",
    "copy",
    "datetime",
    "functools",
    "heapq",
    "itertools",
    "json",
    "linecache",
    "math",
    "operator",
    "random",
    "re",
    "string",
    "tempfile",
    "traceback",
    "typing",
];
/// Where the packages are in a box.
const PACKAGES: &str = "/packages";

const HELP: &str = "\
glass-bench shots --problems FILE [--packages DIR] [--rounds N] [--jobs N] [--home DIR] [--alone]: programs of HumanEval, each run once, in a
box that was reset before, beside bare python3 processes and forks of a warm one

  --problems FILE   its problems, a line of JSON each; tests/mutation/run says where they are
  --packages DIR    and a second time, where each program imports numpy and pandas, which DIR has (site-packages)
  --jobs N          how many at once [default: as many as there are processors]
  --alone           ours and nothing beside, for a profiler";

/// What was asked for.
struct Asked {
    problems: PathBuf,
    packages: Option<PathBuf>,
    rounds: usize,
    jobs: usize,
    home: PathBuf,
    alone: bool,
}

/// Programs that are run, and with what.
struct Load {
    name: &'static str,
    goal: f64,
    programs: Vec<String>,
    imports: Vec<String>,
    packages: Option<PathBuf>,
}

/// What a side came to in a round.
struct Ran {
    passed: usize,
    took: Duration,
}

/// Whether everything that was to be measured could be.
pub(crate) fn measured(args: impl Iterator<Item = String>) -> Result<bool> {
    let Some(asked) = Asked::of(args)? else { return Ok(true) };
    let home = asked.home.clone();
    crate::told(&home, async |interrupt| measure(&asked, interrupt).await)
}

impl Asked {
    fn of(args: impl Iterator<Item = String>) -> Result<Option<Asked>> {
        let (mut problems, mut packages, mut rounds) = (None, None, ROUNDS);
        let mut jobs = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        let mut home = PathBuf::from("/var/tmp");
        let mut alone = false;
        let mut words = Words::new(args);
        while words.go_on() {
            match words.name.as_str() {
                "--problems" => problems = Some(words.absolute()?),
                "--packages" => packages = Some(words.absolute()?),
                "--rounds" => rounds = words.number()?,
                "--jobs" => jobs = words.number()?,
                "--home" => home = words.absolute()?,
                "--alone" => alone = true,
                "--help" | "-h" => {
                    crate::print(HELP)?;
                    return Ok(None);
                }
                other => bail!("{other:?} is nothing that `shots` knows\n{HELP}"),
            }
        }
        let problems = problems.with_context(|| format!("--problems is missing\n{HELP}"))?;
        Ok(Some(Asked { problems, packages, rounds, jobs, home, alone }))
    }

    fn loads(&self) -> Result<Vec<Load>> {
        let text = std::fs::read_to_string(&self.problems)
            .with_context(|| format!("cannot read {}", self.problems.display()))?;
        let programs: Vec<String> = text.lines().map(program).collect::<Result<_>>()?;
        ensure!(!programs.is_empty(), "there are no problems in {}", self.problems.display());
        let mut loads = Vec::new();
        if let Some(packages) = &self.packages {
            let with = |program: &String| format!("import numpy, pandas\n{program}");
            loads.push(Load {
                name: "the same, and `import numpy, pandas` (goal: ≥ 10 ×)",
                goal: 10.0,
                programs: programs.iter().map(with).collect(),
                imports: ["numpy", "pandas"].map(str::to_owned).to_vec(),
                packages: Some(packages.clone()),
            });
        }
        let name = "HumanEval, each program once (goal: ≥ 3 ×)";
        loads.insert(0, Load { name, goal: 3.0, programs, imports: Vec::new(), packages: None });
        Ok(loads)
    }
}

/// A problem with its solution, as a program that ends well if the test does.
fn program(line: &str) -> Result<String> {
    let problem: serde_json::Value = serde_json::from_str(line).context("a problem is a line of JSON")?;
    let text = |name: &str| problem[name].as_str().with_context(|| format!("a problem has no {name}"));
    let (prompt, solution) = (text("prompt")?, text("canonical_solution")?);
    let (test, entry) = (text("test")?, text("entry_point")?);
    Ok(format!("{prompt}{solution}\n{test}\ncheck({entry})\nprint('passed')\n"))
}

async fn measure(asked: &Asked, interrupt: &Interrupt) -> Result<Vec<String>> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(&asked.home)?;
    let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
    let mut rows = Vec::new();
    for load in asked.loads()? {
        rows.push(vec![load.name.to_owned()]);
        rows.extend(compare(asked, &load, &house, dir.path(), interrupt).await?);
    }
    house.settle().await;
    dir.close().context("cannot remove the state directory")?;
    let head = format!(
        "{} rounds of all programs, {} at once, in shuffled order; programs a second (load average {})",
        asked.rounds,
        asked.jobs,
        machine::load()
    );
    let header = ["", "median", "least", "most", "passed"];
    Ok([vec![head, String::new()], table(&header, &rows)].concat())
}

/// All sides, round by round.
async fn compare(
    asked: &Asked,
    load: &Load,
    house: &Sandboxes,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Vec<String>>> {
    let shots = shots(asked, load, house)?;
    let mut dice = Dice(1);
    let mut ran: [Vec<Ran>; 3] = Default::default();
    // The first round of each is for their caches and boxes.
    for round in 0..=asked.rounds {
        let mut sides = Side::ALL;
        dice.shuffle(&mut sides);
        for side in sides.into_iter().filter(|side| !asked.alone || *side == Side::Ours) {
            interrupt.check().await?;
            let took = match side {
                Side::Ours => in_boxes(&shots, load, asked.jobs).await?,
                Side::Bare => as_processes(load, asked.jobs, dir)?,
                Side::Forks => as_forks(load, asked.jobs, dir)?,
            };
            if round > 0 {
                ran[side as usize].push(took);
            }
        }
    }
    shots.close().await?;
    let count = load.programs.len();
    let rows: Vec<_> = Side::ALL.iter().map(|side| row(side.name(), &ran[*side as usize], count)).collect();
    if asked.alone {
        return Ok(rows.into_iter().take(1).collect());
    }
    let [ours, bare, forks] = ran.map(|ran| median(&ran, count));
    let verdict = if ours / bare >= load.goal { "met" } else { "missed" };
    let ratio = format!("  ratio: {:.2} ×, {verdict}; without any walls {:.2} ×", ours / bare, forks / bare);
    Ok(rows.into_iter().chain([vec![ratio]]).collect())
}

/// Who runs the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Ours,
    Bare,
    Forks,
}

impl Side {
    const ALL: [Side; 3] = [Side::Ours, Side::Bare, Side::Forks];

    fn name(self) -> &'static str {
        match self {
            Side::Ours => "glasshouse, each in a box that was reset",
            Side::Bare => "python3 FILE, a bare process",
            Side::Forks => "a fork of a warm python3, no walls",
        }
    }
}

fn shots(asked: &Asked, load: &Load, house: &Sandboxes) -> Result<Shots> {
    let mut sandbox = stage::spec();
    let mut context = ContextSpec {
        interpreter: Some(PYTHON.into()),
        warm: Some(Warm { imports: load.imports.clone() }),
        ..ContextSpec::default()
    };
    if let Some(packages) = &load.packages {
        house.allow_volumes(vec![packages.clone()])?;
        sandbox.volumes = vec![Volume::new(packages, PACKAGES, true)];
        context.env = vec![("PYTHONPATH".into(), PACKAGES.into())];
    }
    // While as many run, as many others are reset: what nobody waits for is not waited for.
    Ok(house.shots(ShotsSpec { sandbox, context, boxes: asked.jobs * 2 }))
}

async fn in_boxes(shots: &Shots, load: &Load, jobs: usize) -> Result<Ran> {
    let start = Instant::now();
    let (mut running, mut passed) = (JoinSet::new(), 0);
    let mut waiting: VecDeque<&String> = load.programs.iter().collect();
    loop {
        while running.len() < jobs
            && let Some(program) = waiting.pop_front()
        {
            let (shots, code) = (shots.clone(), CodeSpec::new(program.clone()));
            running.spawn(async move { shots.run(code).await });
        }
        let Some(ended) = running.join_next().await else { break };
        let output = ended.context("a program was lost sight of")??;
        passed += usize::from(output.report.exit.success() && output.stdout.bytes == b"passed\n");
    }
    Ok(Ran { passed, took: start.elapsed() })
}

fn as_processes(load: &Load, jobs: usize, dir: &Path) -> Result<Ran> {
    side_by_side(load, jobs, dir, |next| {
        let mut passed = 0;
        while let Some(file) = next() {
            let output = python(load, dir).arg(file).output().context("cannot start python3")?;
            passed += usize::from(output.status.success() && output.stdout == b"passed\n");
        }
        Ok(passed)
    })
}

/// Each by a fork of one that waits, of which there is one for each that runs at once.
fn as_forks(load: &Load, jobs: usize, dir: &Path) -> Result<Ran> {
    side_by_side(load, jobs, dir, |next| {
        let mut command = python(load, dir);
        command.args(["-c", include_str!("forks.py")]).args(USUAL).args(&load.imports);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = command.spawn().context("cannot start python3")?;
        let ends = server.stdin.take().zip(server.stdout.take());
        let (mut tell, answers) = ends.context("python3 has no pipes")?;
        let mut answers = BufReader::new(answers);
        let mut passed = 0;
        while let Some(file) = next() {
            writeln!(tell, "{}", file.display()).context("cannot tell python3 of a program")?;
            let mut status = String::new();
            answers.read_line(&mut status).context("python3 does not say how a program ended")?;
            passed += usize::from(status == "0\n");
        }
        drop(tell);
        server.wait().context("cannot wait for python3")?;
        Ok(passed)
    })
}

/// Python outside any box.
fn python(load: &Load, dir: &Path) -> Command {
    let mut command = Command::new(PYTHON);
    command.current_dir(dir).stdin(Stdio::null()).env_remove("PYTHONPATH");
    if let Some(packages) = &load.packages {
        command.env("PYTHONPATH", packages);
    }
    command
}

/// Runs all programs from files, by so many threads, each of which takes the next one until there is none, and counts those that passed.
fn side_by_side(
    load: &Load,
    jobs: usize,
    dir: &Path,
    work: impl Fn(&dyn Fn() -> Option<PathBuf>) -> Result<usize> + Sync,
) -> Result<Ran> {
    let mut files = VecDeque::new();
    for (n, program) in load.programs.iter().enumerate() {
        let file = dir.join(format!("{n}.py"));
        std::fs::write(&file, program)?;
        files.push_back(file);
    }
    let files = Mutex::new(files);
    let start = Instant::now();
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(|| work(&next))).collect();
        let counts = threads.into_iter().map(|thread| match thread.join() {
            Ok(count) => count,
            Err(_) => bail!("a thread has panicked"),
        });
        counts.sum::<Result<usize>>()
    })?;
    Ok(Ran { passed, took: start.elapsed() })
}

fn rates(all: &[Ran], count: usize) -> Vec<f64> {
    let mut rates: Vec<f64> = all.iter().map(|ran| count as f64 / ran.took.as_secs_f64()).collect();
    rates.sort_by(f64::total_cmp);
    rates
}

fn median(all: &[Ran], count: usize) -> f64 {
    rates(all, count).get(all.len() / 2).copied().unwrap_or(0.0)
}

fn row(name: &str, all: &[Ran], count: usize) -> Vec<String> {
    let rates = rates(all, count);
    let told = |rate: Option<&f64>| rate.map_or(String::new(), |rate| format!("{rate:.0}"));
    let passed = all.iter().map(|ran| ran.passed).min().unwrap_or(0);
    vec![
        format!("  {name}"),
        format!("{:.0}", median(all, count)),
        told(rates.first()),
        told(rates.last()),
        format!("{passed} of {count}"),
    ]
}
