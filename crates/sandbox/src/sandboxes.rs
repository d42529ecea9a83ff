//! The house: all boxes of one state directory.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use glasshouse_trace::{Event, Reader, Retention, SecretPattern, prune};
use tokio::task::JoinSet;

use crate::client::{Line, Link};
use crate::driver;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, unfinished};
use crate::image;
use crate::limits::{
    DURABLE_AFTER, ENV_BYTES, LAST_WORDS_TIMEOUT, REDACT_PATTERNS, TRACES_KEPT, TRACES_KEPT_BYTES,
};
use crate::record::{Record, may_be_secret};
use crate::runtime::docker::EngineSettings;
use crate::runtime::native::faults;
use crate::runtime::{Children, Created, Runtime, RuntimeReport, Runtimes, volume};
use crate::sandbox::Sandbox;
use crate::snapshot::{layers, records};
use crate::spec::{Image, Recording, RuntimeKind, SandboxInfo, SandboxSpec, SandboxState};
use crate::state::steps::Steps;
use crate::threads::blocking;
use crate::tools::{self, RustTool};

/// Where the house stands.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The state directory. Made if it is missing, closed to other users.
    pub home: PathBuf,
}

/// All boxes of one state directory. Other processes may use the same one at the same time.
#[derive(Clone)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

struct Inner {
    home: Home,
    runtimes: Runtimes,
    children: Children,
    /// What is done beside what callers wait for.
    chores: Mutex<JoinSet<()>>,
    /// Tools that are Rust values, for every box.
    tools: Mutex<Vec<RustTool>>,
    /// Directories of the host below which boxes may be given some.
    volumes: Mutex<Vec<PathBuf>>,
    /// Boxes that were made, so far.
    made: AtomicUsize,
    /// Somebody waits to put snapshots on the disk.
    durable_waits: AtomicBool,
}

/// What was left behind, and is removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Boxes that had died.
    pub boxes: Vec<String>,
    /// Boxes' cgroups without a box.
    pub cgroups: usize,
    /// Containers without a box.
    pub containers: usize,
    /// Directories on their way out.
    pub directories: usize,
    /// Records of boxes that are gone, beyond what is kept.
    pub traces: usize,
    /// Contents that no record names.
    pub blobs: usize,
    /// Layers that no box, snapshot or image stands on.
    pub layers: usize,
    /// Snapshots whose records are damaged. They are not removed; while they are there no layer is, since they may stand
    /// on any.
    pub damaged_snapshots: Vec<String>,
    /// Snapshots that were not on the disk yet, and are now.
    pub made_durable: usize,
}

impl std::fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandboxes").field("home", &self.inner.home).finish()
    }
}

impl Sandboxes {
    /// Opens a house.
    pub fn open(settings: Settings) -> Result<Sandboxes> {
        Sandboxes::open_with(settings, EngineSettings::default())
    }

    /// Opens a house whose boxes of the runtime `docker` are on this engine. The engine is not asked before it is needed.
    pub fn open_with(settings: Settings, engine: EngineSettings) -> Result<Sandboxes> {
        let home = Home::open(settings.home)?;
        let runtimes = Runtimes::new(&home, engine)?;
        let (children, chores, tools) = (Children::default(), Mutex::default(), Mutex::default());
        let (volumes, made, durable_waits) = (Mutex::default(), AtomicUsize::new(0), AtomicBool::new(false));
        let inner = Inner { home, runtimes, children, chores, tools, volumes, made, durable_waits };
        Ok(Sandboxes { inner: Arc::new(inner) })
    }

    /// Makes a box. It is usable when this comes back; if it fails, nothing is left.
    ///
    /// One of a snapshot is deterministic, and recorded, as the box was that the snapshot is of, unless the spec says otherwise.
    pub async fn create(&self, mut spec: SandboxSpec) -> Result<Sandbox> {
        check(&spec)?;
        self.inherit(&mut spec)?;
        if spec.engine_runtime.is_some() && spec.runtime != RuntimeKind::Docker {
            let message = "only boxes of the runtime `docker` have a runtime of an engine (--engine-runtime)";
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        tools::check(&spec, &self.rust_tools())?;
        let (house, mut asked) = (self.clone(), spec.clone());
        let image = self.have_image(&spec.image).await?;
        let created = blocking(move || {
            let home = &house.inner.home;
            house.admit_volumes(&mut asked)?;
            // Until the box is on record, nothing says that its layers are in use.
            let _share = home.store_shared()?;
            let base = house.at_hand(asked.runtime, image::resolve(home, &image)?)?;
            house.inner.runtimes.get(asked.runtime).create(&new_id()?, &asked, &base)
        })
        .await?;
        let forked_from = match &spec.image {
            // Where a task begins is known by the task.
            Image::Snapshot(name) if spec.task.is_none() => Some(name.clone()),
            _ => None,
        };
        if self.inner.made.fetch_add(1, Ordering::Relaxed) > 0 && !faults::nothing_ahead() {
            // Who makes boxes one after the other finds the next one begun.
            self.tidy_later(spec.runtime, None);
        }
        self.welcome(created, &spec, forked_from).await
    }

    /// Takes over from the snapshot that a box is made from, if it is, what nobody has said otherwise.
    pub(crate) fn inherit(&self, spec: &mut SandboxSpec) -> Result<()> {
        if let Image::Snapshot(name) = &spec.image {
            spec.inherit(&records::find(&self.inner.home, name)?);
        }
        Ok(())
    }

    /// Takes up a box that has just been made.
    pub(crate) async fn welcome(
        &self,
        created: Created,
        spec: &SandboxSpec,
        forked_from: Option<String>,
    ) -> Result<Sandbox> {
        let Created { info, stream, pidfd } = created;
        self.inner.children.reap();
        self.inner.children.add(pidfd);
        let mut record = self.record(&info, &spec.env);
        record.created(&info, &spec.env, forked_from).await;
        match Link::start(stream).await {
            Ok(link) => Ok(self.drive(info, link, record)),
            Err(e) => {
                // It died in this moment: then it never was.
                record.box_ended("it ended as soon as it was made").await;
                self.remove(info).await?;
                Err(e)
            }
        }
    }

    /// Takes up a box that was stopped and lives again.
    pub(crate) async fn take_up_again(&self, created: Created, env: &[(String, String)]) -> Result<Sandbox> {
        let Created { info, stream, pidfd } = created;
        self.inner.children.reap();
        self.inner.children.add(pidfd);
        let mut record = self.record(&info, env);
        record.state("start", None, None, None).await;
        let link = Link::start(stream).await?;
        Ok(self.drive(info, link, record))
    }

    /// Allows boxes that are made from now on to be given directories below these of the host, and no others. They have to be
    /// whole paths, and what leads to them has to be nobody else's to change.
    pub fn allow_volumes(&self, below: Vec<PathBuf>) -> Result<()> {
        if let Some(path) = below.iter().find(|path| !path.is_absolute()) {
            let message = format!("{} cannot hold volumes: say the whole path", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        *self.inner.volumes.lock().unwrap_or_else(PoisonError::into_inner) = below;
        Ok(())
    }

    /// Looks for the volumes of a box that is to be made, or refuses them.
    pub(crate) fn admit_volumes(&self, spec: &mut SandboxSpec) -> Result<()> {
        let allowed = self.inner.volumes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        volume::admit(spec, &allowed, &self.inner.home)
    }

    /// Gives every box of this house a further tool, as long as this process lives.
    pub fn add_tool(&self, tool: RustTool) -> Result<()> {
        let mut tools = self.inner.tools.lock().unwrap_or_else(PoisonError::into_inner);
        tools::check_rust(&tool, &tools)?;
        tools.push(tool);
        Ok(())
    }

    pub(crate) fn rust_tools(&self) -> Vec<RustTool> {
        self.inner.tools.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Does something that no caller waits for.
    pub(crate) fn chore(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut chores = self.inner.chores.lock().unwrap_or_else(PoisonError::into_inner);
        while chores.try_join_next().is_some() {}
        chores.spawn(work);
    }

    /// Puts snapshots on the disk after a while, if the house is still there then. Nobody waits for it, not even who settles:
    /// a program that ends before leaves it to `gc`.
    pub(crate) fn make_durable_later(&self) {
        if self.inner.durable_waits.swap(true, Ordering::Relaxed) {
            return;
        }
        let house = Arc::downgrade(&self.inner);
        tokio::spawn(async move {
            tokio::time::sleep(DURABLE_AFTER).await;
            let Some(inner) = house.upgrade() else { return };
            // Those that are taken from here on wait for the next one.
            inner.durable_waits.store(false, Ordering::Relaxed);
            // What could not be done now is done by the next one, or by `gc`.
            let _ = blocking(move || records::make_durable(&inner.home)).await;
        });
    }

    /// Waits for what is done beside what callers wait for: for a program that is about to end.
    pub async fn settle(&self) {
        let mut chores =
            std::mem::take(&mut *self.inner.chores.lock().unwrap_or_else(PoisonError::into_inner));
        while chores.join_next().await.is_some() {}
    }

    pub(crate) fn home(&self) -> &Home {
        &self.inner.home
    }

    /// The runtime of containers, for what no other has.
    pub(crate) fn containers(&self) -> &crate::runtime::docker::Docker {
        self.inner.runtimes.docker()
    }

    pub(crate) fn runtime(&self, kind: RuntimeKind) -> &dyn Runtime {
        self.inner.runtimes.get(kind)
    }

    pub(crate) fn record(&self, info: &SandboxInfo, env: &[(String, String)]) -> Record {
        let values = env.iter().map(|(_, value)| value).filter(|value| may_be_secret(value));
        let secrets = values.map(|value| value.clone().into_bytes()).collect();
        // They were looked at when the box was made.
        let patterns = info.redact.iter().filter_map(|text| SecretPattern::parse(text).ok()).collect();
        Record::open(&self.inner.home, &info.id, secrets, patterns)
    }

    fn drive(&self, info: SandboxInfo, link: Link, record: Record) -> Sandbox {
        let kept = info.limits.iter().find(|limit| limit.name == "output").and_then(|limit| limit.amount);
        let kept = kept.unwrap_or(glasshouse_protocol::limits::KEPT_OUTPUT_BYTES);
        let steps = Steps::new(self.clone(), &info);
        let (house, id, pid) = (self.clone(), info.id.clone(), info.pid);
        let line = Line::new(link, move || house.another_guest(&id, pid));
        Sandbox::new(info, driver::start(line, record, steps, kept), self.clone())
    }

    /// A stream to the guest of a box, if its first process is another one than it was.
    fn another_guest(&self, id: &str, pid: i32) -> Option<UnixStream> {
        let info = self.inner.home.read_info(id).ok()??;
        // On another machine it may be the way to it alone that was lost.
        let another = info.pid != pid || info.start_ticks == crate::runtime::ELSEWHERE;
        let lives = info.state.is_alive() && another;
        if lives { self.inner.runtimes.get(info.runtime).connect(&info).ok() } else { None }
    }

    /// A living box, by its id, the beginning of it, or its name.
    pub async fn get(&self, name: &str) -> Result<Sandbox> {
        let info = self.info(name).await?;
        match info.state {
            SandboxState::Running | SandboxState::Paused => {}
            SandboxState::Stopped => {
                let message = format!("box {0} is stopped; `glass start {0}` starts it again", info.id);
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            SandboxState::Dead => {
                let message = format!("box {} has ended; `glass gc` removes what is left", info.id);
                return Err(Error::new(ErrorKind::Gone, message));
            }
        }
        let link = self.reach(&info).await?;
        let mut record = self.record(&info, &[]);
        driver::collect_unrecorded(&link, &mut record).await?;
        Ok(self.drive(info, link, record))
    }

    /// A link to the guest of a box that lives.
    async fn reach(&self, info: &SandboxInfo) -> Result<Link> {
        let (house, to) = (self.clone(), info.clone());
        let connect = move || house.inner.runtimes.get(to.runtime).connect(&to);
        // On another machine it takes its time.
        let stream =
            if info.start_ticks == crate::runtime::ELSEWHERE { blocking(connect).await } else { connect() };
        Link::start(stream?).await
    }

    /// What is known of a box, living or not yet cleaned up.
    pub async fn info(&self, name: &str) -> Result<SandboxInfo> {
        let id = self.inner.home.resolve(name)?;
        self.inner.home.read_info(&id)?.ok_or_else(|| unfinished(&id))
    }

    /// Changes the labels of a box, living or not, and those that its forks will have. What is known of it then.
    ///
    /// Whoever holds the box's record changes it alone; `change` is given the labels that it has in that moment.
    pub async fn relabel(
        &self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) + Send + 'static,
    ) -> Result<SandboxInfo> {
        let (house, id) = (self.clone(), self.inner.home.resolve(name)?);
        blocking(move || {
            let home = &house.inner.home;
            let _turn = home.lock_box(&id)?;
            // As it was written: whether it lives is no part of it.
            let mut record = home.read_written(&id)?.ok_or_else(|| unfinished(&id))?;
            change(&mut record.info.labels);
            record.spec.labels.clone_from(&record.info.labels);
            home.write_record(&record)?;
            home.read_info(&id)?.ok_or_else(|| unfinished(&id))
        })
        .await
    }

    /// Whether a box that was known is still that one and runs, as far as that can be told without its record, which is
    /// long to read for who asks before every command. `None`: ask for what is known of it.
    pub fn runs_on(&self, known: &SandboxInfo) -> Result<Option<bool>> {
        crate::runtime::native::runs_on(&self.inner.home, known)
    }

    /// All boxes. What died meanwhile is cleaned up on the way.
    pub async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.inner.children.reap();
        let house = self.clone();
        let looked = blocking(move || match house.dead()? {
            dead if dead.is_empty() => house.infos().map(Ok),
            dead => Ok(Err(dead)),
        });
        match looked.await? {
            Ok(infos) => return Ok(infos),
            Err(dead) => self.clean_up(dead).await?,
        };
        let house = self.clone();
        blocking(move || house.infos()).await
    }

    /// What is known of all boxes, the oldest first.
    fn infos(&self) -> Result<Vec<SandboxInfo>> {
        let mut infos = Vec::new();
        for id in self.inner.home.ids()? {
            if let Some(info) = self.inner.home.read_info(&id)? {
                infos.push(info);
            }
        }
        infos.sort_by_key(|info| info.created_ms);
        Ok(infos)
    }

    /// Ends a box and removes all of it but its record. Its id.
    pub async fn destroy(&self, name: &str) -> Result<String> {
        let id = self.inner.home.resolve(name)?;
        match self.inner.home.read_info(&id) {
            Ok(Some(info)) => {
                let mut record = self.record(&info, &[]);
                if info.state.is_alive() {
                    // A guest that does not answer has nothing to tell any more.
                    let last_words = self.last_words(&info, &mut record);
                    let _ = tokio::time::timeout(LAST_WORDS_TIMEOUT, last_words).await;
                }
                record.box_ended("destroyed").await;
                self.remove(info).await?;
            }
            // It never became a box, or what is known of it is damaged: take away what is there.
            Ok(None) | Err(_) => self.remove_ruin(id.clone()).await?,
        }
        Ok(id)
    }

    /// Puts on record what ended in the box while nobody looked.
    async fn last_words(&self, info: &SandboxInfo, record: &mut Record) -> Result<()> {
        let link = self.reach(info).await?;
        driver::collect_unrecorded(&link, record).await
    }

    pub(crate) async fn remove(&self, info: SandboxInfo) -> Result<()> {
        let house = self.clone();
        let removed = blocking(move || {
            // What the caller knows of it may be old.
            let record = house.inner.home.read_record(&info.id).ok().flatten();
            house.inner.runtimes.get(info.runtime).destroy(Some(&info), &info.id)?;
            if info.recording == Recording::Snapshots {
                house.forget_steps(&info.id)?;
            }
            let made = |name: &String| layers::is_of_boxes(name) || layers::engine_of(name).is_some();
            Ok(record.is_some_and(|record| record.mounted.iter().any(made)))
        })
        .await;
        self.inner.children.reap();
        if removed? {
            // Layers that came to be for this box may be nobody's now.
            self.sweep_later();
        }
        Ok(())
    }

    /// Removes layers that nobody stands on beside all else. What is left is found by the next one, or by `gc`.
    pub(crate) fn sweep_later(&self) {
        let house = self.clone();
        self.chore(async move {
            let _ = blocking(move || house.sweep()).await;
        });
    }

    /// Removes layers, and an engine's images, that nobody stands on. How many; none if somebody is at work with layers.
    pub(crate) fn sweep(&self) -> Result<usize> {
        let swept = layers::sweep(self.home())?;
        let Some(_alone) = self.home().store_exclusive()? else { return Ok(swept) };
        let Some(referenced) = layers::referenced(self.home())? else { return Ok(swept) };
        let outside = self.inner.runtimes.get(RuntimeKind::Docker).sweep(&referenced);
        match outside {
            // They wait for the next one.
            Err(e) if e.kind() == ErrorKind::Unreachable => Ok(swept),
            outside => Ok(swept + outside?),
        }
    }

    async fn remove_ruin(&self, id: String) -> Result<()> {
        let house = self.clone();
        blocking(move || {
            // A container may be there, if its maker came that far.
            let kind = match house.inner.home.box_dir(&id).join("door").is_dir() {
                true => RuntimeKind::Docker,
                false => RuntimeKind::Native,
            };
            house.inner.runtimes.get(kind).destroy(None, &id)
        })
        .await
    }

    /// Removes every box that has died. Which.
    async fn clean_dead(&self) -> Result<Vec<String>> {
        self.inner.children.reap();
        let house = self.clone();
        let dead = blocking(move || house.dead()).await?;
        self.clean_up(dead).await
    }

    /// Removes boxes that have died. Which: some may be out of reach.
    async fn clean_up(&self, dead: Vec<String>) -> Result<Vec<String>> {
        let mut cleaned = Vec::new();
        for id in dead {
            let removed = match self.inner.home.read_info(&id) {
                Ok(Some(info)) => {
                    let mut record = self.record(&info, &[]);
                    record.box_ended("ended by itself").await;
                    self.remove(info).await
                }
                Ok(None) | Err(_) => self.remove_ruin(id.clone()).await,
            };
            match removed {
                // Its engine does not answer: it stays on record as dead until one does.
                Err(e) if e.kind() == ErrorKind::Unreachable => {}
                removed => {
                    removed?;
                    cleaned.push(id);
                }
            }
        }
        Ok(cleaned)
    }

    /// Boxes whose life's lock nobody holds. The house is locked meanwhile, so one that is being made is not taken
    /// for dead in the moment between its directory and its lock. Whoever holds that lock is waited for, and an engine may be
    /// asked: not for a task of the loop.
    fn dead(&self) -> Result<Vec<String>> {
        let home = &self.inner.home;
        let _lock = home.lock()?;
        let mut dead = Vec::new();
        for id in home.ids()? {
            // One that was stopped is not dead; one whose record cannot be read is.
            let stopped = || {
                home.read_info(&id)
                    .is_ok_and(|info| info.is_some_and(|info| info.state == SandboxState::Stopped))
            };
            if !home.is_alive(&id)? && !stopped() {
                dead.push(id);
            }
        }
        Ok(dead)
    }

    /// Finds and removes what crashes have left.
    pub async fn gc(&self) -> Result<Cleaned> {
        let boxes = self.clean_dead().await?;
        let house = self.clone();
        let mut cleaned = blocking(move || house.clean_outside()).await?;
        cleaned.boxes = boxes;
        Ok(cleaned)
    }

    fn clean_outside(&self) -> Result<Cleaned> {
        let home = &self.inner.home;
        let mut cleaned = Cleaned::default();
        // A box has its directory before it leaves any trace outside: of those that are found first, whoever has none then has
        // gone. So the house need not be locked, however long an engine takes to answer.
        let native = self.inner.runtimes.get(RuntimeKind::Native);
        let docker = self.inner.runtimes.get(RuntimeKind::Docker);
        let groups = native.traces_outside()?;
        // Without an engine there are no containers to be found.
        let containers = docker.traces_outside().unwrap_or_default();
        let there = home.ids()?;
        for id in groups.iter().filter(|id| !there.contains(id)) {
            native.destroy(None, id)?;
            cleaned.cgroups += 1;
        }
        for id in containers.iter().filter(|id| !there.contains(id)) {
            docker.destroy(None, id)?;
            cleaned.containers += 1;
        }
        // They come again by themselves when they are needed. Without an engine there are none.
        let _ = self.containers().drop_volumes();
        cleaned.directories = home.empty_trash()?;
        home.drop_links()?;
        for id in home.ids()? {
            cleaned.directories += home.drop_tops(&id)?;
        }
        self.forget_lost_steps()?;
        cleaned.made_durable = records::make_durable(home)?;
        cleaned.damaged_snapshots = records::look(home)?.damaged;
        cleaned.layers = self.sweep()?;
        cleaned.directories += image::clean_incoming(home)?;
        let keep = Retention { traces_max: TRACES_KEPT, bytes_max: TRACES_KEPT_BYTES };
        let lives = |id: &str| home.box_dir(id).is_dir();
        let pruned = prune(&home.path("traces"), &home.path("blobs"), keep, &lives).map_err(|e| {
            Error::new(ErrorKind::Failed, format!("cannot clean up records: {}", e.with_source()))
        })?;
        cleaned.traces = pruned.traces.len();
        cleaned.blobs = pruned.blobs as usize;
        Ok(cleaned)
    }

    /// What each runtime can do on this host, found by trying.
    pub async fn doctor(&self) -> Vec<RuntimeReport> {
        let mut reports = Vec::new();
        for kind in RuntimeKind::ALL {
            let house = self.clone();
            let probed = blocking(move || Ok(house.inner.runtimes.get(kind).probe())).await;
            reports.extend(probed.ok());
        }
        reports
    }

    /// The id of a box, living or gone, that has a record. Of several that are gone and had this name, the last.
    pub fn resolve_trace(&self, name: &str) -> Result<String> {
        if let Ok(id) = self.inner.home.resolve(name) {
            return Ok(id);
        }
        let unknown = || {
            let message = format!(
                "there is no record of a box {name:?}; `glass list` shows the boxes that are there, `glass audit verify` \
                 all that have a record"
            );
            Error::new(ErrorKind::NotFound, message)
        };
        let (mut matching, mut named) = (Vec::new(), None);
        for entry in std::fs::read_dir(self.traces_dir()).context("list the records")? {
            let id = entry.context("list the records")?.file_name().to_string_lossy().into_owned();
            if id == name || (name.len() >= 4 && id.starts_with(name)) {
                matching.push(id);
            } else if let Some(since_ms) = self.named_since(&id, name) {
                named = named.max(Some((since_ms, id)));
            }
        }
        match matching.as_slice() {
            [id] => Ok(id.clone()),
            [] => named.map(|(_, id)| id).ok_or_else(unknown),
            _ => Err(Error::new(
                ErrorKind::Invalid,
                format!("{name:?} stands for more than one record; write more of the id"),
            )),
        }
    }

    /// When the box of this record was made, if it had this name.
    fn named_since(&self, id: &str, name: &str) -> Option<u64> {
        let mut lines = Reader::open(&self.traces_dir().join(id), &self.blobs_dir()).ok()?;
        let first = lines.next()?.ok()?;
        match &first.event {
            Event::BoxCreated(created) if created.name.as_deref() == Some(name) => Some(first.time_ms),
            _ => None,
        }
    }

    /// Where the records are.
    pub fn traces_dir(&self) -> PathBuf {
        self.inner.home.path("traces")
    }

    /// Where the contents are that records name.
    pub fn blobs_dir(&self) -> PathBuf {
        self.inner.home.path("blobs")
    }
}

/// Ten letters that are easy to read and to say, at random.
pub(crate) fn new_id() -> Result<String> {
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0; 10];
    let random = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.context("read random numbers")?;
    Ok(bytes.iter().map(|byte| LETTERS[usize::from(byte % 32)] as char).collect())
}

/// Refuses what cannot be the name of a box or of a snapshot.
pub(crate) fn check_name(name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) || name.starts_with(['.', '-']) {
        let message = format!("{name:?} cannot be a name; use up to 64 letters, digits, `-`, `_` and `.`");
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Refuses variables that no program could be given.
pub(crate) fn check_variables(env: &[(String, String)]) -> Result<()> {
    let is_none = |(key, value): &&(String, String)| {
        key.is_empty() || key.contains(['=', '\0']) || value.contains('\0')
    };
    match env.iter().find(is_none) {
        Some((key, _)) => {
            let message = format!("{key:?} cannot be the name of a variable, or its value holds a zero byte");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        None => Ok(()),
    }
}

/// Refuses what makes no sense.
pub(crate) fn check(spec: &SandboxSpec) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    check_name(spec.name.as_deref())?;
    if let (Image::Engine(name), true) = (&spec.image, spec.runtime != RuntimeKind::Docker) {
        let message = format!(
            "an image of the Docker engine is for the runtime `docker`; `oci://{name}` pulls the same from its registry"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if let Some(cwd) = &spec.cwd
        && !cwd.starts_with('/')
    {
        return invalid(format!("{cwd:?} cannot be the working directory; it has to begin with `/`"));
    }
    check_variables(&spec.env)?;
    let env_bytes: usize = spec.env.iter().map(|(name, value)| name.len() + value.len()).sum();
    if env_bytes > ENV_BYTES {
        return invalid(format!(
            "the variables of a box have {ENV_BYTES} bytes at most, and not {env_bytes}"
        ));
    }
    if spec.redact.len() > REDACT_PATTERNS {
        return invalid(format!("a box has at most {REDACT_PATTERNS} patterns of what is not recorded"));
    }
    for pattern in &spec.redact {
        SecretPattern::parse(pattern).map_err(|e| Error::new(ErrorKind::Invalid, e.to_string()))?;
    }
    for (what, time) in [("timeout", spec.limits.timeout), ("ttl", spec.limits.ttl)] {
        if time.is_some_and(|time| time.is_zero()) {
            return invalid(format!("a {what} of nothing ends a box before it begins"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lists_boxes_while_the_house_is_locked_holds_up_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let house = Sandboxes::open(Settings { home: dir.path().join("home") }).unwrap();
        let lock = house.home().lock().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // On one thread, in this order: whoever waited for the lock there would keep it from being given back.
        let (listed, ()) = runtime.block_on(async { tokio::join!(house.list(), async { drop(lock) }) });
        assert_eq!(listed.unwrap().len(), 0);
    }
}
