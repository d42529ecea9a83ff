//! The boxes that are served: the way to each, when it expires, and what it runs.
//!
//! Whether a box is there, and lives, is asked of the house for every request. What is kept here is only the open way to it,
//! and is made anew when the box was started anew meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use glasshouse_sandbox::{ErrorKind, Sandbox, SandboxInfo, SandboxState, Sandboxes};
use serde_json::json;
use tokio::sync::{Notify, OnceCell};

use super::Service;
use super::create::{only_waits, renewal_s};
use super::execd::{Commands, Terminals};
use super::fault::{Answer, Fault};
use super::metadata::{self, Metadata};
use super::records::{Ended, Record, Records};
use crate::clock::now_ms;
use crate::limits::RENEW_PAUSE;
use crate::usage::Sample;

/// The label of a box that says when it was to expire when it was made. A box has it from its first moment, and a record a
/// moment later: if the server dies between, the box still goes.
pub(crate) const EXPIRES_LABEL: &str = "opensandbox.io/expires-ms";
/// What the command is called that runs a box's entrypoint.
pub(crate) const ENTRYPOINT: &str = "entrypoint";

/// All of them.
#[derive(Debug)]
pub(crate) struct Rooms {
    house: Sandboxes,
    pub(crate) records: Records,
    open: Mutex<HashMap<String, Arc<OnceCell<Arc<Room>>>>>,
    expiring: Mutex<HashMap<String, u64>>,
    /// Held by whoever changes a record: what he read is not to change before he writes.
    amending: Mutex<()>,
    /// When boxes that live on with every request were last looked at for that.
    accessed: Mutex<HashMap<String, Instant>>,
    /// Something expires earlier or later than before.
    changed: Notify,
}

/// A box that is in use.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) sandbox: Sandbox,
    pub(crate) commands: Commands,
    pub(crate) terminals: Terminals,
    /// The shell that commands are given to.
    pub(crate) shell: OnceCell<&'static str>,
    /// What it used when it was last asked.
    pub(crate) usage: Mutex<Option<Sample>>,
}

impl Rooms {
    pub(crate) fn new(house: Sandboxes, records: Records) -> Rooms {
        let (open, expiring, changed) = (Mutex::default(), Mutex::default(), Notify::new());
        let (amending, accessed) = (Mutex::default(), Mutex::default());
        Rooms { house, records, open, expiring, amending, accessed, changed }
    }

    /// What is known of a box, by its whole id.
    pub(crate) async fn info(&self, id: &str) -> Answer<SandboxInfo> {
        match self.house.info(id).await {
            Ok(info) if info.id == id => Ok(info),
            Ok(_) => Err(Fault::no_box(id)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid) => Err(Fault::no_box(id)),
            Err(e) => Err(e.into()),
        }
    }

    /// What is remembered of a box; of one that others made, what its labels say.
    pub(crate) fn record(&self, info: &SandboxInfo) -> Record {
        self.records.get(&info.id).unwrap_or_else(|| {
            let expires_ms = info.labels.get(EXPIRES_LABEL).and_then(|text| text.parse().ok());
            Record { expires_ms, ..Record::default() }
        })
    }

    /// Remembers something of a box.
    pub(crate) fn remember(&self, id: &str, record: &Record) -> Answer<()> {
        self.records.put(id, record)?;
        self.expire_at(id, record.expires_ms);
        Ok(())
    }

    /// Changes what is remembered of a box, and nothing else of it: those who change other things at the same time do so, too. What
    /// is remembered then; nothing is changed if it is refused.
    pub(crate) fn amend(
        &self,
        info: &SandboxInfo,
        change: impl FnOnce(&mut Record) -> Answer<()>,
    ) -> Answer<Record> {
        let _amending = locked(&self.amending);
        let mut record = self.record(info);
        change(&mut record)?;
        self.remember(&info.id, &record)?;
        Ok(record)
    }

    /// Somebody uses a port of a box: it lives longer, if its maker wants that. Looked at once in a while for each box.
    pub(crate) fn accessed(&self, id: &str) -> Answer<()> {
        // Boxes that are not there have no place here, so that nobody can fill it.
        if !locked(&self.expiring).contains_key(id) {
            return Ok(());
        }
        {
            let mut accessed = locked(&self.accessed);
            if accessed.get(id).is_some_and(|last| last.elapsed() < RENEW_PAUSE) {
                return Ok(());
            }
            accessed.insert(id.to_owned(), Instant::now());
        }
        let _amending = locked(&self.amending);
        let Some(record) = self.records.get(id) else { return Ok(()) };
        let renewed = renewal_s(&record.extensions)?.map(|seconds| now_ms() + seconds * 1000);
        match (renewed, record.expires_ms) {
            (Some(at), Some(now)) if at > now => {
                self.remember(id, &Record { expires_ms: Some(at), ..record })
            }
            _ => Ok(()),
        }
    }

    /// The way to a box in which something can be done.
    pub(crate) async fn room(&self, id: &str) -> Answer<Arc<Room>> {
        let known = locked(&self.open).get(id).and_then(|cell| cell.get().cloned());
        if let Some(room) = known
            && room.sandbox.runs_on()? == Some(true)
        {
            return Ok(room);
        }
        let info = match self.info(id).await {
            Err(fault) if fault.status() == StatusCode::NOT_FOUND => {
                // Somebody else has ended it: the way to it leads nowhere.
                self.leave(id);
                return Err(fault);
            }
            found => found?,
        };
        match info.state {
            SandboxState::Running => {}
            SandboxState::Paused | SandboxState::Stopped => {
                let message = format!("sandbox {id} does not run; resume it first");
                return Err(Fault::conflict("DOCKER::SANDBOX_NOT_RUNNING", message));
            }
            SandboxState::Dead => return Err(Fault::no_box(id)),
        }
        let same = |room: &Room| {
            let known = room.sandbox.info();
            (known.pid, known.start_ticks) == (info.pid, info.start_ticks)
        };
        let cell = {
            let mut open = locked(&self.open);
            let cell = open.entry(id.to_owned()).or_default();
            if cell.get().is_some_and(|room| !same(room)) {
                *cell = Arc::default();
            }
            cell.clone()
        };
        let connect = || async { self.house.get(id).await.map(|sandbox| Arc::new(Room::new(sandbox))) };
        Ok(cell.get_or_try_init(connect).await.map_err(|e| Fault::of_box(id, e))?.clone())
    }

    /// Takes in a box that was just made or started.
    pub(crate) fn enter(&self, sandbox: Sandbox) -> Arc<Room> {
        let (id, room) = (sandbox.id().to_owned(), Arc::new(Room::new(sandbox)));
        locked(&self.open).insert(id, Arc::new(OnceCell::from(room.clone())));
        room
    }

    /// Gives up the way to a box.
    pub(crate) fn leave(&self, id: &str) {
        locked(&self.open).remove(id);
    }

    /// Whether this is the way to a box that is in use.
    fn is_open(&self, room: &Arc<Room>) -> bool {
        let open = locked(&self.open);
        let known = open.get(room.sandbox.id()).and_then(|cell| cell.get());
        known.is_some_and(|known| Arc::ptr_eq(known, room))
    }

    /// Ends a box and forgets it.
    pub(crate) async fn destroy(&self, id: &str) -> Answer<()> {
        self.leave(id);
        match self.house.destroy(id).await {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        self.records.remove(id);
        self.expire_at(id, None);
        locked(&self.accessed).remove(id);
        Ok(())
    }

    /// Ends a box whose entrypoint has ended. What it wrote stays.
    async fn ended(&self, id: &str, ended: Ended) -> Answer<()> {
        let info = self.info(id).await?;
        self.amend(&info, |record| {
            (record.ended, record.since_ms) = (Some(ended), Some(now_ms()));
            Ok(())
        })?;
        self.leave(id);
        self.house.stop(id).await?;
        Ok(())
    }

    fn expire_at(&self, id: &str, expires_ms: Option<u64>) {
        let mut expiring = locked(&self.expiring);
        match expires_ms {
            Some(at) => drop(expiring.insert(id.to_owned(), at)),
            None => drop(expiring.remove(id)),
        }
        drop(expiring);
        self.changed.notify_one();
    }

    /// The boxes whose time is over, and how long it is until the next one's is.
    fn due(&self) -> (Vec<String>, Option<Duration>) {
        let (now, expiring) = (now_ms(), locked(&self.expiring));
        let over = expiring.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
        let next = expiring.values().filter(|at| **at > now).min();
        (over, next.map(|at| Duration::from_millis(at - now)))
    }
}

impl Room {
    fn new(sandbox: Sandbox) -> Room {
        let (commands, terminals) = (Commands::default(), Terminals::default());
        Room { sandbox, commands, terminals, shell: OnceCell::new(), usage: Mutex::default() }
    }
}

/// Takes up the boxes that are there, and forgets those that are not.
pub(crate) async fn adopt(service: &Arc<Service>) -> glasshouse_sandbox::Result<()> {
    let rooms = &service.rooms;
    let infos = rooms.house.list().await?;
    for id in rooms.records.ids().unwrap_or_default() {
        if !infos.iter().any(|info| info.id == id) {
            rooms.records.remove(&id);
        }
    }
    let snapshots =
        rooms.house.snapshots().await?.into_iter().map(|snapshot| snapshot.id).collect::<Vec<_>>();
    service.tenants.sweep(&rooms.house.traces_dir(), &snapshots);
    for info in &infos {
        // One that was made when the server died has its label, and may lack its mark.
        let _ = super::lifecycle::mark(service, info);
        let mut record = rooms.record(info);
        if let Some(metadata) = record.metadata.take() {
            // One that cannot be written down now is told as it was made, and tried again at the next start.
            let _ = take_over(rooms, info, metadata).await;
        }
        rooms.expire_at(&info.id, record.expires_ms);
        let runs = !record.entrypoint.is_empty() && !only_waits(&record.entrypoint);
        if runs && info.state.is_alive() {
            let (service, id) = (service.clone(), info.id.clone());
            // Beside all else: whoever starts a server does not want to wait for each box.
            tokio::spawn(async move {
                if let Ok(room) = service.rooms.room(&id).await {
                    watch_entrypoint(service, room);
                }
            });
        }
    }
    Ok(())
}

/// Makes labels of what an older server remembered of a box beside them.
async fn take_over(rooms: &Rooms, info: &SandboxInfo, metadata: Metadata) -> Answer<()> {
    let change = move |labels: &mut Metadata| {
        labels.retain(|name, _| metadata::is_reserved(name));
        labels.extend(metadata);
    };
    rooms.house.relabel(&info.id, change).await?;
    rooms.amend(info, |record| {
        record.metadata = None;
        Ok(())
    })?;
    Ok(())
}

/// Removes boxes whose time is over, for as long as the server lives.
pub(crate) async fn reap(service: Arc<Service>) {
    /// A clock that is set meanwhile is noticed in this time.
    const LOOK_AGAIN: Duration = Duration::from_secs(60);
    loop {
        let (over, next) = service.rooms.due();
        for id in over {
            // It is off the list whatever happens: one that cannot be removed would be tried without end.
            service.rooms.expire_at(&id, None);
            let service = service.clone();
            tokio::spawn(async move {
                match service.rooms.destroy(&id).await {
                    Ok(()) => service.log().info("expired", || json!({ "sandbox": id })),
                    Err(fault) => {
                        let more = || json!({ "sandbox": id, "message": fault.message() });
                        service.log().error("an expired sandbox cannot be removed", more);
                    }
                }
            });
        }
        let wait = next.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        // Not waiting long enough means only looking once more.
        let _ = tokio::time::timeout(wait, service.rooms.changed.notified()).await;
    }
}

/// Ends a box when its entrypoint ends.
pub(crate) fn watch_entrypoint(service: Arc<Service>, room: Arc<Room>) {
    tokio::spawn(async move {
        let Some(command) = room.commands.find(&room.sandbox, ENTRYPOINT).await.ok().flatten() else {
            return;
        };
        let end = command.ended().await;
        // A box that is gone took its entrypoint with it, and so did one that was put back: the way to it was given up then.
        if !end.box_gone && service.rooms.is_open(&room) {
            let ended = Ended { success: end.exit_code == Some(0), how: end.how };
            let id = room.sandbox.id();
            let how = ended.how.clone();
            match service.rooms.ended(id, ended).await {
                Ok(()) => service.log().info("ended", || json!({ "sandbox": id, "how": how })),
                // Somebody has removed it meanwhile.
                Err(fault) if fault.status() == StatusCode::NOT_FOUND => {}
                Err(fault) => {
                    let more = || json!({ "sandbox": id, "message": fault.message() });
                    service.log().error("a sandbox whose entrypoint has ended cannot be stopped", more);
                }
            }
        }
    });
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
