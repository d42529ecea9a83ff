//! For the tests: layers that the kernel's own overlay makes, by random acts.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use glasshouse_linux::mount;
use glasshouse_linux::reach::Reach;
use glasshouse_linux::rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags, getxattr, lsetxattr, mknodat, renameat_with,
};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use super::super::Marks;
use super::super::index::tests::walked;
use super::super::index::{Index, Owners, scan};

/// A file capability, as `setcap cap_net_bind_service=ep` writes it.
pub(super) const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Something that a program in a box does. Paths are numbers that choose among a few.
#[derive(Debug, Clone)]
pub(in super::super) enum Op {
    Write(u16, u8),
    Append(u16, u8),
    Sparse(u16, u32),
    Mkdir(u16),
    RemoveAll(u16),
    Rename(u16, u16),
    Exchange(u16, u16),
    Symlink(u16, u8),
    Hardlink(u16, u16),
    Pipe(u16),
    Chmod(u16, u16),
    Chown(u16, u8),
    Xattr(u16, u8),
    Capability(u16),
    /// The top becomes a layer.
    Rotate,
}

pub(in super::super) fn op() -> impl Strategy<Value = Op> {
    let path = any::<u16>;
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Write(p, n)),
        1 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Append(p, n)),
        1 => (path(), 0u32..3_000_000).prop_map(|(p, n)| Op::Sparse(p, n)),
        5 => path().prop_map(Op::Mkdir),
        3 => path().prop_map(Op::RemoveAll),
        5 => (path(), path()).prop_map(|(p, q)| Op::Rename(p, q)),
        1 => (path(), path()).prop_map(|(p, q)| Op::Exchange(p, q)),
        1 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Symlink(p, n)),
        1 => (path(), path()).prop_map(|(p, q)| Op::Hardlink(p, q)),
        1 => path().prop_map(Op::Pipe),
        2 => (path(), 0u16..0o10000).prop_map(|(p, n)| Op::Chmod(p, n)),
        1 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Chown(p, n)),
        1 => (path(), any::<u8>()).prop_map(|(p, n)| Op::Xattr(p, n)),
        1 => path().prop_map(Op::Capability),
        3 => Just(Op::Rotate),
    ]
}

pub(in super::super) fn ops() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(), 1..60)
}

/// Up to three names deep, from names that like to clash and some that are odd.
fn path(n: u16, longest: usize) -> PathBuf {
    let long = vec![b'n'; longest];
    let names: [&[u8]; 6] = [b"a", b"b", b"c", b"new\nline", b"\xff\xfe", &long];
    let mut path = PathBuf::new();
    let mut n = usize::from(n);
    let depth = n % 4;
    n /= 4;
    for _ in 0..depth {
        path.push(OsStr::from_bytes(names[[0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5][n % 11]]));
        n /= 11;
    }
    path
}

/// A chain of layers, mounted by the kernel.
pub(in super::super) struct Overlay {
    dir: TempDir,
    marks: Marks,
    /// The top is the last one.
    pub(super) layers: usize,
    mount: Option<OwnedFd>,
    pub(super) longest_name: usize,
}

impl Overlay {
    pub(in super::super) fn new(marks: Marks) -> Overlay {
        let dir = tempdir().unwrap();
        fs::create_dir(dir.path().join("0")).unwrap();
        let mut overlay = Overlay { dir, marks, layers: 1, mount: None, longest_name: 255 };
        overlay.rotate();
        overlay
    }

    /// Over layers that somebody made by hand in the directory: `0` is the lowest.
    pub(super) fn over(dir: TempDir, layers: usize) -> Overlay {
        let mut overlay = Overlay { dir, marks: Marks::Trusted, layers, mount: None, longest_name: 255 };
        overlay.rotate();
        overlay
    }

    fn layer(&self, n: usize) -> PathBuf {
        self.dir.path().join(n.to_string())
    }

    /// The directories of the layers, uppermost first.
    pub(in super::super) fn chain(&self) -> Vec<PathBuf> {
        (0..self.layers).rev().map(|n| self.layer(n)).collect()
    }

    /// The root that the kernel makes of them.
    pub(in super::super) fn root(&self) -> PathBuf {
        format!("/proc/{}/fd/{}/", std::process::id(), self.mount.as_ref().unwrap().as_raw_fd()).into()
    }

    pub(in super::super) fn rotate(&mut self) {
        self.mount = None;
        let (top, work) = (self.layer(self.layers), self.dir.path().join(format!("work{}", self.layers)));
        let root = fs::metadata(self.layer(self.layers - 1)).unwrap();
        for dir in [&top, &work] {
            fs::create_dir(dir).unwrap();
        }
        // The root of the top is the root that the box sees.
        lchown(&top, Some(root.uid()), Some(root.gid())).unwrap();
        fs::set_permissions(&top, root.permissions()).unwrap();
        let below = self.layer(self.layers - 1);
        for name in ["user.mark", "security.capability"] {
            let mut value = [0; 256];
            if let Ok(n) = getxattr(&below, name, &mut value[..]) {
                lsetxattr(&top, name, &value[..n], XattrFlags::empty()).unwrap();
            }
        }
        let lowers: Vec<PathBuf> = self.chain();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut values: Vec<(&str, String)> = lowers.iter().map(|path| ("lowerdir+", text(path))).collect();
        values.extend([("upperdir", text(&top)), ("workdir", text(&work))]);
        if self.marks == Marks::Trusted {
            let set = [("redirect_dir", "on"), ("index", "off"), ("metacopy", "off")];
            values.extend(set.map(|(key, value)| (key, value.to_owned())));
        }
        let mut options: Vec<(&str, Option<&str>)> =
            values.iter().map(|(key, value)| (*key, Some(value.as_str()))).collect();
        options.push(("volatile", None));
        if self.marks == Marks::User {
            options.push(("userxattr", None));
        }
        let attributes = mount::Attributes { read_only: false, no_exec: false, devices: false };
        self.mount = Some(mount::make("overlay", &options, attributes).unwrap());
        self.layers += 1;
    }

    /// Does it, as far as it can be done: a program does not always find what it looks for.
    pub(in super::super) fn apply(&mut self, op: &Op) {
        let at = |n: &u16| self.root().join(path(*n, self.longest_name));
        let options = File::options;
        // A pipe has no reader here, and must not be waited for.
        let open = |path: &Path, options: &mut fs::OpenOptions| {
            options.write(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)
        };
        let done: std::io::Result<()> = match op {
            Op::Write(p, n) => open(&at(p), options().create(true).truncate(true))
                .and_then(|mut file| file.write_all(&vec![*n; usize::from(*n) * 40])),
            Op::Append(p, n) => {
                open(&at(p), options().append(true)).and_then(|mut file| file.write_all(&[*n]))
            }
            Op::Sparse(p, n) => open(&at(p), options().create(true)).and_then(|mut file| {
                file.set_len(u64::from(*n))?;
                file.seek(SeekFrom::Start(u64::from(n / 2)))?;
                file.write_all(b"data")
            }),
            Op::Mkdir(p) => {
                fs::create_dir_all(at(p)).and_then(|()| fs::write(at(p).join("in"), p.to_string()))
            }
            Op::RemoveAll(p) if at(p) == self.root() => Ok(()),
            Op::RemoveAll(p) => fs::remove_dir_all(at(p)).or_else(|_| fs::remove_file(at(p))),
            Op::Rename(p, q) => fs::rename(at(p), at(q)),
            Op::Exchange(p, q) => {
                let flags = RenameFlags::EXCHANGE;
                renameat_with(CWD, at(p), CWD, at(q), flags).map_err(Into::into)
            }
            Op::Symlink(p, n) => symlink(format!("../to/{n}"), at(p)),
            Op::Hardlink(p, q) => fs::hard_link(at(p), at(q)),
            Op::Pipe(p) => mknodat(CWD, at(p), FileType::Fifo, Mode::RUSR, 0).map_err(Into::into),
            Op::Chmod(p, mode) => match at(p).symlink_metadata() {
                Ok(data) if !data.is_symlink() => {
                    fs::set_permissions(at(p), Permissions::from_mode(u32::from(*mode)))
                }
                _ => Ok(()),
            },
            Op::Chown(p, n) => lchown(at(p), Some(u32::from(*n)), Some(u32::from(*n) + 1)),
            Op::Xattr(p, n) => lsetxattr(at(p), "user.mark", &[*n], XattrFlags::empty()).map_err(Into::into),
            Op::Capability(p) => {
                lsetxattr(at(p), "security.capability", &CAPABILITY, XattrFlags::empty()).map_err(Into::into)
            }
            Op::Rotate => {
                self.rotate();
                Ok(())
            }
        };
        let _ = done;
    }

    pub(super) fn scan(&self, path: &Path, before: Option<&Index>) -> Index {
        let (tree, reach) = (File::open(path).unwrap(), Reach::own());
        scan(walked(&tree, &reach, self.marks, Owners::Kept), before).unwrap()
    }

    pub(in super::super) fn indexes(&self) -> Vec<Index> {
        self.chain().iter().map(|path| self.scan(path, None)).collect()
    }

    /// A copy of what the kernel shows, as one plain tree.
    pub(super) fn flat(&self) -> TempDir {
        let flat = tempdir().unwrap();
        let to = flat.path().join("flat");
        let status = Command::new("cp").arg("-a").arg(self.root()).arg(&to).status().unwrap();
        assert!(status.success());
        flat
    }
}
