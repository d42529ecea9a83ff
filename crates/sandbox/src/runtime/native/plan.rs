//! The plan of a native box: which steps, in which order, and why in that order.

use glasshouse_linux::caps::Cap;
use glasshouse_linux::seccomp;
use glasshouse_protocol::plan::{
    GuestConfig, IdMap, Namespace, Plan, PlannedStep, Rest, Side, Source, Step, Top, Tracking,
};

use crate::home::UID_RANGE;
use crate::image::Base;
use crate::limits::{PTYS, SHM_BYTES, TMP_BYTES};
use crate::runtime::native::pinned;
use crate::spec::Volume;

/// Files of /proc that tell of the host, or of the kernel, what a box need not know.
pub(crate) const MASKED: [&str; 30] = [
    "kcore",
    "keys",
    "key-users",
    "timer_list",
    "sched_debug",
    "schedstat",
    "kallsyms",
    "cmdline",
    "config.gz",
    "interrupts",
    "softirqs",
    "latency_stats",
    "acpi",
    "scsi",
    "asound",
    "kmsg",
    "kpagecount",
    "kpageflags",
    "kpagecgroup",
    "pressure",
    "partitions",
    "diskstats",
    "swaps",
    "iomem",
    "ioports",
    "modules",
    "vmallocinfo",
    "slabinfo",
    "pagetypeinfo",
    "buddyinfo",
];
/// Parts of /proc that a box may read and nobody there may write.
pub(crate) const READ_ONLY: [&str; 6] = ["sys", "bus", "fs", "irq", "sysrq-trigger", "driver"];
/// Knobs of the box's own namespaces, turned before they become read-only.
const SYSCTLS: [(&str, &str); 5] = [
    // One box must not use up what all boxes of a user share.
    ("sys/user/max_inotify_instances", "16"),
    ("sys/user/max_inotify_watches", "65536"),
    ("sys/user/max_user_namespaces", "0"),
    ("sys/user/max_fanotify_groups", "0"),
    // Its network is its own: low ports are no privilege there.
    ("sys/net/ipv4/ip_unprivileged_port_start", "0"),
];
/// Device nodes that are taken from the host.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Who the box's users are outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Users {
    /// A range of its own, with the layers shifted into it. Needs root.
    Range {
        /// First id outside.
        base: u32,
    },
    /// The same ids inside and outside, where the kernel cannot shift layers. Needs root, and weakens the box.
    Same,
    /// One user: inside this id, outside whoever we are.
    One {
        /// User inside.
        inside: u32,
        /// User outside.
        uid: u32,
        /// Group outside.
        gid: u32,
    },
}

/// All that the plan depends on.
#[derive(Debug)]
pub(super) struct Decisions<'a> {
    pub(super) base: &'a Base,
    /// The directory that layers of the store are in.
    pub(super) store: Option<Source>,
    /// Layers below those of the base, with nothing but what something is mounted on.
    pub(super) places: Vec<Source>,
    pub(super) top: Top,
    pub(super) generation: u64,
    pub(super) users: Users,
    pub(super) read_only: bool,
    pub(super) volumes: &'a [Volume],
    /// Memory of the box beside its disk, where that is limited for the box as a whole.
    pub(super) memory_bytes: Option<u64>,
    pub(super) guest: GuestConfig,
    /// Nobody wants the box yet: what is particular to it comes later.
    pub(super) ahead: bool,
}

/// What is particular to a box whose plan was begun before anybody wanted it.
pub(super) fn rest(decisions: Decisions<'_>) -> Rest {
    let overlay = overlay(&decisions);
    Rest { fds: Vec::new(), overlay, guest: decisions.guest }
}

/// Writes the plan.
pub(super) fn plan(decisions: Decisions<'_>) -> Plan {
    let mut steps = Vec::new();
    outside(&decisions, &mut steps);
    inside(&decisions, &mut steps);
    Plan { fds: Vec::new(), steps, guest: decisions.guest, fault: None }
}

fn on(side: Side) -> impl Fn(Step) -> PlannedStep {
    move |step| PlannedStep { side, step }
}

/// What the builder does. With privilege it mounts the layers, because only it can shift their owners; without, that is
/// left to the box's first process, which may mount in its own namespaces.
fn outside(decisions: &Decisions<'_>, steps: &mut Vec<PlannedStep>) {
    let builder = on(Side::Builder);
    let namespaces = vec![
        Namespace::User,
        Namespace::Mount,
        Namespace::Pid,
        Namespace::Ipc,
        Namespace::Uts,
        Namespace::Net,
    ];
    let one = |inside, outside, count| vec![IdMap { inside, outside, count }];
    let (uids, gids, deny_setgroups) = match decisions.users {
        Users::Range { base } => (one(0, base, UID_RANGE), one(0, base, UID_RANGE), false),
        Users::Same => (one(0, 0, UID_RANGE), one(0, 0, UID_RANGE), false),
        Users::One { inside, uid, gid } => (one(inside, uid, 1), one(inside, gid, 1), true),
    };
    // The box's first process is born before anything is mounted: its mount namespace is a copy of the host's, and
    // what the builder mounts after that is seen by nobody but the builder.
    if privileged(decisions.users) {
        steps.push(builder(Step::PrivateMounts));
    }
    let owner = match decisions.users {
        Users::Range { base } => Some(base),
        _ => None,
    };
    steps.push(builder(Step::Spawn { namespaces, owner }));
    steps.push(builder(Step::MapIds { uids, gids, deny_setgroups }));
    let privileged = privileged(decisions.users);
    if privileged {
        // The host's trees first: a builder may be elsewhere when it has mounted the layers.
        steps.extend(trees(decisions).map(&builder));
    }
    if decisions.ahead {
        steps.push(builder(Step::AwaitRest));
    }
    if privileged {
        steps.extend(layers(decisions).map(&builder));
    }
    steps.push(builder(Step::HandOver));
}

fn privileged(users: Users) -> bool {
    !matches!(users, Users::One { .. })
}

fn trees(decisions: &Decisions<'_>) -> impl Iterator<Item = Step> {
    let idmap = matches!(decisions.users, Users::Range { .. });
    decisions.base.trees.iter().map(move |(source, target)| Step::HostTree {
        source: source.clone(),
        target: target.clone(),
        idmap,
    })
}

fn layers(decisions: &Decisions<'_>) -> impl Iterator<Item = Step> {
    volumes(decisions).chain([overlay(decisions)])
}

/// Each was looked at when the box was made; what is not that any more is not mounted.
fn volumes(decisions: &Decisions<'_>) -> impl Iterator<Item = Step> {
    let idmap = matches!(decisions.users, Users::Range { .. });
    decisions.volumes.iter().map(move |volume| {
        let (dev, ino) = volume.seen.unwrap_or_default();
        Step::Volume {
            source: Source { path: volume.host.to_string_lossy().into_owned(), dev, ino },
            target: volume.path.trim_start_matches('/').into(),
            read_only: volume.read_only,
            idmap,
        }
    })
}

fn overlay(decisions: &Decisions<'_>) -> Step {
    let idmap = match decisions.users {
        Users::Range { base } => Some(base),
        _ => None,
    };
    Step::Overlay {
        lowers: decisions.base.layers.iter().chain(&decisions.places).cloned().collect(),
        store: decisions.store.clone(),
        top: decisions.top.clone(),
        generation: decisions.generation,
        idmap,
        userxattr: !privileged(decisions.users),
    }
}

/// How a box that lives is given another root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Swap {
    /// Only if nothing in the old one is open for writing.
    pub(super) quiet: bool,
    /// What lives in memory and in the kernel is emptied, too.
    pub(super) clean: bool,
    /// Its guest keeps a top in memory for whoever looks at it later.
    pub(super) leave_top: bool,
}

/// Writes the plan that gives a box that lives another root. Without privilege everything happens in the box's own
/// user namespace, whose root may mount there, as at its making.
pub(super) fn restack(decisions: &Decisions<'_>, swap: Swap) -> Plan {
    let mut steps = Vec::new();
    let owned = privileged(decisions.users);
    if !owned {
        steps.push(Step::EnterUser);
    }
    steps.push(Step::PrivateMounts);
    // Anew with each root: the box may have moved what was above those that it had.
    steps.extend(volumes(decisions));
    steps.push(overlay(decisions));
    if let (Top::Memory { .. }, true) = (&decisions.top, swap.leave_top) {
        // Before there is anything to look at: whoever is killed between the two must not leave a top that none can reach.
        steps.push(Step::LeaveTop { generation: decisions.generation });
    }
    if swap.clean {
        steps.push(Step::ClearIpc);
    }
    let mut moved: Vec<String> = ["proc", "sys", "dev"].map(String::from).to_vec();
    moved.extend(decisions.base.trees.iter().map(|(_, target)| target.clone()));
    let mut fresh = Vec::new();
    if decisions.read_only {
        moved.push("tmp".into());
        fresh.push(("/tmp".into(), TMP_BYTES.min(memory_files_bytes(decisions))));
    }
    fresh.push(("/dev/shm".into(), SHM_BYTES.min(memory_files_bytes(decisions))));
    steps.push(Step::ReplaceRoot {
        moved,
        quiet: swap.quiet,
        read_only: decisions.read_only,
        become_root: owned,
        fresh: if swap.clean { fresh } else { Vec::new() },
    });
    let steps = steps.into_iter().map(on(Side::Builder)).collect();
    Plan { fds: Vec::new(), steps, guest: GuestConfig::default(), fault: None }
}

fn inside(decisions: &Decisions<'_>, steps: &mut Vec<PlannedStep>) {
    let inner = on(Side::Box);
    let mut add = |step| steps.push(inner(step));
    if privileged(decisions.users) {
        // Until here it is nobody: root outside has no number in the box's range.
        add(Step::Become { uid: 0, gid: 0 });
    }
    // Processes are counted from the start; memory and cpu are the commands' own.
    add(Step::JoinCgroups);
    add(Step::CgroupNamespace);
    add(Step::Hostname { name: "box".into() });
    add(Step::Loopback);
    // What is the same for all roots comes before there is one: the builder mounts the layers meanwhile, or has not even
    // been told which.
    add(Step::Stage);
    // The kernel lets us mount a /proc only as long as the host's whole one is in sight: before the pivot.
    add(Step::Proc {
        masked: MASKED.map(String::from).to_vec(),
        read_only: READ_ONLY.map(String::from).to_vec(),
        sysctls: SYSCTLS.map(|(key, value)| (key.into(), value.into())).to_vec(),
        last_pid: is_pinned(decisions),
    });
    let pinned_node = |name: &&str| is_pinned(decisions) && pinned::NODES.contains(name);
    add(Step::Sys { files: sys_files(is_pinned(decisions)) });
    let files_bytes = memory_files_bytes(decisions);
    add(Step::Dev {
        nodes: NODES.iter().filter(|name| !pinned_node(name)).map(|&name| name.into()).collect(),
        shm_bytes: SHM_BYTES.min(files_bytes),
        ptys_max: PTYS,
    });
    add(Step::TakeOver);
    if !privileged(decisions.users) {
        trees(decisions).chain(layers(decisions)).for_each(&mut add);
    }
    add(Step::AttachRoot);
    add(Step::AttachTrees);
    add(Step::Furnish);
    if decisions.read_only {
        add(Step::Tmpfs { target: "tmp".into(), bytes: TMP_BYTES.min(files_bytes) });
    }
    if is_pinned(decisions) {
        // Over what was mounted just now, and from where it is still in sight.
        add(pinned::step());
    }
    if !decisions.volumes.is_empty() {
        add(Step::AttachVolumes);
    }
    add(Step::Pivot);
    if decisions.read_only {
        add(Step::ReadOnlyRoot);
    }
    add(Step::DropPrivileges { keep: kept_capabilities(decisions) });
    // After everything that it forbids.
    add(Step::Filter { words: base_filter().to_vec() });
}

fn is_pinned(decisions: &Decisions<'_>) -> bool {
    decisions.guest.pinned.is_some()
}

/// The most that each place for files in memory may hold: half of the box's memory for all of them. Such files are
/// nobody's to kill, and a box that is full of them could not even run the command that removes them.
fn memory_files_bytes(decisions: &Decisions<'_>) -> u64 {
    let places = if decisions.read_only { 2 } else { 1 };
    decisions.memory_bytes.map_or(u64::MAX, |bytes| bytes / 2 / places)
}

/// What the guest itself keeps, in the box's user namespace only. Commands have none: the bounding set is empty.
fn kept_capabilities(decisions: &Decisions<'_>) -> Vec<u32> {
    let mut keep = vec![Cap::Kill];
    if privileged(decisions.users) {
        // To start commands as users of the box, and to do file operations as them or as root.
        keep.extend([Cap::Setuid, Cap::Setgid, Cap::Chown, Cap::DacOverride, Cap::Fowner]);
    }
    if decisions.guest.tracking == Tracking::Tag {
        // To give each command a namespace as its mark, and to read the mark of any process.
        keep.extend([Cap::SysAdmin, Cap::SysPtrace]);
    }
    if is_pinned(decisions) {
        // To say which numbers processes get.
        keep.push(Cap::CheckpointRestore);
    }
    keep.into_iter().map(|cap| cap.bit().trailing_zeros()).collect()
}

pub(crate) fn sys_files(one_cpu: bool) -> Vec<(String, String)> {
    let cpus = if one_cpu { 1 } else { std::thread::available_parallelism().map_or(1, |n| n.get()) };
    let range = if cpus == 1 { "0\n".into() } else { format!("0-{}\n", cpus - 1) };
    ["online", "possible", "present"]
        .map(|name| (format!("devices/system/cpu/{name}"), range.clone()))
        .into_iter()
        .chain([("kernel/mm/transparent_hugepage/enabled".into(), "always [madvise] never\n".into())])
        .collect()
}

/// The same for every box, and not cheap to put together.
pub(crate) fn base_filter() -> &'static [u64] {
    static WORDS: std::sync::OnceLock<Vec<u64>> = std::sync::OnceLock::new();
    WORDS.get_or_init(|| seccomp::base().to_words())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str) -> Source {
        Source { path: path.into(), dev: 1, ino: 2 }
    }

    fn base() -> Base {
        Base {
            layers: vec![source("/layer")],
            trees: vec![(source("/usr"), "usr".into())],
            user: "user".into(),
            cwd: "/".into(),
            env: vec![],
            image: crate::spec::Image::Host,
            chain: vec![],
        }
    }

    fn names(users: Users, read_only: bool) -> Vec<(Side, &'static str)> {
        let base = base();
        let top = Top::Directory(source("/top"));
        let guest = GuestConfig::default();
        let (generation, memory_bytes) = (0, None);
        let plan = plan(Decisions {
            store: None,
            places: Vec::new(),
            base: &base,
            top,
            generation,
            users,
            read_only,
            volumes: &[],
            memory_bytes,
            guest,
            ahead: false,
        });
        plan.steps.iter().map(|planned| (planned.side, planned.step.name())).collect()
    }

    #[test]
    fn with_privilege_the_builder_mounts_the_layers() {
        use Side::{Box, Builder};
        assert_eq!(
            names(Users::Range { base: 1_000_000_000 }, false),
            [
                (Builder, "private mounts"),
                (Builder, "namespaces"),
                (Builder, "id maps"),
                (Builder, "host tree"),
                (Builder, "overlay root"),
                (Builder, "hand-over"),
                (Box, "become the box's user"),
                (Box, "join cgroups"),
                (Box, "cgroup namespace"),
                (Box, "host name"),
                (Box, "loopback device"),
                (Box, "scratch directory"),
                (Box, "mount /proc"),
                (Box, "mount /sys"),
                (Box, "mount /dev"),
                (Box, "take over mounts"),
                (Box, "attach root"),
                (Box, "attach host trees"),
                (Box, "furnish root"),
                (Box, "pivot root"),
                (Box, "drop privileges"),
                (Box, "system call filter"),
            ]
        );
    }

    #[test]
    fn without_privilege_the_first_process_mounts_the_layers_itself() {
        let names = names(Users::One { inside: 1000, uid: 1001, gid: 1001 }, true);
        let place = |name| names.iter().position(|(_, n)| *n == name).unwrap();
        assert_eq!(names[place("overlay root")].0, Side::Box);
        assert!(place("overlay root") < place("attach root"));
        assert!(!names.iter().any(|(_, name)| *name == "private mounts" || *name == "become the box's user"));
    }

    #[test]
    fn walls_come_after_what_they_forbid_and_in_this_order() {
        for users in [Users::Range { base: 1 << 30 }, Users::One { inside: 0, uid: 5, gid: 5 }] {
            let names = names(users, true);
            let place = |name| names.iter().position(|(_, n)| *n == name).unwrap();
            let order =
                ["mount /proc", "pivot root", "read-only root", "drop privileges", "system call filter"];
            assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])), "{names:?}");
        }
    }

    #[test]
    fn a_deterministic_box_is_pinned_before_the_walls_and_a_plain_one_not_at_all() {
        let base = base();
        let steps = |deterministic: bool| {
            let guest = GuestConfig {
                pinned: deterministic.then(|| pinned::pinned("abc")),
                ..GuestConfig::default()
            };
            let (top, users) = (Top::Directory(source("/top")), Users::Range { base: 1 << 30 });
            let (base, generation, read_only, memory_bytes) = (&base, 0, false, None);
            let (volumes, ahead) = (&[][..], false);
            plan(Decisions {
                base,
                store: None,
                places: Vec::new(),
                top,
                generation,
                users,
                read_only,
                volumes,
                memory_bytes,
                guest,
                ahead,
            })
            .steps
        };
        let (plain, pinned) = (steps(false), steps(true));
        let place = |name| pinned.iter().position(|planned| planned.step.name() == name).unwrap();
        assert!(place("mount /dev") < place("pin what differs"));
        assert!(place("pin what differs") < place("pivot root"));
        assert!(!plain.iter().any(|planned| planned.step.name() == "pin what differs"));
        let nodes = |steps: &[PlannedStep]| {
            steps.iter().find_map(|planned| match &planned.step {
                Step::Dev { nodes, .. } => Some(nodes.join(" ")),
                _ => None,
            })
        };
        assert_eq!(nodes(&plain).as_deref(), Some("null zero full random urandom tty"));
        assert_eq!(nodes(&pinned).as_deref(), Some("null zero full tty"));
        let kept = |steps: &[PlannedStep]| {
            steps.iter().find_map(|planned| match &planned.step {
                Step::DropPrivileges { keep } => Some(keep.clone()),
                _ => None,
            })
        };
        // The one right more: to say which numbers processes get.
        assert_eq!(kept(&pinned), kept(&plain).map(|keep| [keep, vec![40]].concat()));
    }

    #[test]
    fn only_tagging_keeps_more_than_what_changing_users_needs() {
        let base = base();
        let kept = |tracking, users| {
            let guest = GuestConfig { tracking, ..GuestConfig::default() };
            let top = Top::Directory(source("/top"));
            let (generation, read_only, memory_bytes) = (0, false, None);
            let base = &base;
            kept_capabilities(&Decisions {
                store: None,
                places: Vec::new(),
                base,
                top,
                generation,
                users,
                read_only,
                volumes: &[],
                memory_bytes,
                guest,
                ahead: false,
            })
        };
        let one = Users::One { inside: 0, uid: 5, gid: 5 };
        assert_eq!(kept(Tracking::Cgroup, one), [5]);
        assert_eq!(kept(Tracking::Tag, one), [5, 21, 19]);
        assert_eq!(kept(Tracking::Cgroup, Users::Range { base: 1 << 30 }), [5, 7, 6, 0, 1, 3]);
    }

    #[test]
    fn files_in_memory_leave_half_of_it_to_the_commands() {
        let base = base();
        let rooms = |memory_bytes, read_only| {
            let (top, users) = (Top::Directory(source("/top")), Users::Range { base: 1 << 30 });
            let (base, generation, guest) = (&base, 0, GuestConfig::default());
            let plan = plan(Decisions {
                store: None,
                places: Vec::new(),
                base,
                top,
                generation,
                users,
                read_only,
                volumes: &[],
                memory_bytes,
                guest,
                ahead: false,
            });
            let room = |planned: &PlannedStep| match &planned.step {
                Step::Dev { shm_bytes, .. } => Some(*shm_bytes),
                Step::Tmpfs { bytes, .. } => Some(*bytes),
                _ => None,
            };
            plan.steps.iter().filter_map(room).collect::<Vec<_>>()
        };
        assert_eq!(rooms(None, true), [64 << 20, 64 << 20]);
        assert_eq!(rooms(Some(2 << 30), true), [64 << 20, 64 << 20]);
        assert_eq!(rooms(Some(32 << 20), false), [16 << 20]);
        assert_eq!(rooms(Some(32 << 20), true), [8 << 20, 8 << 20]);
    }
}
