//! Files on their way in: pairs of parts, what a file is to be and what it holds.
//!
//! A file is replaced as a whole or not at all. What is too large for memory waits on the disk, in the server's directory, and
//! goes into the box from there.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{DefaultBodyLimit, Multipart, State};
use glasshouse_sandbox::{ErrorKind, FileKind, Sandbox};
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;

use super::files::{Permission, absolute, failed, make_parents, permit};
use super::{Empty, Files, bad, fault, modes};
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::{Service, Shared};
use crate::limits::{UPLOAD_FILES, UPLOAD_MEMORY_BYTES, UPLOAD_METADATA_BYTES};
use crate::random;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    let described = OpenApiRouter::new().routes(utoipa_axum::routes!(upload));
    described.layer(DefaultBodyLimit::disable())
}

/// What a file is to be.
#[derive(Debug, Deserialize, ToSchema)]
struct FileMetadata {
    path: Option<String>,
    owner: Option<String>,
    group: Option<String>,
    /// The decimal digits are octal: 644 is 0o644.
    mode: Option<i64>,
}

/// Write files
///
/// Pairs of parts: `metadata`, JSON with path, mode, owner and group, and `file`, what it holds. Directories above are made.
#[utoipa::path(post, path = "/files/upload", tag = "files",
    request_body(content = Object, content_type = "multipart/form-data"), responses(
    (status = 200, description = "They are written"),
    (status = 400, description = "The parts make no pairs", body = crate::dialect::opensandbox::model::ErrorResponse),
))]
async fn upload(State(service): Shared, Files(sandbox): Files, mut parts: Multipart) -> Answer<Empty> {
    let (mut about, mut files) = (Vec::new(), Vec::new());
    let mut room_left = Left {
        memory: UPLOAD_MEMORY_BYTES,
        all: service.config.bounds.upload_bytes,
        incoming: service.rooms.records.incoming(),
    };
    while let Some(field) = parts.next_field().await.map_err(broken)? {
        match field.name() {
            Some("metadata") => about.push(metadata(field).await?),
            Some("file") => files.push(content(field, &mut room_left).await?),
            _ => {}
        }
        if about.len().max(files.len()) > UPLOAD_FILES {
            return Err(bad("INVALID_FILE", format!("at most {UPLOAD_FILES} files at once")));
        }
    }
    if about.is_empty() {
        return Err(bad("INVALID_FILE_METADATA", "there is no part `metadata`"));
    }
    if files.is_empty() {
        return Err(bad("INVALID_FILE_CONTENT", "there is no part `file`"));
    }
    if about.len() != files.len() {
        let message = format!("there are {} parts `metadata` and {} parts `file`", about.len(), files.len());
        return Err(bad("INVALID_FILE", message));
    }
    for (about, content) in about.into_iter().zip(files) {
        write(&sandbox, about, content).await?;
    }
    Ok(Empty)
}

async fn metadata(mut field: Field<'_>) -> Answer<FileMetadata> {
    let wrong = |why: String| bad("INVALID_FILE_METADATA", why);
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > UPLOAD_METADATA_BYTES {
            return Err(wrong(format!("a part `metadata` is larger than {UPLOAD_METADATA_BYTES} bytes")));
        }
    }
    let about: FileMetadata =
        serde_json::from_slice(&bytes).map_err(|e| wrong(format!("a part `metadata`: {e}")))?;
    modes::read(about.mode)?;
    if about.path.as_ref().is_none_or(String::is_empty) {
        return Err(wrong("a part `metadata` names no path".to_owned()));
    }
    Ok(about)
}

/// How much an upload may still bring.
struct Left {
    memory: usize,
    all: u64,
    incoming: PathBuf,
}

/// What a file is to hold.
enum Content {
    Memory(Vec<u8>),
    Disk(Waiting),
}

/// A file on the disk that goes when it is not needed any more.
struct Waiting(PathBuf);

/// The mode of a file of which nobody has said any.
const NEW_FILE: u32 = 0o644;
/// What we need to read and to remove a file that waits.
const OWN: u32 = 0o600;

impl Waiting {
    /// Gives it the mode that its copy in the box is to have, as far as we can read it then. Nobody else gets to its directory.
    async fn as_mode(&self, bits: u32) -> std::io::Result<()> {
        tokio::fs::set_permissions(&self.0, Permissions::from_mode(bits | OWN)).await
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // One that stays goes at the next start.
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn content(mut field: Field<'_>, left: &mut Left) -> Answer<Content> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        left.take(piece.len())?;
        if bytes.len() + piece.len() > left.memory {
            return on_disk(field, bytes, piece, left).await;
        }
        bytes.extend_from_slice(&piece);
    }
    left.memory -= bytes.len();
    Ok(Content::Memory(bytes))
}

async fn on_disk(
    mut field: Field<'_>,
    begun: Vec<u8>,
    piece: bytes::Bytes,
    left: &mut Left,
) -> Answer<Content> {
    let waiting = Waiting(left.incoming.join(random::hex()?));
    let mut file = tokio::fs::File::options().write(true).create_new(true).mode(OWN).open(&waiting.0).await?;
    file.write_all(&begun).await?;
    file.write_all(&piece).await?;
    drop(begun);
    while let Some(piece) = field.chunk().await.map_err(broken)? {
        left.take(piece.len())?;
        file.write_all(&piece).await?;
    }
    file.flush().await?;
    Ok(Content::Disk(waiting))
}

impl Left {
    fn take(&mut self, bytes: usize) -> Answer<()> {
        let too_much = || {
            let message = "this is more than one upload may bring".to_owned();
            Fault::new(axum::http::StatusCode::PAYLOAD_TOO_LARGE, "INVALID_FILE_CONTENT", message)
        };
        self.all = self.all.checked_sub(bytes as u64).ok_or_else(too_much)?;
        Ok(())
    }
}

async fn write(sandbox: &Sandbox, about: FileMetadata, content: Content) -> Answer<()> {
    let path = absolute(sandbox, about.path.as_deref().unwrap_or_default()).await?;
    let there = match sandbox.stat(&path, true).await {
        Ok(stat) => Some(stat),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(fault(e)),
    };
    if there.as_ref().map_or(path.ends_with('/'), |stat| stat.kind == FileKind::Directory) {
        return Err(failed(format!("{path} is a directory")));
    }
    match content {
        Content::Memory(bytes) => {
            let mode = modes::read(about.mode)?;
            sandbox.write_file(&path, &bytes, mode).await.map_err(fault)?;
        }
        Content::Disk(waiting) => {
            make_parents(sandbox, &path).await?;
            // As those that came in memory: a file that is there keeps its mode.
            let bits = modes::read(about.mode)?.or(there.map(|stat| stat.mode)).unwrap_or(NEW_FILE) & 0o777;
            waiting.as_mode(bits).await?;
            sandbox.copy_in(&waiting.0, &path).await.map_err(fault)?;
            if bits & OWN != OWN {
                sandbox.chmod(&path, bits).await.map_err(fault)?;
            }
        }
    }
    let FileMetadata { owner, group, mode, .. } = about;
    permit(sandbox, &path, &Permission { mode, owner, group }).await
}

fn broken(error: MultipartError) -> Fault {
    bad("INVALID_FILE", format!("the body is no multipart form: {}", error.body_text()))
}
