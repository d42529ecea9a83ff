//! What every runtime has to do alike. Each test is one body, run on `native`, `docker` and `process`; where a runtime cannot
//! do a thing by design, the body asserts that it says so.
//!
//! The tests of `native` run as whoever runs them: root, or an ordinary user without a right of his own. Root runs
//! them a second time as such a user ([`rootless`]).

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

mod pattern;
mod stage;

mod alone;
mod follow;

mod command;

mod output;
mod stdin;
mod terminal;

mod background;
mod crowd;
mod deadline;
mod signal;

mod ends;
mod report;

mod code;
mod hostile_code;
mod kernels;
mod languages;
mod pictures;
mod warm;

mod limits;
mod lives;
mod pause;
mod ports;
mod volumes;

mod directories;
mod editing;
mod files;
mod searching;
mod tools;
mod trees;

mod heavy;
mod rootless;
