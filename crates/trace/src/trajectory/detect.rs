//! Which format a file is of, told by what is in it and never by its name.

use serde_json::Value;

use super::formats::{Format, is_sdk_event};
use crate::{Error, ErrorKind, Result};

/// How many entries of a list are looked at.
const LOOKED_AT_MAX: usize = 100;

/// The format of the file whose first value this is.
pub(crate) fn detect(value: &Value) -> Result<Format> {
    let found: Vec<Format> = Format::ALL.into_iter().filter(|format| is_of(*format, value)).collect();
    match found.as_slice() {
        [format] => Ok(*format),
        [] => {
            let signs: Vec<String> =
                Format::ALL.iter().map(|format| format!("{} ({})", format.name(), sign(*format))).collect();
            let message = format!("its format is none that is known; looked for {}", signs.join("; "));
            Err(Error::new(ErrorKind::Unknown, message))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|format| format.name()).collect();
            let message = format!("its format could be {}; say which it is", names.join(" or "));
            Err(Error::new(ErrorKind::Unknown, message))
        }
    }
}

/// What a format is known by, in words.
fn sign(format: Format) -> &'static str {
    match format {
        Format::Glasshouse => "\"format\" says glasshouse-trajectory",
        Format::KnowlyrA => "steps with \"tool_name\" or \"expected_output\"",
        Format::KnowlyrB => "steps with \"tool_call\", beside a \"task\" and an \"outcome\"",
        Format::KnowlyrC => "steps with \"tool\", beside a \"task\" or an \"outcome\"",
        Format::KnowlyrD => "a list of objects with \"tool\"",
        Format::KnowlyrE => "steps, beside \"agent_framework\" or \"content_hash\"",
        Format::SweAgent => "a list \"trajectory\", or \"history\" and \"info\"",
        Format::OpenHands => "events with \"action\" or \"observation\", or with a \"kind\" like ActionEvent",
        Format::Atif => "\"schema_version\" starts with ATIF-",
    }
}

fn is_of(format: Format, value: &Value) -> bool {
    let has = |name: &str| value.get(name).is_some();
    let a_step_has = |names: &[&str]| any(value.get("steps"), names);
    // These name themselves, and so are no other.
    let named = value.get("format").and_then(Value::as_str) == Some("glasshouse-trajectory");
    let atif = value.get("schema_version").and_then(Value::as_str).is_some_and(|v| v.starts_with("ATIF-"));
    let hub = has("steps") && (has("agent_framework") || has("content_hash"));
    if named || atif || hub {
        return match format {
            Format::Glasshouse => named,
            Format::Atif => atif && !named,
            Format::KnowlyrE => hub && !named && !atif,
            _ => false,
        };
    }
    let no_steps = value.get("steps").and_then(Value::as_array).is_some_and(Vec::is_empty);
    match format {
        Format::Glasshouse | Format::Atif | Format::KnowlyrE => false,
        Format::KnowlyrA => {
            a_step_has(&["tool_name", "expected_output"]) || no_steps && !has("task") && !has("outcome")
        }
        Format::KnowlyrB => a_step_has(&["tool_call"]) || no_steps && has("task") && !is_wrapped(value),
        Format::KnowlyrC => {
            let about = has("task") || has("outcome");
            about && a_step_has(&["tool"]) || no_steps && has("task") && !is_recorded(value)
        }
        Format::KnowlyrD => {
            value.is_array() && (any(Some(value), &["tool"]) || value == &Value::Array(vec![]))
        }
        Format::SweAgent => {
            let list = |name: &str| value.get(name).is_some_and(Value::is_array);
            !has("steps") && (list("trajectory") || list("history") && has("info"))
        }
        Format::OpenHands => {
            is_event(value)
                || value
                    .as_array()
                    .is_some_and(|list| list.is_empty() || list.iter().take(LOOKED_AT_MAX).any(is_event))
        }
    }
}

/// Whether an entry of this list has one of these fields.
fn any(list: Option<&Value>, names: &[&str]) -> bool {
    let list = list.and_then(Value::as_array).into_iter().flatten().take(LOOKED_AT_MAX);
    list.into_iter().any(|entry| names.iter().any(|name| entry.get(*name).is_some()))
}

/// Whether the outcome is one that only the recorder writes.
fn is_recorded(value: &Value) -> bool {
    let outcome = value.get("outcome");
    ["score", "tests_passed", "tests_failed"].iter().any(|name| outcome.and_then(|o| o.get(*name)).is_some())
}

/// Whether the outcome is one that only the wrapper writes.
fn is_wrapped(value: &Value) -> bool {
    let outcome = value.get("outcome");
    ["terminated", "truncated"].iter().any(|name| outcome.and_then(|o| o.get(*name)).is_some())
}

fn is_event(value: &Value) -> bool {
    let is_text = |name: &str| value.get(name).is_some_and(Value::is_string);
    let older = (is_text("action") || is_text("observation")) && value.get("steps").is_none();
    (older || is_sdk_event(value)) && value.get("tool").is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: Value, format: Format) {
        assert_eq!(detect(&value).unwrap(), format, "{value}");
    }

    #[test]
    fn each_format_is_known_by_its_content() {
        check(json!({"format": "glasshouse-trajectory", "version": 1, "steps": []}), Format::Glasshouse);
        check(json!({"steps": [{"tool_name": "shell"}]}), Format::KnowlyrA);
        check(json!({"steps": [], "metadata": {}}), Format::KnowlyrA);
        check(
            json!({"task": {}, "agent": "x", "outcome": {}, "steps": [{"tool_call": {}}]}),
            Format::KnowlyrB,
        );
        check(json!({"task": {}, "outcome": {"score": 0.0}, "steps": []}), Format::KnowlyrB);
        check(json!({"task": {}, "outcome": {}, "steps": [{"tool": "x"}]}), Format::KnowlyrC);
        check(json!({"task": {}, "outcome": {"terminated": true}, "steps": []}), Format::KnowlyrC);
        check(json!([{"step": 1, "tool": "x"}]), Format::KnowlyrD);
        check(json!({"agent_framework": "x", "steps": [{"tool": "x"}]}), Format::KnowlyrE);
        check(json!({"trajectory": [{"action": "ls"}], "info": {}}), Format::SweAgent);
        check(json!({"history": [], "info": {}}), Format::SweAgent);
        check(json!([{"id": 0, "action": "run", "args": {}}]), Format::OpenHands);
        check(json!({"observation": "run", "content": ""}), Format::OpenHands);
        check(json!({"schema_version": "ATIF-v1.4", "steps": []}), Format::Atif);
    }

    #[test]
    fn what_could_be_several_is_refused_and_the_several_are_named() {
        let message = |value: Value| detect(&value).unwrap_err().message;
        assert!(message(json!([])).contains("knowlyr-d or openhands"));
        assert!(message(json!({"task": {}, "outcome": {}, "steps": []})).contains("knowlyr-b or knowlyr-c"));
    }

    #[test]
    fn events_of_the_newer_openhands_are_known_by_their_kind() {
        check(json!({"kind": "ActionEvent", "action": {}}), Format::OpenHands);
        check(json!([{"kind": "SystemPromptEvent"}]), Format::OpenHands);
        assert!(detect(&json!([{"kind": "cat"}])).is_err());
    }

    #[test]
    fn what_is_none_is_refused_with_what_was_looked_for() {
        for value in [
            json!(null),
            json!(7),
            json!("x"),
            json!({}),
            json!([1]),
            json!({"steps": 7}),
            json!({"steps": [{}]}),
        ] {
            let error = detect(&value).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unknown);
            assert!(Format::ALL.iter().all(|format| error.message.contains(format.name())), "{value}");
        }
    }
}
