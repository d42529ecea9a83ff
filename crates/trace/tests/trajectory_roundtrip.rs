//! Any trajectory, in every format and back: what both sides can say survives. The lists here are what the
//! formats are documented to hold, and not taken from the code that writes them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use glasshouse_protocol::{Exit, Killer};
use glasshouse_trace::trajectory::{
    Base, Change, FileChange, Format, Observed, Outcome, Profile, Rule, Shape, StateAfter, Step, Strictness,
    Task, Text, Trajectory, diff, path_text, read_one, write,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Map, Value, json};

/// Words that are not empty: where nothing is known, several formats write an empty text.
fn words() -> impl Strategy<Value = String> {
    "[ -~äß€𝄞\n\t\r\u{1}]{1,12}"
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((".{0,6}", inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

fn params() -> impl Strategy<Value = Map<String, Value>> {
    vec(("[a-z]{1,8}", value()), 0..4)
        .prop_map(|pairs| pairs.into_iter().filter(|(key, _)| key != "thought").collect())
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![3 => ".{0,40}".prop_map(Text::from), 1 => any::<Vec<u8>>().prop_map(Text::of)]
}

fn end() -> impl Strategy<Value = Exit> {
    prop_oneof![
        (0..256).prop_map(|code| Exit::Code { code }),
        (1..65).prop_map(|signal| Exit::Signal { signal }),
        Just(Exit::TimedOut),
        any::<u64>().prop_map(|peak_bytes| Exit::OutOfMemory { peak_bytes }),
        of(0..256).prop_map(|code| Exit::DiskFull { code }),
        words().prop_map(|what| Exit::Forbidden { what }),
        Just(Exit::Killed { by: Killer::Ttl }),
    ]
}

fn change() -> impl Strategy<Value = FileChange> {
    let what = prop_oneof![Just(Change::Added), Just(Change::Changed), Just(Change::Removed)];
    let numbers = (of(0u32..0o10000), of(any::<u32>()), of(any::<u32>()), of(any::<u64>()));
    (any::<Vec<u8>>(), what, of(words()), of(words()), numbers, of(text())).prop_map(
        |(path, change, kind, leaf, (mode, uid, gid, bytes), text)| FileChange {
            path: path_text(&path),
            change,
            kind,
            xattrs: leaf.clone(),
            leaf,
            mode,
            uid,
            gid,
            bytes,
            text,
        },
    )
}

fn state() -> impl Strategy<Value = StateAfter> {
    let left = (of(vec(words(), 0..3)), any::<bool>(), any::<bool>());
    let unlisted = (0..3u64, of(words()));
    (words(), any::<bool>(), vec(change(), 0..3), unlisted, left, of(words())).prop_map(
        |(digest, racy, changes, (changes_cut, unlisted), (processes, at_work, overlapped), snapshot)| {
            StateAfter {
                digest,
                racy,
                changes,
                changes_cut,
                unlisted,
                processes,
                at_work,
                overlapped,
                snapshot,
            }
        },
    )
}

fn observed() -> impl Strategy<Value = Observed> {
    (of(text()), of(text()), any::<bool>(), of(any::<i32>()), of(words()), of(end()), of(state())).prop_map(
        |(output, stderr, mixed, exit_code, error, end, state)| Observed {
            output,
            stderr,
            mixed,
            exit_code,
            error,
            end,
            state,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let times =
        (of(0u64..253_402_300_800_000), of(0u64..1_000_000_000_000), of(any::<u64>()), of(-10.0..10.0f64));
    let tool = prop_oneof![Just("exec".to_owned()), Just("bash".to_owned()), Just("run".to_owned()), words()];
    (of(words()), tool, params(), observed(), times).prop_map(
        |(thought, tool, params, observed, (time_ms, duration_us, tokens, reward))| Step {
            thought,
            tool,
            params,
            observed,
            time_ms,
            duration_us,
            tokens,
            reward,
            extra: Map::new(),
        },
    )
}

fn task() -> impl Strategy<Value = Task> {
    (of(words()), of(words()), of(words()), of(words()), vec(words(), 0..3), of(words()), of(words()))
        .prop_map(|(id, description, repo, commit, setup, test, image)| Task {
            id,
            description,
            repo,
            commit,
            setup,
            test,
            image,
            extra: Map::new(),
        })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let counts = (of(any::<u64>()), of(any::<u64>()), of(any::<u64>()), of(0u64..1_000_000_000_000));
    (
        of(any::<bool>()),
        of(-10.0..10.0f64),
        counts,
        of(any::<bool>()),
        of(any::<bool>()),
        of(words()),
        of(words()),
    )
        .prop_map(
            |(
                success,
                score,
                (tests_passed, tests_failed, tokens, duration_us),
                terminated,
                truncated,
                status,
                submission,
            )| {
                Outcome {
                    success,
                    score,
                    tests_passed,
                    tests_failed,
                    tokens,
                    duration_us,
                    terminated,
                    truncated,
                    status,
                    submission,
                    extra: Map::new(),
                }
            },
        )
}

fn trajectory() -> impl Strategy<Value = Trajectory> {
    let base = (words(), of(words())).prop_map(|(image, digest)| Base { image, digest, extra: Map::new() });
    let profile = (any::<bool>(), vec(words(), 0..3)).prop_map(|(deterministic, uncontrolled)| Profile {
        deterministic,
        uncontrolled,
        extra: Map::new(),
    });
    let rule = Rule { name: "mine".to_owned(), pattern: Some("x+".to_owned()), ..Rule::default() };
    let head =
        (of(words()), of(words()), of(words()), of(task()), of(base), of(profile), vec(Just(rule), 0..2));
    (head, vec(step(), 0..4), of(outcome())).prop_map(
        |((id, agent, model, task, base, profile, rules), steps, outcome)| Trajectory {
            id,
            agent,
            model,
            task,
            base,
            profile,
            rules,
            steps,
            outcome,
            extra: Map::new(),
        },
    )
}

/// What a format says of a trajectory and a step, field by field. The rest is not compared.
fn told(format: Format, trajectory: &Trajectory) -> Value {
    let lossy = |text: &Option<Text>| text.as_ref().map(Text::lossy);
    let task = trajectory.task.clone().unwrap_or_default();
    let outcome = trajectory.outcome.clone().unwrap_or_default();
    let steps = |told: &dyn Fn(&Step) -> Value| trajectory.steps.iter().map(told).collect::<Vec<_>>();
    // Where a format has one text for both streams, stderr stands behind stdout.
    let both = |step: &Step| {
        let stderr = step.observed.stderr.as_ref().filter(|_| !step.observed.mixed);
        let stderr = stderr.map_or(&[][..], Text::bytes);
        let output = step.observed.output.as_ref();
        output.map(|output| String::from_utf8_lossy(&[output.bytes(), stderr].concat()).into_owned())
    };
    let plain = |step: &Step| json!([step.tool, step.params, lossy(&step.observed.output)]);
    let codes = |step: &Step| json!([step.observed.exit_code, step.observed.error]);
    let about = |step: &Step| json!([step.thought, step.time_ms]);
    match format {
        Format::KnowlyrA => json!([trajectory.agent, trajectory.model, steps(&plain)]),
        Format::KnowlyrB => json!([
            [
                trajectory.agent,
                trajectory.model,
                task.id,
                task.description,
                task.repo,
                task.commit,
                task.test
            ],
            task.setup,
            [
                json!(outcome.success),
                json!(outcome.score),
                json!(outcome.tests_passed),
                json!(outcome.tokens)
            ],
            steps(&|step| json!([plain(step), codes(step), about(step), step.tokens])),
        ]),
        Format::KnowlyrC => json!([
            [trajectory.agent, trajectory.model, task.id, task.description],
            [outcome.success, outcome.terminated, outcome.truncated],
            steps(&|step| json!([plain(step), codes(step), about(step), step.reward])),
        ]),
        Format::KnowlyrD => json!(steps(&|step| json!([plain(step), codes(step)]))),
        Format::KnowlyrE => json!([
            [trajectory.agent, trajectory.model, task.id],
            [json!(outcome.success), json!(outcome.score), json!(outcome.duration_us)],
            steps(&|step| json!([plain(step), codes(step), about(step), step.reward])),
        ]),
        Format::SweAgent => json!([
            [trajectory.model, task.id, task.description, task.repo, task.commit],
            [outcome.status, outcome.submission],
            steps(&|step| json!([step.thought, both(step), step.duration_us])),
        ]),
        Format::OpenHands => json!([
            task.description,
            steps(&|step| {
                // An error is told where there is no output, and -1 is no exit code there.
                let error = step.observed.error.clone().filter(|_| step.observed.output.is_none());
                let code = step.observed.exit_code.filter(|code| *code != -1);
                json!([step.thought, step.time_ms, both(step), error, code])
            }),
        ]),
        Format::Glasshouse | Format::Atif => serde_json::to_value(trajectory).unwrap(),
    }
}

/// Trajectories that say nothing are the same, whichever way.
fn without_empty(mut trajectory: Trajectory) -> Trajectory {
    trajectory.task = trajectory.task.filter(|task| *task != Task::default());
    trajectory.outcome = trajectory.outcome.filter(|outcome| *outcome != Outcome::default());
    trajectory.extra.clear();
    trajectory.steps.iter_mut().for_each(|step| step.extra.clear());
    trajectory
}

/// The same cases in every run; others, and more of them, if `PROPTEST_CASES` says how many.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig { cases: 48, rng_seed: RngSeed::Fixed(4), ..ProptestConfig::default() },
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn our_own_format_gives_back_what_it_got(trajectory in trajectory()) {
        for shape in [Shape::Document, Shape::Line] {
            let (bytes, losses) = write(&trajectory, Format::Glasshouse, shape);
            prop_assert_eq!(losses, []);
            let (format, found) = read_one(&bytes[..], None).unwrap();
            prop_assert_eq!(format, Format::Glasshouse);
            prop_assert_eq!(&found.trajectory, &trajectory);
            prop_assert_eq!(diff(&trajectory, &found.trajectory, Strictness::Strict).unwrap(), (None, vec![]));
        }
    }

    #[test]
    fn every_format_gives_back_what_it_can_say(trajectory in trajectory()) {
        for format in Format::ALL {
            let (bytes, losses) = write(&trajectory, format, Shape::of(format));
            let (_, found) = read_one(&bytes[..], Some(format)).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let (before, after) = (without_empty(trajectory.clone()), without_empty(found.trajectory));
            let mut written = before.clone();
            for (wrote, read) in written.steps.iter_mut().zip(&after.steps) {
                // What is read as one stream alone was written as that.
                wrote.observed.stderr = wrote.observed.stderr.take().filter(|_| read.observed.mixed);
            }
            let written = if format == Format::Atif || format == Format::Glasshouse { &before } else { &written };
            prop_assert_eq!(told(format, written), told(format, &after), "{} {}", format, text);
            if matches!(format, Format::Glasshouse | Format::Atif) {
                prop_assert_eq!(losses, [], "{}", text);
            }
            let nothing_is_changed = before == after || !losses_of(&trajectory, &after, format);
            prop_assert!(nothing_is_changed, "{}: something changed and nothing was told: {}", format, text);
        }
    }
}

/// Whether something is gone that nobody told of.
fn losses_of(before: &Trajectory, after: &Trajectory, format: Format) -> bool {
    let (_, losses) = write(before, format, Shape::of(format));
    let has = |field: &str| losses.iter().any(|loss| loss.field == field);
    let gone = [
        ("id", before.id.is_some() && after.id.is_none()),
        ("base", before.base.is_some() && after.base.is_none()),
        ("profile", before.profile.is_some() && after.profile.is_none()),
        ("rules", before.rules.iter().any(|rule| !after.rules.contains(rule))),
    ];
    let mut untold = gone.into_iter().any(|(field, gone)| gone && !has(field));
    for (index, (before, after)) in before.steps.iter().zip(&after.steps).enumerate() {
        let told = |field: &str| {
            losses.iter().any(|loss| loss.field == field && loss.step == Some(index as u64 + 1))
        };
        let gone = [
            ("tool", before.tool != after.tool),
            ("params", before.params != after.params),
            ("observed.output", before.observed.output != after.observed.output),
            (
                "observed.stderr",
                before.observed.stderr.is_some() && after.observed.stderr != before.observed.stderr,
            ),
            ("observed.end", before.observed.end.is_some() && after.observed.end != before.observed.end),
            (
                "observed.state",
                before.observed.state.is_some() && after.observed.state != before.observed.state,
            ),
            ("reward", before.reward.is_some() && after.reward != before.reward),
            ("tokens", before.tokens.is_some() && after.tokens != before.tokens),
        ];
        untold |= gone.into_iter().any(|(field, gone)| gone && !told(field));
    }
    untold
}
