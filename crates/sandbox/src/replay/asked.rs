//! What a step asks for, read from its parameters. What the record does not hold is refused by name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_protocol::{ExecSpec, Program, TtySize};
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::files::tree;

/// What a caller did to files, as it is on record.
pub(super) enum FileStep<'a> {
    Write { path: &'a str, content: Vec<u8>, mode: Option<u32>, parents: bool },
    CopyIn { path: &'a str, archive: Vec<u8> },
    Append { path: &'a str, content: Vec<u8> },
    Mkdir { path: &'a str, parents: bool },
    Move { from: &'a str, to: &'a str, overwrite: bool },
    Remove { path: &'a str, recursive: bool },
    Chmod { path: &'a str, mode: u32 },
    Chown { path: &'a str, owner: Option<u32>, group: Option<u32> },
}

impl<'a> FileStep<'a> {
    pub(super) fn of(params: &'a Map<String, Value>) -> Result<FileStep<'a>> {
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        let flag = |name: &str| params.get(name).and_then(Value::as_bool).unwrap_or_default();
        let number =
            |name: &str| params.get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let mode = number("mode");
        let lost = || Error::new(ErrorKind::Unsupported, "the record does not hold what was written");
        let content = || tree::content_of(params).ok_or_else(lost);
        let path = text("path");
        Ok(match text("op") {
            "write" => {
                let parents = params.get("parents").and_then(Value::as_bool).unwrap_or(true);
                FileStep::Write { path, content: content()?, mode, parents }
            }
            "copy in" if params.contains_key("tree") => {
                let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
                FileStep::CopyIn { path, archive: tree::archive_of(&params["tree"]).map_err(invalid)? }
            }
            "append" => FileStep::Append { path, content: content()? },
            "mkdir" => FileStep::Mkdir { path, parents: flag("parents") },
            "move" => FileStep::Move { from: text("from"), to: text("to"), overwrite: flag("overwrite") },
            "remove" => FileStep::Remove { path, recursive: flag("recursive") },
            "chmod" => FileStep::Chmod { path, mode: mode.unwrap_or_default() },
            "chown" => FileStep::Chown { path, owner: number("owner"), group: number("group") },
            other => {
                let message =
                    format!("{other:?} of {path} cannot be done again: the record does not hold the files");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        })
    }
}

/// The command of a plain step, and what it is fed.
pub(super) fn exec_of(params: &Map<String, Value>) -> Result<(ExecSpec, Option<Vec<u8>>)> {
    let invalid = |message: &str| Error::new(ErrorKind::Invalid, message.to_owned());
    let program = match (params.get("argv"), params.get("shell"), params.get("code")) {
        (None, None, Some(code)) => Program::Code(
            serde_json::from_value(code.clone())
                .map_err(|_| invalid("`code` has `context`, `language` and `code`"))?,
        ),
        (Some(argv), None, None) => {
            let words = argv.as_array().and_then(|words| {
                words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
            });
            Program::Argv(words.ok_or_else(|| invalid("`argv` is a list of words"))?)
        }
        (None, Some(line), None) => {
            Program::Shell(line.as_str().ok_or_else(|| invalid("`shell` is a line"))?.to_owned())
        }
        _ => return Err(invalid("a command has one of `argv`, `shell` and `code`")),
    };
    if let Some(bytes) = params.get("stdin_bytes_cut").and_then(Value::as_u64) {
        let message = format!("cannot be done again: {bytes} bytes of what it was fed are not on record");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let text = |name: &str| params.get(name).and_then(Value::as_str).map(str::to_owned);
    let number = |name: &str| params.get(name).and_then(Value::as_u64);
    let rlimits = match params.get("rlimits") {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => serde_json::from_value(list.clone())
            .map_err(|_| invalid("`rlimits` is a list of limits, each with `kind` and `value`"))?,
    };
    let tty = params.get("tty").and_then(|tty| {
        let number = |name: &str| u16::try_from(tty.get(name)?.as_u64()?).ok();
        Some(TtySize { rows: number("rows")?, cols: number("cols")? })
    });
    let stdin = params.get("stdin").map(bytes_of).transpose()?;
    let spec = ExecSpec {
        program,
        cwd: text("cwd"),
        user: text("user"),
        stdin: stdin.is_some(),
        tty,
        timeout_ms: number("timeout_ms"),
        grace_ms: number("grace_ms"),
        output_bytes_max: number("output_bytes_max"),
        rlimits,
        background: params.get("background").and_then(Value::as_bool).unwrap_or_default(),
        ..ExecSpec::default()
    };
    Ok((spec, stdin))
}

/// Text, or bytes in base64.
fn bytes_of(value: &Value) -> Result<Vec<u8>> {
    let invalid = || Error::new(ErrorKind::Invalid, "`stdin` is a text, or bytes as `base64`");
    match value {
        Value::String(text) => Ok(text.clone().into_bytes()),
        value => {
            let encoded = value.get("base64").and_then(Value::as_str).ok_or_else(invalid)?;
            STANDARD.decode(encoded).map_err(|_| invalid())
        }
    }
}
