//! What happens to the boxes, for all who want to hear of it.
//!
//! ```text
//!   the house, the records ── looked at while somebody listens ──▶ what differs ──▶ events, numbered ──▶ each listener
//! ```
//! Whatever changes a box (this server, another one, `glass`) changes the state directory, so that is looked at, in one place
//! for all listeners. Events have numbers, and the last of them are kept: who comes back and names the last one he has heard gets
//! those that he missed; if they are not known any more, he is told all boxes anew, as at the beginning.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use glasshouse_sandbox::SandboxInfo;
use glasshouse_trace::{Event, Position, Reader};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use super::{Service, lifecycle};
use crate::limits::{EVENTS_KEPT, EVENTS_LINGER, LOOK, LOOK_SHARE};
use crate::random;
use crate::tenants;

/// Something that happened to a box.
#[derive(Debug)]
pub(super) struct News {
    /// From 1, in this run.
    number: u64,
    /// `created`, `changed`, `exec`, `step`, `state` or `ended`.
    pub(super) kind: &'static str,
    /// Whose box it is.
    pub(super) tenant: Option<String>,
    pub(super) data: Value,
}

/// Those who listen, and what they may have missed.
#[derive(Debug)]
pub(crate) struct Watch {
    kept: Mutex<Kept>,
    sender: broadcast::Sender<Arc<News>>,
    /// The run whose first look is done: what happens from then on is told.
    looked: watch::Sender<Option<String>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The name of the run that the numbers belong to; none while nobody looks.
    run: Option<String>,
    last: u64,
    news: VecDeque<Arc<News>>,
}

/// A listener.
#[derive(Debug)]
pub(super) struct Listener {
    run: String,
    /// What he has missed; or none, and he has to be told all boxes first.
    pub(super) missed: Option<Vec<Arc<News>>>,
    /// The last event before those that he receives.
    pub(super) last: u64,
    pub(super) news: broadcast::Receiver<Arc<News>>,
}

impl Listener {
    /// Waits until all that happens is told: a list that is made then misses nothing.
    pub(super) async fn ready(&self, service: &Service) {
        // The sender is the service's.
        let _ = service.watch.looked.subscribe().wait_for(|run| run.as_ref() == Some(&self.run)).await;
    }

    /// How an event is called by those who come back.
    pub(super) fn id(&self, number: u64) -> String {
        format!("{}-{number}", self.run)
    }
}

impl News {
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Watch {
    pub(super) fn new() -> Watch {
        let (sender, looked) = (broadcast::Sender::new(EVENTS_KEPT), watch::Sender::new(None));
        Watch { kept: Mutex::default(), sender, looked }
    }

    fn tell(&self, kind: &'static str, tenant: Option<String>, data: Value) {
        let mut kept = locked(&self.kept);
        kept.last += 1;
        let news = Arc::new(News { number: kept.last, kind, tenant, data });
        kept.news.push_back(news.clone());
        if kept.news.len() > EVENTS_KEPT {
            kept.news.pop_front();
        }
        // Under the lock, so that whoever comes now gets it once. That nobody listens is no matter.
        let _ = self.sender.send(news);
    }
}

/// Begins to listen. `after` is the id of the last event that the listener has heard.
pub(super) fn listen(service: &Arc<Service>, after: Option<&str>) -> std::io::Result<Listener> {
    let mut kept = locked(&service.watch.kept);
    if kept.run.is_none() {
        let run: String = random::hex()?.chars().take(8).collect();
        *kept = Kept { run: Some(run), ..Kept::default() };
        tokio::spawn(look_on(service.clone()));
    }
    let run = kept.run.clone().unwrap_or_default();
    let heard = after.and_then(|after| after.split_once('-')).filter(|(of, _)| *of == run);
    let heard: Option<u64> = heard.and_then(|(_, number)| number.parse().ok());
    // All that came after it has to be there.
    let first = kept.last + 1 - kept.news.len() as u64;
    let known = heard.filter(|heard| heard + 1 >= first && *heard <= kept.last);
    let missed = known.map(|heard| {
        kept.news.iter().filter(|news| news.number > heard).cloned().collect::<Vec<Arc<News>>>()
    });
    Ok(Listener { run, missed, last: kept.last, news: service.watch.sender.subscribe() })
}

/// What was last seen of a box.
struct Seen {
    told: Value,
    tenant: Option<String>,
    /// How far its record was read.
    read: Option<Position>,
}

/// Looks at the boxes for as long as somebody listens, and a little longer.
async fn look_on(service: Arc<Service>) {
    let (mut seen, mut heard_at): (HashMap<String, Seen>, _) = (HashMap::new(), Instant::now());
    let mut first = true;
    loop {
        let begun = Instant::now();
        // What cannot be read now is read the next time.
        if let Ok(infos) = service.house.list().await {
            let (looking, before) = (service.clone(), std::mem::take(&mut seen));
            let compared =
                tokio::task::spawn_blocking(move || compare(&looking, before, &infos, first)).await;
            let Ok(compared) = compared else { return forget(&service) };
            (seen, first) = (compared, false);
            service.watch.looked.send_replace(locked(&service.watch.kept).run.clone());
        }
        if service.watch.sender.receiver_count() > 0 {
            heard_at = Instant::now();
        } else if heard_at.elapsed() > EVENTS_LINGER && forgotten(&service) {
            return;
        }
        tokio::time::sleep(LOOK.max(begun.elapsed() * LOOK_SHARE)).await;
    }
}

fn forget(service: &Service) {
    locked(&service.watch.kept).run = None;
}

/// Whether nobody has come meanwhile: then the numbers end here.
fn forgotten(service: &Service) -> bool {
    let mut kept = locked(&service.watch.kept);
    let nobody = service.watch.sender.receiver_count() == 0;
    if nobody {
        kept.run = None;
    }
    nobody
}

/// Tells what differs from what was seen before. The first look only sees.
fn compare(
    service: &Service,
    mut before: HashMap<String, Seen>,
    infos: &[SandboxInfo],
    first: bool,
) -> HashMap<String, Seen> {
    let (watch, traces, blobs) = (&service.watch, service.house.traces_dir(), service.house.blobs_dir());
    let mut seen = HashMap::with_capacity(infos.len());
    for info in infos {
        let told = told(service, info);
        let tenant = info.labels.get(tenants::LABEL).cloned();
        let dir = traces.join(&info.id);
        let mut now = match before.remove(&info.id) {
            Some(then) => {
                if then.told != told {
                    watch.tell("changed", tenant.clone(), told.clone());
                }
                Seen { told, ..then }
            }
            None => {
                if !first {
                    watch.tell("created", tenant.clone(), told.clone());
                }
                // Of a new one all is news; of one that was there, what comes.
                let read = if first { Reader::end_of(&dir).ok() } else { Some(Position::default()) };
                Seen { told, tenant, read }
            }
        };
        now.read = news_of_record(watch, &dir, &blobs, &info.id, &now).or(now.read);
        seen.insert(info.id.clone(), now);
    }
    let mut gone: Vec<(String, Seen)> = before.into_iter().collect();
    gone.sort_by(|one, other| one.0.cmp(&other.0));
    for (id, then) in gone {
        // Its last steps come before its end.
        news_of_record(watch, &traces.join(&id), &blobs, &id, &then);
        watch.tell("ended", then.tenant, json!({ "id": id }));
    }
    seen
}

/// A box as the list tells it, with what the list does not tell.
pub(super) fn told(service: &Service, info: &SandboxInfo) -> Value {
    let record = service.rooms.record(info);
    let mut told = serde_json::to_value(lifecycle::view(info, record)).unwrap_or_default();
    told["level"] = json!(info.level.to_string());
    told
}

/// Tells what was done in a box since its record was last read. How far it was read.
fn news_of_record(watch: &Watch, dir: &Path, blobs: &Path, id: &str, seen: &Seen) -> Option<Position> {
    let mut reader = Reader::open_at(dir, blobs, seen.read.unwrap_or_default()).ok()?;
    for line in reader.by_ref().flatten() {
        let at = json!({ "id": id, "seq": line.seq, "timeMs": line.time_ms });
        let (kind, more) = match line.event {
            Event::Step(step) => (
                "step",
                json!({
                    "step": step.step, "tool": step.tool, "exec": step.exec, "exitCode": step.exit_code,
                    "wallUs": step.wall_us, "changed": step.state.as_ref().map(|state| state.changed),
                }),
            ),
            Event::ExecEnded { exec, report, .. } => {
                let code = report.exit.shell_code();
                ("exec", json!({ "exec": exec, "exitCode": code, "wallUs": report.wall_us }))
            }
            Event::State { what, snapshot, step, .. } => {
                ("state", json!({ "what": what, "snapshotId": snapshot, "step": step }))
            }
            _ => continue,
        };
        watch.tell(kind, seen.tenant.clone(), merged(at, more));
    }
    Some(reader.position())
}

/// One object of two; what is not there is left out.
fn merged(one: Value, other: Value) -> Value {
    let fields = |value: Value| match value {
        Value::Object(fields) => fields.into_iter().collect::<BTreeMap<String, Value>>(),
        _ => BTreeMap::new(),
    };
    let mut all = fields(one);
    all.extend(fields(other));
    all.retain(|_, value| !value.is_null());
    all.into_iter().collect::<serde_json::Map<String, Value>>().into()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_left_out() {
        let both = merged(json!({ "a": 1, "b": null }), json!({ "c": null, "d": 2 }));
        assert_eq!(both, json!({ "a": 1, "d": 2 }));
    }

    #[test]
    fn events_are_numbered_and_no_more_are_kept_than_may_be() {
        let watch = Watch::new();
        for n in 0..EVENTS_KEPT + 10 {
            watch.tell("step", None, json!(n));
        }
        let kept = locked(&watch.kept);
        assert_eq!((kept.news.len(), kept.last), (EVENTS_KEPT, EVENTS_KEPT as u64 + 10));
        assert_eq!(kept.news.front().unwrap().number(), 11);
    }
}
