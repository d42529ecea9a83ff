//! Written as the attack, asserting that it fails.
//!
//! The probes of the threat list, in root and in rootless mode, as root and as user of the box. `attacker` brings them
//! in, `kernel`, `view`, `privilege`, `pinned` and `neighbours` are about the walls, `exhaustion` and its kin about taking all
//! there is, `files` and `archives` about the files of a box as seen from outside, `terminal` about those who read a
//! box's output. A wall that this kernel does not let us show is named in the output: "cannot be shown here".
//!
//! Not here: a guest that speaks garbage to the host (row 82 of the list). The host's end of the wire cannot be given
//! a false guest through any public door; the decoder and the client have tests of their own beside them.

/// These attacks are made in native boxes; those of `docker.rs` beside this in containers.
pub(crate) const CONTAINED: bool = false;

mod archives;
mod attacker;
mod copies;
mod exhaustion;
mod files;
mod flood;
mod images;
mod kernel;
mod library;
mod neighbours;
mod pinned;
mod privilege;
mod room;
mod starvation;
mod tarball;
mod terminal;
mod view;
