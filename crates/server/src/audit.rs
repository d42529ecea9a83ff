//! Every call on record: who, what, how it ended.
//!
//! A line of JSON each, in `server/audit.jsonl` of the state directory, written before the answer leaves: who is killed has
//! answered nothing that is not on record. To hand the line to a thread would take longer than to write it, which the kernel does
//! to memory. What cannot be written is counted as lost, and told at `/metrics`. When the file has grown, it becomes
//! `audit.jsonl.1`, and what was that before is gone.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use crate::clock;
use crate::error::{Error, Result};
use crate::limits::AUDIT_BYTES;

/// The record of calls.
#[derive(Debug, Clone)]
pub(crate) struct Audit {
    lines: Option<Arc<Mutex<Lines>>>,
    lost: Arc<AtomicU64>,
}

/// The file they are in.
#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
    size: u64,
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
        let opened = open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) =
            opened.map_err(|source| Error::Files { what: "open", path: path.clone(), source })?;
        Ok(Audit { lines: Some(Arc::new(Mutex::new(Lines { path, file, size }))), lost: Arc::default() })
    }

    /// Puts a call on record.
    pub(crate) fn record(&self, call: Call<'_>) {
        let Some(lines) = &self.lines else { return };
        let line = json!({
            "time": clock::text(clock::now_ms() as i64), "request_id": call.request_id, "key": call.key,
            "tenant": call.tenant, "peer": call.peer, "method": call.method, "path": call.path,
            "status": call.status, "took_us": call.took_us,
        });
        let written = lines.lock().unwrap_or_else(PoisonError::into_inner).add(&format!("{line}\n"));
        if written.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many calls are not on record.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Lines {
    fn add(&mut self, line: &str) -> io::Result<()> {
        if self.size + line.len() as u64 > AUDIT_BYTES {
            let turned =
                fs::rename(&self.path, self.path.with_extension("jsonl.1")).and_then(|()| open(&self.path));
            // One that cannot be turned over grows on: a long record is better than none.
            if let Ok(fresh) = turned {
                (self.file, self.size) = (fresh, 0);
            }
        }
        self.file.write_all(line.as_bytes())?;
        self.size += line.len() as u64;
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Call<'_> = Call {
        request_id: "a\n{\"status\":200}",
        key: Some("red"),
        tenant: None,
        peer: None,
        method: "GET",
        path: "/x",
        status: 404,
        took_us: 7,
    };

    #[test]
    fn calls_are_lines_and_what_others_say_cannot_make_a_line_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.record(CALL);
        audit.record(Call { status: 200, ..CALL });
        let text = fs::read_to_string(dir.path().join("audit.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]["status"], &lines[0]["key"]), (2, &json!(404), &json!("red")));
    }

    #[test]
    fn a_file_that_has_grown_is_turned_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        File::create(&path).unwrap().set_len(AUDIT_BYTES).unwrap();
        let audit = Audit::open(dir.path()).unwrap();
        audit.record(CALL);
        let size = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("audit.jsonl.1") == AUDIT_BYTES && (1..1000).contains(&size("audit.jsonl")));
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        File::create(&path).unwrap();
        // For reading only.
        let lines = Lines { file: File::open(&path).unwrap(), path, size: 0 };
        let audit = Audit { lines: Some(Arc::new(Mutex::new(lines))), lost: Arc::default() };
        audit.record(CALL);
        audit.record(CALL);
        assert_eq!(audit.lost(), 2);
        Audit::off().record(CALL);
    }
}
