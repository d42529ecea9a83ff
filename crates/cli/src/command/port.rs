//! `glass port`: a port of this machine that leads to one of a box, or what a box listens on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use glasshouse_sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::args::Global;
use crate::session::{Part, signal_code};
use crate::signals::{Signals, Told};
use crate::{output, table, terminal};

/// Connections that are carried at once; further ones wait to be accepted. The box has a bound of its own.
const CONNECTIONS_MAX: usize = 128;

/// Before the next try, when a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Reach a TCP port of a box, or list those that something in it listens on
#[derive(Debug, Args)]
#[command(after_help = "\
The box needs no network and gets none: each connection to the address that is printed is
carried to the port inside. It goes on until the box ends or this is interrupted. A box that is
paused ends what is open and takes nothing new. Everybody who reaches the address reaches the
port: by default that is this machine alone.

Examples:
  glass port web                              what listens in it
  glass port web 8000                         prints an address like 127.0.0.1:40217
  glass port web 8000 --listen 127.0.0.1:80   at this address
  glass port web 8000 --listen 0.0.0.0:8000   for other machines too")]
pub(crate) struct PortOf {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// The port inside the box
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Where to listen on this machine; port 0 is any that is free [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "port")]
    listen: Option<SocketAddr>,
}

impl PortOf {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let sandbox = global.connect(&self.name).await?;
        match self.port {
            Some(port) => forward(global, sandbox, port, self.listen).await,
            None => list(global, &sandbox).await,
        }
    }
}

async fn list(global: &Global, sandbox: &Sandbox) -> Result<i32> {
    let ports = sandbox.ports().await?;
    if global.json {
        let port = |port: &glasshouse_sandbox::Port| json!({ "port": port.port, "address": port.address });
        output::print_json(&ports.iter().map(port).collect::<Value>())?;
    } else if ports.is_empty() {
        global.say("nothing in the box listens on a TCP port");
    } else {
        let rows: Vec<Vec<String>> =
            ports.iter().map(|port| vec![port.port.to_string(), port.address.clone()]).collect();
        output::print(table::lines(&["PORT", "ADDRESS"], &rows, terminal::width()))?;
    }
    Ok(0)
}

async fn forward(global: &Global, sandbox: Sandbox, port: u16, listen: Option<SocketAddr>) -> Result<i32> {
    let mut signals = Signals::of(Part::default())?;
    let address = listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr().context("cannot tell where we listen")?;
    match global.json {
        true => {
            output::print_json(&json!({ "id": sandbox.id(), "port": port, "listen": address.to_string() }))?
        }
        false => output::print([address.to_string()])?,
    }
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut ended = std::pin::pin!(sandbox.ended());
    loop {
        let accepted = async {
            let place = room.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            biased;
            told = signals.next() => if let Told::End(signal) = told {
                return Ok(signal_code(signal));
            },
            () = &mut ended => {
                global.say("the box has ended");
                return Ok(0);
            }
            (accepted, place) = accepted => match accepted {
                Ok((stream, _)) => {
                    let (global, sandbox) = (global.clone(), sandbox.clone());
                    tokio::spawn(async move {
                        let _place = place;
                        carry(&global, &sandbox, port, stream).await;
                    });
                }
                Err(e) => {
                    // One that is gone already, or no descriptor left: the next one has better luck, in a while.
                    global.say(&format!("cannot accept a connection: {e}"));
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            },
        }
    }
}

/// Carries one connection. What breaks off in the box breaks off here, and is not taken for an end.
async fn carry(global: &Global, sandbox: &Sandbox, port: u16, mut stream: TcpStream) {
    let mut tunnel = match sandbox.dial(port).await {
        Ok(tunnel) => tunnel,
        Err(e) => {
            global.say(&e.to_string());
            break_off(stream);
            return;
        }
    };
    match tokio::io::copy_bidirectional(&mut stream, &mut tunnel).await {
        Ok(_) => {
            let _ = stream.shutdown().await;
        }
        Err(_) => break_off(stream),
    }
}

fn break_off(stream: TcpStream) {
    // Where that cannot be set, it ends as any other.
    let _ = stream.set_zero_linger();
}
