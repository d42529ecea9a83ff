//! Every bound of the host's side, by name, and the limits that boxes have by default.

use std::time::Duration;

use glasshouse_protocol::limits::{FRAME_COST, STREAM_CREDIT};

/// Building a box takes milliseconds; one that takes this long is stuck.
pub(crate) const BUILD_TIMEOUT: Duration = Duration::from_secs(30);
/// A guest that does not answer a short request in this time is taken for hostile or dead.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a box that is about to be removed may take to tell what ended in it unseen.
pub(crate) const LAST_WORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a guest may take to say goodbye before it is killed.
pub(crate) const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a killed box may take to be gone.
pub(crate) const DEATH_TIMEOUT: Duration = Duration::from_secs(10);
/// Frames of one stream that wait for their reader: as many as credit allows, and some room for replies.
pub(crate) const STREAM_FRAMES: usize = (STREAM_CREDIT / FRAME_COST) as usize + 64;
/// No further frame is put on its way to a guest that leaves this much waiting; whoever sends waits instead.
pub(crate) const UNSENT_BYTES_HIGH: usize = 256 * 1024;
/// Bytes of the variables of a box. They travel in one frame with the plan of the box, quoted.
pub(crate) const ENV_BYTES: usize = 96 * 1024;
/// Pieces of output that wait for the caller.
pub(crate) const EVENTS: usize = 16;
/// One result of code: a picture of a few thousand dots a side, in base64.
pub(crate) const RESULT_LINE_BYTES: usize = 32 << 20;
/// All results of one run that are gathered.
pub(crate) const RESULTS_BYTES: usize = 64 << 20;
/// Requests that wait for a box's driver.
pub(crate) const ACTS: usize = 64;
/// Bytes of each stream of a command that are put on record, head and tail, half each.
pub(crate) const RECORDED_BYTES: usize = 256 * 1024;
/// Paths that are listed of those that a step changed; all are counted.
pub(crate) const STEP_CHANGES: usize = 1000;
/// Paths that are listed beside these because a replay overlooks what the files hold, like git's index.
pub(crate) const STEP_NOISE: usize = 100;
/// Bytes of that list, texts of files not counted.
pub(crate) const STEP_LIST_BYTES: usize = 1 << 20;
/// What is read of a box's files while it is held still, before it is let go on and read meanwhile.
pub(crate) const LOOK_BYTES_MAX: u64 = 32 << 20;
/// The same for the number of files.
pub(crate) const LOOK_ENTRIES_MAX: u64 = 10_000;
/// A file that is kept with the step that wrote it.
pub(crate) const STEP_TEXT_BYTES: u64 = 32 * 1024;
/// All files that are kept with one step.
pub(crate) const STEP_TEXTS_BYTES: u64 = 128 * 1024;
/// A file that is kept with the step that put it into the box from outside.
pub(crate) const STEP_CONTENT_BYTES: usize = 1 << 20;
/// Bytes of each stream that a tool answers with, head and tail: as many as go on record.
pub(crate) const TOOL_OUTPUT_BYTES: u64 = RECORDED_BYTES as u64;
/// Patterns of a box of what is not put on record.
pub(crate) const REDACT_PATTERNS: usize = 100;
/// Tools of a box's own.
pub(crate) const OWN_TOOLS: usize = 64;
/// What one of them may take to describe.
pub(crate) const OWN_TOOL_BYTES: usize = 64 * 1024;
/// The least memory of a box that a program is carried into: it is the box's memory that it takes.
pub(crate) const CARRY_MEMORY_BYTES_MIN: u64 = 16 << 20;
/// How long a guest may take to take it.
pub(crate) const CARRY_TIMEOUT: Duration = Duration::from_secs(30);
/// A file that is read into memory as a whole.
pub(crate) const READ_FILE_BYTES: u64 = 256 * 1024 * 1024;
/// What one copy out of a box may write to the host: a box can claim a file of any size at no cost to itself.
pub(crate) const COPY_OUT_BYTES: u64 = 64 << 30;
/// Boxes that are made or removed, and trees that are copied, at the same time; the rest waits.
pub(crate) const BLOCKING_THREADS: usize = 64;
/// All that git does for one task; the history of Linux takes a fraction of it.
pub(crate) const GIT_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// What a caller may have written to a port, or a port to him, before he or the box has taken it.
pub(crate) const TUNNEL_BYTES: usize = 64 * 1024;
/// How long what was written to a port may still be on its way when nobody holds the connection any more.
pub(crate) const TUNNEL_LINGER: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted by a guest.
pub(crate) const BACKLOG: i32 = 128;

/// Memory of a box, unless said otherwise.
pub(crate) const MEMORY_BYTES: u64 = 2 << 30;
/// Processes of a box, unless said otherwise.
pub(crate) const PIDS: u64 = 1024;
/// Open files of each process.
pub(crate) const OPEN_FILES: u64 = 4096;
/// Signals and timers that wait in each box, of what the host has for all.
pub(crate) const PENDING_SIGNALS: u64 = 1024;
/// Room that the host's disk keeps, whatever boxes write.
pub(crate) const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// /dev/shm of a box.
pub(crate) const SHM_BYTES: u64 = 64 << 20;
/// /tmp of a box with a read-only root.
pub(crate) const TMP_BYTES: u64 = 64 << 20;
/// Terminals of a box.
pub(crate) const PTYS: u32 = 64;
/// The least memory that a box can be given: its guest and a small program.
pub(crate) const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// The least number of processes: the guest and one command.
pub(crate) const PIDS_MIN: u64 = 2;
/// The least memory that a container engine gives a container.
pub(crate) const ENGINE_MEMORY_BYTES_MIN: u64 = 6 << 20;
/// Open files of the first process of one of Podman's containers.
pub(crate) const ENGINE_OPEN_FILES: u64 = 16 * 1024;
/// Processes of each user in all of Podman's containers; those of a box are bounded by its cgroup.
pub(crate) const ENGINE_PROCESSES: u64 = 32 * 1024;
/// How often an engine is asked to remove a container that it fails to kill.
pub(crate) const REMOVE_TRIES: usize = 5;
/// Between two looks at a list of containers that cannot be read for the moment.
pub(crate) const LIST_AGAIN: Duration = Duration::from_millis(50);
/// How long a container's guest may take to come to the door once the engine has started it.
pub(crate) const DOOR_TIMEOUT: Duration = Duration::from_secs(30);
/// How often to ask the engine whether it still runs, meanwhile.
pub(crate) const DOOR_LOOK: Duration = Duration::from_millis(500);
/// Traces that are kept of boxes that are gone.
pub(crate) const TRACES_KEPT: usize = 1000;
/// Bytes of traces that are kept of boxes that are gone.
pub(crate) const TRACES_KEPT_BYTES: u64 = 4 << 30;
/// A house that lives so long after a snapshot puts it on the disk, if nobody else has. Disks are slow, and this is long
/// after whoever works with many states in a row has what he wanted.
pub(crate) const DURABLE_AFTER: Duration = Duration::from_secs(10 * 60);
/// A chain of so many layers is merged before one more is put on it. Most are merged long before, beside all else; this is
/// for those whose programs always ended first, and for forks of forks.
pub(crate) const CHAIN_LONG: usize = 100;
