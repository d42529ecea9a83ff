//! `glass tools`: what an agent can call in a box; and the options of `create` and `exec` that are about tools.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Args, ValueHint};
use glasshouse_sandbox::{CommandTool, Sandbox, ToolInfo, ToolResult, ToolsSpec, tools};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};

use crate::args::Global;
use crate::outlet::Outlet;
use crate::session::{Part, signal_code};
use crate::signals::{Signals, Told};
use crate::{output, table, terminal};

/// Parameters that are read from a file or from stdin.
const PARAMS_BYTES_MAX: u64 = 64 << 20;
/// A file with tools.
const TOOL_FILE_BYTES_MAX: u64 = 4 << 20;

/// List the tools of a box, or those that every box has
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass tools
  glass tools web --openai                    for the `tools` of a chat completion
  glass tools web --mcp                       for the answer to `tools/list`
  glass exec web --tool shell --params '{\"command\": \"make test\", \"timeout\": 60}'")]
pub(crate) struct Tools {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: Option<String>,
    /// As JSON in the shape of OpenAI's function calling
    #[arg(long, conflicts_with = "mcp")]
    openai: bool,
    /// As JSON in the shape of the Model Context Protocol
    #[arg(long)]
    mcp: bool,
}

impl Tools {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let tools = match &self.name {
            Some(name) => global.connect(name).await?.tools(),
            None => tools::built_in(),
        };
        let all = |shape: fn(&ToolInfo) -> Value| Value::Array(tools.iter().map(shape).collect());
        match (self.openai, self.mcp, global.json) {
            (true, _, _) => output::print_json(&all(ToolInfo::openai))?,
            (_, true, _) => output::print_json(&all(ToolInfo::mcp))?,
            (_, _, true) => output::print_json(&all(ToolInfo::to_json))?,
            _ if tools.is_empty() => global.say("this box has no tools"),
            _ => {
                let rows: Vec<Vec<String>> = tools.iter().map(row).collect();
                let mut lines =
                    table::lines(&["TOOL", "WHAT IT DOES", "PARAMETERS"], &rows, terminal::width());
                lines[0] = lines[0].bold().to_string();
                output::print(lines)?;
            }
        }
        Ok(0)
    }
}

/// Parameters that may be left out are in brackets; those that may not come first.
fn row(tool: &ToolInfo) -> Vec<String> {
    let required: Vec<&str> = tool.parameters["required"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let others = tool.parameters["properties"].as_object().into_iter().flat_map(|all| all.keys());
    let others = others.filter(|name| !required.contains(&name.as_str())).map(|name| format!("[{name}]"));
    let params: Vec<String> = required.iter().map(|name| (*name).to_owned()).chain(others).collect();
    let about = tool.description.split_inclusive(". ").next().unwrap_or_default().trim_end();
    vec![tool.name.clone(), about.to_owned(), params.join(" ")]
}

/// Which tools a new box has.
#[derive(Debug, Clone, Args)]
pub(crate) struct OwnTools {
    /// A tool that the box shall not have (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Tools")]
    without_tool: Vec<String>,
    /// A JSON file with tools of your own that are commands of the box (repeatable)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Tools")]
    tool_file: Vec<PathBuf>,
}

impl OwnTools {
    pub(super) fn spec(self) -> Result<ToolsSpec> {
        let mut own = Vec::new();
        for path in &self.tool_file {
            let text = read_at_most(std::fs::File::open(path), TOOL_FILE_BYTES_MAX)
                .and_then(|text| Ok(CommandTool::parse(&text)?));
            own.extend(text.with_context(|| format!("cannot read the tools in {}", path.display()))?);
        }
        Ok(ToolsSpec { off: self.without_tool, own })
    }
}

/// The call of a tool: options of `exec`.
#[derive(Debug, Clone, Args)]
pub(crate) struct ToolOptions {
    /// Call this tool, in place of a command
    #[arg(long, value_name = "NAME", help_heading = "Tool")]
    #[arg(conflicts_with_all = [
        "background", "output", "env", "cwd", "user", "interactive", "tty", "shell", "raw", "timeout",
        "grace", "cpu_time", "output_max",
    ])]
    tool: Option<String>,
    /// Its parameters: a JSON object, @FILE, or - for stdin
    #[arg(
        long,
        value_name = "JSON|@FILE|-",
        requires = "tool",
        conflicts_with = "command",
        allow_hyphen_values = true,
        help_heading = "Tool"
    )]
    params: Option<String>,
}

/// The call of a tool.
pub(super) struct ToolCall {
    name: String,
    params: Value,
}

impl ToolOptions {
    /// The call, if there is one.
    pub(super) fn read(&self) -> Result<Option<ToolCall>> {
        let Some(name) = self.tool.clone() else { return Ok(None) };
        let text = match self.params.as_deref() {
            None => return Ok(Some(ToolCall { name, params: json!({}) })),
            Some("-") => {
                read_at_most(Ok(std::io::stdin()), PARAMS_BYTES_MAX).context("cannot read the parameters")?
            }
            Some(text) => match text.strip_prefix('@') {
                Some(path) => read_at_most(std::fs::File::open(path), PARAMS_BYTES_MAX)
                    .with_context(|| format!("cannot read the parameters in {path}"))?,
                None => text.to_owned(),
            },
        };
        let params =
            serde_json::from_str(&text).map_err(|e| anyhow!("cannot take --params for JSON: {e}"))?;
        Ok(Some(ToolCall { name, params }))
    }
}

impl ToolCall {
    /// Makes the call, shows the answer, and returns the tool's code.
    pub(super) async fn run(self, global: &Global, sandbox: &Sandbox) -> Result<i32> {
        let mut signals = Signals::of(Part::default())?;
        let result = tokio::select! {
            result = sandbox.tool(&self.name, self.params) => result?,
            // What runs for the tool ends with the call.
            told = ended_by(&mut signals) => return Ok(signal_code(told)),
        };
        match global.json {
            true => output::print_json(&result.to_json())?,
            false => show(&result).await?,
        }
        Ok(result.exit_code)
    }
}

async fn ended_by(signals: &mut Signals) -> i32 {
    loop {
        if let Told::End(signal) = signals.next().await {
            return signal;
        }
    }
}

async fn show(result: &ToolResult) -> Result<()> {
    for (mut outlet, text) in
        [(Outlet::stdout(false), &result.stdout), (Outlet::stderr(false), &result.stderr)]
    {
        outlet.push(text.as_bytes().to_vec());
        outlet.finish();
        outlet.flush().await.context(output::WRITE)?;
    }
    if let Some(error) = &result.error {
        output::say(error);
    }
    Ok(())
}

fn read_at_most(from: std::io::Result<impl std::io::Read>, most: u64) -> Result<String> {
    let mut text = String::new();
    from?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        bail!("it is larger than {most} bytes");
    }
    Ok(text)
}
