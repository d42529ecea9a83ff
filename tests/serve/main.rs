//! `glass serve` and `glass mcp`, as their callers see them: raw requests for what is easily got wrong, and the real clients.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod access;
mod commands;
mod deploy;
mod events;
mod extensions;
mod files;
#[allow(dead_code, reason = "the suite of states uses all of it")]
#[path = "../state/forge.rs"]
mod forge;
mod gone;
mod lifecycle;
mod mcp;
mod proxy;
mod repositories;
mod restart;
mod sdk;
mod socket;
mod stage;
mod tenants;
mod terminals;
