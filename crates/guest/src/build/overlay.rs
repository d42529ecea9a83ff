//! The chain of layers with a writable top.
//!
//! Layers have short names below the scratch directory, because that is what the box will read in its mountinfo, and because
//! kernels before 6.13 take layers by name only. Those of the store are in one directory: that is attached once, and each of
//! them is a link into it. So a root costs little more for each layer that it stands on. Any other has a mount of its own.

use super::*;

use glasshouse_linux::layer::{Copier, Spot};
use glasshouse_linux::reach::Reach;

/// The kernel takes no longer value of a mount's option.
const OPTION_BYTES_MAX: usize = 256;

/// Where the store is attached.
const STORE: &str = "s";

/// A layer, before it has its name.
enum Lower<'a> {
    /// The way to it from the store's directory.
    Stored(&'a str),
    Own(OwnedFd),
}

/// Mounts it, detached. In the workshop if there is one, which then is where we are. With it comes the directory that
/// changes go to, if that is in memory: nothing else leads there.
pub(super) fn mount(
    step: &Step,
    namespace: Option<&OwnedFd>,
    workshop: Option<&OwnedFd>,
) -> Result<(OwnedFd, Option<OwnedFd>), Stumble> {
    let Step::Overlay { lowers, store, top, generation, idmap: base, userxattr } = step else {
        return on("overlay", Err(io::Error::from(Errno::INVAL)));
    };
    let namespace = namespace.filter(|_| base.is_some());
    // Taken before anything covers them: the state directory may lie below the scratch directory. And the workshop has no
    // way to them.
    let mut layers = Vec::new();
    for lower in lowers {
        layers.push(match store.as_ref().and_then(|store| below(store, lower)) {
            Some(way) => Lower::Stored(way),
            None => Lower::Own(take(lower, read_only(), namespace)?),
        });
    }
    let is_stored = |lower: &Lower<'_>| matches!(lower, Lower::Stored(_));
    let store = store.as_ref().filter(|_| layers.iter().any(is_stored));
    let store = store.map(|store| take(store, read_only(), namespace)).transpose()?;
    let top_dir = match top {
        Top::Directory(source) => Some(take(source, open(), namespace)?),
        Top::Memory { .. } => None,
    };
    match workshop {
        Some(workshop) => on("mount namespace", namespace::enter(workshop.as_fd()))?,
        None => drop(scratch()?),
    }
    if let Some(store) = &store {
        make_dir(STORE)?;
        on(STORE, mount::attach_at(store.as_fd(), STORE))?;
    }
    let mut names = Vec::new();
    for (n, layer) in layers.iter().enumerate() {
        let name = n.to_string();
        match layer {
            Lower::Stored(way) => on(&name, rustix::fs::symlinkat(format!("{STORE}/{way}"), CWD, &*name))?,
            Lower::Own(layer) => {
                make_dir(&name)?;
                on(&name, mount::attach_at(layer.as_fd(), &name))?;
            }
        }
        names.push(name);
    }
    // The box reads this name in its mountinfo, and tells by it which of its roots it has.
    let place = format!("{TOP_NAME}{generation}");
    make_dir(&place)?;
    if let Some(base) = *base {
        // Overlay works on its layers as whoever mounts it, so that must be somebody whom the shifted layers know.
        // Leaving 0 takes the file capabilities away; they are raised again.
        on("fsuid", identity::set_fs_user(base, base))?;
        on("capabilities", caps::raise_permitted())?;
    }
    let mut in_memory = None;
    match (top, &top_dir) {
        (Top::Memory { bytes, inodes }, _) => in_memory = Some(memory(&place, *bytes, *inodes, *base)?),
        (Top::Directory(_), Some(dir)) => on(&place, mount::attach_at(dir.as_fd(), &place))?,
        (Top::Directory(_), None) => {}
    }
    if let (Some(top), Some(below)) = (&in_memory, names.first()) {
        take_after(below, top.as_fd())?;
    }
    let root = stack(&names, &place, *userxattr).map_err(|stumble| missed(stumble, lowers, &names))?;
    if base.is_some() {
        on("fsuid", identity::set_fs_user(0, 0))?;
    }
    // When the kernel cannot make what it needs in the work directory, it mounts read-only and says nothing.
    let state = on("overlay", rustix::fs::fstatvfs(&root))?;
    if state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return on("its work directory", Err(Errno::NOSPC));
    }
    on("/", rustix::process::chdir("/"))?;
    Ok((root, in_memory))
}

/// The way to a layer from the store's directory, if it is one of the store's.
fn below<'a>(store: &Source, layer: &'a Source) -> Option<&'a str> {
    layer.path.strip_prefix(&store.path)?.strip_prefix('/')
}

/// Names the layer that is not there, if that is why.
fn missed(stumble: Stumble, lowers: &[Source], names: &[String]) -> Stumble {
    let is_gone = |name: &String| rustix::fs::statat(CWD, &**name, rustix::fs::AtFlags::empty()).is_err();
    match lowers.iter().zip(names).find(|(_, name)| is_gone(name)) {
        Some((lower, _)) => Stumble { on: lower.path.clone(), ..stumble },
        None => stumble,
    }
}

/// A detached copy of a layer, with its owners shifted if there is a namespace to shift them into.
fn take(source: &Source, attributes: Attributes, namespace: Option<&OwnedFd>) -> Result<OwnedFd, Stumble> {
    let layer = copy_checked(source, false)?;
    let set = match namespace {
        Some(namespace) => mount::set_attributes_and_owners(layer.as_fd(), attributes, namespace.as_fd()),
        None => mount::set_attributes(layer.as_fd(), attributes, false),
    };
    on(&source.path, set)?;
    Ok(layer)
}

/// A top in memory, with an exact bound. The directory in it that changes go to.
fn memory(place: &str, bytes: u64, inodes: u64, owner: Option<u32>) -> Result<OwnedFd, Stumble> {
    let (size, inodes) = (bytes.to_string(), inodes.to_string());
    let mut options = vec![("size", Some(&*size)), ("nr_inodes", Some(&*inodes)), ("mode", Some("0755"))];
    let id = owner.unwrap_or(0).to_string();
    if owner.is_some() {
        options.extend([("uid", Some(&*id)), ("gid", Some(&*id))]);
    }
    let tmpfs = on("tmpfs", mount::make("tmpfs", &options, open()))?;
    on(place, mount::attach_at(tmpfs.as_fd(), place))?;
    let upper = format!("{place}/u");
    make_dir(&upper)?;
    make_dir(&format!("{place}/w"))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    on(&upper, rustix::fs::openat(CWD, &*upper, flags, Mode::empty()))
}

/// Overlay shows the top's own attributes for the root, so a fresh one takes after what is below.
fn take_after(below: &str, top: BorrowedFd<'_>) -> StepResult {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let below = on("layer", rustix::fs::openat(CWD, below, flags, Mode::empty()))?;
    let stat = on("layer", rustix::fs::fstat(&below))?;
    let own = |name: &[u8]| name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    let (from, to) = (Spot::Open(below.as_fd()), Spot::Open(top));
    let (mut copier, reach) = (Copier::default(), Reach::own());
    let given = match copier.attributes(&reach, from, to, &stat, own) {
        // Before 6.6 the kernel has no such attributes in memory; then a box does not see those of its root.
        Err(e) if e.kind() == io::ErrorKind::Unsupported => {
            copier.attributes(&reach, from, to, &stat, |_| false)
        }
        given => given,
    };
    on("root of the top", given)
}

fn stack(names: &[String], place: &str, userxattr: bool) -> Result<OwnedFd, Stumble> {
    let (lowerdir, upper, work) = (names.join(":"), format!("{place}/u"), format!("{place}/w"));
    // One value of an option has a bound; a long chain is told layer by layer, which older kernels cannot take.
    let mut options = match lowerdir.len() < OPTION_BYTES_MAX {
        true => vec![("lowerdir", Some(lowerdir.as_str()))],
        false => names.iter().map(|name| ("lowerdir+", Some(name.as_str()))).collect(),
    };
    options.extend([
        ("upperdir", Some(upper.as_str())),
        ("workdir", Some(work.as_str())),
        // Without this, an unmount or a sync inside flushes the whole file system of the host.
        ("volatile", None),
    ]);
    if userxattr {
        options.push(("userxattr", None));
    } else {
        options.extend([("redirect_dir", Some("on")), ("index", Some("off")), ("metacopy", Some("off"))]);
    }
    on(format!("overlay of {} layers", names.len()), mount::make("overlay", &options, open()))
}
