//! What a kernel shows, as the line of JSON that a result is: text is text, base64 stays base64, JSON becomes text of JSON.

use serde_json::{Map, Value, json};

/// Lines of a traceback that are told, and their characters; the same as of a Python context.
const TRACEBACK_LINES_MAX: usize = 400;
const TRACEBACK_CHARS_MAX: usize = 65_536;
/// What a line has at least, however many characters are left.
const LINE_CHARS_MIN: usize = 200;

/// The value of the last expression.
pub(crate) fn value(content: &Value) -> Vec<u8> {
    line(&json!({ "value": bundle(content) }))
}

/// What was shown.
pub(crate) fn display(content: &Value) -> Vec<u8> {
    line(&json!({ "display": bundle(content) }))
}

/// What a pager would show, which is coloured for a terminal.
pub(crate) fn page(content: &Value) -> Vec<u8> {
    let mut bundle = bundle(content);
    if let Some(Value::String(text)) = bundle["data"].get_mut("text/plain") {
        *text = plain(text);
    }
    line(&json!({ "display": bundle }))
}

/// Why code failed.
pub(crate) fn error(content: &Value) -> Vec<u8> {
    let text = |name: &str| plain(content.get(name).and_then(Value::as_str).unwrap_or_default());
    let traceback = content.get("traceback").and_then(Value::as_array);
    let told = traceback.into_iter().flatten().filter_map(Value::as_str);
    let lines: Vec<String> =
        told.flat_map(|part| plain(part).lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let value: String = text("evalue").chars().take(TRACEBACK_CHARS_MAX).collect();
    line(&json!({ "error": { "name": text("ename"), "value": value, "traceback": bounded(lines) } }))
}

fn line(result: &Value) -> Vec<u8> {
    let mut line = result.to_string().into_bytes();
    line.push(b'\n');
    line
}

fn bundle(content: &Value) -> Value {
    let data = content.get("data").and_then(Value::as_object);
    let data =
        data.into_iter().flatten().map(|(mime, shape)| (mime.clone(), Value::String(shown(mime, shape))));
    let mut bundle = json!({ "data": data.collect::<Map<_, _>>() });
    let metadata = content.get("metadata").and_then(Value::as_object).filter(|said| !said.is_empty());
    if let Some(said) = metadata {
        bundle["metadata"] = Value::String(Value::Object(said.clone()).to_string());
    }
    bundle
}

fn shown(mime: &str, shape: &Value) -> String {
    let is_bytes = mime.starts_with("image/") && mime != "image/svg+xml" || mime == "application/pdf";
    match shape {
        // Some write it in lines.
        Value::String(text) if is_bytes => text.split_ascii_whitespace().collect(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Head and tail of a traceback that is too long.
fn bounded(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > TRACEBACK_LINES_MAX {
        let half = TRACEBACK_LINES_MAX / 2;
        let left_out = lines.len() - 2 * half;
        let note = format!("  [{left_out} lines are left out]");
        lines.splice(half..half + left_out, [note]);
    }
    let mut room = TRACEBACK_CHARS_MAX;
    for line in &mut lines {
        *line = line.chars().take(room.max(LINE_CHARS_MIN)).collect();
        room = room.saturating_sub(line.chars().count());
    }
    lines
}

/// A text without the sequences that colour it in a terminal.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            plain.push(c);
            continue;
        }
        match chars.next() {
            // ESC [ … a letter, or the like.
            Some('[') => drop(chars.find(|c| ('\u{40}'..='\u{7e}').contains(c))),
            // ESC ] … BEL, or ESC \.
            Some(']') => {
                let end = chars.find(|c| matches!(c, '\u{7}' | '\u{1b}'));
                let _backslash = end.filter(|&c| c == '\u{1b}').and_then(|_| chars.next());
            }
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: Vec<u8>) -> Value {
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice(&line).expect("a result is JSON")
    }

    #[test]
    fn shapes_cross_as_text() {
        let content = json!({
            "data": {"text/plain": "x\ny", "application/json": {"a": [1]}, "image/png": "aGk\n=\n", "image/svg+xml": "<a b>"},
            "metadata": {"image/png": {"width": 1}}, "transient": {},
        });
        let data = json!({
            "text/plain": "x\ny", "application/json": r#"{"a":[1]}"#, "image/png": "aGk=", "image/svg+xml": "<a b>",
        });
        let metadata = r#"{"image/png":{"width":1}}"#;
        assert_eq!(told(value(&content)), json!({"value": {"data": data, "metadata": metadata}}));
        assert_eq!(told(display(&Value::Null)), json!({"display": {"data": {}}}));
        let coloured = json!({"data": {"text/plain": "\u{1b}[31mx"}});
        assert_eq!(told(page(&coloured)), json!({"display": {"data": {"text/plain": "x"}}}));
    }

    #[test]
    fn an_error_has_plain_lines() {
        let traceback =
            ["\u{1b}[31mA\u{1b}[39;49;00m\nb\u{1b}]8;;x\u{7}c", "\u{1b}]0;t\u{1b}\\d\u{1b}(", "\u{1b}["];
        let content = json!({"ename": "E", "evalue": "\u{1b}[1mv", "traceback": traceback});
        let expected = json!({"error": {"name": "E", "value": "v", "traceback": ["A", "bc", "d"]}});
        assert_eq!(told(error(&content)), expected);
    }

    #[test]
    fn a_long_traceback_is_cut_in_the_middle() {
        let lines: Vec<String> = (0..1000).map(|n| format!("{n} {}", "x".repeat(1000))).collect();
        let told = bounded(lines);
        assert_eq!(told.len(), TRACEBACK_LINES_MAX + 1);
        assert_eq!(told[200], "  [600 lines are left out]");
        assert!(told[400].starts_with("999 ") && told[400].chars().count() == LINE_CHARS_MIN);
    }
}
