//! `glass info`: what is known of a box.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{Level, LimitInForce, SandboxInfo, Volume};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};

use super::task;
use crate::args::{Global, unknown_box};
use crate::{output, table, terminal, words};

/// Show a box: its isolation, and what enforces each of its limits
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass info web
  glass info web --json | jq .limits")]
pub(crate) struct Info {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
}

impl Info {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let info = global.open()?.info(&self.name).await.map_err(unknown_box)?;
        match global.json {
            true => output::print_json(&json(&info))?,
            false => output::print(lines(&info))?,
        }
        Ok(0)
    }
}

/// The whole of it, also for lists.
pub(super) fn json(info: &SandboxInfo) -> Value {
    json!({
        "id": info.id,
        "name": info.name,
        "state": state(info),
        "runtime": info.runtime.name(),
        "level": info.level.name(),
        "missing": info.missing,
        "image": info.image.to_string(),
        "created_ms": info.created_ms,
        "pid": info.pid,
        "limits": limits_json(&info.limits),
        "labels": info.labels,
        "owner": info.owner,
        "ttl_ms": info.ttl_ms,
        "user": info.user,
        "cwd": info.cwd,
        "read_only": info.read_only,
        "deterministic": info.deterministic,
        "uncontrolled": info.uncontrolled,
        "recording": info.recording.name(),
        "tracking": info.tracking,
        "uid_base": info.uid_base,
        "task": task::json(info.task.as_ref()),
        "redact": info.redact,
        "volumes": info.volumes.iter().map(volume).collect::<Value>(),
        "tools": { "off": info.tools.off, "own": own_tools(info) },
    })
}

fn volume(volume: &Volume) -> Value {
    let host = volume.host.to_string_lossy();
    json!({ "host": host, "path": volume.path, "read_only": volume.read_only })
}

fn own_tools(info: &SandboxInfo) -> Vec<&str> {
    info.tools.own.iter().map(|tool| tool.name.as_str()).collect()
}

/// Limits with what enforces them, also for `doctor`.
pub(super) fn limits_json(limits: &[LimitInForce]) -> Value {
    let limit = |limit: &LimitInForce| {
        json!({
            "name": limit.name,
            "value": limit.value,
            "amount": limit.amount,
            "mechanism": limit.mechanism,
        })
    };
    limits.iter().map(limit).collect()
}

/// A limit as a row of a table, also for `doctor`.
pub(super) fn limit_row(limit: &LimitInForce) -> Vec<String> {
    vec![format!("  {}", limit.name), limit.value.clone(), limit.mechanism.clone()]
}

/// In a word.
pub(super) fn state(info: &SandboxInfo) -> &'static str {
    info.state.name()
}

/// `a=b,c=d`.
pub(super) fn labels(info: &SandboxInfo) -> String {
    info.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn lines(info: &SandboxInfo) -> Vec<String> {
    let mut rows = vec![("id", info.id.clone())];
    rows.extend(info.name.clone().map(|name| ("name", name)));
    rows.push(("state", state(info).to_owned()));
    rows.push(("level", info.level.to_string()));
    rows.push(("runtime", info.runtime.name().to_owned()));
    rows.push(("image", info.image.to_string()));
    rows.push(("root", if info.read_only { "read-only" } else { "writable" }.to_owned()));
    rows.extend((!info.user.is_empty()).then(|| ("user", info.user.clone())));
    rows.push(("directory", info.cwd.clone()));
    rows.extend(info.task.iter().flat_map(task::rows));
    rows.extend((!info.tools.off.is_empty()).then(|| ("tools off", info.tools.off.join(", "))));
    rows.extend((!info.tools.own.is_empty()).then(|| ("own tools", own_tools(info).join(", "))));
    rows.extend(info.volumes.iter().map(|volume| ("volume", volume.to_string())));
    rows.push(("recorded", info.recording.name().to_owned()));
    rows.extend(info.redact.iter().map(|pattern| ("not recorded", pattern.clone())));
    rows.push(("created", format!("{} ago", words::age(info.created_ms))));
    rows.extend(info.ttl_ms.map(|ms| ("lives for", words::span(Duration::from_millis(ms)))));
    rows.extend(info.owner.map(|pid| ("dies with", format!("process {pid}"))));
    rows.push(("process", info.pid.to_string()));
    rows.push(("commands", format!("told apart by {}", info.tracking)));
    rows.extend(info.uid_base.map(|uid| ("own users", format!("from {uid} on the host"))));
    rows.extend((!info.labels.is_empty()).then(|| ("labels", labels(info))));
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let mut lines = table::wrapped(&rows, terminal::width());
    if info.level < Level::Full {
        lines.push("missing".bold().to_string());
        let missing: Vec<Vec<String>> = info.missing.iter().map(|what| vec![format!("  {what}")]).collect();
        lines.extend(table::wrapped(&missing, terminal::width()));
    }
    if info.deterministic {
        lines.push("deterministic, but for".bold().to_string());
        let rows: Vec<Vec<String>> = info.uncontrolled.iter().map(|what| vec![format!("  {what}")]).collect();
        lines.extend(table::wrapped(&rows, terminal::width()));
    }
    lines.push("limits".bold().to_string());
    let limits: Vec<Vec<String>> = info.limits.iter().map(limit_row).collect();
    lines.extend(table::wrapped(&limits, terminal::width()));
    lines
}
