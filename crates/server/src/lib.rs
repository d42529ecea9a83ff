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

mod audit;
mod clock;
mod config;
mod connections;
mod counters;
mod dialect;
mod door;
mod error;
mod going_on;
mod keys;
mod limits;
mod log;
mod random;
mod reading;
mod sessions;
mod telemetry;
mod tenants;
mod usage;
mod viewer;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use glasshouse_sandbox::Sandboxes;
use serde_json::json;
use tokio::net::TcpListener;

pub use config::{Allowance, Bounds, Config, DEFAULT_CONFIG, TENANT_IN_PATHS, Telemetry};
pub use error::{Error, Result};
pub use keys::{KeyInfo, Keys};
pub use log::LogLevel;

pub use dialect::mcp::{McpConfig, serve_stdio};

use crate::dialect::opensandbox;

/// A server that knows its boxes, and takes no connections yet.
#[derive(Debug)]
pub struct Server {
    house: Sandboxes,
    config: Config,
    service: Arc<opensandbox::Service>,
}

impl Server {
    /// Looks at the settings, and takes up the boxes that are there.
    pub async fn open(house: Sandboxes, config: Config) -> Result<Server> {
        config.check()?;
        if !config.volumes.is_empty() {
            house.allow_volumes(config.volume_roots())?;
        }
        let service = Arc::new(opensandbox::Service::open(house.clone(), config.clone())?);
        opensandbox::adopt(&service).await?;
        Ok(Server { house, config, service })
    }

    /// Says what happens, as the settings want it, from now on.
    pub fn log_to(&self, sink: impl std::io::Write + Send + 'static) -> Result<()> {
        self.service.log().open(sink)
    }

    /// Serves until `stop` comes; then takes nothing new, and waits a little for what is under way.
    ///
    /// Boxes stay when it ends: whoever serves the same state directory next finds them.
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()> + Send + 'static) {
        let Server { house, config, service } = self;
        let reaper = tokio::spawn(opensandbox::reap(service.clone()));
        let telemetry = tokio::spawn(opensandbox::report(service.clone()));
        let mcp = match config.mcp {
            Some(mcp) => {
                let mcp = McpConfig { runtime: config.runtime, ..mcp };
                dialect::mcp::http(house.clone(), mcp, service.tenants(), config.bounds.json_bytes)
            }
            None => Router::new(),
        };
        let others = mcp.merge(viewer::routes(house, service.clone()));
        service.log().info("serving", || json!({ "listen": config.listen.to_string() }));
        connections::serve(listener, opensandbox::router(service.clone(), others), config.bounds, stop).await;
        service.log().info("stopped", || json!({}));
        reaper.abort();
        telemetry.abort();
        // In a thread that may wait; how it went is told nowhere any more.
        let _ = tokio::task::spawn_blocking(move || service.log().flush()).await;
    }
}
