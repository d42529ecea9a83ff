//! What `glass` itself says: results to stdout, words to stderr. The output of boxes goes through `outlet`.

use std::fmt::Write as _;
use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::{ExecOutput, ExitReport, Kept};
use serde_json::{Map, Value, json};

use crate::escape::{is_unsafe, plain};
use crate::words::shortened;

/// Writes lines to stdout, with their colours if it shows any.
pub(crate) fn print(lines: impl IntoIterator<Item = impl AsRef<str>>) -> Result<()> {
    let mut out = anstream::AutoStream::auto(io::stdout()).lock();
    lines
        .into_iter()
        .try_for_each(|line| writeln!(out, "{}", line.as_ref()))
        .and_then(|()| out.flush())
        .context(WRITE)
}

/// Writes a value to stdout, on one line.
pub(crate) fn print_json(value: &Value) -> Result<()> {
    print_bytes(format!("{}\n", safe_json(&value.to_string())).as_bytes())
}

/// Writes bytes of ours to stdout.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context(WRITE)
}

/// What cannot be done with a stdout that is full or broken.
pub(crate) const WRITE: &str = "cannot write to stdout";

/// Says a sentence on stderr. It may hold words of a box's.
pub(crate) fn say(sentence: &str) {
    // There is nobody to tell if stderr is closed.
    let _ = writeln!(io::stderr(), "glass: {}", plain(sentence));
}

/// Passes on a line of somebody else's on stderr.
pub(crate) fn say_beside(line: &str) {
    let _ = writeln!(io::stderr(), "  {}", plain(line));
}

/// Characters of a sentence: an error may hold names that a box has made as long as it liked.
const SENTENCE_CHARS_MAX: usize = 4000;

/// An error with its causes, as one sentence. A cause that the sentence names already is not named again.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if out.is_empty() {
            out = text;
        } else if !out.contains(&text) {
            let _ = write!(out, ": {text}");
        }
    }
    shortened(&out, SENTENCE_CHARS_MAX).into_owned()
}

/// Whether nobody reads our output any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    // Other pipes break too; only what we said of stdout is about stdout.
    error.chain().any(|cause| cause.to_string() == WRITE) && error.chain().any(pipe)
}

/// A command that ran, with its output.
pub(crate) fn exec_json(output: &ExecOutput) -> Value {
    let mut object = report_json(output.exec, &output.report);
    put_kept(&mut object, "stdout", &output.stdout);
    put_kept(&mut object, "stderr", &output.stderr);
    let truncated = output.stdout.gap_at.is_some() || output.stderr.gap_at.is_some();
    object.insert("truncated".to_owned(), truncated.into());
    if !output.results.is_empty() {
        object.insert("results".to_owned(), output.results.iter().map(crate::code::json).collect());
    }
    Value::Object(object)
}

/// The end of a command.
pub(crate) fn report_json(exec: u64, report: &ExitReport) -> Map<String, Value> {
    let value = json!({
        "exec": exec,
        "exit": report.exit,
        "wall_ms": report.wall_us / 1000,
        "wall_us": report.wall_us,
        "cpu_ms": report.cpu_us / 1000,
        "cpu_us": report.cpu_us,
        "peak_memory_bytes": report.peak_memory_bytes,
        "stdout_bytes": report.stdout_bytes,
        "stderr_bytes": report.stderr_bytes,
        "oom_kills": report.oom_kills,
    });
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// Text if it is text, else base64, and which of the two. What was cut out is at `…_gap_at`, in bytes.
fn put_kept(object: &mut Map<String, Value>, name: &str, kept: &Kept) {
    let (head, tail) = kept.bytes.split_at(kept.gap_at.unwrap_or(0).min(kept.bytes.len()));
    // The cut may have gone through a character.
    let (head, tail) = match kept.gap_at {
        Some(_) => (without_partial_end(head), without_partial_start(tail)),
        None => (head, tail),
    };
    let (encoding, text, gap_at) = match (std::str::from_utf8(head), std::str::from_utf8(tail)) {
        (Ok(head_text), Ok(tail_text)) => ("utf-8", format!("{head_text}{tail_text}"), head.len()),
        _ => ("base64", STANDARD.encode(&kept.bytes), kept.gap_at.unwrap_or(0)),
    };
    object.insert(name.to_owned(), text.into());
    object.insert(format!("{name}_encoding"), encoding.into());
    if kept.gap_at.is_some() {
        object.insert(format!("{name}_gap_at"), gap_at.into());
    }
}

fn without_partial_end(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(e) if e.error_len().is_none() => &bytes[..e.valid_up_to()],
        _ => bytes,
    }
}

fn without_partial_start(bytes: &[u8]) -> &[u8] {
    let partial = bytes.iter().take(3).take_while(|&&b| b & 0xc0 == 0x80).count();
    &bytes[partial..]
}

/// A document of JSON, of one line or of many, that says the same without a character that a terminal acts on.
pub(crate) fn safe_document(json: &[u8]) -> Vec<u8> {
    safe_json(&String::from_utf8_lossy(json)).into_bytes()
}

/// JSON that says the same without a character that a terminal acts on. Ends of lines aside, these can only be inside
/// of strings.
fn safe_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if is_unsafe(char) && char != '\n' {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(char);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use glasshouse_sandbox::Exit;

    use super::*;

    fn kept(bytes: &[u8]) -> Kept {
        Kept { bytes: bytes.to_vec(), total: bytes.len() as u64, gap_at: None }
    }

    fn output(stdout: Kept, stderr: Kept) -> ExecOutput {
        let report =
            ExitReport { wall_us: 1500, cpu_us: 500, ..ExitReport::never_ran(Exit::Code { code: 0 }) };
        ExecOutput { exec: 7, report, stdout, stderr, results: Vec::new() }
    }

    #[test]
    fn an_exec_has_the_promised_fields() {
        let value = exec_json(&output(kept(b"out\n"), kept(b"")));
        let expected = json!({
            "exec": 7, "exit": {"kind": "code", "code": 0}, "stdout": "out\n", "stdout_encoding": "utf-8",
            "stderr": "", "stderr_encoding": "utf-8", "truncated": false,
            "wall_ms": 1, "wall_us": 1500, "cpu_ms": 0, "cpu_us": 500,
            "peak_memory_bytes": 0, "stdout_bytes": 0, "stderr_bytes": 0, "oom_kills": 0,
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn bytes_that_are_no_text_come_as_base64_and_say_so() {
        let value = exec_json(&output(kept(b"\xff\x00\x01"), kept(b"text")));
        assert_eq!((&value["stdout"], &value["stdout_encoding"]), (&json!("/wAB"), &json!("base64")));
        assert_eq!((&value["stderr"], &value["stderr_encoding"]), (&json!("text"), &json!("utf-8")));
    }

    #[test]
    fn a_cut_through_a_character_leaves_text() {
        let mut bytes = "aä".as_bytes()[..2].to_vec();
        bytes.extend_from_slice(&"äb".as_bytes()[1..]);
        let stdout = Kept { bytes, total: 1000, gap_at: Some(2) };
        let value = exec_json(&output(stdout, kept(b"")));
        assert_eq!((&value["stdout"], &value["stdout_gap_at"]), (&json!("ab"), &json!(1)));
        assert_eq!(value["truncated"], json!(true));
    }

    #[test]
    fn json_says_the_same_without_controls() {
        let text = "\u{7f}\u{9b}\u{2028}\u{e0041}\n\0";
        let json = safe_json(&json!(text).to_string());
        assert!(json.is_ascii());
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        let value = json!({ "a": [text] });
        let document = safe_document(serde_json::to_string_pretty(&value).unwrap().as_bytes());
        assert!(document.is_ascii() && document.starts_with(b"{\n"));
        assert_eq!(serde_json::from_slice::<Value>(&document).unwrap(), value);
    }

    #[test]
    fn a_cause_is_named_once() {
        let io = io::Error::other("no luck");
        let error = anyhow::Error::new(io).context("cannot open x: no luck");
        assert_eq!(sentence(&error), "cannot open x: no luck");
        let error = anyhow::anyhow!("no luck").context("cannot open x");
        assert_eq!(sentence(&error), "cannot open x: no luck");
    }

    #[test]
    fn a_sentence_has_an_end_whatever_it_names() {
        let error = anyhow::anyhow!("no luck").context(format!("cannot open {}", "d/".repeat(100_000)));
        let said = sentence(&error);
        assert_eq!(said.chars().count(), SENTENCE_CHARS_MAX);
        assert!(said.starts_with("cannot open d/") && said.ends_with("d/: no luck"), "{said}");
    }
}
