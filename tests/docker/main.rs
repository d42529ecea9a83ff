//! What is particular to boxes in containers: images, what others do to the container, and state that an engine keeps.
//! What every runtime does alike is in `conformance`.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod far;
mod fates;
mod images;
mod kinds;
mod podman;
mod relay;
mod stage;
mod states;
mod unseen;
mod walls;
mod ways;
