//! The kernel's process: a child of ours, in a process group of its own, so that an interrupt hits it and what it has started,
//! and nobody else.

use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};

use glasshouse_linux::process::signal_group;
use glasshouse_linux::rustix::fs::fstat;
use glasshouse_linux::rustix::process::{Pid, Resource, Rlimit, Signal, getpid, kill_process, setrlimit};
use jupyter_protocol::ConnectionInfo;
use jupyter_protocol::connection_info::Transport;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use glasshouse_guest::{CONNECTION_FILE, connection_dir};

use super::spec::{Kernelspec, Places};

/// Ports that a kernel is told to listen on: below those that the system hands out to whoever connects.
const PORTS: std::ops::Range<u16> = 16_384..32_768;
/// How often a free one is looked for.
const PORT_ATTEMPTS: usize = 1000;
/// Ports of one kernel.
const PORTS_OF_KERNEL: usize = 5;
/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// Bytes that are read of what a kernel says at once.
const SAID_BYTES: usize = 16 * 1024;
/// All memory that we may have ourselves. A kernel that says that a message has more is not believed.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// A kernel that was started.
#[derive(Debug)]
pub(crate) struct Kernel {
    child: Child,
    pid: Pid,
    /// What it writes to its own stdout and stderr.
    said: [Option<pipe::Receiver>; 2],
    /// Whether that is only an echo of what it publishes.
    echoes: [bool; 2],
    is_stopped: bool,
    /// Until it has read it.
    place: Option<Place>,
}

/// A directory of ours for the connection file, which is no part of the box's files. Dropped, it is gone; if we are killed before,
/// the guest removes it.
#[derive(Debug)]
struct Place {
    dir: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    fn new(info: &ConnectionInfo) -> io::Result<(Place, String)> {
        let dir = connection_dir(std::process::id());
        // One that is there is of somebody who had our number before us and is gone.
        let _ = std::fs::remove_dir_all(&dir);
        DirBuilder::new().mode(0o700).create(&dir)?;
        let place = Place { dir };
        let file = place.dir.join(CONNECTION_FILE);
        let text = serde_json::to_vec(info)?;
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?.write_all(&text)?;
        let file = file.to_str().map(str::to_owned).ok_or(io::ErrorKind::InvalidFilename)?;
        Ok((place, file))
    }
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Where a kernel is to listen, and the key that it signs with.
fn connection(kernel: &Kernelspec) -> io::Result<ConnectionInfo> {
    // Kept until all of them are found, so that no two are the same.
    let mut found = Vec::new();
    for _ in 0..PORT_ATTEMPTS {
        let offset = u16::from_le_bytes(random()?) % (PORTS.end - PORTS.start);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, PORTS.start + offset)) {
            found.push((PORTS.start + offset, listener));
        }
        if found.len() == PORTS_OF_KERNEL {
            break;
        }
    }
    let ports: Vec<u16> = found.iter().map(|(port, _)| *port).collect();
    let [shell_port, iopub_port, stdin_port, control_port, hb_port] = ports[..] else {
        return Err(io::Error::other("no port of the box's loopback is free"));
    };
    let key: [u8; KEY_BYTES] = random()?;
    Ok(ConnectionInfo {
        ip: Ipv4Addr::LOCALHOST.to_string(),
        transport: Transport::TCP,
        shell_port,
        iopub_port,
        stdin_port,
        control_port,
        hb_port,
        key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
        signature_scheme: "hmac-sha256".into(),
        kernel_name: Some(kernel.name.clone()),
    })
}

impl Kernel {
    /// Starts a kernel. An error: why it cannot be.
    pub(crate) fn start(places: &Places, spec: &Kernelspec) -> Result<(Kernel, ConnectionInfo), String> {
        let cannot = |what: &str, e: io::Error| format!("cannot {what} for the kernel {}: {e}", spec.name);
        let info = connection(spec).map_err(|e| cannot("find ports", e))?;
        let (place, file) = Place::new(&info).map_err(|e| cannot("write a connection file", e))?;
        let argv = places.command(spec, &file)?;
        let [program, words @ ..] = argv.as_slice() else {
            return Err(format!("the kernelspec {} says no program", spec.name));
        };
        let pipes = || pipe::pipe().map_err(|e| cannot("make pipes", e));
        let ((stdout, their_stdout), (stderr, their_stderr)) =
            (pipes().map(|(a, b)| (b, a))?, pipes().map(|(a, b)| (b, a))?);
        let theirs =
            |end: pipe::Sender| end.into_blocking_fd().map(Stdio::from).map_err(|e| cannot("make pipes", e));
        let child = Command::new(program)
            .args(words)
            .envs(places.env(spec))
            .stdin(Stdio::null())
            .stdout(theirs(their_stdout)?)
            .stderr(theirs(their_stderr)?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("the kernel {} cannot be started: {}: {e}", spec.name, program.display()))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or_else(|| format!("the kernel {} has ended at once", spec.name))?;
        // Not before: the kernel would inherit it.
        let _ = limit(Resource::As, MEMORY_BYTES_MAX);
        let (said, echoes) = ([Some(stdout), Some(stderr)], [false; 2]);
        Ok((Kernel { child, pid, said, echoes, is_stopped: false, place: Some(place) }, info))
    }

    /// It is there. One that has put something else where its stdout and stderr were publishes what is written there, by programs
    /// that it starts as well, and what still comes from there is an echo for whoever watches it.
    pub(crate) fn is_there(&mut self) {
        self.place = None;
        for (which, said) in self.said.iter().enumerate() {
            let place = format!("/proc/{}/fd/{}", self.pid.as_raw_nonzero(), which + 1);
            let given = said.as_ref().and_then(|said| fstat(said.as_fd()).ok());
            let held = std::fs::metadata(place).ok();
            self.echoes[which] = held.zip(given).is_some_and(|(held, given)| held.ino() != given.st_ino);
        }
    }

    /// Whether what it says there itself is to be passed on.
    pub(crate) fn is_heard(&self, which: usize) -> bool {
        !self.echoes[which]
    }

    /// Its end.
    pub(crate) async fn ended(child: &mut Child) -> io::Result<ExitStatus> {
        child.wait().await
    }

    /// What can be waited for, apart from each other: its end, and what it says itself.
    pub(crate) fn parts(&mut self) -> (&mut Child, &mut [Option<pipe::Receiver>; 2]) {
        (&mut self.child, &mut self.said)
    }

    /// What it has written until now and nobody has read.
    pub(crate) fn rest(&mut self) -> [Vec<u8>; 2] {
        let mut rests = self.said.each_mut().map(|said| {
            let mut rest = Vec::new();
            let mut buffer = [0; SAID_BYTES];
            while let Some(n) =
                said.as_mut().and_then(|said| said.try_read(&mut buffer).ok()).filter(|&n| n > 0)
            {
                rest.extend_from_slice(&buffer[..n]);
            }
            rest
        });
        for (rest, echoes) in rests.iter_mut().zip(self.echoes) {
            rest.truncate(if echoes { 0 } else { rest.len() });
        }
        rests
    }

    /// Interrupts it, as a terminal would, with what it has started in its group.
    pub(crate) fn interrupt(&self) {
        // One that is not there any more is about to be noticed.
        let _ = signal_group(self.pid.as_raw_nonzero().get(), Signal::INT.as_raw());
    }

    /// Has it stand still, or go on.
    pub(crate) fn hold(&mut self, still: bool) {
        if still != self.is_stopped {
            self.is_stopped = still;
            let _ = kill_process(self.pid, if still { Signal::STOP } else { Signal::CONT });
        }
    }

    /// Lets the peak of its memory begin anew, where the kernel of the system does that.
    pub(crate) fn forget_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.pid.as_raw_nonzero()), "5");
    }
}

/// The next thing that it says by itself, and where: 0 is its stdout, 1 its stderr.
pub(crate) async fn next_said(said: &mut [Option<pipe::Receiver>; 2]) -> (usize, Vec<u8>) {
    let [stdout, stderr] = said;
    let (which, bytes) = tokio::select! {
        bytes = next_of(stdout) => (0, bytes),
        bytes = next_of(stderr) => (1, bytes),
    };
    if bytes.is_empty() {
        said[which] = None;
    }
    (which, bytes)
}

/// What comes next from one of them; nothing means that it is closed.
async fn next_of(from: &mut Option<pipe::Receiver>) -> Vec<u8> {
    let Some(pipe) = from else { return std::future::pending().await };
    let mut buffer = vec![0; SAID_BYTES];
    loop {
        if pipe.readable().await.is_err() {
            return Vec::new();
        }
        match pipe.try_read(&mut buffer) {
            Ok(n) => {
                buffer.truncate(n);
                return buffer;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Vec::new(),
        }
    }
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Ends as the kernel has ended, so that who waits for us learns why.
pub(crate) fn end_like(status: ExitStatus) -> ExitCode {
    let Some(signal) = status.signal() else {
        return ExitCode::from(status.code().unwrap_or(1) as u8);
    };
    // It was the kernel's; nobody wants ours.
    let _ = limit(Resource::Core, 0);
    // Twice: the first SIGSEGV meets a handler of the standard library's, which steps aside.
    for _ in 0..2 {
        if let Some(signal) = Signal::from_named_raw(signal) {
            let _ = kill_process(getpid(), signal);
        }
    }
    ExitCode::from(128u8.wrapping_add(signal as u8))
}
