//! `glass-bench docker`: a box in a container beside the engine's own program, and beside others that use it.
//!
//! All on one engine (`DOCKER_HOST`), with an image that is made on the spot. Each round gives everybody one turn at
//! everything, in shuffled order. Others are Python packages: a process of theirs is told over a pipe whose turn it is, so
//! that starting Python is not counted. They have no snapshots of a live box, and no forks.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use glasshouse_sandbox::{
    EngineSettings, ExecSpec, Image, Program, Sandbox, SandboxSpec, Sandboxes, Settings, SnapshotOptions,
};

use crate::contender::docker::Engine;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::peer::{Given, Peer};
use crate::round::Dice;
use crate::sample::Samples;
use crate::stage;
use crate::table::{sampled, table};

const HELP: &str = "\
glass-bench docker [--rounds N] [--home DIR] [--peers PYTHON]: a box in a container beside docker run, exec and commit

  --peers PYTHON   and beside ms-enclave and llm-sandbox, where this Python has them:
                   python3 -m venv target/peers && target/peers/bin/pip install 'ms-enclave[docker]' 'llm-sandbox[docker]'";

const ROUNDS: usize = 30;
/// Turns that are not counted.
const WARM_UP_ROUNDS: usize = 1;
const PEERS: [&str; 2] = ["ms-enclave", "llm-sandbox"];
const SCRIPT: &str = include_str!("peers.py");

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    First,
    Exec,
    Snapshot,
    Fork,
}

impl What {
    const ALL: [What; 4] = [What::First, What::Exec, What::Snapshot, What::Fork];

    fn name(self) -> &'static str {
        match self {
            What::First => "create, to the end of the first command",
            What::Exec => "a command in a live container",
            What::Snapshot => "snapshot of a live container",
            What::Fork => "fork of a live container, to the end of its first command",
        }
    }
}

/// Who is measured.
enum Who {
    /// A box of ours, in a container or, for comparison, without.
    Box(&'static str, Sandbox, Box<SandboxSpec>),
    Engine(Engine),
    Peer(Peer),
}

impl Who {
    fn name(&self, what: What) -> String {
        match (self, what) {
            (Who::Box(name, ..), _) => (*name).to_owned(),
            (Who::Engine(_), What::First) => "docker run --rm --network none".to_owned(),
            (Who::Engine(_), What::Exec) => "docker exec".to_owned(),
            (Who::Engine(_), What::Snapshot) => "docker commit".to_owned(),
            (Who::Engine(_), What::Fork) => "docker commit, docker run".to_owned(),
            (Who::Peer(peer), _) => peer.name.to_owned(),
        }
    }

    fn can(&self, what: What) -> bool {
        !matches!((self, what), (Who::Peer(_), What::Snapshot | What::Fork))
    }

    async fn turn(&mut self, house: &Sandboxes, what: What) -> Result<Duration> {
        match (self, what) {
            (Who::Box(_, _, spec), What::First) => {
                let start = Instant::now();
                let sandbox = house.create(SandboxSpec::clone(spec)).await?;
                ended(start, sandbox).await
            }
            (Who::Box(_, live, _), What::Exec) => {
                let start = Instant::now();
                command(live).await?;
                Ok(start.elapsed())
            }
            (Who::Box(_, live, _), What::Snapshot) => {
                let start = Instant::now();
                let snapshot = live.snapshot(SnapshotOptions::default()).await?;
                let took = start.elapsed();
                house.remove_snapshot(&snapshot.id).await?;
                Ok(took)
            }
            (Who::Box(_, live, _), What::Fork) => {
                let start = Instant::now();
                let fork = live.fork(1).await?.pop().context("a fork is one box")?;
                ended(start, fork).await
            }
            (Who::Engine(engine), What::First) => engine.run().time(),
            (Who::Engine(engine), What::Exec) => engine.exec().time(),
            (Who::Engine(engine), What::Snapshot) => engine.commit(),
            (Who::Engine(engine), What::Fork) => engine.fork(),
            (Who::Peer(peer), What::First) => peer.turn("first"),
            (Who::Peer(peer), _) => peer.turn("exec"),
        }
    }
}

async fn command(sandbox: &Sandbox) -> Result<()> {
    let program = Program::Argv(vec!["/bin/true".to_owned()]);
    let output = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await?.collect().await;
    ensure!(output.report.exit.success(), "the command in the box ended: {}", output.report.exit);
    Ok(())
}

/// How long it took to the end of a box's first command. Its own end is not counted.
async fn ended(start: Instant, sandbox: Sandbox) -> Result<Duration> {
    let ran = command(&sandbox).await;
    let took = start.elapsed();
    sandbox.destroy().await?;
    ran.map(|()| took)
}

/// Whether everything that was to be measured could be.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<bool> {
    let Some(Given { rounds, home, peers }) = Given::of(args, "docker", ROUNDS, HELP)? else {
        return Ok(true);
    };
    crate::told(&home, async |interrupt| measure(&home, rounds, peers.as_deref(), interrupt).await)
}

async fn measure(
    home: &Path,
    rounds: usize,
    python: Option<&Path>,
    interrupt: &Interrupt,
) -> Result<Vec<String>> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home)?;
    let settings = EngineSettings { host: std::env::var("DOCKER_HOST").ok(), ..EngineSettings::default() };
    let house = Sandboxes::open_with(Settings { home: dir.path().join("home") }, settings)?;
    let engine = Engine::at(&dir.path().join("docker")).map_err(|why| anyhow!("{why}"))?;
    let (mut field, notes) = field(&house, engine, python).await?;
    let turns = What::ALL.into_iter().flat_map(|what| (0..field.len()).map(move |who| (what, who)));
    let turns: Vec<_> = turns.filter(|&(what, who)| field[who].can(what)).collect();
    let mut order: Vec<usize> = (0..turns.len()).collect();
    let mut samples = vec![vec![Samples::default(); field.len()]; What::ALL.len()];
    let mut dice = Dice(1);
    for round in 0..WARM_UP_ROUNDS + rounds {
        dice.shuffle(&mut order);
        for &turn in &order {
            let (what, who) = turns[turn];
            interrupt.check().await?;
            let took = field[who].turn(&house, what).await;
            let took = took.with_context(|| format!("{}: {}", field[who].name(what), what.name()))?;
            if round >= WARM_UP_ROUNDS {
                samples[what as usize][who].push(took);
            }
        }
    }
    let mut rows = Vec::new();
    for what in What::ALL {
        rows.push(vec![what.name().to_owned()]);
        let of = turns.iter().filter(|(of, _)| *of == what);
        rows.extend(of.map(|&(_, who)| sampled(&field[who].name(what), &samples[what as usize][who])));
    }
    for who in field {
        if let Who::Box(_, sandbox, _) = who {
            sandbox.destroy().await?;
        }
    }
    house.settle().await;
    house.gc().await?;
    dir.close().context("cannot remove the state directory")?;
    let head = format!("{rounds} rounds, in shuffled order; times in ms (load average {})", machine::load());
    let table = table(&["", "min", "p50", "p99"], &rows);
    Ok([vec![head, String::new()], table, notes].concat())
}

/// Who takes part, and why others do not.
async fn field(house: &Sandboxes, engine: Engine, python: Option<&Path>) -> Result<(Vec<Who>, Vec<String>)> {
    let (mut field, mut notes) = (Vec::new(), Vec::new());
    for name in PEERS {
        match python.map(|python| Peer::start(python, name, SCRIPT, &[name, engine.image()])) {
            Some(Ok(peer)) => field.push(Who::Peer(peer)),
            Some(Err(why)) => notes.push(format!("{name} takes no part: {why:#}")),
            None => notes.push(format!("{name} takes no part: no --peers")),
        }
    }
    let image = Image::Engine(engine.image().to_owned());
    for (name, spec) in [
        ("glasshouse, in a container", SandboxSpec { image, ..stage::contained() }),
        ("glasshouse, native", stage::spec()),
    ] {
        field.push(Who::Box(name, house.create(spec.clone()).await?, Box::new(spec)));
    }
    field.push(Who::Engine(engine));
    Ok((field, notes))
}
