//! Somebody's protocol, one folder each. Only here are types of JSON; no dialect knows another.

pub(crate) mod mcp;
pub(crate) mod opensandbox;
