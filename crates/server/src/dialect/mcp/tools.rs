//! What can be called, and with what.

use std::sync::Arc;

use glasshouse_sandbox::Language;
use glasshouse_sandbox::tools::built_in;
use rmcp::model::Tool;
use serde_json::{Map, Value, json};

/// All tools: those that are about boxes, and each tool that every box has.
pub(super) fn all() -> Vec<Tool> {
    let mut all: Vec<Tool> = about_boxes()
        .into_iter()
        .chain(about_states())
        .map(|(name, about, schema)| tool(name, about, schema))
        .collect();
    for info in built_in() {
        let mut schema = info.parameters;
        schema["properties"]["sandbox_id"] = id();
        if let Some(required) = schema["required"].as_array_mut() {
            required.insert(0, json!("sandbox_id"));
        }
        all.push(tool(&info.name, &format!("In a box: {}", info.description), schema));
    }
    all
}

/// Whether this is a tool of boxes.
pub(super) fn is_of_boxes(name: &str) -> bool {
    built_in().iter().any(|tool| tool.name == name)
}

/// Whether a tool of boxes is a command that may run for long.
pub(super) fn runs_a_command(name: &str) -> bool {
    ["git", "python", "search", "shell"].contains(&name)
}

/// Whether a tool that is about boxes is called as its schema says: what is misspelt or of another kind is not passed over.
pub(super) fn check(name: &str, arguments: &Map<String, Value>) -> Result<(), String> {
    let known = about_boxes().into_iter().chain(about_states()).find(|(known, ..)| *known == name);
    let Some((.., schema)) = known else { return Ok(()) };
    for (name, value) in arguments.iter().filter(|(_, value)| !value.is_null()) {
        let Some(wanted) = schema["properties"].get(name) else {
            return Err(format!("there is no parameter {name:?}"));
        };
        let fits = match wanted["type"].as_str() {
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("object") => value.is_object(),
            // Whether a number is a right one is said where it is used.
            _ => true,
        };
        if !fits {
            let kind = wanted["type"].as_str().unwrap_or_default();
            return Err(format!("{name} has to be of the type {kind}"));
        }
    }
    Ok(())
}

fn tool(name: &str, about: &str, schema: Value) -> Tool {
    let schema = schema.as_object().cloned().unwrap_or_default();
    Tool::new(name.to_owned(), about.to_owned(), Arc::new(schema))
}

fn id() -> Value {
    text("The box, as create_sandbox called it")
}

fn text(about: &str) -> Value {
    json!({ "type": "string", "description": about })
}

fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false })
}

/// Name, description and schema.
fn about_boxes() -> Vec<(&'static str, &'static str, Value)> {
    let tools: Vec<String> = built_in().into_iter().map(|tool| tool.name).collect();
    let of_box = || json!({ "sandbox_id": id() });
    vec![
        (
            "create_sandbox",
            "Make a box: empty, or with a commit of a repository in its working directory. It has no network.",
            object(
                &[],
                json!({
                    "repo_url": text("A repository to put into it; needs base_commit"),
                    "base_commit": text("Which commit: an id, a branch or a tag"),
                    "language": text("Taken, and not needed: a box has all languages of its image"),
                    "image": text("`host` (this machine's programs, read-only), or the name of an image"),
                    "timeout": { "type": "integer", "minimum": 1, "description": "Seconds that each command may take (300)" },
                }),
            ),
        ),
        (
            "execute_tool",
            "Call a tool in a box. `glass tools` lists them; each is also a tool of its own here.",
            object(
                &["sandbox_id", "tool_name", "params"],
                json!({
                    "sandbox_id": id(),
                    "tool_name": { "type": "string", "description": "Which", "examples": tools },
                    "params": { "type": "object", "description": "Its parameters" },
                }),
            ),
        ),
        (
            "run_code",
            "Run code in a box, where names stay from call to call: the value of the last expression, what was shown \
             (pictures come as pictures), output and errors come back.",
            object(
                &["sandbox_id", "code"],
                json!({
                    "sandbox_id": id(),
                    "code": text("What to run"),
                    "language": {
                        "type": "string",
                        "description": "Without a word, python; jupyter:NAME is a kernel of Jupyter's that the box has",
                        "examples": Language::ALL.map(Language::name),
                    },
                    "context": text("Where, if not where the language usually is: another name is another memory"),
                    "timeout": { "type": "integer", "minimum": 1, "description": "Seconds after which it is interrupted" },
                    "restart": { "type": "boolean", "description": "Forget all that was before" },
                }),
            ),
        ),
        (
            "reset_sandbox",
            "Put a box back to what it began with; all that runs in it is killed.",
            object(&["sandbox_id"], of_box()),
        ),
        (
            "replay_trajectory",
            "Do the recorded steps of a trajectory again in a box, and tell the first that goes another way.",
            object(
                &["sandbox_id", "trajectory"],
                json!({
                    "sandbox_id": id(),
                    "trajectory": { "type": "object", "description": "A trajectory in any format that `glass trajectory` reads" },
                }),
            ),
        ),
    ]
}

/// Those that are about what boxes hold.
fn about_states() -> Vec<(&'static str, &'static str, Value)> {
    let of_box = || json!({ "sandbox_id": id() });
    vec![
        (
            "sandbox_snapshot",
            "Keep the state of a box's files, to go back to with restore_sandbox.",
            object(&["sandbox_id"], json!({ "sandbox_id": id(), "label": text("A name for people") })),
        ),
        (
            "restore_sandbox",
            "Put a box on the state of a snapshot; all that runs in it is killed.",
            object(
                &["sandbox_id", "snapshot_id"],
                json!({ "sandbox_id": id(), "snapshot_id": text("The snapshot") }),
            ),
        ),
        ("fork_sandbox", "Make another box with the same files.", object(&["sandbox_id"], of_box())),
        ("list_sandboxes", "The boxes of this session.", object(&[], json!({}))),
        (
            "destroy_sandbox",
            "End a box. Nothing is left of it but its record.",
            object(&["sandbox_id"], of_box()),
        ),
        (
            "upload_file",
            "Write a file of a box, text or base64; directories above it are made.",
            object(
                &["sandbox_id", "path"],
                json!({
                    "sandbox_id": id(), "path": text("Where in the box"), "content": text("What it holds, as text"),
                    "content_base64": text("What it holds, as base64, in place of `content`"),
                }),
            ),
        ),
        (
            "download_file",
            "Read a file of a box: as text if it is UTF-8, else as base64.",
            object(&["sandbox_id", "path"], json!({ "sandbox_id": id(), "path": text("Where in the box") })),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_schemas_are_of_objects() {
        let all = all();
        let mut names: Vec<&str> = all.iter().map(|tool| tool.name.as_ref()).collect();
        for wanted in [
            "create_sandbox",
            "execute_tool",
            "reset_sandbox",
            "replay_trajectory",
            "sandbox_snapshot",
            "shell",
        ] {
            assert!(names.contains(&wanted), "{wanted}");
        }
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for tool in &all {
            let schema = &tool.input_schema;
            assert_eq!(schema["type"], "object", "{}", tool.name);
            let properties = schema["properties"].as_object().unwrap();
            for name in schema["required"].as_array().unwrap() {
                assert!(properties.contains_key(name.as_str().unwrap()), "{}.{name}", tool.name);
            }
        }
    }
}
