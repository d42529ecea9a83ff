//! `glass`: runs hostile code in boxes. One file for each command, below `command/`.

mod args;
mod code;
mod command;
mod duration;
mod engine;
mod escape;
mod finished;
mod home;
mod login;
mod number;
mod outfile;
mod outlet;
mod output;
mod progress;
mod session;
mod signals;
mod size;
mod stdin;
mod table;
mod terminal;
mod usage;
mod words;

use std::process::ExitCode;

use clap::Parser as _;

use crate::command::Cli;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return code(usage::report(&error)),
    };
    let failed = cli.command.code_of_errors();
    code(run(cli).unwrap_or_else(|error| {
        // Whoever closed our output does not want to hear about it.
        if output::is_closed(&error) {
            return session::CLOSED_CODE;
        }
        output::say(&output::sentence(&error));
        failed
    }))
}

fn run(cli: Cli) -> anyhow::Result<i32> {
    enough_files()?;
    let runtime = match cli.command.is_busy() {
        true => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
        false => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
    };
    let result = runtime.block_on(command::run(cli));
    // Nothing that still runs in the background may keep us: what must be waited for has been waited for.
    runtime.shutdown_background();
    result
}

/// What a box and the way to it need at the most, at once.
const FILES_MIN: u64 = 64;

/// Takes what we may have of open files, and says so if it is not enough, before something deep down finds out.
fn enough_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Raising it may be refused; then it is what it was.
    let _ = setrlimit(Resource::Nofile, limit);
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < FILES_MIN => {
            anyhow::bail!("cannot work with a limit of {files} open files; raise it with `ulimit -n`")
        }
        _ => Ok(()),
    }
}

fn code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
