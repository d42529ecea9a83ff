//! Walking our own root, for a host that cannot look at it: see `glasshouse_protocol::walk`.
//!
//! A process of its own does it, a copy of the guest with the guest's rights, on the connection of whoever holds the box: so
//! however long it takes, the guest is there, and the box ends when it should. Every name is opened below the descriptor of
//! its directory; no link is followed and no mount is entered. At most [`OPEN_MAX`] directories are open at once.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::vec::IntoIter;

use glasshouse_linux::content::{Contents, Hash, Room, attributes_hash, counts, hash};
use glasshouse_linux::rustix::event::{PollFd, PollFlags, poll};
use glasshouse_linux::rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags, openat, statx,
};
use glasshouse_linux::rustix::io::Errno;
use glasshouse_linux::rustix::net::{RecvFlags, SendFlags, recv, send};
use glasshouse_linux::rustix::time::{ClockId, clock_gettime};
use glasshouse_linux::{resolve, rustix};
use glasshouse_protocol::frame::{self, Decoder, Frame, Kind};
use glasshouse_protocol::walk::{Answer, FRAME_FULL, Facts, Item, Moment, Told, Wanted};

/// Directories that are held open at once. The parents of deeper ones are opened again on the way back.
const OPEN_MAX: usize = 64;
/// Directories inside one another.
const DEPTH_MAX: usize = 4096;
/// Bytes of names that are asked for at once.
const NAMES: usize = 32 * 1024;
/// The kernel's own bound, for all names of attributes together and for one value.
const XATTR_MAX: usize = 64 * 1024;
/// A longer path is opened in parts.
const PATH_MAX: usize = 4000;
/// In what the kernel says of an entry: something is mounted on it.
const MOUNT_ROOT: u64 = 0x2000;

/// The connection, for as long as it is ours. The loop's own side of it does not block, so neither may we.
struct Line<'a> {
    socket: BorrowedFd<'a>,
    stream: u32,
    decoder: Decoder,
    out: Vec<u8>,
}

impl Line<'_> {
    fn item(&mut self, item: &Item) -> io::Result<()> {
        item.put(&mut self.out);
        if self.out.len() > FRAME_FULL { self.flush() } else { Ok(()) }
    }

    fn answer(&mut self, answer: &Answer) -> io::Result<()> {
        answer.put(&mut self.out);
        if self.out.len() > FRAME_FULL { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(self.out.len() + frame::HEADER_BYTES);
        frame::put(&mut bytes, self.stream, Kind::Data, &self.out);
        self.out.clear();
        let mut sent = 0;
        while sent < bytes.len() {
            match send(self.socket, &bytes[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> io::Result<()> {
        match poll(&mut [PollFd::from_borrowed_fd(self.socket, what)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn hear(&mut self) -> io::Result<Frame> {
        let mut buffer = vec![0; NAMES];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                return Ok(frame);
            }
            match recv(self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((n, _)) => self.decoder.feed(&buffer[..n]),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Tells all of it, and answers until nothing more is wanted.
pub(crate) fn serve(socket: BorrowedFd<'_>, stream: u32) -> io::Result<()> {
    let mut line = Line { socket, stream, decoder: Decoder::default(), out: Vec::new() };
    let root = openat(CWD, "/", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut attributes = Attributes { names: vec![0; XATTR_MAX], value: vec![0; XATTR_MAX] };
    tell(&root, &mut attributes, &mut line)?;
    line.flush()?;
    loop {
        let frame = line.hear()?;
        if (frame.stream, frame.kind) != (stream, Kind::Data) {
            return Err(io::Error::other("something else was said than what is wanted"));
        }
        let wanted = Wanted::from_bytes(&frame.body).map_err(io::Error::other)?;
        if wanted.paths.is_empty() {
            // Whoever hears this may speak with the guest again.
            line.item(&Item::End)?;
            return line.flush();
        }
        for path in &wanted.paths {
            let answer = match read(&root, path, wanted.kept_bytes, &mut attributes) {
                Err(e) if is_gone(&e) => Answer::Gone,
                answer => answer?,
            };
            line.answer(&answer)?;
        }
        line.flush()?;
    }
}

/// A directory that is being told.
struct Level {
    /// `None` while there are more than enough open below it.
    fd: Option<OwnedFd>,
    names: IntoIter<CString>,
}

fn tell(root: &OwnedFd, attributes: &mut Attributes, line: &mut Line<'_>) -> io::Result<()> {
    let now = clock_gettime(ClockId::Realtime);
    line.item(&Item::Begin((now.tv_sec, now.tv_nsec as u32)))?;
    let mut levels = Vec::new();
    let dir = openat(root, ".", DIRECTORY, Mode::empty())?;
    let top = look(root.as_fd(), c"")?;
    let mounts = Mounts::look(&top)?;
    enter(dir, c"", &top, attributes, &mut levels, line)?;
    while let Some(level) = levels.last_mut() {
        let Some(fd) = &level.fd else { return Err(io::Error::other("a directory was lost")) };
        let Some(name) = level.names.next() else {
            leave(&mut levels)?;
            line.item(&Item::Leave)?;
            continue;
        };
        let stat = match look(fd.as_fd(), &name) {
            Err(Errno::NOENT) => continue,
            stat => stat?,
        };
        if mounts.is_root(&stat) {
            line.item(&Item::Mount(name.into_bytes()))?;
            continue;
        }
        let told = |content, size: Option<u64>| {
            let facts = facts(&stat);
            let facts = Facts { size: size.unwrap_or(facts.size), ..facts };
            Item::Entry(Told { name: name.to_bytes().to_vec(), facts, content, attributes: None })
        };
        let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
        match kind {
            FileType::Directory => match within(fd, name.to_bytes(), DIRECTORY) {
                Err(Errno::NOENT) => continue,
                Err(Errno::XDEV) => line.item(&Item::Mount(name.into_bytes()))?,
                dir => enter(dir?, &name, &stat, attributes, &mut levels, line)?,
            },
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(fd, &name, Vec::new())?;
                let content = hash(target.as_bytes());
                line.item(&told(Some(content), Some(target.as_bytes().len() as u64)))?;
            }
            FileType::CharacterDevice | FileType::BlockDevice => {
                let number = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
                // The mark of what is not there, wherever a layer is made of it.
                if kind == FileType::CharacterDevice && number == 0 {
                    continue;
                }
                line.item(&told(Some(hash(&number.to_le_bytes())), None))?;
            }
            _ => line.item(&told(None, None))?,
        }
    }
    line.item(&Item::End)
}

fn enter(
    fd: OwnedFd,
    name: &CStr,
    stat: &Statx,
    attributes: &mut Attributes,
    levels: &mut Vec<Level>,
    line: &mut Line<'_>,
) -> io::Result<()> {
    if levels.len() >= DEPTH_MAX {
        return Err(io::Error::other(format!("it is deeper than {DEPTH_MAX} directories")));
    }
    let attributes = attributes.read(fd.as_fd())?;
    let (name, facts) = (name.to_bytes().to_vec(), facts(stat));
    line.item(&Item::Entry(Told { name, facts, content: None, attributes }))?;
    let names = names(fd.as_fd())?;
    if let Some(far) = levels.len().checked_sub(OPEN_MAX) {
        levels[far].fd = None;
    }
    levels.push(Level { fd: Some(fd), names: names.into_iter() });
    Ok(())
}

/// Is through with a directory, and has the one above it open again.
fn leave(levels: &mut Vec<Level>) -> io::Result<()> {
    let Some(Level { fd: Some(fd), .. }) = levels.pop() else {
        return Err(io::Error::other("a directory was lost"));
    };
    if let Some(parent) = levels.last_mut()
        && parent.fd.is_none()
    {
        parent.fd = Some(openat(&fd, "..", DIRECTORY, Mode::empty())?);
    }
    Ok(())
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const WITHIN: ResolveFlags =
    ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_XDEV).union(ResolveFlags::BENEATH);

fn within(dir: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    resolve::open(dir.as_fd(), OsStr::from_bytes(path), flags, Mode::empty(), WITHIN)
}

fn look(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    match statx(dir, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS) {
        // A kernel that mounts nothing by itself may not know what that is (gVisor's of 2022).
        Err(Errno::INVAL) => statx(dir, name, flags, StatxFlags::BASIC_STATS),
        looked => looked,
    }
}

/// How entries that something is mounted on are known.
enum Mounts {
    /// The kernel says so of each.
    Told,
    /// It does not (gVisor's). What its list of mounts leads to, by device and inode.
    Listed(Vec<Inode>),
}

type Inode = (u32, u32, u64);

fn inode(stat: &Statx) -> Inode {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

impl Mounts {
    fn look(root: &Statx) -> io::Result<Mounts> {
        if root.stx_attributes_mask.bits() & MOUNT_ROOT != 0 {
            return Ok(Mounts::Told);
        }
        let list = std::fs::read_to_string("/proc/self/mountinfo")?;
        let places = list.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| *place != "/");
        let places = places.filter_map(|place| CString::new(unescaped(place)).ok());
        // One that cannot be looked at is below another one.
        let found = places.filter_map(|place| look(CWD, &place).ok()).map(|stat| inode(&stat));
        Ok(Mounts::Listed(found.collect()))
    }

    fn is_root(&self, stat: &Statx) -> bool {
        match self {
            Mounts::Told => stat.stx_attributes.bits() & MOUNT_ROOT != 0,
            Mounts::Listed(inodes) => inodes.contains(&inode(stat)),
        }
    }
}

/// A path as the kernel writes it in its list of mounts: what would end a word there is a number in base 8.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..b'8').contains(d)));
        let number = digits
            .map(|digits| digits.iter().fold(0_u32, |number, digit| number * 8 + u32::from(digit - b'0')));
        match number.and_then(|number| u8::try_from(number).ok()) {
            Some(number) => {
                bytes.push(number);
                rest = &after[3..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    bytes
}

fn facts(stat: &Statx) -> Facts {
    let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
    let letter = match kind {
        FileType::Directory => b'd',
        FileType::Symlink => b'l',
        FileType::Fifo => b'p',
        FileType::Socket => b's',
        FileType::CharacterDevice => b'c',
        FileType::BlockDevice => b'b',
        FileType::RegularFile | FileType::Unknown => b'f',
    };
    let moment = |time: rustix::fs::StatxTimestamp| -> Moment { (time.tv_sec, time.tv_nsec) };
    Facts {
        kind: letter,
        mode: stat.stx_mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        size: if matches!(letter, b'f' | b'l') { stat.stx_size } else { 0 },
        ino: stat.stx_ino,
        ctime: moment(stat.stx_ctime),
        mtime: moment(stat.stx_mtime),
    }
}

/// Every name in a directory, sorted.
fn names(dir: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    let mut buffer = Vec::with_capacity(NAMES);
    let mut list = RawDir::new(dir, buffer.spare_capacity_mut());
    while let Some(entry) = list.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// What a file holds.
fn read(root: &OwnedFd, path: &[u8], kept_bytes: u64, attributes: &mut Attributes) -> io::Result<Answer> {
    let file = open(root, path)?;
    let stat = look(file.as_fd(), c"")?;
    if FileType::from_raw_mode(u32::from(stat.stx_mode)) != FileType::RegularFile {
        return Ok(Answer::Gone);
    }
    let size = stat.stx_size;
    let room = if size <= kept_bytes { Room { file_bytes: size, bytes: size } } else { Room::default() };
    let mut contents = Contents::keeping(room);
    let content = contents.hash(file.as_fd(), size)?;
    let bytes = contents.kept().remove(&content).filter(|_| size <= kept_bytes);
    let attributes = attributes.read(file.as_fd())?;
    let facts = facts(&look(file.as_fd(), c"")?);
    Ok(Answer::File { facts, content, attributes, bytes })
}

/// Opens a file below the root, however long the way to it is.
fn open(root: &OwnedFd, mut path: &[u8]) -> io::Result<OwnedFd> {
    let mut at = None;
    while path.len() > PATH_MAX {
        let cut = path[..PATH_MAX].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
        let dir = within(at.as_ref().unwrap_or(root), &path[..cut], DIRECTORY)?;
        at = Some(dir);
        path = &path[cut + 1..];
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    Ok(within(at.as_ref().unwrap_or(root), path, flags)?)
}

/// Whether a name does not lead any more to what it led to a moment ago.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NXIO, Errno::XDEV, Errno::ISDIR];
    Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

/// Reads attributes. Holds the buffers, so that they are made once for many files.
struct Attributes {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Attributes {
    fn read(&mut self, file: BorrowedFd<'_>) -> io::Result<Option<Hash>> {
        let length = match rustix::fs::flistxattr(file, &mut self.names[..]) {
            // The file system has none.
            Err(Errno::OPNOTSUPP | Errno::NODATA) => return Ok(None),
            length => length?,
        };
        let mut counted = Vec::new();
        for name in self.names[..length].split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            if !counts(name.to_bytes()) {
                continue;
            }
            match rustix::fs::fgetxattr(file, name, &mut self.value[..]) {
                // Gone since.
                Err(Errno::NODATA) => {}
                length => counted.push((name.to_bytes().to_vec(), self.value[..length?].to_vec())),
            }
        }
        Ok(attributes_hash(counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_mounts_are_read_as_they_are_called() {
        assert_eq!(unescaped(r"/a\040b\134c"), b"/a b\\c");
        assert_eq!(unescaped(r"/plain\9\777"), br"/plain\9\777");
    }

    #[test]
    fn mounts_are_found_by_the_list_as_by_what_the_kernel_says() {
        let mut silent = look(CWD, c"/").unwrap();
        silent.stx_attributes_mask = rustix::fs::StatxAttributes::empty();
        let listed = Mounts::look(&silent).unwrap();
        for path in [c"/proc", c"/dev", c"/usr/bin", c"/etc/passwd"] {
            let stat = look(CWD, path).unwrap();
            assert_eq!(listed.is_root(&stat), Mounts::Told.is_root(&stat), "{path:?}");
        }
    }
}
