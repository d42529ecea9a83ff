//! File operations, done inside the box as one of its users, so that the kernel resolves every path within the root.
//!
//! Short ones are done at once. Reads and writes of content go piece by piece, as credit allows. Whole trees (tar,
//! recursive removal) are work for a process of their own: see [`Job`].

use std::ffi::{CStr, CString};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use glasshouse_linux::archive::{self, Bits};
use glasshouse_linux::namespace::{self, Fork};
use glasshouse_linux::process::Child;
use glasshouse_linux::rustix::fs::{
    self, AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, openat, statat,
};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::pipe::{PipeFlags, pipe_with};
use glasshouse_linux::rustix::process::{Gid, Uid};
use glasshouse_linux::{descriptor, identity, process, resolve, rustix, tree};
use glasshouse_protocol::limits::{
    DATA_CHUNK_MAX, FRAME_COST, LIST_PAGE_MAX, PATH_BYTES_MAX, STDIN_CREDIT, STREAM_CREDIT,
};
use glasshouse_protocol::{Failure, FailureKind, FileKind, FileOp, FileResult, FileStat, ListPage};

/// Files whose size says nothing (those of /proc) are read up to here.
const SIZELESS_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How the paths of callers are resolved: a link of /proc into a process's own descriptors is not followed. What the guest holds lies
/// outside of the box, and a command could have put such a link anywhere.
const INSIDE: ResolveFlags = ResolveFlags::NO_MAGICLINKS;
/// Links followed at the end of a path that is written.
const LINKS_MAX: usize = 40;

/// The outcome of a request.
pub(crate) enum Outcome {
    /// Done.
    Done(FileResult),
    /// Content comes from the client.
    Upload(Upload),
    /// Content goes to the client.
    Download(Download),
    /// A process of its own does it.
    Work(FileOp),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Does something as a user of the box, as far as files are concerned.
pub(crate) fn as_user<T>(ids: Option<(u32, u32)>, act: impl FnOnce() -> T) -> io::Result<T> {
    let Some((uid, gid)) = ids else {
        return Ok(act());
    };
    identity::set_fs_user(uid, gid)?;
    let result = act();
    identity::set_fs_user(0, 0)?;
    Ok(result)
}

/// Begins, and for short operations ends, what was asked for. Relative paths start at `cwd`.
#[expect(clippy::too_many_lines, reason = "one straight list, a paragraph an operation")]
pub(crate) fn perform(op: FileOp, cwd: &str) -> Result<Outcome> {
    let done = |bytes| Ok(Outcome::Done(FileResult::Done { bytes }));
    match op {
        FileOp::Read { path, offset, length } => {
            Download::open(&file_name("read", cwd, &path)?, offset, length).map(Outcome::Download)
        }
        FileOp::Write { path, mode, parents } => {
            let path = file_name("write", cwd, &path)?;
            if parents && let Some((dir, _)) = path.rsplit_once('/') {
                make_dirs(if dir.is_empty() { "/" } else { dir }, 0o755)?;
            }
            Upload::replace(path, mode).map(Outcome::Upload)
        }
        FileOp::Append { path } => Upload::append(&file_name("append to", cwd, &path)?).map(Outcome::Upload),
        FileOp::List { path, after, limit } => {
            let limit = limit.unwrap_or(LIST_PAGE_MAX).clamp(1, LIST_PAGE_MAX);
            let page = list(&full(cwd, &path)?, after.as_deref(), limit)?;
            Ok(Outcome::Done(FileResult::Page(page)))
        }
        FileOp::Stat { path, follow } => {
            let path = full(cwd, &path)?;
            let flags = if follow { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW };
            let file = told("look at", &path, open_inside(&path, flags, Mode::empty()))?;
            let stat = told("look at", &path, statat(&file, c"", AtFlags::EMPTY_PATH))?;
            let name = path.rsplit('/').next().unwrap_or_default();
            let target = fs::readlinkat(&file, c"", Vec::new()).ok();
            Ok(Outcome::Done(FileResult::Stat(describe(name.as_bytes(), &stat, target))))
        }
        FileOp::Mkdir { path, parents, mode } => {
            let path = full(cwd, &path)?;
            let mode = mode.unwrap_or(0o755) & 0o1777;
            if parents {
                make_dirs(&path, mode)?;
            } else {
                let made =
                    parent(&path).and_then(|(dir, name)| fs::mkdirat(dir, name, Mode::from_raw_mode(mode)));
                told("make the directory", &path, made)?;
            }
            done(0)
        }
        FileOp::Move { from, to, overwrite } => {
            let (from, to) = (full(cwd, &from)?, full(cwd, &to)?);
            let flags = if overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            let what = format!("{from} to {to}");
            let (from_dir, from_name) = told("move", &what, parent(&from))?;
            let (to_dir, to_name) = told("move", &what, parent(&to))?;
            told("move", &what, fs::renameat_with(from_dir, from_name, to_dir, to_name, flags))?;
            done(0)
        }
        FileOp::Remove { path, recursive: false } => {
            let path = without_slash(full(cwd, &path)?);
            let (dir, name) = told("remove", &path, parent(&path))?;
            let removed = match fs::unlinkat(&dir, name, AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => fs::unlinkat(&dir, name, AtFlags::REMOVEDIR),
                removed => removed,
            };
            told("remove", &path, removed)?;
            done(0)
        }
        FileOp::Chmod { path, mode } => {
            let path = full(cwd, &path)?;
            let mode = Mode::from_raw_mode(mode & 0o7777);
            let file = told("change the mode of", &path, open_inside(&path, OFlags::PATH, Mode::empty()))?;
            // By our own descriptor, which is the one link of /proc that can be trusted.
            let place = format!("/proc/self/fd/{}", file.as_raw_fd());
            told("change the mode of", &path, fs::chmodat(CWD, place.as_str(), mode, AtFlags::empty()))?;
            done(0)
        }
        FileOp::Chown { path, owner, group } => {
            let path = full(cwd, &path)?;
            // To the kernel this number says that nothing is to change; whoever says it means something else.
            if [owner, group].contains(&Some(u32::MAX)) {
                return told("change the owner of", &path, Err(Errno::INVAL));
            }
            let file = told("change the owner of", &path, open_inside(&path, OFlags::PATH, Mode::empty()))?;
            let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
            let given = fs::chownat(&file, c"", owner, group, AtFlags::EMPTY_PATH);
            told("change the owner of", &path, given)?;
            done(0)
        }
        FileOp::TarOut { path } => Ok(Outcome::Work(FileOp::TarOut { path: full(cwd, &path)? })),
        FileOp::TarIn { path } => Ok(Outcome::Work(FileOp::TarIn { path: full(cwd, &path)? })),
        FileOp::Remove { path, recursive: true } => {
            let path = without_slash(full(cwd, &path)?);
            // Before anything in it is touched.
            told("remove", &path, named(&path))?;
            Ok(Outcome::Work(FileOp::Remove { path, recursive: true }))
        }
    }
}

/// What a worker process does: a tree as tar to stdout, from stdin, or removed.
fn work(op: &FileOp) -> io::Result<()> {
    let named = |path: &str, e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
    match op {
        FileOp::TarOut { path } => {
            archive::pack(path.as_ref(), INSIDE, Bits::Permissions, io::stdout().lock())
                .map_err(|e| named(path, e))
        }
        FileOp::TarIn { path } => {
            make_dirs(path, 0o755).map_err(|failure| io::Error::other(failure.message))?;
            let dir =
                open_inside(path, OFlags::DIRECTORY, Mode::empty()).map_err(|e| named(path, e.into()))?;
            archive::unpack(io::stdin().lock(), dir.as_fd()).map(|_| ())
        }
        FileOp::Remove { path, .. } => {
            let (dir, name) = parent(path).map_err(|e| named(path, e.into()))?;
            statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| named(path, e.into()))?;
            tree::remove(dir.as_fd(), name).map_err(|e| named(path, e))
        }
        _ => Err(io::Error::other("this is no work for a worker")),
    }
}

/// Work for a process of its own.
pub(crate) struct Job {
    pub(crate) op: FileOp,
    pub(crate) groups: Vec<u32>,
    /// Whom to become first.
    pub(crate) ids: Option<(u32, u32)>,
}

/// A worker, and our ends of its stdio.
type Worker = (Child, [Option<OwnedFd>; 3]);

impl Job {
    /// Forks the worker. It is a copy of the guest that becomes the user before it touches a file.
    pub(crate) fn start(&self, cgroup: Option<BorrowedFd<'_>>, enter: &[OwnedFd]) -> io::Result<Worker> {
        let pipe = || pipe_with(PipeFlags::CLOEXEC);
        let (their_in, our_in) = pipe()?;
        let (our_out, their_out) = pipe()?;
        let (our_err, their_err) = pipe()?;
        match namespace::fork(cgroup)? {
            Fork::Child => {
                let code = match self.run(enter, [&their_in, &their_out, &their_err]) {
                    Ok(()) => 0,
                    Err(e) => {
                        let _ = io::stderr().write_all(e.to_string().as_bytes());
                        1
                    }
                };
                process::exit_now(code)
            }
            Fork::Parent(child) => {
                for fd in [&our_in, &our_out, &our_err] {
                    rustix::io::ioctl_fionbio(fd, true)?;
                }
                Ok((child, [Some(our_in), Some(our_out), Some(our_err)]))
            }
        }
    }

    fn run(&self, enter: &[OwnedFd], [stdin, stdout, stderr]: [&OwnedFd; 3]) -> io::Result<()> {
        for tasks in enter {
            rustix::io::write(tasks, b"0")?;
        }
        rustix::stdio::dup2_stdin(stdin)?;
        rustix::stdio::dup2_stdout(stdout)?;
        rustix::stdio::dup2_stderr(stderr)?;
        // Above all the ends that the guest keeps: as long as we hold one, its pipe has no end.
        descriptor::close_from(3)?;
        let _ = rustix::process::setsid();
        if let Some((uid, gid)) = self.ids {
            identity::become_user(uid, gid, Some(&self.groups))?;
        }
        work(&self.op)
    }
}

fn full(cwd: &str, path: &str) -> Result<String> {
    let invalid = |message: &str| Err(Failure { kind: FailureKind::Invalid, message: message.into() });
    if path.is_empty() {
        return invalid("the path is empty");
    }
    if path.len() > PATH_BYTES_MAX {
        return invalid("the path is longer than 4096 bytes");
    }
    if path.contains('\0') {
        return invalid("the path holds a zero byte");
    }
    let path = path.trim_end_matches('/');
    Ok(match path.strip_prefix('/') {
        Some(_) => path.to_owned(),
        None if path.is_empty() => "/".into(),
        None => format!("{}/{path}", cwd.trim_end_matches('/')),
    })
}

/// The same for a path that a file is at, or is to be: one that ends like a directory's name says something else. This is
/// asked before directories above it are made.
fn file_name(verb: &str, cwd: &str, path: &str) -> Result<String> {
    let full = full(cwd, path)?;
    let end = match path.rsplit('/').next() {
        Some("") => "/",
        Some(end @ ("." | "..")) => end,
        _ => return Ok(full),
    };
    let message = format!("cannot {verb} {path}: a path that ends in `{end}` is a directory's, not a file's");
    Err(Failure { kind: FailureKind::WrongKind, message })
}

/// Opens a path of the box.
fn open_inside(path: &str, flags: OFlags, mode: Mode) -> std::result::Result<OwnedFd, Errno> {
    resolve::open(CWD, path, flags | OFlags::CLOEXEC, mode, INSIDE)
}

/// The directory that holds the last name of a path, and that name.
fn parent(path: &str) -> std::result::Result<(OwnedFd, &str), Errno> {
    let (dir, name) = named(path)?;
    Ok((open_inside(dir, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?, name))
}

/// The directory of a path, and the name in it. What has no name there is not its to give or take.
fn named(path: &str) -> std::result::Result<(&str, &str), Errno> {
    let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
    if matches!(name, "" | "." | "..") {
        return Err(Errno::INVAL);
    }
    Ok((if dir.is_empty() { "/" } else { dir }, name))
}

/// A directory may be called with a slash behind its name.
fn without_slash(path: String) -> String {
    match path.trim_end_matches('/') {
        "" => path,
        shorter => shorter.to_owned(),
    }
}

fn told<T>(verb: &str, path: &str, result: std::result::Result<T, Errno>) -> Result<T> {
    result.map_err(|errno| {
        let kind = match errno {
            Errno::NOENT => FailureKind::NotFound,
            Errno::EXIST | Errno::NOTEMPTY => FailureKind::Exists,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => FailureKind::Denied,
            Errno::ISDIR | Errno::NOTDIR | Errno::NXIO | Errno::LOOP => FailureKind::WrongKind,
            Errno::NAMETOOLONG | Errno::INVAL => FailureKind::Invalid,
            Errno::NOSPC | Errno::DQUOT => FailureKind::DiskFull,
            Errno::MFILE | Errno::NFILE => FailureKind::Limit,
            _ => FailureKind::Io,
        };
        Failure { kind, message: format!("cannot {verb} {path}: {}", io::Error::from(errno)) }
    })
}

fn make_dirs(path: &str, mode: u32) -> Result<()> {
    let mut at = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        at = format!("{at}/{part}");
        match parent(&at).and_then(|(dir, name)| fs::mkdirat(dir, name, Mode::from_raw_mode(mode))) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => {
                // Without the right to make it here it may still be there.
                if !is_dir(&at) {
                    return told("make the directory", &at, Err(e));
                }
            }
        }
    }
    if !at.is_empty() && !is_dir(&at) {
        return told("make the directory", &at, Err(Errno::NOTDIR));
    }
    Ok(())
}

fn is_dir(path: &str) -> bool {
    open_inside(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).is_ok()
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn describe(name: &[u8], stat: &Stat, target: Option<CString>) -> FileStat {
    let text = String::from_utf8_lossy(name);
    FileStat {
        name_lossy: matches!(text, std::borrow::Cow::Owned(_)),
        name: text.into_owned(),
        kind: match kind_of(stat) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Other,
        },
        size: stat.st_size as u64,
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        modified_ms: stat.st_mtime * 1000 + stat.st_mtime_nsec as i64 / 1_000_000,
        changed_ms: Some(stat.st_ctime * 1000 + stat.st_ctime_nsec as i64 / 1_000_000),
        target: target.map(|t| t.to_string_lossy().into_owned()),
    }
}

/// One page: the `limit` smallest names after `after`, found in one pass that holds no more than those.
fn list(path: &str, after: Option<&str>, limit: usize) -> Result<ListPage> {
    let after = after.map(place_of);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let dir = told("list", path, open_inside(path, flags, Mode::empty()))?;
    let mut names = std::collections::BTreeSet::new();
    let mut more = false;
    for entry in told("list", path, Dir::read_from(&dir))? {
        let entry = told("list", path, entry)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") || after.as_deref().is_some_and(|after| name <= after) {
            continue;
        }
        names.insert(entry.file_name().to_owned());
        if names.len() > limit {
            names.pop_last();
            more = true;
        }
    }
    let entries: Vec<FileStat> = names
        .iter()
        .filter_map(|name| {
            // One that vanished meanwhile is not there.
            let stat = statat(&dir, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let link = || fs::readlinkat(&dir, name.as_c_str(), Vec::new()).ok();
            let target = if kind_of(&stat) == FileType::Symlink { link() } else { None };
            Some(describe(name.to_bytes(), &stat, target))
        })
        .collect();
    let next = names.last().filter(|_| more).map(|name| place_after(name.to_bytes()));
    Ok(ListPage { entries, next })
}

/// Where the next page of a list begins, in words: a name, or, of one that is no text, a slash, which no name has, and its bytes. A
/// name that is only nearly the right one could lead to the same page again.
fn place_after(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(name) => name.to_owned(),
        Err(_) => name.iter().fold("/".to_owned(), |place, byte| place + &format!("{byte:02x}")),
    }
}

/// The name that was told so.
fn place_of(place: &str) -> Vec<u8> {
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let told = place.strip_prefix('/').and_then(|told| told.as_bytes().chunks(2).map(byte).collect());
    told.unwrap_or_else(|| place.as_bytes().to_vec())
}

/// A file that is being read.
#[derive(Debug)]
pub(crate) struct Download {
    file: OwnedFd,
    offset: u64,
    left: u64,
    sent: u64,
    pub(crate) credit: u64,
}

impl Download {
    fn open(path: &str, offset: u64, length: Option<u64>) -> Result<Download> {
        // Not waiting: a pipe without a writer would hold up everything else.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = told("read", path, open_inside(path, flags, Mode::empty()))?;
        let stat = told("read", path, fs::fstat(&file))?;
        check_regular("read", path, &stat)?;
        let size = stat.st_size as u64;
        // What is added while we read is not ours to chase.
        let there = if size == 0 { SIZELESS_BYTES_MAX } else { size.saturating_sub(offset) };
        let left = length.map_or(there, |length| length.min(there));
        Ok(Download { file, offset, left, sent: 0, credit: STREAM_CREDIT })
    }

    /// The next piece, if credit allows one. `Ok(None)`: all is sent.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<usize>> {
        let want =
            (DATA_CHUNK_MAX as u64).min(self.left).min(self.credit.saturating_sub(FRAME_COST)) as usize;
        if self.left == 0 {
            return Ok(None);
        }
        if want == 0 {
            return Ok(Some(0));
        }
        buffer.resize(want, 0);
        let n = told("read", "the file", rustix::io::pread(&self.file, &mut buffer[..], self.offset))?;
        if n == 0 {
            self.left = 0;
            return Ok(None);
        }
        self.offset += n as u64;
        self.left -= n as u64;
        self.credit -= n as u64 + FRAME_COST;
        self.sent += n as u64;
        Ok(Some(n))
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }
}

fn check_regular(verb: &str, path: &str, stat: &Stat) -> Result<()> {
    let what = match kind_of(stat) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    let message = format!("cannot {verb} {path}: it is {what}, not a file");
    Err(Failure { kind: FailureKind::WrongKind, message })
}

/// A file that will take another's place.
#[derive(Debug)]
struct Replacement {
    dir: OwnedFd,
    temporary: String,
    name: String,
}

/// A file that is being written. Dropped before its end, a replacement leaves no trace.
#[derive(Debug)]
pub(crate) struct Upload {
    file: std::fs::File,
    /// Who puts it in its place.
    user: Option<(u32, u32)>,
    replaces: Option<Replacement>,
    written: u64,
    /// What the client may still send.
    pub(crate) credit: u64,
}

impl Upload {
    /// As this user it is put in its place, or taken away again.
    pub(crate) fn by(mut self, user: Option<(u32, u32)>) -> Upload {
        self.user = user;
        self
    }

    fn replace(path: String, mode: Option<u32>) -> Result<Upload> {
        let path = follow_links(path)?;
        let (dir, name) = told("write", &path, parent(&path))?;
        let old = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        if let Some(old) = &old {
            check_regular("write", &path, old)?;
        }
        // Set-id bits go, as the kernel has it when somebody without privileges writes to such a file.
        let kept = old.as_ref().map(|old| old.st_mode & 0o1777);
        let bits = mode.map(|mode| mode & 0o777).or(kept).unwrap_or(0o644);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut attempt = 0u32;
        let (file, temporary) = loop {
            let salt = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let salt = salt.map_or(0, |t| t.subsec_nanos());
            let temporary = format!(".{}.{salt:08x}{attempt:02x}~", &name[..name.floor_char_boundary(200)]);
            match openat(&dir, temporary.as_str(), flags, Mode::from_raw_mode(0o600)) {
                Err(Errno::EXIST) if attempt < 100 => attempt += 1,
                other => break (told("write", &path, other)?, temporary),
            }
        };
        let replaces = Some(Replacement { dir, temporary, name: name.to_owned() });
        let upload = Upload { file: file.into(), user: None, replaces, written: 0, credit: STDIN_CREDIT };
        if let Some(old) = &old {
            // Whose it was it stays, as if it had been written over. Who may not give files away has a file of his own then.
            let owner = (Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
            let _ = fs::fchown(&upload.file, owner.0, owner.1);
        }
        told("write", &path, fs::fchmod(&upload.file, Mode::from_raw_mode(bits)))?;
        Ok(upload)
    }

    fn append(path: &str) -> Result<Upload> {
        let flags = OFlags::CREATE
            | OFlags::APPEND
            | OFlags::WRONLY
            | OFlags::CLOEXEC
            | OFlags::NONBLOCK
            | OFlags::NOCTTY;
        let file = told("append to", path, open_inside(path, flags, Mode::from_raw_mode(0o644)))?;
        let stat = told("append to", path, fs::fstat(&file))?;
        check_regular("append to", path, &stat)?;
        Ok(Upload { file: file.into(), user: None, replaces: None, written: 0, credit: STDIN_CREDIT })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| {
            let errno = e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            told::<()>("write", "the file", Err(errno))
                .err()
                .unwrap_or(Failure { kind: FailureKind::Io, message: e.to_string() })
        })?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Puts the file in its place.
    pub(crate) fn finish(mut self) -> Result<u64> {
        if let Some(it) = &self.replaces {
            let put = || fs::renameat(&it.dir, it.temporary.as_str(), &it.dir, it.name.as_str());
            let put = as_user(self.user, put).unwrap_or(Err(Errno::PERM));
            told("write", &it.name, put)?;
        }
        self.replaces = None;
        Ok(self.written)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(it) = &self.replaces {
            let remove = || fs::unlinkat(&it.dir, it.temporary.as_str(), AtFlags::empty());
            let _ = as_user(self.user, remove);
        }
    }
}

/// The path that a link at the end leads to, so that the file and not the link is replaced.
fn follow_links(mut path: String) -> Result<String> {
    for _ in 0..LINKS_MAX {
        let (dir, name) = told("write", &path, parent(&path))?;
        let Ok(target) = fs::readlinkat(dir, name, Vec::new()) else {
            return Ok(path);
        };
        let target = text(&target);
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        path = if target.starts_with('/') { target } else { format!("{dir}/{target}") };
    }
    told("write", &path, Err(Errno::LOOP))
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}
