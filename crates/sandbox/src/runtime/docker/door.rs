//! The door of a container: a directory of the host that is mounted in it, with the guest's program and, until the guest
//! has come, a socket behind which the host waits.
//!
//! ```text
//!  host   listens at door/start ── engine starts the container ──▶ guest connects
//!  host   sees by the kernel who it is, removes the socket, sends the plan and the descriptors
//! ```
//! The guest's other descriptors come with the plan, as in a native box: the lock of its life, the socket that clients
//! connect to, the counters of its limits. So a box in a container is found, reached and known to be alive as any other.

use std::fs::{self, File, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use glasshouse_linux::rustix::event::{PollFd, PollFlags, Timespec, poll};
use glasshouse_linux::rustix::net::{SocketFlags, accept_with, sockopt};
use glasshouse_linux::{descriptor, rustix};
use glasshouse_protocol::plan::{DOOR_GUEST, DOOR_SOCKET};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::limits::{DOOR_LOOK, DOOR_TIMEOUT};
use crate::runtime::native;

use super::Unmade;

/// The door of a box, in its directory.
pub(super) fn door_of(home: &Home, id: &str) -> PathBuf {
    home.box_dir(id).join("door")
}

/// What becomes /sys of a box.
pub(super) fn sys_of(home: &Home, id: &str) -> PathBuf {
    home.box_dir(id).join("sys")
}

/// Makes both. Their places are closed to other users of the host; in the box, whoever the guest is there may use them.
pub(super) fn make(home: &Home, id: &str) -> Result<()> {
    let (door, sys) = (door_of(home, id), sys_of(home, id));
    make_dir(&door)?;
    let guest = door.join(DOOR_GUEST);
    fs::hard_link(program(home)?, &guest).context(format_args!("put the guest into {}", door.display()))?;
    make_dir(&sys)?;
    let made = (|| {
        fs::create_dir_all(sys.join("fs/cgroup"))?;
        for (path, content) in native::sys_files(false) {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&sys))?;
            fs::write(path, content)?;
        }
        Ok::<_, std::io::Error>(())
    })();
    made.context(format_args!("make {}", sys.display()))
}

/// Takes both away again: the engine does not see them.
pub(super) fn unmake(home: &Home, id: &str) -> Result<()> {
    for dir in [door_of(home, id), sys_of(home, id)] {
        fs::remove_dir_all(&dir).context(format_args!("remove {}", dir.display()))?;
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<()> {
    fs::create_dir(dir).context(format_args!("make {}", dir.display()))?;
    let open = Permissions::from_mode(0o755);
    fs::set_permissions(dir, open).context(format_args!("open {}", dir.display()))
}

/// The file that has the home's name for engines.
pub(super) const NAME: &str = "name";

/// Whether a container was ever made of this home.
pub(super) fn was_used(home: &Home) -> bool {
    home.path("engine").join(NAME).exists()
}

/// The guest's program as a file, one for the whole home: it is under its name when it is whole.
fn program(home: &Home) -> Result<PathBuf> {
    let bytes = crate::guest_program();
    let hash = blake3::hash(bytes).to_hex();
    let place = home.path("engine");
    let path = place.join(format!("guest-{}", &hash[..16]));
    if path.is_file() {
        return Ok(path);
    }
    let made = (|| {
        // What engines' images are read as: there is nothing of them here.
        fs::create_dir_all(place.join("empty"))?;
        let part = place.join(format!("{}~", crate::sandboxes::new_id().map_err(std::io::Error::other)?));
        fs::write(&part, bytes)?;
        fs::set_permissions(&part, Permissions::from_mode(0o755))?;
        fs::rename(&part, &path)
    })();
    made.context(format_args!("write the guest to {}", place.display()))?;
    Ok(path)
}

/// The host's side while it waits for the guest. The socket goes with it.
#[derive(Debug)]
pub(super) struct Porter {
    socket: PathBuf,
    listener: OwnedFd,
}

impl Porter {
    pub(super) fn new(home: &Home, id: &str) -> Result<Porter> {
        let door = door_of(home, id);
        let socket = door.join(DOOR_SOCKET);
        // Left by somebody who was killed.
        let _ = fs::remove_file(&socket);
        let dir = File::open(&door).context(format_args!("open {}", door.display()))?;
        let listener = descriptor::listen_at(dir.as_fd(), DOOR_SOCKET, 1).context("wait for the guest")?;
        fs::set_permissions(&socket, Permissions::from_mode(0o666)).context("open the guest's door")?;
        Ok(Porter { socket, listener })
    }

    /// Waits for the guest: the stream to it, and who it is on this host. `lives` is asked now and then whether there is
    /// still somebody to wait for.
    pub(super) fn wait(
        self,
        lives: &mut dyn FnMut() -> std::result::Result<(), Unmade>,
    ) -> std::result::Result<(UnixStream, i32), Unmade> {
        let deadline = Instant::now() + DOOR_TIMEOUT;
        loop {
            let wait = Timespec { tv_sec: 0, tv_nsec: DOOR_LOOK.as_nanos() as i64 };
            let mut fds = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Ok(0) => {
                    lives()?;
                    if Instant::now() >= deadline {
                        let message = format!(
                            "cannot start the box: its container runs, and its guest did not come to the door in \
                             {DOOR_TIMEOUT:?}"
                        );
                        return Err(Error::new(ErrorKind::Failed, message).into());
                    }
                }
                Ok(_) => {
                    let stream =
                        accept_with(&self.listener, SocketFlags::CLOEXEC).context("let the guest in")?;
                    let peer = sockopt::socket_peercred(&stream).context("ask who the guest is")?;
                    return Ok((UnixStream::from(stream), peer.pid.as_raw_nonzero().get()));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("wait for the guest", e.into()).into()),
            }
        }
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}
