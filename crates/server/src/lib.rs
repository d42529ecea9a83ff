//! The service: HTTP, WebSocket and MCP over the sandbox library.
//!
//! Nothing is served yet. The crate is here because its wall is: what speaks somebody's protocol will live in this
//! crate, one folder a dialect, and will know the library ([`glasshouse_sandbox`]) and the record
//! ([`glasshouse_trace`]) and nothing below them.

#[doc(no_inline)]
pub use glasshouse_sandbox::{Sandbox, Sandboxes};
#[doc(no_inline)]
pub use glasshouse_trace::Reader;
