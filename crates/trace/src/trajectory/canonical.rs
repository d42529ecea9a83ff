//! Noise: what differs from run to run and means nothing, by named rules.
//!
//! A rule is a pattern, and its places are set aside before two texts are compared; where those differ, the report
//! names the rule, how often, and the first place. So nothing is ignored silently. All patterns are looked for in
//! the text as it is; where two rules want the same place, the one that stands first in the list has it, and rules
//! of the trajectory stand before the built-in ones. One rule is about paths, and sets aside what the files there hold.

use std::sync::LazyLock;

use regex::{Regex, RegexBuilder};

use super::limits::{PATTERN_BYTES_MAX, PATTERN_COMPILED_BYTES_MAX, PLACES_MAX, RULES_MAX};
use super::model::Rule;
use crate::{Error, ErrorKind, Result};

/// A rule that every comparison knows.
#[derive(Debug, Clone, Copy)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// What it takes for noise.
    pub about: &'static str,
    /// Whether it is used unless somebody switches it off.
    pub on: bool,
    /// The pattern; only the group `noise` is set aside, if there is one.
    pub pattern: &'static str,
    /// What stands in its place.
    replacement: Option<&'static str>,
    /// Whether parts of the match, named with a dollar sign, stand in it.
    expands: bool,
    /// Whether a match is noise after all.
    filter: Option<fn(&str) -> bool>,
    /// Whether it is looked for in paths: all that the file holds is noise then.
    of_files: bool,
}

const fn rule(name: &'static str, about: &'static str, pattern: &'static str) -> BuiltIn {
    let (replacement, expands, filter, of_files) = (None, false, None, false);
    BuiltIn { name, about, on: true, pattern, replacement, expands, filter, of_files }
}

/// The built-in rules, in the order in which they take places.
pub const BUILT_IN: [BuiltIn; 14] = [
    BuiltIn {
        replacement: Some("wrote ${n} bytes to "),
        expands: true,
        ..rule(
            "knowlyr-answers",
            "the words in which knowlyr's `file_write` answers, for ours: 已写入 5 字节到 a.txt",
            r"\A\s*已写入 (?P<n>\d+) 字节到 ",
        )
    },
    BuiltIn {
        replacement: Some(""),
        ..rule(
            "progress",
            "what a carriage return has overwritten: all of a line before its last one",
            r"(?m)(?P<noise>[^\n]*\r)[^\r\n]",
        )
    },
    rule(
        "times",
        "times of day, with or without a date: 2026-11-16T05:26:23.1Z, Mon Nov 16 05:26:23 UTC 2026, 05:26:23, Nov 16 05:26",
        concat!(
            r"\b\d{4}[-/]\d{2}[-/]\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|\s?[+-]\d{2}:?\d{2}\b)?",
            r"|(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?",
            r"(?:\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2}",
            r"|\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) \d{4})",
            r",? \d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: [AP]M)?(?: [A-Z]{3,4})?(?: [+-]\d{4})?(?: \d{4}\b)?",
            r"|\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b",
        ),
    ),
    rule(
        "dates",
        "dates alone: 2026-11-16, 16.11.2026 is not one",
        r"\b(?:19|20)\d{2}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])\b",
    ),
    rule(
        "durations",
        "how long something took: 0.03s, 12 ms, 0m0.003s, in 3 seconds",
        concat!(
            r"\b\d+m\d+(?:[.,]\d+)?s\b",
            r"|\b\d+[.,]\d+ ?(?:s|sec|secs|seconds?|min|minutes?)\b",
            r"|\b\d+(?:[.,]\d+)? ?(?:ns|µs|us|ms|msec|milliseconds?|microseconds?|nanoseconds?)\b",
            r"|\b(?:in|took|after|elapsed:?) (?P<noise>\d+ ?(?:s|sec|secs|seconds?))\b",
        ),
    ),
    rule(
        "rates",
        "how fast something went: 33.1it/s, 4.5 MB/s",
        r"\b\d+(?:\.\d+)? ?(?:it|[kKMG]?i?B|[kMG]?bit|req|ops)/s\b",
    ),
    rule(
        "uuids",
        "random and time-based UUIDs; those made from names (versions 3 and 5) mean something",
        r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[124678][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b",
    ),
    rule("addresses", "addresses in memory: 0x7f3a12bc9d40", r"\b0x[0-9a-fA-F]{8,16}\b"),
    BuiltIn {
        filter: Some(looks_random),
        ..rule(
            "temporary-names",
            "random names directly below /tmp, /var/tmp or /dev/shm: /tmp/tmpk3x9_a1b, /tmp/tmp.Xy12ZabcDE, /tmp/build-482913",
            r"(?:/var/tmp|/tmp|/dev/shm)/(?P<noise>[A-Za-z0-9_.+-]+(?:/pytest-\d+)?)",
        )
    },
    rule(
        "pids",
        "numbers of processes: pid 123, PID=123, [1] 123, /proc/123/",
        concat!(
            r"(?m)(?:\b(?i:pid|process|ppid|tid)\b ?[=:#(]? ?)(?P<noise>\d+)\b",
            r"|^\[\d+\][+-]? {1,2}(?P<job>\d+)\b",
            r"|/proc/(?P<proc>\d+)\b",
        ),
    ),
    rule(
        "ports",
        "ports that the system picks (32768 and up) of this machine's own addresses: 127.0.0.1:43211",
        r"(?:\b127\.0\.0\.1|\blocalhost|\b0\.0\.0\.0|\[::1?\]):(?P<noise>3276[89]|327[7-9]\d|32[89]\d{2}|3[3-9]\d{3}|[45]\d{4}|6[0-5]\d{3})\b",
    ),
    BuiltIn {
        filter: Some(is_git_index),
        of_files: true,
        ..rule(
            "git-index",
            "what git's index holds, which has inode numbers and times of files: .git/index, and those of submodules and worktrees",
            r"/\.git/(?:(?:modules|worktrees)/.+/)?index\z",
        )
    },
    BuiltIn {
        on: false,
        replacement: Some(""),
        ..rule("edges", "white space at both ends of the whole text; some recorders strip it", r"\A\s+|\s+\z")
    },
    BuiltIn {
        on: false,
        replacement: Some(""),
        ..rule("colours", "colours and other attributes of a terminal", "\x1b\\[[0-9;]*m")
    },
];

/// Names of groups of which one is the noise.
const NOISE: [&str; 3] = ["noise", "job", "proc"];

/// Whether a name below a directory for temporary files is one that a program made up.
fn looks_random(name: &str) -> bool {
    let first = name.split('/').next().unwrap_or(name);
    if let Some(rest) = first.strip_prefix("tmp") {
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        if (6..=12).contains(&rest.len()) && rest.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return true;
        }
    }
    if first.starts_with("pytest-of-") {
        return name.contains('/');
    }
    // The last part of a template: digits enough, or letters that no one writes so.
    let part = first.rsplit(['.', '-', '_']).find(|part| part.len() >= 6).unwrap_or_default();
    let has = |wanted: fn(&char) -> bool| part.chars().any(|c| wanted(&c));
    let digits = has(char::is_ascii_digit);
    let letters = has(char::is_ascii_alphabetic);
    let mixed = part.chars().skip(1).any(|c| c.is_ascii_uppercase()) && has(char::is_ascii_lowercase);
    part.len() <= 16 && (digits && (letters || part.len() >= 6) || mixed)
}

/// Whether a path below a directory of git's is an index, and not a branch of that name.
fn is_git_index(path: &str) -> bool {
    !path.contains("/refs/") && !path.contains("/logs/")
}

/// The rules of a comparison, ready to use.
#[derive(Debug, Clone)]
pub struct Rules {
    active: Vec<Active>,
    /// Those that are about paths.
    of_files: Vec<Active>,
}

#[derive(Debug, Clone)]
struct Active {
    name: String,
    regex: Regex,
    replacement: String,
    expands: bool,
    filter: Option<fn(&str) -> bool>,
}

/// A place that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aside {
    /// Which rule, as an index.
    pub(crate) rule: usize,
    /// Where it was.
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where its replacement is.
    pub(crate) at: usize,
    /// The replacement, if it is not the same for all places of the rule.
    with: Option<String>,
}

/// A text without its noise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Canonical {
    pub(crate) text: String,
    pub(crate) asides: Vec<Aside>,
}

/// The built-in patterns, compiled once. Digits and borders of words are those of ASCII, which is many times faster.
static COMPILED: LazyLock<Vec<Option<Regex>>> = LazyLock::new(|| {
    let ascii = |pattern: &str| pattern.replace(r"\b", r"(?-u:\b)").replace(r"\d", "[0-9]");
    BUILT_IN.iter().map(|rule| Regex::new(&ascii(rule.pattern)).ok()).collect()
});

/// Whether all that a file holds is noise by its path, unless somebody says otherwise.
pub fn is_noise(path: &str) -> bool {
    static RULES: LazyLock<Option<Rules>> = LazyLock::new(|| Rules::new(&[]).ok());
    RULES.as_ref().is_some_and(|rules| rules.of_file(path).is_some())
}

impl Rules {
    /// No rules at all: every byte counts.
    pub fn none() -> Self {
        Rules { active: Vec::new(), of_files: Vec::new() }
    }

    /// The built-in rules with what a trajectory says: rules of its own, and built-in ones switched on or off.
    pub fn new(rules: &[Rule]) -> Result<Self> {
        Self::with(rules, &[])
    }

    /// The same with these built-in rules on as well.
    pub(crate) fn with(rules: &[Rule], on: &[&str]) -> Result<Self> {
        if rules.len() > RULES_MAX {
            return Err(invalid(format!("{} rules: there may be {RULES_MAX}", rules.len())));
        }
        let (mut active, mut of_files) = (Vec::new(), Vec::new());
        for rule in rules.iter().filter(|rule| rule.pattern.is_some() && !rule.off) {
            active.push(own(rule)?);
        }
        let known = |name: &str| BUILT_IN.iter().any(|rule| rule.name == name);
        let owned = |name: &str| rules.iter().any(|rule| rule.name == name && rule.pattern.is_some());
        if let Some(rule) = rules.iter().find(|rule| !known(&rule.name) && !owned(&rule.name)) {
            let names: Vec<&str> = BUILT_IN.iter().map(|rule| rule.name).collect();
            let what = format!(
                "the rule {:?} has no pattern and is not built in; those are {}",
                rule.name,
                names.join(", ")
            );
            return Err(invalid(what));
        }
        for (built_in, regex) in BUILT_IN.iter().zip(COMPILED.iter()) {
            let said = rules.iter().rev().find(|rule| rule.name == built_in.name);
            let is_on = said.map_or(built_in.on || on.contains(&built_in.name), |rule| !rule.off);
            let Some(regex) = regex.as_ref().filter(|_| is_on) else { continue };
            let list = if built_in.of_files { &mut of_files } else { &mut active };
            list.push(Active {
                name: built_in.name.to_owned(),
                regex: regex.clone(),
                replacement: built_in
                    .replacement
                    .map_or_else(|| format!("<{}>", built_in.name), str::to_owned),
                expands: built_in.expands,
                filter: built_in.filter,
            });
        }
        Ok(Rules { active, of_files })
    }

    /// The rule by which what a file at this path holds is noise, if there is one.
    pub(crate) fn of_file(&self, path: &str) -> Option<&str> {
        let is_noise = |rule: &&Active| {
            let found = rule.regex.find(path);
            found.is_some_and(|found| rule.filter.is_none_or(|filter| filter(found.as_str())))
        };
        self.of_files.iter().find(is_noise).map(|rule| rule.name.as_str())
    }

    /// The name of a rule.
    pub(crate) fn name(&self, index: usize) -> &str {
        self.active.get(index).map_or("", |rule| &rule.name)
    }

    /// A text without its noise. A text with too many places is left as it is.
    pub(crate) fn canonical(&self, text: &str) -> Canonical {
        let mut asides: Vec<Aside> = Vec::new();
        for (index, rule) in self.active.iter().enumerate() {
            let found = rule.regex.captures_iter(text).filter_map(|captures| {
                let part = NOISE.iter().find_map(|name| captures.name(name)).or_else(|| captures.get(0))?;
                let keep = rule.filter.is_none_or(|filter| filter(part.as_str()));
                let with = rule.expands.then(|| {
                    let mut with = String::new();
                    captures.expand(&rule.replacement, &mut with);
                    with
                });
                (keep && !part.is_empty()).then_some(Aside {
                    rule: index,
                    start: part.start(),
                    end: part.end(),
                    at: 0,
                    with,
                })
            });
            let before = asides.len();
            let found: Vec<Aside> = found.take(PLACES_MAX + 1 - before.min(PLACES_MAX)).collect();
            asides = merged(asides, found);
            if asides.len() > PLACES_MAX {
                return Canonical { text: text.to_owned(), asides: Vec::new() };
            }
        }
        let mut out = String::with_capacity(text.len());
        let mut at = 0;
        for aside in &mut asides {
            out.push_str(&text[at..aside.start]);
            aside.at = out.len();
            out.push_str(aside.with.as_ref().unwrap_or(&self.active[aside.rule].replacement));
            at = aside.end;
        }
        out.push_str(&text[at..]);
        Canonical { text: out, asides }
    }
}

/// Both lists in order, without those of the second that touch the first.
fn merged(first: Vec<Aside>, second: Vec<Aside>) -> Vec<Aside> {
    let mut out = Vec::with_capacity(first.len() + second.len());
    let mut first = first.into_iter().peekable();
    let mut reached = 0;
    for aside in second {
        while let Some(earlier) = first.next_if(|earlier| earlier.start < aside.end) {
            reached = earlier.end;
            out.push(earlier);
        }
        // What was pushed last is either wholly before this one, or overlaps it.
        if aside.start >= reached {
            reached = aside.end;
            out.push(aside);
        }
    }
    out.extend(first);
    out
}

/// A rule of a trajectory.
fn own(rule: &Rule) -> Result<Active> {
    let pattern = rule.pattern.as_deref().unwrap_or_default();
    if BUILT_IN.iter().any(|built_in| built_in.name == rule.name) {
        return Err(invalid(format!(
            "the rule {:?} has a pattern and the name of a built-in one",
            rule.name
        )));
    }
    if pattern.len() > PATTERN_BYTES_MAX {
        return Err(invalid(format!(
            "the rule {:?} has a pattern of more than {PATTERN_BYTES_MAX} bytes",
            rule.name
        )));
    }
    let regex = RegexBuilder::new(pattern).size_limit(PATTERN_COMPILED_BYTES_MAX).build().map_err(|e| {
        let text = e.to_string();
        let last = text.lines().last().unwrap_or_default().trim();
        invalid(format!("the rule {:?} has the pattern {pattern:?}, which is none: {last}", rule.name))
    })?;
    let replacement = rule.replacement.clone().unwrap_or_else(|| format!("<{}>", rule.name));
    Ok(Active { name: rule.name.clone(), regex, replacement, expands: false, filter: None })
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let rules = Rules::new(&[]).unwrap();
        assert_eq!(rules.canonical(text).text, expected, "{text:?}");
    }

    #[test]
    fn every_built_in_pattern_is_one() {
        assert!(COMPILED.iter().all(Option::is_some));
        let mut names: Vec<&str> = BUILT_IN.iter().map(|rule| rule.name).collect();
        names.dedup();
        assert_eq!(names.len(), BUILT_IN.len());
    }

    #[test]
    fn an_index_of_git_is_told_by_its_path() {
        let rules = Rules::new(&[]).unwrap();
        let at = |path| rules.of_file(path) == Some("git-index");
        assert!(at("/workspace/.git/index"));
        assert!(at("/workspace/.git/modules/libs/a/index"));
        assert!(at("/workspace/.git/worktrees/a/index"));
        assert!(
            !at("/workspace/git/index") && !at("/workspace/.git/index.lock") && !at("/workspace/a.git/index")
        );
        assert!(!at("/workspace/.git/refs/heads/index") && !at("/workspace/.git/modules/a/refs/heads/index"));
        let off = Rule { name: "git-index".to_owned(), off: true, ..Rule::default() };
        assert_eq!(Rules::new(&[off]).unwrap().of_file("/workspace/.git/index"), None);
        check("see /workspace/.git/index", "see /workspace/.git/index");
    }

    #[test]
    fn noise_is_replaced_by_the_name_of_its_rule() {
        check("at 2026-11-16T05:26:23.123Z ok", "at <times> ok");
        check("2026-11-16 05:26:23,123 INFO", "<times> INFO");
        check("Mon Nov 16 05:26:23 UTC 2026", "<times>");
        check("-rw-r--r-- 1 root root 5 Nov 16 05:26 x", "-rw-r--r-- 1 root root 5 <times> x");
        check("Mon, 16 Nov 2026 05:26:23 +0000", "<times>");
        check("it is 05:26:23 now", "it is <times> now");
        check("on 2026-11-16, done", "on <dates>, done");
        check("1 passed in 0.03s", "1 passed in <durations>");
        check("real\t0m0.003s", "real\t<durations>");
        check("took 12 ms; in 3 seconds", "took <durations>; in <durations>");
        check("45/100 [33.1it/s] 4.5 MB/s", "45/100 [<rates>] <rates>");
        check("<object at 0x7f3a12bc9d40>", "<object at <addresses>>");
        check("id 123e4567-e89b-42d3-a456-426614174000", "id <uuids>");
        check(
            "/tmp/tmpk3x9_a1b/x and /tmp/tmp.Xy12ZabcDE",
            "/tmp/<temporary-names>/x and /tmp/<temporary-names>",
        );
        check("/tmp/pytest-of-root/pytest-3/test0", "/tmp/<temporary-names>/test0");
        check(
            "/tmp/build-482913.log /var/tmp/cc1Xy9Za.o",
            "/tmp/<temporary-names> /var/tmp/<temporary-names>",
        );
        check("pid 123, PID=7, (process 12)", "pid <pids>, PID=<pids>, (process <pids>)");
        check("[1] 4711\n[2]+ 12 x\n/proc/99/stat", "[1] <pids>\n[2]+ <pids> x\n/proc/<pids>/stat");
        check("on http://127.0.0.1:43211/ and [::]:60001", "on http://127.0.0.1:<ports>/ and [::]:<ports>");
        check("10%\r20%\r100% done\nnext\r\n", "100% done\nnext\r\n");
        check("已写入 12 字节到 a/b.txt", "wrote 12 bytes to a/b.txt");
    }

    #[test]
    fn what_means_something_stays() {
        for text in [
            "version 1.2.3",
            "5 s of peace",
            "10 seconds of fame",
            "16:9",
            "score 0.5",
            "0x1f",
            "2026",
            "a 12:30 b",
            "/tmp/report.txt",
            "/tmp/input-file",
            "/tmp/x1",
            "/tmp/my-README",
            "/home/tmpk3x9_a1b",
            "127.0.0.1:8080",
            "localhost:3000",
            "example.org:43211",
            "pids 12",
            "[1, 4711]",
            "x[1] 4711",
            "123e4567-e89b-52d3-a456-426614174000",
            "line\r\n",
            "  both ends  ",
            "9999-99-99",
            "3 items in 2 steps",
            "said: 已写入 12 字节到 a",
            "wrote 12 bytes to a\n",
            "1,234 ms.x y",
        ] {
            if text == "1,234 ms.x y" {
                check(text, "<durations>.x y");
            } else {
                check(text, text);
            }
        }
    }

    #[test]
    fn rules_are_switched_and_added() {
        let rule = |name: &str, pattern: Option<&str>, off: bool| Rule {
            name: name.to_owned(),
            pattern: pattern.map(str::to_owned),
            replacement: None,
            off,
        };
        let rules = [
            rule("times", None, true),
            rule("edges", None, false),
            rule("seed", Some(r"seed=(?P<noise>\d+)"), false),
        ];
        let rules = Rules::new(&rules).unwrap();
        assert_eq!(
            rules.canonical(" seed=7 at 05:26:23 took 5ms\n").text,
            "seed=<seed> at 05:26:23 took <durations>"
        );
        for bad in [
            rule("no-such", None, false),
            rule("times", Some("x"), false),
            rule("mine", Some("("), false),
            rule("mine", Some(r"\w{1000}{1000}"), false),
            rule("mine", Some(&"x".repeat(PATTERN_BYTES_MAX + 1)), false),
        ] {
            assert_eq!(
                Rules::new(std::slice::from_ref(&bad)).unwrap_err().kind,
                ErrorKind::Invalid,
                "{bad:?}"
            );
        }
        assert!(Rules::new(&vec![rule("mine", Some("x"), false); RULES_MAX + 1]).is_err());
        assert_eq!(Rules::none().canonical("05:26:23").text, "05:26:23");
    }

    #[test]
    fn the_earlier_rule_has_the_place() {
        let rules = Rules::new(&[Rule {
            name: "day".to_owned(),
            pattern: Some("2026-11-16".to_owned()),
            ..Rule::default()
        }])
        .unwrap();
        assert_eq!(rules.canonical("2026-11-16T05:26:23Z").text, "<day>T05:26:23Z");
    }
}
