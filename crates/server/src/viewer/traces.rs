//! All records, of boxes that live and of those that are gone, and what is found in them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{RawQuery, State};
use glasshouse_trace::limits::LINE_BYTES_MAX;
use glasshouse_trace::{Blobs, Content, Event, Reader};
use serde_json::{Value, json};

use super::item::words;
use super::{Answer, Shared, Viewer, aside};
use crate::door::Caller;
use crate::limits::{ITEMS_PAGE, SEARCH_BYTES, SEARCH_HITS, SEARCH_WORD_BYTES};
use crate::tenants::{self, Kind};

/// A record.
#[derive(Debug)]
struct Found {
    id: String,
    changed_ms: u64,
    bytes: u64,
}

/// A page of records, the one that was written to last first.
pub(super) async fn list(
    State(viewer): Shared,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    let (alive, his) = boxes(&viewer, &caller).await?;
    let told = aside(move || {
        let words = words(query);
        let number = |name: &str| words.get(name).and_then(|text| text.parse::<usize>().ok());
        let (page, size) = (number("page").unwrap_or(0), number("size").unwrap_or(50).clamp(1, ITEMS_PAGE));
        let found = all(&viewer, &caller, &his);
        let shown = found.iter().skip(page.saturating_mul(size)).take(size);
        let traces: Vec<Value> = shown.map(|trace| view(&viewer, trace, alive.contains(&trace.id))).collect();
        json!({ "total": found.len(), "page": page, "pages": found.len().div_ceil(size).max(1), "traces": traces })
    });
    told.await.map(Json)
}

/// Where a word stands in records: `q`. Upper and lower case are the same. What was not looked through is told: whether that were
/// all records (`complete`), of how many only the first places are told (`cut`), and how many outputs are not there (`unread`).
pub(super) async fn search(
    State(viewer): Shared,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    let (alive, his) = boxes(&viewer, &caller).await?;
    let told = aside(move || {
        let mut word = words(query).remove("q").unwrap_or_default().to_lowercase();
        word.truncate(word.floor_char_boundary(SEARCH_WORD_BYTES));
        let found = all(&viewer, &caller, &his);
        let mut search = Search::new(word, Blobs::new(viewer.house.blobs_dir()));
        let mut looked = 0;
        for trace in &found {
            if search.word.is_empty() || search.is_over() {
                break;
            }
            let begun = search.hits.len();
            search.record(&viewer.house.traces_dir().join(&trace.id));
            if search.hits.len() > begun {
                let about = view(&viewer, trace, alive.contains(&trace.id));
                search.hits[begun..].iter_mut().for_each(|hit| hit["trace"] = about.clone());
            }
            // The one in which it ended was not looked through to its end.
            looked += usize::from(!search.is_over());
        }
        json!({
            "hits": search.hits, "looked": looked, "total": found.len(), "complete": looked == found.len(),
            "cut": search.cut, "most": HITS_OF_ONE, "unread": search.unread,
        })
    });
    told.await.map(Json)
}

/// The boxes that live, and those of them that are the caller's.
async fn boxes(viewer: &Viewer, caller: &Caller) -> Answer<(HashSet<String>, HashSet<String>)> {
    let there = viewer.house.list().await?;
    let alive = there.iter().filter(|info| info.state.is_alive()).map(|info| info.id.clone());
    let own = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(tenants::LABEL) == caller.tenant.as_ref()
    };
    let his = there.iter().filter(|info| own(&info.labels)).map(|info| info.id.clone());
    Ok((alive.collect(), his.collect()))
}

fn all(viewer: &Viewer, caller: &Caller, his: &HashSet<String>) -> Vec<Found> {
    let mut found = Vec::new();
    for entry in fs::read_dir(viewer.house.traces_dir()).into_iter().flatten().flatten() {
        let Ok(id) = entry.file_name().into_string() else { continue };
        let seen = || his.contains(&id) || viewer.tenants.marked(Kind::Box, &id) == caller.tenant;
        if caller.tenant.is_some() && !seen() {
            continue;
        }
        let Ok(file) = fs::metadata(entry.path().join(FILE)) else { continue };
        let changed = file.modified().unwrap_or(SystemTime::UNIX_EPOCH).duration_since(UNIX_EPOCH);
        let changed_ms = changed.map_or(0, |since| since.as_millis() as u64);
        found.push(Found { id, changed_ms, bytes: file.len() });
    }
    found.sort_by(|one, other| (other.changed_ms, &other.id).cmp(&(one.changed_ms, &one.id)));
    found
}

/// What the lines of a record are in.
const FILE: &str = "trace.jsonl";

fn view(viewer: &Viewer, trace: &Found, alive: bool) -> Value {
    let dir = viewer.house.traces_dir().join(&trace.id);
    let first = Reader::open(&dir, &viewer.house.blobs_dir()).ok().and_then(|mut lines| lines.next()?.ok());
    let mut told =
        json!({ "id": trace.id, "changedMs": trace.changed_ms, "bytes": trace.bytes, "alive": alive });
    if let Some(line) = first {
        told["startMs"] = line.time_ms.into();
        if let Event::BoxCreated(created) = line.event {
            let labels = created.labels.into_iter().filter(|(name, _)| !name.starts_with("opensandbox.io/"));
            told["labels"] = labels.map(|(name, value)| (name, Value::from(value))).collect();
            (told["name"], told["image"]) = (created.name.into(), created.image.into());
        }
    }
    told
}

/// What is looked for, and what was found.
struct Search {
    word: String,
    /// What is not in the lines themselves, because it is long or no text.
    blobs: Blobs,
    /// Bytes that may still be read.
    left: u64,
    hits: Vec<Value>,
    /// Records that have more places than are told.
    cut: usize,
    /// Outputs that could not be read.
    unread: usize,
}

impl Search {
    fn new(word: String, blobs: Blobs) -> Search {
        Search { word, blobs, left: SEARCH_BYTES, hits: Vec::new(), cut: 0, unread: 0 }
    }

    fn is_over(&self) -> bool {
        self.left == 0 || self.hits.len() >= SEARCH_HITS
    }

    fn record(&mut self, dir: &Path) {
        let Ok(file) = File::open(dir.join(FILE)) else { return };
        let mut input = BufReader::with_capacity(1 << 20, file);
        // In a record, a word stands as JSON has it.
        let quoted = Value::from(self.word.as_str()).to_string();
        let (needle, most) = (&quoted[1..quoted.len() - 1], self.hits.len() + HITS_OF_ONE);
        let mut bytes = Vec::new();
        while !self.is_over() {
            bytes.clear();
            match (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(read) => self.left = self.left.saturating_sub(read as u64),
            }
            let line = String::from_utf8_lossy(&bytes);
            let Some(start) = line.find("\"event\":") else { continue };
            if !line[start..].contains(BLOB) && !line[start..].to_lowercase().contains(needle) {
                continue;
            }
            let hit = self.hit(&line);
            if hit.is_some() && self.hits.len() >= most {
                self.cut += 1;
                return;
            }
            self.hits.extend(hit);
        }
    }

    fn hit(&mut self, line: &str) -> Option<Value> {
        let line: Value = serde_json::from_str(line).ok()?;
        let event = line.get("event")?;
        // What was found may be a name of ours, and no text of the record.
        let near = self.around(event);
        let (before, found, after) = near.or_else(|| self.far(event))?;
        Some(json!({
            "seq": line["seq"], "timeMs": line["time_ms"], "what": event["type"],
            "before": before, "found": found, "after": after,
        }))
    }

    /// The same in what an event only names. What is no UTF-8 is looked through as it would be shown.
    fn far(&mut self, value: &Value) -> Option<(String, String, String)> {
        match value {
            Value::Array(values) => values.iter().find_map(|value| self.far(value)),
            Value::Object(fields) => {
                let blob = fields.get("blob").and_then(|name| serde_json::from_value(name.clone()).ok());
                match blob {
                    Some(blob) => self.within(&Content::Blob(blob)),
                    None => fields.values().find_map(|value| self.far(value)),
                }
            }
            _ => None,
        }
    }

    fn within(&mut self, content: &Content) -> Option<(String, String, String)> {
        // One that there is no room for ends the search, which is told.
        self.left = self.left.saturating_sub(content.bytes_len());
        if self.left == 0 {
            return None;
        }
        match self.blobs.read(content) {
            Ok(bytes) => self.around(&Value::from(String::from_utf8_lossy(&bytes))),
            Err(_) => {
                self.unread += 1;
                None
            }
        }
    }

    /// The first text of a record that has the word, cut around it.
    fn around(&self, value: &Value) -> Option<(String, String, String)> {
        match value {
            Value::String(text) => {
                let at = text.to_lowercase().find(&self.word)?;
                // Other letters may be longer or shorter in the other case; then the place is only near.
                let at = text.floor_char_boundary(at);
                let end = text.ceil_char_boundary((at + self.word.len()).min(text.len()));
                let from = text.floor_char_boundary(at.saturating_sub(AROUND));
                let to = text.ceil_char_boundary((end + AROUND).min(text.len()));
                Some((text[from..at].to_owned(), text[at..end].to_owned(), text[end..to].to_owned()))
            }
            Value::Array(values) => values.iter().find_map(|value| self.around(value)),
            Value::Object(fields) => {
                let told =
                    fields.iter().filter(|(name, _)| !matches!(name.as_str(), "type" | "hash" | "digest"));
                told.into_iter().find_map(|(_, value)| self.around(value))
            }
            _ => None,
        }
    }
}

/// How a line names what is not in it.
const BLOB: &str = "\"blob\":";
/// Places of one record that are told.
const HITS_OF_ONE: usize = 10;
/// What is told around a place.
const AROUND: usize = 80;

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use glasshouse_trace::{Payload, Recorder, Settings};

    use super::*;

    /// What is found in a record, with what it is beside.
    fn searched(word: &str) -> Search {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/v2");
        let mut search = Search::new(word.to_owned(), Blobs::new(root.join("blobs")));
        search.record(&root.join("traces/demo"));
        search
    }

    fn check(word: &str, expected: &[(u64, &str)]) {
        let search = searched(word);
        let found: Vec<(u64, &str)> = search
            .hits
            .iter()
            .map(|hit| (hit["seq"].as_u64().unwrap(), hit["found"].as_str().unwrap()))
            .collect();
        assert_eq!(found, expected, "{word}");
    }

    #[test]
    fn words_are_found_in_commands_and_outputs_whatever_their_case() {
        check("written", &[(2, "written"), (3, "written")]);
        check("ascii_LETTERS".to_lowercase().as_str(), &[(9, "ascii_letters")]);
        check("\"import string", &[(9, "\"import string")]);
        check("exec_started", &[]);
        check("no such word", &[]);
        check("demo", &[(1, "demo")]);
    }

    #[test]
    fn a_search_ends() {
        let found = searched("e");
        assert_eq!((found.hits.len(), found.cut), (HITS_OF_ONE, 1), "that there are more is told");
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/v2/traces/demo");
        let mut few = Search { left: 1, ..Search::new("a".to_owned(), Blobs::new(&dir)) };
        few.record(&dir);
        assert!(few.is_over() && few.hits.len() <= 1);
    }

    /// A record with one output, which is written as boxes write it.
    fn recorded(output: Vec<u8>) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings {
            dir: dir.path().join("traces/one"),
            blobs: dir.path().join("blobs"),
            ..Settings::default()
        };
        let mut recorder = Recorder::new(settings);
        recorder.record(Event::Stdin { exec: 1, payload: Payload::whole(output) });
        assert_eq!(recorder.lost(), 0);
        let trace = dir.path().join("traces/one");
        (dir, trace)
    }

    #[test]
    fn long_outputs_and_those_that_are_no_text_are_looked_through() {
        let long = [vec![b'x'; 100_000], b" The Needle ".to_vec(), vec![b'y'; 1000]].concat();
        for output in [long, b"\xff and the needle".to_vec()] {
            let (dir, trace) = recorded(output);
            let mut search = Search::new("the needle".to_owned(), Blobs::new(dir.path().join("blobs")));
            search.record(&trace);
            let found: Vec<&str> = search.hits.iter().map(|hit| hit["found"].as_str().unwrap()).collect();
            assert!(found.len() == 1 && found[0].eq_ignore_ascii_case("the needle"), "{found:?}");
            assert!(search.left < SEARCH_BYTES && search.unread == 0);

            let missing = Blobs::new(dir.path().join("nowhere"));
            let mut none = Search::new("the needle".to_owned(), missing);
            none.record(&trace);
            assert_eq!((none.hits.len(), none.unread), (0, 1), "what is not there is told");
        }
    }

    #[test]
    fn an_output_that_there_is_no_room_for_ends_the_search() {
        let (dir, trace) = recorded(vec![b'x'; 100_000]);
        let blobs = Blobs::new(dir.path().join("blobs"));
        let mut search = Search { left: 50_000, ..Search::new("x".to_owned(), blobs) };
        search.record(&trace);
        assert!(search.is_over() && search.hits.is_empty());
    }
}
