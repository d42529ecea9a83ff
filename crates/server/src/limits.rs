//! Every bound of the service, by name.

use std::time::Duration;

/// Keys of one state directory.
pub(crate) const KEYS: usize = 10_000;
/// How often what stays open looks whether whoever opened it still may.
pub(crate) const ADMISSION_LOOK: Duration = Duration::from_secs(1);
/// The file of one key.
pub(crate) const KEY_FILE_BYTES: u64 = 4096;
/// The name of a key or a tenant.
pub(crate) const NAME_BYTES: usize = 63;
/// Sessions of browsers that are open at once.
pub(crate) const SESSIONS: usize = 1000;
/// How long a session lives, used or not.
pub(crate) const SESSION_LIFE: Duration = Duration::from_secs(12 * 60 * 60);
/// How long a session lives that is not used.
pub(crate) const SESSION_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// What a browser sends to begin a session.
pub(crate) const LOGIN_BYTES: usize = 4096;
/// Times at which the viewer knows what a box used.
pub(crate) const USAGE_SAMPLES: usize = 120;
/// The viewer looks at what boxes use no more often than this.
pub(crate) const USAGE_PAUSE: Duration = Duration::from_millis(900);
/// Records whose shape the viewer remembers.
pub(crate) const INDEXES: usize = 16;
/// Things of one record that the viewer shows.
pub(crate) const ITEMS: usize = 200_000;
/// Things on one page of the viewer.
pub(crate) const ITEMS_PAGE: usize = 200;
/// How much of a command the viewer shows on its line.
pub(crate) const TITLE_BYTES: usize = 400;
/// How much of an output the viewer shows without being asked.
pub(crate) const PREVIEW_BYTES: usize = 1200;
/// How much of an output the viewer shows of a thing that is looked at; all of it if that is asked for.
pub(crate) const SHOWN_BYTES: usize = 64 * 1024;
/// Results of a run of code that are shown.
pub(crate) const RESULTS: usize = 100;
/// Pictures among them, all together, as base64.
pub(crate) const PICTURES_BYTES: usize = 8 << 20;
/// Changed paths of one step that the viewer tells.
pub(crate) const CHANGES: usize = 500;
/// Bytes of all differences in files of one step that the viewer tells.
pub(crate) const CHANGES_BYTES: usize = 4 << 20;
/// Steps that are looked back at for what a file held before.
pub(crate) const LOOK_BACK: usize = 2000;
/// Bytes of records that one search reads.
pub(crate) const SEARCH_BYTES: u64 = 256 << 20;
/// Places that one search tells.
pub(crate) const SEARCH_HITS: usize = 100;
/// What is searched for.
pub(crate) const SEARCH_WORD_BYTES: usize = 200;
/// Tenants whose calls are counted at once; when there are more, all begin anew.
pub(crate) const CALLERS_KEPT: usize = 10_000;
/// The file of the audit, before it is turned over.
pub(crate) const AUDIT_BYTES: u64 = 64 << 20;
/// Lines of the log that wait to be written.
pub(crate) const LOG_WAITING: usize = 1024;
/// A path in the audit.
pub(crate) const AUDIT_PATH_BYTES: usize = 512;
/// The longest request id of a caller's that is said again.
pub(crate) const REQUEST_ID_BYTES: usize = 128;
/// Boxes on one page of a list.
pub(crate) const PAGE_MAX: usize = 200;
/// Boxes on one page, unless said otherwise.
pub(crate) const PAGE: usize = 20;
/// The shortest life that a caller may ask for a box, in seconds.
pub(crate) const TIMEOUT_MIN_S: u64 = 60;
/// Rules of one box that say whom it may talk to.
pub(crate) const EGRESS_RULES: usize = 1000;
/// The name of a volume that has only one.
pub(crate) const CLAIM_BYTES: usize = 253;
/// Requests let a box live longer no more often than this.
pub(crate) const RENEW_PAUSE: Duration = Duration::from_secs(60);
/// Pieces of a command's output that wait for their reader; a command whose reader is slower waits for it.
pub(crate) const OUTPUT_PIECES: usize = 16;
/// The longest line of output that is told as one.
pub(crate) const LINE_BYTES: usize = 16 << 20;
/// What waits for a reader as one piece: a long line goes in several, so that not many of them wait at once.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Commands of a box that have ended and can still be asked for.
pub(crate) const COMMANDS_KEPT: usize = 1024;
/// What is kept of the output of a command in the background, head and tail.
pub(crate) const BACKGROUND_BYTES: u64 = 16 << 20;
/// Time between the polite and the last signal when a command is interrupted.
pub(crate) const INTERRUPT_GRACE: Duration = Duration::from_secs(3);
/// A stream says that it is still there.
pub(crate) const PING: Duration = Duration::from_secs(3);
/// A file of a box is read in pieces of this size.
pub(crate) const READ_PIECE: u64 = 1 << 20;
/// What is read of a file that is asked for by lines, or in which a text is replaced.
pub(crate) const TEXT_BYTES: u64 = 64 << 20;
/// Bytes of one upload that are held in memory; the rest waits on the disk.
pub(crate) const UPLOAD_MEMORY_BYTES: usize = 8 << 20;
/// Files of one upload.
pub(crate) const UPLOAD_FILES: usize = 10_000;
/// What one upload says of one file.
pub(crate) const UPLOAD_METADATA_BYTES: usize = 64 * 1024;
/// What one walk through a tree of a box may tell of, and what it may pass on the way.
pub(crate) const TREE_ENTRIES: usize = 100_000;
pub(crate) const TREE_VISITED: usize = 2_000_000;
/// A pattern for names of files.
pub(crate) const PATTERN_BYTES: usize = 4096;
/// What its braces may stand for.
pub(crate) const PATTERN_ALTERNATIVES: usize = 1000;
/// What a caller calls a snapshot.
pub(crate) const SNAPSHOT_NAME_BYTES: usize = 1024;
/// Paths in one request.
pub(crate) const PATHS: usize = 10_000;
/// The file of variables that commands of a box get beside those of the box.
pub(crate) const ENV_FILE_BYTES: u64 = 1 << 20;
/// Lists of accounts of a box.
pub(crate) const ACCOUNTS_BYTES: u64 = 1 << 20;
/// What is read of one file of a box's /proc.
pub(crate) const PROC_FILE_BYTES: u64 = 1 << 20;
/// How long a small question that the service has to ask a program in a box may take.
pub(crate) const ASK_TIMEOUT_MS: u64 = 10_000;
/// How long the entrypoint of a box may take to open a port of its own that says that it runs code.
pub(crate) const READY_WAIT: Duration = Duration::from_secs(20);
/// How long a command of a session may run, unless said otherwise.
pub(crate) const SESSION_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;
/// How long a piece of code may run, unless said otherwise, and at most.
pub(crate) const EXECUTE_TIMEOUT_MS: u64 = 60_000;
pub(crate) const EXECUTE_TIMEOUT_MAX_MS: u64 = 3_600_000;
/// Boxes that are forked at once.
pub(crate) const FORKS: usize = 100;
/// A record is sent in pieces of this size.
pub(crate) const TRACE_PIECE_BYTES: usize = 64 * 1024;
/// What a box of a tenant gets whose maker cannot say it, where it is counted.
pub(crate) const BOX_MEMORY_BYTES: u64 = 2 << 30;
pub(crate) const BOX_DISK_BYTES: u64 = 4 << 30;
pub(crate) const BOX_CPUS: f64 = 1.0;
/// Boxes of one session of MCP.
pub(crate) const MCP_BOXES: usize = 64;
/// How long a box of MCP over HTTP lives: nobody tells when its caller is done.
pub(crate) const MCP_BOX_TTL: Duration = Duration::from_secs(3600);
/// How long code whose call was cancelled may take to heed its interrupt.
pub(crate) const MCP_INTERRUPT_GRACE: Duration = Duration::from_secs(5);
/// A file that is told in one answer of MCP: more would fill an agent's memory.
pub(crate) const MCP_FILE_BYTES: u64 = 1 << 20;
/// One message of a WebSocket, either way.
pub(crate) const SOCKET_MESSAGE_BYTES: usize = 1 << 20;
/// Messages that wait to be sent over a WebSocket; what makes more waits.
pub(crate) const SOCKET_MESSAGES: usize = 16;
/// A client that does not take a message of its WebSocket for so long is cut off.
pub(crate) const SLOW_SOCKET: Duration = Duration::from_secs(30);
/// A client that opens a stream has so long to say what it is about.
pub(crate) const FIRST_MESSAGE: Duration = Duration::from_secs(30);
/// Terminals of one box, running or ended.
pub(crate) const TERMINALS: usize = 64;
/// What is kept of a terminal's output for those who come back.
pub(crate) const TERMINAL_KEPT_BYTES: usize = 1 << 20;
/// A terminal whose client is so far behind waits for it.
pub(crate) const TERMINAL_AHEAD_BYTES: u64 = 256 << 10;
/// How often somebody who wants to hear of events has the boxes and their records looked at.
pub(crate) const LOOK: Duration = Duration::from_millis(200);
/// Looking may take this part of the time; with very many boxes it is done less often.
pub(crate) const LOOK_SHARE: u32 = 10;
/// Events of the list of boxes that are kept for those who come back, or are slow.
pub(crate) const EVENTS_KEPT: usize = 1024;
/// How long the boxes are looked at after the last listener has gone.
pub(crate) const EVENTS_LINGER: Duration = Duration::from_secs(30);
/// A stream of events that has nothing to say says that it is there.
pub(crate) const EVENTS_PING: Duration = Duration::from_secs(15);
/// Calls of one batch.
pub(crate) const BATCH_CALLS: usize = 64;
/// Boxes that a batch works in at once.
pub(crate) const BATCH_AT_ONCE: usize = 8;
/// A text about a box, for people.
pub(crate) const DIAGNOSTIC_BYTES: usize = 1 << 20;
