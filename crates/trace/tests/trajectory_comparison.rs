//! Which step differs, in what, and what was overlooked.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::slice;

use glasshouse_protocol::{Exit, Killer, NotStarted};
use glasshouse_trace::trajectory::{
    Aspect, Change, Comparer, Difference, FileChange, FromTrace, Observed, Rule, StateAfter, Step,
    Strictness, Text, Trajectory, diff,
};
use glasshouse_trace::{Event, Payload, Reader, StepState, Writer};
use home::Home;

fn output(text: &str) -> Observed {
    Observed { output: Some(text.into()), ..Observed::default() }
}

fn ended(end: Exit) -> Observed {
    Observed { end: Some(end), ..Observed::default() }
}

fn coded(code: i32) -> Observed {
    Observed { exit_code: Some(code), ..Observed::default() }
}

fn state(digest: &str, changes: &[FileChange]) -> Observed {
    let state = StateAfter { digest: digest.to_owned(), changes: changes.to_vec(), ..StateAfter::default() };
    Observed { state: Some(state), ..Observed::default() }
}

fn file(path: &str, text: &str) -> FileChange {
    FileChange {
        path: path.to_owned(),
        change: Change::Changed,
        kind: Some("file".to_owned()),
        leaf: Some(format!("leaf of {text}")),
        mode: Some(0o644),
        uid: Some(0),
        gid: Some(0),
        bytes: Some(text.len() as u64),
        xattrs: None,
        text: Some(text.into()),
    }
}

fn left(processes: &[&str], at_work: bool) -> Observed {
    let processes = Some(processes.iter().map(|name| (*name).to_owned()).collect());
    Observed {
        state: Some(StateAfter { processes, at_work, ..StateAfter::default() }),
        ..Observed::default()
    }
}

/// What differs, and the rules by which something was overlooked.
fn compared(strictness: Strictness, old: &Observed, new: &Observed) -> (Vec<Difference>, Vec<(String, u64)>) {
    let mut comparer = Comparer::new(strictness, &[]).unwrap();
    let differences = comparer.observed(1, old, new).map_or(Vec::new(), |divergence| divergence.differences);
    let ignored = comparer.ignored().iter().map(|ignored| (ignored.rule.clone(), ignored.count)).collect();
    (differences, ignored)
}

fn aspects(old: &Observed, new: &Observed) -> Vec<Aspect> {
    compared(Strictness::Normal, old, new).0.iter().map(|difference| difference.what).collect()
}

#[test]
fn a_byte_of_output_is_a_difference_and_is_shown() {
    let (differences, ignored) = compared(Strictness::Normal, &output("a\nb\nc\n"), &output("a\nB\nc\n"));
    assert_eq!(differences[0].what, Aspect::Output);
    assert_eq!(differences[0].diff.as_deref(), Some("@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"));
    assert_eq!(ignored, []);
}

#[test]
fn what_one_side_did_not_record_is_not_compared() {
    for (old, new) in [
        (output("x"), Observed::default()),
        (Observed::default(), output("x")),
        (coded(1), Observed::default()),
        (state("a", &[]), Observed::default()),
        (Observed { stderr: Some("x".into()), ..output("x") }, output("x")),
    ] {
        assert_eq!(aspects(&old, &new), []);
    }
}

/// The steps of a record of these events.
fn recorded(events: impl IntoIterator<Item = Event>) -> Vec<Step> {
    let home = Home::new();
    let mut writer = Writer::open(home.settings_hiding(&[])).unwrap();
    for event in events {
        writer.append(event).unwrap();
    }
    let reader = Reader::open(&home.dir(), &home.blobs()).unwrap();
    let mut steps = FromTrace::new(reader.blobs());
    reader.for_each(|line| steps.feed(&line.unwrap()).unwrap());
    steps.finish().0.steps
}

#[test]
fn a_tool_that_said_nothing_beside_its_answer_is_compared_with_one_that_did() {
    let called = |stderr: Option<&str>| {
        let step = glasshouse_trace::Step {
            step: 1,
            tool: Some("shell".into()),
            output: Some(Payload::whole("x")),
            stderr: stderr.map(Payload::whole),
            ..glasshouse_trace::Step::default()
        };
        recorded([Event::Step(Box::new(step))]).remove(0).observed
    };
    // Older records leave it out.
    for silent in [None, Some("")] {
        assert_eq!(aspects(&called(silent), &called(Some("odd"))), [Aspect::Stderr]);
        assert_eq!(aspects(&called(Some("odd")), &called(silent)), [Aspect::Stderr]);
        assert_eq!(aspects(&called(silent), &called(Some(""))), []);
    }
}

#[test]
fn noise_is_overlooked_and_told() {
    let (old, new) = (output("1 passed in 0.03s at 05:26:23\n"), output("1 passed in 0.04s at 05:26:24\n"));
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    assert_eq!(comparer.observed(4, &old, &new), None);
    let first = &comparer.ignored()[0];
    assert_eq!((first.rule.as_str(), first.count, first.first.step), ("durations", 1, 4));
    assert_eq!((first.first.expected.as_str(), first.first.actual.as_str()), ("0.03s", "0.04s"));
    assert_eq!((first.first.what, first.first.line), (Aspect::Output, 1));
    assert_eq!(comparer.ignored().len(), 2);
    // The same noise on both sides is nothing to tell.
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    assert_eq!(comparer.observed(4, &old, &old), None);
    assert!(comparer.ignored().is_empty());
}

#[test]
fn a_difference_beside_noise_is_a_difference_without_the_noise() {
    let (differences, _) =
        compared(Strictness::Normal, &output("at 05:26:23\nok\n"), &output("at 05:26:24\nbad\n"));
    assert_eq!(differences[0].diff.as_deref(), Some("@@ -1,2 +1,2 @@\n at <times>\n-ok\n+bad\n"));
}

#[test]
fn strict_means_every_byte_and_output_only_means_only_that() {
    let (old, new) = (output("at 05:26:23\n"), output("at 05:26:24\n"));
    assert_eq!(compared(Strictness::Strict, &old, &new).0.len(), 1);
    let old = Observed { exit_code: Some(0), stderr: Some("a".into()), ..output("x\n") };
    let new = Observed { exit_code: Some(1), stderr: Some("b".into()), ..output("  x") };
    let (differences, ignored) = compared(Strictness::OutputOnly, &old, &new);
    assert_eq!(differences, []);
    assert_eq!(ignored, [("edges".to_owned(), 2)]);
    assert_eq!(aspects(&old, &new), [Aspect::Exit, Aspect::Output, Aspect::Stderr]);
}

#[test]
fn rules_of_the_trajectory_are_used() {
    let rule = Rule { name: "seed".to_owned(), pattern: Some("seed=\\d+".to_owned()), ..Rule::default() };
    let mut comparer = Comparer::new(Strictness::Normal, &[rule]).unwrap();
    assert_eq!(comparer.observed(1, &output("seed=1"), &output("seed=22")), None);
    assert_eq!(comparer.ignored()[0].rule, "seed");
    assert!(Comparer::new(Strictness::Normal, &[Rule::default()]).is_err());
}

#[test]
fn ends_are_compared_by_type_and_else_by_code() {
    let same = [
        (ended(Exit::OutOfMemory { peak_bytes: 1 }), ended(Exit::OutOfMemory { peak_bytes: 2 })),
        (coded(124), ended(Exit::TimedOut)),
        (ended(Exit::Code { code: 3 }), coded(3)),
        (
            ended(Exit::BoxGone { why: "at 05:26:23".into() }),
            ended(Exit::BoxGone { why: "at 05:26:24".into() }),
        ),
    ];
    for (old, new) in same {
        assert_eq!(aspects(&old, &new), [], "{old:?}");
    }
    let not_started =
        |message: &str| ended(Exit::NotStarted { why: NotStarted::NotFound, message: message.to_owned() });
    let different = [
        (ended(Exit::Code { code: 137 }), ended(Exit::Signal { signal: 9 }), Aspect::End),
        (ended(Exit::Killed { by: Killer::Ttl }), ended(Exit::Killed { by: Killer::Caller }), Aspect::End),
        (not_started("no a"), not_started("no b"), Aspect::End),
        (coded(0), coded(1), Aspect::Exit),
        (coded(0), ended(Exit::TimedOut), Aspect::Exit),
    ];
    for (old, new, aspect) in different {
        assert_eq!(aspects(&old, &new), [aspect], "{old:?}");
    }
}

#[test]
fn mixed_output_is_compared_with_both_streams() {
    let mixed = Observed { mixed: true, ..output("out\nerr\n") };
    let apart = Observed { stderr: Some("err\n".into()), ..output("out\n") };
    assert_eq!(aspects(&mixed, &apart), []);
    assert_eq!(aspects(&apart, &mixed), []);
    assert_eq!(aspects(&mixed, &output("out\n")), [Aspect::Output]);
}

#[test]
fn bytes_that_are_no_text_are_compared_as_they_are() {
    let binary = |bytes: &[u8]| Observed { output: Some(Text::of(bytes)), ..Observed::default() };
    assert_eq!(aspects(&binary(b"\xff\x00"), &binary(b"\xff\x00")), []);
    let (differences, _) = compared(Strictness::Normal, &binary(b"\xff\x00"), &binary(b"\xff\x01"));
    assert!(differences[0].diff.as_deref().unwrap().contains("byte 1"), "{differences:?}");
}

#[test]
fn the_exact_file_is_named() {
    let base = file("/w/a", "one\n");
    let check = |new: FileChange, words: &str| {
        let (differences, _) =
            compared(Strictness::Normal, &state("1", slice::from_ref(&base)), &state("2", &[new]));
        let [difference] = differences.as_slice() else { panic!("{differences:?}") };
        assert_eq!((difference.what, difference.path.as_deref()), (Aspect::Files, Some("/w/a")));
        let text = format!("{} {} {:?}", difference.expected, difference.actual, difference.diff);
        assert!(text.contains(words), "{text}");
    };
    check(file("/w/a", "two\n"), "-one\\n+two");
    check(FileChange { mode: Some(0o755), ..base.clone() }, "mode 644 mode 755");
    check(FileChange { uid: Some(7), ..base.clone() }, "owner 0 owner 7");
    check(FileChange { gid: Some(7), ..base.clone() }, "group 0 group 7");
    check(FileChange { kind: Some("symlink".into()), ..base.clone() }, "kind file kind symlink");
    check(FileChange { change: Change::Added, ..base.clone() }, "it was changed it was added");
    check(
        FileChange { text: None, leaf: Some("x".into()), ..base.clone() },
        "content leaf of one\n content x",
    );
    let (differences, _) = compared(
        Strictness::Normal,
        &state("1", &[base.clone(), file("/w/b", "x")]),
        &state("2", &[base, file("/w/c", "x")]),
    );
    let paths: Vec<&str> = differences.iter().filter_map(|difference| difference.path.as_deref()).collect();
    assert_eq!(paths, ["/w/b", "/w/c"]);
}

#[test]
fn digests_that_differ_with_nothing_listed_are_a_difference() {
    assert_eq!(aspects(&state("1", &[]), &state("1", &[])), []);
    assert_eq!(aspects(&state("1", &[]), &state("2", &[])), [Aspect::Files]);
    // Equal digests are the same state, however the lists were cut.
    assert_eq!(aspects(&state("1", &[file("/a", "x")]), &state("1", &[])), []);
}

#[test]
fn a_file_that_differs_by_noise_alone_is_overlooked_and_later_digests_with_it() {
    let log = |text: &str| file("/var/log/x", text);
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    let (old, new) = (state("1", &[log("at 05:26:23\n")]), state("2", &[log("at 05:26:24\n")]));
    assert_eq!(comparer.observed(1, &old, &new), None);
    assert_eq!(comparer.ignored()[0].first.path.as_deref(), Some("/var/log/x"));
    let more = file("/w/a", "same\n");
    assert_eq!(comparer.observed(2, &state("3", slice::from_ref(&more)), &state("4", &[more])), None);
    let divergence =
        comparer.observed(3, &state("5", &[file("/w/a", "x")]), &state("6", &[file("/w/a", "y")]));
    assert_eq!(divergence.unwrap().differences[0].path.as_deref(), Some("/w/a"));
}

#[test]
fn a_digest_that_was_taken_while_something_changed_proves_nothing() {
    let racy = |digest: &str| {
        let state = StateAfter { digest: digest.to_owned(), racy: true, ..StateAfter::default() };
        Observed { state: Some(state), ..Observed::default() }
    };
    let (differences, ignored) = compared(Strictness::Normal, &racy("1"), &racy("2"));
    assert_eq!((differences, ignored), (Vec::new(), vec![("racy-digests".to_owned(), 1)]));
    assert_eq!(compared(Strictness::Strict, &racy("1"), &racy("2")).0.len(), 1);
}

#[test]
fn an_extra_process_is_a_difference_and_their_order_is_none() {
    let with = |processes: &[&str]| {
        let processes = processes.iter().map(|line| (*line).to_owned()).collect();
        let state = StateAfter { processes: Some(processes), ..StateAfter::default() };
        Observed { state: Some(state), ..Observed::default() }
    };
    assert_eq!(aspects(&with(&["a", "b"]), &with(&["b", "a"])), []);
    assert_eq!(aspects(&with(&[]), &with(&["sleep 9"])), [Aspect::Processes]);
    assert_eq!(aspects(&with(&["a", "a"]), &with(&["a"])), [Aspect::Processes]);
}

#[test]
fn the_first_step_that_differs_is_named() {
    let step = |tool: &str, command: &str, text: &str| Step {
        tool: tool.to_owned(),
        params: serde_json::Map::from_iter([("command".to_owned(), command.into())]),
        observed: output(text),
        ..Step::default()
    };
    let run = |steps: &[Step]| Trajectory { steps: steps.to_vec(), ..Trajectory::default() };
    let base = [step("exec", "ls", "a"), step("exec", "pwd", "/"), step("exec", "true", "")];
    let check = |new: &[Step], expected: Option<(u64, Aspect)>| {
        let (divergence, _) = diff(&run(&base), &run(new), Strictness::Normal).unwrap();
        let found = divergence.map(|divergence| (divergence.step, divergence.differences[0].what));
        assert_eq!(found, expected);
    };
    check(&base, None);
    check(&[base[0].clone(), step("exec", "pwd", "/x"), step("x", "y", "z")], Some((2, Aspect::Output)));
    check(&[base[0].clone(), step("shell", "pwd", "/")], Some((2, Aspect::Tool)));
    check(&[step("exec", "ls -l", "a")], Some((1, Aspect::Params)));
    check(&base[..2], Some((3, Aspect::Step)));
    check(&[], Some((1, Aspect::Step)));
    let (divergence, _) = diff(&run(&base[..1]), &run(&base), Strictness::Normal).unwrap();
    let difference = divergence.unwrap().differences.remove(0);
    assert_eq!(
        (difference.expected.as_str(), difference.actual.as_str()),
        ("no more than 1 steps", "the tool \"exec\"")
    );
}

#[test]
fn differences_are_bounded() {
    let many = |text: &str| state(text, &(0..500).map(|n| file(&format!("/{n}"), text)).collect::<Vec<_>>());
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    let divergence = comparer.observed(1, &many("a"), &many("b")).unwrap();
    assert_eq!((divergence.differences.len(), divergence.untold), (100, 400));
}

#[test]
fn who_is_left_is_no_difference_while_somebody_is_at_work() {
    let (none, one) = (left(&[], false), left(&["make"], true));
    let told = vec![("processes-at-work".to_owned(), 1)];
    assert_eq!(compared(Strictness::Normal, &none, &one), (Vec::new(), told.clone()));
    assert_eq!(compared(Strictness::Normal, &one, &none), (Vec::new(), told));
    assert_eq!(compared(Strictness::Normal, &one, &one), (Vec::new(), Vec::new()));
    assert_eq!(compared(Strictness::Strict, &none, &one).0.len(), 1);
    assert_eq!(aspects(&none, &left(&["sleep 1000"], false)), [Aspect::Processes]);
}

#[test]
fn what_was_cut_at_its_limit_is_compared_as_far_as_both_have_it() {
    let flood = |out: &str, err: &str| Observed {
        stderr: Some(err.into()),
        end: Some(Exit::OutputLimit),
        ..output(out)
    };
    let (long, short) = (flood("a\nb\nc\nd", "x\n"), flood("a\nb\nc", "x\ny\n"));
    let told = vec![("output-limit".to_owned(), 2)];
    assert_eq!(compared(Strictness::Normal, &long, &short), (Vec::new(), told));
    assert_eq!(compared(Strictness::Strict, &long, &short).0.len(), 2);
    // What both have is compared, and so is what somebody wrote who was not cut off.
    assert_eq!(aspects(&long, &flood("a\nB\nc\n", "x\n")), [Aspect::Output]);
    assert_eq!(aspects(&long, &flood("a\nb\n", "X\n")), [Aspect::Stderr]);
    assert_eq!(aspects(&output("a\nb\n"), &output("a\n")), [Aspect::Output]);
    // A cut may go through noise, or through a letter.
    let (one, two) = (flood("at 12:30:01\nat 12:3", ""), flood("at 12:30:02\nat 12:4", ""));
    assert_eq!(aspects(&one, &two), []);
    assert_eq!(aspects(&flood("\0\0\0", ""), &flood("\0\0", "")), []);
    assert_eq!(aspects(&flood("\0\0\0", ""), &flood("\0a", "")), [Aspect::Output]);
    // Behind a gap in the record, nobody knows which line is which.
    let gap =
        |bytes: u64, tail: &str| flood(&format!("a\n\n[{bytes} bytes are not on record]\n{tail}\n"), "");
    assert_eq!(aspects(&gap(10, "y"), &gap(11, "z")), []);
}

#[test]
fn what_gits_index_holds_is_noise_and_what_it_is_counts() {
    let index = |text: &str| file("/workspace/.git/index", text);
    let other = |mode: u32| FileChange { mode: Some(mode), ..index("b") };
    let check = |strictness, old: &[FileChange], new: &[FileChange], expected: usize| {
        let (differences, ignored) = compared(strictness, &state("1", old), &state("2", new));
        assert_eq!(differences.len(), expected, "{differences:?}");
        let told = vec![("git-index".to_owned(), 1)];
        assert!(expected > 0 || ignored == told, "{ignored:?}");
    };
    let normal = Strictness::Normal;
    check(normal, &[index("a")], &[index("b")], 0);
    check(Strictness::Strict, &[index("a")], &[index("b")], 1);
    check(normal, &[index("a")], &[other(0o600)], 1);
    check(normal, &[index("a"), file("/a", "a")], &[index("b"), file("/a", "b")], 1);
    // Whether it was written at all depends on the time; whether it is there does not.
    check(normal, &[index("a")], &[], 0);
    check(normal, &[], &[index("b")], 0);
    check(normal, &[], &[other(0o600)], 1);
    for change in [Change::Added, Change::Removed] {
        check(normal, &[FileChange { change, ..index("a") }], &[index("b")], 1);
        let kind = (change == Change::Added).then(|| "file".to_owned());
        check(normal, &[FileChange { change, kind, ..index("a") }], &[], 1);
    }
    let link = FileChange { kind: Some("symlink".to_owned()), ..index("b") };
    let elsewhere = FileChange { leaf: Some("x".into()), text: None, ..link.clone() };
    check(normal, &[link], &[elsewhere], 1);
}

#[test]
fn after_an_index_of_gits_the_lists_of_changes_decide() {
    let index = |text: &str, mode: u32| FileChange { mode: Some(mode), ..file("/r/.git/index", text) };
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    let mut check = |step, old: &[FileChange], new: &[FileChange], expected: bool| {
        let (old, new) = (state(&format!("old {step}"), old), state(&format!("new {step}"), new));
        assert_eq!(comparer.observed(step, &old, &new).is_some(), expected, "step {step}");
    };
    check(1, &[index("a", 0o640)], &[index("b", 0o640)], false);
    check(2, &[file("/a", "a")], &[file("/a", "a")], false);
    check(3, &[], &[], false);
    check(4, &[index("c", 0o640)], &[], false);
    check(5, &[file("/a", "b")], &[file("/a", "c")], true);
    check(6, &[index("d", 0o644)], &[], true);
}

#[test]
fn what_is_not_listed_counts_by_one_number_beside_noise() {
    let index = |text: &str| FileChange { path: "/w/.git/index".to_owned(), ..file("", text) };
    let many = |digest: &str, unlisted: Option<&str>, noise: &str| {
        let mut observed = state(digest, &[index(noise), file("/w/a", "a")]);
        let after = observed.state.as_mut().unwrap();
        (after.changes_cut, after.unlisted) = (7, unlisted.map(str::to_owned));
        observed
    };
    let old = many("d1", Some("n1"), "i1");
    assert_eq!(aspects(&old, &many("d2", Some("n1"), "i2")), []);
    assert_eq!(aspects(&old, &many("d2", Some("n2"), "i2")), [Aspect::Files]);
    // Older records do not say it: all that is known is that something differs.
    assert_eq!(aspects(&old, &many("d2", None, "i2")), [Aspect::Files]);
    assert_eq!(aspects(&many("d1", None, "i1"), &many("d2", None, "i2")), [Aspect::Files]);
    // Without noise, digests decide.
    assert_eq!(aspects(&old, &many("d2", Some("n1"), "i1")), [Aspect::Files]);
}

/// A step on record that was called then, or when it was looked at.
fn looked_at(digest: &str, begun_ms: Option<u64>) -> Event {
    let state = StepState { digest: digest.to_owned(), ..StepState::default() };
    let step = glasshouse_trace::Step {
        tool: Some("shell".into()),
        begun_ms,
        state: Some(state),
        ..glasshouse_trace::Step::default()
    };
    Event::Step(Box::new(step))
}

#[test]
fn steps_that_were_under_way_at_once_are_known_by_their_times() {
    let overlapped = |second: Option<u64>| -> Vec<bool> {
        let steps = recorded([looked_at("a", None), looked_at("b", second), looked_at("c", None)]);
        steps.iter().map(|step| step.observed.state.as_ref().unwrap().overlapped).collect()
    };
    assert_eq!(overlapped(None), [false, false, false]);
    assert_eq!(overlapped(Some(1)), [true, true, false]);
}

#[test]
fn files_and_processes_of_steps_that_others_overlapped_are_not_compared_and_that_is_told() {
    let mut old = state("a", &[file("/w/f1", "1"), file("/w/f2", "2")]);
    let after = old.state.as_mut().unwrap();
    (after.overlapped, after.processes) = (true, Some(vec!["sleep 0.2".to_owned()]));
    let new = state("b", &[file("/w/f1", "1")]);
    for (old, new) in [(&old, &new), (&new, &old)] {
        let (differences, ignored) = compared(Strictness::Normal, old, new);
        assert_eq!((differences.len(), ignored), (0, vec![("overlapping-steps".to_owned(), 1)]));
    }
    assert!(!compared(Strictness::Strict, &old, &new).0.is_empty());
    // What they led to is: with the next step.
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    assert_eq!(comparer.observed(1, &old, &new), None);
    assert!(comparer.observed(2, &state("c", &[]), &state("d", &[])).is_some());
    // But for noise that one of them has written.
    let index = FileChange { path: "/w/.git/index".to_owned(), ..file("", "i") };
    old.state.as_mut().unwrap().changes.push(index);
    let mut comparer = Comparer::new(Strictness::Normal, &[]).unwrap();
    assert_eq!(comparer.observed(1, &old, &new), None);
    assert_eq!(comparer.observed(2, &state("c", &[]), &state("d", &[])), None);
}

#[test]
fn what_a_tool_left_out_and_processes_that_are_not_told_are_told_as_not_compared() {
    let told = |strictness: Strictness, seen: &Observed, rule: &str| {
        let (differences, ignored) = compared(strictness, seen, seen);
        assert_eq!((differences.len(), ignored), (0, vec![(rule.to_owned(), 1)]));
    };
    let cut = output("xx\n[400 bytes were left out here]\nyy\n");
    let many = left(&["sleep 1", "and 3 more"], false);
    let long = left(&[&"x".repeat(256)], false);
    for strictness in [Strictness::Strict, Strictness::Normal] {
        told(strictness, &cut, "output-not-on-record");
        told(strictness, &many, "processes-not-on-record");
        told(strictness, &long, "processes-not-on-record");
        let other = left(&["sleep 1", "and 4 more"], false);
        assert!(!compared(strictness, &many, &other).0.is_empty());
        let few = left(&["sleep 1", "and more"], false);
        assert!(compared(strictness, &few, &few).1.is_empty());
    }
}
