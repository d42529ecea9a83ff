//! `glass shell`: a terminal in a box.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{ExecSpec, Exit, NotStarted, Program};
use serde_json::Value;

use super::exec::Foreground;
use crate::args::{Global, Surroundings, surround};
use crate::output;
use crate::session::{CLOSED_CODE, End, Part, signal_code};
use crate::signals::Signals;
use crate::words::Limited;

/// The shells to try, the most comfortable first.
const SHELLS: [&str; 2] = ["bash", "sh"];

/// Open a shell in a box, on a terminal of its own
#[derive(Debug, Args)]
#[command(override_usage = "glass shell [OPTIONS] ID [-- CMD...]")]
#[command(after_help = "\
Without a command it is bash, or sh where there is no bash. The exit code is the shell's.

Examples:
  glass shell web
  glass shell web --user root
  glass shell web -- python3")]
pub(crate) struct Shell {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    #[command(flatten)]
    surroundings: Surroundings,
    /// Another program than the shell, with its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Shell {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let part = Part { stdin: true, tty: true, raw: true, ..Part::default() };
        let sandbox = global.connect(&self.name).await?;
        let mut signals = Signals::of(part)?;
        // What happens on a terminal is seen there, also with --json: only the end is left to be told.
        let streamed = global.without_json();
        let foreground = Foreground { global: &streamed, sandbox: &sandbox, part, limited: Limited::Earlier };
        let mut commands: Vec<Vec<String>> = SHELLS.iter().map(|shell| vec![(*shell).to_owned()]).collect();
        if !self.command.is_empty() {
            commands = vec![self.command];
        }
        let last = commands.len() - 1;
        for (number, argv) in commands.into_iter().enumerate() {
            let mut spec = ExecSpec { program: Program::Argv(argv), ..ExecSpec::default() };
            surround(&mut spec, &self.surroundings, part)?;
            match foreground.end(spec, &mut signals).await? {
                End::Ended(ended) if number < last && is_missing(&ended.report.exit) => {}
                End::Ended(ended) => {
                    if global.json {
                        output::print_json(&Value::Object(output::report_json(ended.exec, &ended.report)))?;
                        return Ok(ended.report.exit.shell_code());
                    }
                    return Ok(foreground.ended(&ended));
                }
                End::Stopped(signal) => return Ok(signal_code(signal)),
                End::Closed | End::UpToDate | End::Collected(_) => return Ok(CLOSED_CODE),
            }
        }
        Ok(0)
    }
}

fn is_missing(exit: &Exit) -> bool {
    matches!(exit, Exit::NotStarted { why: NotStarted::NotFound | NotStarted::NotExecutable, .. })
}
