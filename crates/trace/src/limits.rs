//! Every bound of a trace, by name. Reaching one is an error of that kind, and counted by the recorder.

use std::time::Duration;

/// The longest line, newline not counted. Readers refuse a longer one, so this can never be lowered.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;
/// The longest payload that stands in the line itself, if it is UTF-8; anything else becomes a blob.
pub const INLINE_BYTES_MAX: usize = 4 * 1024;
/// The most that is kept of one payload, head and tail together; also the largest blob that a reader loads.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The size at which a trace takes no more events.
pub const TRACE_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Beyond `TRACE_BYTES_MAX` there is this much room for the events that say that something is missing.
pub const TRACE_BYTES_RESERVE: u64 = 64 * 1024;
/// How long an append waits for the other writers of the trace.
pub const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long an append may hold up its thread for that; most hold the lock for less. Whoever has nothing else to do waits on.
pub const LOCK_GLANCE: Duration = Duration::from_micros(500);
/// The longest pause between two looks at the lock.
pub const LOCK_PAUSE_MAX: Duration = Duration::from_millis(1);
/// A shorter secret is not looked for: it would be found everywhere, and give itself away by that.
pub const SECRET_BYTES_MIN: usize = 4;
/// Values that a recorder looks for. With one more it writes down no text and no content any more, and says so.
pub const SECRETS_MAX: usize = 4096;
/// The same for all their bytes; each takes some ten times as much to be looked for.
pub const SECRETS_BYTES_MAX: usize = 1 << 20;
/// A pattern of secrets, as it is written.
pub const SECRET_PATTERN_BYTES_MAX: usize = 4 * 1024;
/// The same made ready for use.
pub const SECRET_PATTERN_COMPILED_BYTES_MAX: usize = 1 << 20;
/// How far behind its first line the end of a private key is looked for.
pub const PRIVATE_KEY_BYTES_MAX: usize = 16 * 1024;
/// How many missing blobs a report names; further ones are only counted.
pub const MISSING_BLOBS_NAMED_MAX: usize = 100;
/// A blob that was written or named again within this time is never pruned: its line may be still to come.
pub const BLOB_AGE_MIN: Duration = Duration::from_secs(60 * 60);
/// How many bytes of a payload a page shows.
pub const PAGE_BYTES_MAX: usize = 64 * 1024;
/// How much of the pictures of one run of code a page shows, as base64.
pub const PAGE_PICTURES_BYTES_MAX: usize = 8 << 20;
/// How many changed paths of a step a page shows.
pub const PAGE_CHANGES_MAX: usize = 200;
/// How many lines of what changed in a file a person is shown.
pub const VIEW_DIFF_LINES_MAX: usize = 100;
/// How many bytes of files a view remembers, to show what changed in them.
pub const VIEW_TEXTS_BYTES_MAX: usize = 64 << 20;
/// How long to look for the shortest comparison of two texts.
pub const COMPARE_TIME_MAX: Duration = Duration::from_millis(500);
/// How many lines of a payload a person is shown.
pub const VIEW_LINES_MAX: usize = 10;
/// How many bytes of a payload a person is shown.
pub const VIEW_BYTES_MAX: usize = 4 * 1024;

/// The bounds that a writer may be given tighter than the constants above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest line; at most `LINE_BYTES_MAX`.
    pub line_bytes_max: usize,
    /// The longest payload in the line itself; at most `INLINE_BYTES_MAX`.
    pub inline_bytes_max: usize,
    /// The most that is kept of one payload; at most `PAYLOAD_BYTES_MAX`.
    pub payload_bytes_max: usize,
    /// The size at which the trace takes no more events.
    pub trace_bytes_max: u64,
    /// How long an append waits for other writers.
    pub lock_wait_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            line_bytes_max: LINE_BYTES_MAX,
            inline_bytes_max: INLINE_BYTES_MAX,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            trace_bytes_max: TRACE_BYTES_MAX,
            lock_wait_max: LOCK_WAIT_MAX,
        }
    }
}

impl Limits {
    /// The same with nothing above what every reader accepts.
    pub(crate) fn clamped(self) -> Self {
        Limits {
            line_bytes_max: self.line_bytes_max.min(LINE_BYTES_MAX),
            inline_bytes_max: self.inline_bytes_max.min(INLINE_BYTES_MAX),
            payload_bytes_max: self.payload_bytes_max.min(PAYLOAD_BYTES_MAX),
            ..self
        }
    }
}
