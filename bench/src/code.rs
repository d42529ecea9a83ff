//! `glass-bench code`: what it costs to run a piece of Python where it is remembered, beside ipykernel through
//! `jupyter_client`, and the same ipykernel as a context of a box; and once, beside a bare `python3`.
//!
//! Every contender has a turn in each round, in shuffled order. What is recorded of a run is part of what it costs. The peer
//! counts what its own caller waits, in its own process.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use glasshouse_sandbox::{
    CodeSpec, ContextInfo, ContextSpec, ExecSpec, Language, Program, Sandbox, SandboxSpec, Sandboxes,
    Settings, Volume, Warm,
};

use crate::interrupt::Interrupt;
use crate::machine;
use crate::peer::{Given, Peer};
use crate::round::Dice;
use crate::sample::Samples;
use crate::stage;
use crate::table::{sampled, table};

const ROUNDS: usize = 50;
const WARM_UP_ROUNDS: usize = 2;
const SCRIPT: &str = include_str!("kernel.py");
/// Where a box finds the peer's Python.
const KERNELS: &str = "/kernels";

const HELP: &str = "\
glass-bench code [--rounds N] [--home DIR] [--peers PYTHON]: a run of 1+1 in a context, a new context, a run in a context of
its own, beside what else does it; and the memory of a context

  --peers PYTHON   and beside ipykernel, where this Python has it:
                   python3 -m venv target/kernels && target/kernels/bin/pip install ipykernel jupyter_client";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Warm,
    New,
    Once,
}

impl What {
    const ALL: [What; 3] = [What::Warm, What::New, What::Once];

    fn name(self) -> &'static str {
        match self {
            What::Warm => "1+1 where it is remembered (goal: ≤ 1 ms)",
            What::New => "a new interpreter, until it has run 1+1",
            What::Once => "print(1) once, from nothing to its output",
        }
    }
}

/// Who takes part.
enum Who {
    Box {
        sandbox: Sandbox,
        warm: ContextInfo,
    },
    /// Contexts that are forked.
    Forks(Sandbox),
    Kernel(Peer),
    /// The same kernel as a context of a box.
    Inside {
        sandbox: Sandbox,
        kernel: ContextInfo,
    },
    Bare,
}

impl Who {
    fn name(&self) -> &'static str {
        match self {
            Who::Box { .. } => "glasshouse, in a live box",
            Who::Forks(_) => "glasshouse, kept warm (goal: ≤ 5 ms)",
            Who::Kernel(peer) => peer.name,
            Who::Inside { .. } => "ipykernel, in a live box of glasshouse",
            Who::Bare => "python3 -c, a bare process",
        }
    }

    fn can(&self, what: What) -> bool {
        match self {
            Who::Box { .. } => true,
            Who::Forks(_) => what != What::Warm,
            Who::Kernel(_) | Who::Inside { .. } => what != What::Once,
            Who::Bare => what == What::Once,
        }
    }

    async fn turn(&mut self, what: What) -> Result<Duration> {
        let start = Instant::now();
        match (self, what) {
            (Who::Box { sandbox, warm }, What::Warm) => {
                run(sandbox, warm).await?;
                Ok(start.elapsed())
            }
            (Who::Box { sandbox, .. }, What::New) => {
                let made = sandbox.create_context(ContextSpec::default()).await?;
                run(sandbox, &made).await?;
                let took = start.elapsed();
                sandbox.delete_context(&made.id).await?;
                Ok(took)
            }
            (Who::Box { sandbox, .. }, What::Once) => {
                let output = sandbox.run_once(ContextSpec::default(), CodeSpec::new("print(1)")).await?;
                ensure!(output.stdout.bytes == b"1\n", "the code ended: {}", output.report.exit);
                Ok(start.elapsed())
            }
            (Who::Forks(sandbox), What::New) => {
                let made = sandbox.create_context(warm()).await?;
                ensure!(made.warm, "it is cold: {}", made.cold.unwrap_or_default());
                run(sandbox, &made).await?;
                let took = start.elapsed();
                sandbox.delete_context(&made.id).await?;
                Ok(took)
            }
            (Who::Forks(sandbox), _) => {
                let output = sandbox.run_once(warm(), CodeSpec::new("print(1)")).await?;
                ensure!(output.stdout.bytes == b"1\n", "the code ended: {}", output.report.exit);
                Ok(start.elapsed())
            }
            (Who::Inside { sandbox, .. }, What::New) => {
                let made = sandbox.create_context(kernel()).await?;
                run(sandbox, &made).await?;
                let took = start.elapsed();
                sandbox.delete_context(&made.id).await?;
                Ok(took)
            }
            (Who::Inside { sandbox, kernel }, _) => {
                run(sandbox, kernel).await?;
                Ok(start.elapsed())
            }
            (Who::Kernel(peer), What::New) => peer.turn("new"),
            (Who::Kernel(peer), _) => peer.turn("run"),
            (Who::Bare, _) => {
                let output =
                    Command::new("/usr/bin/python3").args(["-c", "print(1)"]).stdin(Stdio::null()).output();
                ensure!(output.context("cannot start python3")?.stdout == b"1\n", "python3 does not count");
                Ok(start.elapsed())
            }
        }
    }

    /// Bytes of its interpreter that are in memory.
    async fn memory(&mut self) -> Result<Option<u64>> {
        match self {
            Who::Bare | Who::Forks(_) | Who::Inside { .. } => Ok(None),
            Who::Kernel(peer) => peer.ask("memory").map(Some),
            Who::Box { sandbox, warm } => {
                let pid = sandbox.context(&warm.id).await?.pid.context("the context is gone")?;
                let program = Program::Argv(vec!["cat".into(), format!("/proc/{pid}/status")]);
                let spec = ExecSpec { program, ..ExecSpec::default() };
                let told = sandbox.exec(spec).await?.collect().await.stdout.to_text();
                let words = told.lines().find_map(|line| line.strip_prefix("VmRSS:"));
                let kilobytes: Option<u64> =
                    words.and_then(|words| words.split_whitespace().next()?.parse().ok());
                Ok(Some(kilobytes.with_context(|| format!("the box says {told:?}"))? * 1024))
            }
        }
    }
}

fn warm() -> ContextSpec {
    ContextSpec { warm: Some(Warm::default()), ..ContextSpec::default() }
}

/// A kernel of the Python that is a volume of the box.
fn kernel() -> ContextSpec {
    let env = vec![("PATH".to_owned(), format!("{KERNELS}/bin:/usr/bin:/bin"))];
    ContextSpec { language: Language::Jupyter, env, ..ContextSpec::default() }
}

/// A box with the peer's Python, and a kernel of that in it.
async fn inside(house: &Sandboxes, python: &Path) -> Result<Who> {
    let dir = python.parent().and_then(Path::parent).context("a Python is in a directory")?;
    let dir = std::fs::canonicalize(dir)?;
    house.allow_volumes(vec![dir.clone()])?;
    let volumes = vec![Volume::new(dir, KERNELS, true)];
    let sandbox = house.create(SandboxSpec { volumes, ..stage::spec() }).await?;
    let kernel = sandbox.create_context(kernel()).await?;
    Ok(Who::Inside { sandbox, kernel })
}

async fn run(sandbox: &Sandbox, context: &ContextInfo) -> Result<()> {
    let output = sandbox.run_code(context, CodeSpec::new("1+1")).await?.collect().await;
    ensure!(output.report.exit.success() && output.results.len() == 1, "1+1 ended: {}", output.report.exit);
    Ok(())
}

/// Whether everything that was to be measured could be.
pub(crate) fn measured(args: impl Iterator<Item = String>) -> Result<bool> {
    let Some(Given { rounds, home, peers }) = Given::of(args, "code", ROUNDS, HELP)? else { return Ok(true) };
    crate::told(&home, async |interrupt| measure(&home, rounds, peers.as_deref(), interrupt).await)
}

async fn measure(
    home: &Path,
    rounds: usize,
    python: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Vec<String>> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home)?;
    let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
    let sandbox = house.create(stage::spec()).await?;
    let warm = sandbox.create_context(ContextSpec::default()).await?;
    let forks = Who::Forks(sandbox.clone());
    let (mut field, mut notes) = (vec![Who::Box { sandbox: sandbox.clone(), warm }, forks], Vec::new());
    match python.map(|python| Peer::start(python, "ipykernel, by jupyter_client", SCRIPT, &[])) {
        Some(Ok(peer)) => field.push(Who::Kernel(peer)),
        Some(Err(why)) => notes.push(format!("ipykernel takes no part: {why:#}")),
        None => notes.push("ipykernel takes no part: no --peers".to_owned()),
    }
    let other = match python {
        Some(python) => inside(&house, python).await.map(Some),
        None => Ok(None),
    };
    match other {
        Ok(who) => field.extend(who),
        Err(why) => notes.push(format!("ipykernel in a box takes no part: {why:#}")),
    }
    field.push(Who::Bare);
    let turns = What::ALL.into_iter().flat_map(|what| (0..field.len()).map(move |who| (what, who)));
    let turns: Vec<_> = turns.filter(|&(what, who)| field[who].can(what)).collect();
    let mut order: Vec<usize> = (0..turns.len()).collect();
    let mut samples = vec![Samples::default(); turns.len()];
    let mut dice = Dice(1);
    for round in 0..WARM_UP_ROUNDS + rounds {
        dice.shuffle(&mut order);
        for &turn in &order {
            let (what, who) = turns[turn];
            interrupt.check().await?;
            let took = field[who].turn(what).await;
            let took = took.with_context(|| format!("{}: {}", field[who].name(), what.name()))?;
            if round >= WARM_UP_ROUNDS {
                samples[turn].push(took);
            }
        }
    }
    let mut rows = Vec::new();
    for what in What::ALL {
        rows.push(vec![what.name().to_owned()]);
        for (turn, &(_, who)) in turns.iter().enumerate().filter(|(_, (of, _))| *of == what) {
            rows.push(sampled(field[who].name(), &samples[turn]));
        }
    }
    for who in &mut field {
        if let Some(bytes) = who.memory().await? {
            notes.push(format!(
                "{}: {:.1} MiB after all this",
                who.name(),
                bytes as f64 / f64::from(1 << 20)
            ));
        }
    }
    for who in &field {
        if let Who::Inside { sandbox, .. } = who {
            sandbox.destroy().await?;
        }
    }
    sandbox.destroy().await?;
    house.settle().await;
    dir.close().context("cannot remove the state directory")?;
    let head = format!("{rounds} rounds, in shuffled order; times in ms (load average {})", machine::load());
    Ok([vec![head, String::new()], table(&["", "min", "p50", "p99"], &rows), notes].concat())
}
