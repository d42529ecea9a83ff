//! `glass run`: a fresh box for one command.

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::SandboxSpec;

use super::create::{Made, make, remove};
use super::exec::Foreground;
use crate::args::{BoxOptions, CommandOptions, Global};
use crate::session::signal_code;
use crate::signals::Signals;
use crate::words::Limited;

/// Run a command in a fresh box, and remove the box
#[derive(Debug, Args)]
#[command(override_usage = "glass run [OPTIONS] -- CMD...")]
#[command(after_help = "\
The exit code is the program's own; 125 says that we failed, 124 that its time was up, 137 that
it was killed or out of memory.

Examples:
  glass run -- python3 -c 'print(1)'
  glass run --memory 256m --timeout 10s -- ./untrusted
  glass run --image dir:/srv/alpine -it -- sh
  echo data | glass run -i --shell -- 'sort | uniq -c'")]
pub(crate) struct Run {
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    command: CommandOptions,
}

impl Run {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        // The box dies with us, even if we are killed.
        let spec = SandboxSpec { owner: Some(std::process::id()), ..self.the_box.spec()? };
        let part = self.command.part();
        let exec = self.command.spec(part)?;
        // From here on a signal must not end us before the box is removed.
        let mut signals = Signals::of(part)?;
        let sandbox = match make(&global.open()?, spec, &mut signals).await? {
            Made::Box(sandbox) => sandbox,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        let foreground = Foreground { global, sandbox: &sandbox, part, limited: Limited::Here };
        let code = foreground.run(exec, &mut signals).await;
        let removed = remove(&sandbox, &mut signals).await;
        let code = code?;
        removed.map(|()| code)
    }
}
