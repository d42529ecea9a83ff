//! Tools of a user's own: commands of a box, which are kept with it, and Rust values of a house, which are not.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use glasshouse_protocol::limits::ARGV_BYTES_MAX;
use serde_json::{Map, Value, json};

use super::info::ToolInfo;
use super::names;
use super::result::ToolResult;
use super::running::{self, Call};
use super::schema::{self, Params};
use super::shell::TIMEOUT;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{OWN_TOOL_BYTES, OWN_TOOLS};
use crate::sandbox::Sandbox;

/// The tools of a box, as far as they differ from those that every box has.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolsSpec {
    /// Names of tools that are switched off.
    pub off: Vec<String>,
    /// Further tools, which are commands.
    pub own: Vec<CommandTool>,
}

/// A tool that is a command of the box.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandTool {
    /// Letters, digits, `_` and `-`; not the name of another tool.
    pub name: String,
    /// What it does, for a model to read.
    pub description: String,
    /// A JSON Schema of its parameters, which are an object.
    pub parameters: Value,
    /// What is run, and how it gets the parameters.
    pub program: ToolProgram,
    /// After this time it is killed with all that it started; without one, after 300 s.
    pub timeout: Option<Duration>,
}

/// The program of a [`CommandTool`]. No shell is involved, unless it is the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolProgram {
    /// A program and its arguments. `{name}` stands for a parameter: within a word for its text; as a whole word for an
    /// argument, several if it is an array, none if it is not given. `{{` is a brace.
    Argv(Vec<String>),
    /// A program and its arguments, which reads the parameters as one JSON object from its stdin.
    Stdin(Vec<String>),
}

impl CommandTool {
    pub(super) fn info(&self) -> ToolInfo {
        ToolInfo {
            name: self.name.clone(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
        }
    }

    pub(super) async fn run(&self, sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
        let (argv, stdin) = match &self.program {
            ToolProgram::Argv(template) => match filled(template, params.all()) {
                Some(argv) => (argv, None),
                None => {
                    let message =
                        format!("{}: the parameters make more than {ARGV_BYTES_MAX} bytes", self.name);
                    return Ok(ToolResult::failed(1, message));
                }
            },
            ToolProgram::Stdin(argv) => {
                (argv.clone(), Some(Value::Object(params.all().clone()).to_string().into_bytes()))
            }
        };
        let call = Call {
            label: self.name.clone(),
            argvs: vec![argv],
            timeout: Some(self.timeout.unwrap_or(Duration::from_secs(TIMEOUT))),
            stdin,
            ..Call::default()
        };
        running::run(sandbox, call).await
    }

    /// Reads tools from JSON: one object, or an array of them, with `name`, `description`, `parameters`, and either
    /// `argv` or `stdin`, both lists of words, and `timeout` in seconds, which may be left out.
    pub fn parse(text: &str) -> Result<Vec<CommandTool>> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("cannot read tools: {why}"));
        let value: Value = serde_json::from_str(text).map_err(|e| invalid(e.to_string()))?;
        let values = match value {
            Value::Array(values) => values,
            one => vec![one],
        };
        values.iter().map(|value| CommandTool::from_json(value).map_err(invalid)).collect()
    }

    pub(crate) fn to_json(&self) -> Value {
        let (way, words) = match &self.program {
            ToolProgram::Argv(words) => ("argv", words),
            ToolProgram::Stdin(words) => ("stdin", words),
        };
        let mut value = json!({
            "name": self.name, "description": self.description, "parameters": self.parameters,
            "timeout": self.timeout.map(|time| time.as_secs_f64()),
        });
        value[way] = json!(words);
        value
    }

    pub(crate) fn from_json(value: &Value) -> std::result::Result<CommandTool, String> {
        // The form of a file is told by a schema too: what does not fit is said in the same words.
        let form = json!({ "properties": {
            "name": {"type": "string"}, "description": {"type": "string", "default": ""},
            "parameters": {"type": "object", "default": {"type": "object", "properties": {}}},
            "argv": {"type": "array", "items": {"type": "string"}},
            "stdin": {"type": "array", "items": {"type": "string"}},
            "timeout": {"type": "number", "exclusiveMinimum": 0},
        }, "required": ["name"] });
        let form = schema::complete(&form, value)?;
        let words = |name: &str| -> Option<Vec<String>> {
            let words = form.value(name)?.as_array()?;
            Some(words.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        };
        let program = match (words("argv"), words("stdin")) {
            (Some(argv), None) => ToolProgram::Argv(argv),
            (None, Some(argv)) => ToolProgram::Stdin(argv),
            _ => return Err(format!("the tool `{}` has either `argv` or `stdin`", form.text("name"))),
        };
        Ok(CommandTool {
            name: form.text("name").to_owned(),
            description: form.text("description").to_owned(),
            parameters: form.value("parameters").cloned().unwrap_or_default(),
            program,
            timeout: form.seconds("timeout"),
        })
    }
}

impl ToolsSpec {
    pub(crate) fn to_json(&self) -> Value {
        json!({ "off": self.off, "own": self.own.iter().map(CommandTool::to_json).collect::<Vec<_>>() })
    }

    /// What is on record of a box; one from before there were tools has none of its own.
    pub(crate) fn from_json(value: Option<&Value>) -> Option<ToolsSpec> {
        let Some(value) = value else { return Some(ToolsSpec::default()) };
        let off = value.get("off")?.as_array()?.iter().map(|name| Some(name.as_str()?.to_owned()));
        let own = value.get("own")?.as_array()?.iter().map(|tool| CommandTool::from_json(tool).ok());
        Some(ToolsSpec { off: off.collect::<Option<_>>()?, own: own.collect::<Option<_>>()? })
    }
}

/// The words of a template with parameters in their places; none if they are more than any program takes.
fn filled(template: &[String], params: &Map<String, Value>) -> Option<Vec<String>> {
    let mut argv = Vec::new();
    let mut room = ARGV_BYTES_MAX;
    let mut fits = |text: String| {
        room = room.checked_sub(text.len())?;
        Some(text)
    };
    for word in template {
        match whole(word).map(|name| params.get(name)) {
            Some(Some(Value::Array(items))) => {
                for item in items {
                    argv.push(fits(text(item))?);
                }
            }
            Some(Some(value)) => argv.push(fits(text(value))?),
            Some(None) => {}
            None => {
                let mut filled = String::new();
                for piece in pieces(word) {
                    filled.push_str(&match piece {
                        Piece::Text(text) => fits(text.to_owned())?,
                        Piece::Param(name) => fits(params.get(name).map(text).unwrap_or_default())?,
                    });
                }
                argv.push(filled);
            }
        }
    }
    Some(argv)
}

/// A value as an argument.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

enum Piece<'a> {
    Text(&'a str),
    Param(&'a str),
}

/// The parameter that a word stands for as a whole.
fn whole(word: &str) -> Option<&str> {
    word.strip_prefix('{')?.strip_suffix('}').filter(|name| !name.contains(['{', '}']))
}

/// What a word of a template is made of. A brace that closes nothing is text.
fn pieces(mut word: &str) -> impl Iterator<Item = Piece<'_>> {
    std::iter::from_fn(move || {
        if word.is_empty() {
            return None;
        }
        let (piece, rest) = match word.strip_prefix('{') {
            Some(rest) if rest.starts_with('{') => (Piece::Text("{"), &rest[1..]),
            Some(rest) => match rest.split_once('}') {
                Some((name, rest)) => (Piece::Param(name), rest),
                None => (Piece::Text(word), ""),
            },
            None => {
                let at = word.find('{').unwrap_or(word.len());
                (Piece::Text(&word[..at]), &word[at..])
            }
        };
        word = rest;
        Some(piece)
    })
}

type RustRunning = Pin<Box<dyn Future<Output = Result<ToolResult>> + Send>>;

/// A tool that is a Rust value: [`crate::Sandboxes::add_tool`] gives it to every box of a house, in this process.
#[derive(Clone)]
pub struct RustTool {
    pub(super) info: ToolInfo,
    run: Arc<dyn Fn(Sandbox, Value) -> RustRunning + Send + Sync>,
}

impl std::fmt::Debug for RustTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RustTool").field("info", &self.info).finish_non_exhaustive()
    }
}

impl RustTool {
    /// A tool that does `run`, which is given the box and the parameters, checked and with their defaults.
    pub fn new<F>(info: ToolInfo, run: impl Fn(Sandbox, Value) -> F + Send + Sync + 'static) -> RustTool
    where
        F: Future<Output = Result<ToolResult>> + Send + 'static,
    {
        RustTool { info, run: Arc::new(move |sandbox, params| Box::pin(run(sandbox, params))) }
    }

    pub(super) async fn run(&self, sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
        (self.run)(sandbox.clone(), Value::Object(params.all().clone())).await
    }
}

/// Refuses tools of a box that could not be used. `names` are all tools that there are, these included.
pub(super) fn check(spec: &ToolsSpec, names: &[&str]) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    if spec.own.len() > OWN_TOOLS {
        return invalid(format!("a box has at most {OWN_TOOLS} tools of its own, not {}", spec.own.len()));
    }
    for off in &spec.off {
        if !names.contains(&off.as_str()) {
            let hint = names::hint(off, names.iter().copied());
            return invalid(format!("there is no tool {off:?} that could be switched off; {hint}"));
        }
    }
    for tool in &spec.own {
        if names.iter().filter(|name| **name == tool.name).count() > 1 {
            return invalid(format!("there is a tool {:?} already; call yours otherwise", tool.name));
        }
        check_info(&tool.info(), &[])?;
        let argv = match &tool.program {
            ToolProgram::Argv(argv) => argv,
            ToolProgram::Stdin(argv) => argv,
        };
        if argv.first().is_none_or(String::is_empty) {
            return invalid(format!("the tool `{}` names no program", tool.name));
        }
        if tool.to_json().to_string().len() > OWN_TOOL_BYTES {
            return invalid(format!(
                "the tool `{}` takes more than {OWN_TOOL_BYTES} bytes to describe",
                tool.name
            ));
        }
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let known = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        let open =
            matches!(tool.parameters.get("additionalProperties"), Some(Value::Bool(true) | Value::Object(_)));
        let unknown = match &tool.program {
            ToolProgram::Argv(argv) => {
                argv.iter().flat_map(|word| pieces(word)).find_map(|piece| match piece {
                    Piece::Param(name) if !open && !known(name) => Some(name.to_owned()),
                    _ => None,
                })
            }
            ToolProgram::Stdin(_) => None,
        };
        if let Some(name) = unknown {
            return invalid(format!(
                "the tool `{}` uses {{{name}}}, which is none of its parameters; {{{{ is a brace",
                tool.name
            ));
        }
    }
    Ok(())
}

/// Refuses a tool that could not be called, or whose name is taken.
pub(super) fn check_info(info: &ToolInfo, taken: &[&str]) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if info.name.is_empty() || info.name.len() > 64 || !info.name.chars().all(plain) {
        let name = &info.name;
        return invalid(format!(
            "{name:?} cannot be a tool's name; use up to 64 letters, digits, `_` and `-`"
        ));
    }
    if names::STEPS.contains(&info.name.as_str()) {
        return invalid(format!(
            "{:?} cannot be a tool's name: records and replays mean something else by it",
            info.name
        ));
    }
    if taken.contains(&info.name.as_str()) {
        return invalid(format!("there is a tool {:?} already; call yours otherwise", info.name));
    }
    if info.parameters.get("type").is_some_and(|kind| kind != "object") || !info.parameters.is_object() {
        return invalid(format!(
            "the parameters of the tool `{}` are no JSON Schema of an object",
            info.name
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(text: &str) -> CommandTool {
        CommandTool::parse(text).unwrap().remove(0)
    }

    const COUNT: &str = r#"{"name": "count", "description": "Counts.", "timeout": 2.5,
        "parameters": {"type": "object", "properties": {
            "word": {"type": "string"}, "files": {"type": "array"}, "n": {"type": "integer"}}},
        "argv": ["grep", "-c", "--max={n}", "{word}", "--", "{files}", "{{word}}"]}"#;

    #[test]
    fn a_template_makes_arguments_and_never_a_line() {
        let params = |value: Value| value.as_object().unwrap().clone();
        let argv = |value: Value| match tool(COUNT).program {
            ToolProgram::Argv(template) => filled(&template, &params(value)).unwrap(),
            ToolProgram::Stdin(_) => panic!("it is a template"),
        };
        assert_eq!(
            argv(json!({"word": "a; b $(c)", "files": ["x y", "z"], "n": 3})),
            ["grep", "-c", "--max=3", "a; b $(c)", "--", "x y", "z", "{word}}"]
        );
        assert_eq!(argv(json!({})), ["grep", "-c", "--max=", "--", "{word}}"]);
    }

    #[test]
    fn a_template_cannot_be_blown_up() {
        let params = json!({"x": "y".repeat(50_000)}).as_object().unwrap().clone();
        for word in ["{x}", "-{x}"] {
            assert!(filled(&[word.to_owned()], &params).is_some());
            assert!(filled(&vec![word.to_owned(); 5], &params).is_none());
            assert!(filled(&[word.repeat(5)], &params).is_none());
        }
    }

    #[test]
    fn a_box_keeps_its_tools() {
        let spec = ToolsSpec {
            off: vec!["git".into()],
            own: vec![tool(COUNT), tool(r#"{"name": "x", "stdin": ["cat"]}"#)],
        };
        assert_eq!(ToolsSpec::from_json(Some(&spec.to_json())), Some(spec));
        assert_eq!(ToolsSpec::from_json(None), Some(ToolsSpec::default()));
        assert_eq!(ToolsSpec::from_json(Some(&json!({"off": 1}))), None);
    }

    #[test]
    fn what_could_not_be_used_is_refused() {
        let refused = |text: &str, why: &str| {
            let said = CommandTool::parse(text)
                .and_then(|own| {
                    let names: Vec<String> = ["shell".to_owned()]
                        .into_iter()
                        .chain(own.iter().map(|tool| tool.name.clone()))
                        .collect();
                    let names: Vec<&str> = names.iter().map(String::as_str).collect();
                    check(&ToolsSpec { off: Vec::new(), own }, &names)
                })
                .unwrap_err();
            assert!(said.to_string().contains(why), "{text}: {said}");
        };
        refused("{", "cannot read tools");
        refused("5", "a JSON object, not a number");
        refused(r#"{"argv": ["x"]}"#, "`name` is missing");
        refused(r#"{"name": "a"}"#, "either `argv` or `stdin`");
        refused(r#"{"name": "a", "argv": ["x"], "stdin": ["x"]}"#, "either");
        refused(r#"{"name": "a", "argv": [1]}"#, "`argv` holds a string, not a number");
        refused(r#"{"name": "a", "argv": []}"#, "names no program");
        refused(r#"{"name": "a b", "argv": ["x"]}"#, "cannot be a tool's name");
        refused(r#"{"name": "shell", "argv": ["x"]}"#, "already");
        for name in ["exec", "file", "think"] {
            refused(&json!({"name": name, "argv": ["x"]}).to_string(), "something else by it");
        }
        refused(r#"[{"name": "a", "argv": ["x"]}, {"name": "a", "argv": ["x"]}]"#, "already");
        refused(r#"{"name": "a", "argv": ["x", "{y}"]}"#, "{y}, which is none");
        refused(r#"{"name": "a", "argv": ["x"], "shell": true}"#, "no parameter `shell`");
        refused(r#"{"name": "a", "argv": ["x"], "parameters": {"type": "string"}}"#, "no JSON Schema");
        let off = ToolsSpec { off: vec!["shel".into()], own: Vec::new() };
        assert!(check(&off, &["shell"]).unwrap_err().to_string().contains("did you mean `shell`"));
    }
}
