//! Snapshots and boxes as a tree: who stands on whose layers.
//!
//! Layers alone do not tell it: a snapshot of a box that has changed nothing since it was made has the layers of what it was made
//! of. Of several such, none that is younger can be what another one stands on, and a box stands on the one that its own record
//! names, before those that it was made of or that were taken of it, before those of others.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use glasshouse_sandbox::{Image, SandboxInfo, SnapshotInfo};
use serde_json::{Value, json};

use super::boxes::is_his;
use super::{Answer, Shared, Viewer, aside};
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
    let told = aside(move || {
        let told: Vec<Value> = snapshots.iter().map(|one| snapshot(one, &snapshots)).collect();
        let boxes: Vec<Value> = boxes.iter().map(|info| leaf(&viewer, info, &snapshots)).collect();
        json!({ "snapshots": told, "boxes": boxes })
    });
    told.await.map(Json)
}

fn snapshot(one: &SnapshotInfo, all: &[SnapshotInfo]) -> Value {
    json!({
        "id": one.id, "name": one.known_as(), "from": one.from, "createdMs": one.created_ms,
        "image": one.image.to_string(), "processes": one.processes, "durable": one.durable,
        "parent": parent(one, all),
    })
}

fn leaf(viewer: &Arc<Viewer>, info: &SandboxInfo, all: &[SnapshotInfo]) -> Value {
    json!({
        "id": info.id, "name": info.name, "state": info.state.name(), "image": info.root_image.to_string(),
        "createdMs": info.created_ms, "parent": ground(info, all, || stands_on(viewer, &info.id)),
    })
}

/// The snapshot that another one stands on.
fn parent<'a>(one: &SnapshotInfo, all: &'a [SnapshotInfo]) -> Option<&'a str> {
    let older = |other: &&SnapshotInfo| (other.created_ms, &other.id) < (one.created_ms, &one.id);
    let fits = below(&one.chain, all.iter().filter(older));
    let best = fits.into_iter().max_by_key(|other| (other.from == one.from, weight(other, &one.from)));
    best.map(|snapshot| snapshot.id.as_str())
}

/// The snapshot that a box stands on. What is on its record is asked only if that makes a difference: records are long.
fn ground<'a>(
    info: &SandboxInfo,
    all: &'a [SnapshotInfo],
    on_record: impl FnOnce() -> Option<String>,
) -> Option<&'a str> {
    let fits = below(&info.chain, all.iter());
    let on_record = if fits.len() > 1 { on_record() } else { None };
    let made_of = |other: &SnapshotInfo| match &info.image {
        Image::Snapshot(name) => *name == other.id || Some(name) == other.name.as_ref(),
        _ => false,
    };
    let best = fits.into_iter().max_by_key(|other| {
        let is_on_record = on_record.as_ref() == Some(&other.id);
        (is_on_record, other.from == info.id, made_of(other), weight(other, &info.id))
    });
    best.map(|snapshot| snapshot.id.as_str())
}

/// Of a box's own snapshots, the last one is where it is; of those of others, the first one is where the state came from.
fn weight(other: &SnapshotInfo, of: &str) -> i128 {
    let created_ms = i128::from(other.created_ms);
    if other.from == of { created_ms } else { -created_ms }
}

/// Where the record of a box says that it is.
fn stands_on(viewer: &Arc<Viewer>, id: &str) -> Option<String> {
    let index = viewer.indexes.lock().unwrap_or_else(PoisonError::into_inner).of(id);
    let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
    // Without a record, the layers have to do.
    index.grow(&viewer.house.traces_dir().join(id), &viewer.house.blobs_dir()).ok()?;
    index.stands_on.clone()
}

/// The snapshots with the most layers whose layers are the lowest of this chain.
fn below<'a>(chain: &[String], all: impl Iterator<Item = &'a SnapshotInfo>) -> Vec<&'a SnapshotInfo> {
    let mut fits: Vec<&SnapshotInfo> = all.filter(|other| chain.ends_with(&other.chain)).collect();
    let most = fits.iter().map(|other| other.chain.len()).max().unwrap_or(0);
    fits.retain(|other| other.chain.len() == most);
    fits
}

#[cfg(test)]
mod tests {
    use glasshouse_sandbox::{Method, Recording};

    use super::*;

    fn taken(id: &str, from: &str, created_ms: u64, chain: &[&str]) -> SnapshotInfo {
        SnapshotInfo {
            id: id.to_owned(),
            name: None,
            label: None,
            from: from.to_owned(),
            image: Image::Host,
            created_ms,
            chain: chain.iter().map(ToString::to_string).collect(),
            method: Method::Rotate,
            copied_for: None,
            took_us: 0,
            processes: 0,
            durable: false,
            boot: String::new(),
            user: String::new(),
            cwd: String::new(),
            env: Vec::new(),
            deterministic: false,
            recording: Recording::default(),
            task: None,
            key: None,
            step: None,
        }
    }

    #[test]
    fn only_older_snapshots_are_stood_on_and_those_of_the_same_box_first() {
        let all = [
            taken("one", "a", 1, &["x"]),
            taken("two", "a", 2, &["y", "x"]),
            taken("three", "b", 3, &["x"]),
            taken("four", "b", 4, &["z", "x"]),
            taken("five", "a", 5, &["w", "x"]),
            taken("six", "c", 6, &["v", "x"]),
        ];
        let parents: Vec<Option<&str>> = all.iter().map(|one| parent(one, &all)).collect();
        assert_eq!(parents, [None, Some("one"), Some("one"), Some("three"), Some("one"), Some("one")]);
    }
}
