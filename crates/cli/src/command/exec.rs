//! `glass exec`: a command in a box that lives.

use anyhow::{Result, anyhow};
use clap::{Args, ValueHint};
use glasshouse_sandbox::{ExecEvent, ExecSpec, ExecState, Exit, ExitReport, Program, Sandbox};
use serde_json::{Value, json};

use super::tools::ToolOptions;
use crate::args::{CommandOptions, Global};
use crate::session::{self, CLOSED_CODE, End, Ended, Part, signal_code};
use crate::signals::{Impatient, Signals};
use crate::words::{self, Disk, Limited};
use crate::{output, size};

/// Run a command in a box
#[derive(Debug, Args)]
#[command(
    override_usage = "glass exec [OPTIONS] ID -- CMD...\n       glass exec ID --tool NAME [--params JSON]"
)]
#[command(after_help = "\
The exit code is the program's own, as with `glass run`. Output is streamed as it comes, unless
--json gathers it.

Examples:
  glass exec web -- ls -l /workspace
  glass exec web --cwd /workspace --timeout 5m -- make test
  glass exec web --background -- ./server     prints its number, for `glass attach web 1`
  glass exec web --json -- cat /etc/os-release
  glass exec web --tool search --params '{\"pattern\": \"fn main\", \"file_pattern\": \"*.rs\"}'
  glass exec web --tool file_write --params @call.json     `glass tools web` lists the tools")]
pub(crate) struct Exec {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// Let it run on, and print its number alone
    #[arg(long, conflicts_with_all = ["interactive", "tty"], help_heading = "Command")]
    background: bool,
    /// What is kept of its output for later readers, head and tail
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    output: Option<u64>,
    #[command(flatten)]
    call: ToolOptions,
    #[command(flatten)]
    options: CommandOptions,
    /// The program and its arguments
    #[arg(
        required_unless_present = "tool",
        conflicts_with = "tool",
        trailing_var_arg = true,
        value_name = "CMD"
    )]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
}

impl Exec {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        if let Some(call) = self.call.read()? {
            let sandbox = global.connect(&self.name).await?;
            return call.run(global, &sandbox).await;
        }
        let part = self.options.part();
        let spec = self.options.spec(part, &self.command)?;
        let spec = ExecSpec { background: self.background, kept_output_bytes: self.output, ..spec };
        let sandbox = global.connect(&self.name).await?;
        if self.background {
            return background(global, &sandbox, spec).await;
        }
        // Before this there is nothing that a signal could leave half done.
        let mut signals = Signals::of(part)?;
        Foreground { global, sandbox: &sandbox, part, limited: Limited::Earlier }
            .run(spec, &mut signals)
            .await
    }
}

/// Starts a command that stays, and prints its number.
pub(super) async fn background(global: &Global, sandbox: &Sandbox, spec: ExecSpec) -> Result<i32> {
    let mut exec = sandbox.exec(spec).await?;
    let id = exec.id();
    // Nobody waits for it, so whether it started at all is said now or never.
    let known = sandbox.execs().await?.into_iter().find(|info| info.exec == id);
    let ended = match known.map(|info| info.state) {
        Some(ExecState::Running) => None,
        Some(ExecState::Ended(report)) => Some(report),
        // What never started is forgotten at once.
        None => last_word(&mut exec).await,
    };
    if let Some(report) = ended.filter(|report| matches!(report.exit, Exit::NotStarted { .. })) {
        match global.json {
            true => output::print_json(&Value::Object(output::report_json(id, &report)))?,
            false => output::say(&words::exit(&report.exit)),
        }
        return Ok(report.exit.shell_code());
    }
    match global.json {
        true => output::print_json(&json!({ "exec": id }))?,
        false => output::print([id.to_string()])?,
    }
    Ok(0)
}

async fn last_word(exec: &mut glasshouse_sandbox::Exec) -> Option<ExitReport> {
    loop {
        match exec.next().await? {
            ExecEvent::Ended(report) => return Some(report),
            ExecEvent::Output(_)
            | ExecEvent::Result(_)
            | ExecEvent::Gap { .. }
            | ExecEvent::UpToDate { .. } => {}
        }
    }
}

/// A command with the user taking part.
pub(super) struct Foreground<'a> {
    pub(super) global: &'a Global,
    pub(super) sandbox: &'a Sandbox,
    pub(super) part: Part,
    pub(super) limited: Limited,
}

impl Foreground<'_> {
    /// Runs it to its end, and returns the exit code.
    pub(super) async fn run(&self, spec: ExecSpec, signals: &mut Signals) -> Result<i32> {
        self.run_and(spec, signals, async |_: &mut Value| Ok(())).await
    }

    /// The same, and does something when it has ended, with what is told of it in JSON if that is wanted. If that fails, the
    /// run is told all the same.
    pub(super) async fn run_and(
        &self,
        spec: ExecSpec,
        signals: &mut Signals,
        afterwards: impl AsyncFnOnce(&mut Value) -> Result<()>,
    ) -> Result<i32> {
        let is_code = matches!(spec.program, Program::Code(_));
        let context = match &spec.program {
            // Nobody misses the context of a program that was run once.
            Program::Code(code) => (!code.whole).then(|| code.context.clone()),
            _ => None,
        };
        match self.end(spec, signals).await? {
            End::Ended(ended) => {
                let code = self.ended(&ended);
                if let Some(why) = self.why_lost(context.as_deref()).await {
                    self.global.say(&format!("the context was lost: {why}"));
                }
                afterwards(&mut Value::Null).await?;
                Ok(code)
            }
            End::Collected(ran) => {
                let mut told = output::exec_json(&ran);
                if is_code {
                    told["results"] = ran.results.iter().map(crate::code::json).collect();
                    told["context_lost"] = self.why_lost(context.as_deref()).await.into();
                }
                let done = afterwards(&mut told).await;
                if let Err(e) = &done {
                    told["error"] = output::sentence(e).into();
                }
                output::print_json(&told)?;
                done?;
                Ok(ran.report.exit.shell_code())
            }
            End::Stopped(signal) => Ok(signal_code(signal)),
            End::Closed => Ok(CLOSED_CODE),
            End::UpToDate => Err(anyhow!("cannot follow the command: it was left before its end")),
        }
    }

    /// Why the context of a run is gone, if it is. An interpreter may end with any code.
    async fn why_lost(&self, context: Option<&str>) -> Option<String> {
        // A box that is gone has said so.
        self.sandbox.why_lost(context?).await.ok().flatten()
    }

    /// Runs it to its end.
    pub(super) async fn end(&self, spec: ExecSpec, signals: &mut Signals) -> Result<End> {
        let exec = match signals.through(self.sandbox.exec(spec)).await {
            Ok((exec, None)) => exec?,
            // Dropping the command kills it.
            Ok((_, Some(signal))) | Err(Impatient { signal }) => return Ok(End::Stopped(signal)),
        };
        match self.global.json {
            true => session::collect(exec, signals, self.part).await,
            false => session::stream(exec, signals, self.part).await,
        }
    }

    /// Says the cause of an end that was not the program's own, and returns the exit code.
    pub(super) fn ended(&self, ended: &Ended) -> i32 {
        let exit = &ended.report.exit;
        // Who pressed Ctrl-C knows why it ended.
        let asked_for = matches!(exit, Exit::Signal { signal } if ended.signal == Some(*signal));
        if let Some(cause) =
            words::cause(exit, self.limited, Disk::of(self.sandbox.info())).filter(|_| !asked_for)
        {
            self.global.say(&cause);
        }
        exit.shell_code()
    }
}
