//! Walks through trees of a box, without following links.

use glasshouse_sandbox::{Error, ErrorKind, FileKind, FileStat, ListPage, Sandbox};

use super::{bad, fault};
use crate::dialect::opensandbox::fault::Answer;
use crate::limits::{PATTERN_ALTERNATIVES, PATTERN_BYTES, TREE_ENTRIES, TREE_VISITED};

/// Something in a tree.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its whole path.
    pub(super) path: String,
    pub(super) stat: FileStat,
}

/// A directory that is being walked through, of which a page is held at a time.
struct Level {
    path: String,
    page: std::vec::IntoIter<FileStat>,
    /// Where the next page begins, if there is one.
    after: Option<String>,
}

impl Level {
    async fn open(sandbox: &Sandbox, path: String) -> glasshouse_sandbox::Result<Level> {
        let ListPage { entries, next } = sandbox.list_dir(&path, None, None).await?;
        Ok(Level { path, page: entries.into_iter(), after: next })
    }

    /// The next entry, if there is one.
    async fn next(&mut self, sandbox: &Sandbox) -> glasshouse_sandbox::Result<Option<FileStat>> {
        loop {
            if let Some(stat) = self.page.next() {
                return Ok(Some(stat));
            }
            let Some(after) = self.after.take() else { return Ok(None) };
            let ListPage { entries, next } = sandbox.list_dir(&self.path, Some(&after), None).await?;
            (self.page, self.after) = (entries.into_iter(), next);
        }
    }
}

/// All that is in a directory, down to a depth, each directory before what is in it, by name. `keep` says what is told.
pub(super) async fn walk(
    sandbox: &Sandbox,
    root: &str,
    depth: u64,
    keep: impl Fn(&FileStat) -> bool,
) -> Answer<Vec<Entry>> {
    let too_many =
        |what: &str| bad("INVALID_FILE", format!("{root} holds more than {what}; ask for a part of it"));
    // Somebody may remove it in this moment, or it is closed to the box's own user: the rest is told.
    let is_passed = |e: &Error| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Denied);
    let (mut found, mut visited) = (Vec::new(), 0);
    let mut levels = match depth {
        0 => Vec::new(),
        _ => vec![Level::open(sandbox, root.to_owned()).await.map_err(fault)?],
    };
    while let Some(level) = levels.last_mut() {
        let stat = match level.next(sandbox).await {
            Ok(Some(stat)) => stat,
            Err(e) if !is_passed(&e) => return Err(fault(e)),
            Ok(None) | Err(_) => {
                levels.pop();
                continue;
            }
        };
        visited += 1;
        if visited > TREE_VISITED {
            return Err(too_many(&format!("{TREE_VISITED} entries")));
        }
        let path = join(&level.path, &stat.name);
        let is_entered = stat.kind == FileKind::Directory && (levels.len() as u64) < depth;
        if keep(&stat) {
            found.push(Entry { path: path.clone(), stat });
        }
        if found.len() > TREE_ENTRIES {
            return Err(too_many(&format!("{TREE_ENTRIES} of them")));
        }
        if is_entered {
            match Level::open(sandbox, path).await {
                Err(e) if is_passed(&e) => {}
                opened => levels.push(opened.map_err(fault)?),
            }
        }
    }
    Ok(found)
}

/// A name in a directory.
pub(super) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// A pattern for names: `*` and `**` stand for anything, `?` for one letter, `[ab]`, `[a-z]` and `[!a]` for one of or none of
/// some, `{x,y}` for either, and may hold others, `**/` for directories or none. Names have none, so `**/*.py` is `*.py`.
#[derive(Debug)]
pub(super) struct Pattern(Vec<Vec<char>>);

impl Pattern {
    pub(super) fn of(text: &str) -> Answer<Pattern> {
        let refused = |why: &str| bad("INVALID_REQUEST_BODY", format!("{text:?} is no pattern: {why}"));
        if text.len() > PATTERN_BYTES {
            return Err(bad(
                "INVALID_REQUEST_BODY",
                format!("a pattern is longer than {PATTERN_BYTES} bytes"),
            ));
        }
        let (mut made, mut todo) = (Vec::new(), vec![text.chars().collect::<Vec<char>>()]);
        while let Some(next) = todo.pop() {
            match braces(&next).map_err(refused)? {
                Some(spelt) => todo.extend(spelt),
                None => made.push(next),
            }
            if made.len() + todo.len() > PATTERN_ALTERNATIVES {
                return Err(refused("it stands for too many others"));
            }
        }
        for pattern in &mut made {
            while pattern.starts_with(&['*', '*', '/']) {
                pattern.drain(..3);
            }
        }
        Ok(Pattern(made))
    }

    pub(super) fn fits(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        self.0.iter().any(|pattern| glob(pattern, &name))
    }
}

/// A pattern with its first braces spelt out, if it has any; why it is none.
fn braces(pattern: &[char]) -> Result<Option<Vec<Vec<char>>>, &'static str> {
    let (mut at, mut depth, mut open, mut parts) = (0, 0, 0, Vec::new());
    while at < pattern.len() {
        match pattern[at] {
            '\\' if at + 1 == pattern.len() => return Err("it ends with a backslash"),
            '\\' => at += 1,
            '[' => {
                let close = pattern[at + 1..].iter().skip(1).position(|letter| *letter == ']');
                at += close.ok_or("a bracket is not closed")? + 2;
            }
            '{' => {
                depth += 1;
                if depth == 1 {
                    (open, parts) = (at, vec![at + 1]);
                }
            }
            ',' if depth == 1 => parts.push(at + 1),
            '}' if depth == 1 => {
                let ends = parts.iter().skip(1).map(|part| part - 1).chain([at]);
                let spelt = |(from, to): (&usize, usize)| {
                    [&pattern[..open], &pattern[*from..to], &pattern[at + 1..]].concat()
                };
                return Ok(Some(parts.iter().zip(ends).map(spelt).collect()));
            }
            '}' if depth > 1 => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    if depth > 0 { Err("a brace is not closed") } else { Ok(None) }
}

fn glob(pattern: &[char], name: &[char]) -> bool {
    // Where to go on if what follows the last star does not fit; so the time is the product of the lengths at worst.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match one(&pattern[p..], name[n]) {
            Some(0) => {
                star = Some((p, n));
                p += 1;
            }
            Some(length) => (p, n) = (p + length, n + 1),
            None => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

/// How much of a pattern stands for this letter; 0 for a star.
fn one(pattern: &[char], letter: char) -> Option<usize> {
    match pattern {
        ['*', ..] => Some(0),
        ['?', ..] => Some(1),
        ['[', rest @ ..] => {
            let close = rest.iter().skip(1).position(|c| *c == ']').map(|at| at + 1);
            let close = close?;
            let (not, set) = match &rest[..close] {
                ['!' | '^', set @ ..] => (true, set),
                set => (false, set),
            };
            (contains(set, letter) != not).then_some(close + 2)
        }
        ['\\', escaped, ..] => (*escaped == letter).then_some(2),
        [plain, ..] => (*plain == letter).then_some(1),
        [] => None,
    }
}

fn contains(set: &[char], letter: char) -> bool {
    match set {
        [from, '-', to, rest @ ..] => (*from..=*to).contains(&letter) || contains(rest, letter),
        [one, rest @ ..] => *one == letter || contains(rest, letter),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_patterns() {
        for (text, name, fits) in [
            ("**", "anything", true),
            ("**/*.txt", "a.txt", true),
            ("**/a.txt", "a.txt", true),
            ("a/*.txt", "a.txt", false),
            ("*.py", "a.py", true),
            ("*.py", ".py", true),
            ("*.py", "a.pyc", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("*.{txt,md}", "x.md", true),
            ("*.{txt,md}", "x.rs", false),
            ("{a,b}.{txt,py}", "b.py", true),
            ("*.{py,{txt,md}}", "b.md", true),
            ("a*b*c", "aXbXXc", true),
            ("a*b*c", "aXbXX", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("ü?", "üé", true),
        ] {
            assert_eq!(Pattern::of(text).unwrap().fits(name), fits, "{text} {name}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["[", "{a", "a\\", &"{a,b}".repeat(20), &"x".repeat(PATTERN_BYTES + 1)] {
            assert!(Pattern::of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        assert!(!Pattern::of(&"*a".repeat(200)).unwrap().fits(&"a".repeat(199)));
        assert!(!Pattern::of(&format!("{}b", "*a".repeat(50))).unwrap().fits(&"a".repeat(4000)));
    }
}
