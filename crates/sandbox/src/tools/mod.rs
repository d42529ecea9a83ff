//! The tools: what an agent asks of a box by name, with JSON going in and one [`ToolResult`] coming out.
//!
//! The plan of a call, [`Sandbox::tool`]:
//!
//! 1. [`canonical`] (`names`): other systems' names of tools and parameters become ours, by one table.
//! 2. The tool is looked for: built in, one of the box's own commands, a Rust value of the house (`own`). One that is
//!    unknown or switched off is an answer, not an error.
//! 3. `schema` holds the parameters against the tool's JSON Schema, and fills in what it gives as defaults. What does
//!    not fit is an answer that names the parameter.
//! 4. The tool's own file does the work. Files go through the file operations of [`Sandbox`], programs through
//!    `running`, which is the one way from a program's end to an answer. All of it happens inside the box.
//! 5. [`Sandbox::finish`] is where every call ends.
//!
//! A tool is one file with an `info` and a `run`, and one word in the list below.

mod info;
mod names;
mod own;
mod patch;
mod result;
pub(crate) mod running;
mod schema;

use std::pin::Pin;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use glasshouse_protocol::Request;
use glasshouse_trace::Payload;
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::Sandbox;
use crate::spec::SandboxSpec;
use crate::state::steps::Done;

pub use info::ToolInfo;
pub use names::canonical;
pub use own::{CommandTool, RustTool, ToolProgram, ToolsSpec};
pub use result::ToolResult;

use schema::Params;

type Running<'a> = Pin<Box<dyn Future<Output = Result<ToolResult>> + Send + 'a>>;

/// A tool that every box has.
struct BuiltIn {
    name: &'static str,
    info: fn() -> ToolInfo,
    run: for<'a> fn(&'a Sandbox, &'a Params) -> Running<'a>,
}

/// One module each.
macro_rules! built_in {
    ($($name:ident),+ $(,)?) => {
        $(mod $name;)+
        const BUILT_IN: &[BuiltIn] = &[$(BuiltIn {
            name: stringify!($name),
            info: $name::info,
            run: |sandbox, params| Box::pin($name::run(sandbox, params)),
        }),+];
    };
}
built_in![shell, python, file_read, file_write, file_edit, file_list, file_delete, search, git, submit,];

/// The code of an answer to a call that makes no sense.
const BAD_CALL: i32 = 2;

/// Where a tool comes from.
enum Found {
    BuiltIn(&'static BuiltIn),
    Command(CommandTool),
    Rust(RustTool),
}

impl Sandbox {
    /// Calls a tool. What goes wrong in the box, or with the parameters, is in the answer; an error is that the box is
    /// gone or does not work.
    pub async fn tool(&self, name: &str, params: Value) -> Result<ToolResult> {
        let started = (Instant::now(), SystemTime::now());
        let (name, params) = match self.own_tool(name) {
            // An own tool may be called what others call one of ours.
            Some(_) => (name.to_owned(), params),
            None => canonical(name, params),
        };
        let result = self.within_step().call_tool(&name, &params).await?;
        self.finish(&name, &params, &result, started).await;
        Ok(result)
    }

    /// The tools of this box: those that every box has, its own, and those of the house, without the switched-off ones.
    pub fn tools(&self) -> Vec<ToolInfo> {
        let spec = &self.info().tools;
        let mut tools: Vec<ToolInfo> = BUILT_IN.iter().map(|tool| (tool.info)()).collect();
        tools.extend(spec.own.iter().map(CommandTool::info));
        tools.extend(self.house().rust_tools().iter().map(|tool| tool.info.clone()));
        tools.retain(|tool| !spec.off.contains(&tool.name));
        tools
    }

    /// Whether a step by this name does nothing here: nobody acts, and no tool of the box's own has the name.
    pub(crate) fn is_no_action(&self, name: &str) -> bool {
        names::is_no_action(name) && self.own_tool(name).is_none()
    }

    fn own_tool(&self, name: &str) -> Option<Found> {
        let command = self.info().tools.own.iter().find(|tool| tool.name == name);
        let rust = || self.house().rust_tools().into_iter().find(|tool| tool.info.name == name);
        command.cloned().map(Found::Command).or_else(|| rust().map(Found::Rust))
    }

    async fn call_tool(&self, name: &str, params: &Value) -> Result<ToolResult> {
        let built_in = BUILT_IN.iter().find(|tool| tool.name == name).map(Found::BuiltIn);
        let Some(found) = built_in.or_else(|| self.own_tool(name)) else {
            let known = self.tools();
            let hint = names::hint(name, known.iter().map(|tool| tool.name.as_str()));
            return Ok(ToolResult::failed(BAD_CALL, format!("there is no tool `{name}`; {hint}")));
        };
        if self.info().tools.off.iter().any(|off| off == name) {
            return Ok(ToolResult::failed(
                BAD_CALL,
                format!("the tool `{name}` is switched off in this box"),
            ));
        }
        let schema = match &found {
            Found::BuiltIn(tool) => (tool.info)().parameters,
            Found::Command(tool) => tool.parameters.clone(),
            Found::Rust(tool) => tool.info.parameters.clone(),
        };
        let complete = match schema::complete(&schema, params) {
            Ok(complete) => complete,
            Err(why) => return Ok(ToolResult::failed(BAD_CALL, format!("{name}: {why}"))),
        };
        let result = match &found {
            Found::BuiltIn(tool) => (tool.run)(self, &complete).await,
            Found::Command(tool) => tool.run(self, &complete).await,
            Found::Rust(tool) => tool.run(self, &complete).await,
        };
        match result {
            Err(e) if is_answer(&e) => Ok(ToolResult::failed(1, e.to_string())),
            // The kernel refused something; as long as the box works, that is about what was asked for, too.
            Err(e) if e.kind() == ErrorKind::Failed && self.call(Request::Ping).await.is_ok() => {
                Ok(ToolResult::failed(1, e.to_string()))
            }
            other => other,
        }
    }

    /// The end of every call: here, and nowhere else, the step goes on record.
    ///
    /// Files and commands that the tool touched are on record already, by their own ways; what is known only here is
    /// that they belong to one call, its name, its parameters, its answer, and how long it took.
    async fn finish(&self, name: &str, params: &Value, result: &ToolResult, started: (Instant, SystemTime)) {
        let begun = started.1.duration_since(UNIX_EPOCH).unwrap_or_default();
        let done = Done {
            tool: Some(name.to_owned()),
            params: Some(params.clone()),
            exec: result.exec,
            output: Some(Payload::whole(result.stdout.clone()).with_gaps(result.stdout_gaps.clone())),
            stderr: Some(Payload::whole(result.stderr.clone()).with_gaps(result.stderr_gaps.clone())),
            exit_code: Some(result.exit_code),
            error: result.error.clone(),
            wall_us: u64::try_from(started.0.elapsed().as_micros()).unwrap_or(u64::MAX),
            begun_ms: u64::try_from(begun.as_millis()).ok(),
        };
        self.step(done).await;
    }
}

/// Whether an error is about what was asked for, so that an agent can do something about it.
fn is_answer(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Gone | ErrorKind::Failed)
}

/// A call as it is carried out: by our name of the tool, with what is meant where nothing is said. One of a tool that not
/// every box has, or that makes no sense, has its own parameters.
pub fn complete(name: &str, params: Value) -> (String, Value) {
    let (name, params) = canonical(name, params);
    let tool = BUILT_IN.iter().find(|tool| tool.name == name);
    match tool.and_then(|tool| schema::complete(&(tool.info)().parameters, &params).ok()) {
        Some(complete) => (name, Value::Object(complete.all().clone())),
        None => (name, params),
    }
}

/// The tools that every box has.
pub fn built_in() -> Vec<ToolInfo> {
    BUILT_IN.iter().map(|tool| (tool.info)()).collect()
}

/// Refuses tools of a box that could not be used, or that nobody knows.
pub(crate) fn check(spec: &SandboxSpec, rust: &[RustTool]) -> Result<()> {
    let names: Vec<&str> = BUILT_IN
        .iter()
        .map(|tool| tool.name)
        .chain(spec.tools.own.iter().map(|tool| tool.name.as_str()))
        .chain(rust.iter().map(|tool| tool.info.name.as_str()))
        .collect();
    own::check(&spec.tools, &names)
}

/// Refuses a Rust tool that could not be called.
pub(crate) fn check_rust(tool: &RustTool, others: &[RustTool]) -> Result<()> {
    let taken = BUILT_IN.iter().map(|tool| tool.name);
    let taken: Vec<&str> = taken.chain(others.iter().map(|tool| tool.info.name.as_str())).collect();
    own::check_info(&tool.info, &taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_knows_the_names_of_all_parameters() {
        let tools = built_in();
        let named = tools.iter().flat_map(|tool| tool.parameters["properties"].as_object().unwrap().keys());
        let named: std::collections::BTreeSet<&str> = named.map(String::as_str).collect();
        assert_eq!(named, glasshouse_trace::PARAMETERS.into_iter().collect());
    }

    #[test]
    fn every_tool_has_a_schema_that_others_can_read() {
        for tool in built_in() {
            let schema = &tool.parameters;
            assert_eq!(schema["type"], "object", "{}", tool.name);
            assert_eq!(schema["additionalProperties"], false, "{}", tool.name);
            let properties = schema["properties"].as_object().unwrap();
            for (name, property) in properties {
                assert!(property["type"].is_string() || property["type"].is_array(), "{}.{name}", tool.name);
                assert!(property["description"].is_string(), "{}.{name}", tool.name);
            }
            for name in schema["required"].as_array().unwrap() {
                assert!(properties.contains_key(name.as_str().unwrap()), "{}.{name}", tool.name);
            }
            assert!(!tool.description.is_empty() && own::check_info(&tool, &[]).is_ok(), "{}", tool.name);
        }
    }

    #[test]
    fn a_tool_is_called_by_the_name_that_it_gives() {
        for tool in BUILT_IN {
            assert_eq!((tool.info)().name, tool.name);
        }
    }
}
