//! A trajectory once more, in a box.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use glasshouse_sandbox::{ReplayOptions, Replayed};
use glasshouse_trace::trajectory::{Divergence, Strictness, Trajectory, read_one};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::places;
use crate::dialect::opensandbox::entry::may_see_box;
use crate::dialect::opensandbox::execd::Here;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Body;
use crate::dialect::opensandbox::{Service, Shared};
use crate::door::Caller;

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(replay))
}

/// What to do again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReplayRequest {
    /// A trajectory of any known format: this or `of`.
    #[schema(value_type = Option<Object>)]
    trajectory: Option<Value>,
    /// The record of this box.
    of: Option<String>,
    /// Only the first so many steps.
    until: Option<usize>,
    /// `normal` (noise is overlooked), `strict` (byte by byte) or `output-only`.
    strictness: Option<String>,
    /// Go on after a step that went another way.
    keep_going: Option<bool>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct ReplayResponse {
    /// Whether every step that was done went the same way.
    same: bool,
    /// Steps of the trajectory.
    steps: usize,
    /// Steps that were done.
    done: usize,
    /// The number of the first step that went another way.
    first_divergence: Option<u64>,
    divergences: Vec<DivergedStep>,
    /// What was recorded and could not be compared, or the other way round, in words.
    notes: Vec<String>,
    /// Noise that was overlooked.
    ignored: Vec<IgnoredNoise>,
}

/// A step that went another way.
#[derive(Debug, Serialize, ToSchema)]
struct DivergedStep {
    step: u64,
    /// The line of the record at which the step began. Its number counts only what led to where the box is.
    seq: Option<u64>,
    differences: Vec<StepDifference>,
    /// How many further differences there are.
    untold: u64,
}

/// One thing that differs.
#[derive(Debug, Serialize, ToSchema)]
struct StepDifference {
    /// `output`, `exit`, `files` or `processes`.
    what: String,
    /// Which file, for files.
    path: Option<String>,
    expected: String,
    actual: String,
    /// Both texts side by side, without their noise.
    diff: Option<String>,
}

/// Noise that was overlooked, by the rule that says so.
#[derive(Debug, Serialize, ToSchema)]
struct IgnoredNoise {
    rule: String,
    /// In how many places the two sides differ by it.
    count: u64,
}

/// Do the steps of a trajectory again in a box
///
/// In the box as it is; `reset` before, or a fork, gives it a clean one. Names the first step that went another way.
#[utoipa::path(post, path = "/sandboxes/{id}/replay", tag = "extensions", params(("id" = String, Path)),
    request_body = ReplayRequest, responses(
    (status = 200, description = "`same`, `steps`, `done`, `firstDivergence`, `divergences`", body = ReplayResponse),
    (status = 400, description = "That is no trajectory", body = ErrorResponse),
    (status = 404, description = "There is no such box", body = ErrorResponse),
))]
async fn replay(
    State(service): Shared,
    caller: Caller,
    Here(room): Here,
    Body(request): Body<ReplayRequest>,
) -> Answer<Json<ReplayResponse>> {
    if let Some(of) = &request.of
        && !may_see_box(&service, &caller, of).await
    {
        return Err(Fault::no_box(of));
    }
    let (trajectory, lines) = trajectory(&service, &request)?;
    let strictness = match request.strictness.as_deref().unwrap_or("normal") {
        "normal" => Strictness::Normal,
        "strict" => Strictness::Strict,
        "output-only" => Strictness::OutputOnly,
        other => {
            let message =
                format!("strictness {other:?} is not known; there are normal, strict and output-only");
            return Err(Fault::invalid(message));
        }
    };
    let keep_going = request.keep_going.unwrap_or(false);
    let options = ReplayOptions { until: request.until, strictness, keep_going };
    let replay = service.house.replay(&room.sandbox, &trajectory, options).await?;
    Ok(Json(told(replay.run(|_| ()).await?, &lines)))
}

/// What to do again; of a record, with the lines at which its steps began.
fn trajectory(service: &Service, request: &ReplayRequest) -> Answer<(Trajectory, Vec<u64>)> {
    match (&request.trajectory, &request.of) {
        (Some(given), None) => {
            let read = read_one(given.to_string().as_bytes(), None);
            let unread = |e| Fault::invalid(format!("the trajectory cannot be read: {e}"));
            read.map(|(_, read)| (read.trajectory, Vec::new())).map_err(unread)
        }
        (None, Some(id)) => {
            places(service, id)?;
            Ok(service.house.trajectory_and_lines(id)?)
        }
        _ => Err(Fault::invalid("give one of trajectory and of")),
    }
}

fn told(replayed: Replayed, lines: &[u64]) -> ReplayResponse {
    let seq = |step: u64| lines.get((step as usize).checked_sub(1)?).copied();
    let ignored =
        replayed.ignored.iter().map(|one| IgnoredNoise { rule: one.rule.clone(), count: one.count });
    ReplayResponse {
        same: replayed.is_same(),
        steps: replayed.total,
        done: replayed.done,
        first_divergence: replayed.divergences.first().map(|first| first.step),
        ignored: ignored.collect(),
        notes: replayed.notes,
        divergences: replayed.divergences.into_iter().map(|one| diverged(one, seq)).collect(),
    }
}

fn diverged(one: Divergence, seq: impl Fn(u64) -> Option<u64>) -> DivergedStep {
    let differences = one.differences.into_iter().map(|one| StepDifference {
        what: one.what.name().to_owned(),
        path: one.path,
        expected: one.expected,
        actual: one.actual,
        diff: one.diff,
    });
    DivergedStep {
        step: one.step,
        seq: seq(one.step),
        differences: differences.collect(),
        untold: one.untold,
    }
}
