//! Snapshots and boxes as a tree: who stands on whose layers.

use axum::Json;
use axum::extract::State;
use glasshouse_sandbox::{SandboxInfo, SnapshotInfo};
use serde_json::{Value, json};

use super::boxes::is_his;
use super::{Answer, Shared};
use crate::door::Caller;
use crate::tenants::Kind;

/// All snapshots and boxes of the caller's, each with the snapshot that it stands on.
pub(super) async fn tree(State(viewer): Shared, caller: Caller) -> Answer<Json<Value>> {
    let mut snapshots = viewer.house.snapshots().await?;
    // States after steps belong to their boxes; their timelines name them.
    snapshots.retain(|snapshot| {
        let his = || viewer.tenants.marked(Kind::Snapshot, &snapshot.id) == caller.tenant;
        snapshot.step.is_none() && (caller.tenant.is_none() || his())
    });
    let mut boxes = viewer.house.list().await?;
    boxes.retain(|info| is_his(info, &caller));
    let told: Vec<Value> = snapshots.iter().map(|one| snapshot(one, &snapshots)).collect();
    let boxes: Vec<Value> = boxes.iter().map(|info| leaf(info, &snapshots)).collect();
    Ok(Json(json!({ "snapshots": told, "boxes": boxes })))
}

fn snapshot(one: &SnapshotInfo, all: &[SnapshotInfo]) -> Value {
    let before = |other: &&SnapshotInfo| {
        let older = (other.created_ms, &other.id) < (one.created_ms, &one.id);
        other.id != one.id && (other.chain.len() < one.chain.len() || older)
    };
    json!({
        "id": one.id, "name": one.known_as(), "from": one.from, "createdMs": one.created_ms,
        "image": one.image.to_string(), "processes": one.processes, "durable": one.durable,
        "parent": below(&one.chain, all.iter().filter(before)),
    })
}

fn leaf(info: &SandboxInfo, all: &[SnapshotInfo]) -> Value {
    json!({
        "id": info.id, "name": info.name, "state": info.state.name(), "image": info.root_image.to_string(),
        "createdMs": info.created_ms, "parent": below(&info.chain, all.iter()),
    })
}

/// The snapshot with the most layers whose layers are the lowest of this chain; of several, the last.
fn below<'a>(chain: &[String], all: impl Iterator<Item = &'a SnapshotInfo>) -> Option<&'a str> {
    let fits = all.filter(|other| chain.ends_with(&other.chain));
    let best = fits.max_by_key(|other| (other.chain.len(), other.created_ms));
    best.map(|snapshot| snapshot.id.as_str())
}
