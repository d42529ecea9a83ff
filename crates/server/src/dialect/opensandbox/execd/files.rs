//! Files: what they are, gone, moved, opened to others, searched for, changed in part.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use glasshouse_sandbox::{ErrorKind, FileKind, FileStat, Sandbox};
use memchr::memmem;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::accounts::Accounts;
use super::environment::expand;
use super::{Empty, Files, bad, fault, missing, modes, tree};
use crate::clock;
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, Query};
use crate::limits::{PATHS, TEXT_BYTES};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(info))
        .routes(routes!(remove))
        .routes(routes!(rename))
        .routes(routes!(permissions))
        .routes(routes!(search))
        .routes(routes!(replace))
}

/// What a path names.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FileInfo {
    path: String,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
    modified_at: String,
    created_at: String,
    owner: String,
    group: String,
    /// The decimal digits are octal: 644 is 0o644.
    mode: u32,
}

/// Who may do what.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
pub(super) struct Permission {
    /// The decimal digits are octal: 644 is 0o644. 0 leaves it as it is.
    pub(super) mode: Option<i64>,
    /// A user's name.
    pub(super) owner: Option<String>,
    /// A group's name.
    pub(super) group: Option<String>,
}

/// One file to be moved.
#[derive(Debug, Deserialize, ToSchema)]
struct RenameFileItem {
    src: String,
    dest: String,
}

/// One text to be replaced.
#[derive(Debug, Deserialize, ToSchema)]
struct ReplaceFileContentItem {
    old: String,
    new: String,
}

/// How often it was.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReplaceFileContentResult {
    replaced_count: usize,
}

/// Look at files
#[utoipa::path(get, path = "/files/info", tag = "files",
    params(("path" = Option<Vec<String>>, Query, description = "Which; may come more than once")), responses(
    (status = 200, description = "By the paths that were asked for", body = BTreeMap<String, FileInfo>),
    (status = 404, description = "One of them is not there", body = ErrorResponse),
))]
async fn info(Files(sandbox): Files, query: Query) -> Answer<Json<BTreeMap<String, FileInfo>>> {
    let sandbox = &sandbox;
    let paths = paths(&query)?;
    let accounts = if paths.is_empty() { Accounts::default() } else { Accounts::of(sandbox).await };
    let mut found = BTreeMap::new();
    for asked in paths {
        let path = absolute(sandbox, &asked).await?;
        let stat = sandbox.stat(&path, false).await.map_err(fault)?;
        found.insert(asked, view(path, &stat, &accounts));
    }
    Ok(Json(found))
}

/// A file in the protocol's words.
pub(super) fn view(path: String, stat: &FileStat, accounts: &Accounts) -> FileInfo {
    let kind = match stat.kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Link => "symlink",
        FileKind::Other => "other",
    };
    FileInfo {
        path,
        kind,
        size: stat.size,
        modified_at: clock::text(stat.modified_ms),
        // When a file was made is not kept everywhere; execd tells this, too.
        created_at: clock::text(stat.changed_ms.unwrap_or(stat.modified_ms)),
        owner: accounts.user(stat.uid),
        group: accounts.group(stat.gid),
        mode: modes::write(stat.mode),
    }
}

/// Remove files
///
/// What is not there is as good as removed.
#[utoipa::path(delete, path = "/files", tag = "files",
    params(("path" = Vec<String>, Query, description = "Which; may come more than once")), responses(
    (status = 200, description = "They are gone"),
    (status = 500, description = "One of them is a directory, or stays for another reason", body = ErrorResponse),
))]
async fn remove(Files(sandbox): Files, query: Query) -> Answer<Empty> {
    for path in paths(&query)? {
        let path = absolute(&sandbox, &path).await?;
        let is_dir = match sandbox.stat(&path, false).await {
            Ok(stat) => stat.kind == FileKind::Directory,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(fault(e)),
        };
        if is_dir {
            return Err(failed(format!("{path} is a directory; remove it as one")));
        }
        gone(sandbox.remove_file(&path, false).await)?;
    }
    Ok(Empty)
}

/// Something that is gone already is gone.
pub(super) fn gone(removed: glasshouse_sandbox::Result<()>) -> Answer<()> {
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(fault(e)),
        _ => Ok(()),
    }
}

/// Move files
#[utoipa::path(post, path = "/files/mv", tag = "files", request_body = Vec<RenameFileItem>, responses(
    (status = 200, description = "They are moved"),
    (status = 404, description = "One of them is not there", body = ErrorResponse),
    (status = 500, description = "There is something where one was to go", body = ErrorResponse),
))]
async fn rename(Files(sandbox): Files, Body(items): Body<Vec<RenameFileItem>>) -> Answer<Empty> {
    bounded(items.len())?;
    let sandbox = &sandbox;
    for item in items {
        let (from, to) = (absolute(sandbox, &item.src).await?, absolute(sandbox, &item.dest).await?);
        sandbox.stat(&from, false).await.map_err(fault)?;
        make_parents(sandbox, &to).await?;
        sandbox.move_file(&from, &to, false).await.map_err(|e| match e.kind() {
            ErrorKind::Exists | ErrorKind::Invalid => failed(e.to_string()),
            _ => fault(e),
        })?;
    }
    Ok(Empty)
}

/// Say who may do what with files
#[utoipa::path(post, path = "/files/permissions", tag = "files", request_body = BTreeMap<String, Permission>, responses(
    (status = 200, description = "It is so"),
    (status = 400, description = "That is no mode", body = ErrorResponse),
    (status = 500, description = "It cannot be so", body = ErrorResponse),
))]
async fn permissions(
    Files(sandbox): Files,
    Body(wanted): Body<BTreeMap<String, Permission>>,
) -> Answer<Empty> {
    bounded(wanted.len())?;
    for (path, permission) in wanted {
        let path = absolute(&sandbox, &path).await?;
        permit(&sandbox, &path, &permission).await?;
    }
    Ok(Empty)
}

/// Gives a file its owner, its group and its mode.
pub(super) async fn permit(sandbox: &Sandbox, path: &str, permission: &Permission) -> Answer<()> {
    let bits = modes::read(permission.mode)?;
    let name = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    let (owner, group) = (name(&permission.owner), name(&permission.group));
    if owner.is_some() || group.is_some() {
        give(sandbox, path, owner, group).await?;
    }
    // After that: a file that is given away loses some of its bits.
    match bits {
        Some(bits) => sandbox.chmod(path, bits).await.map_err(fault),
        None => Ok(()),
    }
}

/// Gives a file to others, by their names or numbers.
async fn give(sandbox: &Sandbox, path: &str, owner: Option<String>, group: Option<String>) -> Answer<()> {
    let accounts = Accounts::of(sandbox).await;
    let unknown = |what: &str, name: &str| failed(format!("there is no {what} {name:?} in the sandbox"));
    let owner = owner.map(|name| accounts.uid(&name).ok_or_else(|| unknown("user", &name))).transpose()?;
    let group = group.map(|name| accounts.gid(&name).ok_or_else(|| unknown("group", &name))).transpose()?;
    let stat = sandbox.stat(path, true).await.map_err(fault)?;
    // What is so already need not be done: where there is only one user, nothing else is possible.
    let (owner, group) = (owner.filter(|uid| *uid != stat.uid), group.filter(|gid| *gid != stat.gid));
    if owner.is_none() && group.is_none() {
        return Ok(());
    }
    sandbox.chown(path, owner, group).await.map_err(|e| match e.kind() {
        ErrorKind::Gone | ErrorKind::NotFound => fault(e),
        _ => failed(format!("{e}; root gives files to users and groups that the sandbox has")),
    })
}

/// Search for files by their names
#[utoipa::path(get, path = "/files/search", tag = "files", params(
    ("path" = String, Query, description = "Where"),
    ("pattern" = Option<String>, Query, description = "`*`, `**`, `?`, `[a-z]`, `{a,b}`, for their names; all files without a word"),
), responses(
    (status = 200, description = "Files and links, and no directories", body = Vec<FileInfo>),
    (status = 400, description = "That is no pattern", body = ErrorResponse),
    (status = 404, description = "There is no such directory", body = ErrorResponse),
))]
async fn search(Files(sandbox): Files, query: Query) -> Answer<Json<Vec<FileInfo>>> {
    let sandbox = &sandbox;
    let root = query.get("path").filter(|path| !path.is_empty()).ok_or_else(|| missing("path"))?;
    let root = absolute(sandbox, root).await?;
    let pattern = query.get("pattern").filter(|pattern| !pattern.is_empty()).unwrap_or("**");
    let pattern = tree::Pattern::of(pattern)?;
    let stat = sandbox.stat(&root, true).await.map_err(fault)?;
    // A link to a file is one of those that are listed, and none is followed.
    let wanted = |stat: &FileStat| stat.kind != FileKind::Directory && pattern.fits(&stat.name);
    let found = match stat.kind {
        FileKind::Directory => tree::walk(sandbox, &root, u64::MAX, wanted).await?,
        _ => Some(tree::Entry { path: root, stat }).into_iter().filter(|entry| wanted(&entry.stat)).collect(),
    };
    let accounts = Accounts::of(sandbox).await;
    Ok(Json(found.into_iter().map(|entry| view(entry.path, &entry.stat, &accounts)).collect()))
}

/// Replace texts in files
#[utoipa::path(post, path = "/files/replace", tag = "files",
    params(("verbose" = Option<bool>, Query, description = "Say how often")),
    request_body = BTreeMap<String, ReplaceFileContentItem>, responses(
    (status = 200, description = "Done. With `verbose=true`: `{\"/path\": {\"replacedCount\": 2}}`"),
    (status = 400, description = "There is nothing to look for", body = ErrorResponse),
    (status = 404, description = "One of the files is not there", body = ErrorResponse),
))]
async fn replace(
    Files(sandbox): Files,
    query: Query,
    Body(wanted): Body<BTreeMap<String, ReplaceFileContentItem>>,
) -> Answer<Response> {
    bounded(wanted.len())?;
    if let Some((path, _)) = wanted.iter().find(|(_, item)| item.old.is_empty()) {
        return Err(bad("INVALID_REQUEST_BODY", format!("{path}: an empty text cannot be replaced")));
    }
    let sandbox = &sandbox;
    let mut counts = BTreeMap::new();
    for (asked, item) in wanted {
        let path = absolute(sandbox, &asked).await?;
        let stat = sandbox.stat(&path, true).await.map_err(fault)?;
        if stat.size > TEXT_BYTES {
            return Err(failed(format!("{path} is larger than {TEXT_BYTES} bytes")));
        }
        let bytes = sandbox.read_file(&path, 0, None).await.map_err(fault)?;
        let larger =
            || failed(format!("{path} would be larger than {TEXT_BYTES} bytes with all that replaced"));
        let (bytes, replaced_count) =
            replaced(&bytes, item.old.as_bytes(), item.new.as_bytes()).ok_or_else(larger)?;
        if replaced_count > 0 {
            sandbox.write_file(&path, &bytes, Some(stat.mode & 0o7777)).await.map_err(fault)?;
        }
        counts.insert(asked, ReplaceFileContentResult { replaced_count });
    }
    Ok(match query.get("verbose") {
        Some("true" | "1") => Json(counts).into_response(),
        _ => Empty.into_response(),
    })
}

/// Bytes with all places of some of them replaced, and how many those were. Files need not be text. `None`: that would be too many.
fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut made, mut from, mut count) = (Vec::with_capacity(bytes.len()), 0, 0);
    for at in memmem::find_iter(bytes, old) {
        if (made.len() + new.len()) as u64 > TEXT_BYTES {
            return None;
        }
        made.extend_from_slice(&bytes[from..at]);
        made.extend_from_slice(new);
        (from, count) = (at + old.len(), count + 1);
    }
    made.extend_from_slice(&bytes[from..]);
    (made.len() as u64 <= TEXT_BYTES || count == 0).then_some((made, count))
}

/// The paths of a query.
pub(super) fn paths(query: &Query) -> Answer<Vec<String>> {
    let paths: Vec<String> = query.all("path").map(str::to_owned).collect();
    bounded(paths.len())?;
    Ok(paths)
}

/// Refuses what would take too long.
pub(super) fn bounded(count: usize) -> Answer<()> {
    if count > PATHS {
        return Err(bad("INVALID_REQUEST_BODY", format!("at most {PATHS} paths at once")));
    }
    Ok(())
}

/// The whole path that a caller means.
pub(super) async fn absolute(sandbox: &Sandbox, path: &str) -> Answer<String> {
    if path.is_empty() {
        return Err(bad("INVALID_FILE", "a path is empty"));
    }
    let path = expand(sandbox, path).await?;
    Ok(cleaned(&if path.starts_with('/') { path } else { tree::join(&sandbox.info().cwd, &path) }))
}

/// A whole path as it is shortest, by its words alone: as callers know it, `..` takes the name before it away.
fn cleaned(path: &str) -> String {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Makes the directories above a path.
pub(super) async fn make_parents(sandbox: &Sandbox, path: &str) -> Answer<()> {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => sandbox.make_dir(parent, true).await.map_err(fault),
        _ => Ok(()),
    }
}

/// Something cannot be done, and it is not the caller's form that is wrong.
pub(super) fn failed(message: impl Into<String>) -> Fault {
    Fault::new(StatusCode::INTERNAL_SERVER_ERROR, "RUNTIME_ERROR", message)
}
