//! The plan of a jail: an ordered list of steps, as data.
//!
//! The host decides everything and writes it down; a fresh single-threaded process (the *builder*, `glass-guest jail`)
//! carries it out. Steps before the hand-over run in the builder, outside; the rest run in the box's first process.
//!
//! ```text
//!  host ── plan + descriptors ──▶ builder ── clone ──▶ PID 1 of the box
//!   ▲                               │ maps ids, mounts layers, hands mounts over, exits
//!   ├───────── Spawned{pid} ────────┘                    │ mounts, pivots, drops, filters
//!   ├───────── Ready | Failed{step} ─────────────────────┤
//!   └───────── commit ──────────────────────────────────▶│ serves (no commit: it exits)
//! ```
//! A plan may be begun before anybody wants the box ([`Step::AwaitRest`]): everything that is the same for all boxes of its kind
//! is done by then, and what is not comes when one is wanted, as a [`Rest`].
//!
//! A box that lives is given another root by the same means: the plan's steps all run in the builder, which enters the
//! box's namespaces by descriptor and is gone when it is done. A builder may be executed before there is a plan
//! (`glass-guest spare`).

use serde::{Deserialize, Serialize};

use crate::exec::Rlimit;

/// Where a container's first process finds the host: a directory that the host mounts there, read-only. The guest's
/// program lies in it, and the socket as long as it is needed. Below /dev, which is no part of the container's files.
pub const DOOR: &str = "/dev/.glasshouse";
/// The names on the way to it. Engines make the directory in the container's files, and commit it with these.
pub const DOOR_NAMES: [&str; 2] = ["dev", ".glasshouse"];
/// The socket in it that the plan comes through.
pub const DOOR_SOCKET: &str = "start";
/// The guest's program in it.
pub const DOOR_GUEST: &str = "guest";
/// With this code the first process of a container ends if nobody waits behind its door.
pub const NOBODY_AT_THE_DOOR: u8 = 3;

/// Where a container's first process waits for the host, if the engine sees nothing of the host's files: a directory in
/// memory that only [`LANDING_USER`] may enter, and who may enter everything.
pub const LANDING: &str = "/dev/.glasshouse-landing";
/// The socket in it.
pub const LANDING_SOCKET: &str = "guest";
/// Who bridges are (`glass-guest bridge`): nobody else in the box, so that no process of the box can touch them or come to
/// the guest as they do.
pub const LANDING_USER: u32 = 65_533;
/// What begins the word of a guest that its kernel does not set one of the limits of each process.
pub const UNLIMITED: &str = "process limits";
/// What a bridge says first, when it has reached the guest.
pub const BRIDGE_STANDS: u8 = b'!';
/// What a builder that was executed ahead of time says when it has made ready what any plan needs.
pub const SPARE_WAITS: u8 = b'.';

/// All that the builder and the guest are told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What the descriptors are that come with the plan, in order.
    pub fds: Vec<FdRole>,
    /// The steps, in order. None: the guest serves where it was started (the runtime `process`).
    pub steps: Vec<PlannedStep>,
    /// What the guest needs to know afterwards.
    #[serde(default, skip_serializing_if = "GuestConfig::is_default")]
    pub guest: GuestConfig,
    /// For tests: make one step fail.
    #[serde(default)]
    pub fault: Option<Fault>,
}

/// The rest of a plan that was begun before it was known for which box: what stands in it in the place of these counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    /// What the descriptors are that come with it, in order.
    pub fds: Vec<FdRole>,
    /// The root.
    pub overlay: Step,
    /// What the guest needs to know afterwards.
    pub guest: GuestConfig,
}

impl Plan {
    /// The plan is that of a certain box now.
    pub fn complete(&mut self, rest: Rest) {
        self.guest = rest.guest;
        let root = self.steps.iter_mut().find(|planned| matches!(planned.step, Step::Overlay { .. }));
        if let Some(planned) = root {
            planned.step = rest.overlay;
        }
    }
}

impl Plan {
    /// Whether a box comes of it. Else it is for one that lives.
    pub fn spawns(&self) -> bool {
        self.steps.iter().any(|planned| matches!(planned.step, Step::Spawn { .. }))
    }
}

/// A step, and where it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// Where.
    pub side: Side,
    /// What.
    pub step: Step,
}

/// Where a step runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// In the builder, outside the box.
    Builder,
    /// In the box's first process.
    Box,
}

/// A step that is made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its place in the list.
    pub step: usize,
    /// The error that it reports; 0 stands for sudden death.
    pub errno: i32,
}

/// What a descriptor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FdRole {
    /// A locked file. The lock ends with the last process that holds it: that is how a box is known to be alive.
    Alive,
    /// The listening socket.
    Listener,
    /// A pidfd: the box ends when this process does.
    Owner,
    /// The directory in the cgroup v2 tree in which the first process is born.
    Birth,
    /// The directory in the cgroup v2 tree in which commands get theirs, for starting and killing them exactly.
    Track,
    /// The `cgroup.procs` of the directory in the cgroup v2 tree in which the first process lives, where commands are
    /// limited there. The counters of their limits are then beside their directories.
    First,
    /// A cgroup v1 `tasks` file that the first process enters, and with it everything that comes after.
    Tasks,
    /// A cgroup v1 `tasks` file that each command enters, and the first process does not: what commands use up must not
    /// be the end of who has to tell of it.
    Enter,
    /// The `tasks` file above such a one, through which the first process leaves it again.
    Leave,
    /// A file with the counter `oom_kill`.
    OomEvents,
    /// A file with the counter `max` of refused processes.
    PidsEvents,
    /// A file with the most memory that the box ever held.
    MemoryPeak,
    /// The user namespace of a box that lives.
    UserNamespace,
    /// Its mount namespace.
    MountNamespace,
    /// Its IPC namespace.
    IpcNamespace,
    /// The connection that holds it still. As long as whoever changes its root has it, the box does not go on.
    Hold,
}

/// One step of a build.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// A mount namespace of the builder's own, so that what it mounts is seen by nobody. A builder that was executed
    /// ahead of time has made one already, and enters it when it has taken the layers from the host's.
    PrivateMounts,
    /// Start the box's first process in these new namespaces.
    Spawn {
        /// Which namespaces.
        namespaces: Vec<Namespace>,
        /// Make them as this user of the host: what the kernel counts for the box is then not counted for root, whose
        /// budgets all boxes would share.
        owner: Option<u32>,
    },
    /// Write the maps of the box's user namespace.
    MapIds {
        /// Users.
        uids: Vec<IdMap>,
        /// Groups.
        gids: Vec<IdMap>,
        /// Without privilege, `setgroups` has to be given up first.
        deny_setgroups: bool,
    },
    /// Mount the chain of layers with a writable top.
    Overlay {
        /// The layers, uppermost first.
        lowers: Vec<Source>,
        /// The directory of the store, which nobody but us can change: whether layers in it are what the host looked at is not
        /// asked.
        #[serde(default)]
        store: Option<Source>,
        /// Where changes go.
        top: Top,
        /// How often the box was given another root: the box can tell by it which one it has.
        #[serde(default)]
        generation: u64,
        /// Show the layers' owners shifted into the box's range: its first id.
        idmap: Option<u32>,
        /// Keep overlay's marks in `user.` attributes, as a mount without privilege must.
        userxattr: bool,
    },
    /// Take a read-only copy of a tree of the host.
    HostTree {
        /// The tree.
        source: Source,
        /// Where it will be, inside.
        target: String,
        /// Show its owners shifted into the box's range, where the file system can.
        idmap: bool,
    },
    /// Take a copy of a directory of the host that the box may use.
    Volume {
        /// The directory.
        source: Source,
        /// Where it will be, inside.
        target: String,
        /// It cannot be written.
        read_only: bool,
        /// Show its owners shifted into the box's range.
        idmap: bool,
    },
    /// Wait until somebody wants the box, and for what is particular to it.
    AwaitRest,
    /// Pass the mounts on to the box's first process and let it go.
    HandOver,
    /// Enter the user namespace of a box that lives, which gives us rights over the rest of it.
    EnterUser,
    /// Give the guest of a box that lives a descriptor of the top in memory of its next root: nobody else outlives this.
    LeaveTop {
        /// The number of that root.
        generation: u64,
    },
    /// Remove the System V objects of a box that lives.
    ClearIpc,
    /// Put the new root in the place of the root of a box that lives. Everything else that is mounted there moves along.
    ReplaceRoot {
        /// Where mounts are that move along, if they are there.
        moved: Vec<String>,
        /// Only if nothing is open for writing in the old root, which the kernel knows.
        quiet: bool,
        /// The new root cannot be written.
        read_only: bool,
        /// Become this user of the box before the next step: memory belongs to who makes it.
        become_root: bool,
        /// Directories in memory, and their sizes, that are made anew.
        fresh: Vec<(String, u64)>,
    },
    /// Become this user and group of the box.
    Become {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// Enter the cgroups that came as descriptors.
    JoinCgroups,
    /// See the box's cgroups as the tops of their trees from now on, and nothing of the host's above; then leave those
    /// that are for commands alone.
    CgroupNamespace,
    /// Set the host name.
    Hostname {
        /// The name.
        name: String,
    },
    /// Bring the loopback device up.
    Loopback,
    /// A place in memory for what is mounted before there is a root.
    Stage,
    /// Wait for what the builder hands over.
    TakeOver,
    /// Attach the root where the rest can be mounted into it.
    AttachRoot,
    /// Move what was mounted before there was a root to where it belongs.
    Furnish,
    /// Attach the copies of host trees.
    AttachTrees,
    /// Attach the volumes, after all that could cover them.
    AttachVolumes,
    /// A file system of processes, with what leaks covered and what commands covered read-only.
    Proc {
        /// Covered by nothing.
        masked: Vec<String>,
        /// Read-only.
        read_only: Vec<String>,
        /// Written before they become read-only.
        sysctls: Vec<(String, String)>,
        /// Keep the file open that says which number the next process gets.
        #[serde(default)]
        last_pid: bool,
    },
    /// A device directory with a few harmless nodes.
    Dev {
        /// Nodes taken from the host.
        nodes: Vec<String>,
        /// Size of /dev/shm.
        shm_bytes: u64,
        /// Terminals at most.
        ptys_max: u32,
    },
    /// A /sys with the few files that runtimes read.
    Sys {
        /// Path below /sys and content.
        files: Vec<(String, String)>,
    },
    /// A directory in memory.
    Tmpfs {
        /// Where.
        target: String,
        /// How large.
        bytes: u64,
    },
    /// Make what differs from run to run the same: files of /proc, random bytes, addresses, and a library for the rest.
    Pin {
        /// Where the library is that commands preload.
        library: String,
        /// Devices that give the same bytes to everybody who reads them.
        random: Vec<String>,
        /// How many bytes they have.
        random_bytes: u64,
        /// Files that are laid over others: path and content.
        files: Vec<(String, String)>,
    },
    /// Make the new root the root, and let the old one go.
    Pivot,
    /// Make the root read-only.
    ReadOnlyRoot,
    /// Keep these capabilities of the box's user namespace, and give up the way to any other.
    DropPrivileges {
        /// Numbers of the capabilities.
        keep: Vec<u32>,
    },
    /// Load the system call filter, and make up the word that clone3 has to come with from then on.
    Filter {
        /// The program, an instruction a number.
        words: Vec<u64>,
    },
}

impl Step {
    /// The step's name in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Step::PrivateMounts => "private mounts",
            Step::Spawn { .. } => "namespaces",
            Step::MapIds { .. } => "id maps",
            Step::Overlay { .. } => "overlay root",
            Step::HostTree { .. } => "host tree",
            Step::Volume { .. } => "volume",
            Step::AwaitRest => "wait to be wanted",
            Step::HandOver => "hand-over",
            Step::EnterUser => "enter the user namespace",
            Step::LeaveTop { .. } => "leave the top to the guest",
            Step::ClearIpc => "clear IPC objects",
            Step::ReplaceRoot { .. } => "replace the root",
            Step::Become { .. } => "become the box's user",
            Step::JoinCgroups => "join cgroups",
            Step::CgroupNamespace => "cgroup namespace",
            Step::Hostname { .. } => "host name",
            Step::Loopback => "loopback device",
            Step::Stage => "scratch directory",
            Step::TakeOver => "take over mounts",
            Step::AttachRoot => "attach root",
            Step::Furnish => "furnish root",
            Step::AttachTrees => "attach host trees",
            Step::AttachVolumes => "attach volumes",
            Step::Proc { .. } => "mount /proc",
            Step::Dev { .. } => "mount /dev",
            Step::Sys { .. } => "mount /sys",
            Step::Tmpfs { .. } => "mount tmpfs",
            Step::Pin { .. } => "pin what differs",
            Step::Pivot => "pivot root",
            Step::ReadOnlyRoot => "read-only root",
            Step::DropPrivileges { .. } => "drop privileges",
            Step::Filter { .. } => "system call filter",
        }
    }
}

/// A kind of namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Namespace {
    /// Users and groups.
    User,
    /// Mounts.
    Mount,
    /// Processes.
    Pid,
    /// System V IPC and message queues.
    Ipc,
    /// Host name.
    Uts,
    /// Network.
    Net,
}

/// A stretch of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// A directory of the host, named so that a swap is noticed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Where it is.
    pub path: String,
    /// The device it was on when the host looked.
    pub dev: u64,
    /// Its inode then.
    pub ino: u64,
}

/// Where a box's changes go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Top {
    /// A directory with `u` and `w` in it.
    Directory(Source),
    /// Memory, with an exact bound.
    Memory {
        /// How much.
        bytes: u64,
        /// How many files.
        inodes: u64,
    },
}

/// What the guest needs to know.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// Environment of every command that comes with the image.
    pub image_env: Vec<(String, String)>,
    /// Environment of every command that the caller gave: stronger, and taken for secret.
    pub env: Vec<(String, String)>,
    /// Working directory of commands that name none.
    pub cwd: String,
    /// User of commands that name none; empty: whoever the guest is.
    pub user: String,
    /// The box is over after this time.
    pub ttl_ms: Option<u64>,
    /// The longest that a command may run, unless it asks for less.
    pub timeout_ms: Option<u64>,
    /// Bytes kept of a command's output.
    pub kept_output_bytes: Option<u64>,
    /// Limits of every process.
    pub rlimits: Vec<Rlimit>,
    /// How the processes of one command are told from those of another.
    pub tracking: Tracking,
    /// Close the file system of commands to devices with Landlock.
    pub landlock: bool,
    /// A filter that each command gets on top, if it gets one.
    pub command_filter: Vec<u64>,
    /// Commands are ended when the file system below the root has less than this left.
    pub disk_reserve_bytes: Option<u64>,
    /// Change users with the kernel's help (the guest has the right to).
    pub switch_users: bool,
    /// The box is a box: the guest is its PID 1 and may kill everything around it.
    pub contained: bool,
    /// Two runs of the same commands are to give the same bytes.
    #[serde(default)]
    pub pinned: Option<Pinned>,
    /// The host does not see where the guest is, which has to find out itself what it can have.
    #[serde(default)]
    pub apart: Option<Apart>,
}

impl GuestConfig {
    /// There is nothing to tell: no guest comes of the plan.
    fn is_default(&self) -> bool {
        *self == GuestConfig::default()
    }
}

/// What a guest needs to know that is where the host sees nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Apart {
    /// Landlock is used from this version on; where it is older, or missing, that is told.
    pub landlock_abi_min: u32,
}

/// What is the same for every command of a deterministic box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// The one CPU that commands run on.
    pub cpu: u32,
    /// Environment, which gives way to the image's and the caller's.
    pub env: Vec<(String, String)>,
    /// The library that commands preload.
    pub library: String,
}

/// How the processes of one command are told from those of another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tracking {
    /// A cgroup each.
    Cgroup,
    /// A UTS namespace each: inherited, and nothing a command does can shed it.
    Tag,
    /// The process group and the descendants that can be found. Only without isolation.
    #[default]
    Group,
}

/// What the builder and the box's first process tell the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The first process exists and has this number outside.
    Spawned {
        /// Its number.
        pid: i32,
    },
    /// From here on a box that lives is being changed: whoever ends before he has said more leaves it in between.
    Changing,
    /// The builder has done all that can be done before somebody wants the box.
    Begun,
    /// A box that lives stands on its new root. What is left is to let go of the old one, and to release the box.
    Swapped,
    /// Everything is built.
    Ready {
        /// What could not be pinned, or is missing where the host cannot look, each with its reason.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lacking: Vec<String>,
        /// The release of its kernel, where the host cannot look.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kernel: Option<String>,
    },
    /// A step failed. The process has ended.
    Failed(StepFailure),
    /// A step failed, and left a box that lives neither as it was nor as it should be. The process has ended.
    Torn(StepFailure),
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailure {
    /// Its place in the list.
    pub index: usize,
    /// Its name.
    pub step: String,
    /// The path, option or word that it stumbled over.
    pub on: String,
    /// The kernel's answer.
    pub errno: i32,
}
