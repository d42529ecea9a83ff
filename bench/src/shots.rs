//! `glass-bench shots`: how many Python programs a second run once, each in full isolation, beside bare `python3` processes.
//!
//! The programs are those of HumanEval: prompt, canonical solution, and the test that has to pass. Both sides run all of them, as many
//! at once, in rounds in shuffled order. Ours have a box each that was reset before, and what each of them does is recorded.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
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
/// Where the packages are in a box.
const PACKAGES: &str = "/packages";

const HELP: &str = "\
glass-bench shots --problems FILE [--packages DIR] [--rounds N] [--jobs N] [--home DIR] [--alone]: programs of HumanEval, each run once, in a
box that was reset before, beside bare python3 processes

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

/// Both sides, round by round.
async fn compare(
    asked: &Asked,
    load: &Load,
    house: &Sandboxes,
    dir: &Path,
    interrupt: &Interrupt,
) -> Result<Vec<Vec<String>>> {
    let shots = shots(asked, load, house)?;
    let mut dice = Dice(1);
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    // The first round of each is for their caches and boxes.
    for round in 0..=asked.rounds {
        let mut sides = [0, 1];
        dice.shuffle(&mut sides);
        for is_ours in sides.map(|side| side == 0) {
            interrupt.check().await?;
            if asked.alone && !is_ours {
                continue;
            }
            let ran = match is_ours {
                true => in_boxes(&shots, load, asked.jobs).await?,
                false => as_processes(load, asked.jobs, dir)?,
            };
            if round > 0 {
                if is_ours { &mut ours } else { &mut bare }.push(ran);
            }
        }
    }
    shots.close().await?;
    let count = load.programs.len();
    if asked.alone {
        return Ok(vec![row("glasshouse, each in a box that was reset", &ours, count)]);
    }
    let (ours_rate, bare_rate) = (median(&ours, count), median(&bare, count));
    let ratio = ours_rate / bare_rate;
    let verdict = if ratio >= load.goal { "met" } else { "missed" };
    Ok(vec![
        row("glasshouse, each in a box that was reset", &ours, count),
        row("python3 FILE, a bare process", &bare, count),
        vec![format!("  ratio: {ratio:.2} ×, {verdict}")],
    ])
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
    let mut files = VecDeque::new();
    for (n, program) in load.programs.iter().enumerate() {
        let file = dir.join(format!("{n}.py"));
        std::fs::write(&file, program)?;
        files.push_back(file);
    }
    let files = Arc::new(Mutex::new(files));
    let start = Instant::now();
    let next = || files.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let one = || {
        let mut passed = 0;
        while let Some(file) = next() {
            let mut command = Command::new(PYTHON);
            command.arg(file).current_dir(dir).stdin(Stdio::null()).env_remove("PYTHONPATH");
            if let Some(packages) = &load.packages {
                command.env("PYTHONPATH", packages);
            }
            let output = command.output().context("cannot start python3")?;
            passed += usize::from(output.status.success() && output.stdout == b"passed\n");
        }
        Ok::<_, anyhow::Error>(passed)
    };
    let passed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|_| scope.spawn(one)).collect();
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
