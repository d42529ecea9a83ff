//! `glass context`: interpreters of a box that remember, and code that is run in them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueHint};
use glasshouse_sandbox::{Code, ContextInfo, ContextSpec, ContextState, ExecSpec, Program, Tongue};
use owo_colors::OwoColorize as _;
use serde_json::json;

use super::exec::{Foreground, background};
use crate::args::{Global, Surroundings, Warming, milliseconds};
use crate::session::Part;
use crate::signals::Signals;
use crate::words::Limited;
use crate::{code, duration, output, size, table, terminal, words};

/// Code contexts of a box: create, list, run, interrupt, restart, delete
#[derive(Debug, Args)]
#[command(after_help = "\
A context is an interpreter that lives in the box and remembers: variables, imports, its directory.

Examples:
  glass context create web --lang python --name notebook
  glass context create web --lang jupyter:ir           a kernel of Jupyter's that the box has
  glass context run web notebook -c 'x = 6 * 7'
  glass context run web notebook -c 'x'
  glass context list web")]
pub(crate) struct Contexts {
    #[command(subcommand)]
    command: What,
}

/// What to do with contexts.
#[derive(Debug, Subcommand)]
enum What {
    Create(Create),
    List(List),
    Run(RunCode),
    Interrupt(Interrupt),
    Restart(Restart),
    Delete(Delete),
}

impl Contexts {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        match self.command {
            What::Create(command) => command.run(global).await,
            What::List(command) => command.run(global).await,
            What::Run(command) => command.run(global).await,
            What::Interrupt(command) => command.which.interrupt(global).await,
            What::Restart(command) => command.which.restart(global).await,
            What::Delete(command) => command.which.delete(global).await,
        }
    }

    /// Whether it runs something, so that errors of ours have a code of their own.
    pub(crate) fn is_run(&self) -> bool {
        matches!(self.command, What::Run(_))
    }
}

/// Start an interpreter that remembers, and print its name alone
#[derive(Debug, Args)]
struct Create {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// What it speaks: python, javascript (js), typescript (ts), bash, or jupyter:NAME for a kernel that the box has
    #[arg(long, value_name = "LANG", default_value = "python", value_parser = code::tongue)]
    lang: Tongue,
    /// What to call it [default: c1, c2 and so on]
    #[arg(long = "name", value_name = "NAME")]
    id: Option<String>,
    /// Another interpreter than the language's usual one: a name in PATH, or a path; of jupyter, a kernel's name
    #[arg(long, value_name = "PROGRAM")]
    interpreter: Option<String>,
    #[command(flatten)]
    warming: Warming,
    #[command(flatten)]
    surroundings: Surroundings,
}

impl Create {
    async fn run(self, global: &Global) -> Result<i32> {
        let spec = ContextSpec {
            language: self.lang.language,
            id: self.id,
            interpreter: self.lang.interpreter(self.interpreter).map_err(anyhow::Error::msg)?,
            cwd: self.surroundings.cwd.clone(),
            env: self.surroundings.variables()?,
            user: self.surroundings.user.clone(),
            warm: self.warming.warm(),
            carried: None,
        };
        let context = global.connect(&self.name).await?.create_context(spec).await?;
        if let Some(why) = &context.cold {
            global.say(&format!("it was started cold: {why}"));
        }
        tell(global, &context)?;
        Ok(0)
    }
}

fn tell(global: &Global, context: &ContextInfo) -> Result<()> {
    match global.json {
        true => output::print_json(&json!(context)),
        false => output::print([context.id.as_str()]),
    }
}

/// List the contexts of a box
#[derive(Debug, Args)]
struct List {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
}

impl List {
    async fn run(self, global: &Global) -> Result<i32> {
        let contexts = global.connect(&self.name).await?.contexts().await?;
        if global.json {
            output::print_json(&json!(contexts))?;
            return Ok(0);
        }
        if contexts.is_empty() {
            global.say("this box has no context; `glass context create` makes one");
            return Ok(0);
        }
        let header = ["CONTEXT", "LANGUAGE", "AGE", "RUNS", "STATE"];
        let rows: Vec<Vec<String>> = contexts.iter().map(row).collect();
        let mut lines = table::lines(&header, &rows, terminal::width());
        lines[0] = lines[0].bold().to_string();
        output::print(lines)?;
        Ok(0)
    }
}

fn row(context: &ContextInfo) -> Vec<String> {
    let version = context.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    let state = match &context.state {
        ContextState::Starting => "starting".to_owned(),
        ContextState::Idle => "idle".to_owned(),
        ContextState::Busy { exec } => format!("busy with run {exec}"),
        ContextState::Lost { why } => format!("lost: {why}"),
    };
    let cells =
        [context.id.clone(), format!("{}{version}", context.language.name()), words::age(context.started_ms)];
    let cells = cells.into_iter().chain([context.runs.to_string(), state]);
    cells.map(|cell| crate::escape::plain(&cell).into_owned()).collect()
}

/// Run code in a context
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0, or 1 if the code failed (for bash: that of its last command; for sys.exit(): what it says);
124 says that its time was up, 125 that we failed. When the time is up the code is interrupted; if that does not
end it, it is killed, and its context is lost.

Examples:
  glass context run web notebook -c 'import math; math.pi'
  glass context run web notebook plot.py --json
  generate | glass context run web notebook -")]
struct RunCode {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The context
    #[arg(value_name = "CONTEXT")]
    context: String,
    /// Where the code is; `-` is our stdin
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "code")]
    file: Option<PathBuf>,
    /// The code itself
    #[arg(short, long, value_name = "CODE", conflicts_with = "file", allow_hyphen_values = true)]
    code: Option<String>,
    /// Feed our stdin to the code; without it, its stdin is empty
    #[arg(short, long)]
    interactive: bool,
    /// Start it and leave; `glass attach` shows its output
    #[arg(long, conflicts_with = "interactive")]
    background: bool,
    /// Let escape sequences of the box reach our terminal
    #[arg(long)]
    raw: bool,
    /// Wall time after which the code is interrupted, like 30s
    #[arg(long, value_name = "TIME", value_parser = duration::parse, allow_hyphen_values = true)]
    timeout: Option<Duration>,
    /// Time between the interrupt and the kill when the time is up
    #[arg(long, value_name = "TIME", value_parser = duration::parse_or_zero, allow_hyphen_values = true)]
    grace: Option<Duration>,
    /// End the code when it has written more than this
    #[arg(long, value_name = "SIZE", value_parser = size::parse, allow_hyphen_values = true)]
    output_max: Option<u64>,
}

impl RunCode {
    async fn run(self, global: &Global) -> Result<i32> {
        let text = match &self.code {
            Some(code) => code.clone(),
            None => code::read(self.file.as_deref())?,
        };
        let sandbox = global.connect(&self.name).await?;
        let context = sandbox.context(&self.context).await?;
        let part = Part { stdin: self.interactive, raw: self.raw, ..Part::default() };
        let spec = ExecSpec {
            program: Program::Code(Code {
                context: context.id.clone(),
                language: context.language,
                code: text,
                whole: false,
            }),
            stdin: part.stdin,
            timeout_ms: self.timeout.map(milliseconds),
            grace_ms: self.grace.map(milliseconds),
            output_bytes_max: self.output_max,
            background: self.background,
            ..ExecSpec::default()
        };
        if self.background {
            return background(global, &sandbox, spec).await;
        }
        let mut signals = Signals::of(part)?;
        let foreground = Foreground { global, sandbox: &sandbox, part, limited: Limited::Earlier };
        foreground.run(spec, &mut signals).await
    }
}

/// One context.
#[derive(Debug, Args)]
struct Which {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The context
    #[arg(value_name = "CONTEXT")]
    context: String,
}

/// Interrupt what runs in a context, which lives on
#[derive(Debug, Args)]
struct Interrupt {
    #[command(flatten)]
    which: Which,
}

/// Kill a context's interpreter with all that it started, and start it anew
#[derive(Debug, Args)]
struct Restart {
    #[command(flatten)]
    which: Which,
}

/// Kill a context's interpreter with all that it started, and forget it
#[derive(Debug, Args)]
struct Delete {
    #[command(flatten)]
    which: Which,
}

impl Which {
    async fn interrupt(self, global: &Global) -> Result<i32> {
        global.connect(&self.name).await?.interrupt_context(&self.context).await?;
        self.done(global)
    }

    async fn restart(self, global: &Global) -> Result<i32> {
        let context = global.connect(&self.name).await?.restart_context(&self.context).await?;
        tell(global, &context)?;
        Ok(0)
    }

    async fn delete(self, global: &Global) -> Result<i32> {
        global.connect(&self.name).await?.delete_context(&self.context).await?;
        self.done(global)
    }

    fn done(self, global: &Global) -> Result<i32> {
        match global.json {
            true => output::print_json(&json!({ "context": self.context }))?,
            false => output::print([self.context])?,
        }
        Ok(0)
    }
}
