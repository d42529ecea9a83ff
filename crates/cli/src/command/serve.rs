//! `glass serve`: boxes for others, over HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, ValueHint};
use glasshouse_server::{Config, DEFAULT_CONFIG, Server};
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
Boxes are kept where all commands keep them: `glass list` shows those of the server, and they
stay when it ends. Without a key only this machine is served, and no pages of other sites. The
API is told at /openapi.json.

Examples:
  glass serve
  glass key add ci --tenant red
  glass serve --listen 0.0.0.0:8080 --config serve.toml
  glass serve --show-config
  pip install opensandbox                     a client; its default is where `glass serve` is")]
pub(crate) struct Serve {
    /// Where to take connections; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// A file that holds a key that callers show and that opens all [default: $GLASSHOUSE_KEY, if it is set]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    key_file: Option<PathBuf>,
    /// The host and port that callers are told to find boxes at [default: those that they called]
    #[arg(long, value_name = "HOST:PORT")]
    public_host: Option<String>,
    /// A file of settings (TOML); options are stronger
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
    /// Print all settings with what holds without a word, and do nothing
    #[arg(long, conflicts_with_all = ["listen", "key_file", "public_host", "config"])]
    show_config: bool,
}

impl Serve {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        if self.show_config {
            output::print_bytes(DEFAULT_CONFIG.as_bytes())?;
            return Ok(0);
        }
        let config = self.config(global)?;
        // Before anything is opened: nobody is to get in for a moment.
        config.check()?;
        let mut signals = Signals::of(Part::default())?;
        let house = global.open()?;
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", config.listen))?;
        let address = listener.local_addr().context("cannot tell where connections are taken")?;
        let config = Config { listen: address, ..config };
        let server = Server::open(house, config).await?;
        server.log_to(std::io::stderr())?;
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
                () = &mut serving => return Ok(0),
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

impl Serve {
    /// What the file says, and what the options say over it.
    fn config(&self, global: &Global) -> Result<Config> {
        let text = match &self.config {
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the settings in {}", path.display()))?,
            None => String::new(),
        };
        let mut config = Config::read(global.home()?, &text)?;
        config.listen = self.listen.unwrap_or(config.listen);
        config.key = key(self.key_file.as_deref())?;
        config.public_host = self.public_host.clone().or(config.public_host);
        if let Some(mcp) = &mut config.mcp {
            mcp.git_env = git_env();
        }
        Ok(config)
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
