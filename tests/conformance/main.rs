//! What every runtime has to do alike. Each test is one body, run on `native` and on `process`; where a runtime cannot
//! do a thing by design, the body asserts that it says so.
//!
//! The tests of `native` run as whoever runs them: root, or an ordinary user without a right of his own. Root runs
//! them a second time as such a user ([`rootless`]).

mod stage;

mod alone;
mod follow;

mod background;
mod command;
mod crowd;
mod deadline;
mod directories;
mod ends;
mod files;
mod output;
mod report;
mod signal;
mod stdin;
mod terminal;
mod trees;
