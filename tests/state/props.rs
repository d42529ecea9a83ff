//! Whatever is done to a tree in a box, and whatever is done to the box: it shows what a model says.

use std::path::PathBuf;

use glasshouse_sandbox::{ExecSpec, Method, Program, Sandbox, SnapshotOptions};

use crate::model::{Model, SCRIPT};
use crate::rerun::{self, Dice, PYTHON};

/// How often the tree is changed and then the box. `STATE_ROUNDS` says otherwise.
const ROUNDS: usize = 100;
/// Changes of the tree in one command.
const STEPS: usize = 12;

/// So many snapshots to one that is compared with a tree that was written anew.
const TWIN_EACH: usize = 5;
/// The kernel takes no longer word.
const ARGUMENT_BYTES: usize = 100_000;

/// A box and all that should be true of it.
struct Run {
    house: glasshouse_sandbox::Sandboxes,
    sandbox: Sandbox,
    model: Model,
    /// What the box began with.
    origin: Model,
    /// Snapshots, with what they show and the digest of that.
    kept: Vec<(String, Model, String)>,
    /// Its root was mounted after the last change.
    fresh: bool,
    /// What was done, for whoever has to find out why it failed.
    told: Vec<String>,
}

impl Run {
    /// Changes the tree, and compares.
    async fn change(&mut self, dice: &mut Dice, steps: usize) {
        let (mut after, mut lines, mut planned) = (self.model.clone(), Vec::new(), Vec::new());
        for _ in 0..steps {
            let step = after.some_step(dice);
            // Whether a move is a copy is not known yet; what comes next may not depend on it.
            after.apply(&step, false);
            lines.push(step.line());
            planned.push(step);
        }
        self.told.extend(planned.iter().map(|step| format!("{step:?}").chars().take(200).collect()));
        let lines = lines.join("\n");
        let output = rerun::python(&self.sandbox, SCRIPT, &[&lines]).await;
        let (moves, listing) = output.split_once("--\n").expect("the script says where the list begins");
        let mut moves = moves.lines();
        for step in &planned {
            let is_move = matches!(step, crate::model::Step::Move(..));
            self.model.apply(step, is_move && moves.next() == Some("copied"));
        }
        self.compare(listing, false);
    }

    async fn check(&mut self, links: bool) {
        let output = rerun::python(&self.sandbox, SCRIPT, &[""]).await;
        self.compare(output.strip_prefix("--\n").expect("nothing was done"), links);
    }

    /// With `links`: which names are one file, too. That is asked of fresh mounts only: where a file was copied up and then
    /// linked, overlayfs gives the two names different numbers until they are looked up anew. What is written to one
    /// of them is seen by the other all the same, and that is always compared.
    fn compare(&self, listing: &str, links: bool) {
        let without = |text: String| -> String {
            let cut = |line: &str| line.split(' ').take(5).collect::<Vec<_>>().join(" ") + "\n";
            if links { text } else { text.lines().map(cut).collect() }
        };
        let (listing, expected) = (&without(listing.to_owned()), without(self.model.listing()));
        if *listing != expected {
            let lines = |one: &str, other: &str, sign: char| -> Vec<String> {
                let other: Vec<&str> = other.lines().collect();
                one.lines()
                    .filter(|line| !other.contains(line))
                    .map(|line| format!("{sign} {line}"))
                    .collect()
            };
            let differing = [lines(&expected, listing, '-'), lines(listing, &expected, '+')].concat();
            let from = self.told.len().saturating_sub(60);
            let told = self.told[from..].join("\n");
            panic!("{told}\nthe model (-) and the box (+) differ:\n{}", differing.join("\n"));
        }
    }

    async fn snapshot(&mut self, expected: &[Method]) {
        let taken = self.sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
        self.told.push(format!("== snapshot {} {:?}", taken.id, taken.method));
        assert!(expected.contains(&taken.method), "{:?}: {}", taken.method, self.told.join("\n"));
        self.fresh = taken.method == Method::Rotate;
        if self.fresh {
            self.model = self.model.clone().sealed();
        }
        let digest = self.digest(&taken.id).await;
        assert_eq!(self.digest(self.sandbox.id()).await, digest, "{}", self.told.join("\n"));
        self.kept.push((taken.id, self.model.clone().sealed(), digest));
    }

    async fn digest(&self, name: &str) -> String {
        self.house.digest(name).await.expect("it can be looked at").digest
    }

    /// Goes back to a snapshot: the digest is what it was then, too.
    async fn restore(&mut self, (id, model, digest): (String, Model, String)) {
        self.told.push(format!("== restore {id}"));
        self.sandbox.restore(&id).await.expect("it can be gone back to");
        self.model = model;
        assert_eq!(self.digest(self.sandbox.id()).await, digest, "{}", self.told.join("\n"));
    }

    /// The same tree, written anew in a new box, has the same digest.
    async fn compare_with_twin(&self, model: &Model, digest: &str) {
        let twin = self.house.create(rerun::spec()).await.expect("a box can be made");
        let mut lines = model.lines();
        while !lines.is_empty() {
            let mut bytes = 0;
            let fits = |line: &&String| {
                bytes += line.len() + 1;
                bytes < ARGUMENT_BYTES
            };
            let count = lines.iter().take_while(fits).count().max(1);
            let some = lines.drain(..count).collect::<Vec<_>>().join("\n");
            rerun::python(&twin, SCRIPT, &[&some]).await;
        }
        assert_eq!(self.digest(twin.id()).await, digest, "{}", model.listing());
        twin.destroy().await.expect("it can be removed");
    }

    /// A snapshot while something runs.
    async fn snapshot_of_running(&mut self) {
        let program = Program::Argv(
            [PYTHON, "-c", "import time; print(1, flush=True); time.sleep(1000)"].map(String::from).into(),
        );
        let spec = ExecSpec { program, ..ExecSpec::default() };
        let mut exec = self.sandbox.exec(spec).await.expect("the box lives");
        // It runs for certain.
        exec.next().await;
        self.snapshot(&[Method::Copy, Method::Reflink, Method::Unchanged]).await;
        self.sandbox.kill_exec(exec.id()).await.expect("it runs");
        exec.collect().await;
    }

    /// Goes on in a fork; the box that it came from goes.
    async fn fork(&mut self) {
        self.told.push("== fork".into());
        let digest = self.digest(self.sandbox.id()).await;
        let fork = self.sandbox.fork(1).await.expect("it can be forked").remove(0);
        assert_eq!(self.digest(fork.id()).await, digest, "{}", self.told.join("\n"));
        let old = std::mem::replace(&mut self.sandbox, fork);
        old.destroy().await.expect("it can be removed");
        self.model = self.model.clone().sealed();
        self.origin = self.model.clone();
    }

    async fn event(&mut self, dice: &mut Dice) {
        self.fresh = true;
        match dice.below(20) {
            0..5 => self.snapshot(&[Method::Rotate, Method::Unchanged]).await,
            5 | 6 => self.snapshot_of_running().await,
            7..10 => {
                let Some(kept) = dice.of(&self.kept).cloned() else { return };
                self.restore(kept).await;
            }
            10 => {
                self.told.push("== reset".into());
                self.sandbox.reset().await.expect("it can be reset");
                self.model = self.origin.clone();
            }
            11 | 12 => self.fork().await,
            13 => {
                self.told.push("== stop, start".into());
                let id = self.house.stop(self.sandbox.id()).await.expect("it can be stopped");
                self.sandbox = self.house.start(&id).await.expect("it can be started");
            }
            _ => return,
        }
        self.check(self.fresh).await;
    }
}

async fn run(home: PathBuf) {
    let mut dice = Dice::new("props");
    let rounds = std::env::var("STATE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS);
    let (house, sandbox) = rerun::house(&home).await;
    let (model, origin) = (Model::default(), Model::default());
    let mut run = Run { house, sandbox, model, origin, kept: Vec::new(), fresh: true, told: Vec::new() };
    for _ in 0..rounds {
        run.change(&mut dice, STEPS).await;
        run.event(&mut dice).await;
    }
    // All that was kept is there to the end.
    for (n, kept) in std::mem::take(&mut run.kept).into_iter().enumerate() {
        run.restore(kept.clone()).await;
        run.check(true).await;
        if n % TWIN_EACH == 0 {
            run.compare_with_twin(&kept.1, &kept.2).await;
        }
    }
    rerun::clear(&run.house, &home).await;
}

#[test]
fn a_box_always_shows_what_the_model_says() {
    rerun::each("props::a_box_always_shows_what_the_model_says", run);
}
