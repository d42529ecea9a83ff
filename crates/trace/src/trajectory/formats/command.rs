//! Steps as command lines, for formats whose agents only have a shell.

use serde_json::Value;

use crate::trajectory::model::Step;

/// Tools that run a command, by the names that agents give them.
const SHELLS: [&str; 9] =
    ["bash", "shell", "run", "exec", "execute_bash", "sh", "terminal", "run_command", "cmd"];

/// The command line that a step ran, if it ran one.
pub(super) fn command_of(step: &Step) -> Option<String> {
    if !SHELLS.contains(&step.tool.as_str()) {
        return None;
    }
    let text = ["command", "cmd", "shell"].iter().find_map(|name| step.params.get(*name)?.as_str());
    if let Some(text) = text {
        return Some(text.to_owned());
    }
    let words = step.params.get("argv")?.as_array()?;
    let words: Option<Vec<String>> = words.iter().map(|word| word.as_str().map(quoted)).collect();
    Some(words?.join(" "))
}

/// A line that says what a step did where there is no tool but the shell.
pub(super) fn line_of(step: &Step) -> String {
    let parameters = Value::Object(step.params.clone());
    match step.params.is_empty() {
        true => step.tool.clone(),
        false => format!("{} {parameters}", step.tool),
    }
}

/// A word that a shell takes as it is.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn commands_are_found_under_each_name() {
        let step = |tool: &str, params: Value| Step {
            tool: tool.to_owned(),
            params: params.as_object().unwrap().clone(),
            ..Step::default()
        };
        let check = |step: Step, line: &str| assert_eq!(command_of(&step).as_deref(), Some(line));
        check(step("bash", json!({"command": "ls -l"})), "ls -l");
        check(step("exec", json!({"shell": "ls | wc"})), "ls | wc");
        check(step("exec", json!({"argv": ["echo", "it's", "", "a b"]})), r"echo 'it'\''s' '' 'a b'");
        assert_eq!(command_of(&step("file_read", json!({"command": "x"}))), None);
        assert_eq!(command_of(&step("exec", json!({"argv": [7]}))), None);
        assert_eq!(line_of(&step("file_read", json!({"path": "x"}))), r#"file_read {"path":"x"}"#);
    }
}
