//! Us over HTTP: a server of the same house, and a connection to it that is kept.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::stage::Stage;

/// A server that ends with this.
pub(crate) struct Served {
    server: Child,
    connection: Mutex<BufReader<TcpStream>>,
    /// One request, as it is sent each time.
    request: Vec<u8>,
}

impl Served {
    /// Starts one that runs a command in the live box when it is asked to, and asks it once.
    pub(super) fn start(stage: &Stage, argv: &[&str]) -> Result<Served> {
        let glass = stage.glass.path().map_err(anyhow::Error::msg)?;
        let mut server = Command::new(glass)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .env("GLASSHOUSE_HOME", stage.home())
            .env_remove("GLASSHOUSE_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start `glass serve`")?;
        let (mut url, stdout) = (String::new(), server.stdout.take());
        let said = stdout.map(|stdout| BufReader::new(stdout).read_line(&mut url));
        let connected = match url.trim().strip_prefix("http://") {
            Some(address) => TcpStream::connect(address).context("cannot connect to the server").map(|stream| {
                let body = json!({ "argv": argv }).to_string();
                let head = format!(
                    "POST /v1/sandboxes/{}/exec HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
                     content-length: {}\r\n\r\n",
                    stage.live.id(),
                    body.len()
                );
                (stream, (head + &body).into_bytes())
            }),
            None => Err(anyhow::anyhow!("`glass serve` did not say where it is: {said:?} {url:?}")),
        };
        let (stream, request) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                end(&mut server);
                return Err(error);
            }
        };
        let served = Served { server, connection: Mutex::new(BufReader::new(stream)), request };
        served.time()?;
        Ok(served)
    }

    /// How long one command takes, from the first byte of the request to the last of the answer.
    pub(super) fn time(&self) -> Result<Duration> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        connection.get_mut().set_nodelay(true)?;
        connection.get_mut().write_all(&self.request)?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            ensure!(connection.read_line(&mut line)? > 0, "the server has closed the connection");
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(said) = line.strip_prefix("content-length: ") {
                length = said.parse()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body)?;
        let took = start.elapsed();
        let answer: Value = serde_json::from_slice(&body)?;
        if answer["exitCode"] != 0 {
            bail!("the command in the box ended: {answer}");
        }
        Ok(took)
    }
}

fn end(server: &mut Child) {
    // It is a child of ours: either is only late.
    let _ = server.kill();
    let _ = server.wait();
}

impl Drop for Served {
    fn drop(&mut self) {
        end(&mut self.server);
    }
}
