//! Several commands and tools in one request, in one box or in many.
//!
//! Calls of one box are done in their order, one after the other; boxes are worked in at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::exec;
use crate::dialect::opensandbox::entry::may_see_box;
use crate::dialect::opensandbox::execd::RunCommandRequest;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Body;
use crate::dialect::opensandbox::{Service, Shared};
use crate::door::Caller;
use crate::limits::{BATCH_AT_ONCE, BATCH_CALLS};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(batch))
}

/// Several calls.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct BatchRequest {
    calls: Vec<BatchCall>,
    /// What comes after a call that failed, in the same box, is not done.
    #[serde(default)]
    stop_on_failure: bool,
}

/// One call: `exec`, or `tool` and `params`.
#[derive(Debug, Deserialize, ToSchema)]
struct BatchCall {
    /// The id of the box.
    sandbox: String,
    /// A command, as `/exec` has it.
    exec: Option<RunCommandRequest>,
    /// The name of a tool.
    tool: Option<String>,
    /// Its parameters.
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
}

/// What became of the calls, in their order.
#[derive(Debug, Serialize, ToSchema)]
struct BatchResponse {
    results: Vec<BatchResult>,
}

/// What became of a call.
#[derive(Debug, Serialize, ToSchema)]
struct BatchResult {
    /// What `/exec` or `/tools/{name}` would have answered; 424 if it was not done because one before it had failed.
    status: u16,
    #[schema(value_type = Object)]
    body: Value,
}

/// Do several things at once
///
/// Calls of one box are done one after the other; boxes are worked in at once. A command that fails is answered as by `/exec`.
#[utoipa::path(post, path = "/batch", tag = "extensions", request_body = BatchRequest, responses(
    (status = 200, description = "What became of each", body = BatchResponse),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
))]
async fn batch(
    State(service): Shared,
    caller: Caller,
    Body(request): Body<BatchRequest>,
) -> Answer<Json<BatchResponse>> {
    if request.calls.len() > BATCH_CALLS {
        return Err(Fault::invalid(format!("a batch has {BATCH_CALLS} calls at most")));
    }
    let count = request.calls.len();
    let mut boxes: BTreeMap<String, Vec<(usize, BatchCall)>> = BTreeMap::new();
    for (n, call) in request.calls.into_iter().enumerate() {
        boxes.entry(call.sandbox.clone()).or_default().push((n, call));
    }
    let stop = request.stop_on_failure;
    let work = boxes.into_iter().map(|(id, calls)| in_one(service.clone(), caller.clone(), id, calls, stop));
    // In a task each: a caller who goes away does not stop what was begun, as with a single call.
    let tasks = stream::iter(work).map(tokio::spawn).buffer_unordered(BATCH_AT_ONCE);
    let mut results: Vec<(usize, BatchResult)> =
        tasks.flat_map(|done| stream::iter(done.unwrap_or_default())).collect().await;
    results.sort_by_key(|(n, _)| *n);
    if results.len() != count {
        return Err(Fault::internal("a call was lost sight of"));
    }
    Ok(Json(BatchResponse { results: results.into_iter().map(|(_, result)| result).collect() }))
}

/// Does the calls of one box.
async fn in_one(
    service: Arc<Service>,
    caller: Caller,
    id: String,
    calls: Vec<(usize, BatchCall)>,
    stop_on_failure: bool,
) -> Vec<(usize, BatchResult)> {
    let seen = may_see_box(&service, &caller, &id).await;
    let (mut results, mut stopped) = (Vec::with_capacity(calls.len()), false);
    for (n, call) in calls {
        if stopped {
            let message = "a call before it failed";
            let skipped = Fault::new(StatusCode::FAILED_DEPENDENCY, "NOT_DONE", message);
            results.push((n, refused(&skipped)));
            continue;
        }
        let done = if seen { one(&service, &id, call).await } else { Err(Fault::no_box(&id)) };
        let (result, success) = match done {
            Ok((body, success)) => (BatchResult { status: 200, body }, success),
            Err(fault) => (refused(&fault), false),
        };
        stopped = stop_on_failure && !success;
        results.push((n, result));
    }
    results
}

fn refused(fault: &Fault) -> BatchResult {
    BatchResult {
        status: fault.status().as_u16(),
        body: json!({ "code": fault.code(), "message": fault.message() }),
    }
}

/// Does one call. Its answer, and whether it succeeded.
async fn one(service: &Service, id: &str, call: BatchCall) -> Answer<(Value, bool)> {
    let room = service.rooms.room(id).await?;
    match (call.exec, call.tool) {
        (Some(request), None) => {
            let done = exec::run(&room, request).await?;
            let success = done.exit_code == 0;
            let body = serde_json::to_value(done).map_err(|e| Fault::internal(e.to_string()))?;
            Ok((body, success))
        }
        (None, Some(tool)) => {
            let params = call.params.filter(|params| !params.is_null()).unwrap_or_else(|| json!({}));
            let done = room.sandbox.tool(&tool, params).await?.to_json();
            let success = done["success"] == json!(true);
            Ok((done, success))
        }
        _ => Err(Fault::invalid("a call has one of `exec` and `tool`")),
    }
}
