//! `glass serve`, as its callers see it: raw requests for what is easily got wrong, and the real SDK of OpenSandbox.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod access;
mod commands;
mod files;
mod lifecycle;
mod restart;
mod sdk;
mod stage;
