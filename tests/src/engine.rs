//! A Docker engine for the tests: started by the first test that needs one, shared by all that run, gone when none does.
//!
//! ```text
//!  test process ── holds a share of `users` for its life ──▶ is there an engine? ── no ──▶ starts the keeper
//!  keeper (a shell) ── runs dockerd ── waits until nobody holds a share ── ends dockerd
//! ```
//! A test process that is killed gives its share back, too; so no engine outlives the tests, and none hangs `cargo test`:
//! it has no descriptor of ours. A keeper that is killed takes his engine along.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use glasshouse_linux::rustix::fs::{FlockOperation, flock};

/// Where the engine of the tests is. A place of its own: it has nothing to do with an engine of this machine. One that is not
/// the installed one has another, so that both can be tried at once.
fn place() -> PathBuf {
    let other = if own_programs().is_some() || is_new_store() { "-other" } else { "" };
    PathBuf::from(format!("/var/tmp/glass-test-engine{other}"))
}
/// The longest that an engine may take to be there, on two busy processors.
pub(crate) const START_MAX: Duration = Duration::from_secs(120);
/// Between two looks whether it is.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many ports an engine is given in turn, until nobody else is faster.
const PORTS_MAX: usize = 5;

/// Runs the engine until nobody uses it any more. `$1` is its place, `$2` says how it keeps images.
const KEEPER: &str = r#"
cd "$1" || exit 1
grep -o " $1/[^ ]*" /proc/mounts | sort -r | xargs -r -n1 umount -l
rm -rf data run sock pid
setpriv --pdeathsig TERM dockerd --data-root "$1/data" --exec-root "$1/run" --pidfile "$1/pid" --host "unix://$1/sock" \
  --bridge=none --iptables=false --ip6tables=false "$2" --shutdown-timeout=5 \
  --cgroup-parent=glass-test-engine --log-level=warn >log 2>&1 8>&- 9>&- &
engine=$!
until flock -x 9; do sleep 1; done
kill -TERM "$engine"
wait "$engine"
rm -rf data run sock
for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do rmdir "$tree/glass-test-engine" 2>/dev/null; done
true
"#;

/// An engine that runs.
#[derive(Debug)]
pub struct TestEngine {
    /// Where it is, as in `DOCKER_HOST`.
    pub host: String,
    _share: File,
}

impl TestEngine {
    /// Runs the `docker` program on it.
    pub fn docker(&self, args: &[&str]) -> Output {
        let mut command = Command::new(docker_program());
        command.args(args).env("DOCKER_HOST", &self.host).stdin(Stdio::null());
        command.output().expect("the docker program is installed with the engine")
    }

    /// Makes an image of a directory's files.
    pub fn import(&self, tree: &Path, name: &str) {
        import(&self.host, tree, name);
    }
}

/// Makes an image of a directory's files on an engine.
fn import(host: &str, tree: &Path, name: &str) {
    let tar = Command::new("tar").arg("-C").arg(tree).args(["-c", "."]).output().expect("tar is there");
    assert!(tar.status.success(), "{}", String::from_utf8_lossy(&tar.stderr));
    let mut docker = Command::new(docker_program())
        .args(["import", "-", name])
        .env("DOCKER_HOST", host)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the docker program is installed with the engine");
    let mut stdin = docker.stdin.take().expect("it was asked for");
    stdin.write_all(&tar.stdout).expect("the engine takes images");
    drop(stdin);
    assert!(docker.wait().expect("it was started").success(), "the engine takes the image {name}");
}

/// The directory with programs that are to be used instead of those that are installed, if `GLASSHOUSE_TEST_ENGINE` names one.
/// So the tests run on an engine that is not installed (`tests/docker/newer`).
pub(crate) fn own_programs() -> Option<PathBuf> {
    std::env::var_os("GLASSHOUSE_TEST_ENGINE").map(PathBuf::from)
}

/// Where engines find their programs.
pub(crate) fn programs() -> String {
    let own = own_programs().map(|dir| format!("{}:", dir.display())).unwrap_or_default();
    format!("{own}/usr/sbin:/usr/bin:/sbin:/bin")
}

/// A program that engines find.
pub fn program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&programs()).map(|dir| dir.join(name)).find(|file| file.is_file())
}

fn docker_program() -> PathBuf {
    program("docker").unwrap_or_else(|| "docker".into())
}

/// Whether engines are to keep images in containerd's store, and to refuse old clients, as those do by themselves that are
/// newer than Debian has any (29): `GLASSHOUSE_TEST_STORE=containerd`.
pub fn is_new_store() -> bool {
    std::env::var("GLASSHOUSE_TEST_STORE").is_ok_and(|store| store == "containerd")
}

/// How an engine is told where to keep images.
fn storage() -> &'static str {
    if is_new_store() { "--feature=containerd-snapshotter=true" } else { "--storage-driver=overlay2" }
}

/// The oldest version that such an engine speaks, for its environment.
fn oldest_version() -> Option<(&'static str, &'static str)> {
    is_new_store().then_some(("DOCKER_MIN_API_VERSION", "1.44"))
}

/// The engine, or why there is none.
pub fn engine() -> Result<&'static TestEngine, &'static str> {
    static ENGINE: OnceLock<Result<TestEngine, String>> = OnceLock::new();
    ENGINE.get_or_init(join).as_ref().map_err(String::as_str)
}

fn join() -> Result<TestEngine, String> {
    if !crate::is_root() {
        return Err("the tests do not run as root, and an engine of their own needs it".into());
    }
    if program("dockerd").is_none() {
        return Err("no Docker engine is installed (Debian: docker.io)".into());
    }
    let place = place();
    std::fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
    let open = |name: &str| {
        let file = File::options().create(true).truncate(false).write(true).open(place.join(name));
        file.map_err(|e| format!("cannot open {}/{name}: {e}", place.display()))
    };
    // One at a time looks and starts; the others find what he started.
    let turn = open("turn")?;
    lock(&turn, FlockOperation::LockExclusive)?;
    let share = open("users")?;
    // Waits for a keeper that has just found that nobody is there any more, and ends his engine.
    lock(&share, FlockOperation::LockShared)?;
    if !answers(&place.join("sock")) {
        start(&place, &open("users")?)?;
    }
    Ok(TestEngine { host: format!("unix://{}/sock", place.display()), _share: share })
}

fn lock(file: &File, how: FlockOperation) -> Result<(), String> {
    flock(file, how).map_err(|e| format!("cannot lock a file of the engine's: {e}"))
}

fn start(place: &Path, users: &File) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let users = users.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
    let mut keeper = Command::new("sh");
    // Descriptor 9 is the file that is waited for. It comes as stdin, for a shell cannot inherit it otherwise.
    keeper.args(["-c", &format!("exec 9<&0 </dev/null\n{KEEPER}"), "keeper"]).arg(place).arg(storage());
    keeper.stdin(Stdio::from(users)).stdout(Stdio::null()).stderr(Stdio::null());
    // Not a child of the test's group: what ends the test must not end it in the middle.
    keeper.process_group(0).env_clear().env("PATH", programs()).envs(oldest_version());
    let mut keeper = keeper.spawn().map_err(|e| format!("cannot start a shell: {e}"))?;
    let since = Instant::now();
    while !answers(&place.join("sock")) {
        let ended = keeper.try_wait().map_err(|e| e.to_string())?;
        if ended.is_some() || since.elapsed() > START_MAX {
            let log = std::fs::read_to_string(place.join("log")).unwrap_or_default();
            return Err(format!("the engine does not come up ({ended:?}): {log}"));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// An engine of one test's own, for what others would suffer from. It is to be ended before it is dropped.
#[derive(Debug)]
pub struct PrivateEngine {
    dir: PathBuf,
    engine: std::process::Child,
    /// Where it listens by TCP.
    port: Option<u16>,
    /// Its containers go on.
    leaves_mounts: bool,
}

/// How an engine of a test's own is other than most.
#[derive(Debug, Clone, Default)]
pub struct Manner {
    /// More words for it.
    pub args: Vec<String>,
    /// It can be reached by TCP, too.
    pub tcp: bool,
    /// It has mounts of its own, and a shell does this to them before it starts.
    pub mounts: Option<String>,
}

/// First of the users that an engine gives its containers that remaps them.
pub const REMAPPED: u32 = 700_000;

impl Manner {
    /// One that gives containers other users, and is to be started in this directory.
    pub fn remapping(dir: &Path) -> Manner {
        // They are looked up in files, which the engine gets copies of: the host's stay as they are.
        let etc = dir.join("etc").display().to_string();
        let range = format!("daemon:{REMAPPED}:65536");
        let mounts = format!(
            "cp -a /etc {etc}; echo {range} > {etc}/subuid; echo {range} > {etc}/subgid; mount --bind {etc} /etc"
        );
        let args = vec!["--userns-remap=daemon".to_owned()];
        Manner { args, mounts: Some(mounts), ..Manner::default() }
    }
}

impl PrivateEngine {
    /// Starts one in a directory. What it had there before, it has again.
    pub fn start(dir: &Path) -> Result<PrivateEngine, String> {
        PrivateEngine::start_as(dir, &Manner::default())
    }

    /// Starts one that is other than most.
    pub fn start_as(dir: &Path, manner: &Manner) -> Result<PrivateEngine, String> {
        engine()?;
        for _ in 1..PORTS_MAX {
            match PrivateEngine::start_once(dir, manner) {
                // Somebody else has taken the port since we looked.
                Err(why) if manner.tcp && why.contains("address already in use") => {}
                started => return started,
            }
        }
        PrivateEngine::start_once(dir, manner)
    }

    fn start_once(dir: &Path, manner: &Manner) -> Result<PrivateEngine, String> {
        let port = if manner.tcp { Some(free_port().map_err(|e| e.to_string())?) } else { None };
        let path = |name: &str| dir.join(name).display().to_string();
        let log = File::create(dir.join("log")).map_err(|e| e.to_string())?;
        // Left by one that was killed: who has these numbers now is somebody else.
        for left in ["pid", "run/containerd/containerd.pid"] {
            let _ = std::fs::remove_file(dir.join(left));
        }
        let mut command = match &manner.mounts {
            None => Command::new(program("dockerd").ok_or("no engine is installed")?),
            Some(script) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c"]);
                command.arg(format!("set -e; {script}; exec dockerd \"$@\"")).arg("dockerd");
                command
            }
        };
        command.args(["--bridge=none", "--iptables=false", "--ip6tables=false", storage()]);
        command.args(["--cgroup-parent=glass-test-engine", "--shutdown-timeout=5"]).args(&manner.args);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "run"), ("--pidfile", "pid")] {
            command.arg(flag).arg(path(name));
        }
        command.arg("--host").arg(format!("unix://{}", path("sock")));
        if let Some(port) = port {
            command.args(["--host", &format!("tcp://127.0.0.1:{port}")]);
        }
        command.env("PATH", programs()).envs(oldest_version()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(log).spawn().map_err(|e| format!("cannot start an engine: {e}"))?;
        let mut engine = PrivateEngine { dir: dir.to_owned(), engine: child, port, leaves_mounts: false };
        let since = Instant::now();
        // By TCP it listens a moment later than at its socket.
        let listens = |port: u16| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok();
        while !answers(&dir.join("sock")) || !port.is_none_or(listens) {
            let ended = engine.engine.try_wait().map_err(|e| e.to_string())?;
            if ended.is_some() || since.elapsed() > START_MAX {
                return Err(format!("the engine does not come up ({ended:?}): {}", engine.log()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(engine)
    }

    /// What it has said so far.
    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Where it can be reached by TCP.
    ///
    /// # Panics
    /// If it cannot.
    pub fn tcp(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port.expect("it was asked to"))
    }

    /// Where it is, as in `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.join("sock").display())
    }

    /// Runs the `docker` program on it, which has to succeed. What it wrote.
    ///
    /// # Panics
    /// If it fails.
    pub fn docker(&self, args: &[&str]) -> String {
        let done = Command::new(docker_program()).args(args).env("DOCKER_HOST", self.host()).output();
        let done = done.expect("the docker program is installed with the engine");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Makes an image of a directory's files.
    ///
    /// # Panics
    /// If it does not take it.
    pub fn import(&self, tree: &Path, name: &str) {
        import(&self.host(), tree, name);
    }

    /// Ends it without a word. Its containers go on, on what it has mounted.
    pub fn kill(mut self) {
        self.leaves_mounts = true;
    }

    /// Ends it with all that is in it.
    pub fn end(mut self) {
        use glasshouse_linux::rustix::process::{Pid, Signal, kill_process};
        kill_process(Pid::from_child(&self.engine), Signal::TERM).expect("it is ours");
        self.engine.wait().expect("it is ours");
    }
}

impl Drop for PrivateEngine {
    fn drop(&mut self) {
        // One that was ended is gone already.
        let _ = self.engine.kill();
        let _ = self.engine.wait();
        if !self.leaves_mounts {
            clear(&self.dir);
        }
    }
}

/// Ends what engines in a directory have left: who looks after their containers, and what runs in these, when a test has
/// failed; and their mounts.
pub fn clear(dir: &Path) {
    use glasshouse_linux::rustix::mount::{UnmountFlags, unmount};
    use glasshouse_linux::rustix::process::{Pid, Signal, kill_process};
    let since = Instant::now();
    loop {
        let left = left_of(dir);
        if left.is_empty() || since.elapsed() > START_MAX {
            break;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            // It may have ended by itself.
            let _ = kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    // An engine mounts its data on itself, and leaves that to the next one if it was killed. The next one takes it for
    // somebody else's, and leaves it for good; a directory with a mount in it cannot be removed.
    for place in mounts_below(dir) {
        let _ = unmount(&place, UnmountFlags::DETACH);
    }
}

/// Processes that were started with a path in this directory as one of their words, and all that descend from them.
pub fn left_of(dir: &Path) -> Vec<i32> {
    let dir = dir.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let look = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (words.next()?, words.next()?.parse::<i32>().ok()?);
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let named = String::from_utf8_lossy(&line).contains(&dir);
        // The dead wait for whoever collects them.
        (state != "Z" && state != "X").then_some((pid, parent, named))
    };
    let all: Vec<(i32, i32, bool)> = pids.filter_map(look).collect();
    let own = std::process::id() as i32;
    let mut left: Vec<i32> =
        all.iter().filter(|(pid, _, named)| *named && *pid != own).map(|(pid, ..)| *pid).collect();
    let mut at = 0;
    while at < left.len() {
        let parent = left[at];
        let children = all.iter().filter(|(pid, of, _)| *of == parent && *pid != own).map(|(pid, ..)| *pid);
        let new: Vec<i32> = children.filter(|pid| !left.contains(pid)).collect();
        left.extend(new);
        at += 1;
    }
    left
}

/// What is mounted below a directory, the last first.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = places.filter(|place| place.starts_with(dir)).collect();
    below.reverse();
    below
}

/// A port that nobody listens at. Engines of today take no port 0, by which the kernel would choose.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Whether an engine answers there.
pub(crate) fn answers(socket: &Path) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")?;
        let mut answer = [0; 16];
        let n = stream.read(&mut answer)?;
        Ok(answer[..n].windows(4).any(|four| four == b" 200"))
    };
    ask().unwrap_or(false)
}
