//! Whether a step went as it did before. Replay and `glass trajectory diff` ask here, so both mean the same.
//!
//! What one side did not record is not compared. Texts are compared without their noise ([`Rules`]). Files are the
//! same if the digests of the whole state are; if not, the lists of changes say which file differs. A file whose
//! text differs by noise alone, or all of which is noise, is overlooked, and from then on digests prove nothing any more, so
//! the lists decide, with one number for what is too much to be listed.

use std::collections::BTreeMap;

use glasshouse_protocol::Exit;

use super::canonical::{Canonical, Rules};
use super::difference::{bytes, clipped, unified};
use super::limits::{DIFF_LINE_BYTES_MAX, DIFFERENCES_MAX};
use super::model::{Change, FileChange, Observed, Rule, StateAfter, Step, Trajectory};
use super::record::{is_cut_process, is_gap};
use super::text::Text;
use crate::Result;

/// How much counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Everything that was recorded, byte by byte: there is no noise.
    Strict,
    /// Everything that was recorded, but for noise.
    #[default]
    Normal,
    /// Only what was written to stdout or answered, but for noise and white space at both ends.
    OutputOnly,
}

impl Strictness {
    /// Its name, as options have it.
    pub fn name(self) -> &'static str {
        match self {
            Strictness::Strict => "strict",
            Strictness::Normal => "normal",
            Strictness::OutputOnly => "output-only",
        }
    }
}

/// What of a step can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Aspect {
    /// Whether there is a step at all.
    Step,
    /// Which tool was used.
    Tool,
    /// What it was asked.
    Params,
    /// The code with which it ended.
    Exit,
    /// The typed end.
    End,
    /// What it answered.
    Output,
    /// What it wrote to stderr.
    Stderr,
    /// What it said went wrong.
    Error,
    /// The files afterwards.
    Files,
    /// The processes afterwards.
    Processes,
}

impl Aspect {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Aspect::Step => "step",
            Aspect::Tool => "tool",
            Aspect::Params => "params",
            Aspect::Exit => "exit",
            Aspect::End => "end",
            Aspect::Output => "output",
            Aspect::Stderr => "stderr",
            Aspect::Error => "error",
            Aspect::Files => "files",
            Aspect::Processes => "processes",
        }
    }
}

/// The first step that went another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// The step, from 1.
    pub step: u64,
    /// Everything that differs about it, at least one.
    pub differences: Vec<Difference>,
    /// How many further differences there are.
    pub untold: u64,
}

/// One thing that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What.
    pub what: Aspect,
    /// Which file, for files.
    pub path: Option<String>,
    /// What was expected, in a few words.
    pub expected: String,
    /// What there is instead.
    pub actual: String,
    /// Both texts side by side, without their noise.
    pub diff: Option<String>,
}

/// Noise that was overlooked, by the rule that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ignored {
    /// The rule.
    pub rule: String,
    /// In how many places the two sides differ by it.
    pub count: u64,
    /// The first of them.
    pub first: Place,
}

/// A place that was overlooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The step, from 1.
    pub step: u64,
    /// What of it.
    pub what: Aspect,
    /// Which file, for files.
    pub path: Option<String>,
    /// The line of the expected text, from 1.
    pub line: u64,
    /// What stands there.
    pub expected: String,
    /// What stands there instead.
    pub actual: String,
}

/// Compares one step after the other, and remembers what it overlooked.
pub struct Comparer {
    rules: Rules,
    strictness: Strictness,
    ignored: Vec<Ignored>,
    /// A file was overlooked, so the digests differ though nothing else does.
    drifted: bool,
    /// Mode, owner and group of the files that are noise, as they were listed last. Both sides had them so.
    noisy: BTreeMap<String, Access>,
}

type Access = (Option<u32>, Option<u32>, Option<u32>);

impl Comparer {
    /// With the rules of a trajectory.
    pub fn new(strictness: Strictness, rules: &[Rule]) -> Result<Self> {
        let rules = match strictness {
            Strictness::Strict => Rules::none(),
            Strictness::Normal => Rules::new(rules)?,
            Strictness::OutputOnly => Rules::with(rules, &["edges"])?,
        };
        Ok(Comparer { rules, strictness, ignored: Vec::new(), drifted: false, noisy: BTreeMap::new() })
    }

    /// What was overlooked so far.
    pub fn ignored(&self) -> &[Ignored] {
        &self.ignored
    }

    /// Compares what was asked and what was seen. `number` counts from 1.
    pub fn step(&mut self, number: u64, expected: &Step, actual: &Step) -> Option<Divergence> {
        let mut found = Differences::default();
        if expected.tool != actual.tool {
            found.plain(Aspect::Tool, &expected.tool, &actual.tool);
        }
        if expected.asked() != actual.asked() {
            let shown = |step: &Step| format!("{:#}\n", step.asked());
            found.texts(Aspect::Params, None, &shown(expected), &shown(actual));
        }
        self.differences(number, &expected.observed, &actual.observed, &mut found);
        found.divergence(number)
    }

    /// Compares only what was seen. `number` counts from 1.
    pub fn observed(&mut self, number: u64, expected: &Observed, actual: &Observed) -> Option<Divergence> {
        let mut found = Differences::default();
        self.differences(number, expected, actual, &mut found);
        found.divergence(number)
    }

    fn differences(&mut self, step: u64, expected: &Observed, actual: &Observed, found: &mut Differences) {
        let at = |what| Spot { step, what, path: None };
        if self.strictness != Strictness::OutputOnly {
            self.ends(expected, actual, &at(Aspect::End), found);
        }
        let limited = |observed: &Observed| observed.end == Some(Exit::OutputLimit);
        let cut = limited(expected) && limited(actual) && self.strictness != Strictness::Strict;
        if let (Some(old), Some(new)) = outputs(expected, actual) {
            let (old, new) = if cut { self.shared(old, new, &at(Aspect::Output)) } else { (old, new) };
            self.gaps(&old, &new, &at(Aspect::Output));
            self.texts(&old, &new, &at(Aspect::Output), found);
        }
        if self.strictness == Strictness::OutputOnly {
            return;
        }
        if let (Some(old), Some(new)) = (expected.stderr.clone(), actual.stderr.clone()) {
            let (old, new) = if cut { self.shared(old, new, &at(Aspect::Stderr)) } else { (old, new) };
            self.gaps(&old, &new, &at(Aspect::Stderr));
            self.texts(&old, &new, &at(Aspect::Stderr), found);
        }
        if let (Some(expected), Some(actual)) = (&expected.error, &actual.error) {
            let text = |text: &String| Text::Text(text.clone());
            self.texts(&text(expected), &text(actual), &at(Aspect::Error), found);
        }
        if let (Some(expected), Some(actual)) = (&expected.state, &actual.state) {
            if (expected.overlapped || actual.overlapped) && self.strictness != Strictness::Strict {
                self.overlapped(step, expected, actual);
                return;
            }
            self.files(step, expected, actual, found);
            self.processes(expected, actual, &at(Aspect::Processes), found);
        }
    }

    /// Tells of what is on neither record, and so is compared by its length alone, however strictly all else is.
    fn gaps(&mut self, expected: &Text, actual: &Text, at: &Spot) {
        let gap = |text: &Text| {
            let lines = text.as_str()?.split('\n').enumerate();
            lines.filter(|(_, line)| is_gap(line)).map(|(at, line)| (at as u64 + 1, line.to_owned())).next()
        };
        if let (Some((line, old)), Some((_, new))) = (gap(expected), gap(actual)) {
            self.set_aside(NOT_ON_RECORD, at.place(line, &old, &new));
        }
    }

    /// A step that others overlapped was looked at while these were somewhere in what they did: whose changes are found with
    /// it is a matter of chance. What all of them led to is compared with the next step.
    fn overlapped(&mut self, step: u64, expected: &StateAfter, actual: &StateAfter) {
        let seen = |state: &StateAfter| (state.digest.clone(), state.processes.clone());
        if seen(expected) != seen(actual) {
            let at = Spot { step, what: Aspect::Files, path: None };
            self.set_aside(OVERLAPPED, at.place(1, &expected.digest, &actual.digest));
            // Where one of them has written what is noise, digests differ from now on for that.
            let mut changes = expected.changes.iter().chain(&actual.changes);
            let noisy = changes.any(|change| self.noise(change).is_some());
            self.drifted |= noisy;
        }
        self.remember(expected);
        self.remember(actual);
    }

    fn processes(&mut self, expected: &StateAfter, actual: &StateAfter, at: &Spot, found: &mut Differences) {
        let text = |state: &StateAfter| {
            let mut lines: Vec<&str> = state.processes.as_ref()?.iter().map(String::as_str).collect();
            lines.sort_unstable();
            Some(lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        };
        let (Some(old), Some(new)) = (text(expected), text(actual)) else { return };
        if (expected.at_work || actual.at_work) && self.strictness != Strictness::Strict {
            if old != new {
                self.set_aside(AT_WORK, at.place(1, &old, &new));
            }
            return;
        }
        // However strictly all else is compared: nobody knows the rest.
        let cut = |text: &str| text.lines().find(|line| is_cut_process(line)).map(str::to_owned);
        if let (Some(old), Some(new)) = (cut(&old), cut(&new)) {
            self.set_aside(PROCESSES_NOT_ON_RECORD, at.place(1, &old, &new));
        }
        self.texts(&old.into(), &new.into(), at, found);
    }

    /// Typed ends where both sides have them, else codes.
    fn ends(&mut self, expected: &Observed, actual: &Observed, at: &Spot, found: &mut Differences) {
        if let (Some(expected), Some(actual)) = (&expected.end, &actual.end) {
            let (kind, words) = parted(expected);
            let (actual_kind, actual_words) = parted(actual);
            if kind != actual_kind {
                found.plain(Aspect::End, &expected.to_string(), &actual.to_string());
            } else {
                self.texts(&words.into(), &actual_words.into(), at, found);
            }
            return;
        }
        let code = |observed: &Observed| observed.exit_code.or(observed.end.as_ref().map(Exit::shell_code));
        if let (Some(expected), Some(actual)) = (code(expected), code(actual))
            && expected != actual
        {
            found.plain(Aspect::Exit, &format!("exit code {expected}"), &format!("exit code {actual}"));
        }
    }

    /// As far as both sides have it: both were ended for writing too much. Two streams share one limit, so what each of
    /// them had by then depends on who was read first; and noise that the cut goes through cannot be told as noise.
    fn shared(&mut self, expected: Text, actual: Text, at: &Spot) -> (Text, Text) {
        if expected == actual {
            return (expected, actual);
        }
        let (old, new) = match (expected.as_str(), actual.as_str()) {
            (Some(old), Some(new)) if old.contains('\n') && new.contains('\n') => {
                let lines = whole_lines(old).count().min(whole_lines(new).count());
                let bytes = |text| whole_lines(text).take(lines).map(str::len).sum();
                (bytes(old), bytes(new))
            }
            _ => {
                let bytes = expected.bytes().len().min(actual.bytes().len());
                (bytes, bytes)
            }
        };
        let (old, old_rest) = expected.bytes().split_at(old);
        let (new, new_rest) = actual.bytes().split_at(new);
        if old_rest != new_rest {
            let line = 1 + old.iter().filter(|byte| **byte == b'\n').count() as u64;
            let words = |rest: &[u8]| format!("{} bytes up to the limit", rest.len());
            self.set_aside(LIMITED, at.place(line, &words(old_rest), &words(new_rest)));
        }
        (Text::of(old.to_vec()), Text::of(new.to_vec()))
    }

    /// Two texts, noise set aside.
    fn texts(&mut self, expected: &Text, actual: &Text, at: &Spot, found: &mut Differences) {
        if expected == actual {
            return;
        }
        let (Some(expected_text), Some(actual_text)) = (expected.as_str(), actual.as_str()) else {
            found.bytes(at.what, at.path.clone(), expected, actual);
            return;
        };
        let expected = self.rules.canonical(expected_text);
        let actual = self.rules.canonical(actual_text);
        if expected.text != actual.text {
            found.texts(at.what, at.path.clone(), &expected.text, &actual.text);
            return;
        }
        self.overlook((expected_text, expected), (actual_text, actual), at);
    }

    /// Counts the places in which two texts differ that are the same without their noise.
    fn overlook(&mut self, expected: (&str, Canonical), actual: (&str, Canonical), at: &Spot) {
        let ((expected_text, expected), (actual_text, actual)) = (expected, actual);
        let places = |canonical: &Canonical| {
            canonical.asides.iter().map(|aside| (aside.rule, aside.at)).collect::<Vec<_>>()
        };
        if places(&expected) == places(&actual) {
            for (before, after) in expected.asides.iter().zip(&actual.asides) {
                let (old, new) =
                    (&expected_text[before.start..before.end], &actual_text[after.start..after.end]);
                if old != new {
                    self.ignore(before.rule, at, &expected_text[..before.start], (old, new));
                }
            }
            return;
        }
        // One side has noise where the other has none, like white space at an end: each place of either counts.
        for (text, canonical, is_expected) in
            [(expected_text, &expected, true), (actual_text, &actual, false)]
        {
            for aside in &canonical.asides {
                let noise = &text[aside.start..aside.end];
                let sides = if is_expected { (noise, "") } else { ("", noise) };
                self.ignore(aside.rule, at, &text[..aside.start], sides);
            }
        }
    }

    /// Counts a place of a rule; of the first one it is told where it is.
    fn ignore(&mut self, rule: usize, at: &Spot, text_before: &str, (old, new): (&str, &str)) {
        let name = self.rules.name(rule).to_owned();
        let line = 1 + text_before.matches('\n').count() as u64;
        self.set_aside(&name, at.place(line, old, new));
    }

    fn set_aside(&mut self, rule: &str, first: Place) {
        match self.ignored.iter_mut().find(|ignored| ignored.rule == rule) {
            Some(ignored) => ignored.count += 1,
            None => self.ignored.push(Ignored { rule: rule.to_owned(), count: 1, first }),
        }
    }

    fn files(&mut self, step: u64, expected: &StateAfter, actual: &StateAfter, found: &mut Differences) {
        if expected.digest != actual.digest {
            self.changes(step, expected, actual, found);
        }
        self.remember(expected);
        self.remember(actual);
    }

    fn changes(&mut self, step: u64, expected: &StateAfter, actual: &StateAfter, found: &mut Differences) {
        let before = found.list.len();
        let ignored: u64 = self.ignored.iter().map(|ignored| ignored.count).sum();
        let (old, new) = (by_path(expected), by_path(actual));
        for (path, change) in &old {
            match new.get(path) {
                Some(other) => self.file(step, change, other, found),
                None if self.is_rewritten(step, change, true) => {}
                None => found.file(path, &words_of(change), "it did not change"),
            }
        }
        for (path, change) in new.iter().filter(|(path, _)| !old.contains_key(*path)) {
            if self.is_rewritten(step, change, false) {
                continue;
            }
            found.file(path, "it did not change", &words_of(change));
        }
        if found.list.len() > before {
            return;
        }
        let now: u64 = self.ignored.iter().map(|ignored| ignored.count).sum();
        // What is not listed is the same if one number says so of all of it.
        let whole = expected.changes_cut == actual.changes_cut
            && (expected.changes_cut == 0
                || expected.unlisted.is_some() && expected.unlisted == actual.unlisted);
        self.drifted |= now > ignored;
        let racy = expected.racy || actual.racy;
        if racy && whole && self.strictness != Strictness::Strict {
            // A digest that was taken while something changed proves nothing; the lists are the same.
            let at = Spot { step, what: Aspect::Files, path: None };
            self.set_aside(RACY, at.place(1, &expected.digest, &actual.digest));
        } else if !(self.drifted && whole) {
            // The lists say nothing, so all that is known is that something differs.
            let why = |state: &StateAfter| match (state.changes_cut, state.racy) {
                (0, false) => format!("digest {}", state.digest),
                (0, true) => format!("digest {}, taken while something changed", state.digest),
                (cut, _) => format!("digest {}, and {cut} changes that are not listed", state.digest),
            };
            found.plain(Aspect::Files, &why(expected), &why(actual));
        }
    }

    /// Two changes of the same file.
    fn file(&mut self, step: u64, expected: &FileChange, actual: &FileChange, found: &mut Differences) {
        let at = Spot { step, what: Aspect::Files, path: Some(expected.path.clone()) };
        let (old, new) = (parts_of(expected), parts_of(actual));
        for ((name, old), (_, new)) in old.iter().zip(&new) {
            if let (Some(old), Some(new)) = (old, new)
                && old != new
            {
                found.file(&expected.path, &format!("{name} {old}"), &format!("{name} {new}"));
            }
        }
        if expected.leaf.is_some() && expected.leaf == actual.leaf {
            return;
        }
        let held = |change: &FileChange| (change.leaf.clone(), change.text.clone(), change.bytes);
        if held(expected) != held(actual)
            && let (Some(rule), Some(_)) = (self.noise(expected), self.noise(actual))
        {
            let leaf = |change: &FileChange| change.leaf.clone().unwrap_or_default();
            return self.set_aside(&rule, at.place(1, &leaf(expected), &leaf(actual)));
        }
        match (&expected.text, &actual.text) {
            (Some(old), Some(new)) if old != new => self.texts(old, new, &at, found),
            // The same text with another hash: what differs was replaced on the record.
            _ => {
                if let (Some(old), Some(new)) = (&expected.leaf, &actual.leaf) {
                    found.file(&expected.path, &format!("content {old}"), &format!("content {new}"));
                } else if let (Some(old), Some(new)) = (expected.bytes, actual.bytes)
                    && old != new
                {
                    found.file(&expected.path, &format!("{old} bytes"), &format!("{new} bytes"));
                }
            }
        }
    }

    /// The rule by which what a file holds is noise. What is no file, or is gone, is none.
    fn noise(&self, change: &FileChange) -> Option<String> {
        let is_file = change.kind.as_deref() == Some("file");
        self.rules.of_file(&change.path).filter(|_| is_file).map(str::to_owned)
    }

    /// Whether a file that only one side has written is noise: it was there before, and the other side has it still, with the
    /// same mode and owner. Whether git writes its index anew depends on how long ago the files were written.
    fn is_rewritten(&mut self, step: u64, change: &FileChange, is_expected: bool) -> bool {
        let Some(rule) = self.noise(change).filter(|_| change.change == Change::Changed) else {
            return false;
        };
        // Of one that is as the box began with it nobody knows the mode; git gives it this one.
        let same = match self.noisy.get(&change.path) {
            Some(access) => *access == access_of(change),
            None => change.mode == Some(0o644),
        };
        if same {
            let at = Spot { step, what: Aspect::Files, path: Some(change.path.clone()) };
            let (written, not) = (change.leaf.as_deref().unwrap_or_default(), "it did not change");
            let (old, new) = if is_expected { (written, not) } else { (not, written) };
            self.set_aside(&rule, at.place(1, old, new));
        }
        same
    }

    /// Keeps in mind what files are like whose content is noise.
    fn remember(&mut self, state: &StateAfter) {
        for change in &state.changes {
            if self.noise(change).is_some() {
                self.noisy.insert(change.path.clone(), access_of(change));
            }
        }
    }
}

fn access_of(change: &FileChange) -> Access {
    (change.mode, change.uid, change.gid)
}

/// Compares two trajectories without executing anything: the first step that differs, and what was overlooked.
pub fn diff(
    expected: &Trajectory,
    actual: &Trajectory,
    strictness: Strictness,
) -> Result<(Option<Divergence>, Vec<Ignored>)> {
    diff_with_rules(expected, actual, strictness, &[])
}

/// The same with rules that are said last: they decide over those of the trajectories.
pub fn diff_with_rules(
    expected: &Trajectory,
    actual: &Trajectory,
    strictness: Strictness,
    rules: &[Rule],
) -> Result<(Option<Divergence>, Vec<Ignored>)> {
    let rules = [both(&expected.rules, &actual.rules), rules.to_vec()].concat();
    let mut comparer = Comparer::new(strictness, &rules)?;
    for (index, (old, new)) in expected.steps.iter().zip(&actual.steps).enumerate() {
        if let Some(divergence) = comparer.step(index as u64 + 1, old, new) {
            return Ok((Some(divergence), comparer.ignored));
        }
    }
    let (old, new) = (expected.steps.len(), actual.steps.len());
    if old == new {
        return Ok((None, comparer.ignored));
    }
    let words = |steps: &[Step], at: usize| match steps.get(at) {
        Some(step) => format!("the tool {:?}", step.tool),
        None => format!("no more than {at} steps"),
    };
    let at = old.min(new);
    let mut found = Differences::default();
    found.plain(Aspect::Step, &words(&expected.steps, at), &words(&actual.steps, at));
    Ok((found.divergence(at as u64 + 1), comparer.ignored))
}

/// The rules of both, each once.
fn both(first: &[Rule], second: &[Rule]) -> Vec<Rule> {
    let mut rules = first.to_vec();
    rules.extend(second.iter().filter(|rule| !first.contains(rule)).cloned());
    rules
}

/// The name under which digests are ignored that were taken while something changed.
const RACY: &str = "racy-digests";

/// The name under which files and processes are ignored of a step that others overlapped.
const OVERLAPPED: &str = "overlapping-steps";

/// The name under which processes are ignored of which some were still at work when they were listed.
const AT_WORK: &str = "processes-at-work";

/// The name under which the middle of an output is told that is too long to be on record.
const NOT_ON_RECORD: &str = "output-not-on-record";

/// The same of processes: those beyond the first, and what is too long of their command lines.
const PROCESSES_NOT_ON_RECORD: &str = "processes-not-on-record";

/// The name under which the last of an output is ignored that was cut at its limit.
const LIMITED: &str = "output-limit";

/// The lines of a text that are whole, before the first place of which nothing is on record.
fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    let is_whole = |line: &&str| line.ends_with('\n') && !is_gap(line);
    text.split_inclusive('\n').take_while(is_whole)
}

/// Where something is compared.
struct Spot {
    step: u64,
    what: Aspect,
    path: Option<String>,
}

impl Spot {
    fn place(&self, line: u64, expected: &str, actual: &str) -> Place {
        let shown = |text: &str| clipped(text, DIFF_LINE_BYTES_MAX).to_owned();
        let (expected, actual) = (shown(expected), shown(actual));
        Place { step: self.step, what: self.what, path: self.path.clone(), line, expected, actual }
    }
}

/// The outputs of both sides. Where one side has stderr mixed in, the other gets its own behind it.
fn outputs(expected: &Observed, actual: &Observed) -> (Option<Text>, Option<Text>) {
    let mixed = |one: &Observed, other: &Observed| match (&one.output, &one.stderr) {
        (Some(output), Some(stderr)) if other.mixed && !one.mixed => {
            Some(Text::of([output.bytes(), stderr.bytes()].concat()))
        }
        (output, _) => output.clone(),
    };
    (mixed(expected, actual), mixed(actual, expected))
}

/// An end without what was only measured, and the words in it, which may hold noise.
fn parted(end: &Exit) -> (Exit, String) {
    match end {
        Exit::OutOfMemory { .. } => (Exit::OutOfMemory { peak_bytes: 0 }, String::new()),
        Exit::BoxGone { why } => (Exit::BoxGone { why: String::new() }, why.clone()),
        Exit::NotStarted { why, message } => {
            (Exit::NotStarted { why: *why, message: String::new() }, message.clone())
        }
        end => (end.clone(), String::new()),
    }
}

fn by_path(state: &StateAfter) -> BTreeMap<&str, &FileChange> {
    state.changes.iter().map(|change| (change.path.as_str(), change)).collect()
}

/// What of a file's change is compared by itself.
fn parts_of(change: &FileChange) -> [(&'static str, Option<String>); 6] {
    [
        ("it was", Some(change.change.name().to_owned())),
        ("kind", change.kind.clone()),
        ("mode", change.mode.map(|mode| format!("{mode:o}"))),
        ("owner", change.uid.map(|uid| uid.to_string())),
        ("group", change.gid.map(|gid| gid.to_string())),
        ("attributes", change.xattrs.clone()),
    ]
}

fn words_of(change: &FileChange) -> String {
    let kind = change.kind.as_deref().map(|kind| format!(" ({kind})")).unwrap_or_default();
    format!("it was {}{kind}", change.change.name())
}

/// The differences of a step as they are found.
#[derive(Default)]
struct Differences {
    list: Vec<Difference>,
    untold: u64,
}

impl Differences {
    fn push(&mut self, difference: Difference) {
        match self.list.len() < DIFFERENCES_MAX {
            true => self.list.push(difference),
            false => self.untold += 1,
        }
    }

    fn plain(&mut self, what: Aspect, expected: &str, actual: &str) {
        let (expected, actual) = (expected.to_owned(), actual.to_owned());
        self.push(Difference { what, path: None, expected, actual, diff: None });
    }

    fn file(&mut self, path: &str, expected: &str, actual: &str) {
        let (expected, actual) = (expected.to_owned(), actual.to_owned());
        self.push(Difference {
            what: Aspect::Files,
            path: Some(path.to_owned()),
            expected,
            actual,
            diff: None,
        });
    }

    fn texts(&mut self, what: Aspect, path: Option<String>, expected: &str, actual: &str) {
        let words = |text: &str| format!("{} bytes", text.len());
        let diff = (self.list.len() < DIFFERENCES_MAX).then(|| unified(expected, actual));
        self.push(Difference { what, path, expected: words(expected), actual: words(actual), diff });
    }

    fn bytes(&mut self, what: Aspect, path: Option<String>, expected: &Text, actual: &Text) {
        let words = |text: &Text| format!("{} bytes", text.bytes().len());
        let diff = Some(bytes(expected, actual));
        self.push(Difference { what, path, expected: words(expected), actual: words(actual), diff });
    }

    fn divergence(self, step: u64) -> Option<Divergence> {
        let Differences { list: differences, untold } = self;
        (!differences.is_empty()).then_some(Divergence { step, differences, untold })
    }
}
