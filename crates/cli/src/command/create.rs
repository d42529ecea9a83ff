//! `glass create`: a box that stays.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{Level, SandboxInfo};
use serde_json::json;

use crate::args::{BoxOptions, Global, Surroundings};
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
  glass create --owner $$                     dies with this shell")]
pub(crate) struct Create {
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    surroundings: Surroundings,
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
        let sandbox = global.open()?.create(spec).await?;
        if let Some(warning) = warning(sandbox.info()) {
            global.say(&warning);
        }
        match global.json {
            true => output::print_json(&json!({ "id": sandbox.id() }))?,
            false => output::print([sandbox.id()])?,
        }
        Ok(0)
    }
}

/// A box that is less than it could be says so when it is made.
fn warning(info: &SandboxInfo) -> Option<String> {
    match info.level {
        Level::Full => None,
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
