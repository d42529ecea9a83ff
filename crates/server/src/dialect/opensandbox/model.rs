//! The lifecycle's JSON. Optional fields are left out when they are not there: `null` breaks the Python SDK.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::volumes::VolumeSpec;

/// An error, always in this shape.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorResponse {
    /// To branch on.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
}

/// What a box is to be.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CreateSandboxRequest {
    /// What it is made from: this or `snapshotId`.
    pub(crate) image: Option<ImageSpec>,
    /// A snapshot that it is made from.
    pub(crate) snapshot_id: Option<String>,
    /// Not here.
    pub(crate) template_id: Option<String>,
    /// Has to be this machine's.
    pub(crate) platform: Option<PlatformSpec>,
    /// Its life in seconds, from 60; without, it stays until it is deleted.
    pub(crate) timeout: Option<i64>,
    /// `cpu`, `memory` and `disk`.
    pub(crate) resource_limits: Option<BTreeMap<String, String>>,
    /// Variables of every command.
    pub(crate) env: Option<BTreeMap<String, Option<String>>>,
    /// Labels, by Kubernetes's rules.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Hooks; not here.
    #[schema(value_type = Option<Object>)]
    pub(crate) lifecycle: Option<serde_json::Value>,
    /// A program that the box runs; the box ends with it.
    pub(crate) entrypoint: Option<Vec<String>>,
    /// Whom it may talk to: nobody, so far.
    pub(crate) network_policy: Option<NetworkPolicy>,
    /// Not here.
    #[schema(value_type = Option<Object>)]
    pub(crate) credential_proxy: Option<serde_json::Value>,
    /// Tokens for endpoints; they have them anyway where the server has a key.
    pub(crate) secure_access: Option<bool>,
    /// Directories of the host, of those that the settings allow.
    pub(crate) volumes: Option<Vec<VolumeSpec>>,
    /// Words that are given back. `glasshouse.recording`: `commands`, `steps` (with the files that each step changed) or
    /// `snapshots` (and a state to go back to).
    pub(crate) extensions: Option<BTreeMap<String, String>>,
}

/// An image.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct ImageSpec {
    /// `host`, or the name of an image; it is pulled if it is not here.
    pub(crate) uri: String,
    /// Who we are to its registry.
    #[serde(skip_serializing)]
    pub(crate) auth: Option<ImageAuth>,
}

/// Who we are to a registry.
#[derive(Clone, Deserialize, ToSchema)]
pub(crate) struct ImageAuth {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for ImageAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageAuth").field("username", &self.username).finish_non_exhaustive()
    }
}

/// A kind of machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct PlatformSpec {
    pub(crate) os: String,
    pub(crate) arch: String,
}

/// Whom a box may talk to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkPolicy {
    /// `allow` or `deny`, which is meant without a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) default_action: Option<String>,
    /// Exceptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) egress: Option<Vec<NetworkRule>>,
}

/// One exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct NetworkRule {
    pub(crate) action: String,
    pub(crate) target: String,
}

/// A box.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) status: SandboxStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<ImageSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<PlatformSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extensions: Option<BTreeMap<String, String>>,
    /// Without: it stays until it is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    pub(crate) created_at: String,
    pub(crate) entrypoint: Vec<String>,
}

/// Where a box stands.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxStatus {
    /// `Running`, `Paused`, `Terminated` or `Failed`.
    pub(crate) state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_transition_at: Option<String>,
}

/// A page of boxes.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListSandboxesResponse {
    pub(crate) items: Vec<Sandbox>,
    pub(crate) pagination: Pagination,
}

/// Which page this is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pagination {
    pub(crate) page: usize,
    pub(crate) page_size: usize,
    pub(crate) total_items: usize,
    pub(crate) total_pages: usize,
    pub(crate) has_next_page: bool,
}

/// Until when a box is to live, or does.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Expiration {
    /// RFC 3339.
    pub(crate) expires_at: String,
}

/// Where a port of a box is reached.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Endpoint {
    /// Host, port and path, without a scheme.
    pub(crate) endpoint: String,
    /// To be sent with every request there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<BTreeMap<String, String>>,
}

/// What a snapshot is to be called.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct CreateSnapshotRequest {
    pub(crate) name: Option<String>,
}

/// A state of a box that others can begin with.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) sandbox_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) status: SandboxStatus,
    pub(crate) created_at: String,
}

/// A page of snapshots.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ListSnapshotsResponse {
    pub(crate) items: Vec<Snapshot>,
    pub(crate) pagination: Pagination,
}

/// What a box may talk to, as it is in force.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyStatus {
    pub(crate) status: &'static str,
    pub(crate) mode: &'static str,
    pub(crate) enforcement_mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) policy: NetworkPolicy,
}
