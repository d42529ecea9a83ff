//! Every bound of the wall, by name. Reaching one is reported as that limit.

/// The largest body of one frame; a longer claim ends the connection.
pub const FRAME_BODY_MAX: usize = 256 * 1024;
/// The largest data body that either side sends, small enough to interleave streams fairly.
pub const DATA_CHUNK_MAX: usize = 64 * 1024;
/// Bytes of output (or file content) that may be on the way before the reader has granted more.
pub const STREAM_CREDIT: u64 = 1024 * 1024;
/// What a frame of output or file content costs of the credit beside its bytes, so that credit bounds frames as well.
pub const FRAME_COST: u64 = 64;
/// Bytes of stdin (or upload) that may be on the way before the guest has granted more.
pub const STDIN_CREDIT: u64 = 256 * 1024;
/// Commands that may run at once in one box.
pub const EXECS_RUNNING_MAX: usize = 256;
/// Ended commands whose result and kept output the guest still holds.
pub const EXECS_ENDED_MAX: usize = 256;
/// Connections that a guest serves at once.
pub const CONNECTIONS_MAX: usize = 128;
/// Streams that one connection may have open.
pub const STREAMS_MAX: usize = 512;
/// Bytes of one command's output that the guest keeps by default for later readers: head and tail, half each.
pub const KEPT_OUTPUT_BYTES: u64 = 1024 * 1024;
/// The most that a caller may ask the guest to keep of one command's output.
pub const KEPT_OUTPUT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Bytes that the guest holds of all commands' outputs together; the oldest ended ones go first.
pub const KEPT_TOTAL_BYTES: u64 = 64 * 1024 * 1024;
/// Arguments and environment of one command, summed; the kernel has its own bound (E2BIG).
pub const ARGV_BYTES_MAX: usize = 200 * 1024;
/// Entries of one page of a directory listing.
pub const LIST_PAGE_MAX: usize = 1000;
/// The longest path a file operation takes.
pub const PATH_BYTES_MAX: usize = 4096;
/// After a main process ended: how long its open pipes are still read for what others write.
pub const DRAIN_MS: u64 = 50;
/// Between SIGTERM and SIGKILL when a deadline has passed, unless the caller says otherwise.
pub const GRACE_MS: u64 = 500;
/// Contexts of one box, those that are lost and not yet deleted included.
pub const CONTEXTS_MAX: usize = 64;
/// The longest name of one.
pub const CONTEXT_NAME_MAX: usize = 64;
/// How long an interpreter may take to say that it is there.
pub const CONTEXT_START_MS: u64 = 25_000;
/// The longest line that an interpreter may say to the guest.
pub const CONTEXT_LINE_MAX: usize = 1024;
/// The longest name of a kernel of Jupyter's.
pub const KERNEL_NAME_MAX: usize = 128;
/// Interpreters of one box that are kept warm to be forked; the one that was not used for longest makes room.
pub const ZYGOTES_MAX: usize = 4;
/// Modules that one of them is asked to load.
pub const IMPORTS_MAX: usize = 64;
/// The longest name of one.
pub const IMPORT_NAME_MAX: usize = 128;
/// How long a fork may take to say that it is there.
pub const FORK_MS: u64 = 5_000;
/// The code of one run.
pub const CODE_BYTES_MAX: usize = 128 * 1024;
/// The size of one program that is carried in.
pub const CARRIED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Programs that a guest keeps; a further one is refused.
pub const CARRIED_MAX: usize = 8;
/// The longest name of one.
pub const CARRIED_NAME_MAX: usize = 128;
/// Entries of one tree that is copied in.
pub const TAR_ENTRIES_MAX: u64 = 1_000_000;
/// Connections to ports of one box that are carried at once.
pub const TUNNELS_MAX: usize = 128;
/// How long a port may take to accept one: its queue may be full.
pub const DIAL_MS: u64 = 10_000;
/// Ports at which the guest itself answers.
pub const ANSWERED_PORTS_MAX: usize = 4;
/// Ports that are listed of those that something listens on.
pub const PORTS_MAX: usize = 1024;
