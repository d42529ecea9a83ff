//! What a box uses. Counted are the processes that live in it: their memory, and the processor time that they and those that they
//! have collected took.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files::failed;
use super::{Here, fault};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::Answer;
use crate::dialect::opensandbox::rooms::Room;
use crate::limits::PROC_FILE_BYTES;
use crate::usage::{self, Sample};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(metrics)).routes(routes!(watch))
}

/// What a box has, and uses of it.
#[derive(Debug, Serialize, ToSchema)]
struct Metrics {
    cpu_count: f64,
    /// Of what it has, since the last question.
    cpu_used_pct: f64,
    mem_total_mib: f64,
    mem_used_mib: f64,
    /// Milliseconds since 1970.
    timestamp: u64,
}

/// What the box uses
#[utoipa::path(get, path = "/metrics", tag = "execution", responses((status = 200, description = "Now", body = Metrics)))]
async fn metrics(Here(room): Here) -> Answer<Json<Metrics>> {
    measure(&room).await.map(Json)
}

/// What the box uses, every second
#[utoipa::path(get, path = "/metrics/watch", tag = "execution",
    responses((status = 200, description = "A line each", content_type = "text/event-stream", body = String)))]
async fn watch(Here(room): Here) -> Answer<Response> {
    const EVERY: Duration = Duration::from_secs(1);
    let first = line(&room).await?;
    let lines = stream::unfold((room, Some(first)), |(room, first)| async move {
        if let Some(first) = first {
            return Some((Ok::<_, std::convert::Infallible>(first), (room, None)));
        }
        tokio::time::sleep(EVERY).await;
        // A box that is gone has no more to tell.
        line(&room).await.ok().map(|line| (Ok(line), (room, None)))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(lines)).into_response())
}

async fn line(room: &Room) -> Answer<String> {
    let metrics = measure(room).await?;
    serde_json::to_string(&metrics).map(|text| text + "\n").map_err(|e| failed(e.to_string()))
}

async fn measure(room: &Room) -> Answer<Metrics> {
    let (sample, machine) = look(room).await?;
    let limit = |name: &str| {
        let limit = room.sandbox.info().limits.iter().find(|limit| limit.name == name);
        limit.and_then(|limit| limit.amount).map(|amount| amount as f64)
    };
    let cpu_count = limit("cpu").map_or(machine.cpus as f64, |thousandths| thousandths / 1000.0);
    let mem_total_mib = limit("memory").unwrap_or(machine.memory_bytes as f64) / MIB;
    let before = room.usage.lock().unwrap_or_else(PoisonError::into_inner).replace(sample);
    let before = before.unwrap_or(Sample { at_ms: room.sandbox.info().created_ms, ..Sample::default() });
    // Those that were not collected take their time with them: then it seems to go back.
    let used_ms = sample.cpu_ms.saturating_sub(before.cpu_ms) as f64;
    let passed_ms = sample.at_ms.saturating_sub(before.at_ms).max(1) as f64;
    Ok(Metrics {
        cpu_count,
        cpu_used_pct: (used_ms / passed_ms / cpu_count * 100.0).clamp(0.0, 100.0),
        mem_total_mib,
        mem_used_mib: (sample.memory_bytes as f64 / MIB).min(mem_total_mib),
        timestamp: sample.at_ms,
    })
}

const MIB: f64 = 1_048_576.0;

/// Looks from outside: nothing is run in the box for it, and nothing put on its record. Only a box whose processes are not to be
/// seen here is asked for its own files of /proc; that is on no record either.
async fn look(room: &Room) -> Answer<(Sample, Machine)> {
    let lost = |e: tokio::task::JoinError| failed(e.to_string());
    let info = room.sandbox.info().clone();
    let seen = tokio::task::spawn_blocking(move || {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let machine = Machine::of(&read("/proc/meminfo"), &read("/proc/cpuinfo"));
        usage::now(&info).zip(machine)
    });
    if let Some(seen) = seen.await.map_err(lost)? {
        return Ok(seen);
    }
    let sandbox = &room.sandbox;
    let read = async |path: &str| {
        let bytes = sandbox.read_file(path, 0, Some(PROC_FILE_BYTES)).await.map_err(fault)?;
        Answer::Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let machine = Machine::of(&read("/proc/meminfo").await?, &read("/proc/cpuinfo").await?);
    let machine = machine.ok_or_else(|| failed("the sandbox cannot tell what it uses: it has no /proc"))?;
    let mut stats = Vec::new();
    for entry in sandbox.list_dir("/proc", None, None).await.map_err(fault)?.entries {
        if entry.name.bytes().all(|byte| byte.is_ascii_digit()) {
            // One that has ended meanwhile is not there any more.
            stats.extend(read(&format!("/proc/{}/stat", entry.name)).await.ok());
        }
    }
    Ok((usage::told(stats), machine))
}

/// What there is, where nothing is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Machine {
    cpus: usize,
    memory_bytes: u64,
}

impl Machine {
    fn of(meminfo: &str, cpuinfo: &str) -> Option<Machine> {
        let memory = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let memory_bytes = memory.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
        let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        (cpus > 0 && memory_bytes > 0).then_some(Machine { cpus, memory_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_of_the_machine_is_read() {
        let found = Machine::of(
            "MemTotal:       24682416 kB\nMemFree: 1 kB\n",
            "processor\t: 0\nflags\nprocessor\t: 1\n",
        );
        assert_eq!(found, Some(Machine { cpus: 2, memory_bytes: 24_682_416 * 1024 }));
        assert_eq!(Machine::of("", ""), None);
    }
}
