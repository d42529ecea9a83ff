//! `glass create`: a box that stays.

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use glasshouse_sandbox::{Level, Sandbox, SandboxInfo, SandboxSpec, Sandboxes};
use serde_json::json;

use super::image::{Fetched, fetch};
use super::task::{self, TaskOptions};
use super::tools::OwnTools;
use crate::args::{BoxOptions, Global, Surroundings};
use crate::session::{Part, signal_code};
use crate::signals::{Impatient, Signals};
use crate::{duration, output};

/// Create a box that stays, and print its id alone
#[derive(Debug, Args)]
#[command(after_help = "\
It lives until `glass kill`, until its --ttl has passed, or until its --owner ends. No server is
needed.

Examples:
  id=$(glass create --memory 512m --ttl 1h)
  glass create --name web --label team=red --timeout 5m
  glass create --image dir:/srv/alpine --read-only
  glass create --owner $$                     dies with this shell
  GLASSHOUSE_VOLUMES=/srv glass create --volume /srv/data:/data:ro
  glass create --without-tool shell --tool-file tools.json
  glass create --repo https://host/it.git --commit v1.2 --setup 'make deps' --test 'make test'

With --repo, git fetches on this machine and the box stays offline. What the set-up commands make is
kept as a snapshot: the next box with the same image, repository, commit and set-up is a fork of it,
whatever its --env: what set-up writes of that into files is in every such box.
Logins for git come from the URL, ~/.netrc or ssh; your own git settings are not read. --disk holds
for the box, not for its set-up.")]
pub(crate) struct Create {
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    surroundings: Surroundings,
    #[command(flatten)]
    task: TaskOptions,
    #[command(flatten)]
    tools: OwnTools,
    /// Wall time of each command, like 30s
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// The box ends when this process does
    #[arg(long, value_name = "PID", value_parser = owner)]
    #[arg(allow_hyphen_values = true, help_heading = "Box")]
    owner: Option<u32>,
}

impl Create {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let mut spec = self.the_box.spec()?;
        spec.limits.timeout = self.timeout;
        spec.env = self.surroundings.variables()?;
        spec.cwd = self.surroundings.cwd;
        spec.user = self.surroundings.user;
        spec.owner = self.owner;
        spec.tools = self.tools.spec()?;
        let mut signals = Signals::of(Part::default())?;
        let house = global.open()?;
        if let Some(Fetched::Stopped(signal)) = fetch(global, &house, &mut spec.image, &mut signals).await? {
            return Ok(signal_code(signal));
        }
        let made = match self.task.spec(global) {
            Some(task) => task::make(&house, spec, task, &mut signals).await?,
            None => make(&house, spec, &mut signals).await?,
        };
        let sandbox = match made {
            Made::Box(sandbox) => sandbox,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        if let Some(warning) = warning(sandbox.info()) {
            global.say(&warning);
        }
        let told = match global.json {
            true => output::print_json(&json!({ "id": sandbox.id() })),
            false => output::print([sandbox.id()]),
        };
        // A box whose id nobody knows would only lie around.
        if told.is_err() {
            remove(&sandbox, &mut signals).await?;
        }
        told.map(|()| 0)
    }
}

/// What became of a box that was to be made.
pub(super) enum Made {
    /// It lives.
    Box(Sandbox),
    /// We were told to end by this signal, and nothing is left of it.
    Stopped(i32),
}

/// Makes a box, or leaves nothing behind.
pub(super) async fn make(house: &Sandboxes, spec: SandboxSpec, signals: &mut Signals) -> Result<Made> {
    match signals.through(house.create(spec)).await {
        Ok((sandbox, None)) => Ok(Made::Box(sandbox?)),
        Ok((sandbox, Some(signal))) => {
            // A box that was not made is what whoever stopped us wanted.
            if let Ok(sandbox) = sandbox {
                remove(&sandbox, signals).await?;
            }
            Ok(Made::Stopped(signal))
        }
        Err(Impatient { signal }) => Ok(Made::Stopped(signal)),
    }
}

/// Removes a box, unless somebody insists that we leave: whoever looks next removes it then.
pub(super) async fn remove(sandbox: &Sandbox, signals: &mut Signals) -> Result<()> {
    match signals.through(sandbox.destroy()).await {
        Ok((done, _)) => done.with_context(|| format!("cannot remove the box {}", sandbox.id())),
        Err(Impatient { .. }) => Ok(()),
    }
}

/// A box that is less than it could be says so when it is made.
fn warning(info: &SandboxInfo) -> Option<String> {
    match info.level {
        Level::Full | Level::Gvisor | Level::Vm => None,
        Level::Reduced => Some(format!("the box's isolation is reduced: {}", info.missing.join("; "))),
        Level::None => Some("the box has no isolation: what runs in it can do all that you can".to_owned()),
    }
}

fn owner(text: &str) -> Result<u32, String> {
    match text.parse::<i32>() {
        Ok(pid @ 1..) => Ok(pid.cast_unsigned()),
        _ => Err("an owner is the number of a process, like $$ in a shell".to_owned()),
    }
}
