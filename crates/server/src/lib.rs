//! The service: HTTP, WebSocket and MCP over the sandbox library.
//!
//! The walk of a request: [`Server::serve`] → the `door` (request id, where it comes from, key) → a dialect's route → the library
//! ([`glasshouse_sandbox`]) → the dialect's words. What speaks somebody's protocol lives in one folder a dialect, below
//! `dialect`; dialects share no types and do not call each other.
//!
//! A dialect holds no truth: boxes are asked of the state directory, and what a dialect has to remember of one (metadata,
//! when it expires) lies in files there. So a server that was killed answers again when it is started, and two programs
//! can use the same boxes at once.
//!
//! Nothing here reads the environment: settings are values ([`Config`]).

mod clock;
mod config;
mod dialect;
mod door;
mod error;
mod limits;
mod random;

use std::future::Future;
use std::sync::Arc;

use axum::serve::ListenerExt as _;
use glasshouse_sandbox::Sandboxes;
use tokio::net::TcpListener;

pub use config::Config;
pub use error::{Error, Result};

pub use dialect::mcp::{McpConfig, serve_stdio};

use crate::dialect::opensandbox;

/// A server that knows its boxes, and takes no connections yet.
#[derive(Debug)]
pub struct Server {
    house: Sandboxes,
    mcp: McpConfig,
    service: Arc<opensandbox::Service>,
}

impl Server {
    /// Looks at the settings, and takes up the boxes that are there.
    pub async fn open(house: Sandboxes, config: Config) -> Result<Server> {
        config.check()?;
        let mcp = config.mcp.clone();
        let service = Arc::new(opensandbox::Service::open(house.clone(), config)?);
        opensandbox::adopt(&service).await?;
        Ok(Server { house, mcp, service })
    }

    /// Serves until `stop` comes; then takes nothing new, and waits a little for what is under way.
    ///
    /// Boxes stay when it ends: whoever serves the same state directory next finds them.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let reaper = tokio::spawn(opensandbox::reap(self.service.clone()));
        let mcp = dialect::mcp::http(self.house, self.mcp);
        let router = opensandbox::router(self.service, mcp);
        let listener = listener.tap_io(|connection| {
            // An answer goes out at once, and not when the last one has been seen; where that is refused, it is only slower.
            let _ = connection.set_nodelay(true);
        });
        let (stopping, mut stopped) = tokio::sync::watch::channel(false);
        let serving = axum::serve(listener, router).with_graceful_shutdown(async move {
            stop.await;
            let _ = stopping.send(true);
        });
        let too_long = async move {
            // A sender that is gone without a word means that serving ended by itself.
            let _ = stopped.wait_for(|stopping| *stopping).await;
            tokio::time::sleep(limits::STOP_TIMEOUT).await;
        };
        let ended = tokio::select! {
            ended = serving => ended.map_err(Error::Serve),
            () = too_long => Ok(()),
        };
        reaper.abort();
        ended
    }
}
