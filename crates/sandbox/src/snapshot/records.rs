//! Snapshots on record: one file each, written when the layers are there.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, names_in, variables, write_private};
use crate::sandboxes::new_id;
use crate::snapshot::layers;
use crate::spec::{Image, Recording};
use crate::task::TaskInfo;

/// The layout's version, in every record.
const VERSION: u64 = 1;
/// Longer than any id.
const ID_BYTES_MAX: usize = 64;
/// Changes when the host is started.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How a snapshot was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Nothing ran: what the box had written became a layer, without a copy.
    Rotate,
    /// Nothing had been written since the last one.
    Unchanged,
    /// Its files were cloned by the file system; `CopiedFor` says why.
    Reflink,
    /// Its files were copied; `CopiedFor` says why.
    Copy,
    /// A container engine made an image of it.
    Commit,
}

impl Method {
    const ALL: [Method; 5] =
        [Method::Rotate, Method::Unchanged, Method::Reflink, Method::Copy, Method::Commit];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Method::Rotate => "rotate",
            Method::Unchanged => "unchanged",
            Method::Reflink => "reflink",
            Method::Copy => "copy",
            Method::Commit => "commit",
        }
    }
}

/// Why the files of a box were copied, and did not become a layer as they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopiedFor {
    /// Something ran, and was stopped for it.
    Running,
    /// Something that does not run had a file open for writing.
    OpenFiles,
    /// The box has a limit of disk: what it writes lies in memory, and is always copied.
    Memory,
}

impl CopiedFor {
    const ALL: [CopiedFor; 3] = [CopiedFor::Running, CopiedFor::OpenFiles, CopiedFor::Memory];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            CopiedFor::Running => "running",
            CopiedFor::OpenFiles => "open_files",
            CopiedFor::Memory => "memory",
        }
    }
}

/// A state of a box that can be gone back to. Processes are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: String,
    /// Its other name.
    pub name: Option<String>,
    /// What whoever took it calls it; it is not found by that.
    pub label: Option<String>,
    /// The box that it was taken of.
    pub from: String,
    /// What that was made from.
    pub image: Image,
    /// When, milliseconds since 1970.
    pub created_ms: u64,
    /// Its layers, uppermost first.
    pub chain: Vec<String>,
    /// How it was made.
    pub method: Method,
    /// If its files were copied: why. Older programs did not write it down.
    pub copied_for: Option<CopiedFor>,
    /// How long that took.
    pub took_us: u64,
    /// Processes that ran in the box at that moment.
    pub processes: u64,
    /// It is on the disk, and survives the host.
    pub durable: bool,
    /// The start of the host during which it was made.
    pub boot: String,
    /// User of commands that name none.
    pub user: String,
    /// Working directory of commands that name none.
    pub cwd: String,
    /// Environment that came with the image.
    pub env: Vec<(String, String)>,
    /// It was taken of a deterministic box, and boxes that are forked of it are such, too.
    pub deterministic: bool,
    /// What was put on record of the steps of that box, and is of those of boxes that are forked of it.
    pub recording: Recording,
    /// The task that its box was made for.
    pub task: Option<TaskInfo>,
    /// If it is how boxes of that task begin: what it was made of, so that it is found again.
    pub key: Option<String>,
    /// If it is the state after a step of its box, which goes with that box.
    pub step: Option<u64>,
}

impl SnapshotInfo {
    /// What people know it by: its name, or what whoever took it calls it.
    pub fn known_as(&self) -> Option<&str> {
        self.name.as_deref().or(self.label.as_deref())
    }

    /// What was not on the disk when the host went down may be anything.
    pub(crate) fn check_durable(&self) -> Result<()> {
        if self.durable || self.boot == boot() {
            return Ok(());
        }
        let message = format!(
            "snapshot {} was not on the disk yet when the host was last started, and cannot be trusted; \
             `glass snapshot --durable` waits for the disk, and `glass gc` puts all snapshots there",
            self.id
        );
        Err(Error::new(ErrorKind::Gone, message))
    }
}

/// Which start of the host this is. Nobody outlives it, so it is asked once.
pub(crate) fn boot() -> String {
    static BOOT: OnceLock<String> = OnceLock::new();
    let read = || fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default();
    BOOT.get_or_init(read).clone()
}

fn path(home: &Home, id: &str) -> PathBuf {
    home.path("snapshots").join(format!("{id}.json"))
}

/// Writes a record; a name that another one has is refused. If somebody else has made the same state of a task
/// meanwhile, that one is it. One that says that it is durable is on the disk when this comes back; its layers have to be
/// there before.
pub(crate) fn write(home: &Home, snapshot: SnapshotInfo) -> Result<SnapshotInfo> {
    let temporary = home.path("snapshots").join(format!("{}~", snapshot.id));
    write_private(&temporary, &to_json(&snapshot).to_string())?;
    let put = put(home, snapshot, &temporary);
    if !put.as_ref().is_ok_and(|(_, is_new)| *is_new) {
        let _ = fs::remove_file(&temporary);
    }
    let (snapshot, is_new) = put?;
    if is_new && snapshot.durable {
        sync_path(&home.path("snapshots"))?;
    }
    Ok(snapshot)
}

/// Puts a record that was written in its place, unless another one is it.
fn put(home: &Home, snapshot: SnapshotInfo, written: &Path) -> Result<(SnapshotInfo, bool)> {
    if snapshot.durable {
        // Before it can be seen: after a power cut it is whole, or not there. And before the lock, since disks are slow.
        sync_path(written)?;
    }
    let _lock = home.lock()?;
    if let Some(key) = &snapshot.key
        && let Some(other) = of_key(home, key)?
    {
        return Ok((other, false));
    }
    if let Some(name) = &snapshot.name
        && all(home)?.iter().any(|other| other.name.as_ref() == Some(name) && other.id != snapshot.id)
    {
        return Err(Error::new(ErrorKind::Exists, format!("a snapshot named {name:?} is there already")));
    }
    let target = path(home, &snapshot.id);
    fs::rename(written, &target).context(format_args!("write {}", target.display()))?;
    Ok((snapshot, true))
}

/// Puts the snapshots of this start of the host on the disk that are not there yet, and says so in their records. How many.
///
/// A record that says so is on the disk itself before it takes the place of the one that does not: whenever the host goes
/// down, one of the two is there, and it is true.
pub(crate) fn make_durable(home: &Home) -> Result<usize> {
    let _share = home.store_shared()?;
    let mut young = all(home)?;
    young.retain(|snapshot| !snapshot.durable && snapshot.boot == boot());
    if young.is_empty() {
        return Ok(0);
    }
    let mut written = Vec::new();
    for snapshot in &mut young {
        snapshot.durable = true;
        // Somebody else may be at the same.
        let temporary = home.path("snapshots").join(format!("{}-{}~", snapshot.id, new_id()?));
        write_private(&temporary, &to_json(snapshot).to_string())?;
        written.push(temporary);
    }
    layers::sync(home)?;
    let made = replace(home, &young, &written)?;
    sync_path(&home.path("snapshots"))?;
    Ok(made)
}

/// Puts records in the places of older ones. Those of snapshots that were removed meanwhile go.
fn replace(home: &Home, snapshots: &[SnapshotInfo], written: &[PathBuf]) -> Result<usize> {
    let _lock = home.lock()?;
    let mut replaced = 0;
    for (snapshot, written) in snapshots.iter().zip(written) {
        let target = path(home, &snapshot.id);
        match target.exists() {
            true => {
                fs::rename(written, &target).context(format_args!("write {}", target.display()))?;
                replaced += 1;
            }
            false => {
                fs::remove_file(written).context(format_args!("remove {}", written.display()))?;
            }
        }
    }
    Ok(replaced)
}

/// Waits until a file, or the names in a directory, are on the disk.
fn sync_path(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.context(format_args!("write {} to the disk", path.display()))
}

/// Removes a record. Layers that only it named go with the next sweep.
pub(crate) fn remove(home: &Home, id: &str) -> Result<()> {
    // Whoever makes it durable may not bring it back.
    let _lock = home.lock()?;
    let path = path(home, id);
    fs::remove_file(&path).context(format_args!("remove {}", path.display()))
}

/// Removes what killed writers have left.
pub(crate) fn clean(home: &Home) -> Result<()> {
    for file in names_in(&home.path("snapshots"))?.iter().filter(|file| file.ends_with('~')) {
        let path = home.path("snapshots").join(file);
        fs::remove_file(&path).context(format_args!("remove {}", path.display()))?;
    }
    Ok(())
}

/// All that is on record.
pub(crate) struct Records {
    /// Snapshots, oldest first.
    pub(crate) whole: Vec<SnapshotInfo>,
    /// Ids of those whose records cannot be read: a disk was full, or the host went down. Nobody knows what they name.
    pub(crate) damaged: Vec<String>,
}

/// Looks at every record. One that is damaged does not stand in the way of the others.
pub(crate) fn look(home: &Home) -> Result<Records> {
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for file in names_in(&home.path("snapshots"))? {
        let Some(id) = file.strip_suffix(".json") else { continue };
        match parse(home, id)? {
            Read::Whole(snapshot) => whole.push(*snapshot),
            Read::Damaged => damaged.push(id.to_owned()),
            // Somebody has removed it meanwhile.
            Read::Missing => {}
        }
    }
    whole.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
    Ok(Records { whole, damaged })
}

/// All snapshots that can be read, oldest first.
pub(crate) fn all(home: &Home) -> Result<Vec<SnapshotInfo>> {
    Ok(look(home)?.whole)
}

/// What a record turned out to be.
enum Read {
    Missing,
    Damaged,
    Whole(Box<SnapshotInfo>),
}

fn parse(home: &Home, id: &str) -> Result<Read> {
    let path = path(home, id);
    let text = match fs::read(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Read::Missing),
        read => read.context(format_args!("read {}", path.display()))?,
    };
    let value = serde_json::from_slice(&text).ok();
    let snapshot = value.as_ref().and_then(from_json);
    Ok(snapshot.map_or(Read::Damaged, |snapshot| Read::Whole(Box::new(snapshot))))
}

fn read(home: &Home, id: &str) -> Result<Option<SnapshotInfo>> {
    match parse(home, id)? {
        Read::Missing => Ok(None),
        Read::Whole(snapshot) => Ok(Some(*snapshot)),
        Read::Damaged => {
            let path = path(home, id);
            let message =
                format!("{} is damaged; `glass snapshots remove {id}` removes the snapshot", path.display());
            Err(Error::new(ErrorKind::Failed, message))
        }
    }
}

/// The state of a task, by what it was made of; if it is there and can be trusted.
pub(crate) fn of_key(home: &Home, key: &str) -> Result<Option<SnapshotInfo>> {
    let usable = |snapshot: &SnapshotInfo| {
        snapshot.key.as_deref() == Some(key)
            && snapshot.check_durable().is_ok()
            && layers::sources(home, &snapshot.chain).is_ok()
    };
    Ok(all(home)?.into_iter().find(usable))
}

/// The snapshot that an id, the beginning of one, or a name stands for.
pub(crate) fn find(home: &Home, name: &str) -> Result<SnapshotInfo> {
    if !may_be_name(name) {
        return Err(unknown(name));
    }
    if may_be_id(name)
        && let Some(snapshot) = read(home, name)?
    {
        return Ok(snapshot);
    }
    let Records { whole: mut all, damaged } = look(home)?;
    if let Some(at) = all.iter().position(|snapshot| snapshot.name.as_deref() == Some(name)) {
        return Ok(all.swap_remove(at));
    }
    all.retain(|snapshot| begins(&snapshot.id, name));
    match all.len() {
        1 => Ok(all.swap_remove(0)),
        // The one that is meant, perhaps, and then its error says more.
        0 => match damaged.iter().find(|id| begins(id, name)) {
            Some(id) => read(home, id)?.ok_or_else(|| unknown(name)),
            None => Err(unknown(name)),
        },
        _ => Err(ambiguous(name)),
    }
}

/// The id of the snapshot that a name stands for, for who removes it: the record need not be readable.
pub(crate) fn find_id(home: &Home, name: &str) -> Result<String> {
    if may_be_name(name) && may_be_id(name) {
        if path(home, name).exists() {
            return Ok(name.to_owned());
        }
        let Records { whole, damaged } = look(home)?;
        let is_whole =
            |snapshot: &SnapshotInfo| snapshot.name.as_deref() == Some(name) || begins(&snapshot.id, name);
        let mut damaged = damaged.into_iter().filter(|id| begins(id, name));
        if !whole.iter().any(is_whole)
            && let Some(id) = damaged.next()
        {
            return damaged.next().map_or(Ok(id), |_| Err(ambiguous(name)));
        }
    }
    Ok(find(home, name)?.id)
}

fn may_be_name(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && !name.starts_with('.')
}

/// What cannot be an id is not looked for as a file: it may be no name of one at all.
fn may_be_id(name: &str) -> bool {
    name.len() <= ID_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether this is enough of the id to stand for it.
fn begins(id: &str, beginning: &str) -> bool {
    beginning.len() >= 4 && id.starts_with(beginning)
}

fn unknown(name: &str) -> Error {
    let message = format!("there is no snapshot {name:?}; `glass snapshots` shows those that are");
    Error::new(ErrorKind::NotFound, message)
}

fn ambiguous(name: &str) -> Error {
    let message = format!("{name:?} stands for more than one snapshot; write more of the id");
    Error::new(ErrorKind::Invalid, message)
}

fn to_json(snapshot: &SnapshotInfo) -> Value {
    json!({
        "version": VERSION, "id": snapshot.id, "name": snapshot.name, "label": snapshot.label, "from": snapshot.from,
        "image": snapshot.image.to_string(), "created_ms": snapshot.created_ms, "chain": snapshot.chain,
        "method": snapshot.method.name(), "copied_for": snapshot.copied_for.map(CopiedFor::name), "took_us": snapshot.took_us, "processes": snapshot.processes,
        "durable": snapshot.durable, "boot": snapshot.boot, "user": snapshot.user, "cwd": snapshot.cwd,
        "env": snapshot.env, "deterministic": snapshot.deterministic, "recording": snapshot.recording.name(),
        "task": snapshot.task.as_ref().map(TaskInfo::to_json), "key": snapshot.key,
        "step": snapshot.step,
    })
}

fn from_json(value: &Value) -> Option<SnapshotInfo> {
    let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
    let number = |key: &str| value.get(key)?.as_u64();
    let method = text("method")?;
    let layer = |name: &Value| name.as_str().map(str::to_owned);
    let deterministic = value.get("deterministic").and_then(Value::as_bool).unwrap_or(false);
    Some(SnapshotInfo {
        id: text("id")?,
        name: text("name"),
        label: text("label"),
        from: text("from")?,
        image: text("image")?.parse().ok()?,
        created_ms: number("created_ms")?,
        chain: value.get("chain")?.as_array()?.iter().map(layer).collect::<Option<_>>()?,
        method: Method::ALL.into_iter().find(|m| m.name() == method)?,
        copied_for: text("copied_for")
            .and_then(|why| CopiedFor::ALL.into_iter().find(|one| one.name() == why)),
        took_us: number("took_us")?,
        processes: number("processes")?,
        durable: value.get("durable")?.as_bool()?,
        boot: text("boot")?,
        user: text("user")?,
        cwd: text("cwd")?,
        env: variables(value.get("env")?)?,
        deterministic,
        // Older ones do not say; most boxes were as boxes are unless somebody says otherwise.
        recording: text("recording")
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| Recording::of(deterministic)),
        task: value.get("task").and_then(TaskInfo::from_json),
        key: text("key"),
        step: value.get("step").and_then(Value::as_u64),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A snapshot of a box of this kind.
    pub(crate) fn snapshot(deterministic: bool, recording: Recording) -> SnapshotInfo {
        SnapshotInfo {
            id: "s".into(),
            name: None,
            label: None,
            from: "b".into(),
            image: Image::Host,
            created_ms: 1,
            chain: vec!["top-1".into()],
            method: Method::Rotate,
            copied_for: None,
            took_us: 2,
            processes: 0,
            durable: true,
            boot: String::new(),
            user: "root".into(),
            cwd: "/".into(),
            env: Vec::new(),
            deterministic,
            recording,
            task: None,
            key: None,
            step: None,
        }
    }

    #[test]
    fn a_record_says_how_its_box_was_recorded_and_older_ones_are_read() {
        for deterministic in [false, true] {
            for recording in Recording::ALL {
                let snapshot = snapshot(deterministic, recording);
                let mut written = to_json(&snapshot);
                assert_eq!(from_json(&written), Some(snapshot));
                written.as_object_mut().unwrap().remove("recording");
                let older = from_json(&written).unwrap();
                assert_eq!(older.recording, Recording::of(deterministic));
            }
        }
    }
}
