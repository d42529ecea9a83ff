//! Steps: what a box was like after each command, and after each call of a tool.
//!
//! ```text
//!  command or tool ends ─▶ hold the box still ─▶ index of its top ─▶ digest
//!                                                      │ another one than after the step before?
//!                                                      ▼
//!                                 what differs from the state before, small texts along
//!                                        │ that list                │ all else
//!                                        ▼                          ▼
//!                       spelled, looked through, stored       let the box go, note the state for the next step
//!                                        └───────────┬──────────────┘
//!                                                    ▼ on record
//! ```
//! The list is handed to whoever keeps the record before the box is let go: the two sides take the same time, and need
//! nothing from each other. It counts for nothing if the box cannot be let go.
//!
//! The state before is kept as the index of the top and the names of the layers below it, in the box's directory, so
//! that a step costs what it changed, whichever process it came from. It is moved along when the box is put back. There
//! are two files for that index, in turn: the one of the step before is whole until the note names the other.
//! Numbers of steps are given under a lock of their own: several programs may work in one box.
//!
//! Recording never fails a command: what cannot be looked at is said on the record, with the reason.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use glasshouse_trace::{
    Base, BaseTask, ChangeKind, FileChange, FileFacts, Payload, Step, StepState,
    trajectory::{is_noise, path_text},
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::SnapshotOptions;
use super::changes::kind_name;
use super::look::{State, shelf_state, top_state};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::limits::{
    CHAIN_LONG, STEP_CHANGES, STEP_LIST_BYTES, STEP_NOISE, STEP_TEXT_BYTES, STEP_TEXTS_BYTES,
};
use crate::runtime::Still;
use crate::sandboxes::Sandboxes;
use crate::snapshot::diff::{self, Change, Node};
use crate::snapshot::index::{Index, Kept, Kind, Room};
use crate::snapshot::pack::Stack;
use crate::snapshot::records::{self, Method};
use crate::snapshot::shelf::{self, Shelf};
use crate::snapshot::{Reach, compact_with};
use crate::spec::{Recording, RuntimeKind, SandboxInfo};
use crate::threads::{self, blocking};

/// A command of a caller's, or a call of a tool, that is done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) tool: Option<String>,
    pub(crate) params: Option<Value>,
    pub(crate) exec: Option<u64>,
    pub(crate) output: Option<Payload>,
    pub(crate) stderr: Option<Payload>,
    pub(crate) exit_code: Option<i32>,
    pub(crate) error: Option<String>,
    pub(crate) wall_us: u64,
    /// When a tool was called.
    pub(crate) begun_ms: Option<u64>,
}

/// Whoever puts the steps of one box on record.
pub(crate) struct Steps {
    house: Sandboxes,
    id: String,
    recording: Recording,
    runtime: RuntimeKind,
}

/// What is to be put on record of a step.
pub(crate) struct Taken {
    /// Before the first step.
    pub(crate) base: Option<Base>,
    /// Without what it has changed.
    pub(crate) step: Step,
}

impl Steps {
    pub(crate) fn new(house: Sandboxes, info: &SandboxInfo) -> Steps {
        Steps { house, id: info.id.clone(), recording: info.recording, runtime: info.runtime }
    }

    /// Whether plain commands are steps.
    pub(crate) fn of_commands(&self) -> bool {
        self.recording != Recording::Commands
    }

    /// Looks at the box after a step. One for which not even a number could be had has the number 0, and says why. What it
    /// has changed is told as soon as it is known, if anything has.
    pub(crate) async fn take(&self, done: Done, changes: oneshot::Sender<Changes>) -> Taken {
        let (house, id, recording, runtime) =
            (self.house.clone(), self.id.clone(), self.recording, self.runtime);
        let looked = blocking(move || {
            threads::answer_first();
            house.after_step(&id, recording, runtime, changes)
        });
        let looked = looked.await;
        let looked = looked.unwrap_or_else(|e| {
            let no_state = Some(e.to_string());
            Looked { number: 0, base: None, state: None, no_state, snapshot: None, grown: false }
        });
        let Looked { number, base, state, no_state, snapshot, grown } = looked;
        if snapshot.is_some() {
            self.house.tidy_later(self.runtime, grown.then(|| self.id.clone()));
        }
        let Done { tool, params, exec, output, stderr, exit_code, error, wall_us, begun_ms } = done;
        let step = Step {
            step: number,
            tool,
            params: params.map(|params| Payload::whole(params.to_string())),
            exec,
            output,
            // Though it is empty: nothing is something to compare with, and what is missing counts as not recorded.
            stderr,
            exit_code,
            end: None,
            error,
            wall_us,
            begun_ms,
            state,
            no_state,
            snapshot,
        };
        Taken { base, step }
    }
}

/// What was found after a step.
struct Looked {
    number: u64,
    base: Option<Base>,
    state: Option<StepState>,
    no_state: Option<String>,
    snapshot: Option<String>,
    /// The box stands on one more layer since.
    grown: bool,
}

/// The state after the step before, as the box's directory keeps it.
#[derive(Debug, Default, PartialEq)]
struct Note {
    step: u64,
    /// Empty: nothing is known of it.
    digest: String,
    /// The layers below the top.
    chain: Vec<String>,
    /// The index of the top; without, it was empty.
    top: Option<TopFile>,
}

/// Where the index of a top is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TopFile {
    First,
    Second,
}

impl TopFile {
    fn name(self) -> &'static str {
        match self {
            TopFile::First => "step-index",
            TopFile::Second => "step-index-2",
        }
    }

    fn other(self) -> TopFile {
        match self {
            TopFile::First => TopFile::Second,
            TopFile::Second => TopFile::First,
        }
    }

    fn path(self, home: &Home, id: &str) -> PathBuf {
        home.box_dir(id).join(self.name())
    }

    fn read(self, home: &Home, id: &str) -> Result<Index> {
        let path = self.path(home, id);
        Index::open(File::open(&path).context(format_args!("open {}", path.display()))?)
    }

    /// Older notes only say whether there is one.
    fn of(value: &Value) -> Option<Option<TopFile>> {
        match value {
            Value::Bool(there) => Some(there.then_some(TopFile::First)),
            Value::Null => Some(None),
            value => {
                let name = value.as_str()?;
                [TopFile::First, TopFile::Second].into_iter().find(|file| file.name() == name).map(Some)
            }
        }
    }
}

impl Note {
    fn path(home: &Home, id: &str) -> PathBuf {
        home.box_dir(id).join("step.json")
    }

    fn read(home: &Home, id: &str) -> Note {
        let read = || {
            let value: Value = serde_json::from_slice(&fs::read(Note::path(home, id)).ok()?).ok()?;
            let chain = value.get("chain")?.as_array()?.iter();
            Some(Note {
                step: value.get("step")?.as_u64()?,
                digest: value.get("digest")?.as_str()?.to_owned(),
                chain: chain.map(|name| Some(name.as_str()?.to_owned())).collect::<Option<_>>()?,
                top: TopFile::of(value.get("top")?)?,
            })
        };
        read().unwrap_or_default()
    }

    /// Over what is there, with one call, and filled up to the same length: whoever is killed has written all of it or
    /// nothing. Only who has the turn reads it.
    fn write(&self, home: &Home, id: &str) -> Result<()> {
        let Note { step, digest, chain, top } = self;
        let top = top.map(TopFile::name);
        let mut text = json!({ "step": step, "digest": digest, "chain": chain, "top": top }).to_string();
        let path = Note::path(home, id);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path);
        let written = file.and_then(|file| {
            let length = usize::try_from(file.metadata()?.len()).unwrap_or(0);
            text.extend(std::iter::repeat_n(' ', length.saturating_sub(text.len())));
            file.write_all_at(text.as_bytes(), 0)
        });
        written.context(format_args!("write {}", path.display()))
    }
}

/// Held while a step gets its number and is looked at.
fn turn(home: &Home, id: &str) -> Result<File> {
    let path = home.box_dir(id).join("steps");
    let file = File::options().create(true).append(true).open(&path);
    let file = file.context(format_args!("open {}", path.display()))?;
    file.lock().context(format_args!("lock {}", path.display()))?;
    Ok(file)
}

/// The box was put back onto this chain: the next step is compared with that.
pub(super) fn moved(home: &Home, info: &SandboxInfo, chain: &[String]) -> Result<()> {
    if info.recording == Recording::Commands {
        return Ok(());
    }
    let id = &info.id;
    let _turn = turn(home, id)?;
    let before = Note::read(home, id);
    Note { step: before.step, digest: String::new(), chain: chain.to_vec(), top: None }.write(home, id)
}

/// Layers of a box's chain were merged: the next step is compared with the same, as it is called now. The others go
/// when nobody else stands on them.
pub(crate) fn merged(home: &Home, id: &str, parts: &[String], merged: &str) -> Result<()> {
    if !Note::path(home, id).exists() {
        return Ok(());
    }
    let _turn = turn(home, id)?;
    let mut note = Note::read(home, id);
    if !splice(&mut note.chain, parts, merged) {
        return Ok(());
    }
    note.write(home, id)
}

/// Puts one layer in the place of several neighbours of a chain. Whether they are there.
pub(crate) fn splice(chain: &mut Vec<String>, parts: &[String], merged: &str) -> bool {
    let Some(at) = chain.windows(parts.len()).position(|run| run == parts) else { return false };
    chain.splice(at..at + parts.len(), [merged.to_owned()]);
    true
}

impl Sandboxes {
    fn after_step(
        &self,
        id: &str,
        recording: Recording,
        runtime: RuntimeKind,
        changes: oneshot::Sender<Changes>,
    ) -> Result<Looked> {
        let home = self.home();
        let _turn = turn(home, id)?;
        let before = Note::read(home, id);
        let number = before.step + 1;
        let mut looked =
            Looked { number, base: None, state: None, no_state: None, snapshot: None, grown: false };
        let mut note = Note { step: number, ..before };
        if recording != Recording::Commands {
            match self.look_after(id, &note, runtime, changes) {
                Ok((base, state, after)) => {
                    (looked.base, looked.state) = (base, Some(state));
                    note = Note { step: number, ..after };
                }
                Err(e) => looked.no_state = Some(e.to_string()),
            }
        }
        if recording == Recording::Snapshots && looked.state.is_some() {
            if note.chain.len() >= CHAIN_LONG {
                let _share = home.store_shared()?;
                // What cannot be merged is as good as it was. The note is written anew below.
                let _ = compact_with(home, id, |parts, merged| {
                    splice(&mut note.chain, parts, merged);
                    Ok(())
                });
            }
            match self.take(id, SnapshotOptions { step: Some(number), ..SnapshotOptions::default() }, None) {
                Ok(taken) => {
                    // Of a box elsewhere, what it showed is at hand, and what was taken of it is not.
                    if !note.chain.is_empty() {
                        note = Note { chain: taken.chain, top: None, ..note };
                    }
                    looked.grown = taken.method == Method::Rotate;
                    looked.snapshot = Some(taken.id);
                }
                Err(e) => looked.no_state = Some(format!("no snapshot: {e}")),
            }
        }
        note.write(home, id)?;
        Ok(looked)
    }

    /// The state after a step, what it changed, and what to compare the next one with.
    fn look_after(
        &self,
        id: &str,
        before: &Note,
        runtime: RuntimeKind,
        changes: oneshot::Sender<Changes>,
    ) -> Result<(Option<Base>, StepState, Note)> {
        let start = Instant::now();
        let home = self.home();
        let _share = home.store_shared()?;
        let mut shelf = Shelf::new(home);
        let mut from_chain = before.chain.clone();
        // One with a top and nothing below it is known all the same: of a box elsewhere, the top is all of it.
        let is_known = !before.chain.is_empty() || before.top.is_some();
        let mut base = None;
        if !is_known || before.step == 1 {
            let info = self.on_record(id)?.info;
            if !is_known {
                from_chain.clone_from(&info.origin);
            }
            if before.step == 1 {
                self.know(&from_chain)?;
                base = Some(base_of(&info, shelf_state(&mut shelf, id.to_owned(), &from_chain)?)?);
            }
        }
        self.know(&from_chain)?;
        let mut found = None;
        let mut changes = Some(changes);
        self.runtime(runtime).hold_still(id, &mut |still| {
            let chain = still.below();
            let top_before = before.top.and_then(|top| top.read(home, id).ok()).map(Rc::new);
            // What was known last saves reading what has not changed since.
            let known = top_before.clone().or_else(|| shelf.top_before(id).map(Rc::new));
            let (top, kept) = shelf.top_since(still.upper, known.as_deref(), TEXTS)?;
            let top = Rc::new(top);
            let now = top_state(&mut shelf, id.to_owned(), (top.clone(), still.upper.clone()), &chain)?;
            let digest = now.digest()?.to_string();
            let mut list = Changes { kept, ..Changes::default() };
            let known = base.as_ref().map_or(before.digest.as_str(), |base| base.digest.as_str());
            if digest != known {
                // Its top is there, or it had none.
                let from = match (before.top, top_before) {
                    (Some(_), None) => None,
                    (_, top) => shelf.chain(&from_chain).ok().map(|below| top.into_iter().chain(below)),
                };
                match from {
                    Some(from) => list.fill(&from.collect::<Vec<_>>(), &now, shelf.reach())?,
                    None => list.unknown = true,
                }
            }
            let processes = (processes_of(&still), still.at_work);
            found = Some((top, chain, digest, list.counted(), now.racy(), processes));
            if let Some(changes) = changes.take().filter(|_| list.is_known()) {
                // Who keeps the record does not want them if he is gone.
                let _ = changes.send(list);
            }
            Ok(())
        })?;
        let failed = || Error::new(ErrorKind::Failed, format!("nobody looked at box {id}"));
        let (top, chain, digest, changed, racy, (processes, at_work)) = found.ok_or_else(failed)?;
        let same = digest == before.digest && chain == before.chain;
        let top_file = match before.top {
            Some(file) if same => file,
            file => {
                let free = file.map_or(TopFile::First, TopFile::other);
                shelf::overwrite(&top, &free.path(home, id))?;
                free
            }
        };
        let state = StepState {
            digest: digest.clone(),
            racy,
            processes,
            at_work,
            changed: changed.0,
            changes: None,
            unlisted: changed.1,
            took_us: start.elapsed().as_micros() as u64,
        };
        Ok((base, state, Note { step: before.step, digest, chain, top: Some(top_file) }))
    }

    fn forget_snapshot(&self, id: &str) -> Result<()> {
        match records::remove(self.home(), id) {
            // Somebody else was faster.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Removes the snapshots of steps whose boxes are gone: whoever removed one was killed before he came to them.
    pub(crate) fn forget_lost_steps(&self) -> Result<()> {
        for snapshot in records::all(self.home())? {
            if snapshot.step.is_some() && !self.home().box_dir(&snapshot.from).exists() {
                self.forget_snapshot(&snapshot.id)?;
            }
        }
        Ok(())
    }

    /// Removes the snapshots that were taken of a box's steps. A box that is gone has no steps to go back to.
    pub(crate) fn forget_steps(&self, id: &str) -> Result<()> {
        for snapshot in records::all(self.home())? {
            if snapshot.from == id && snapshot.step.is_some() {
                self.forget_snapshot(&snapshot.id)?;
            }
        }
        Ok(())
    }
}

/// What runs in a box, sorted; those that were not told are one line.
fn processes_of(still: &Still<'_>) -> Vec<String> {
    let mut names = still.names.to_vec();
    names.sort();
    let untold = still.processes.saturating_sub(names.len() as u64);
    names.extend((untold > 0).then(|| format!("and {untold} more")));
    names
}

/// What the first step stands on.
fn base_of(info: &SandboxInfo, state: State) -> Result<Base> {
    let task = info.task.as_ref().map(|task| BaseTask {
        repo: task.repo.clone(),
        commit: task.commit.clone(),
        setup: task.setup.clone(),
        test: task.test.clone(),
        dir: task.dir.clone(),
        image: Some(info.root_image.to_string()),
    });
    Ok(Base {
        digest: state.digest()?.to_string(),
        deterministic: info.deterministic,
        uncontrolled: info.uncontrolled.clone(),
        task,
    })
}

/// How much of what is read of files is kept for the list.
const TEXTS: Room = Room { file_bytes: STEP_TEXT_BYTES, bytes: STEP_TEXTS_BYTES };

/// What a step changed, as far as there is room.
#[derive(Default)]
pub(crate) struct Changes {
    changed: u64,
    changes: Vec<FileChange>,
    list_bytes: usize,
    texts_bytes: u64,
    /// The state before is not known.
    unknown: bool,
    /// What was read on the way.
    kept: Kept,
    /// Those on the list that are noise; they take no room from the others, so that a list ends at the same place
    /// whether they are on it or not.
    noise: usize,
    /// All that are not listed.
    unlisted: Option<Box<blake3::Hasher>>,
}

impl Changes {
    fn fill(&mut self, from: &[Rc<Index>], to: &State, reach: &Reach) -> Result<()> {
        let from: Vec<&Index> = from.iter().map(Rc::as_ref).collect();
        let chain = to.chain();
        let stack = Stack { indexes: &chain, trees: &to.trees, reach };
        diff::diff(&from, &chain, |change| {
            self.changed += 1;
            let path = if change.path == b"." { b"/".to_vec() } else { [b"/", change.path].concat() };
            let path = path_text(&path);
            if self.noise < STEP_NOISE && is_noise(&path) {
                self.noise += 1;
                let change = self.describe(path, change, &stack);
                self.changes.push(change);
            } else if self.changes.len() - self.noise < STEP_CHANGES && self.list_bytes < STEP_LIST_BYTES {
                let change = self.describe(path, change, &stack);
                self.list_bytes += change.path.len() + 256;
                self.changes.push(change);
            } else {
                self.count_in(&path, change);
            }
            Ok(())
        })
    }

    /// How many there are, and the number that stands for those that are not listed.
    fn counted(&self) -> (u64, Option<String>) {
        (self.changed, self.unlisted.as_ref().map(|all| all.finalize().to_string()))
    }

    /// Takes a change into the number that stands for all that are not listed: what would be listed of it.
    fn count_in(&mut self, path: &str, change: &Change<'_>) {
        let now = change.to.map(|Node { entry, .. }| {
            let content =
                (!matches!(entry.kind, Kind::Directory | Kind::Fifo | Kind::Socket)).then_some(entry.content);
            (kind_name(entry.kind), entry.mode, entry.uid, entry.gid, entry.size, content, entry.xattrs)
        });
        let said = json!([path, change.from.is_some(), now]).to_string();
        // A line each: JSON has none within.
        self.unlisted.get_or_insert_default().update(said.as_bytes()).update(b"\n");
    }

    fn describe(&mut self, path: String, change: &Change<'_>, stack: &Stack<'_>) -> FileChange {
        let now = change.to.map(|node| {
            let entry = &node.entry;
            let held = !matches!(entry.kind, Kind::Directory | Kind::Fifo | Kind::Socket);
            let small = entry.kind == Kind::File
                && entry.size <= STEP_TEXT_BYTES
                && self.texts_bytes + entry.size <= STEP_TEXTS_BYTES;
            let differs = change.from.is_none() || change.what.content || change.what.kind;
            let mut text = None;
            if small && differs {
                // A copy: other files may hold the same.
                let bytes = self.kept.get(&entry.content).cloned().or_else(|| read_whole(stack, node));
                text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
                self.texts_bytes += entry.size;
            }
            FileFacts {
                kind: kind_name(entry.kind).to_owned(),
                mode: format!("{:o}", entry.mode),
                uid: entry.uid,
                gid: entry.gid,
                bytes: entry.size,
                content: held.then(|| hex(&entry.content)),
                xattrs: entry.xattrs.as_ref().map(hex),
                text,
            }
        });
        let kind = match (change.from, change.to) {
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
            _ => ChangeKind::Changed,
        };
        FileChange { path, change: kind, now }
    }

    fn is_known(&self) -> bool {
        !self.changes.is_empty() && !self.unknown
    }

    /// As the record has them.
    pub(crate) fn payload(&self) -> Option<Payload> {
        // All that there is, and a little for what has to be spelled in another way.
        let room = self.list_bytes + self.texts_bytes as usize * 9 / 8;
        let mut bytes = Vec::with_capacity(room);
        serde_json::to_writer(&mut bytes, &self.changes).ok()?;
        Some(Payload::whole(bytes))
    }
}

/// What a file holds. What cannot be read now is known by its hash.
fn read_whole(stack: &Stack<'_>, node: &Node) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(usize::try_from(node.entry.size).ok()? + 1);
    stack.open(node).ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn hex(hash: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    hash.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_spelled_in_hex() {
        let mut hash = [0; 32];
        (hash[0], hash[31]) = (0x0f, 0xa0);
        assert_eq!(hex(&hash), format!("0f{}a0", "00".repeat(30)));
    }
}
