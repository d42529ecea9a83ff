//! `git`: the box's git, without a shell, a pager or a prompt.

use serde_json::{Value, json};

use super::info::ToolInfo;
use super::result::ToolResult;
use super::running::{self, Call};
use super::schema::Params;
use super::shell::TIMEOUT;
use crate::error::Result;
use crate::sandbox::Sandbox;

/// Said to git before anything else, as arguments: values of the environment count as secrets of the record.
///
/// No pager; no editor, whose absence ends a commit without a message; no lock for what only looks, so that looking
/// changes no file; and a repository may belong to another user of the same box.
const FIRST: [&str; 9] = [
    "git",
    "--no-pager",
    "--no-optional-locks",
    "-c",
    "core.editor=true",
    "-c",
    "core.askPass=true",
    "-c",
    "safe.directory=*",
];

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "git",
        "Run git in the working directory of the box, like subcommand \"log\" with args \"--oneline -3\". \
         No shell is involved, and git never asks.",
        &["subcommand"],
        json!({
            "subcommand": {
                "type": "string", "minLength": 1, "description": "status, diff, log, add, commit, …",
            },
            "args": {
                "type": ["string", "array"], "items": { "type": "string" }, "default": "",
                "description": "Its arguments: a list, or a line that is split into words as a shell does",
            },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0, "default": TIMEOUT,
                "description": "Seconds after which it is killed",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let argv = match argv(params.text("subcommand"), params.value("args")) {
        Ok(argv) => argv,
        Err(why) => return Ok(ToolResult::failed(super::BAD_CALL, format!("git: {why}"))),
    };
    let timeout = params.seconds("timeout");
    let call = Call { label: "git".into(), argvs: vec![argv], timeout, ..Call::default() };
    running::run(sandbox, call).await
}

fn argv(subcommand: &str, args: Option<&Value>) -> std::result::Result<Vec<String>, String> {
    // An option in its place would be one of git itself, and could undo what we say to it.
    if subcommand.starts_with('-') || subcommand.contains(char::is_whitespace) {
        return Err(format!(
            "`subcommand` {subcommand:?} is one word like \"log\"; the rest belongs into `args`"
        ));
    }
    let mut argv: Vec<String> = FIRST.iter().map(|word| (*word).to_owned()).collect();
    argv.push(subcommand.to_owned());
    match args {
        Some(Value::String(line)) => {
            argv.extend(shlex::split(line).ok_or("`args` ends within quotes, or with a backslash")?);
        }
        Some(Value::Array(words)) => argv.extend(words.iter().filter_map(Value::as_str).map(str::to_owned)),
        _ => {}
    }
    Ok(argv)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(subcommand: &str, args: Value) -> std::result::Result<Vec<String>, String> {
        argv(subcommand, Some(&args)).map(|argv| argv[FIRST.len()..].to_vec())
    }

    #[test]
    fn arguments_are_split_and_nothing_else_happens_to_them() {
        let check = |args: Value, expected: &[&str]| {
            let mut all = vec!["log".to_owned()];
            all.extend(expected.iter().map(|word| (*word).to_owned()));
            assert_eq!(words("log", args).unwrap(), all);
        };
        check(json!(""), &[]);
        check(json!("--oneline -3"), &["--oneline", "-3"]);
        check(json!("-m 'two words' \"$HOME\" a\\ b"), &["-m", "two words", "$HOME", "a b"]);
        check(json!("; rm -rf / && `x` $(y) | z > w *"), &[
            ";", "rm", "-rf", "/", "&&", "`x`", "$(y)", "|", "z", ">", "w", "*",
        ]);
        check(json!(["a b", "'", ""]), &["a b", "'", ""]);
    }

    #[test]
    fn what_cannot_be_split_or_is_no_subcommand_is_refused() {
        assert!(words("log", json!("'open")).unwrap_err().contains("quotes"));
        for subcommand in ["-c", "--exec-path=/x", "log -1", "log\n"] {
            assert!(words(subcommand, json!("")).unwrap_err().contains("one word"), "{subcommand:?}");
        }
    }
}
