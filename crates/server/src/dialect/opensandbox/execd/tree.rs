//! Walks through trees of a box, without following links.

use glasshouse_sandbox::{ErrorKind, FileKind, FileStat, Sandbox};

use super::{bad, fault};
use crate::dialect::opensandbox::fault::Answer;
use crate::limits::TREE_ENTRIES;

/// Something in a tree.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its whole path.
    pub(super) path: String,
    pub(super) stat: FileStat,
}

/// All that is in a directory, down to a depth, each directory before what is in it, by name. `keep` says what is told.
pub(super) async fn walk(
    sandbox: &Sandbox,
    root: &str,
    depth: u64,
    keep: impl Fn(&FileStat) -> bool,
) -> Answer<Vec<Entry>> {
    let (mut found, mut seen) = (Vec::new(), 0);
    // What comes next is last.
    let mut todo: Vec<(String, u64, Option<FileStat>)> = vec![(root.to_owned(), 0, None)];
    while let Some((path, level, stat)) = todo.pop() {
        let is_root = stat.is_none();
        let is_dir = stat.as_ref().is_none_or(|stat| stat.kind == FileKind::Directory);
        if let Some(stat) = stat.filter(&keep) {
            found.push(Entry { path: path.clone(), stat });
        }
        if !is_dir || level >= depth {
            continue;
        }
        let entries = match list(sandbox, &path, TREE_ENTRIES.saturating_sub(seen)).await {
            Ok(entries) => entries,
            // It went in this moment, or is closed to the box's own user: the rest is told.
            Err(e) if !is_root && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Denied) => continue,
            Err(e) => return Err(fault(e)),
        };
        seen += entries.len();
        if seen > TREE_ENTRIES {
            let message = format!("{root} holds more than {TREE_ENTRIES} entries; ask for a part of it");
            return Err(bad("INVALID_FILE", message));
        }
        for stat in entries.into_iter().rev() {
            todo.push((join(&path, &stat.name), level + 1, Some(stat)));
        }
    }
    Ok(found)
}

/// All entries of a directory, or a few more than `max`.
async fn list(sandbox: &Sandbox, path: &str, max: usize) -> glasshouse_sandbox::Result<Vec<FileStat>> {
    let (mut entries, mut after) = (Vec::new(), None);
    loop {
        let page = sandbox.list_dir(path, after.as_deref(), None).await?;
        entries.extend(page.entries);
        after = page.next;
        if after.is_none() || entries.len() > max {
            return Ok(entries);
        }
    }
}

/// A name in a directory.
pub(super) fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

/// Whether a name is meant by a pattern: `*` and `**` stand for anything, `?` for one letter, `[ab]`, `[a-z]` and `[!a]` for
/// one of or none of some, `{x,y}` for either.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    alternatives(pattern).iter().any(|pattern| glob(&pattern.chars().collect::<Vec<_>>(), &name))
}

/// A pattern with its first braces spelt out; no more than a few.
fn alternatives(pattern: &str) -> Vec<String> {
    let braces = pattern.find('{').and_then(|open| Some((open, open + pattern[open..].find('}')?)));
    let Some((open, close)) = braces else { return vec![pattern.to_owned()] };
    let (before, after) = (&pattern[..open], &pattern[close + 1..]);
    pattern[open + 1..close].split(',').map(|word| format!("{before}{word}{after}")).collect()
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
            let Some(close) = close else { return (letter == '[').then_some(1) };
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
        for (pattern, name, fits) in [
            ("**", "anything", true),
            ("*.py", "a.py", true),
            ("*.py", ".py", true),
            ("*.py", "a.pyc", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[ab", "[ab", true),
            ("*.{txt,md}", "x.md", true),
            ("*.{txt,md}", "x.rs", false),
            ("a*b*c", "aXbXXc", true),
            ("a*b*c", "aXbXX", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
            ("", "x", false),
            ("ü?", "üé", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn hostile_patterns_take_no_time() {
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
        assert!(!matches(&format!("{}b", "*a".repeat(50)), &"a".repeat(4000)));
    }
}
