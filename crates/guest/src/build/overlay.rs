//! The chain of layers with a writable top.
//!
//! Layers are attached below the scratch directory under short names, because that is what the box will read in its
//! mountinfo, and because kernels before 6.13 take layers by name only.

use super::*;

/// The kernel takes no longer value of a mount's option.
const OPTION_BYTES_MAX: usize = 256;

/// Mounts it, detached. In the workshop if there is one, which then is where we are.
pub(super) fn mount(
    step: &Step,
    namespace: Option<&OwnedFd>,
    workshop: Option<&OwnedFd>,
) -> Result<OwnedFd, Stumble> {
    let Step::Overlay { lowers, top, generation, idmap: base, userxattr } = step else {
        return on("overlay", Err(io::Error::from(Errno::INVAL)));
    };
    let namespace = namespace.filter(|_| base.is_some());
    // Taken before anything covers them: the state directory may lie below the scratch directory. And the workshop has no
    // way to them.
    let mut layers = Vec::new();
    for lower in lowers {
        let layer = take(lower, namespace)?;
        on(&lower.path, mount::set_attributes(layer.as_fd(), read_only(), false))?;
        layers.push(layer);
    }
    let top_dir = match top {
        Top::Directory(source) => Some(take(source, namespace)?),
        Top::Memory { .. } => None,
    };
    match workshop {
        Some(workshop) => on("mount namespace", namespace::enter(workshop.as_fd()))?,
        None => drop(scratch()?),
    }
    let mut names = Vec::new();
    for (n, layer) in layers.iter().enumerate() {
        let name = n.to_string();
        make_dir(&name)?;
        on(&name, mount::attach_at(layer.as_fd(), &name))?;
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
    match (top, &top_dir) {
        (Top::Memory { bytes, inodes }, _) => memory(&place, *bytes, *inodes, *base)?,
        (Top::Directory(_), Some(dir)) => on(&place, mount::attach_at(dir.as_fd(), &place))?,
        (Top::Directory(_), None) => {}
    }
    let root = stack(&names, &place, *userxattr)?;
    if base.is_some() {
        on("fsuid", identity::set_fs_user(0, 0))?;
    }
    // When the kernel cannot make what it needs in the work directory, it mounts read-only and says nothing.
    let state = on("overlay", rustix::fs::fstatvfs(&root))?;
    if state.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        return on("its work directory", Err(Errno::NOSPC));
    }
    on("/", rustix::process::chdir("/"))?;
    Ok(root)
}

/// A detached copy of a layer, with its owners shifted if there is a namespace to shift them into.
fn take(source: &Source, namespace: Option<&OwnedFd>) -> Result<OwnedFd, Stumble> {
    let layer = copy_checked(source, false)?;
    if let Some(namespace) = namespace {
        on(&source.path, mount::map_owners(layer.as_fd(), namespace.as_fd(), false))?;
    }
    Ok(layer)
}

/// A top in memory, with an exact bound.
fn memory(place: &str, bytes: u64, inodes: u64, owner: Option<u32>) -> StepResult {
    let (size, inodes) = (bytes.to_string(), inodes.to_string());
    let mut options = vec![("size", Some(&*size)), ("nr_inodes", Some(&*inodes)), ("mode", Some("0755"))];
    let id = owner.unwrap_or(0).to_string();
    if owner.is_some() {
        options.extend([("uid", Some(&*id)), ("gid", Some(&*id))]);
    }
    let tmpfs = on("tmpfs", mount::make("tmpfs", &options, open()))?;
    on(place, mount::attach_at(tmpfs.as_fd(), place))?;
    make_dir(&format!("{place}/u"))?;
    make_dir(&format!("{place}/w"))
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
