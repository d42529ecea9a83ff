//! What the server says while it runs: lines of JSON, with the id of the request that they are about.
//!
//! A thread of its own writes them, and nobody waits for it: whoever reads the log may be slow, or gone. What it cannot keep up
//! with is counted, and told at `/metrics`. The audit is another thing: that is who did what, and stays.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::clock;
use crate::error::{Error, Result};
use crate::limits::LOG_WAITING;

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Nothing.
    Nothing,
    /// What went wrong on our side.
    Errors,
    /// Every call as well, and what happens to boxes by itself.
    Calls,
}

/// Where it is told. Before it is opened, nothing is.
#[derive(Debug)]
pub(crate) struct Log {
    level: LogLevel,
    lines: OnceLock<SyncSender<Item>>,
    lost: Arc<AtomicU64>,
}

/// What the writer is told.
#[derive(Debug)]
enum Item {
    Line(String),
    /// All that came before is written when this is answered.
    Flush(SyncSender<()>),
}

impl Log {
    pub(crate) fn new(level: LogLevel) -> Log {
        Log { level, lines: OnceLock::new(), lost: Arc::default() }
    }

    /// Tells what there is to tell from now on.
    pub(crate) fn open(&self, mut sink: impl Write + Send + 'static) -> Result<()> {
        if self.level == LogLevel::Nothing {
            return Ok(());
        }
        let (sender, receiver) = sync_channel(LOG_WAITING);
        let lost = self.lost.clone();
        let writing = move || {
            while let Ok(item) = receiver.recv() {
                match item {
                    Item::Line(line) => {
                        if sink.write_all(line.as_bytes()).and_then(|()| sink.flush()).is_err() {
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    // Whoever waited has given up if this fails.
                    Item::Flush(done) => drop(done.send(())),
                }
            }
        };
        std::thread::Builder::new().name("log".to_owned()).spawn(writing).map_err(Error::Serve)?;
        // It is opened once; a second time nobody would write for.
        let _ = self.lines.set(sender);
        Ok(())
    }

    /// Something went wrong on our side.
    pub(crate) fn error(&self, what: &str, more: impl FnOnce() -> Value) {
        self.tell(LogLevel::Errors, "error", what, more);
    }

    /// Something happened.
    pub(crate) fn info(&self, what: &str, more: impl FnOnce() -> Value) {
        self.tell(LogLevel::Calls, "info", what, more);
    }

    /// How many lines nobody read.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until all that was said is written; not for long.
    pub(crate) fn flush(&self) {
        let Some(lines) = self.lines.get() else { return };
        let (done, written) = sync_channel(1);
        if lines.try_send(Item::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH_TIMEOUT);
        }
    }

    fn tell(&self, at: LogLevel, level: &str, what: &str, more: impl FnOnce() -> Value) {
        let Some(lines) = self.lines.get().filter(|_| self.level >= at) else { return };
        let mut line = json!({ "time": clock::text(clock::now_ms() as i64), "level": level, "what": what });
        if let (Some(line), Value::Object(more)) = (line.as_object_mut(), more()) {
            line.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
        }
        if lines.try_send(Item::Line(format!("{line}\n"))).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How long a server that ends waits for whoever reads its log.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn told(level: LogLevel) -> Vec<String> {
        let (log, sink) = (Log::new(level), Shared::default());
        log.error("too early", || json!({}));
        log.open(sink.clone()).unwrap();
        log.error("broke", || json!({ "request_id": "a\nb", "tenant": null }));
        log.info("called", || json!({}));
        log.flush();
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn as_much_is_told_as_was_asked_for_and_each_in_a_line() {
        assert!(told(LogLevel::Nothing).is_empty());
        assert_eq!((told(LogLevel::Errors).len(), told(LogLevel::Calls).len()), (1, 2));
        let line: Value = serde_json::from_str(&told(LogLevel::Errors)[0]).unwrap();
        assert_eq!(
            (&line["level"], &line["what"], &line["request_id"]),
            (&json!("error"), &json!("broke"), &json!("a\nb"))
        );
        assert!(line["time"].is_string() && line.get("tenant").is_none());
    }
}
