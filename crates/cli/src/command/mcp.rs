//! `glass mcp`: boxes as tools of an agent.

use anyhow::Result;
use clap::Args;
use glasshouse_server::{McpConfig, serve_stdio};

use super::task::git_env;
use crate::args::Global;
use crate::session::{Part, signal_code};
use crate::signals::{Signals, Told};

/// Speak the Model Context Protocol on stdin and stdout: boxes as tools of an agent
#[derive(Debug, Args)]
#[command(after_help = "\
The boxes of a session end with it, however it ends. An agent reaches those that it made, and no
others.

Examples:
  claude mcp add glasshouse -- glass mcp
  { \"mcpServers\": { \"glasshouse\": { \"command\": \"glass\", \"args\": [\"mcp\"] } } }     for Claude Desktop")]
pub(crate) struct Mcp {
    /// Repositories that the agent names may be paths of this machine
    #[arg(long)]
    local_repos: bool,
}

impl Mcp {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let mut signals = Signals::of(Part::default())?;
        let house = global.open()?;
        let config = McpConfig { git_env: git_env(), local_repos: self.local_repos, ..McpConfig::default() };
        let mut serving = std::pin::pin!(serve_stdio(house, config));
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map(|()| 0).map_err(Into::into),
                // The boxes have us for their owner, and end with us.
                told = signals.next() => if let Told::End(signal) = told {
                    return Ok(signal_code(signal));
                }
            }
        }
    }
}
