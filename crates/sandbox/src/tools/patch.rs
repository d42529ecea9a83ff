//! Unified diffs, as `diff -u` and git write them: reading them, and working out what they make of a text.
//!
//! A hunk has to fit byte for byte. Where the lines have moved, the nearest place at which it fits is taken, after the
//! hunks before it; nothing is applied on a guess.

/// What a patch does to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePatch {
    /// The file before; none if it is made.
    pub(super) old: Option<String>,
    /// The file after; none if it is removed.
    pub(super) new: Option<String>,
    /// Permission bits that the patch names.
    pub(super) mode: Option<u32>,
    hunks: Vec<Hunk>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hunk {
    /// Its first line of the old text, from 1; 0 in an empty one.
    start: usize,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
}

/// Reads a patch. With a path, it is about that file, whatever it says itself.
pub(super) fn parse(text: &str, path: Option<&str>) -> Result<Vec<FilePatch>, String> {
    let mut lines = Reader { lines: text.split_inclusive('\n').collect(), at: 0 };
    let mut patches = Vec::new();
    // What git says of a file before its hunks, as long as there are none.
    let mut entry: Option<Entry<'_>> = None;
    while let Some(line) = lines.peek() {
        let bare = line.trim_end_matches(['\n', '\r']);
        if let Some(names) = bare.strip_prefix("diff --git ") {
            patches.extend(
                entry
                    .replace(Entry::new(names, lines.at))
                    .map(|entry| entry.whole(path))
                    .transpose()?
                    .flatten(),
            );
        } else if bare.starts_with("GIT binary patch") || bare.starts_with("Binary files ") {
            return Err(lines.here("it is about binary files"));
        } else if bare.starts_with("copy from ") {
            return Err(lines.here("it copies a file; use `shell` for that"));
        } else if bare.starts_with("rename from ") {
            // With changes there is a pair of names as well; without, nothing else says what is meant.
            if !lines.names_follow() {
                return Err(lines.here("it renames a file; use `shell` for that"));
            }
        } else if bare.starts_with("--- ") && lines.is_names() {
            let mode = entry.take().and_then(|entry| entry.mode);
            patches.push(lines.file(path, mode)?);
            continue;
        } else if bare.starts_with("@@ ") {
            let Some(path) = path else {
                return Err(
                    lines.here("there is no `--- ` and `+++ ` before this hunk, and no `path` was given")
                );
            };
            if header(line).is_none() {
                return Err(lines.here("a hunk begins with a line like `@@ -1,3 +1,4 @@`"));
            }
            let (old, new) = (Some(path.to_owned()), Some(path.to_owned()));
            let mode = entry.take().and_then(|entry| entry.mode);
            patches.push(FilePatch { old, new, mode, hunks: lines.hunks()? });
            continue;
        } else if let Some(entry) = &mut entry {
            entry.take(bare).map_err(|why| lines.here(&why))?;
        }
        lines.at += 1;
    }
    patches.extend(entry.map(|entry| entry.whole(path)).transpose()?.flatten());
    match patches.len() {
        0 => Err("there is no hunk in it (a line like `@@ -1,3 +1,4 @@`)".into()),
        1 => Ok(patches),
        count if path.is_some() => Err(format!("it is about {count} files, and `path` names one")),
        _ => Ok(patches),
    }
}

/// What git says of a file in the lines before its hunks. Files that are empty, and those that get nothing but another
/// mode, have no hunks: then this is all that is said of them.
struct Entry<'a> {
    /// Both names, as git writes them.
    names: &'a str,
    /// Its line, from 0.
    at: usize,
    mode: Option<u32>,
    made: bool,
    gone: bool,
}

impl<'a> Entry<'a> {
    fn new(names: &'a str, at: usize) -> Entry<'a> {
        Entry { names, at, mode: None, made: false, gone: false }
    }

    /// Takes one of its lines.
    fn take(&mut self, line: &str) -> Result<(), String> {
        let said = |word: &str| line.strip_prefix(word).map(plain_mode).transpose();
        if let Some(mode) = said("new file mode ")? {
            (self.made, self.mode) = (true, Some(mode));
        } else if said("deleted file mode ")?.is_some() {
            self.gone = true;
        } else if let Some(mode) = said("new mode ")? {
            self.mode = Some(mode);
        } else if let Some((_, mode)) = line.strip_prefix("index ").and_then(|rest| rest.split_once(' ')) {
            plain_mode(mode)?;
        } else {
            said("old mode ")?;
        }
        Ok(())
    }

    /// What it does to its file by itself, if it does anything.
    fn whole(self, path: Option<&str>) -> Result<Option<FilePatch>, String> {
        if self.mode.is_none() && !self.gone {
            return Ok(None);
        }
        let name = match path {
            Some(path) => path.to_owned(),
            None => same_name(self.names)
                .ok_or_else(|| format!("line {}: it does not tell which file it is about", self.at + 1))?,
        };
        let old = (!self.made).then(|| name.clone());
        let new = (!self.gone).then_some(name);
        Ok(Some(FilePatch { old, new, mode: self.mode, hunks: Vec::new() }))
    }
}

/// The permission bits of a mode, if it is one of a plain file.
fn plain_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text.trim_end(), 8) {
        Ok(mode) if mode & 0o170_000 == 0o100_000 => Ok(mode & 0o777),
        Ok(0o120_000) => Err("it is about a symbolic link; use `shell` for that".into()),
        Ok(0o160_000) => Err("it is about a submodule; use `git` for that".into()),
        _ => Err(format!("{text:?} is no mode of a file")),
    }
}

/// The name that stands twice behind `diff --git`, once with `a/` and once with `b/`. Names with blanks are not set apart.
fn same_name(names: &str) -> Option<String> {
    let (old, new) = match names.starts_with('"') {
        true => {
            let (old, rest) = unquoted(names)?;
            (old, unquoted(rest.strip_prefix(' ')?)?.0)
        }
        false => {
            let (old, new) = names.split_at_checked(names.len() / 2)?;
            (old.to_owned(), new.strip_prefix(' ')?.to_owned())
        }
    };
    // git with `diff.noprefix`.
    if old == new {
        return Some(old);
    }
    let bare = old.strip_prefix("a/")?;
    (new.strip_prefix("b/") == Some(bare)).then(|| bare.to_owned())
}

/// A name in quotes, as git writes those with bytes that are no plain letters, and what follows it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut bytes = Vec::new();
    let mut rest = text.strip_prefix('"')?;
    loop {
        let letter = rest.chars().next()?;
        rest = &rest[letter.len_utf8()..];
        match letter {
            '"' => return Some((String::from_utf8(bytes).ok()?, rest)),
            '\\' => {
                let escape = rest.chars().next()?;
                let (byte, length) = match escape {
                    '0'..='3' => (u8::from_str_radix(rest.get(..3)?, 8).ok()?, 3),
                    'a' => (7, 1),
                    'b' => (8, 1),
                    't' => (b'\t', 1),
                    'n' => (b'\n', 1),
                    'v' => (11, 1),
                    'f' => (12, 1),
                    'r' => (b'\r', 1),
                    '"' | '\\' => (u8::try_from(escape).ok()?, 1),
                    _ => return None,
                };
                bytes.push(byte);
                rest = &rest[length..];
            }
            letter => bytes.extend(letter.to_string().into_bytes()),
        }
    }
}

/// Lines that are compared in search of where a patch fits. A text of equal lines and a hunk of almost the same would
/// take for ever; after so many it does not fit.
const LOOKS_MAX: usize = 5_000_000;
/// More than any text has.
const LINES_MAX: usize = 1 << 32;

struct Reader<'a> {
    lines: Vec<&'a str>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.lines.get(self.at).copied()
    }

    fn here(&self, why: &str) -> String {
        format!("line {}: {why}", self.at + 1)
    }

    fn is_names(&self) -> bool {
        self.lines.get(self.at + 1).is_some_and(|line| line.starts_with("+++ "))
    }

    /// Whether the names of a changed file come before the next file.
    fn names_follow(&self) -> bool {
        let rest = self.lines[self.at..].iter().take_while(|line| !line.starts_with("diff --git "));
        rest.into_iter().any(|line| line.starts_with("+++ "))
    }

    fn file(&mut self, path: Option<&str>, mode: Option<u32>) -> Result<FilePatch, String> {
        let names = [0, 1].map(|line| name(&self.lines[self.at + line][4..]));
        let [Some(old), Some(new)] = names else {
            return Err(self.here("a name in quotes is not as git writes them, or no UTF-8"));
        };
        if old.is_none() && new.is_none() {
            return Err(self.here("it makes a file of nothing into nothing"));
        }
        self.at += 2;
        let hunks = self.hunks()?;
        if hunks.is_empty() {
            return Err(self.here("a hunk (a line like `@@ -1,3 +1,4 @@`) was expected"));
        }
        let named = |name: Option<String>| name.map(|name| path.map_or(name, str::to_owned));
        // git puts a letter and a slash before each name; other programs do not.
        let prefixed = old.as_ref().is_none_or(|name| name.starts_with("a/"))
            && new.as_ref().is_none_or(|name| name.starts_with("b/"));
        let bare = |name: String| if prefixed { name[2..].to_owned() } else { name };
        Ok(FilePatch { old: named(old.map(bare)), new: named(new.map(bare)), mode, hunks })
    }

    fn hunks(&mut self) -> Result<Vec<Hunk>, String> {
        let mut hunks = Vec::new();
        while let Some(line) = self.peek() {
            let Some((start, old_lines, new_lines)) = header(line) else { break };
            let opened = self.at;
            self.at += 1;
            hunks.push(self.hunk(start, old_lines, new_lines).map_err(|why| {
                format!("line {}: the hunk says {old_lines} old and {new_lines} new lines, {why}", opened + 1)
            })?);
        }
        Ok(hunks)
    }

    /// The lines of a hunk, as many as its header says.
    fn hunk(&mut self, start: usize, old_lines: usize, new_lines: usize) -> Result<Hunk, String> {
        let mut hunk = Hunk { start, old: Vec::new(), new: Vec::new() };
        let mut last = (false, false);
        while hunk.old.len() < old_lines || hunk.new.len() < new_lines {
            let Some(line) = self.peek() else { return Err("and ends before them".into()) };
            let (sign, rest) = match line.chars().next() {
                Some(sign @ (' ' | '-' | '+' | '\\')) => (sign, &line[1..]),
                // Many programs strip the blank of an empty line.
                Some('\n') => (' ', line),
                _ => return Err(format!("and line {} is none of them", self.at + 1)),
            };
            match sign {
                ' ' => last = (true, true),
                '-' => last = (true, false),
                '+' => last = (false, true),
                _ => {
                    hunk.cut(last);
                    self.at += 1;
                    continue;
                }
            }
            let bytes = whole(rest);
            if last.0 {
                hunk.old.push(bytes.clone());
            }
            if last.1 {
                hunk.new.push(bytes);
            }
            if hunk.old.len() > old_lines || hunk.new.len() > new_lines {
                return Err(format!("and line {} is one too many of its kind", self.at + 1));
            }
            self.at += 1;
        }
        if self.peek().is_some_and(|line| line.starts_with('\\')) {
            hunk.cut(last);
            self.at += 1;
        }
        Ok(hunk)
    }
}

impl Hunk {
    /// The last line has no newline at its end.
    fn cut(&mut self, (old, new): (bool, bool)) {
        for lines in [old.then_some(&mut self.old), new.then_some(&mut self.new)].into_iter().flatten() {
            if let Some(last) = lines.last_mut() {
                last.pop_if(|byte| *byte == b'\n');
            }
        }
    }
}

/// A line with its end, which the last line of a patch may lack.
fn whole(line: &str) -> Vec<u8> {
    let mut bytes = line.as_bytes().to_vec();
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
    bytes
}

/// `@@ -1,3 +1,4 @@`: the first old line, and how many there are of each.
fn header(line: &str) -> Option<(usize, usize, usize)> {
    let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let range = |text: &str| -> Option<(usize, usize)> {
        match text.split_once(',') {
            Some((start, count)) => Some((start.parse().ok()?, count.parse().ok()?)),
            None => Some((text.parse().ok()?, 1)),
        }
    };
    let ((start, old), (_, new)) = (range(old)?, range(new)?);
    // No text has more lines than this, and sums of such numbers are numbers.
    Some((start.min(LINES_MAX), old.min(LINES_MAX), new.min(LINES_MAX)))
}

/// The name of a file, without the time that may follow it. Nothing within: /dev/null. None: nobody can read it.
fn name(text: &str) -> Option<Option<String>> {
    let text = text.trim_end_matches(['\n', '\r']);
    let text = text.split('\t').next().unwrap_or(text).trim_end();
    let text = match text.starts_with('"') {
        true => unquoted(text)?.0,
        false => text.to_owned(),
    };
    Some((text != "/dev/null" && !text.is_empty()).then_some(text))
}

impl FilePatch {
    /// The text after the patch, or which hunk does not fit.
    pub(super) fn apply(&self, text: &[u8]) -> Result<Vec<u8>, String> {
        let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
        let mut out = Vec::with_capacity(text.len());
        // Lines of the old text that are dealt with, and how far the last hunk lay from where it said.
        let (mut done, mut moved) = (0_usize, 0_isize);
        let mut looks = LOOKS_MAX;
        for (number, hunk) in self.hunks.iter().enumerate() {
            // A hunk without old lines comes after the line that it names.
            let said = if hunk.old.is_empty() { hunk.start } else { hunk.start.saturating_sub(1) };
            let expected = said.saturating_add_signed(moved);
            let Some(at) = fitting(&lines, &hunk.old, done, expected, &mut looks) else {
                return Err(misfit(number + 1, hunk, &lines, expected));
            };
            moved = at as isize - said as isize;
            lines[done..at].iter().for_each(|line| out.extend_from_slice(line));
            hunk.new.iter().for_each(|line| out.extend_from_slice(line));
            done = at + hunk.old.len();
        }
        lines[done..].iter().for_each(|line| out.extend_from_slice(line));
        Ok(out)
    }
}

/// The place nearest to the expected one at which these lines are, not before `from`, if it is found in time.
fn fitting(
    lines: &[&[u8]],
    wanted: &[Vec<u8>],
    from: usize,
    expected: usize,
    looks: &mut usize,
) -> Option<usize> {
    let last = lines.len().checked_sub(wanted.len()).filter(|&last| last >= from)?;
    let expected = expected.clamp(from, last);
    let mut fits = |at: usize| {
        lines[at..at + wanted.len()].iter().zip(wanted).all(|(line, wanted)| {
            *looks = looks.saturating_sub(1);
            *looks > 0 && line == wanted
        })
    };
    // Outwards from where it should be, one step before and one after.
    for away in 0..=(expected - from).max(last - expected) {
        let before = expected.checked_sub(away).filter(|&at| at >= from);
        let after = Some(expected + away).filter(|&at| at <= last);
        if let Some(at) = before.into_iter().chain(after).find(|&at| fits(at)) {
            return Some(at);
        }
    }
    None
}

fn misfit(number: usize, hunk: &Hunk, lines: &[&[u8]], expected: usize) -> String {
    let shown = |line: &[u8]| {
        let text: String = String::from_utf8_lossy(line).trim_end_matches('\n').chars().take(80).collect();
        format!("{text:?}")
    };
    for (offset, wanted) in hunk.old.iter().enumerate() {
        match lines.get(expected + offset) {
            Some(line) if line == wanted => {}
            Some(line) => {
                let (line_number, wanted, line) = (expected + offset + 1, shown(wanted), shown(line));
                return format!("hunk {number} expects {wanted} as line {line_number}, which is {line}");
            }
            None => {
                let count = lines.len();
                return format!("hunk {number} expects {} after the last of {count} lines", shown(wanted));
            }
        }
    }
    format!("hunk {number} overlaps the one before it")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn applied(before: &str, patch: &str) -> Result<String, String> {
        let patches = parse(patch, Some("f"))?;
        patches[0].apply(before.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    const PATCH: &str = "@@ -2,3 +2,3 @@ fn x\n b\n-c\n+C\n d\n";

    #[test]
    fn a_hunk_is_applied_where_it_says_or_where_its_lines_are() {
        assert_eq!(applied("a\nb\nc\nd\ne\n", PATCH).unwrap(), "a\nb\nC\nd\ne\n");
        assert_eq!(applied("b\nc\nd\n", PATCH).unwrap(), "b\nC\nd\n");
        assert_eq!(applied("1\n2\n3\n4\nb\nc\nd\n", PATCH).unwrap(), "1\n2\n3\n4\nb\nC\nd\n");
        let why = applied("a\nb\nX\nd\n", PATCH).unwrap_err();
        assert!(why.contains("hunk 1 expects \"c\" as line 3, which is \"X\""), "{why}");
        assert!(applied("a\n", PATCH).unwrap_err().contains("after the last of 1 lines"));
    }

    #[test]
    fn a_place_is_not_looked_for_for_ever() {
        let text = "\n".repeat(200_000);
        let hunk = format!("@@ -1,100001 +1,100001 @@\n{}-x\n+y\n", " \n".repeat(100_000));
        assert!(applied(&text, &hunk).is_err());
    }

    #[test]
    fn files_are_made_removed_and_end_without_a_newline() {
        let made = "diff --git a/x b/x\nnew file mode 100755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+hi\n\
                    \\ No newline at end of file\n";
        let patches = parse(made, None).unwrap();
        assert_eq!(
            (&patches[0].old, patches[0].new.as_deref(), patches[0].mode),
            (&None, Some("x"), Some(0o755))
        );
        assert_eq!(patches[0].apply(b"").unwrap(), b"hi");
        let removed = "--- a/x\t2020-01-01\n+++ /dev/null\n@@ -1 +0,0 @@\n-hi\n";
        let patches = parse(removed, None).unwrap();
        assert_eq!((patches[0].old.as_deref(), &patches[0].new), (Some("x"), &None));
        assert_eq!(patches[0].apply(b"hi\n").unwrap(), b"");
    }

    #[test]
    fn several_files_each_have_their_names() {
        let text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n";
        let names: Vec<_> = parse(text, None).unwrap().into_iter().map(|patch| patch.new.unwrap()).collect();
        assert_eq!(names, ["x", "y"]);
        assert!(parse(text, Some("z")).unwrap_err().contains("2 files"));
        let plain = "--- x.orig\n+++ x\n@@ -1 +1 @@\n-a\n+b\n";
        let patches = parse(plain, None).unwrap();
        assert_eq!((patches[0].old.as_deref(), patches[0].new.as_deref()), (Some("x.orig"), Some("x")));
    }

    #[test]
    fn files_without_hunks_are_made_removed_and_get_their_modes() {
        let text = "diff --git a/e f b/e f\nnew file mode 100755\nindex 0000000..e69de29\n\
                    diff --git \"a/\\303\\244\" \"b/\\303\\244\"\ndeleted file mode 100644\nindex e69de29..0000000\n\
                    diff --git a/x b/x\nold mode 100644\nnew mode 100755\n\
                    diff --git a/y b/y\nindex 7898192..6178079 100644\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n\
                    diff --git a/z b/z\n";
        let said: Vec<_> = parse(text, None)
            .unwrap()
            .into_iter()
            .map(|patch| (patch.old, patch.new, patch.mode, patch.hunks.len()))
            .collect();
        let name = |name: &str| Some(name.to_owned());
        let expected = [
            (None, name("e f"), Some(0o755), 0),
            (name("ä"), None, None, 0),
            (name("x"), name("x"), Some(0o755), 0),
            (name("y"), name("y"), None, 1),
        ];
        assert_eq!(said, expected);
        let elsewhere = parse("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", Some("f")).unwrap();
        assert_eq!(elsewhere[0].new.as_deref(), Some("f"));
        assert!(parse("diff --git a/x b/y\nold mode 100644\nnew mode 100755\n", None).is_err());
    }

    #[test]
    fn names_in_quotes_are_read_as_git_writes_them() {
        let text =
            "--- \"a/\\303\\244\\t\\\"\\\\.txt\"\n+++ \"b/\\303\\244\\t\\\"\\\\.txt\"\n@@ -1 +1 @@\n-a\n+b\n";
        assert_eq!(parse(text, None).unwrap()[0].new.as_deref(), Some("ä\t\"\\.txt"));
    }

    #[test]
    fn a_removed_line_that_looks_like_a_name_is_a_line() {
        let text = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n keep\n";
        assert_eq!(parse(text, None).unwrap()[0].apply(b"-- old\nkeep\n").unwrap(), b"++ new\nkeep\n");
    }

    #[test]
    fn what_is_no_patch_is_refused_with_the_line() {
        for (text, why) in [
            ("", "no hunk"),
            ("hello\n", "no hunk"),
            ("@@ nonsense\n", "line 1: a hunk begins"),
            ("--- a/x\n+++ b/x\n", "line 3: a hunk"),
            ("@@ -1,2 +1,1 @@\n a\n", "ends before them"),
            ("@@ -1,1 +1,1 @@\n-a\n-b\n", "line 3 is one too many"),
            ("@@ -1,2 +1,2 @@\n a\n*b\n", "line 3 is none of them"),
            ("--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+a\n", "nothing into nothing"),
            ("diff --git a/x b/y\nrename from x\nrename to y\n", "renames"),
            ("diff --git a/x b/y\ncopy from x\ncopy to y\n--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "copies"),
            (
                "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n",
                "line 2: it is about a symbolic link",
            ),
            ("diff --git a/x b/x\nold mode 100644\nnew mode 1007x\n", "no mode"),
            ("--- \"a/\\9\"\n+++ \"b/x\"\n@@ -1 +1 @@\n-a\n+b\n", "a name in quotes"),
            ("Binary files a/x and b/x differ\n", "binary"),
        ] {
            let said = parse(text, Some("f")).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
        assert!(parse(PATCH, None).unwrap_err().contains("no `path`"));
    }

    proptest! {
        #[test]
        fn what_another_program_says_of_two_texts_leads_from_one_to_the_other(
            before in "([abc]?\n){0,12}[ab]?", after in "([abc]?\n){0,12}[ab]?",
        ) {
            let diff = similar::TextDiff::from_lines(&before, &after);
            let text = diff.unified_diff().context_radius(2).header("a/f", "b/f").to_string();
            if before != after {
                let patches = parse(&text, None).unwrap();
                prop_assert_eq!(patches[0].apply(before.as_bytes()), Ok(after.into_bytes()), "{}", text);
            }
        }

        #[test]
        fn no_text_makes_the_reader_panic(
            text in "((diff --git |old mode |new mode |new file mode |deleted file mode |[-+ @\\\\\"]{0,3})[-a/0-9, @\\\\\"]{0,8}\n?){0,12}", before in "([ab]\n){0,4}",
        ) {
            for path in [None, Some("f")] {
                for patch in parse(&text, path).unwrap_or_default() {
                    let _ = patch.apply(before.as_bytes());
                }
            }
        }
    }
}
