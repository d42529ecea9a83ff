//! The state directory: all that is known of boxes, in files that any process may read.
//!
//! ```text
//! <home>/                     0700
//!   lock                      taken for the moments in which a box appears or vanishes
//!   store                     locked by all who make or use layers, and alone by whoever removes them
//!   boxes/<id>/  alive        locked by the box's first process for as long as it lives; marked while it is paused
//!                box.json     what the box is; written when it is ready, so a directory without it is a ruin
//!                sock         the guest's socket
//!                far          instead of both, if its first process is on another machine
//!                top<n>/{u,w} what the box wrote since it was last restacked
//!                index        what lies in it, as far as somebody has asked
//!                cgroup       where its cgroups are, if its maker was not where they usually are
//!                door/        what a container is given, and where its guest comes to
//!   names/<name> -> <id>      a link each
//!   uids/<slot> -> <id>       ranges of uids in use
//!   layers/<name>/tree        read-only layers shared by boxes
//!                 index       what lies in it, as far as somebody has asked
//!   indexes/                  the same of directories of the host that are layers
//!   images/<name>.json        what an image consists of
//!   snapshots/<id>.json       states that can be gone back to: a chain of layers each
//!   incoming/<name>/          what is being made or unpacked
//!   incoming/blobs/           what was downloaded of layers so far
//!   traces/<id>/  blobs/      the record, kept when the box is gone
//!   trash/                    on its way out
//!   places/<hash>/            layers with nothing but a place to mount something on, for images that have none
//!   server/                   what the service remembers: keys, tenants, records of boxes, its audit
//!   engine/                   the guest's program as a file, and an empty directory, once there was a container
//! ```
//! Whether a box lives is asked of the kernel, by the lock: no pid file can lie, and no reboot can confuse it. A box on
//! another machine holds no lock here; whoever runs it there is asked.

mod info;
mod known;

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use glasshouse_linux::{descriptor, tree};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::spec::{SandboxInfo, SandboxState};
pub(crate) use info::{BoxRecord, Given, Pending, variables};
use known::{Known, Seen};

/// How many boxes can have a range of uids at once.
const UID_SLOTS: u32 = 16_384;
/// The first uid of the first range, far from what adduser and containers hand out.
const UID_FIRST: u32 = 1_000_000_000;
/// Ids in one range.
pub(crate) const UID_RANGE: u32 = 65_536;
/// All ids that boxes may be given.
pub(crate) const UIDS: std::ops::Range<u64> =
    UID_FIRST as u64..UID_FIRST as u64 + UID_SLOTS as u64 * UID_RANGE as u64;

/// In a box's directory: its first process is on another machine.
pub(crate) const FAR: &str = "far";
/// The file in the directory of such a box that says that somebody asked for its pause, and nobody since for its end.
const PAUSE: &str = "pause";

/// Says something of a box on another machine.
type Asked = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The state directory.
#[derive(Clone)]
pub(crate) struct Home {
    path: PathBuf,
    elsewhere: Arc<OnceLock<Elsewhere>>,
    known: Arc<Known>,
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Home").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Who is asked about boxes whose first process is on another machine.
pub(crate) struct Elsewhere {
    pub(crate) lives: Asked,
    pub(crate) is_paused: Asked,
}

/// A box's directory while it is being made: taken away again unless it is kept.
#[derive(Debug)]
pub(crate) struct Claim {
    home: Home,
    id: String,
    /// The directory, and the lock that says that the box lives. The guest gets a copy of that; ours goes when the box is
    /// on its own.
    held: Option<(OwnedFd, OwnedFd)>,
    kept: bool,
}

impl Home {
    pub(crate) fn open(path: PathBuf) -> Result<Home> {
        let path = std::path::absolute(&path).context(format_args!("use {} as home", path.display()))?;
        let dirs = [
            "",
            "boxes",
            "names",
            "uids",
            "layers",
            "indexes",
            "snapshots",
            "images",
            "incoming",
            "incoming/blobs",
            "traces",
            "blobs",
            "trash",
        ];
        for dir in dirs {
            let dir = path.join(dir);
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.context(format_args!(
                "make {} (say --home or set GLASSHOUSE_HOME to choose another place)",
                dir.display()
            ))?;
        }
        for dir in ["", "boxes", "traces"] {
            spread(&path.join(dir));
        }
        let meta = fs::metadata(&path).context(format_args!("look at {}", path.display()))?;
        if meta.permissions().mode() & 0o077 != 0 {
            // Files of boxes lie here with the owners they have inside: nobody else may come near them.
            let closed = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&path, closed)
                .context(format_args!("close {} to other users", path.display()))?;
        }
        Ok(Home { path, elsewhere: Arc::default(), known: Arc::default() })
    }

    /// Says who is asked about boxes on other machines. The first one who says so counts.
    pub(crate) fn ask_elsewhere(&self, who: Elsewhere) {
        let _ = self.elsewhere.set(who);
    }

    /// Notes that somebody asks for the pause of a box on another machine, or that it has ended.
    pub(crate) fn note_pause(&self, id: &str, asked: bool) -> Result<()> {
        let path = self.box_dir(id).join(PAUSE);
        match asked {
            true => write_private(&path, ""),
            false => match fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::io(format!("remove {}", path.display()), e))
                }
                _ => Ok(()),
            },
        }
    }

    /// Whether a box's first process is on another machine.
    pub(crate) fn is_far(&self, id: &str) -> bool {
        self.box_dir(id).join(FAR).exists()
    }

    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.path.join(part)
    }

    pub(crate) fn box_dir(&self, id: &str) -> PathBuf {
        self.path.join("boxes").join(id)
    }

    /// A word that tells homes apart on one machine, for names outside of them.
    pub(crate) fn tag(&self) -> Result<String> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::metadata(&self.path).context(format_args!("look at {}", self.path.display()))?;
        Ok(format!("{:x}-{:x}", meta.dev(), meta.ino()))
    }

    pub(crate) fn lock(&self) -> Result<File> {
        descriptor::lock_path(&self.path.join("lock")).context("lock the state directory")
    }

    /// Held by whoever makes or uses layers that no record names yet: nothing is swept away meanwhile.
    pub(crate) fn store_shared(&self) -> Result<File> {
        descriptor::lock_shared(&self.path.join("store")).context("lock the layers")
    }

    /// For whoever sweeps; `None` if somebody is at work.
    pub(crate) fn store_exclusive(&self) -> Result<Option<File>> {
        let file = File::options().create(true).truncate(false).write(true).open(self.path.join("store"));
        let file = file.context("lock the layers")?;
        Ok(descriptor::try_lock(file.as_fd()).context("lock the layers")?.then_some(file))
    }

    /// Held by whoever changes what a box stands on: one at a time.
    pub(crate) fn lock_box(&self, id: &str) -> Result<File> {
        descriptor::lock_directory(&self.box_dir(id)).context(format_args!("lock box {id}"))
    }

    /// Makes a box's directory and locks its life.
    pub(crate) fn claim(&self, id: &str) -> Result<Claim> {
        let _lock = self.lock()?;
        let path = self.box_dir(id);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder.create(&path).context(format_args!("make {}", path.display()))?;
        let opened = File::open(&path).and_then(|dir| {
            let alive = descriptor::lock_for_life(dir.as_fd(), "alive")?;
            Ok((OwnedFd::from(dir), alive))
        });
        if opened.is_err() {
            // By name: what failed may have been for want of descriptors.
            let _ = fs::remove_file(path.join("alive"));
            let _ = fs::remove_dir(&path);
        }
        let (dir, alive) = opened.context(format_args!("lock {}", path.display()))?;
        Ok(Claim { home: self.clone(), id: id.into(), held: Some((dir, alive)), kept: false })
    }

    /// Takes the directory of a box that was stopped, and locks its life. Whatever happens, it stays.
    pub(crate) fn reclaim(&self, id: &str) -> Result<Claim> {
        let _lock = self.lock()?;
        let path = self.box_dir(id);
        match fs::remove_file(path.join("sock")) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("remove the old socket of box {id}"), e));
            }
            _ => {}
        }
        let opened = File::open(&path).and_then(|dir| {
            let alive = descriptor::lock_for_life(dir.as_fd(), "alive")?;
            Ok((OwnedFd::from(dir), alive))
        });
        let held = Some(opened.context(format_args!("lock {}", path.display()))?);
        Ok(Claim { home: self.clone(), id: id.into(), held, kept: true })
    }

    /// Whether a process of the box lives.
    pub(crate) fn is_alive(&self, id: &str) -> Result<bool> {
        match File::open(self.box_dir(id)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            opened => {
                let dir = opened.context(format_args!("open box {id}"))?;
                let locked = descriptor::is_locked(dir.as_fd(), "alive");
                let locked = locked.context(format_args!("look at box {id}"))?;
                // Whoever makes it holds the lock himself, wherever it is going to be.
                Ok(locked || (self.is_far(id) && self.elsewhere.get().is_some_and(|who| (who.lives)(id))))
            }
        }
    }

    /// Whether a box of this machine lives, and is not paused.
    pub(crate) fn is_running(&self, id: &str) -> Result<bool> {
        let (locked, marked) = self.lock_and_mark(id)?;
        Ok(locked && !marked)
    }

    /// Whether a process of the box lives, and whether nothing else in it runs.
    fn life(&self, id: &str) -> Result<(bool, bool)> {
        match self.lock_and_mark(id)? {
            (false, _) if self.is_far(id) => Ok((self.is_alive(id)?, self.is_paused(id)?)),
            life => Ok(life),
        }
    }

    /// What the first process of a box on this machine has done to its file of life.
    fn lock_and_mark(&self, id: &str) -> Result<(bool, bool)> {
        match File::open(self.box_dir(id)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok((false, false)),
            opened => {
                let dir = opened.context(format_args!("open box {id}"))?;
                let found = descriptor::is_locked_and_marked(dir.as_fd(), "alive");
                found.context(format_args!("look at box {id}"))
            }
        }
    }

    /// Whether the first process of a box says that nothing else in it runs.
    fn is_paused(&self, id: &str) -> Result<bool> {
        match File::open(self.box_dir(id)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            opened => {
                let dir = opened.context(format_args!("open box {id}"))?;
                if self.is_far(id) {
                    // Asking takes longer than all the rest; where nobody has paused it, it is not paused.
                    let asked = self.box_dir(id).join(PAUSE).exists();
                    return Ok(asked && self.elsewhere.get().is_some_and(|who| (who.is_paused)(id)));
                }
                descriptor::is_marked(dir.as_fd(), "alive").context(format_args!("look at box {id}"))
            }
        }
    }

    /// The ids of all boxes, living or not, sorted.
    pub(crate) fn ids(&self) -> Result<Vec<String>> {
        names_in(&self.path.join("boxes"))
    }

    /// The id that an id, the beginning of one, or a name stands for.
    pub(crate) fn resolve(&self, name: &str) -> Result<String> {
        let unknown = || {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no box {name:?}; `glass list` shows those that are"),
            )
        };
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(unknown());
        }
        if self.box_dir(name).is_dir() {
            return Ok(name.into());
        }
        if let Ok(id) = fs::read_link(self.path.join("names").join(name))
            && let Some(id) = id.to_str()
            && self.box_dir(id).is_dir()
        {
            return Ok(id.into());
        }
        let mut matching = self.ids()?.into_iter().filter(|id| name.len() >= 4 && id.starts_with(name));
        match (matching.next(), matching.next()) {
            (Some(id), None) => Ok(id),
            (Some(_), Some(_)) => Err(Error::new(
                ErrorKind::Invalid,
                format!("{name:?} stands for more than one box; write more of the id"),
            )),
            _ => Err(unknown()),
        }
    }

    /// Whether a box has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        let id = fs::read_link(self.path.join("names").join(name));
        id.is_ok_and(|id| self.path.join("boxes").join(id).is_dir())
    }

    /// Takes a name for a box.
    pub(crate) fn take_name(&self, name: &str, id: &str) -> Result<()> {
        let _lock = self.lock()?;
        let link = self.path.join("names").join(name);
        if let Ok(other) = fs::read_link(&link) {
            if other.to_str().is_some_and(|other| self.box_dir(other).is_dir()) {
                return Err(Error::new(ErrorKind::Exists, format!("a box named {name:?} is there already")));
            }
            fs::remove_file(&link).context(format_args!("free the name {name:?}"))?;
        }
        symlink(id, &link).context(format_args!("take the name {name:?}"))
    }

    /// Finds a range of uids that no box uses, starting at a place that the id gives.
    pub(crate) fn take_uids(&self, id: &str) -> Result<u32> {
        let start = id.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
        for attempt in 0..UID_SLOTS {
            let slot = start.wrapping_add(attempt) % UID_SLOTS;
            match symlink(id, self.path.join("uids").join(slot.to_string())) {
                Ok(()) => return Ok(UID_FIRST + slot * UID_RANGE),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("take a range of uids", e)),
            }
        }
        Err(Error::new(
            ErrorKind::Limit,
            format!("all {UID_SLOTS} ranges of uids are in use; `glass gc` may free some"),
        ))
    }

    /// Removes the links of all kinds that name a box which is not there.
    pub(crate) fn drop_links(&self) -> Result<()> {
        // Nobody gives a name that was free to another box between our look and our removal.
        let _lock = self.lock()?;
        for kind in ["names", "uids"] {
            for name in names_in(&self.path.join(kind))? {
                let link = self.path.join(kind).join(&name);
                if fs::read_link(&link).is_ok_and(|id| !self.path.join("boxes").join(id).is_dir()) {
                    let _ = fs::remove_file(&link);
                }
            }
        }
        Ok(())
    }

    /// Removes what a box does not stand on of what it could write to: left by somebody who was killed before he said what he
    /// was about to do, or after he had done it. How many; none, if somebody is at work with the box.
    pub(crate) fn drop_tops(&self, id: &str) -> Result<usize> {
        let path = self.box_dir(id);
        let Ok(dir) = File::open(&path) else { return Ok(0) };
        if !descriptor::try_lock(dir.as_fd()).context(format_args!("lock box {id}"))? {
            return Ok(0);
        }
        // Damaged, or not a box yet, or whoever asks it next will settle what it stands on.
        let Ok(Some(BoxRecord { info, pending: None, .. })) = self.read_record(id) else { return Ok(0) };
        let names = match names_in(&path) {
            // Somebody has removed the box meanwhile.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(0),
            names => names?,
        };
        let mut dropped = 0;
        for name in names {
            let number = name.strip_prefix("top").and_then(|number| number.parse::<u64>().ok());
            if number.is_some_and(|number| number != info.generation) {
                match tree::remove(dir.as_fd(), &name).context(format_args!("remove {name} of box {id}")) {
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(dropped),
                    removed => removed?,
                };
                dropped += 1;
            }
        }
        Ok(dropped)
    }

    /// Takes a box's directory away: at once for everybody who looks, and then from the disk.
    pub(crate) fn remove_box(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()> {
        let from = self.box_dir(id);
        let to = self.path.join("trash").join(id);
        match fs::rename(&from, &to) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            renamed => renamed.context(format_args!("take {} away", from.display()))?,
        }
        self.known.forget(id);
        match info {
            Some(info) => {
                let slot = info.uid_base.map(|base| ((base - UID_FIRST) / UID_RANGE).to_string());
                self.drop_link("uids", slot.as_deref(), id)?;
                self.drop_link("names", info.name.as_deref(), id)?;
            }
            None => self.drop_links()?,
        }
        self.empty_trash_of(id)
    }

    /// Removes a link if it still is this box's: somebody else may have removed the box and another one taken it.
    fn drop_link(&self, kind: &str, name: Option<&str>, id: &str) -> Result<()> {
        let Some(name) = name else { return Ok(()) };
        let _lock = self.lock()?;
        let link = self.path.join(kind).join(name);
        if fs::read_link(&link).is_ok_and(|target| target == Path::new(id)) {
            let _ = fs::remove_file(&link);
        }
        Ok(())
    }

    /// Takes a part of a box away, at once for everybody who looks. Its name in the trash, for whoever removes it.
    pub(crate) fn throw_away(&self, id: &str, part: &str) -> Result<Option<String>> {
        let name = format!("{id}.{part}");
        let from = self.box_dir(id).join(part);
        match fs::rename(&from, self.path.join("trash").join(&name)) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            renamed => renamed.context(format_args!("take {} away", from.display())).map(|()| Some(name)),
        }
    }

    /// Removes one thing that is on its way out.
    pub(crate) fn empty_trash_of(&self, id: &str) -> Result<()> {
        let trash = File::open(self.path.join("trash")).context("open the trash")?;
        tree::remove(trash.as_fd(), id).context(format_args!("remove what box {id} left"))
    }

    /// Removes what a killed process left on its way out. How many.
    ///
    /// What lies there while the house is locked is nobody's work any more, and no name of it is used again: to remove it may take
    /// long, and needs no lock. Two who do so at once, or one after the other was killed, remove the same.
    pub(crate) fn empty_trash(&self) -> Result<usize> {
        let names = {
            let _lock = self.lock()?;
            names_in(&self.path.join("trash"))?
        };
        for name in &names {
            self.empty_trash_of(name)?;
        }
        Ok(names.len())
    }

    pub(crate) fn write_record(&self, record: &BoxRecord) -> Result<()> {
        self.prepare_record(record)?;
        self.put_record(&record.info.id)
    }

    /// Writes a record beside the one that counts. Only whoever holds the box's lock.
    pub(crate) fn prepare_record(&self, record: &BoxRecord) -> Result<()> {
        let (id, path) = (&record.info.id, self.box_dir(&record.info.id).join("box.json~"));
        write_private(&path, &record.to_text()?)?;
        // Of one that was read before, all is as it would be read again.
        if self.known.has(id)
            && let Some(seen) = Seen::at(&path)
        {
            let mut record = record.clone();
            record.info.state = record.info.state.as_written();
            self.known.keep(id, seen, record);
        }
        Ok(())
    }

    /// The record that was prepared is the one that counts.
    pub(crate) fn put_record(&self, id: &str) -> Result<()> {
        let dir = self.box_dir(id);
        fs::rename(dir.join("box.json~"), dir.join("box.json"))
            .context(format_args!("write box.json of {id}"))
    }

    /// What is known of a box; `None` if it never became one.
    pub(crate) fn read_info(&self, id: &str) -> Result<Option<SandboxInfo>> {
        Ok(self.read_record(id)?.map(|record| record.info))
    }

    /// All that is on record of a box; `None` if it never became one.
    pub(crate) fn read_record(&self, id: &str) -> Result<Option<BoxRecord>> {
        let Some(mut record) = self.read_written(id)? else { return Ok(None) };
        match self.life(id)? {
            (true, true) => record.info.state = SandboxState::Paused,
            (true, false) => record.info.state = SandboxState::Running,
            (false, _) => {}
        }
        Ok(Some(record))
    }

    /// The same as it was written: whether the box lives is not asked, and its state says nothing.
    pub(crate) fn read_written(&self, id: &str) -> Result<Option<BoxRecord>> {
        let path = self.box_dir(id).join("box.json");
        // Before it is read: one that replaces it meanwhile is not taken for it.
        let seen = Seen::at(&path);
        if let Some(record) = seen.as_ref().and_then(|seen| self.known.get(id, seen)) {
            return Ok(Some(record));
        }
        let text = match fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.context(format_args!("read {}", path.display()))?,
        };
        let broken = || {
            Error::new(
                ErrorKind::Failed,
                format!("{} is damaged; `glass kill {id}` removes the box", path.display()),
            )
        };
        let value = serde_json::from_slice(&text).map_err(|_| broken())?;
        let record = BoxRecord::from_json(&value).ok_or_else(broken)?;
        if let Some(seen) = seen.filter(|seen| Seen::at(&path).as_ref() == Some(seen)) {
            self.known.keep(id, seen, record.clone());
        }
        Ok(Some(record))
    }
}

/// The error for a box of which nothing is on record.
pub(crate) fn unfinished(id: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("box {id} is not ready, or was never finished"))
}

/// Writes a file that nobody else may read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.context(format_args!("write {}", path.display()))
}

impl Claim {
    /// Whose it is.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.home.box_dir(&self.id)
    }

    /// The directory and the lock, by descriptor.
    pub(crate) fn held(&self) -> Result<(&OwnedFd, &OwnedFd)> {
        let held = self.held.as_ref().map(|(dir, alive)| (dir, alive));
        held.ok_or_else(|| Error::new(ErrorKind::Failed, "the box has been given up"))
    }

    /// The box is one. Its directory stays, and the lock is its own.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // First our descriptors: the removal may need their places.
        self.held = None;
        if !self.kept {
            // By name as far as that goes, which needs no descriptor; a box that was never entered has nothing else.
            let dir = self.path();
            for file in ["alive", "sock", "box.json", "box.json~", "upper", FAR, PAUSE] {
                let _ = fs::remove_file(dir.join(file));
            }
            for part in ["top0/u", "top0/w", "top0", "work", ""] {
                let _ = fs::remove_dir(dir.join(part));
            }
            // What cannot be removed now is found by the next `gc`: it is a directory without box.json and lock.
            let _ = self.home.remove_box(None, &self.id);
        }
    }
}

pub(crate) fn names_in(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).context(format_args!("list {}", dir.display()))? {
        let entry = entry.context(format_args!("list {}", dir.display()))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Tells ext4 that what is below is not related, so that it spreads boxes over the disk: without that, each new file
/// looks for its place among all that were freed a moment ago. Other file systems do not know the word.
fn spread(dir: &Path) {
    use glasshouse_linux::rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    if let Ok(file) = File::open(dir)
        && let Ok(flags) = ioctl_getflags(&file)
        && !flags.contains(IFlags::TOPDIR)
    {
        let _ = ioctl_setflags(&file, flags | IFlags::TOPDIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_not_kept_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let claim = home.claim("abcdefgh").unwrap();
        assert!(home.is_alive("abcdefgh").unwrap());
        drop(claim);
        assert_eq!(home.ids().unwrap(), Vec::<String>::new());
        assert_eq!(names_in(&home.path("trash")).unwrap(), Vec::<String>::new());
    }

    #[test]
    fn names_and_beginnings_of_ids_stand_for_a_box() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let _claim = home.claim("abcdefgh").unwrap();
        home.take_name("work", "abcdefgh").unwrap();
        for name in ["abcdefgh", "abcd", "work"] {
            assert_eq!(home.resolve(name).unwrap(), "abcdefgh");
        }
        for name in ["abc", "", "../boxes/abcdefgh", "other", "."] {
            assert_eq!(home.resolve(name).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
        }
        assert_eq!(home.take_name("work", "other").unwrap_err().kind(), ErrorKind::Exists);
    }

    #[test]
    fn no_two_boxes_share_a_range_of_uids() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let first = home.take_uids("abcdefgh").unwrap();
        let second = home.take_uids("abcdefgh").unwrap();
        assert!(first.abs_diff(second) >= UID_RANGE);
    }
}
