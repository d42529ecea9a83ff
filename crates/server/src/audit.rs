//! Every call on record: who, what, how it ended.
//!
//! A line of JSON each, in `server/audit.jsonl` of the state directory. A thread of its own writes them, and nobody waits for
//! it: what it cannot keep up with is counted as lost, and told at `/metrics`. When the file has grown, it becomes
//! `audit.jsonl.1`, and what was that before is gone.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde_json::json;

use crate::clock;
use crate::error::{Error, Result};
use crate::limits::{AUDIT_BYTES, AUDIT_WAITING};

/// The record of calls.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    lines: Option<SyncSender<Item>>,
    lost: Arc<AtomicU64>,
}

/// What the writer is told.
#[derive(Debug)]
enum Item {
    Line(String),
    /// All that came before is written when this is answered.
    Flush(SyncSender<()>),
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) request_id: &'a str,
    /// The name of the key that was shown.
    pub(crate) key: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    /// Where it came from.
    pub(crate) peer: Option<&'a str>,
    pub(crate) method: &'a str,
    /// Without what came after `?`: that may hold what is none of the audit's business.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    pub(crate) took_us: u64,
}

impl Audit {
    /// No record.
    pub(crate) fn off() -> Audit {
        Audit { lines: None, lost: Arc::default() }
    }

    pub(crate) fn open(dir: &Path) -> Result<Audit> {
        let path = dir.join("audit.jsonl");
        let file = open(&path).map_err(|source| Error::Files { what: "open", path: path.clone(), source })?;
        let (sender, receiver) = sync_channel(AUDIT_WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let started = thread.spawn(move || write(file, &path, &receiver, &counted));
        started.map_err(Error::Serve)?;
        Ok(Audit { lines: Some(sender), lost })
    }

    /// Puts a call on record.
    pub(crate) fn record(&self, call: Call<'_>) {
        let Some(lines) = &self.lines else { return };
        let line = json!({
            "time": clock::text(clock::now_ms() as i64), "request_id": call.request_id, "key": call.key,
            "tenant": call.tenant, "peer": call.peer, "method": call.method, "path": call.path,
            "status": call.status, "took_us": call.took_us,
        });
        if lines.try_send(Item::Line(format!("{line}\n"))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all that was put on record is written; not for ever.
    pub(crate) fn flush(&self) {
        let Some(lines) = &self.lines else { return };
        let (done, written) = sync_channel(1);
        // A writer that is gone or stuck has told by what it lost.
        if lines.try_send(Item::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    /// How many calls are not on record.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// How long a server that ends waits for its record.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

fn open(path: &PathBuf) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

/// Writes lines until nobody has any more.
fn write(mut file: File, path: &PathBuf, lines: &Receiver<Item>, lost: &AtomicU64) {
    let mut size = file.metadata().map_or(0, |found| found.len());
    while let Ok(item) = lines.recv() {
        let line = match item {
            Item::Line(line) => line,
            Item::Flush(done) => {
                // Whoever waited has given up if this fails.
                let _ = done.send(());
                continue;
            }
        };
        if size + line.len() as u64 > AUDIT_BYTES {
            let turned = fs::rename(path, path.with_extension("jsonl.1")).and_then(|()| open(path));
            // One that cannot be turned over grows on: a long record is better than none.
            if let Ok(fresh) = turned {
                (file, size) = (fresh, 0);
            }
        }
        match file.write_all(line.as_bytes()) {
            Ok(()) => size += line.len() as u64,
            Err(_) => drop(lost.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_lines_and_what_others_say_cannot_make_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(&dir.path().join("audit.jsonl")).unwrap();
        let (sender, receiver) = sync_channel(4);
        let audit = Audit { lines: Some(sender), lost: Arc::default() };
        let call = Call {
            request_id: "a\n{\"status\":200}",
            key: Some("red"),
            tenant: None,
            peer: None,
            method: "GET",
            path: "/x",
            status: 404,
            took_us: 7,
        };
        audit.record(call);
        audit.record(Call { status: 200, ..call });
        drop(audit);
        write(file, &dir.path().join("audit.jsonl"), &receiver, &AtomicU64::new(0));
        let text = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]["status"], &lines[0]["key"]), (2, &json!(404), &json!("red")));
    }

    #[test]
    fn what_cannot_be_kept_up_with_is_counted() {
        let (sender, _receiver) = sync_channel(1);
        let audit = Audit { lines: Some(sender), lost: Arc::default() };
        let call = Call {
            request_id: "",
            key: None,
            tenant: None,
            peer: None,
            method: "GET",
            path: "/",
            status: 200,
            took_us: 0,
        };
        for _ in 0..3 {
            audit.record(call);
        }
        assert_eq!(audit.lost(), 2);
        Audit::off().record(call);
    }
}
