//! What differs from run to run, made the same, as far as it is done while a box is built.
//!
//! Everything that is laid over something else comes from one small file system in memory, which nobody writes any more:
//! the library that commands preload (`crates/linux/preload` says what it does), the bytes of `/dev/urandom`, and the
//! files of /proc that tell of the moment and of the machine. What the kernel does not let us do is told and does not
//! stop the build.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};

use glasshouse_linux::mount::{self, Attributes};
use glasshouse_linux::rustix::fs::{Mode, OFlags, openat};
use glasshouse_linux::{process, rustix};
use glasshouse_protocol::plan::Step;

use super::{SCRATCH, Site, StepResult, make_dir, on, open, read_only, root};

/// The library itself, as the build script made it.
const LIBRARY: &[u8] = include_bytes!(env!("GLASSHOUSE_PRELOAD"));

/// What lies in memory for all of this, beside the random bytes and the library.
const REST_BYTES: u64 = 256 * 1024;

/// The file by which the numbers of processes are set.
const LAST_PID: &str = "sys/kernel/ns_last_pid";

/// Keeps that file open: it is read-only for everybody who comes later.
pub(super) fn keep_last_pid(site: &mut Site, proc: BorrowedFd<'_>) {
    match openat(proc, LAST_PID, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => site.knobs.last_pid = Some(file),
        Err(e) => site.lacking.push(no_pids(e.into())),
    }
}

/// Sees whether we may still set them, now that our rights are what they will be.
pub(super) fn check(site: &mut Site) {
    let Some(file) = &site.knobs.last_pid else { return };
    if let Err(e) = rustix::io::pwrite(file, b"1", 0) {
        site.knobs.last_pid = None;
        site.lacking.push(no_pids(e.into()));
    }
}

fn no_pids(error: io::Error) -> String {
    format!("pids, and where the clock of a process begins: the kernel does not let them be set ({error})")
}

/// Lays everything over what it stands for.
pub(super) fn pin(site: &mut Site, step: &Step) -> StepResult {
    let Step::Pin { library, random, random_bytes, files } = step else { return Ok(()) };
    let store = Store::make(*random_bytes + REST_BYTES + LIBRARY.len() as u64)?;
    let closed = Attributes { no_exec: true, ..read_only() };
    // Nothing can be added to /dev any more, but for this.
    let dev = on("/dev", mount::find(root(site)?, "dev"))?;
    on("/dev", mount::open_to_writers(dev.as_fd()))?;
    store.write("library", LIBRARY)?;
    make_place(site, library)?;
    // The one file here that is executed.
    store.lay(site, "library", library, read_only())?;
    store.write("random", &random_bytes_of(*random_bytes))?;
    for device in random {
        make_place(site, device)?;
        store.lay(site, "random", device, closed)?;
    }
    on("/dev", mount::set_attributes(dev.as_fd(), closed, false))?;
    for (index, (path, content)) in files.iter().enumerate() {
        let name = format!("file{index}");
        store.write(&name, content.as_bytes())?;
        match mount::find(root(site)?, path) {
            // What this kernel does not have tells nothing.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            _ => store.lay(site, &name, path, closed)?,
        }
    }
    if let Err(e) = process::fix_addresses() {
        site.lacking.push(format!("addresses: the kernel does not let them be fixed ({e})"));
    }
    Ok(())
}

/// A file system in memory, where what is laid over something lies.
struct Store {
    dir: std::os::fd::OwnedFd,
    path: String,
}

impl Store {
    fn make(bytes: u64) -> Result<Store, super::Stumble> {
        let size = bytes.to_string();
        let options = [("size", Some(&*size)), ("mode", Some("0755"))];
        let dir = on("tmpfs", mount::make("tmpfs", &options, open()))?;
        let path = format!("{SCRATCH}/pins");
        make_dir(&path)?;
        on(&path, mount::attach_at(dir.as_fd(), &path))?;
        Ok(Store { dir, path })
    }

    fn write(&self, name: &str, content: &[u8]) -> StepResult {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = on(name, openat(&self.dir, name, flags, Mode::from_raw_mode(0o444)))?;
        on(name, std::fs::File::from(file).write_all(content))
    }

    /// Lays a file of ours over the one at this path of the root.
    fn lay(&self, site: &Site, name: &str, path: &str, attributes: Attributes) -> StepResult {
        let place = on(path, mount::find(root(site)?, path))?;
        let copy = on(path, mount::copy_tree(&format!("{}/{name}", self.path), false))?;
        on(path, mount::set_attributes(copy.as_fd(), attributes, false))?;
        on(path, mount::attach(copy.as_fd(), place.as_fd()))
    }
}

/// An empty file for something to be laid over. The file system is one that we have made: no link is on the way.
fn make_place(site: &Site, path: &str) -> StepResult {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
    on(path, openat(root(site)?, path, flags, Mode::from_raw_mode(0o444))).map(drop)
}

/// Bytes that look random and are the same everywhere, by the rule of the library's own.
fn random_bytes_of(count: u64) -> Vec<u8> {
    (0..count.div_ceil(8)).flat_map(|number| mix(number).to_le_bytes()).take(count as usize).collect()
}

/// The mixing of splitmix64.
fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x676c_6173_7368_6f75);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}
