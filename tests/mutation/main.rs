//! Mutations: recorded trajectories are replayed clean, and with one thing changed in one step. A clean replay has to be
//! the same; a changed one has to name exactly that step.
//!
//! The number of trajectories is `MUTATIONS` (24 without a word; `tests/mutation/run` takes 1000), and `HUMAN_EVAL`
//! may name a file with the problems of HumanEval, whose solutions are then among them. The figures are printed.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod script;

use std::collections::BTreeMap;
use std::io::Write as _;

use glasshouse_sandbox::{
    ExecSpec, Program, Recording, ReplayOptions, Sandbox, SandboxSpec, Sandboxes, Settings,
};
use glasshouse_trace::trajectory::Trajectory;
use script::{Dice, Mutation, Script};
use serde_json::Value;

/// Trajectories of a quick run.
const QUICK: usize = 24;
/// Of a thousand changes, so many may be told wrongly.
const WRONG_PER_THOUSAND_MAX: usize = 5;

#[test]
fn a_change_in_one_step_is_named_and_nothing_else_is() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // A large run takes longer than any suite may.
        let dir = match count() {
            ..=QUICK => glasshouse_tests::scratch(),
            _ => tempfile::tempdir_in("/var/tmp").unwrap(),
        };
        let house = Sandboxes::open(Settings { home: dir.path().join("home") }).unwrap();
        let spec = SandboxSpec {
            deterministic: Some(true),
            recording: Some(Recording::Steps),
            owner: Some(std::process::id()),
            ..SandboxSpec::default()
        };
        let sandbox = house.create(spec).await.unwrap();
        let tally = all(&house, &sandbox).await;
        sandbox.destroy().await.unwrap();
        house.settle().await;
        tally.check();
    });
}

async fn all(house: &Sandboxes, sandbox: &Sandbox) -> Tally {
    let count = count();
    let problems = std::env::var("HUMAN_EVAL").map_or_else(|_| Vec::new(), |path| problems(&path));
    let mut tally = Tally::default();
    for number in 0..count {
        let mut dice = Dice(number as u64 + 1);
        let script = match problems.get(number) {
            Some(problem) => Script::of_problem(problem),
            None => Script::generate(&mut dice),
        };
        let trajectory = record(house, sandbox, &script).await;
        tally.clean(number, &replay(house, sandbox, &trajectory).await);
        // Every kind has its turn, in a step to which it can happen.
        let (mutation, step) = Mutation::pick(number, &trajectory, &mut dice);
        let mutant = mutation.happen(&trajectory, step);
        let outcome = replay(house, sandbox, &mutant).await;
        tally.mutated(number, mutation, step as u64 + 1, &outcome);
        if count > QUICK && (number + 1) % 100 == 0 {
            let _ = writeln!(std::io::stderr(), "{} of {count}", number + 1);
        }
    }
    tally
}

/// How many trajectories.
fn count() -> usize {
    std::env::var("MUTATIONS").map_or(QUICK, |text| text.parse().expect("MUTATIONS is a number"))
}

fn problems(path: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("HUMAN_EVAL names a file");
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a problem")).collect()
}

/// What a trajectory's steps do, on record.
async fn record(house: &Sandboxes, sandbox: &Sandbox, script: &Script) -> Trajectory {
    sandbox.reset().await.unwrap();
    for line in &script.lines {
        let spec = ExecSpec { program: Program::Shell(line.clone()), ..ExecSpec::default() };
        sandbox.exec(spec).await.unwrap().collect().await;
    }
    let (trajectory, _) = house.trajectory(sandbox.id()).unwrap();
    assert_eq!(trajectory.steps.len(), script.lines.len());
    trajectory
}

/// The first step that went another way, and in what.
async fn replay(house: &Sandboxes, sandbox: &Sandbox, trajectory: &Trajectory) -> Outcome {
    sandbox.reset().await.unwrap();
    let replay = house.replay(sandbox, trajectory, ReplayOptions::default()).await.unwrap();
    let replayed = replay.run(|_| {}).await.unwrap();
    let first = replayed.divergences.first()?;
    Some((first.step, format!("{:?}", first.differences)))
}

type Outcome = Option<(u64, String)>;

/// What was found.
#[derive(Default)]
struct Tally {
    clean: usize,
    false_alarms: Vec<String>,
    kinds: BTreeMap<&'static str, (usize, usize)>,
    wrong: Vec<String>,
}

impl Tally {
    fn clean(&mut self, number: usize, outcome: &Outcome) {
        self.clean += 1;
        if let Some((step, what)) = outcome {
            self.false_alarms.push(format!("trajectory {number}: step {step}: {what}"));
        }
    }

    fn mutated(&mut self, number: usize, mutation: Mutation, step: u64, outcome: &Outcome) {
        let (total, exact) = self.kinds.entry(mutation.name()).or_default();
        *total += 1;
        match outcome {
            Some((found, _)) if *found == step => *exact += 1,
            other => self.wrong.push(format!(
                "trajectory {number}: {} in step {step} was told as {other:?}",
                mutation.name()
            )),
        }
    }

    fn check(&self) {
        let total: usize = self.kinds.values().map(|(total, _)| total).sum();
        let exact: usize = self.kinds.values().map(|(_, exact)| exact).sum();
        let mut out = format!("clean: {} replayed, {} false alarms\n", self.clean, self.false_alarms.len());
        for (kind, (total, exact)) in &self.kinds {
            out += &format!("{kind:<14} {exact:>4} of {total:>4} named exactly\n");
        }
        out += &format!("{:<14} {exact:>4} of {total:>4} named exactly\n", "all");
        let _ = std::io::stderr().write_all(out.as_bytes());
        assert!(self.false_alarms.is_empty(), "{:#?}", self.false_alarms);
        assert!(self.wrong.len() * 1000 <= total * WRONG_PER_THOUSAND_MAX, "{:#?}", self.wrong);
    }
}
