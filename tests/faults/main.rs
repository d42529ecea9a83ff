//! Things go wrong, on purpose: steps of a build fail, disks are full, processes are killed at any moment. Afterwards
//! nothing may be left: no process, mount, cgroup, namespace, directory or descriptor.
//!
//! The tests look at the whole machine, so they run one at a time: each begins with [`alone`]. Whoever makes boxes on
//! the same machine meanwhile is taken for a leak.

mod ahead;
mod around;
mod descriptors;
mod kills;
mod leaking;
mod lives;
mod many;
mod program;
mod random;
mod rerun;
mod steps;
mod together;
mod traces;
mod victim;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use glasshouse_sandbox::{SandboxSpec, Sandboxes, Settings, faults};
use glasshouse_tests::leaks::Leaks;

/// Waits until no other test of this program runs.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    // A test that failed has had its turn.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says a figure. Not on stdout, which the harness keeps of tests that pass.
fn tell(figure: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "FIGURE faults: {figure}");
}

/// An event loop in threads of its own, so that what ends in the background does end.
fn event_loop() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads can be made")
}

/// The library, on this home.
fn open(home: &Path) -> Sandboxes {
    // What waits for the next box is no leak, but looks like one.
    faults::make_nothing_ahead(true);
    Sandboxes::open(Settings { home: home.to_owned() }).expect("the home can be used")
}

/// Makes a box in this process, so that the guest's program is in its memory: that stays, for the next box.
fn guest_in_memory() {
    let (dir, threads) = (glasshouse_tests::scratch(), event_loop());
    let sandbox =
        threads.block_on(open(dir.path()).create(SandboxSpec::default())).expect("a box can be made");
    threads.block_on(sandbox.destroy()).expect("a box can be removed");
}

/// Fails, with a list, if something is left that was not there before.
#[track_caller]
fn nothing_left(before: &Leaks, home: &Path, after: &str) {
    if let Err(left) = before.settle(home) {
        panic!("after {after}: {left}");
    }
}
