//! `glass-bench record`: what it costs to record steps, and not only commands.
//!
//! Three boxes that differ in nothing but what they record do the same work in turn, in shuffled order. A box that
//! records commands is the measure: that is the least that there is, every box has a record. What a step costs is the
//! difference to it, of the medians and of the least. Two goals stand beside the figures: 2 ms a step with 100 changed
//! files, and 2 % of the wall time of a trajectory of real work: look, change a header, compile, test, mend one file, compile, test.
//! What a compiler does is what the kernel has to do for it, as recording is; a loop that only computes would be measured by
//! another yardstick on each machine.
//!
//! A step is looked at when its command has ended, so what that costs is found in the time around the commands: all that
//! their caller waited, less what they took themselves, as the guest tells it. The same command takes now 60 and now 70 ms,
//! and by the whole time alone, the difference between two boxes is that. With a snapshot of each step the commands work on
//! another root than without, and take longer themselves: there the whole time counts.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use glasshouse_sandbox::{ExecSpec, Program, Recording, Sandbox, SandboxSpec, Sandboxes, Settings};

use crate::interrupt::Interrupt;
use crate::machine;
use crate::options::Words;
use crate::pace;
use crate::progress::Progress;
use crate::round::Dice;
use crate::sample::Samples;
use crate::stage;
use crate::table::{NONE, milliseconds, table};

/// Rounds unless said otherwise. With these, all of it takes less than a minute and a half.
const ROUNDS: usize = 100;

const HELP: &str = "\
What recording steps costs, beside recording commands alone.

Usage: cargo run --release -p glasshouse-bench -- record [OPTIONS]

  --rounds N     turns of every box; a fifth of them for the trajectory [100]
  --home PATH    where the state directory is made, to choose the disk [the directory for temporary files]
  --help         this";

/// One thing that is done in each round.
struct Work {
    name: &'static str,
    /// The lines of its steps, for the shell. What is written is another thing in each round.
    lines: fn(usize) -> Vec<String>,
    /// It is done once in so many rounds.
    every: usize,
    goal: Option<Goal>,
}

/// What recording steps may cost.
#[derive(Debug, Clone, Copy)]
enum Goal {
    /// In a step.
    Step(Duration),
    /// Of the wall time, in percent.
    Share(f64),
}

const WORKS: [Work; 3] = [
    Work {
        name: "a step that does nothing (true)",
        lines: |_| vec!["true".to_owned()],
        every: 1,
        goal: None,
    },
    Work {
        name: "a step that writes 100 files of 4 KiB anew",
        lines: |round| vec![files("f", 100, 4096, round)],
        every: 1,
        goal: Some(Goal::Step(Duration::from_millis(2))),
    },
    Work {
        name: "a trajectory: look, change, compile 10 files, test, mend, compile 1, test",
        lines: trajectory,
        every: 5,
        goal: Some(Goal::Share(2.0)),
    },
];

/// What the files are filled with.
const LINES: &str = "    let found = self.places.get(&key).ok_or_else(|| Error::new(Kind::NotFound, name))?;
    // The one that was asked for last is looked for first: most ask for it again.
    for (index, entry) in found.iter().enumerate().filter(|(_, entry)| entry.size > 0) {
        total += entry.size * scale[index % scale.len()];
    }
";
/// How wide the number is that tells one file from another.
const NUMBER: usize = 10;

fn files(name: &str, count: usize, bytes: usize, round: usize) -> String {
    // What is written is looked through for secrets, for which blanks would be easier than what people write.
    let text: String = LINES.chars().cycle().take(bytes - NUMBER).collect();
    // A number that does not begin with a zero, which would make it octal.
    let write = format!("printf '%s%{NUMBER}d' \"$text\" {}$i 1<> {name}$i", round + 1);
    format!("text='{text}'; i=0; while [ $i -lt {count} ]; do {write}; i=$((i+1)); done")
}

/// What an agent does, without what it thinks. The compiler is the one that links this program; the tests are Python's.
fn trajectory(round: usize) -> Vec<String> {
    let compile = "cc -O1 -g -Wall -c";
    let link = "cc -o parts *.o && echo linked";
    let test = "python3 -m unittest -v test_parts";
    vec![
        concat!(include_str!("trajectory.sh"), "ls -l; grep -n ROUND *.h *.c").to_owned(),
        format!("sed -i 's/^#define ROUND .*/#define ROUND {round}/' parts.h"),
        format!("for file in *.c; do {compile} $file || exit 1; done; {link}"),
        test.to_owned(),
        format!("sed -i '/MENDED /d; 1i #define MENDED {round}' part3.c"),
        format!("{compile} part3.c && {link}"),
        test.to_owned(),
    ]
}

/// Whether everything that was to be measured could be.
pub(crate) fn run(args: impl Iterator<Item = String>) -> Result<bool> {
    let (mut rounds, mut home) = (ROUNDS, std::env::temp_dir());
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
    crate::told(&home, async |interrupt| measure(&home, rounds, interrupt).await)
}

async fn measure(home: &Path, rounds: usize, interrupt: &Interrupt) -> Result<Vec<String>> {
    let dir = tempfile::Builder::new().prefix("glass-bench-").tempdir_in(home);
    let dir = dir.with_context(|| format!("cannot make a directory in {}", home.display()))?;
    let house = Sandboxes::open(Settings { home: dir.path().join("home") })?;
    let mut boxes = Vec::new();
    for recording in Recording::ALL {
        boxes.push(house.create(SandboxSpec { recording: Some(recording), ..stage::spec() }).await?);
    }
    let mut spawns = Samples::default();
    let measured = rows(&boxes, rounds, interrupt, &mut spawns).await;
    // Whatever came of it, nothing stays.
    for sandbox in &boxes {
        sandbox.destroy().await?;
    }
    house.settle().await;
    dir.close().context("cannot remove the state directory")?;
    let head = format!("{rounds} rounds, in shuffled order; times in ms (load average {})", machine::load());
    let columns = ["", "min", "p50", "p99", "a step costs: p50", "min", "of the wall time", "goal"];
    let (measured, step) = measured?;
    let mut lines = [vec![head, String::new()], table(&columns, &measured)].concat();
    if let (Some(spawn), Some(step)) = (spawns.figures(), step) {
        let paced = pace::at_pace(step.as_secs_f64() * 1e3, spawn.p50);
        lines.push(format!(
            "a bare spawn took {} (p50); where it takes {} ms, as the goals have it, the step of 100 files costs {paced:.2}",
            milliseconds(spawn.p50),
            pace::SPAWN_MS
        ));
    }
    Ok(lines)
}

/// The table, and what a step costs that has a goal for it; and a word on stderr for each part that is done. With bare spawns
/// between the turns, which tell how fast the machine is meanwhile.
async fn rows(
    boxes: &[Sandbox],
    rounds: usize,
    interrupt: &Interrupt,
    spawns: &mut Samples,
) -> Result<(Vec<Vec<String>>, Option<Duration>)> {
    let mut progress = Progress::on_stderr();
    let mut dice = Dice(1);
    let (mut rows, mut step) = (Vec::new(), None);
    for work in &WORKS {
        let rounds = rounds.div_ceil(work.every);
        let mut samples = [Timed::default(), Timed::default(), Timed::default()];
        let mut order = [0, 1, 2];
        // One that is not counted.
        for round in 0..=rounds {
            progress.show(&format!("{}: round {round} of {rounds}", work.name));
            dice.shuffle(&mut order);
            let lines = (work.lines)(round);
            spawns.push(pace::spawn()?);
            for at in order {
                interrupt.check().await?;
                let (whole, around) = once(&boxes[at], &lines).await?;
                if round > 0 {
                    samples[at].whole.push(whole);
                    samples[at].around.push(around);
                }
            }
        }
        progress.done(&format!("{}: {rounds} rounds", work.name));
        rows.push(vec![work.name.to_owned()]);
        let steps = (work.lines)(0).len() as u32;
        for (recording, of_box) in Recording::ALL.into_iter().zip(&samples) {
            let cost = Cost::of(recording, &samples[0], of_box, steps);
            let goal = work.goal.filter(|_| recording == Recording::Steps);
            if let (Some(Goal::Step(_)), Some(cost)) = (goal, cost) {
                step = Some(cost.p50);
            }
            rows.push(row(recording, &of_box.whole, cost, goal));
        }
    }
    Ok((rows, step))
}

/// What was measured of a box.
#[derive(Debug, Default)]
struct Timed {
    /// All that the caller waited.
    whole: Samples,
    /// Less what the commands took themselves.
    around: Samples,
}

/// One step after the other. How long all of them took, and how much of it was around the commands.
async fn once(sandbox: &Sandbox, lines: &[String]) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    let mut own = Duration::ZERO;
    for line in lines {
        let spec = ExecSpec { program: Program::Shell(line.clone()), ..ExecSpec::default() };
        let output = sandbox.exec(spec).await?.collect().await;
        if !output.report.exit.success() {
            bail!("{line:?} failed: {}", output.report.exit);
        }
        own += Duration::from_micros(output.report.wall_us);
    }
    let whole = start.elapsed();
    Ok((whole, whole.saturating_sub(own)))
}

/// What recording costs beyond the least.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    /// A step, by the medians.
    p50: Duration,
    /// A step, by the fastest ones.
    min: Duration,
    /// Of the wall time, by the medians, in percent.
    share: f64,
}

impl Cost {
    fn of(recording: Recording, plain: &Timed, recorded: &Timed, steps: u32) -> Option<Cost> {
        let whole = plain.whole.figures()?.p50;
        let (plain, recorded) = match recording {
            Recording::Commands => return None,
            Recording::Steps => (&plain.around, &recorded.around),
            Recording::Snapshots => (&plain.whole, &recorded.whole),
        };
        let (plain, recorded) = (plain.figures()?, recorded.figures()?);
        let more = recorded.p50.saturating_sub(plain.p50);
        Some(Cost {
            p50: more / steps,
            min: recorded.min.saturating_sub(plain.min) / steps,
            share: 100.0 * more.as_secs_f64() / whole.as_secs_f64(),
        })
    }
}

impl Goal {
    /// The goal and whether it is met, for people.
    fn judged(self, cost: Cost) -> String {
        let (text, met) = match self {
            Goal::Step(most) => (format!("≤ {} ms a step", most.as_millis()), cost.p50 <= most),
            Goal::Share(most) => (format!("≤ {most} % of the wall time"), cost.share <= most),
        };
        format!("{text}: {}", if met { "met" } else { "not met" })
    }
}

fn row(recording: Recording, samples: &Samples, cost: Option<Cost>, goal: Option<Goal>) -> Vec<String> {
    let mut cells = vec![format!("  --record {}", recording.name())];
    match samples.figures() {
        Some(f) => cells.extend([f.min, f.p50, f.p99].map(milliseconds)),
        None => cells.extend([NONE; 3].map(String::from)),
    }
    if let Some(cost) = cost {
        cells.extend([cost.p50, cost.min].map(milliseconds));
        cells.push(format!("{:.1} %", cost.share));
        cells.extend(goal.map(|goal| goal.judged(cost)));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of commands that take 100 ms themselves. The times are those around them.
    fn cost_of(recording: Recording, plain: &[u64], recorded: &[u64], steps: u32) -> Cost {
        let samples = |ms: &[u64], more: u64| {
            Samples::from_nanoseconds(ms.iter().map(|ms| (ms + more) * 1_000_000).collect())
        };
        let timed = |ms: &[u64], own| Timed { whole: samples(ms, own), around: samples(ms, 0) };
        // By chance, those of the recorded box took longer.
        Cost::of(recording, &timed(plain, 100), &timed(recorded, 107), steps).unwrap()
    }

    fn cost(plain: &[u64], recorded: &[u64], steps: u32) -> Cost {
        cost_of(Recording::Steps, plain, recorded, steps)
    }

    #[test]
    fn a_cost_is_of_one_step_and_a_share_of_all() {
        let more = cost(&[0, 10, 20], &[4, 18, 30], 4);
        assert_eq!((more.p50.as_millis(), more.min.as_millis()), (2, 1));
        assert!((more.share - 100.0 * 8.0 / 110.0).abs() < 1e-9, "{more:?}");
        // With snapshots, the commands themselves are a part of it.
        assert_eq!(cost_of(Recording::Snapshots, &[0, 10, 20], &[4, 18, 30], 1).p50.as_millis(), 15);
        // What is faster by chance costs nothing.
        assert_eq!(cost(&[5], &[4], 1).p50, Duration::ZERO);
    }

    #[test]
    fn a_goal_is_told_with_what_came_of_it() {
        let two = Goal::Step(Duration::from_millis(2));
        assert_eq!(two.judged(cost(&[10], &[12], 1)), "≤ 2 ms a step: met");
        assert_eq!(two.judged(cost(&[10], &[13], 1)), "≤ 2 ms a step: not met");
        assert_eq!(Goal::Share(2.0).judged(cost(&[0], &[3], 1)), "≤ 2 % of the wall time: not met");
    }

    #[test]
    fn both_goals_are_measured() {
        let goals: Vec<Goal> = WORKS.iter().filter_map(|work| work.goal).collect();
        assert!(matches!(goals[..], [Goal::Step(_), Goal::Share(_)]), "{goals:?}");
        // What is written in one round is not what was written in the one before.
        for work in WORKS.iter().filter(|work| work.goal.is_some()) {
            assert_ne!((work.lines)(1), (work.lines)(2), "{}", work.name);
        }
    }
}
