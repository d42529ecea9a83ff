//! The boxes, and what they use.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use glasshouse_sandbox::SandboxInfo;
use serde_json::{Value, json};

use super::{Answer, Refusal, Shared, Viewer, aside};
use crate::clock::now_ms;
use crate::door::Caller;
use crate::tenants;
use crate::usage::Sample;

/// All boxes of the caller's, the newest first.
pub(super) async fn list(State(viewer): Shared, caller: Caller) -> Answer<Json<Value>> {
    let mut boxes = viewer.house.list().await?;
    viewer.usage.keep(&boxes);
    boxes.retain(|info| is_his(info, &caller));
    boxes.reverse();
    let told = told(viewer, boxes).await?;
    Ok(Json(json!({ "now": now_ms(), "boxes": told })))
}

/// One box.
pub(super) async fn one(
    State(viewer): Shared,
    caller: Caller,
    Path(id): Path<String>,
) -> Answer<Json<Value>> {
    let unknown = || Refusal::unknown(format!("there is no box {id}"));
    let info = viewer.house.info(&id).await.map_err(|_| unknown())?;
    if info.id != id || !is_his(&info, &caller) {
        return Err(unknown());
    }
    let told = told(viewer, vec![info]).await?.pop();
    Ok(Json(json!({ "now": now_ms(), "box": told })))
}

pub(super) fn is_his(info: &SandboxInfo, caller: &Caller) -> bool {
    caller.tenant.is_none() || info.labels.get(tenants::LABEL) == caller.tenant.as_ref()
}

async fn told(viewer: Arc<Viewer>, boxes: Vec<SandboxInfo>) -> Answer<Vec<Value>> {
    aside(move || {
        let used = viewer.usage.of(&boxes);
        boxes.iter().map(|info| view(info, used.get(&info.id).map_or(&[], Vec::as_slice))).collect()
    })
    .await
}

fn view(info: &SandboxInfo, samples: &[Sample]) -> Value {
    let labels: BTreeMap<&String, &String> =
        info.labels.iter().filter(|(name, _)| !name.starts_with("opensandbox.io/")).collect();
    let limits: Vec<Value> = info
        .limits
        .iter()
        .map(|limit| {
            json!({ "name": limit.name, "value": limit.value, "amount": limit.amount, "by": limit.mechanism })
        })
        .collect();
    json!({
        "id": info.id, "name": info.name, "state": info.state.name(), "level": info.level.name(),
        "missing": info.missing, "runtime": info.runtime.name(), "image": info.root_image.to_string(),
        "createdMs": info.created_ms, "labels": labels, "limits": limits, "recording": info.recording.name(),
        "user": info.user, "cwd": info.cwd, "deterministic": info.deterministic, "readOnly": info.read_only,
        "generation": info.generation, "usage": samples.iter().map(point).collect::<Vec<_>>(),
    })
}

/// A point of a plot: when, processor time in all, memory, processes.
fn point(sample: &Sample) -> Value {
    json!([sample.at_ms, sample.cpu_ms, sample.memory_bytes, sample.processes])
}
