//! A record, page by page, and one thing of it with all that is known.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use glasshouse_sandbox::Program;
use glasshouse_trace::limits::PAYLOAD_BYTES_MAX;
use glasshouse_trace::{
    Blobs, ChangeKind, Event, FileChange, FileFacts, Line, Payload, Position, Reader, Step, unified,
};
use serde_json::{Map, Value, json};

use super::index::{Index, Item, What, Work, command};
use super::{Answer, Refusal, Shared, Viewer, aside, results, text};
use crate::door::Caller;
use crate::limits::{CHANGES, CHANGES_BYTES, ITEMS_PAGE, LOOK_BACK, PREVIEW_BYTES, SHOWN_BYTES};

/// What stands behind a `?`.
pub(super) fn words(query: Option<String>) -> HashMap<String, String> {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes()).into_owned().collect()
}

/// A page of a record: `page`, `size`, `order` (`newest` or `oldest`), only those with `q`, only `failed`; `at`: the page
/// with this line. `since`: nothing, if the record has no more lines than that.
pub(super) async fn page(
    State(viewer): Shared,
    caller: Caller,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    let id = viewer.record(&caller, &id).await?;
    let told = aside(move || {
        let words = words(query);
        with(&viewer, &id, |index, record| {
            let since = words.get("since").and_then(|since| since.parse::<u64>().ok());
            if since == Some(index.lines) {
                return Ok(json!({ "version": index.lines, "unchanged": true }));
            }
            Ok(cut(index, record, &words))
        })
    });
    told.await?.map(Json)
}

/// One thing of a record. `all`: with all of its output that was kept.
pub(super) async fn one(
    State(viewer): Shared,
    caller: Caller,
    Path((id, number)): Path<(String, usize)>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    let id = viewer.record(&caller, &id).await?;
    let told = aside(move || {
        let room = if words(query).contains_key("all") { PAYLOAD_BYTES_MAX } else { SHOWN_BYTES };
        with(&viewer, &id, |index, record| {
            let item =
                index.items.get(number).ok_or_else(|| Refusal::unknown("the record is not so long"))?;
            let mut told = record.card(number, item);
            if let What::Work(work) = &item.what {
                record.details(&mut told, work, room);
                told.insert("files".to_owned(), record.files(index, number, work));
            }
            Ok(Value::Object(told))
        })
    });
    told.await?.map(Json)
}

/// Does something with the index of a record, as it is now.
fn with<T>(viewer: &Arc<Viewer>, id: &str, act: impl FnOnce(&Index, &Record) -> Answer<T>) -> Answer<T> {
    let record = Record { dir: viewer.house.traces_dir().join(id), blobs: viewer.house.blobs_dir() };
    let index = viewer.indexes.lock().unwrap_or_else(PoisonError::into_inner).of(id);
    let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
    index.grow(&record.dir, &record.blobs)?;
    act(&index, &record)
}

fn cut(index: &Index, record: &Record, words: &HashMap<String, String>) -> Value {
    let wanted = words.get("q").map(|word| word.to_lowercase()).filter(|word| !word.is_empty());
    let failed = words.contains_key("failed");
    let fits = |item: &Item| {
        let found = wanted.as_ref().is_none_or(|word| item.title.to_lowercase().contains(word));
        found && (!failed || item.failed())
    };
    let mut numbers: Vec<usize> = (0..index.items.len()).filter(|at| fits(&index.items[*at])).collect();
    if words.get("order").is_none_or(|order| order != "oldest") {
        numbers.reverse();
    }
    let number = |name: &str| words.get(name).and_then(|text| text.parse::<usize>().ok());
    let size = number("size").unwrap_or(50).clamp(1, ITEMS_PAGE);
    let pages = numbers.len().div_ceil(size).max(1);
    let at = number("at").and_then(|seq| {
        let holds = |item: &Item| item.lines.contains(&(seq as u64));
        numbers.iter().position(|at| holds(&index.items[*at]))
    });
    let page = at.map_or_else(|| number("page").unwrap_or(0), |at| at / size).min(pages - 1);
    let shown = numbers.iter().skip(page * size).take(size);
    let items: Vec<Map<String, Value>> = shown.map(|at| record.card(*at, &index.items[*at])).collect();
    let created = record.line(index.created).map(|line| match line.event {
        Event::BoxCreated(created) => serde_json::to_value(created).unwrap_or_default(),
        _ => Value::Null,
    });
    json!({
        "version": index.lines, "total": index.items.len(), "matched": numbers.len(), "page": page, "pages": pages,
        "startMs": index.start_ms, "created": created, "ended": index.ended, "items": items,
        "found": at.map(|at| numbers[at]),
    })
}

/// Where a record lies.
struct Record {
    dir: PathBuf,
    blobs: PathBuf,
}

impl Record {
    fn line(&self, at: Option<Position>) -> Option<Line> {
        Reader::open_at(&self.dir, &self.blobs, at?).ok()?.next()?.ok()
    }

    fn step(&self, work: &Work) -> Option<Box<Step>> {
        match self.line(work.step)?.event {
            Event::Step(step) => Some(step),
            _ => None,
        }
    }

    /// What stands on a page of one thing.
    fn card(&self, number: usize, item: &Item) -> Map<String, Value> {
        let told = match &item.what {
            What::Work(work) => self.work(item, work),
            What::Note { at, bad, .. } => self.note(item, *at, *bad),
        };
        let Value::Object(mut told) = told else { return Map::new() };
        told.insert("n".to_owned(), number.into());
        told.insert("seq".to_owned(), item.seq.into());
        told.insert("timeMs".to_owned(), item.time_ms.into());
        told
    }

    fn work(&self, item: &Item, work: &Work) -> Value {
        let step = self.step(work);
        let mut told = Map::from_iter([
            ("kind".to_owned(), "work".into()),
            ("exec".to_owned(), work.exec.into()),
            ("ok".to_owned(), work.ok.into()),
            ("running".to_owned(), work.running.into()),
            ("changed".to_owned(), work.changed.into()),
            ("title".to_owned(), item.title.clone().into()),
        ]);
        let mut tell = |name: &str, value: Value| drop(told.insert(name.to_owned(), value));
        if let Some(Event::ExecStarted(started)) = self.line(work.started).map(|line| line.event) {
            tell("title", program(&started.program, crate::limits::TITLE_BYTES).into());
            tell("cwd", started.cwd.into());
            tell("user", started.user.into());
            tell("background", started.background.into());
            tell("tty", started.tty.is_some().into());
        }
        let mut output = None;
        if let Some(Event::ExecEnded { report, stdout, stderr, .. }) =
            self.line(work.ended).map(|line| line.event)
        {
            tell("end", report.exit.to_string().into());
            tell("wallUs", report.wall_us.into());
            tell("cpuUs", report.cpu_us.into());
            tell("peakBytes", report.peak_memory_bytes.into());
            tell("oomKills", report.oom_kills.into());
            output = [stdout, stderr].into_iter().find(|payload| payload.bytes_total > 0);
        }
        if let Some(step) = step {
            tell("step", step.step.into());
            tell("tool", step.tool.clone().into());
            tell("error", step.error.clone().into());
            tell("snapshot", step.snapshot.clone().into());
            tell("looked", step.state.is_some().into());
            // A command in the background is a step before it has done anything.
            if work.ended.is_none() && !work.background {
                tell("wallUs", step.wall_us.into());
                let end = step.end.as_ref().map(ToString::to_string);
                tell("end", end.or_else(|| step.exit_code.map(|code| format!("exit code {code}"))).into());
            }
            tell("params", step.params.as_ref().map(|params| self.payload(params, PREVIEW_BYTES)).into());
            output = [step.output, step.stderr]
                .into_iter()
                .flatten()
                .find(|payload| payload.bytes_total > 0)
                .or(output);
        }
        tell("preview", output.map(|output| self.payload(&output, PREVIEW_BYTES)).into());
        Value::Object(told)
    }

    /// All that is known of a command or a call.
    fn details(&self, told: &mut Map<String, Value>, work: &Work, room: usize) {
        let mut tell = |name: &str, value: Value| drop(told.insert(name.to_owned(), value));
        if let Some(Event::ExecStarted(started)) = self.line(work.started).map(|line| line.event) {
            tell("title", program(&started.program, room).into());
            tell("envNames", started.env_names.into());
            tell("timeoutMs", started.timeout_ms.into());
        }
        let (mut output, mut error) = (None, None);
        if let Some(Event::ExecEnded { stdout, stderr, .. }) = self.line(work.ended).map(|line| line.event) {
            (output, error) = (Some(stdout), Some(stderr));
        }
        if let Some(step) = self.step(work) {
            tell("params", step.params.as_ref().map(|params| self.payload(params, room)).into());
            tell("noState", step.no_state.into());
            if let Some(state) = step.state {
                tell("digest", state.digest.into());
                tell("racy", state.racy.into());
                tell("processes", state.processes.into());
            }
            (output, error) = (step.output.or(output), step.stderr.or(error));
        }
        if let Some(Event::Results { payload, .. }) = self.line(work.results).map(|line| line.event) {
            tell("results", results::told(&self.whole(&payload)));
        }
        for (name, payload) in [("stdout", output), ("stderr", error)] {
            let payload = payload.filter(|payload| payload.bytes_total > 0);
            tell(name, payload.map(|payload| self.payload(&payload, room)).into());
        }
    }

    fn note(&self, item: &Item, at: Position, bad: bool) -> Value {
        let event = self.line(Some(at)).map(|line| line.event);
        let (class, words, snapshot) = match event {
            Some(Event::State { what, snapshot, method, step }) => {
                let step = step.map(|step| format!("(step {step})"));
                let words = [Some(what), snapshot.clone(), method, step];
                ("state", words.into_iter().flatten().collect::<Vec<_>>().join(" "), snapshot)
            }
            Some(Event::File(file)) => {
                let size = file.bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
                let error = file.error.map(|error| format!(": {error}")).unwrap_or_default();
                ("file", format!("file {} {}{size}{error}", file.op, file.path), None)
            }
            Some(Event::Stdin { exec, payload }) => {
                ("", format!("command {exec} was fed {} bytes", payload.bytes_total), None)
            }
            Some(Event::Signal { exec, signal }) => {
                ("", format!("command {exec} was sent signal {signal}"), None)
            }
            Some(Event::BoxEnded { why }) => ("state", format!("box ended: {why}"), None),
            Some(Event::Lost { events: 0, why, .. }) => ("", format!("WITHHELD {why}"), None),
            Some(Event::Lost { events, bytes, why }) => {
                ("", format!("LOST {events} events with {bytes} bytes: {why}"), None)
            }
            Some(Event::Repaired { dropped_bytes }) => {
                ("", format!("repaired: {dropped_bytes} bytes of an unfinished record dropped"), None)
            }
            Some(Event::Unknown(event)) => ("", format!("not known to this version: {}", event.kind), None),
            _ => ("", item.title.clone(), None),
        };
        json!({ "kind": "note", "class": class, "bad": bad, "title": words, "snapshot": snapshot })
    }

    /// Head and tail of a payload, with a line's end where something is missing.
    fn whole(&self, payload: &Payload) -> Vec<u8> {
        let blobs = Blobs::new(&self.blobs);
        let read = |content: &Option<_>| content.as_ref().and_then(|content| blobs.read(content).ok());
        let parts: Vec<Vec<u8>> = [&payload.head, &payload.tail].into_iter().filter_map(read).collect();
        parts.join(&b"\n"[..])
    }

    /// What a box wrote, as far as there is room: `head`, what is `missing` in the record, `tail`, and what is `hidden` here.
    fn payload(&self, payload: &Payload, mut room: usize) -> Value {
        let blobs = Blobs::new(&self.blobs);
        let (mut parts, mut hidden) = ([None, None], 0);
        for (part, content) in parts.iter_mut().zip([&payload.head, &payload.tail]) {
            let Some(content) = content else { continue };
            match blobs.read(content) {
                Ok(bytes) => {
                    let shown = text(&bytes, room);
                    hidden += bytes.len().saturating_sub(room);
                    room = room.saturating_sub(bytes.len());
                    *part = Some(shown);
                }
                Err(e) => *part = Some(format!("[cannot {e}]")),
            }
        }
        let [head, tail] = parts;
        json!({
            "bytes": payload.bytes_total, "head": head, "missing": payload.bytes_cut, "tail": tail,
            "hidden": hidden, "redacted": payload.redacted,
        })
    }

    /// What a step changed in files, with the lines that differ where both sides are known.
    fn files(&self, index: &Index, number: usize, work: &Work) -> Value {
        let Some(changes) = self.changes(work) else { return Value::Null };
        let changes: Vec<FileChange> = changes.into_iter().take(CHANGES).collect();
        let mut before = self.before(index, number, &changes);
        let mut room = CHANGES_BYTES;
        let told = changes.into_iter().map(|change| {
            let now = change.now.as_ref().and_then(|now| now.text.as_deref());
            let old = match change.change {
                ChangeKind::Added => Some(String::new()),
                _ => before.remove(&change.path),
            };
            let new = if change.change == ChangeKind::Removed { Some("") } else { now };
            let diff = match (&old, new) {
                (Some(old), Some(new)) if room > 0 && !(old.is_empty() && new.is_empty()) => Some(unified(old, new)),
                _ => None,
            };
            room = room.saturating_sub(diff.as_ref().map_or(0, String::len));
            let whole = now.filter(|_| diff.is_none() && old.is_none()).map(|now| text(now.as_bytes(), SHOWN_BYTES.min(room)));
            json!({
                "change": change.change.letter().to_string(), "path": change.path, "diff": diff, "text": whole,
                "facts": change.now.as_ref().map(facts),
            })
        });
        told.collect()
    }

    fn changes(&self, work: &Work) -> Option<Vec<FileChange>> {
        let payload = self.step(work)?.state?.changes?;
        FileChange::read(&payload, &Blobs::new(&self.blobs)).ok()
    }

    /// What files held before a step, as far as an earlier one says so.
    fn before(&self, index: &Index, number: usize, changes: &[FileChange]) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let unknown = |change: &&FileChange| change.change != ChangeKind::Added;
        let mut wanted: Vec<&str> =
            changes.iter().filter(unknown).map(|change| change.path.as_str()).collect();
        for item in index.items[..number].iter().rev().take(LOOK_BACK) {
            let work = match &item.what {
                // What files hold then is not known.
                What::Note { resets: true, .. } => break,
                What::Note { .. } => continue,
                What::Work(work) => work,
            };
            if wanted.is_empty() {
                break;
            }
            let earlier = if work.changed > 0 { self.changes(work) } else { None };
            for change in earlier.into_iter().flatten() {
                let Some(at) = wanted.iter().position(|path| *path == change.path) else { continue };
                wanted.swap_remove(at);
                found.extend(change.now.and_then(|now| now.text).map(|text| (change.path, text)));
            }
        }
        found
    }
}

fn program(program: &Program, room: usize) -> String {
    text(command(program).as_bytes(), room)
}

fn facts(facts: &FileFacts) -> Value {
    let FileFacts { kind, mode, uid, gid, bytes, .. } = facts;
    json!({ "kind": kind, "mode": mode, "uid": uid, "gid": gid, "bytes": bytes })
}
