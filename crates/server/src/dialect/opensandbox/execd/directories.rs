//! Directories: listed, made, removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use glasshouse_sandbox::{ErrorKind, FileKind};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::accounts::Accounts;
use super::files::{self, FileInfo, Permission, absolute, bounded, failed, gone, permit};
use super::{Empty, Files, bad, fault, missing, modes, tree};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::Answer;
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{Body, Query};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(make, remove))
}

/// List a directory
#[utoipa::path(get, path = "/directories/list", tag = "files", params(
    ("path" = String, Query, description = "Which"),
    ("depth" = Option<u64>, Query, description = "How far down, 1 without a word"),
), responses(
    (status = 200, description = "Each directory before what is in it, by name", body = Vec<FileInfo>),
    (status = 400, description = "That is no directory", body = ErrorResponse),
    (status = 404, description = "There is no such directory", body = ErrorResponse),
))]
async fn list(Files(sandbox): Files, query: Query) -> Answer<Json<Vec<FileInfo>>> {
    let sandbox = &sandbox;
    let root = query.get("path").filter(|path| !path.is_empty()).ok_or_else(|| missing("path"))?;
    let root = absolute(sandbox, root).await?;
    let depth = query.number("depth").map_err(|fault| fault.coded("INVALID_REQUEST_BODY"))?.unwrap_or(1);
    if sandbox.stat(&root, false).await.map_err(fault)?.kind != FileKind::Directory {
        return Err(bad("INVALID_FILE", format!("{root} is no directory")));
    }
    let found = tree::walk(sandbox, &root, depth, |_| true).await?;
    let accounts = Accounts::of(sandbox).await;
    Ok(Json(found.into_iter().map(|entry| files::view(entry.path, &entry.stat, &accounts)).collect()))
}

/// Make directories
///
/// Those above are made, too. What is said of permissions holds for directories that were not there.
#[utoipa::path(post, path = "/directories", tag = "files", request_body = BTreeMap<String, Permission>, responses(
    (status = 200, description = "They are there"),
    (status = 400, description = "That is no mode", body = ErrorResponse),
))]
async fn make(Files(sandbox): Files, Body(wanted): Body<BTreeMap<String, Permission>>) -> Answer<Empty> {
    bounded(wanted.len())?;
    let sandbox = &sandbox;
    for (path, permission) in wanted {
        modes::read(permission.mode)?;
        let path = absolute(sandbox, &path).await?;
        match sandbox.stat(&path, true).await {
            Ok(stat) if stat.kind == FileKind::Directory => continue,
            Ok(_) => return Err(failed(format!("{path} is there, and no directory"))),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(fault(e)),
        }
        sandbox.make_dir(&path, true).await.map_err(fault)?;
        permit(sandbox, &path, &permission).await?;
    }
    Ok(Empty)
}

/// Remove directories and all that is in them
#[utoipa::path(delete, path = "/directories", tag = "files",
    params(("path" = Vec<String>, Query, description = "Which; may come more than once")),
    responses((status = 200, description = "They are gone")))]
async fn remove(Files(sandbox): Files, query: Query) -> Answer<Empty> {
    for path in files::paths(&query)? {
        let path = absolute(&sandbox, &path).await?;
        if path == "/" {
            return Err(bad("INVALID_FILE", "the root of a sandbox cannot be removed; delete the sandbox"));
        }
        gone(sandbox.remove_file(&path, true).await)?;
    }
    Ok(Empty)
}
