//! The answer of a tool.

use glasshouse_protocol::{Exit, ExitReport};
use glasshouse_trace::Gap;
use serde_json::{Value, json};

use crate::exec::{ExecOutput, Kept};

/// What became of a call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolResult {
    /// What whoever called reads: `stdout`, followed by `stderr` if there is any.
    pub output: String,
    /// What the tool found or the program wrote. Where a part was left out, a line says so.
    pub stdout: String,
    /// What the program said beside that, or a remark of the tool's. It is no sign of failure.
    pub stderr: String,
    /// 0 if it worked. Of a program, its code as a shell would tell it; 1 if a tool could not do what it was asked for,
    /// 2 if it was asked wrongly.
    pub exit_code: i32,
    /// What failed, in one sentence; nothing if nothing failed.
    pub error: Option<String>,
    /// The code is 0.
    pub success: bool,
    /// How the program ended, if one ran.
    pub end: Option<ExitReport>,
    /// The number of the program's command in the box, if one ran.
    pub exec: Option<u64>,
    /// Where in `stdout` something was left out. Whoever puts the answer on record looks there for parts of secrets.
    pub stdout_gaps: Vec<Gap>,
    /// The same of `stderr`.
    pub stderr_gaps: Vec<Gap>,
}

impl ToolResult {
    /// It worked.
    pub fn done(stdout: impl Into<String>) -> ToolResult {
        ToolResult::remarked(stdout, String::new())
    }

    /// It worked, and there is something to say about it.
    pub fn remarked(stdout: impl Into<String>, remark: impl Into<String>) -> ToolResult {
        let (stdout, stderr) = (stdout.into(), remark.into());
        ToolResult {
            output: joined(&stdout, &stderr),
            stdout,
            stderr,
            success: true,
            ..ToolResult::default()
        }
    }

    /// It did not.
    pub fn failed(exit_code: i32, error: impl Into<String>) -> ToolResult {
        ToolResult { exit_code, error: Some(error.into()), ..ToolResult::default() }
    }

    /// A program ran to its end.
    pub(super) fn of(ran: ExecOutput) -> ToolResult {
        let ((stdout, stdout_gap), (stderr, stderr_gap)) =
            (ran.stdout.to_text_with_gap(), ran.stderr.to_text_with_gap());
        let exit = &ran.report.exit;
        let error = match exit {
            Exit::Code { code: 0 } => None,
            exit => Some(exit.to_string()),
        };
        let exit_code = exit.shell_code();
        ToolResult {
            output: joined(&stdout, &stderr),
            stdout,
            stderr,
            exit_code,
            error,
            success: exit_code == 0,
            exec: Some(ran.exec),
            end: Some(ran.report),
            stdout_gaps: Vec::from_iter(stdout_gap),
            stderr_gaps: Vec::from_iter(stderr_gap),
        }
    }

    /// Everything, as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "output": self.output, "stdout": self.stdout, "stderr": self.stderr, "exit_code": self.exit_code,
            "error": self.error, "success": self.success, "exec": self.exec, "end": self.end,
        })
    }
}

/// One after the other, each on lines of its own.
fn joined(stdout: &str, stderr: &str) -> String {
    let newline = if stdout.is_empty() || stderr.is_empty() || stdout.ends_with('\n') { "" } else { "\n" };
    [stdout, newline, stderr].concat()
}

impl Kept {
    /// As text, with a line where something is missing. Bytes that are none become U+FFFD.
    pub fn to_text(&self) -> String {
        self.to_text_with_gap().0
    }

    /// The same, and where something is missing.
    fn to_text_with_gap(&self) -> (String, Option<Gap>) {
        let Some(at) = self.gap_at else { return (String::from_utf8_lossy(&self.bytes).into_owned(), None) };
        let (head, tail) = self.bytes.split_at(at.min(self.bytes.len()));
        let missing = self.total.saturating_sub(self.bytes.len() as u64);
        let (head, tail) = (without_partial_end(head), without_partial_start(tail));
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
        let words = format!("\n[{missing} bytes were left out here]\n");
        let place = head.len()..head.len() + words.len();
        (format!("{head}{words}{tail}"), Some(Gap { place, goes_on: true }))
    }
}

/// Without the beginning of a character that was cut off.
pub(super) fn without_partial_end(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => &bytes[..e.valid_up_to()],
        // Text that is not UTF-8 throughout is cut where it is cut.
        _ => bytes,
    }
}

fn without_partial_start(bytes: &[u8]) -> &[u8] {
    let partial = bytes.iter().take(3).take_while(|&&byte| byte & 0xc0 == 0x80).count();
    &bytes[partial..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(exit: Exit, stdout: &[u8], stderr: &[u8]) -> ToolResult {
        let kept = |bytes: &[u8]| Kept { bytes: bytes.to_vec(), total: bytes.len() as u64, gap_at: None };
        let report = ExitReport::never_ran(exit);
        ToolResult::of(ExecOutput {
            exec: 3,
            report,
            stdout: kept(stdout),
            stderr: kept(stderr),
            results: Vec::new(),
        })
    }

    #[test]
    fn a_word_on_stderr_is_no_failure() {
        let result = ran(Exit::Code { code: 0 }, b"out", b"warning\n");
        assert!(result.success && result.error.is_none());
        assert_eq!((result.output.as_str(), result.exec), ("out\nwarning\n", Some(3)));
    }

    #[test]
    fn a_code_is_a_failure_without_a_word() {
        let result = ran(Exit::Code { code: 3 }, b"", b"");
        assert_eq!(
            (result.success, result.exit_code, result.error.as_deref()),
            (false, 3, Some("exit code 3"))
        );
    }

    #[test]
    fn a_gap_is_told_where_it_is() {
        let kept = Kept { bytes: "aä".bytes().take(2).chain(*b"zz").collect(), total: 100, gap_at: Some(2) };
        assert_eq!(kept.to_text(), "a\n[96 bytes were left out here]\nzz");
        let gap = kept.to_text_with_gap().1.unwrap();
        assert_eq!(&kept.to_text()[gap.place], "\n[96 bytes were left out here]\n");
    }
}
