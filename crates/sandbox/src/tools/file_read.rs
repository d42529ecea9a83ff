//! `file_read`: the text of a file, or some lines of it.

use glasshouse_trace::Gap;
use serde_json::json;

use super::info::ToolInfo;
use super::result::{ToolResult, without_partial_end};
use super::schema::Params;
use crate::error::Result;
use crate::limits::TOOL_OUTPUT_BYTES;
use crate::sandbox::Sandbox;

/// Read at once while lines are counted.
const PIECE_BYTES: u64 = 1 << 20;
/// Lines are counted so far into a file, and no further.
const SCAN_BYTES: u64 = 256 << 20;
/// A zero byte in the first of them says that a file is no text.
const FIRST_BYTES: usize = 8 << 10;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_read",
        "Read a text file of the box, or the lines from start_line to end_line.",
        &["path"],
        json!({
            "path": {
                "type": "string", "minLength": 1,
                "description": "Which file; relative to the working directory of the box",
            },
            "start_line": {
                "type": "integer", "minimum": 1, "default": 1,
                "description": "The first line, counted from 1",
            },
            "end_line": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "The last line, which is included; 0 is the end of the file",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let path = params.text("path");
    let (start, end) = (params.whole("start_line"), params.whole("end_line"));
    if end != 0 && start > end {
        let message = format!("file_read: `start_line` {start} comes after `end_line` {end}");
        return Ok(ToolResult::failed(super::BAD_CALL, message));
    }
    let mut lines = Lines::new(start, if end == 0 { u64::MAX } else { end });
    let mut place = 0;
    while place < SCAN_BYTES && !lines.over {
        let piece = sandbox.read_file(path, place, Some(PIECE_BYTES)).await?;
        if place == 0 && piece[..piece.len().min(FIRST_BYTES)].contains(&0) {
            let size = sandbox.stat(path, true).await?.size;
            let message =
                format!("{path} is binary ({size} bytes), not text; `shell` has programs for such files");
            return Ok(ToolResult::failed(1, message));
        }
        if piece.is_empty() {
            break;
        }
        place += piece.len() as u64;
        lines.take(&piece);
    }
    let scanned = place >= SCAN_BYTES && !lines.over;
    let size = if lines.full { sandbox.stat(path, true).await?.size } else { 0 };
    let kept = without_partial_end(&lines.kept);
    let remark = match () {
        // Who reads on from a line has to find more of it than he has seen.
        () if lines.full && lines.line <= start => format!(
            "[{path} has {size} bytes; shown are the first {} of line {start}, which has more; `tail -c +{}` in \
             `shell` shows the rest; read on behind that line from line {}]\n",
            kept.len(),
            lines.before + kept.len() as u64 + 1,
            start + 1
        ),
        () if lines.full => format!(
            "[{path} has {size} bytes; shown are {} of them; read on from line {}]\n",
            kept.len(),
            lines.line
        ),
        () if scanned => format!("[lines are counted in the first {SCAN_BYTES} bytes; use `shell` beyond]\n"),
        () if lines.kept.is_empty() && start > 1 => {
            format!("[{path} has {} lines; there is no line {start}]\n", lines.seen())
        }
        () => String::new(),
    };
    let text = String::from_utf8_lossy(kept).into_owned();
    let end = text.len();
    let mut result = ToolResult::remarked(text, remark);
    if lines.full || scanned {
        result.stdout_gaps.push(Gap { place: end..end, goes_on: false });
    }
    Ok(result)
}

/// Some lines of a file that comes in pieces.
struct Lines {
    first: u64,
    last: u64,
    /// The line that the next byte belongs to, from 1.
    line: u64,
    /// Something of that line was seen.
    begun: bool,
    /// Bytes before the first line that is wanted.
    before: u64,
    kept: Vec<u8>,
    /// More was wanted than is kept.
    full: bool,
    /// Nothing more is wanted.
    over: bool,
}

impl Lines {
    fn new(first: u64, last: u64) -> Lines {
        Lines { first, last, line: 1, begun: false, before: 0, kept: Vec::new(), full: false, over: false }
    }

    fn take(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            if self.line > self.last {
                self.over = true;
            }
            if self.over {
                return;
            }
            if self.line >= self.first {
                let room = TOOL_OUTPUT_BYTES as usize - self.kept.len();
                self.kept.extend_from_slice(&part[..part.len().min(room)]);
                if part.len() > room {
                    (self.full, self.over) = (true, true);
                    return;
                }
            } else {
                self.before += part.len() as u64;
            }
            self.begun = part.last() != Some(&b'\n');
            self.line += u64::from(!self.begun);
        }
    }

    /// How many lines there were.
    fn seen(&self) -> u64 {
        self.line - u64::from(!self.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(first: u64, last: u64, pieces: &[&str]) -> (String, u64) {
        let mut lines = Lines::new(first, last);
        pieces.iter().for_each(|piece| lines.take(piece.as_bytes()));
        let seen = lines.seen();
        (String::from_utf8(lines.kept).unwrap(), seen)
    }

    #[test]
    fn lines_are_counted_from_one_whatever_the_pieces() {
        for pieces in [&["a\nb\nc\nd"][..], &["a", "\n", "b\nc", "\nd"], &["a\n", "", "b\n", "c\n", "d"]] {
            assert_eq!(lines(1, u64::MAX, pieces), ("a\nb\nc\nd".to_owned(), 4));
            assert_eq!(lines(2, 3, pieces).0, "b\nc\n");
            assert_eq!(lines(1, 2, pieces).0, "a\nb\n");
            assert_eq!(lines(4, 9, pieces).0, "d");
            assert_eq!(lines(5, 9, pieces), (String::new(), 4));
        }
        assert_eq!(lines(1, 9, &[]), (String::new(), 0));
        assert_eq!(lines(3, 3, &["a\nb\n"]), (String::new(), 2));
    }

    #[test]
    fn no_more_is_kept_than_is_shown() {
        let mut lines = Lines::new(1, u64::MAX);
        let piece = vec![b'x'; TOOL_OUTPUT_BYTES as usize];
        lines.take(&piece);
        assert!(!lines.full);
        lines.take(b"y");
        assert!(lines.full && lines.over && lines.kept.len() == piece.len());
    }
}
