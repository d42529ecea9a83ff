//! Podman behind Docker's words: a service of one test's own, with all that it keeps in a directory of that test's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use glasshouse_linux::rustix::mount::{UnmountFlags, unmount};

use crate::engine::{LOOK_AGAIN, START_MAX, answers, mounts_below, own_programs, program, programs};

/// A service that ends with the value.
#[derive(Debug)]
pub struct Podman {
    dir: PathBuf,
    service: Child,
}

impl Podman {
    /// Starts one in a directory, or says why there is none.
    pub fn start(dir: &Path) -> Result<Podman, String> {
        if !crate::is_root() {
            return Err("the tests do not run as root, and a service of their own needs it".into());
        }
        let program = program("podman").ok_or("Podman is not installed (Debian: podman)")?;
        let log = File::create(dir.join("log")).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        for (flag, name) in [("--root", "root"), ("--runroot", "run"), ("--tmpdir", "tmp")] {
            command.arg(flag).arg(dir.join(name));
        }
        // Not crun, its own choice: that one refuses a machine that has both kinds of cgroups.
        command.args(["--storage-driver=overlay", "--cgroup-manager=cgroupfs", "--runtime=runc"]);
        command.args(["--events-backend=none", "system", "service", "--time=0"]).arg(host(dir));
        // It forgets the archives of images that it was given.
        command.env("TMPDIR", dir).env("PATH", programs());
        if let Some(own) = own_programs() {
            command.env("CONTAINERS_HELPER_BINARY_DIR", own);
        }
        // Who looks after a container says by a file where it stands that the container was out of memory.
        command.current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let service = command.spawn().map_err(|e| format!("cannot start Podman: {e}"))?;
        let mut podman = Podman { dir: dir.to_owned(), service };
        let since = Instant::now();
        while !answers(&dir.join("sock")) {
            let ended = podman.service.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || since.elapsed() > START_MAX {
                let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
                return Err(format!("Podman does not come up ({ended:?}): {log}"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(podman)
    }

    /// Where it is, as in `DOCKER_HOST`.
    pub fn host(&self) -> String {
        host(&self.dir)
    }
}

/// The command lines of all processes.
fn names_of_processes() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}

fn host(dir: &Path) -> String {
    format!("unix://{}", dir.join("sock").display())
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
        // Who looks after a container has another Podman clean up after its end, which would mount them again.
        let since = Instant::now();
        while names_of_processes().any(|name| name.contains(&*self.dir.to_string_lossy()))
            && since.elapsed() < START_MAX
        {
            std::thread::sleep(LOOK_AGAIN);
        }
        // It mounts its files on themselves, and a directory with a mount in it cannot be removed.
        for place in mounts_below(&self.dir) {
            let _ = unmount(&place, UnmountFlags::DETACH);
        }
        // What it leaves of cgroups. Those of somebody else's containers are not empty.
        let trees = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        for tree in trees.map(|tree| tree.path()).chain(["/sys/fs/cgroup".into()]) {
            for left in ["libpod_parent/conmon", "libpod_parent"] {
                let _ = std::fs::remove_dir(tree.join(left));
            }
        }
    }
}
