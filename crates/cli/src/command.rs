//! The commands, one file each.

mod attach;
mod audit;
mod batch;
mod commit;
mod completions;
mod context;
mod cp;
mod create;
mod diff;
mod digest;
mod doctor;
mod each;
mod exec;
mod export;
mod fork;
mod gc;
mod image;
mod import;
mod info;
mod jump;
mod key;
mod kill;
mod left;
mod list;
mod log;
mod mcp;
mod pause;
mod port;
mod ps;
mod repl;
mod replay;
mod reset;
mod restore;
mod resume;
mod run;
mod serve;
mod shell;
mod snapshot;
mod snapshots;
mod start;
mod stop;
mod task;
mod tools;
mod trajectory;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::args::Global;
use crate::session::Part;
use crate::signals::Signals;
use crate::usage::OURS_CODE;

/// Run code that you do not trust in a box that nothing gets out of
#[derive(Debug, Parser)]
#[command(name = "glass", version, arg_required_else_help = true, subcommand_required = true)]
#[command(after_help = "\
Examples:
  glass run -- python3 -c 'print(1)'          a fresh box for one command
  id=$(glass create --ttl 1h --memory 512m)   a box that stays
  glass exec $id -- make test                 a command in it
  glass cp ./src $id:/workspace               files into it
  glass doctor                                what this machine can isolate")]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(run::Run),
    Create(create::Create),
    Exec(exec::Exec),
    Shell(shell::Shell),
    Context(context::Contexts),
    Repl(repl::Repl),
    Batch(Box<batch::Batch>),
    Tools(tools::Tools),
    List(list::List),
    Info(info::Info),
    Ps(ps::Ps),
    Attach(attach::Attach),
    Cp(cp::Cp),
    Log(log::Log),
    Audit(audit::Audit),
    Snapshot(snapshot::Snapshot),
    Snapshots(snapshots::Snapshots),
    Diff(diff::DiffStates),
    Digest(digest::Digest),
    Reset(reset::Reset),
    Restore(restore::Restore),
    Fork(fork::Fork),
    Port(port::PortOf),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Stop(stop::Stop),
    Start(start::Start),
    Kill(kill::Kill),
    Commit(commit::Commit),
    Export(export::Export),
    Import(import::Import),
    Image(image::Images),
    Replay(replay::Replay),
    Jump(jump::Jump),
    Trajectory(trajectory::Trajectories),
    Serve(serve::Serve),
    Key(key::KeyCommands),
    Mcp(mcp::Mcp),
    Gc(gc::Gc),
    Doctor(doctor::Doctor),
    Completions(completions::Completions),
}

impl Command {
    /// The exit code of an error of ours.
    pub(crate) fn code_of_errors(&self) -> i32 {
        match self {
            Command::Run(_) | Command::Exec(_) => OURS_CODE,
            Command::Context(contexts) if contexts.is_run() => OURS_CODE,
            _ => 1,
        }
    }

    /// Whether it serves many at once, and is worth a thread for each processor.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Command::Serve(_) | Command::Batch(_))
    }
}

/// Does it, and returns the exit code. However it ended, what it left to be done is done before the program ends, unless
/// somebody tells us to end: then the next command, or `gc`, finds the rest.
pub(crate) async fn run(cli: Cli) -> Result<i32> {
    let Cli { global, command } = cli;
    let done = carry_out(command, &global).await;
    if let Ok(mut signals) = Signals::of(Part::default()) {
        let _ = signals.unless_told(global.settle()).await;
    }
    done
}

async fn carry_out(command: Command, global: &Global) -> Result<i32> {
    match command {
        Command::Run(command) => command.run(global).await,
        Command::Create(command) => command.run(global).await,
        Command::Exec(command) => command.run(global).await,
        Command::Shell(command) => command.run(global).await,
        Command::Context(command) => command.run(global).await,
        Command::Repl(command) => command.run(global).await,
        Command::Batch(command) => command.run(global).await,
        Command::Tools(command) => command.run(global).await,
        Command::List(command) => command.run(global).await,
        Command::Info(command) => command.run(global).await,
        Command::Ps(command) => command.run(global).await,
        Command::Attach(command) => command.run(global).await,
        Command::Cp(command) => command.run(global).await,
        Command::Log(command) => command.run(global),
        Command::Audit(command) => command.run(global),
        Command::Snapshot(command) => command.run(global).await,
        Command::Snapshots(command) => command.run(global).await,
        Command::Diff(command) => command.run(global).await,
        Command::Digest(command) => command.run(global).await,
        Command::Reset(command) => command.run(global).await,
        Command::Restore(command) => command.run(global).await,
        Command::Fork(command) => command.run(global).await,
        Command::Port(command) => command.run(global).await,
        Command::Pause(command) => command.run(global).await,
        Command::Resume(command) => command.run(global).await,
        Command::Stop(command) => command.run(global).await,
        Command::Start(command) => command.run(global).await,
        Command::Kill(command) => command.run(global).await,
        Command::Commit(command) => command.run(global).await,
        Command::Export(command) => command.run(global).await,
        Command::Import(command) => command.run(global).await,
        Command::Image(command) => command.run(global).await,
        Command::Replay(command) => command.run(global).await,
        Command::Jump(command) => command.run(global).await,
        Command::Trajectory(command) => command.run(global),
        Command::Serve(command) => command.run(global).await,
        Command::Key(command) => command.run(global),
        Command::Mcp(command) => command.run(global).await,
        Command::Gc(command) => command.run(global).await,
        Command::Doctor(command) => command.run(global).await,
        Command::Completions(command) => command.run(global),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn words_after_the_dashes_belong_to_the_program() {
        for line in [
            "glass run -- ls --json -t",
            "glass run --memory 64m -it -- sh",
            "glass run ls -l",
            "glass exec web --background -- sleep 9",
            "glass shell web",
            "glass shell web -- zsh -l",
            "glass --json list",
            "glass list --json",
            "glass kill a b c",
            "glass kill --all",
            "glass pause a b",
            "glass port web",
            "glass port web 8000",
            "glass port web 8000 --listen 0.0.0.0:80",
            "glass port web 8000 --listen [::1]:0",
            "glass resume a --json",
            "glass cp a:/x .",
            "glass attach web 3 --from 10 --no-follow",
            "glass log web --verify",
            "glass log web --html x.html",
            "glass audit verify",
            "glass audit verify a b --json",
            "glass run --image debian:12",
            "glass image pull localhost:5000/x:y --insecure",
            "glass image import x.tar --name y",
            "glass image list --json",
            "glass image remove a b",
            "glass image inspect a",
            "glass digest web",
            "glass diff web",
            "glass diff a b --stat",
            "glass diff a b --content --json",
            "glass diff a --tar -",
            "glass reset web --verify",
            "glass commit a -t b:1",
            "glass export a -o b",
            "glass import - --name b",
            "glass create --owner 123 --label a=b --label c=d",
            "glass create --without-tool git --without-tool python --tool-file x.json",
            "glass exec web --tool shell --params {}",
            "glass exec web --tool submit",
            "glass tools",
            "glass tools web --openai",
            "glass tools --mcp",
            "glass trajectory convert a --from swe-agent --to atif -o b",
            "glass trajectory validate - --format knowlyr-b --json",
            "glass trajectory schema",
            "glass trajectory export web --format atif -o x",
            "glass replay x.json --mode branch --until 3",
            "glass replay --of web --strict",
            "glass jump web 3",
            "glass trajectory diff a b --strict",
            "glass serve",
            "glass mcp --local-repos",
            "glass serve --listen 127.0.0.1:0 --key-file /run/key",
        ] {
            parsed(line).map(drop).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn code_is_asked_for_in_these_ways() {
        for line in [
            "glass context create web",
            "glass context create web --lang js --name a --env A=b --cwd /tmp",
            "glass context list web --json",
            "glass context run web a -c -1",
            "glass context run web a - --timeout 1s",
            "glass context interrupt web a",
            "glass context restart web a",
            "glass context delete web a",
            "glass run --lang python",
            "glass repl web",
            "glass repl web --lang js --cwd /tmp",
            "glass repl web --context a",
            "glass run --lang ts x.ts",
            "glass batch --lang python a.py b.py -j 2 --files out",
        ] {
            parsed(line).map(drop).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for line in [
            "glass",
            "glass run",
            "glass run --bogus -- ls",
            "glass exec web",
            "glass exec web --tool shell -- ls",
            "glass exec web --params {} -- ls",
            "glass exec web --tool shell --background",
            "glass exec web --tool shell --cwd /",
            "glass exec web --tool shell --raw",
            "glass tools --openai --mcp",
            "glass context",
            "glass repl",
            "glass repl web --lang js --context a",
            "glass context create web --lang cobol",
            "glass context run web a",
            "glass context run web a x -c y",
            "glass run --lang python -t x.py",
            "glass run --lang python --shell x.py",
            "glass exec web --background -i -- sh",
            "glass kill",
            "glass pause",
            "glass port",
            "glass port web 0",
            "glass port web 70000",
            "glass port web --listen 127.0.0.1:0",
            "glass port web 80 --listen 8080",
            "glass resume",
            "glass kill --all web",
            "glass run --cpu -1 -- ls",
            "glass run --pids 0 -- ls",
            "glass run --runtime podman -- ls",
            "glass run --min-level strongest -- ls",
            "glass create --owner 0",
            "glass create --owner -3",
            "glass attach web x",
            "glass cp a",
            "glass completions tcsh",
            "glass image",
            "glass image pull",
            "glass image remove",
            "glass diff",
            "glass diff a b c",
            "glass diff a --stat --tar x",
            "glass commit a",
            "glass run --image A -- ls",
            "glass trajectory",
            "glass trajectory convert a",
            "glass trajectory convert a --to nonsense",
            "glass trajectory diff a",
            "glass trajectory diff a b --strict --output-only",
            "glass log a --verify --diff",
            "glass log a --html x --diff",
            "glass replay a --on b --image host",
            "glass replay a --on b --env x=y",
            "glass replay a --on b --repo c --commit d",
            "glass replay --of a --format atif",
            "glass serve --listen localhost",
            "glass serve x",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
