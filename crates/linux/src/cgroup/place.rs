//! Where in the v2 tree a user may make cgroups: the uppermost directory that is his, from the top of the tree down to
//! the one that he is in.
//!
//! For root that is the top. An ordinary user has none, unless somebody gave him one, as systemd does below
//! `user@.service`. The uppermost is taken because all of a user's shells agree on it, and because a box is to outlive
//! the shell that it was made from.
//!
//! The kernel hands no controller down from a directory that has processes of its own. Where the user's only directory
//! is the one that he is in, everybody in it is moved one down.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::{Controller, named};

/// Where those go who were in the directory that boxes are made in.
const OUTSIDE: &str = "outside";
/// How often processes are moved away until no new ones are left.
const ROUNDS_MAX: usize = 100;

/// The directory to make cgroups in, or why there is none. `own` is the content of /proc/self/cgroup.
pub(super) fn find(mount: &Mount<'_>, own: &str) -> io::Result<PathBuf> {
    let mut refused = None;
    for dir in candidates(mount, own) {
        match may_divide(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => {
                refused.get_or_insert(e);
            }
        }
    }
    Err(refused.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// The top of the tree as it is mounted here, and from there down to our own directory.
fn candidates(mount: &Mount<'_>, own: &str) -> Vec<PathBuf> {
    let mut dirs = vec![mount.point.clone()];
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let Some(below) = own.and_then(|own| Path::new(own).strip_prefix(&mount.root).ok()) else {
        return dirs;
    };
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        // We are outside of what our cgroup namespace shows.
        return dirs;
    }
    for part in below {
        let deeper = dirs.last().unwrap_or(&mount.point).join(part);
        dirs.push(deeper);
    }
    dirs
}

/// Whether we may make directories here, hand controllers down to them, and let processes be born in them.
fn may_divide(dir: &Path) -> io::Result<()> {
    may_make(dir)?;
    may_make(&dir.join("cgroup.procs"))?;
    may_make(&dir.join("cgroup.subtree_control"))
}

pub(super) fn may_make(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)?)
}

/// The controllers that a file of the v2 tree names.
pub(super) fn controllers(dir: &Path, file: &str) -> Vec<Controller> {
    let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
    let named = |controller: &Controller| text.split_ascii_whitespace().any(|w| w == controller.name());
    Controller::ALL.into_iter().filter(named).collect()
}

/// Hands these controllers down, all at once: some of them alone would make a directory with processes one of threads.
pub(super) fn enable(dir: &Path, controllers: &[Controller]) -> io::Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let words: Vec<String> = controllers.iter().map(|controller| format!("+{}", controller.name())).collect();
    let path = dir.join("cgroup.subtree_control");
    named(&path, fs::write(&path, words.join(" ")))
}

/// Whether processes in the directory keep it from handing controllers down. At the very top they do not.
pub(super) fn is_crowded(dir: &Path) -> bool {
    let top = !dir.join("cgroup.type").exists();
    !top && fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|text| !text.trim().is_empty())
}

/// Moves everybody in the directory one down.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    let outside = dir.join(OUTSIDE);
    match fs::create_dir(&outside) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => named(&outside, made)?,
    }
    let (from, to) = (dir.join("cgroup.procs"), outside.join("cgroup.procs"));
    for _ in 0..ROUNDS_MAX {
        let text = named(&from, fs::read_to_string(&from))?;
        if text.trim().is_empty() {
            return Ok(());
        }
        for pid in text.lines() {
            match fs::write(&to, pid) {
                // It has ended meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                moved => named(&to, moved)?,
            }
        }
    }
    named(&from, Err(io::ErrorKind::ResourceBusy.into()))
}

/// One line of mountinfo.
pub(super) struct Mount<'a> {
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    pub(super) kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    pub(super) fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (before.next()?, before.next()?);
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1)?;
        Some(Mount { root: unescape(root).into(), point: unescape(point).into(), kind, options })
    }

    pub(super) fn has_v1(&self, controller: Controller) -> bool {
        self.kind == "cgroup" && self.options.split(',').any(|option| option == controller.name())
    }
}

/// mountinfo writes blanks and backslashes as octal.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code as char);
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_understood() {
        let line = "35 31 0:32 / /sys/fs/cg\\040roup/memory rw,relatime shared:5 - cgroup cgroup rw,memory";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/sys/fs/cg roup/memory"));
        assert_eq!(mount.root, Path::new("/"));
        assert!(mount.has_v1(Controller::Memory) && !mount.has_v1(Controller::Cpu));
    }

    #[test]
    fn places_are_looked_for_from_the_top_down_to_our_own() {
        let check = |root: &str, own: &str, expected: &[&str]| {
            let line = format!("35 31 0:32 {root} /c rw - cgroup2 cgroup2 rw,nsdelegate");
            let found = candidates(&Mount::parse(&line).unwrap(), own);
            let expected: Vec<&Path> = expected.iter().map(Path::new).collect();
            assert_eq!(found, expected, "{root} {own}");
        };
        check("/", "0::/\n", &["/c"]);
        check("/", "3:memory:/x\n0::/user.slice/a b\n", &["/c", "/c/user.slice", "/c/user.slice/a b"]);
        // Mounted from further down, as in some containers.
        check("/docker", "0::/docker/me\n", &["/c", "/c/me"]);
        check("/docker", "0::/elsewhere\n", &["/c"]);
        // Moved out of our own cgroup namespace.
        check("/", "0::/../elsewhere\n", &["/c"]);
        check("/", "", &["/c"]);
    }
}
