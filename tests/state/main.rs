//! State: snapshots, resets, restores, forks, and boxes that are stopped and started again; as root and as an ordinary
//! user, by the program, as users do it.

mod chains;
mod compared;
mod crash;
mod diff;
mod digest;
mod disks;
mod faults;
mod forge;
mod forks;
mod killed;
mod life;
mod limited;
mod locked;
mod model;
mod moves;
mod pinned;
mod places;
mod props;
mod replay;
mod rerun;
mod reset;
mod snapshots;
mod stage;
mod steps;
mod store;
mod tasks;
mod writers;
