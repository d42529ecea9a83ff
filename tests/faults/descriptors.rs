//! Every descriptor that making a box needs is refused in turn, in this process and in those that it starts.

use std::collections::BTreeSet;
use std::path::Path;

use glasshouse_linux::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use glasshouse_sandbox::SandboxSpec;
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{Mode, scratch};

use crate::rerun::as_ordinary;
use crate::{alone, event_loop, guest_in_memory, nothing_left, open, tell};

/// More descriptors than making a box takes.
const ENOUGH: usize = 48;

/// Lowers the number of descriptors, and puts it back.
struct Lowered {
    before: Rlimit,
}

impl Lowered {
    /// So that this many are left. The numbers in use may have gaps, and the kernel's limit is one of numbers.
    fn to(free: usize) -> Lowered {
        let before = getrlimit(Resource::Nofile);
        let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is there");
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut used: BTreeSet<u64> = numbers.collect();
        // The one with which they were listed is free again; it was the lowest that was, as always.
        let listing = used.iter().copied().find(|number| std::fs::read_link(fd_path(*number)).is_err());
        used.remove(&listing.expect("it is closed by now"));
        let last = (0..).filter(|number| !used.contains(number)).nth(free).expect("numbers do not end");
        setrlimit(Resource::Nofile, Rlimit { current: Some(last), ..before }).expect("it can be lowered");
        Lowered { before }
    }
}

fn fd_path(number: u64) -> String {
    format!("/proc/self/fd/{number}")
}

impl Drop for Lowered {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.before).expect("a limit can be put back");
    }
}

fn sweep(home: &Path, mode: &str) {
    guest_in_memory();
    let (threads, house) = (event_loop(), open(home));
    let first =
        threads.block_on(house.create(SandboxSpec::default())).expect("with many descriptors it works");
    threads.block_on(first.destroy()).expect("a box can be removed");
    let before = Leaks::now(home);
    let (mut refused, mut made) = (0, 0);
    for free in 0..ENOUGH {
        let lowered = Lowered::to(free);
        let created = threads.block_on(house.create(SandboxSpec::default()));
        drop(lowered);
        match created {
            Ok(sandbox) => {
                threads.block_on(sandbox.destroy()).expect("a box can be removed");
                made += 1;
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.contains("open files"), "{free} descriptors: {message}");
                refused += 1;
            }
        }
        nothing_left(&before, home, &format!("{free} free descriptors"));
    }
    assert!(refused > 5 && made > 5, "{refused} refused, {made} made");
    tell(&format!(
        "{mode}: create failed cleanly with {refused} numbers of free descriptors, {made} were enough"
    ));
}

#[test]
fn every_descriptor_that_is_refused_leaves_nothing_as_root() {
    if Mode::all().contains(&Mode::Root) {
        let _turn = alone();
        sweep(scratch().path(), "root");
    }
}

#[test]
fn every_descriptor_that_is_refused_leaves_nothing_without_root() {
    let Some(home) = as_ordinary("descriptors::every_descriptor_that_is_refused_leaves_nothing_without_root")
    else {
        return;
    };
    let _turn = alone();
    sweep(&home.path, "without root");
}
