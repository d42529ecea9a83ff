//! The same attacks from inside a container of a Docker engine: each row that an engine leaves open by default is closed, or
//! listed in SECURITY.md. In a program of its own: an engine flushes disks, which attacks of others are measured by.

/// These attacks are made in containers.
pub(crate) const CONTAINED: bool = true;

mod attacker;
mod kernel;
mod neighbours;
mod privilege;
mod view;
