//! Looking into files, and showing the lines that match.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags, openat};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};

use crate::Ask;
use crate::walk::Candidate;

/// A pattern that would need more memory than this is refused.
const PATTERN_BYTES_MAX: usize = 10 << 20;
/// A file with a longer line is left.
const LINE_BYTES_MAX: usize = 8 << 20;
/// What is shown of a long line.
const LINE_BYTES_SHOWN: usize = 1000;

/// What looks into files.
pub(crate) struct Found<W> {
    matcher: RegexMatcher,
    searcher: Searcher,
    /// Names are asked for, and any will do.
    everything: bool,
    shelf: Shelf<W>,
}

/// What is shown, and how much more may be.
struct Shelf<W> {
    out: W,
    files_only: bool,
    /// Lines around results are shown as well.
    context: bool,
    left: u64,
    more: bool,
    broke: bool,
    /// Something was shown, so that what comes next is set apart if there are lines around it.
    shown: bool,
}

/// Why a look came to nothing.
pub(crate) enum Failed {
    /// Nobody reads what is shown.
    Output,
    /// The file could not be read.
    File(String),
}

/// What is wrong, of a message that shows the place in lines of its own.
fn last_words(message: &str) -> &str {
    let last = message.lines().rfind(|line| !line.trim().is_empty()).unwrap_or(message).trim();
    last.strip_prefix("error: ").unwrap_or(last)
}

impl<W: Write> Found<W> {
    pub(crate) fn new(ask: &Ask, out: W) -> Result<Found<W>, String> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(ask.ignore_case)
            .fixed_strings(ask.literal)
            .line_terminator(Some(b'\n'))
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_BYTES_MAX)
            .build(&ask.pattern)
            .map_err(|e| format!("`pattern` cannot be used: {}", last_words(&e.to_string())))?;
        let around = if ask.files_only { 0 } else { ask.context };
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_BYTES_MAX))
            .before_context(around)
            .after_context(around)
            .build();
        let everything = ask.files_only && ask.pattern.is_empty();
        let shelf = Shelf {
            out,
            files_only: ask.files_only,
            context: around > 0,
            left: ask.max_results,
            more: false,
            broke: false,
            shown: false,
        };
        Ok(Found { matcher, searcher, everything, shelf })
    }

    /// Looks into a file. Whether to go on.
    pub(crate) fn look_into(&mut self, file: &Candidate) -> Result<bool, Failed> {
        let name = plain(&file.path.to_string_lossy());
        if self.everything {
            self.shelf.line(format_args!("{name}\n"));
        } else {
            let opened = open(&file.path).map_err(|e| Failed::File(format!("cannot read {name}: {e}")))?;
            let Some(opened) = opened else { return Ok(true) };
            let mut page = Page { shelf: &mut self.shelf, name: &name, fresh: true };
            let searched = self.searcher.search_file(&self.matcher, &opened, &mut page);
            if let Err(e) = searched
                && !self.shelf.broke
            {
                return Err(Failed::File(format!("cannot read all of {name}: {e}")));
            }
        }
        if self.shelf.broke { Err(Failed::Output) } else { Ok(!self.shelf.more) }
    }

    /// Whether there was more than is shown.
    pub(crate) fn finish(mut self) -> bool {
        // There is nobody to tell if it cannot be written.
        let _ = self.shelf.out.flush();
        self.shelf.more
    }
}

impl<W: Write> Shelf<W> {
    /// Shows one result, if there is room. Whether there was.
    fn line(&mut self, text: std::fmt::Arguments<'_>) -> bool {
        if self.left == 0 {
            self.more = true;
            return false;
        }
        self.left -= 1;
        self.beside(text)
    }

    fn beside(&mut self, text: std::fmt::Arguments<'_>) -> bool {
        self.broke |= self.out.write_fmt(text).is_err();
        self.shown = true;
        !self.broke
    }
}

/// One file's lines.
struct Page<'a, W> {
    shelf: &'a mut Shelf<W>,
    name: &'a str,
    fresh: bool,
}

impl<W: Write> Sink for Page<'_, W> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.set_apart();
        let name = self.name;
        if self.shelf.files_only {
            self.shelf.line(format_args!("{name}\n"));
            return Ok(false);
        }
        let (number, text) = (found.line_number().unwrap_or(0), shown(found.bytes()));
        Ok(self.shelf.line(format_args!("{name}:{number}:{text}\n")))
    }

    fn context(&mut self, _: &Searcher, around: &SinkContext<'_>) -> io::Result<bool> {
        if self.is_beyond(around.kind()) {
            return Ok(false);
        }
        self.set_apart();
        let (name, number, text) = (self.name, around.line_number().unwrap_or(0), shown(around.bytes()));
        Ok(self.shelf.beside(format_args!("{name}-{number}-{text}\n")))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        // A gap comes before a result, and its lines.
        if self.is_beyond(&SinkContextKind::Before) {
            return Ok(false);
        }
        Ok(self.shelf.beside(format_args!("--\n")))
    }
}

impl<W: Write> Page<'_, W> {
    /// Whether a line belongs to a result for which there is no room: one that comes before a result when all that may
    /// be shown are. Those that come after the last one are its own.
    fn is_beyond(&mut self, kind: &SinkContextKind) -> bool {
        let beyond = self.shelf.left == 0 && *kind == SinkContextKind::Before;
        self.shelf.more |= beyond;
        beyond
    }

    /// Between files with lines around their results there is a line as between such results.
    fn set_apart(&mut self) {
        if std::mem::take(&mut self.fresh) && self.shelf.context && self.shelf.shown && self.shelf.left > 0 {
            self.shelf.beside(format_args!("--\n"));
        }
    }
}

/// Opens a file to read it. None: it is no file any more.
fn open(path: &Path) -> io::Result<Option<File>> {
    // What a directory calls a file may have a device mounted over it, which should not even be opened.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    // Not waiting: what was a file a moment ago may be a pipe by now.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(openat(CWD, path, flags, Mode::empty())?);
    let is_file = file.metadata()?.is_file();
    Ok(is_file.then_some(file))
}

/// A name that cannot break its line.
fn plain(name: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    name.chars().map(escaped).collect()
}

/// A line without its end, and not all of one that is very long.
fn shown(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() <= LINE_BYTES_SHOWN {
        return String::from_utf8_lossy(line).into_owned();
    }
    let text = String::from_utf8_lossy(&line[..LINE_BYTES_SHOWN]);
    format!("{} [… {} bytes]", text.trim_end_matches('\u{fffd}'), line.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_around_a_result_are_shown_only_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let text = "a\nx1\nb\nc\nd\nx2\ne\n";
        for name in ["one", "two"] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let shown = |context: usize, most: u64| {
            let ask = format!(r#"{{"pattern": "x", "context": {context}, "max_results": {most}}}"#);
            let mut out = Vec::new();
            let mut found = Found::new(&Ask::read(&ask).unwrap(), &mut out).unwrap();
            for name in ["one", "two"] {
                let path = dir.path().join(name);
                match found.look_into(&Candidate { path }) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => panic!("both can be read"),
                }
            }
            let more = found.finish();
            let place = format!("{}/", dir.path().display());
            (
                String::from_utf8(out)
                    .unwrap()
                    .replace(&place, "")
                    .lines()
                    .map(str::to_owned)
                    .collect::<Vec<_>>(),
                more,
            )
        };
        let one = ["one-1-a", "one:2:x1", "one-3-b"];
        let two = ["one-5-d", "one:6:x2", "one-7-e"];
        assert_eq!(shown(1, 1), (one.map(str::to_owned).to_vec(), true));
        assert_eq!(
            shown(1, 2),
            ([&one[..], &["--"], &two].concat().iter().map(|s| s.to_string()).collect(), true)
        );
        // Where the lines of two results touch, those after the first are still its own.
        assert_eq!(shown(3, 1).0, ["one-1-a", "one:2:x1", "one-3-b", "one-4-c", "one-5-d"]);
        assert_eq!(shown(2, 1).0, ["one-1-a", "one:2:x1", "one-3-b", "one-4-c"]);
        assert!(!shown(1, 4).1);
    }

    #[test]
    fn a_pattern_that_is_none_gets_one_sentence() {
        let ask = |pattern: &str| format!(r#"{{"pattern": {pattern:?}}}"#);
        for (pattern, why) in [("(", "unclosed group"), ("[z-a]", "invalid character class range")] {
            let ask = Ask::read(&ask(pattern)).unwrap();
            let said = Found::new(&ask, Vec::new()).err().unwrap();
            assert!(said.starts_with("`pattern` cannot be used: ") && said.contains(why), "{said}");
            assert!(!said.contains('\n'), "{said}");
        }
    }
}
