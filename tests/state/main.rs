//! State: snapshots, resets, restores, forks, and boxes that are stopped and started again; as root and as an ordinary
//! user, by the program, as users do it.

mod crash;
mod diff;
mod digest;
mod faults;
mod forks;
mod life;
mod moves;
mod reset;
mod snapshots;
mod stage;
