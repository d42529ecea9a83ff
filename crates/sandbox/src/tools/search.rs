//! `search`: lines of files that match, by ripgrep's engine.
//!
//! It runs inside the box, as one of its commands: `crates/guest/src/search/main.rs`.

use serde_json::{Value, json};

use crate::carry::SEARCH;
use super::info::ToolInfo;
use super::result::ToolResult;
use super::running::{self, Call};
use super::schema::Params;
use crate::error::Result;
use crate::sandbox::Sandbox;

/// Seconds, unless said otherwise.
const TIMEOUT: u64 = 60;
/// Lines, unless said otherwise.
const RESULTS: u64 = 1000;
/// Lines at most.
const RESULTS_MAX: u64 = 100_000;
/// Lines around each at most.
const CONTEXT_MAX: u64 = 100;

/// The code with which the search says that it could not do what it was asked for.
const REFUSED: i32 = 2;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "search",
        "Search files of the box for lines that match a regular expression. Returns path:line:text for \
         each, in order of the names. What .gitignore names, .git and binary files are left out. No match \
         is no failure.",
        &["pattern"],
        json!({
            "pattern": {
                "type": "string",
                "description": "A regular expression (Rust's syntax: a|b, \\bword\\b, [0-9]+)",
            },
            "path": {
                "type": "string", "minLength": 1, "default": ".",
                "description": "A directory, or one file; relative to the working directory of the box",
            },
            "file_pattern": {
                "type": "string", "default": "",
                "description": "Only files of this form, like *.py, *.{js,ts} or src/**/*.rs",
            },
            "ignore_case": {
                "type": "boolean", "default": false, "description": "Capitals or not is the same",
            },
            "literal": {
                "type": "boolean", "default": false,
                "description": "The pattern is plain text and no regular expression",
            },
            "no_ignore": {
                "type": "boolean", "default": false,
                "description": "Search also what .gitignore names, and .git",
            },
            "files_only": {
                "type": "boolean", "default": false,
                "description": "Return only the names of files with a match; without a pattern, of all",
            },
            "context": {
                "type": "integer", "minimum": 0, "maximum": CONTEXT_MAX, "default": 0,
                "description": "Show so many lines before and after each",
            },
            "max_results": {
                "type": "integer", "minimum": 1, "maximum": RESULTS_MAX, "default": RESULTS,
                "description": "Stop after so many",
            },
            "timeout": {
                "type": "number", "exclusiveMinimum": 0, "default": TIMEOUT,
                "description": "Seconds after which it gives up",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let mut ask = params.all().clone();
    ask.remove("timeout");
    // What is said by saying nothing would only make the record longer.
    ask.retain(|_, value| !matches!(value, Value::Bool(false)) && *value != json!("") && *value != json!(0));
    let call = Call {
        label: "search".into(),
        argvs: vec![vec!["glass-search".into(), Value::Object(ask).to_string()]],
        carried: Some(SEARCH.bring_into(sandbox).await?),
        timeout: params.seconds("timeout"),
        ..Call::default()
    };
    let mut result = running::run(sandbox, call).await?;
    if result.exit_code == REFUSED {
        // What it could not do is the error, and not something found.
        let why = std::mem::take(&mut result.stderr);
        result.error = Some(format!("search: {}", why.trim_end()));
        result.output.clone_from(&result.stdout);
        result.stderr_gaps.clear();
    }
    Ok(result)
}
