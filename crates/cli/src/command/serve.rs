//! `glass serve`: boxes for others, over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use glasshouse_server::{Config, McpConfig, Server};
use serde_json::json;
use tokio::net::TcpListener;

use super::task::git_env;
use crate::args::Global;
use crate::output;
use crate::session::Part;
use crate::signals::{Signals, Told};

/// Serve boxes over HTTP, in the words of OpenSandbox's protocol
#[derive(Debug, Args)]
#[command(after_help = "\
Boxes are kept where all commands keep them: `glass list` shows those of the server, and they stay when
it ends. Without a key only this machine is served, and no pages of other sites. The API is told at
/openapi.json.

Examples:
  glass serve
  glass serve --listen 0.0.0.0:8080 --key-file /run/secrets/glass-key
  pip install opensandbox                     a client; its default is where `glass serve` is")]
pub(crate) struct Serve {
    /// Where to take connections; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// A file that holds the key that callers show [default: $GLASSHOUSE_KEY, if it is set]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
    /// The host and port that callers are told to find boxes at [default: those that they called]
    #[arg(long, value_name = "HOST:PORT")]
    public_host: Option<String>,
}

impl Serve {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let config = Config {
            listen: self.listen,
            key: key(self.key_file.as_deref())?,
            public_host: self.public_host,
            mcp: McpConfig { git_env: git_env(), local_repos: false },
            ..Config::new(global.home()?)
        };
        // Before anything is opened: nobody is to get in for a moment.
        config.check()?;
        let mut signals = Signals::of(Part::default())?;
        let house = global.open()?;
        let listener = TcpListener::bind(self.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", self.listen))?;
        let address = listener.local_addr().context("cannot tell where connections are taken")?;
        let config = Config { listen: address, ..config };
        let server = Server::open(house, config).await?;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let serving = server.serve(listener, async {
            // Whoever is gone without a word wants us to end as well.
            let _ = stopped.await;
        });
        match global.json {
            true => output::print_json(&json!({ "listen": address.to_string() }))?,
            false => output::print([&format!("http://{address}")])?,
        }
        let mut serving = std::pin::pin!(serving);
        let mut stop = Some(stop);
        loop {
            tokio::select! {
                ended = &mut serving => return ended.map(|()| 0).map_err(Into::into),
                told = signals.next() => if let Told::End(_) = told {
                    if signals.insist() {
                        return Ok(0);
                    }
                    drop(stop.take());
                }
            }
        }
    }
}

/// The key, from the file or the environment; never from the command line, which others can read.
fn key(file: Option<&Path>) -> Result<Option<String>> {
    let text = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.with_context(|| format!("cannot read the key in {}", path.display()))?)
        }
        None => std::env::var("GLASSHOUSE_KEY").ok().filter(|key| !key.is_empty()),
    };
    Ok(text.map(|text| text.trim().to_owned()))
}
