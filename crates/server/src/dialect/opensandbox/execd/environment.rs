//! The variables of a box's commands, and paths that name them.
//!
//! `EXECD_ENVS` names a file of `NAME=VALUE` lines; it is read for every command, and whoever writes a line there gives later
//! commands a variable.

use axum::http::StatusCode;
use glasshouse_sandbox::{ErrorKind, ExecSpec, Program, Sandbox};

use super::{bad, fault};
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::limits::{ASK_TIMEOUT_MS, ENV_FILE_BYTES};

/// Names and values.
type Variables = Vec<(String, String)>;

/// What commands get beside the box's own variables.
pub(super) async fn of_commands(sandbox: &Sandbox) -> Answer<Variables> {
    let file = file_of(sandbox);
    let mut variables = vec![
        ("OPENSANDBOX_ID".to_owned(), sandbox.id().to_owned()),
        ("EXECD_ENVS".to_owned(), file.to_owned()),
    ];
    match sandbox.read_file(file, 0, Some(ENV_FILE_BYTES)).await {
        Ok(bytes) => variables.extend(parse(&String::from_utf8_lossy(&bytes))),
        Err(e) if e.kind() == ErrorKind::Gone => return Err(fault(e)),
        // Nobody has written one, or it is none.
        Err(_) => {}
    }
    Ok(variables)
}

/// Where the file is: where the protocol has it, unless the box's user could not write there.
fn file_of(sandbox: &Sandbox) -> &'static str {
    match sandbox.info().user.as_str() {
        "root" | "0" => "/opt/opensandbox/.env",
        _ => "/tmp/.opensandbox.env",
    }
}

/// Reads `NAME=VALUE` lines. In double quotes, `\n`, `\r`, `\t` and a backslash before anything else mean what they do in C.
fn parse(text: &str) -> Variables {
    let variable = |line: &str| {
        let line = line.trim();
        let (name, value) = line.strip_prefix("export ").unwrap_or(line).split_once('=')?;
        let name = name.trim();
        let fine = !name.is_empty() && !name.starts_with('#') && !name.contains(char::is_whitespace);
        let value = unquoted(value.trim());
        (fine && !value.contains('\0')).then(|| (name.to_owned(), value))
    };
    text.lines().filter_map(variable).collect()
}

fn unquoted(text: &str) -> String {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    if let Some(inner) = inner('\'') {
        return inner.to_owned();
    }
    let Some(inner) = inner('"') else { return text.to_owned() };
    let (mut value, mut letters) = (String::new(), inner.chars());
    while let Some(letter) = letters.next() {
        value.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    value
}

/// A path with `~` at its beginning and `$NAME` in it replaced, as the box's commands would see them.
pub(super) async fn expand(sandbox: &Sandbox, path: &str) -> Answer<String> {
    if path.contains('\0') {
        return Err(bad("INVALID_REQUEST_BODY", "a path cannot hold a zero byte"));
    }
    if !(path.contains('$') || path == "~" || path.starts_with("~/")) {
        return Ok(path.to_owned());
    }
    let known = all(sandbox).await?;
    let value = |name: &str| {
        let found = known.iter().rev().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    Ok(replaced(path, value))
}

fn replaced<'a>(path: &str, value: impl Fn(&str) -> &'a str) -> String {
    let mut text = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => value("HOME").to_owned() + rest,
        _ => path.to_owned(),
    };
    let mut done = String::new();
    while let Some(at) = text.find('$') {
        done.push_str(&text[..at]);
        let rest = text[at + 1..].to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, after) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, after)) => (name, after),
            None => rest.split_at(rest.find(|c| !plain(c)).unwrap_or(rest.len())),
        };
        match name.is_empty() {
            true => done.push('$'),
            false => done.push_str(value(name)),
        }
        text = after.to_owned();
    }
    done + &text
}

/// All variables that a command has.
async fn all(sandbox: &Sandbox) -> Answer<Variables> {
    let spec = ExecSpec {
        program: Program::Argv(vec!["env".to_owned(), "-0".to_owned()]),
        env: of_commands(sandbox).await?,
        timeout_ms: Some(ASK_TIMEOUT_MS),
        ..ExecSpec::default()
    };
    let output = sandbox.exec(spec).await.map_err(fault)?.collect().await;
    if !output.report.exit.success() {
        let message = format!("cannot ask the sandbox for its variables: {}", output.report.exit);
        return Err(Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", message));
    }
    let text = String::from_utf8_lossy(&output.stdout.bytes).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_variables_is_read_as_the_sdk_writes_it() {
        let text = "A='x y'\nB=\"1\\n\\\"2\\\\\"\n# no\n\nexport C=z\nD=\nE=a=b\n bad name=x\nF='un\n";
        let expected = [("A", "x y"), ("B", "1\n\"2\\"), ("C", "z"), ("D", ""), ("E", "a=b"), ("F", "'un")];
        let found = parse(text);
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_name_variables() {
        let value = |name: &str| match name {
            "HOME" => "/root",
            "X" => "x$Y",
            _ => "",
        };
        for (path, expected) in [
            ("~", "/root"),
            ("~/a", "/root/a"),
            ("~user/a", "~user/a"),
            ("/a/~/b", "/a/~/b"),
            ("$HOME/b", "/root/b"),
            ("/q/${X}/$NONE/c", "/q/x$Y//c"),
            ("/a$", "/a$"),
            ("/a$/b", "/a$/b"),
        ] {
            assert_eq!(replaced(path, value), expected, "{path}");
        }
    }
}
