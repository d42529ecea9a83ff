//! File operations. All paths are paths of the box and are resolved by the guest, inside.

use serde::{Deserialize, Serialize};

/// One operation on the box's files. A relative path starts at the box's working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileOp {
    /// Send the file's bytes from `offset`, at most `length`.
    Read {
        /// Which file.
        path: String,
        /// First byte.
        #[serde(default)]
        offset: u64,
        /// How many; without it, to the end as it was when the read began.
        #[serde(default)]
        length: Option<u64>,
    },
    /// Replace the file by the bytes that follow on the stream: whole, or not at all.
    Write {
        /// Which file.
        path: String,
        /// Permission bits of a new file.
        #[serde(default)]
        mode: Option<u32>,
        /// Make missing parent directories.
        #[serde(default)]
        parents: bool,
    },
    /// Add the bytes that follow on the stream to the end.
    Append {
        /// Which file.
        path: String,
    },
    /// One page of a directory, sorted by name.
    List {
        /// Which directory.
        path: String,
        /// The last name of the page before.
        #[serde(default)]
        after: Option<String>,
        /// Entries at most.
        #[serde(default)]
        limit: Option<usize>,
    },
    /// What the path names; a link is not followed.
    Stat {
        /// Which path.
        path: String,
        /// Follow a link at the end.
        #[serde(default)]
        follow: bool,
    },
    /// Make a directory.
    Mkdir {
        /// Which.
        path: String,
        /// With its parents, and no error if it is there.
        #[serde(default)]
        parents: bool,
        /// Permission bits.
        #[serde(default)]
        mode: Option<u32>,
    },
    /// Rename.
    Move {
        /// From.
        from: String,
        /// To.
        to: String,
        /// Replace what is there.
        #[serde(default)]
        overwrite: bool,
    },
    /// Remove a file, a link or an empty directory; with `recursive`, a tree.
    Remove {
        /// Which.
        path: String,
        /// The whole tree.
        #[serde(default)]
        recursive: bool,
    },
    /// Change permission bits.
    Chmod {
        /// Which.
        path: String,
        /// The bits.
        mode: u32,
    },
    /// Give it to another owner, or another group, or both; a link at the end is followed. Since version 5.
    Chown {
        /// Which.
        path: String,
        /// The number of the user; without it, the owner stays.
        #[serde(default)]
        owner: Option<u32>,
        /// The number of the group; without it, the group stays.
        #[serde(default)]
        group: Option<u32>,
    },
    /// Send a tree as a tar stream.
    TarOut {
        /// A directory or a file.
        path: String,
    },
    /// Unpack the tar stream that follows under a directory, which is made if it is missing.
    TarIn {
        /// The directory.
        path: String,
    },
}

/// The answer to a file operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileResult {
    /// It is done; so many bytes were read or written.
    Done {
        /// Bytes moved over the stream.
        bytes: u64,
    },
    /// What a path names.
    Stat(FileStat),
    /// One page of a directory.
    Page(ListPage),
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileStat {
    /// The last part of the path; bytes that are not UTF-8 appear as U+FFFD and `name_lossy` is set.
    pub name: String,
    /// The name is not exact.
    #[serde(default)]
    pub name_lossy: bool,
    /// What it is.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner inside the box.
    pub uid: u32,
    /// Group inside the box.
    pub gid: u32,
    /// Last change of what it holds, milliseconds since 1970.
    pub modified_ms: i64,
    /// Last change of anything about it, its mode and its name too. A guest of an older release does not say.
    #[serde(default)]
    pub changed_ms: Option<i64>,
    /// Where a link points.
    #[serde(default)]
    pub target: Option<String>,
}

/// The kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket or a device.
    Other,
}

/// One page of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListPage {
    /// Sorted by name.
    pub entries: Vec<FileStat>,
    /// Ask again with this as `after`.
    pub next: Option<String>,
}
