//! The variables of a box's commands, and paths that name them.
//!
//! `EXECD_ENVS` names a file of `NAME=VALUE` lines; it is read for every command, and whoever writes a line there gives later
//! commands a variable. Whoever makes a box may say which file that is.

use axum::http::StatusCode;
use glasshouse_sandbox::{Error, ErrorKind, ExecSpec, Program, Sandbox};

use super::{bad, fault};
use crate::dialect::opensandbox::create::ENV_FILE_LABEL;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::limits::{ASK_TIMEOUT_MS, ENV_FILE_BYTES};

/// Names and values.
type Variables = Vec<(String, String)>;

/// What commands get beside the box's own variables.
pub(crate) async fn of_commands(sandbox: &Sandbox) -> Answer<Variables> {
    let (mut variables, file) = without_file(sandbox);
    variables.extend(of_file(sandbox, &file).await.map_err(fault)?);
    Ok(variables)
}

/// The same but for those of the file, and which one that is.
pub(super) fn without_file(sandbox: &Sandbox) -> (Variables, String) {
    let file = file_of(sandbox);
    let variables = vec![
        ("OPENSANDBOX_ID".to_owned(), sandbox.id().to_owned()),
        ("EXECD_ENVS".to_owned(), file.to_owned()),
    ];
    (variables, file.to_owned())
}

/// A command that was to be started only without this file, with what the file says. Its own variables are stronger.
pub(super) async fn with_file(sandbox: &Sandbox, mut spec: ExecSpec) -> Result<ExecSpec, Error> {
    if let Some(file) = spec.only_without.take() {
        let ours = without_file(sandbox).0.len();
        spec.env.splice(ours..ours, of_file(sandbox, &file).await?);
    }
    Ok(spec)
}

async fn of_file(sandbox: &Sandbox, file: &str) -> Result<Variables, Error> {
    match sandbox.read_file(file, 0, Some(ENV_FILE_BYTES)).await {
        Ok(bytes) => Ok(parse(&String::from_utf8_lossy(&bytes))),
        Err(e) if e.kind() == ErrorKind::Gone => Err(e),
        // Nobody has written one, or it is none.
        Err(_) => Ok(Vec::new()),
    }
}

/// Where the file is: where the box's own variables say; else where the protocol has it, unless the box's user could not
/// write there.
fn file_of(sandbox: &Sandbox) -> &str {
    let info = sandbox.info();
    match (info.labels.get(ENV_FILE_LABEL), info.user.as_str()) {
        (Some(said), _) => said,
        (None, "root" | "0") => "/opt/opensandbox/.env",
        (None, _) => "/tmp/.opensandbox.env",
    }
}

/// Reads `NAME=VALUE` lines. A value in quotes may go over several lines; in double ones, `\n`, `\r`, `\t` and a backslash
/// before anything else mean what they do in C.
fn parse(text: &str) -> Variables {
    let (mut variables, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let line = rest.find('\n').unwrap_or(rest.len());
        let Some(at) = rest[..line].find('=') else {
            rest = rest[line..].strip_prefix('\n').unwrap_or_default();
            continue;
        };
        let name = rest[..at].trim();
        let name = name.strip_prefix("export ").unwrap_or(name).trim();
        let fine = !name.is_empty() && !name.starts_with('#') && !name.contains(char::is_whitespace);
        let begun = rest[at + 1..].trim_start_matches([' ', '\t']);
        let (value, after) = match quoted(begun).filter(|_| fine) {
            Some(found) => found,
            None => {
                let end = begun.find('\n').unwrap_or(begun.len());
                (begun[..end].trim().to_owned(), &begun[end..])
            }
        };
        if fine && !value.contains('\0') {
            variables.push((name.to_owned(), value));
        }
        // What stands behind a value in quotes says nothing.
        rest = after.find('\n').map_or("", |end| &after[end + 1..]);
    }
    variables
}

/// A value in quotes at the beginning of a text, and what comes after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    if let Some(inner) = text.strip_prefix('\'') {
        let (value, after) = inner.split_once('\'')?;
        return Some((value.to_owned(), after));
    }
    let inner = text.strip_prefix('"')?;
    let (mut value, mut letters) = (String::new(), inner.char_indices());
    while let Some((at, letter)) = letters.next() {
        value.push(match letter {
            '"' => return Some((value, &inner[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            },
            other => other,
        });
    }
    None
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
pub(super) async fn all(sandbox: &Sandbox) -> Answer<Variables> {
    let spec = ExecSpec {
        program: Program::Argv(vec!["env".to_owned(), "-0".to_owned()]),
        env: of_commands(sandbox).await?,
        // Where a box begins, only its own user may be.
        cwd: Some("/".to_owned()),
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
        let text = "A='x y'\nB=\"1\\n\\\"2\\\\\"\n# no='\n\nexport C=z\nD=\nE=a=b\n bad name='x\nG='1\n2=$3'\nnone\n\
                    H=\"a\nb\" c\nI=''\nF='un\n";
        let expected = [
            ("A", "x y"),
            ("B", "1\n\"2\\"),
            ("C", "z"),
            ("D", ""),
            ("E", "a=b"),
            ("G", "1\n2=$3"),
            ("H", "a\nb"),
            ("I", ""),
            ("F", "'un"),
        ];
        let found = parse(text);
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, expected);
    }

    /// A line as the SDK writes it.
    fn line(name: &str, value: &str) -> String {
        if !value.contains('\'') {
            return format!("{name}='{value}'\n");
        }
        let pairs = [("\\", "\\\\"), ("\"", "\\\""), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")];
        let value = pairs.iter().fold(value.to_owned(), |value, (plain, coded)| value.replace(plain, coded));
        format!("{name}=\"{value}\"\n")
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_sdk_writes_is_read_and_nothing_breaks(
            values in proptest::collection::vec("[a-z '\"=$#\\\\\n\r\t]{0,12}", 0..5),
            other in "[ -~\n]{0,40}",
        ) {
            let text: String = values.iter().map(|value| line("A", value)).collect();
            let expected: Vec<_> = values.iter().map(|value| ("A".to_owned(), value.clone())).collect();
            proptest::prop_assert_eq!(parse(&text), expected);
            // Any text at all.
            let _ = parse(&other);
        }
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
