//! Carries out the plan of a box, step by step.
//!
//! Two processes do it. The builder runs the steps of its side and forks the box's first process at `Spawn`; that one
//! waits until its users have numbers, runs the steps of its own side, on the way takes over the mounts that only the builder
//! could make, and is the guest from then on. Where the plan was begun ahead of time, both stop when they have nothing to do
//! but for a certain box, and the builder hands over what that one is. Whatever fails is reported as (step, on what, errno), and the process ends: nothing that a
//! build makes outlives its processes but what the host made before and removes itself.

mod handing;
mod overlay;
mod pin;
mod swap;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use glasshouse_linux::mount::{self, Attributes};
use glasshouse_linux::namespace::{self, Flags, Fork};
use glasshouse_linux::process::Child;
use glasshouse_linux::rustix::fs::{CWD, Mode, OFlags};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::seccomp::Filter;
use glasshouse_linux::{caps, descriptor, identity, ipc, process, rustix};
use glasshouse_protocol::plan::{
    FdRole, Namespace, Plan, PlannedStep, Report, Side, Source, Step, StepFailure, Top,
};
use glasshouse_protocol::{Request, frame};

use crate::startup::Startup;
pub(crate) use handing::receive_frame;
use handing::{await_maps, await_rest, take_over};

/// Where both sides mount what they need for a moment, in mount namespaces of their own. It covers what is there, so it is
/// where nobody has a home, an image or a volume.
pub(crate) const SCRATCH: &str = "/sys";

/// What the place of a root's top is called, before the number of the root.
pub(crate) const TOP_NAME: &str = "t";

/// What the guest takes along from its building.
#[derive(Debug)]
pub(crate) struct Built {
    pub(crate) start: Startup,
    /// The box's own process file system, by descriptor.
    pub(crate) proc: Option<OwnedFd>,
    /// The box's own terminals, by descriptor.
    pub(crate) devpts: Option<OwnedFd>,
    pub(crate) knobs: Knobs,
    /// The box's user, mount and IPC namespaces, for whoever gives it another root.
    pub(crate) namespaces: Vec<OwnedFd>,
    /// The directory in memory that its changes are in, for whoever looks at them.
    pub(crate) top: Option<OwnedFd>,
}

/// Files of our own in /proc that a command inherits something from, opened while we still may.
#[derive(Debug, Default)]
pub(crate) struct Knobs {
    /// How expendable we are when memory runs out.
    pub(crate) oom_score: Option<OwnedFd>,
    /// Where the most memory that we ever held is forgotten.
    pub(crate) memory_peak: Option<OwnedFd>,
    /// Which number was given to a process last.
    pub(crate) last_pid: Option<OwnedFd>,
}

/// A step that did not work, and what it stumbled over.
struct Stumble {
    on: String,
    source: io::Error,
    /// A box that lives was left half changed by it.
    torn: bool,
}

type StepResult = Result<(), Stumble>;

fn on<T, E: Into<io::Error>>(what: impl Into<String>, result: Result<T, E>) -> Result<T, Stumble> {
    result.map_err(|e| Stumble { on: what.into(), source: e.into(), torn: false })
}

/// What one of the two processes holds while it builds.
#[derive(Default)]
struct Site {
    child: Option<Child>,
    to_child: Option<OwnedFd>,
    to_builder: Option<OwnedFd>,
    /// What came late, in the words in which it goes on to the first process, and its descriptors.
    rest: Option<(Vec<u8>, Vec<OwnedFd>)>,
    /// The scratch directory, and what is mounted in it until there is a root: where it belongs, and the mount.
    scratch: Option<OwnedFd>,
    staged: Vec<(&'static str, OwnedFd)>,
    user_namespace: Option<OwnedFd>,
    root: Option<OwnedFd>,
    /// Where changes to the root go, if that is in memory.
    top: Option<OwnedFd>,
    trees: Vec<(String, OwnedFd)>,
    volumes: Vec<(String, OwnedFd)>,
    /// Who the box's root is on the host, if the owners of the layers are shifted.
    box_root: Option<u32>,
    proc: Option<OwnedFd>,
    devpts: Option<OwnedFd>,
    knobs: Knobs,
    namespaces: Vec<OwnedFd>,
    /// What could not be pinned, and why.
    lacking: Vec<String>,
    /// A mount namespace with nothing in it, if there was time to make one. Held to the end: to let go of the last of a
    /// namespace takes its time.
    workshop: Option<OwnedFd>,
    /// What a box that lives had. It is let go by our end, which takes longer and holds up nobody.
    left: Vec<OwnedFd>,
}

/// Builds. In the builder: nothing comes back. In the box's first process: what it needs to go on.
///
/// It does not die with its maker, whose threads come and go: its own part ends by itself, and the first process waits
/// for a word that a maker who is gone does not say.
pub(crate) fn build(mut start: Startup) -> io::Result<Option<Built>> {
    let mut site = Site { workshop: start.workshop.take(), ..Site::default() };
    let mut side = Side::Builder;
    for index in 0..start.plan.steps.len() {
        if start.plan.steps[index].side != side {
            continue;
        }
        let result = match (&start.plan.steps[index].step, fault(&start.plan, index)) {
            (_, Some(errno)) => on("a fault made on purpose", Err(errno)),
            (Step::Spawn { namespaces, owner }, None) => match spawn(&start, namespaces, *owner, &mut site) {
                Ok(Some(socket)) => {
                    side = Side::Box;
                    site.workshop = None;
                    await_maps(socket.as_fd())?;
                    site.to_builder = Some(socket);
                    Ok(())
                }
                other => other.map(|_| ()),
            },
            (Step::AwaitRest, None) => match await_rest(&mut start, &mut site)? {
                true => Ok(()),
                // Nobody ever wanted it. The first process sees us go.
                false => return Ok(None),
            },
            (Step::TakeOver, None) => take_over(&mut start, &mut site),
            (step, None) => run(step, &start, &mut site),
        };
        if let Err(stumble) = result {
            return fail(&start, index, &start.plan.steps[index].step, stumble);
        }
    }
    if side == Side::Builder {
        return Ok(None);
    }
    if start.plan.guest.pinned.is_some() {
        pin::check(&mut site);
    }
    start.report(&Report::Ready { lacking: std::mem::take(&mut site.lacking), kernel: None })?;
    start.await_commit()?;
    let Site { proc, devpts, knobs, namespaces, top, .. } = site;
    Ok(Some(Built { start, proc, devpts, knobs, namespaces, top }))
}

/// Gives a box that lives another root. All steps run here; the box knows of it only by what it sees afterwards.
///
/// It does not die with its maker: half of it would be worse than all of it, and it waits for nobody.
pub(crate) fn restack(mut start: Startup) -> io::Result<()> {
    // For whoever looks at the list of processes: it is at work.
    let _ = rustix::thread::set_name(c"glass-restack");
    caps::set_dumpable(false)?;
    let user_namespace = start.fds.copy(FdRole::UserNamespace)?;
    let mut site = Site { user_namespace, workshop: start.workshop.take(), ..Site::default() };
    for (index, planned) in start.plan.steps.iter().enumerate() {
        let result = match fault(&start.plan, index) {
            Some(errno) => on("a fault made on purpose", Err(errno)),
            None => run(&planned.step, &start, &mut site),
        };
        if let Err(stumble) = result {
            return fail(&start, index, &planned.step, stumble);
        }
    }
    // It can go on, and need not ask the kernel for long which root it has. The host hears of it from the guest.
    let number = |planned: &PlannedStep| match planned.step {
        Step::Overlay { generation, .. } => Some(generation),
        _ => None,
    };
    let generation = start.plan.steps.iter().find_map(number);
    let release = Request::Release { restacked: true, renewed: false, generation };
    let mut bytes = Vec::new();
    frame::put(&mut bytes, 1, frame::Kind::Request, &serde_json::to_vec(&release)?);
    if let Some(guest) = start.fds.get(FdRole::Hold) {
        descriptor::send_with_fds(guest, &bytes, &[])?;
    }
    // To let go of the last of what the box stood on takes the kernel long. That waits until nobody waits for the box any
    // more: the host closes then, or is gone.
    start.await_closing();
    Ok(())
}

/// No walls: the guest serves where it is.
pub(crate) fn outside(start: Startup) -> io::Result<Built> {
    // It may have been started as a leader of a group already; all that matters is that it leaves the starter's.
    let _ = rustix::process::setsid();
    process::adopt_orphans()?;
    start.report(&Report::Spawned { pid: std::process::id() as i32 })?;
    start.report(&Report::Ready { lacking: Vec::new(), kernel: None })?;
    start.await_commit()?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let memory_peak = rustix::fs::openat(CWD, "/proc/self/clear_refs", flags, Mode::empty()).ok();
    let knobs = Knobs { memory_peak, ..Knobs::default() };
    Ok(Built { start, proc: None, devpts: None, knobs, namespaces: Vec::new(), top: None })
}

/// The walls of a container: they stand already. What is left to do is done by whoever lives behind them.
pub(crate) fn within(mut start: Startup) -> io::Result<Built> {
    let lacking = start.look_around();
    let release = || rustix::system::uname().release().to_string_lossy().into_owned();
    let kernel = start.plan.guest.apart.as_ref().map(|_| release());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::openat(CWD, path, flags, Mode::empty());
    let mut site = Site { proc: Some(open("/proc")?), devpts: open("/dev/pts").ok(), ..Site::default() };
    for (index, planned) in start.plan.steps.iter().enumerate() {
        let result = match fault(&start.plan, index) {
            Some(errno) => on("a fault made on purpose", Err(errno)),
            None => run(&planned.step, &start, &mut site),
        };
        if let Err(stumble) = result {
            let failed = fail(&start, index, &planned.step, stumble);
            if kernel.is_some() {
                start.await_closing();
            }
            return failed;
        }
    }
    start.report(&Report::Ready { lacking, kernel })?;
    start.await_commit()?;
    let Site { proc, devpts, knobs, namespaces, .. } = site;
    Ok(Built { start, proc, devpts, knobs, namespaces, top: None })
}

fn fault(plan: &Plan, index: usize) -> Option<io::Error> {
    let fault = plan.fault.filter(|fault| fault.step == index)?;
    if fault.errno == 0 {
        process::exit_now(1);
    }
    Some(io::Error::from_raw_os_error(fault.errno))
}

fn fail<T>(start: &Startup, index: usize, step: &Step, stumble: Stumble) -> io::Result<T> {
    let errno = stumble.source.raw_os_error().unwrap_or(0);
    let failure = StepFailure { index, step: step.name().into(), on: stumble.on, errno };
    start.report(&if stumble.torn { Report::Torn(failure) } else { Report::Failed(failure) })?;
    Err(stumble.source)
}

/// Forks the box's first process. Comes back with a socket to the builder in that process, with none in the builder.
fn spawn(
    start: &Startup,
    namespaces: &[Namespace],
    owner: Option<u32>,
    site: &mut Site,
) -> Result<Option<OwnedFd>, Stumble> {
    let flags = namespaces.iter().fold(Flags::default(), |flags, namespace| {
        flags.with(match namespace {
            Namespace::User => Flags::USER,
            Namespace::Mount => Flags::MOUNT,
            Namespace::Pid => Flags::PID,
            Namespace::Ipc => Flags::IPC,
            Namespace::Uts => Flags::UTS,
            Namespace::Net => Flags::NET,
        })
    });
    let (ours, theirs) = on("socket pair", descriptor::socket_pair())?;
    if let Some(owner) = owner {
        on("owner of the namespaces", identity::lend_user(owner).and_then(|()| caps::raise_permitted()))?;
    }
    let forked = on("clone3", namespace::fork_into(flags, start.fds.get(FdRole::Birth)))?;
    if owner.is_some() && matches!(forked, Fork::Parent(_)) {
        on("root again", identity::lend_user(0))?;
    }
    match forked {
        Fork::Child => {
            // A session of its own: a signal to the maker's terminal is none of the box's business.
            on("setsid", rustix::process::setsid())?;
            Ok(Some(theirs))
        }
        Fork::Parent(child) => {
            on("report", start.report(&Report::Spawned { pid: child.pid }))?;
            site.child = Some(child);
            site.to_child = Some(ours);
            Ok(None)
        }
    }
}

/// One step. Each of them is one paragraph; their order is the plan's.
#[expect(clippy::too_many_lines, reason = "one straight list, a paragraph a step")]
fn run(step: &Step, start: &Startup, site: &mut Site) -> StepResult {
    match step {
        Step::PrivateMounts => match site.workshop {
            Some(_) => Ok(()),
            None => on("mount namespace", namespace::private_mounts()),
        },
        // They change the plan itself, and are taken where that is walked through.
        Step::Spawn { .. } | Step::AwaitRest | Step::TakeOver => Ok(()),
        Step::MapIds { uids, gids, deny_setgroups } => {
            let lines = |map: &[glasshouse_protocol::plan::IdMap]| -> Vec<(u32, u32, u32)> {
                map.iter().map(|m| (m.inside, m.outside, m.count)).collect()
            };
            let pid = site.child.as_ref().map_or(0, |child| child.pid);
            on("uid_map and gid_map", namespace::map_ids(pid, &lines(uids), &lines(gids), *deny_setgroups))?;
            site.user_namespace = Some(on("user namespace", namespace::user_namespace(pid))?);
            tell_first_process(site, b"m", &[])
        }
        Step::Overlay { idmap, .. } => {
            site.box_root = *idmap;
            let (root, top) = overlay::mount(step, site.user_namespace.as_ref(), site.workshop.as_ref())?;
            (site.root, site.top) = (Some(root), top);
            Ok(())
        }
        Step::HostTree { source, target, idmap } => {
            let tree = copy_checked(source, true)?;
            on(&source.path, mount::set_attributes(tree.as_fd(), read_only(), true))?;
            if let (true, Some(namespace)) = (idmap, &site.user_namespace) {
                // Where a file system cannot, its files show as nobody's: they are only read.
                let _ = mount::map_owners(tree.as_fd(), namespace.as_fd(), true);
            }
            site.trees.push((target.clone(), tree));
            Ok(())
        }
        Step::Volume { source, target, read_only, idmap } => {
            let attributes = Attributes { read_only: *read_only, ..Attributes::default() };
            let volume = copy_checked(source, true)?;
            on(&source.path, mount::set_attributes(volume.as_fd(), attributes, true))?;
            if let (true, Some(namespace)) = (idmap, &site.user_namespace) {
                on(&source.path, mount::map_owners(volume.as_fd(), namespace.as_fd(), true))?;
            }
            site.volumes.push((target.clone(), volume));
            Ok(())
        }
        Step::HandOver => {
            let (body, late) = site.rest.as_ref().map_or((&[][..], &[][..]), |(body, fds)| (body, fds));
            let trees = site.trees.iter().chain(&site.volumes).map(|(_, fd)| fd);
            let given: Vec<BorrowedFd<'_>> =
                site.root.iter().chain(&site.top).chain(trees).chain(late).map(AsFd::as_fd).collect();
            let mut bytes = Vec::new();
            frame::put(&mut bytes, 0, frame::Kind::Request, body);
            tell_first_process(site, &bytes, &given)
        }
        Step::EnterUser => {
            // Not ours any more from in there.
            site.workshop = None;
            on("user namespace", namespace::enter(given(start, FdRole::UserNamespace)?))
        }
        Step::LeaveTop { generation } => {
            let top = on("top", site.top.as_ref().ok_or(io::Error::from(Errno::BADF)))?;
            let body = serde_json::to_vec(&Request::Top { generation: *generation });
            let mut bytes = Vec::new();
            frame::put(&mut bytes, 0, frame::Kind::Request, &on("request", body)?);
            let guest = given(start, FdRole::Hold)?;
            on("guest", descriptor::send_with_fds(guest, &bytes, &[top.as_fd()]))
        }
        Step::ClearIpc => {
            on("IPC namespace", namespace::enter(given(start, FdRole::IpcNamespace)?))?;
            on("System V objects", ipc::clear()).map(drop)
        }
        Step::ReplaceRoot { moved, quiet, read_only, become_root, fresh } => {
            on("mount namespace", namespace::enter(given(start, FdRole::MountNamespace)?))?;
            on("report", start.report(&Report::Changing))?;
            let leaves = fresh.iter().map(|(path, _)| path.as_str()).collect::<Vec<_>>();
            let manner = swap::Manner { quiet: *quiet, read_only: *read_only };
            let volumes = (site.volumes.as_slice(), site.box_root);
            site.left = swap::replace_root(root(site)?, (moved, &leaves), volumes, manner)?;
            // It stands on its new root: the host puts that on record meanwhile. One that is gone does not hear it, and the
            // box needs what is left to do all the same.
            let _ = start.report(&Report::Swapped);
            // What fails now leaves neither the old state nor the new one.
            on("the old root", mount::leave_old_root())
                .and_then(|()| swap::refresh_all(start, fresh, *become_root))
                .map_err(|stumble| Stumble { torn: true, ..stumble })
        }
        Step::Become { uid, gid } => on(format!("{uid}:{gid}"), identity::become_user(*uid, *gid, Some(&[]))),
        Step::JoinCgroups => {
            for tasks in start.fds.all(FdRole::Tasks).chain(start.fds.all(FdRole::Enter)) {
                on("tasks", rustix::io::write(tasks, b"0"))?;
            }
            Ok(())
        }
        Step::CgroupNamespace => {
            on("cgroup namespace", namespace::cgroup_namespace())?;
            for tasks in start.fds.all(FdRole::Leave).chain(start.fds.all(FdRole::First)) {
                on("tasks", rustix::io::write(tasks, b"0"))?;
            }
            Ok(())
        }
        Step::Hostname { name } => on(name, namespace::set_hostname(name)),
        Step::Loopback => on("lo", namespace::loopback_up()),
        Step::Stage => stage(site),
        Step::AttachRoot => {
            let scratch = on(SCRATCH, site.scratch.as_ref().ok_or(io::Error::from(Errno::BADF)))?;
            let place = on("root", mount::find(scratch.as_fd(), "root"))?;
            on("root", mount::attach(root(site)?, place.as_fd()))
        }
        Step::Furnish => {
            for (target, mounted) in std::mem::take(&mut site.staged) {
                let place = on(target, mount::find_or_make_dir(root(site)?, target))?;
                on(target, mount::attach(mounted.as_fd(), place.as_fd()))?;
            }
            Ok(())
        }
        Step::AttachTrees => {
            for (target, tree) in std::mem::take(&mut site.trees) {
                let place = on(&target, mount::find_or_make_dir(root(site)?, &target))?;
                on(&target, mount::attach(tree.as_fd(), place.as_fd()))?;
            }
            Ok(())
        }
        Step::AttachVolumes => attach_volumes(root(site)?, &site.volumes),
        Step::Proc { .. } => proc(site, step),
        Step::Dev { nodes, shm_bytes, ptys_max } => dev(site, nodes, *shm_bytes, *ptys_max),
        Step::Sys { files } => sys(site, files),
        Step::Tmpfs { target, bytes } => {
            let size = bytes.to_string();
            let tmpfs =
                on("tmpfs", mount::make("tmpfs", &[("size", Some(&size)), ("mode", Some("1777"))], open()))?;
            let place = on(target, mount::find_or_make_dir(root(site)?, target))?;
            on(target, mount::attach(tmpfs.as_fd(), place.as_fd()))
        }
        Step::Pin { .. } => pin::pin(site, step),
        Step::Pivot => on("/", mount::pivot(root(site)?)),
        Step::ReadOnlyRoot => on("/", mount::set_attributes(root(site)?, read_only(), false)),
        Step::DropPrivileges { keep } => {
            // The files of a process that is not dumpable belong to the host's root, so this one is opened before.
            on("dumpable", caps::set_dumpable(true))?;
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let open = |name: &str| rustix::fs::openat(CWD, name, flags, Mode::empty()).ok();
            site.knobs = Knobs {
                oom_score: open("/proc/self/oom_score_adj"),
                memory_peak: open("/proc/self/clear_refs"),
                last_pid: site.knobs.last_pid.take(),
            };
            for kind in ["user", "mnt", "ipc"] {
                let path = format!("/proc/self/ns/{kind}");
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                match rustix::fs::openat(CWD, &*path, flags, Mode::empty()) {
                    // They are for whoever gives a box another root, and no kernel without them has such boxes (gVisor's).
                    Err(Errno::NOENT) => {}
                    namespace => site.namespaces.push(on(&path, namespace)?),
                }
            }
            on("bounding set", caps::drop_bounding())?;
            on("capabilities", caps::set_numbers(keep))?;
            on("no_new_privs", caps::no_new_privs())?;
            on("dumpable", caps::set_dumpable(false))
        }
        Step::Filter { words } => {
            let filter = on("filter", Filter::from_words(words))?;
            on("filter", filter.load_with_word())
        }
    }
}

fn given(start: &Startup, role: FdRole) -> Result<BorrowedFd<'_>, Stumble> {
    on("descriptors", start.fds.get(role).ok_or(io::Error::from(Errno::BADF)))
}

fn open() -> Attributes {
    Attributes::default()
}

fn read_only() -> Attributes {
    Attributes { read_only: true, ..Attributes::default() }
}

fn tell_first_process(site: &Site, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> StepResult {
    let socket = site.to_child.as_ref().map(AsFd::as_fd);
    let socket =
        on("socket to the first process", socket.ok_or(io::Error::from(io::ErrorKind::NotConnected)))?;
    match descriptor::send_with_fds(socket, bytes, fds) {
        // It has ended: it has told the host why, or could not. What we could say of it is nothing.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => process::exit_now(1),
        sent => on("first process", sent),
    }
}

fn root(site: &Site) -> Result<BorrowedFd<'_>, Stumble> {
    let root = site.root.as_ref().map(AsFd::as_fd);
    on("root", root.ok_or(io::Error::other("the plan mounts no root before it is used")))
}

/// Puts volumes where they belong, onto directories that are made if need be. No link is followed on the way.
fn attach_volumes(root: BorrowedFd<'_>, volumes: &[(String, OwnedFd)]) -> StepResult {
    for (target, volume) in volumes {
        let place = on(target, mount::find_or_make_dir(root, target))?;
        on(target, mount::attach(volume.as_fd(), place.as_fd()))?;
    }
    Ok(())
}

/// A detached copy of the mount at the source, if it still is what the host looked at.
fn copy_checked(source: &Source, recursive: bool) -> Result<OwnedFd, Stumble> {
    let tree = on(&source.path, mount::copy_tree(&source.path, recursive))?;
    let now = on(&source.path, mount::identity(tree.as_fd()))?;
    if now != (source.dev, source.ino) {
        return on(format!("{} (it was replaced meanwhile)", source.path), Err(Errno::STALE));
    }
    Ok(tree)
}

fn make_dir(path: &str) -> StepResult {
    on(path, rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)))
}

fn scratch() -> Result<OwnedFd, Stumble> {
    let tmpfs = on("scratch", mount::make("tmpfs", &[("size", Some("1m")), ("mode", Some("0755"))], open()))?;
    on(SCRATCH, mount::attach_at(tmpfs.as_fd(), SCRATCH))?;
    on(SCRATCH, rustix::process::chdir(SCRATCH))?;
    Ok(tmpfs)
}

/// A scratch directory that holds what covers things (an empty file, an empty directory), a place for the root, and places for
/// what is mounted before there is one.
fn stage(site: &mut Site) -> StepResult {
    let scratch = scratch()?;
    for dir in ["root", "d", "proc", "sys", "dev"] {
        make_dir(dir)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    on("f", rustix::fs::openat(CWD, "f", flags, Mode::from_raw_mode(0o444)))?;
    site.scratch = Some(scratch);
    Ok(())
}

/// Mounts something where it waits for the root.
fn put_on_stage(site: &mut Site, name: &'static str, mounted: &OwnedFd) -> StepResult {
    let scratch = on(SCRATCH, site.scratch.as_ref().ok_or(io::Error::from(Errno::BADF)))?;
    on(name, mount::attach_in(mounted.as_fd(), scratch.as_fd(), name))?;
    site.staged.push((name, on(name, mounted.try_clone())?));
    Ok(())
}

fn proc(site: &mut Site, step: &Step) -> StepResult {
    let Step::Proc { masked, read_only: read_only_paths, sysctls, last_pid } = step else { return Ok(()) };
    let attributes = Attributes { no_exec: true, ..Attributes::default() };
    let proc = on("proc", mount::make("proc", &[], attributes))?;
    put_on_stage(site, "proc", &proc)?;
    for (path, value) in sysctls {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::openat(&proc, path.as_str(), flags, Mode::empty()) {
            // A kernel without the knob has nothing to turn.
            Err(Errno::NOENT) => continue,
            opened => on(path, rustix::io::write(on(path, opened)?, value.as_bytes()))?,
        };
    }
    if *last_pid {
        pin::keep_last_pid(site, proc.as_fd());
    }
    for path in read_only_paths {
        let Some(place) = find_existing(&proc, path)? else { continue };
        let flags = rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE
            | rustix::mount::OpenTreeFlags::OPEN_TREE_CLOEXEC
            | rustix::mount::OpenTreeFlags::AT_RECURSIVE;
        let copy = on(path, rustix::mount::open_tree(&proc, path.as_str(), flags))?;
        on(path, mount::set_attributes(copy.as_fd(), Attributes { read_only: true, ..attributes }, true))?;
        on(path, mount::attach(copy.as_fd(), place.as_fd()))?;
    }
    mask(&proc, masked, Attributes { read_only: true, ..attributes })?;
    site.proc = Some(proc);
    Ok(())
}

/// Covers files with an empty file and directories with an empty directory, as far as this kernel has them. They are many,
/// so each takes as few calls as can be: the kernel says whether a cover is of the wrong kind.
fn mask(proc: &OwnedFd, paths: &[String], attributes: Attributes) -> StepResult {
    let cover = |path: &str, with: &str| -> Result<OwnedFd, Stumble> {
        let cover = on(path, mount::copy_tree(with, false))?;
        on(path, mount::set_attributes(cover.as_fd(), attributes, false))?;
        Ok(cover)
    };
    let mut unused = None;
    for path in paths {
        let file = unused.take().map_or_else(|| cover(path, &format!("{SCRATCH}/f")), Ok)?;
        match mount::attach_in(file.as_fd(), proc.as_fd(), path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => unused = Some(file),
            Err(e)
                if [Errno::INVAL, Errno::NOTDIR]
                    .iter()
                    .any(|kind| e.raw_os_error() == Some(kind.raw_os_error())) =>
            {
                unused = Some(file);
                let directory = cover(path, &format!("{SCRATCH}/d"))?;
                on(path, mount::attach_in(directory.as_fd(), proc.as_fd(), path))?;
            }
            done => on(path, done)?,
        }
    }
    Ok(())
}

fn find_existing(dir: &OwnedFd, path: &str) -> Result<Option<OwnedFd>, Stumble> {
    match mount::find(dir.as_fd(), path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        other => on(path, other).map(Some),
    }
}

fn dev(site: &mut Site, nodes: &[String], shm_bytes: u64, ptys_max: u32) -> StepResult {
    let closed = Attributes { no_exec: true, ..Attributes::default() };
    let dev = on("/dev", mount::make("tmpfs", &[("size", Some("64k")), ("mode", Some("0755"))], closed))?;
    put_on_stage(site, "dev", &dev)?;
    for name in nodes {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        let place = on(name, rustix::fs::openat(&dev, name.as_str(), flags, Mode::from_raw_mode(0o666)))?;
        let node = on(name, mount::copy_tree(&format!("/dev/{name}"), false))?;
        on(name, mount::set_attributes(node.as_fd(), Attributes { devices: true, ..closed }, false))?;
        on(name, mount::attach(node.as_fd(), place.as_fd()))?;
    }
    for (link, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        on(link, rustix::fs::symlinkat(target, &dev, link))?;
    }
    let max = ptys_max.to_string();
    let options =
        [("newinstance", None), ("ptmxmode", Some("0666")), ("mode", Some("0620")), ("max", Some(&*max))];
    let terminals = Attributes { no_exec: true, devices: true, ..Attributes::default() };
    let pts = on("devpts", mount::make("devpts", &options, terminals))?;
    let place = on("/dev/pts", mount::find_or_make_dir(dev.as_fd(), "pts"))?;
    on("/dev/pts", mount::attach(pts.as_fd(), place.as_fd()))?;
    let size = shm_bytes.to_string();
    let shm =
        on("/dev/shm", mount::make("tmpfs", &[("size", Some(&*size)), ("mode", Some("1777"))], closed))?;
    let place = on("/dev/shm", mount::find_or_make_dir(dev.as_fd(), "shm"))?;
    on("/dev/shm", mount::attach(shm.as_fd(), place.as_fd()))?;
    on("/dev", mount::set_attributes(dev.as_fd(), Attributes { read_only: true, ..closed }, false))?;
    site.devpts = Some(pts);
    Ok(())
}

fn sys(site: &mut Site, files: &[(String, String)]) -> StepResult {
    let closed = Attributes { no_exec: true, ..Attributes::default() };
    let sys = on("/sys", mount::make("tmpfs", &[("size", Some("64k")), ("mode", Some("0755"))], closed))?;
    put_on_stage(site, "sys", &sys)?;
    for (path, content) in files {
        // A file system that we have just made holds no links to be afraid of: plain paths do.
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let make = || rustix::fs::openat(&sys, path.as_str(), flags, Mode::from_raw_mode(0o444));
        let file = match make() {
            Err(Errno::NOENT) => {
                for (at, _) in path.match_indices('/') {
                    match rustix::fs::mkdirat(&sys, &path[..at], Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(e) => return on(path, Err(e)),
                    }
                }
                on(path, make())?
            }
            other => on(path, other)?,
        };
        on(path, rustix::io::write(&file, content.as_bytes()))?;
    }
    on("/sys", mount::set_attributes(sys.as_fd(), Attributes { read_only: true, ..closed }, false))
}
