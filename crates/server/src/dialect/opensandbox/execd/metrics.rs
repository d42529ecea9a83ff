//! What a box uses. Counted are the processes that live in it: their memory, and the processor time that they took.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use glasshouse_sandbox::{ExecSpec, Program};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files::failed;
use super::{Here, fault};
use crate::clock::now_ms;
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::Answer;
use crate::dialect::opensandbox::rooms::Room;
use crate::limits::ASK_TIMEOUT_MS;

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

/// What a box had used when it was last asked.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    at_ms: u64,
    ticks: u64,
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
    // The shell reads its own entry as well; it is as small as one.
    let script = "cat /proc/[0-9]*/stat 2>/dev/null; echo; grep -E '^(MemTotal|processor)' /proc/meminfo /proc/cpuinfo";
    let spec = ExecSpec {
        program: Program::Shell(script.to_owned()),
        timeout_ms: Some(ASK_TIMEOUT_MS),
        ..ExecSpec::default()
    };
    let output = room.sandbox.exec(spec).await.map_err(fault)?.collect().await;
    let text = String::from_utf8_lossy(&output.stdout.bytes).into_owned();
    let seen =
        Seen::of(&text).ok_or_else(|| failed("the sandbox cannot tell what it uses: it has no /proc"))?;
    let limit = |name: &str| {
        let limit = room.sandbox.info().limits.iter().find(|limit| limit.name == name);
        limit.and_then(|limit| limit.amount).map(|amount| amount as f64)
    };
    let cpu_count = limit("cpu").map_or(seen.cpus as f64, |thousandths| thousandths / 1000.0);
    let mem_total_mib = limit("memory").unwrap_or(seen.memory_bytes as f64) / MIB;
    let now = now_ms();
    let before = {
        let mut usage = room.usage.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *usage, Usage { at_ms: now, ticks: seen.ticks })
    };
    let since_ms = if before.at_ms == 0 { room.sandbox.info().created_ms } else { before.at_ms };
    // Processes that have ended take their time with them: then it seems to go back.
    let used_s = seen.ticks.saturating_sub(before.ticks) as f64 / TICKS_PER_S;
    let passed_s = now.saturating_sub(since_ms).max(1) as f64 / 1000.0;
    Ok(Metrics {
        cpu_count,
        cpu_used_pct: (used_s / passed_s / cpu_count * 100.0).clamp(0.0, 100.0),
        mem_total_mib,
        mem_used_mib: (seen.pages as f64 * PAGE / MIB).min(mem_total_mib),
        timestamp: now,
    })
}

const MIB: f64 = 1_048_576.0;
const PAGE: f64 = 4096.0;
/// Linux counts in hundredths of a second towards programs, on every machine.
const TICKS_PER_S: f64 = 100.0;

/// What the files of /proc say.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    ticks: u64,
    pages: u64,
    cpus: u64,
    memory_bytes: u64,
}

impl Seen {
    fn of(text: &str) -> Option<Seen> {
        let mut seen = Seen::default();
        for line in text.lines() {
            if line.contains("processor") {
                seen.cpus += 1;
            } else if let Some((_, rest)) = line.split_once("MemTotal:") {
                seen.memory_bytes = rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
            } else if let Some((_, rest)) = line.rsplit_once(") ") {
                // The name is in parentheses and may hold anything; what follows is numbers from the third on.
                let words: Vec<&str> = rest.split(' ').collect();
                let number =
                    |at: usize| words.get(at - 3).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
                seen.ticks += number(14) + number(15);
                seen.pages += number(24);
            }
        }
        (seen.cpus > 0 && seen.memory_bytes > 0).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_added_up() {
        let process = "7 (a) b (c) S 0 1 1 0 -1 4194624 58 0 0 0 20 5 0 0 25 5 1 0 5262444 2281472 256 1844";
        let text = format!(
            "{process}\n{process}\n\n/proc/meminfo:MemTotal:       24682416 kB\n/proc/cpuinfo:processor\t: 0\n"
        );
        let expected = Seen { ticks: 50, pages: 512, cpus: 1, memory_bytes: 24_682_416 * 1024 };
        assert_eq!(Seen::of(&text), Some(expected));
        assert_eq!(Seen::of(""), None);
    }
}
