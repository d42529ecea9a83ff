//! All we ask of the kernel, and the only crate with unsafe code.
//!
//! Safe calls that rustix already offers are used as they are, through [`rustix`] re-exported here, so that nobody
//! else needs a second door to the kernel. What this crate adds is what rustix lacks, or what has an order, a trap or
//! a policy: starting processes ([`spawn`], [`namespace`]), mounts ([`mount`]), [`cgroup`]s, the walls around a
//! command ([`seccomp`], [`landlock`], [`caps`]), and descriptors that cross processes ([`descriptor`]).
//!
//! No module here knows what a box is; each does one thing when told.

pub mod archive;
pub mod caps;
pub mod cgroup;
pub mod content;
pub mod descriptor;
pub mod handle;
pub mod identity;
pub mod ipc;
pub mod landlock;
pub mod layer;
mod metered;
pub mod mount;
pub mod namespace;
pub mod process;
pub mod reach;
pub mod resolve;
pub mod seccomp;
pub mod spawn;
pub mod terminal;
pub mod tree;
pub mod unpack;

pub use rustix;
