//! `glass run`: a fresh box for one command.

use anyhow::{Context as _, Result};
use clap::Args;
use glasshouse_sandbox::{Sandbox, SandboxSpec};

use super::exec::Foreground;
use crate::args::{BoxOptions, CommandOptions, Global};
use crate::session::signal_code;
use crate::signals::{Impatient, Signals};
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
        let sandboxes = global.open()?;
        // From here on a signal must not end us before the box is removed.
        let mut signals = Signals::of(part)?;
        let sandbox = match signals.through(sandboxes.create(spec)).await {
            Ok((sandbox, None)) => sandbox?,
            Ok((sandbox, Some(signal))) => {
                // A box that was not made is what whoever stopped us wanted.
                if let Ok(sandbox) = sandbox {
                    remove(&sandbox, &mut signals).await?;
                }
                return Ok(signal_code(signal));
            }
            Err(Impatient { signal }) => return Ok(signal_code(signal)),
        };
        let foreground = Foreground { global, sandbox: &sandbox, part, limited: Limited::Here };
        let code = foreground.run(exec, &mut signals).await;
        remove(&sandbox, &mut signals).await?;
        code
    }
}

/// Removes the box, unless somebody insists that we leave: it dies with us then.
async fn remove(sandbox: &Sandbox, signals: &mut Signals) -> Result<()> {
    match signals.through(sandbox.destroy()).await {
        Ok((done, _)) => done.with_context(|| format!("cannot remove the box {}", sandbox.id())),
        Err(Impatient { .. }) => Ok(()),
    }
}
