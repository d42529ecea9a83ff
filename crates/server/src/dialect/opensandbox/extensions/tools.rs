//! What agents call in a box, and what listens in it.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use glasshouse_sandbox::ToolInfo;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::execd::Here;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::{MaybeBody, Query};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(call)).routes(routes!(ports))
}

/// The tools of a box.
#[derive(Debug, Serialize, ToSchema)]
struct ToolsResponse {
    /// Names, what they do, their parameters; as `format` says.
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
}

/// What a tool answers: `ToolResult::to_json` of the library.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it is there for the document alone")]
struct ToolResponse {
    /// Both streams, or what the tool found.
    output: String,
    stdout: String,
    stderr: String,
    exit_code: i32,
    /// Why it failed, in a sentence.
    error: Option<String>,
    success: bool,
    /// The command that it ran, if it ran one.
    exec: Option<u64>,
    /// How that ended.
    #[schema(value_type = Option<Object>)]
    end: Option<Value>,
}

/// What listens in a box.
#[derive(Debug, Serialize, ToSchema)]
struct PortsResponse {
    ports: Vec<ListeningPort>,
}

/// A port that something listens on.
#[derive(Debug, Serialize, ToSchema)]
struct ListeningPort {
    port: u16,
    /// What it is bound to in the box.
    address: String,
}

/// List the tools of a box
#[utoipa::path(get, path = "/sandboxes/{id}/tools", tag = "extensions", params(
    ("id" = String, Path),
    ("format" = Option<String>, Query, description = "`openai` or `mcp`: the shape that those have for tools"),
), responses(
    (status = 200, description = "Names, what they do, their parameters", body = ToolsResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn list(Here(room): Here, query: Query) -> Answer<Json<ToolsResponse>> {
    let shape = match query.get("format") {
        None => ToolInfo::to_json,
        Some("openai") => ToolInfo::openai,
        Some("mcp") => ToolInfo::mcp,
        Some(other) => {
            return Err(Fault::invalid(format!("format {other:?} is not known; there are openai and mcp")));
        }
    };
    Ok(Json(ToolsResponse { tools: room.sandbox.tools().iter().map(shape).collect() }))
}

/// Call a tool of a box
///
/// The body is its parameters. What goes wrong in the box is in the answer: `success`, `exit_code`, `error`.
#[utoipa::path(post, path = "/sandboxes/{id}/tools/{name}", tag = "extensions",
    params(("id" = String, Path), ("name" = String, Path)), request_body = Option<Object>, responses(
    (status = 200, description = "`output`, `stdout`, `stderr`, `exit_code`, `error`, `success`; also if there is no such tool", body = ToolResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn call(
    Here(room): Here,
    Path((_, name)): Path<(String, String)>,
    MaybeBody(params): MaybeBody<Value>,
) -> Answer<Json<Value>> {
    let params = if params.is_null() { json!({}) } else { params };
    Ok(Json(room.sandbox.tool(&name, params).await?.to_json()))
}

/// List what listens in a box
///
/// TCP ports; `/proxy/{port}` reaches them.
#[utoipa::path(get, path = "/sandboxes/{id}/ports", tag = "extensions", params(("id" = String, Path)), responses(
    (status = 200, description = "`ports`, each with the address that it is bound to in the box", body = PortsResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn ports(Here(room): Here) -> Answer<Json<PortsResponse>> {
    let ports = room.sandbox.ports().await?.into_iter();
    Ok(Json(PortsResponse {
        ports: ports.map(|one| ListeningPort { port: one.port, address: one.address }).collect(),
    }))
}
