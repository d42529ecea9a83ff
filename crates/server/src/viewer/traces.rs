//! All records, of boxes that live and of those that are gone, and what is found in them.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::{RawQuery, State};
use glasshouse_trace::limits::LINE_BYTES_MAX;
use glasshouse_trace::{Event, Reader};
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

/// Where a word stands in records: `q`. Upper and lower case are the same; what was too long for a line of a record is not
/// looked at.
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
        let mut search = Search { word, left: SEARCH_BYTES, hits: Vec::new() };
        let mut looked = 0;
        for trace in &found {
            if search.word.is_empty() || search.is_over() {
                break;
            }
            looked += 1;
            let begun = search.hits.len();
            search.record(&viewer.house.traces_dir().join(&trace.id));
            if search.hits.len() > begun {
                let about = view(&viewer, trace, alive.contains(&trace.id));
                search.hits[begun..].iter_mut().for_each(|hit| hit["trace"] = about.clone());
            }
        }
        let complete = looked == found.len() && !search.is_over();
        json!({ "hits": search.hits, "looked": looked, "total": found.len(), "complete": complete })
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
    /// Bytes that may still be read.
    left: u64,
    hits: Vec<Value>,
}

impl Search {
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
        while !self.is_over() && self.hits.len() < most {
            bytes.clear();
            match (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut bytes) {
                Ok(0) | Err(_) => return,
                Ok(read) => self.left = self.left.saturating_sub(read as u64),
            }
            let line = String::from_utf8_lossy(&bytes);
            let Some(start) = line.find("\"event\":") else { continue };
            if line[start..].to_lowercase().contains(needle) {
                self.hits.extend(self.hit(&line));
            }
        }
    }

    fn hit(&self, line: &str) -> Option<Value> {
        let line: Value = serde_json::from_str(line).ok()?;
        let event = line.get("event")?;
        // What was found may be a name of ours, and no text of the record.
        let (before, found, after) = self.around(event)?;
        Some(json!({
            "seq": line["seq"], "timeMs": line["time_ms"], "what": event["type"],
            "before": before, "found": found, "after": after,
        }))
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

/// Places of one record that are told.
const HITS_OF_ONE: usize = 10;
/// What is told around a place.
const AROUND: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, expected: &[(u64, &str)]) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/v2/traces/demo");
        let mut search = Search { word: word.to_owned(), left: SEARCH_BYTES, hits: Vec::new() };
        search.record(&dir);
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
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trace/tests/fixtures/v2/traces/demo");
        let mut search = Search { word: "e".to_owned(), left: SEARCH_BYTES, hits: Vec::new() };
        search.record(&dir);
        assert_eq!(search.hits.len(), HITS_OF_ONE);
        let mut search = Search { word: "a".to_owned(), left: 1, hits: Vec::new() };
        search.record(&dir);
        assert!(search.is_over() && search.hits.len() <= 1);
    }
}
