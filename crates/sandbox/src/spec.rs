//! The life of a box, in words: what it is made from, what holds it, what is known of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::image::Reference;
use crate::snapshot::records::SnapshotInfo;
use crate::task::TaskInfo;
use crate::tools::ToolsSpec;

/// What a box is to be.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxSpec {
    /// What it is made from.
    pub image: Image,
    /// What runs it.
    pub runtime: RuntimeKind,
    /// How strongly it must be isolated at least. Without a word: [`Level::Full`], or what a runtime that was asked
    /// for by name has.
    pub min_level: Option<Level>,
    /// What it is held to.
    pub limits: Limits,
    /// Whom it may talk to.
    pub network: NetworkPolicy,
    /// Environment of every command.
    pub env: Vec<(String, String)>,
    /// Working directory of commands that name none.
    pub cwd: Option<String>,
    /// User of commands that name none.
    pub user: Option<String>,
    /// A name beside the id, unique among living boxes.
    pub name: Option<String>,
    /// Words of the caller's.
    pub labels: BTreeMap<String, String>,
    /// The root cannot be written; /tmp is memory.
    pub read_only: bool,
    /// Two runs of the same commands give the same bytes, as far as that can be had. Without a word: as the box of the
    /// snapshot that it is made from, or no.
    pub deterministic: Option<bool>,
    /// The engine's runtime for the container (`runsc`, `kata-runtime`), if not the one that the engine's settings name, or its
    /// default.
    pub engine_runtime: Option<String>,
    /// The box ends when this process does.
    pub owner: Option<u32>,
    /// What is put on record of each step. Without a word: the same as of the box of the snapshot that it is made from;
    /// else [`Recording::Steps`] of a deterministic box, and [`Recording::Commands`] of others.
    pub recording: Option<Recording>,
    /// What it is set up for, for the record; [`crate::Sandboxes::create_task`] sets it up.
    pub task: Option<TaskInfo>,
    /// Tools that are switched off, and further ones.
    pub tools: ToolsSpec,
    /// Regular expressions of what is never put on record, beside the values of variables and well-known tokens.
    pub redact: Vec<String>,
    /// Directories of the host that it is given, if the house allows them.
    pub volumes: Vec<Volume>,
}

impl SandboxSpec {
    /// Whether it is to be deterministic.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic.unwrap_or_default()
    }

    /// What is to be put on record of each step.
    pub fn recording(&self) -> Recording {
        self.recording.unwrap_or(Recording::of(self.is_deterministic()))
    }

    /// Takes over what a box of this snapshot has, unless somebody said otherwise.
    pub(crate) fn inherit(&mut self, snapshot: &SnapshotInfo) {
        let deterministic = *self.deterministic.get_or_insert(snapshot.deterministic);
        // Who asks for more than the snapshot's box had asks for the record that goes with it.
        let more = deterministic && !snapshot.deterministic;
        let recording = if more { snapshot.recording.max(Recording::of(true)) } else { snapshot.recording };
        self.recording.get_or_insert(recording);
    }
}

/// A directory of the host in a box. It is no part of the box's state, and forks share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where it is in the box. A directory is made there if there is none.
    pub path: String,
    /// The box cannot write to it.
    pub read_only: bool,
    /// It is made on the host if it is missing, with all above it up to the directory that the house allows; no link is followed.
    pub make: bool,
    /// Device and inode of what was found there when the box was made: nothing else is ever mounted.
    pub(crate) seen: Option<(u64, u64)>,
}

impl Volume {
    /// A volume that has to be there.
    pub fn new(host: impl Into<PathBuf>, path: impl Into<String>, read_only: bool) -> Volume {
        Volume { host: host.into(), path: path.into(), read_only, make: false, seen: None }
    }
}

impl std::str::FromStr for Volume {
    type Err = Error;

    fn from_str(text: &str) -> Result<Volume> {
        match text.split(':').collect::<Vec<_>>()[..] {
            [host, path] if !host.is_empty() && !path.is_empty() => Ok(Volume::new(host, path, false)),
            [host, path, how @ ("ro" | "rw")] if !host.is_empty() && !path.is_empty() => {
                Ok(Volume::new(host, path, how == "ro"))
            }
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{text:?} is no volume; say HOST:PATH, or HOST:PATH:ro for one that cannot be written"
                ),
            )),
        }
    }
}

impl std::fmt::Display for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}{}", self.host.display(), self.path, if self.read_only { ":ro" } else { "" })
    }
}

/// What is put on record of each step: of a command, or of a call of a tool. The least first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Recording {
    /// What was asked for, what it wrote, how it ended.
    #[default]
    Commands,
    /// And what the box was like after it: the digest of its files, which of them it changed, processes left.
    Steps,
    /// And a snapshot of that, to go back to. It costs as much as one.
    Snapshots,
}

impl Recording {
    /// All of them.
    pub const ALL: [Recording; 3] = [Recording::Commands, Recording::Steps, Recording::Snapshots];

    /// What is recorded of a box of which nobody has said it.
    pub(crate) fn of(deterministic: bool) -> Recording {
        if deterministic { Recording::Steps } else { Recording::Commands }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Recording::Commands => "commands",
            Recording::Steps => "steps",
            Recording::Snapshots => "snapshots",
        }
    }
}

impl std::str::FromStr for Recording {
    type Err = Error;

    fn from_str(text: &str) -> Result<Recording> {
        Recording::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let message = format!("{text:?} cannot be recorded; say `commands`, `steps` or `snapshots`");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// What a box is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Image {
    /// The host's own programs, read-only, with an /etc of our making and nothing else of the host.
    #[default]
    Host,
    /// A directory of the host that holds a root file system. It is never written.
    Directory(PathBuf),
    /// A snapshot, by its id or name.
    Snapshot(String),
    /// An image that was pulled or imported, by its name.
    Stored(String),
    /// The same, and pulled if it is not here.
    Remote(String),
    /// An archive of the OCI's layout, which is imported.
    OciArchive(PathBuf),
    /// An archive as `docker save` writes it, which is imported.
    DockerArchive(PathBuf),
    /// An image of the Docker engine, which pulls it if it has none of that name. Only for the runtime `docker`.
    Engine(String),
}

impl std::str::FromStr for Image {
    type Err = Error;

    fn from_str(text: &str) -> Result<Image> {
        if let Some(name) = text.strip_prefix("oci://") {
            return name.parse::<Reference>().map(|_| Image::Remote(name.to_owned()));
        }
        match text.split_once(':') {
            None if text == "host" => Ok(Image::Host),
            Some(("dir", path)) if !path.is_empty() => Ok(Image::Directory(path.into())),
            Some(("snapshot", name)) if !name.is_empty() => Ok(Image::Snapshot(name.into())),
            Some(("oci-archive", path)) if !path.is_empty() => Ok(Image::OciArchive(path.into())),
            Some(("docker-archive", path)) if !path.is_empty() => Ok(Image::DockerArchive(path.into())),
            Some(("docker-daemon", name)) => {
                name.parse::<Reference>().map(|_| Image::Engine(name.to_owned()))
            }
            _ => match text.parse::<Reference>() {
                Ok(_) => Ok(Image::Stored(text.to_owned())),
                Err(_) => Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{text:?} is no image; say `host`, `dir:PATH` with a directory that holds a root, the name of \
                         an image, `oci://NAME` to pull it, or `snapshot:ID`"
                    ),
                )),
            },
        }
    }
}

impl std::fmt::Display for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Image::Host => write!(f, "host"),
            Image::Directory(path) => write!(f, "dir:{}", path.display()),
            Image::Snapshot(name) => write!(f, "snapshot:{name}"),
            Image::Stored(name) => write!(f, "{name}"),
            Image::Remote(name) => write!(f, "oci://{name}"),
            Image::OciArchive(path) => write!(f, "oci-archive:{}", path.display()),
            Image::DockerArchive(path) => write!(f, "docker-archive:{}", path.display()),
            Image::Engine(name) => write!(f, "docker-daemon:{name}"),
        }
    }
}

/// What runs a box.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RuntimeKind {
    /// Namespaces of this kernel.
    #[default]
    Native,
    /// No isolation at all. Only when asked for by name.
    Process,
    /// A container of a Docker engine.
    Docker,
}

impl RuntimeKind {
    /// All of them.
    pub const ALL: [RuntimeKind; 3] = [RuntimeKind::Native, RuntimeKind::Process, RuntimeKind::Docker];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            RuntimeKind::Native => "native",
            RuntimeKind::Process => "process",
            RuntimeKind::Docker => "docker",
        }
    }
}

impl std::str::FromStr for RuntimeKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<RuntimeKind> {
        RuntimeKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("{text:?} is no runtime; say `native`, `docker` or `process`"),
            )
        })
    }
}

/// How strongly a box is isolated, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not at all.
    None,
    /// Something of `Full` is missing; the box says what.
    Reduced,
    /// Every wall that this kernel has: all namespaces, no capabilities, Landlock, the system call filter.
    Full,
    /// As much, and a kernel in user space between it and the host's: that of gVisor, through an engine.
    Gvisor,
    /// As much, in a machine of its own: that of Kata, through an engine.
    Vm,
}

impl Level {
    /// All of them, weakest first.
    const ALL: [Level; 5] = [Level::None, Level::Reduced, Level::Full, Level::Gvisor, Level::Vm];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::Reduced => "reduced",
            Level::Full => "full",
            Level::Gvisor => "gvisor",
            Level::Vm => "vm",
        }
    }
}

impl std::str::FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Level> {
        Level::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                format!("{text:?} is no level; say `vm`, `gvisor`, `full`, `reduced` or `none`"),
            )
        })
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a box may talk to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetworkPolicy {
    /// Nobody but itself, on its own loopback device.
    #[default]
    None,
}

/// What a box is held to. `None` leaves it to the defaults; a limit that is asked for is enforced or refused.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Memory of the whole box.
    pub memory_bytes: Option<u64>,
    /// CPUs, as a fraction.
    pub cpus: Option<f64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// What the box may add to its root.
    pub disk_bytes: Option<u64>,
    /// What is kept of each command's output, head and tail; the rest is counted.
    pub output_bytes: Option<u64>,
    /// Wall time of each command.
    pub timeout: Option<Duration>,
    /// Life of the box.
    pub ttl: Option<Duration>,
}

/// A limit as it is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitInForce {
    /// `memory`, `cpu`, `pids`, `disk`, `output`, `timeout`, `ttl`.
    pub name: String,
    /// How much, in words; `none` if there is no limit.
    pub value: String,
    /// How much: bytes, milliseconds, processes, or thousandths of a CPU.
    pub amount: Option<u64>,
    /// What enforces it, or why nothing does.
    pub mechanism: String,
}

/// Where a box stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// It lives.
    Running,
    /// It lives, and nothing in it runs until it is resumed.
    Paused,
    /// It was stopped, and can be started again on what it had written.
    Stopped,
    /// It ended, and waits to be cleaned up.
    Dead,
}

impl SandboxState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SandboxState::Running => "running",
            SandboxState::Paused => "paused",
            SandboxState::Stopped => "stopped",
            SandboxState::Dead => "dead",
        }
    }

    /// What is left of it on the disk, where nobody writes down whether a box lives.
    pub(crate) fn as_written(self) -> SandboxState {
        match self {
            SandboxState::Stopped => SandboxState::Stopped,
            _ => SandboxState::Dead,
        }
    }

    /// Whether its first process lives.
    pub fn is_alive(self) -> bool {
        matches!(self, SandboxState::Running | SandboxState::Paused)
    }
}

/// What is known of a box.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxInfo {
    /// Its id.
    pub id: String,
    /// Its other name.
    pub name: Option<String>,
    /// Where it stands.
    pub state: SandboxState,
    /// What runs it.
    pub runtime: RuntimeKind,
    /// How strongly it is isolated.
    pub level: Level,
    /// What is missing to `Full`, each with its reason.
    pub missing: Vec<String>,
    /// What it was made from.
    pub image: Image,
    /// What that was made from in the first place.
    pub root_image: Image,
    /// When, milliseconds since 1970.
    pub created_ms: u64,
    /// Its first process, as the host sees it.
    pub pid: i32,
    /// When that process started, in ticks of the host: number and tick name a process for ever.
    pub start_ticks: u64,
    /// Limits, each with what enforces it.
    pub limits: Vec<LimitInForce>,
    /// Words of the caller's.
    pub labels: BTreeMap<String, String>,
    /// The process that it dies with.
    pub owner: Option<u32>,
    /// Life, from its creation.
    pub ttl_ms: Option<u64>,
    /// User of commands that name none.
    pub user: String,
    /// Working directory of commands that name none.
    pub cwd: String,
    /// The root is read-only.
    pub read_only: bool,
    /// Two runs of the same commands give the same bytes, but for what is `uncontrolled`.
    pub deterministic: bool,
    /// What may still differ from run to run of a deterministic box, each with its reason.
    pub uncontrolled: Vec<String>,
    /// How the commands of the box are told from each other, for killing exactly one.
    pub tracking: String,
    /// First host uid of the box, where it has its own range.
    pub uid_base: Option<u32>,
    /// The layers that it stands on, uppermost first.
    pub chain: Vec<String>,
    /// Those that it began with, and goes back to with a reset.
    pub origin: Vec<String>,
    /// How often it was given another root.
    pub generation: u64,
    /// What is put on record of each step.
    pub recording: Recording,
    /// What it was set up for.
    pub task: Option<TaskInfo>,
    /// Tools that are switched off, and further ones.
    pub tools: ToolsSpec,
    /// Regular expressions of what is never put on record.
    pub redact: Vec<String>,
    /// Directories of the host that it was given.
    pub volumes: Vec<Volume>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_of_a_snapshot_is_like_the_one_that_it_was_taken_of_unless_told_otherwise() {
        let check = |asked: (Option<bool>, Option<Recording>), taken: (bool, Recording), expected| {
            let snapshot = crate::snapshot::records::tests::snapshot(taken.0, taken.1);
            let mut spec = SandboxSpec { deterministic: asked.0, recording: asked.1, ..Default::default() };
            spec.inherit(&snapshot);
            assert_eq!((spec.is_deterministic(), spec.recording()), expected, "{asked:?} of {taken:?}");
        };
        use Recording::{Commands, Snapshots, Steps};
        for taken in [(true, Steps), (true, Commands), (true, Snapshots), (false, Commands), (false, Steps)] {
            check((None, None), taken, taken);
            check((Some(false), None), taken, (false, taken.1));
            check((None, Some(Commands)), taken, (taken.0, Commands));
            check((Some(false), Some(Snapshots)), taken, (false, Snapshots));
        }
        check((Some(true), None), (false, Commands), (true, Steps));
        check((Some(true), None), (false, Snapshots), (true, Snapshots));
        check((Some(true), None), (true, Commands), (true, Commands));
        check((Some(true), Some(Commands)), (false, Commands), (true, Commands));
        assert_eq!(SandboxSpec::default().recording(), Commands);
        let deterministic = SandboxSpec { deterministic: Some(true), ..SandboxSpec::default() };
        assert_eq!(deterministic.recording(), Steps);
    }

    #[test]
    fn a_volume_is_read_as_it_is_written() {
        for (text, read_only) in [("/a:/b", false), ("/a b:/c:ro", true)] {
            let volume = text.parse::<Volume>().unwrap();
            assert_eq!((volume.to_string().as_str(), volume.read_only), (text, read_only));
        }
        assert!(!"/a:/b:rw".parse::<Volume>().unwrap().read_only);
        for text in ["", "/a", "/a:", ":/b", "/a:/b:", "/a:/b:rx", "/a:/b:ro:ro"] {
            assert!(text.parse::<Volume>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_image_is_read_as_it_is_written() {
        for (text, image) in [
            ("host", Image::Host),
            ("dir:/srv", Image::Directory("/srv".into())),
            ("debian:12", Image::Stored("debian:12".into())),
            ("localhost:5000/x:y", Image::Stored("localhost:5000/x:y".into())),
            ("oci://debian", Image::Remote("debian".into())),
            ("oci-archive:/a b", Image::OciArchive("/a b".into())),
            ("docker-archive:x.tar", Image::DockerArchive("x.tar".into())),
            ("snapshot:abc", Image::Snapshot("abc".into())),
            ("docker-daemon:a/b:c", Image::Engine("a/b:c".into())),
        ] {
            assert_eq!(text.parse::<Image>().unwrap(), image);
            assert_eq!(image.to_string(), text);
        }
        for text in ["", "dir:", "A", "oci://", "oci://../x", "docker-archive:", "docker-daemon:"] {
            assert!(text.parse::<Image>().is_err(), "{text:?}");
        }
    }
}
