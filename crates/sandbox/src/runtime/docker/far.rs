//! Engines that see nothing of our files: on another machine, in a virtual machine, or with mounts of their own.
//!
//! ```text
//!                 this machine                │                the engine's
//!   guest's program ── archive, once ─────────┼──▶ volume ── mounted read-only ──▶ container
//!   box.json, and a file `far` in place of    │        its first process: `glass-guest apart`
//!   lock and socket                           │            │ waits at its own socket, in a directory in memory
//!   plan, without descriptors ── bridge ──────┼────────────▶ takes it, says `Ready`, serves
//!   every connection ── bridge ───────────────┼────────────▶ one more client
//! ```
//! | what the host gives elsewhere | what there is here |
//! |---|---|
//! | lock of the box's life | the engine is asked whether the container runs; one that does not answer is no death |
//! | the guest's program in a directory | a volume, named by home and digest, labelled as ours; `gc` removes it when nothing uses it |
//! | listening socket | the guest's own; only bridges may come to it: they have a user that no command can have |
//! | descriptors of cgroups | the guest reads its own; commands are told from each other by their process groups |
//! | owner's descriptor | a bridge that ends the box when its stream ends: for boxes of this very process |
//! | layers to read | what the guest tells of its root, and images that the engine saves (`unseen`) |
//!
//! A runtime of the engine's with a kernel of its own (runsc, Kata) is the same case, wherever the engine is. How strong such a
//! box is, is not decided by the runtime's name: its guest says which kernel it sees, and if that is not the one of the
//! engine's machine, it is its own.
//!
//! Whether an engine is one of these is found by trying: it cannot mount the door, or the guest finds nobody behind it, or
//! whoever is behind it is not who the engine says. The next box of this process does not try again.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bollard::errors::Error as EngineError;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{
    CreateContainerOptions, ListContainersOptions, ListVolumesOptions, RemoveVolumeOptions,
    UploadToContainerOptionsBuilder,
};
use glasshouse_linux::descriptor;
use glasshouse_protocol::plan::{Apart, DOOR, DOOR_GUEST, GuestConfig, Plan, Tracking};
use glasshouse_protocol::{FileOp, Request};

use super::bridge::{self, End};
use super::hull::{self, Hull, LABEL_BOX, LABEL_HOME, Way};
use super::{Container, Docker, door, probe, step_failed, steps};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{FAR, write_private};
use crate::limits::{DEATH_TIMEOUT, GOODBYE_TIMEOUT};
use crate::runtime::{Created, Runtime, native, start};
use crate::spec::{SandboxInfo, SandboxSpec};

/// The label with a word that no other volume has.
const LABEL_FILL: &str = "glasshouse.fill";

/// How long an engine may take to say whether a box lives.
const LOOK_MAX: Duration = Duration::from_secs(20);

/// The file that is locked by whoever fills or removes volumes, and shared by whoever needs one to stay, or a container that
/// is of no box.
const LOCK: &str = "volumes";

impl Docker {
    /// Refuses what cannot be had where the engine sees nothing of ours.
    pub(super) fn check_far(&self, spec: &SandboxSpec, has_trees: bool) -> Result<()> {
        let own_kernel = self.has_own_kernel(spec.engine_runtime.as_deref())?;
        let runtime = spec.engine_runtime.as_deref().unwrap_or_default();
        let address = self.engine.address();
        let who = match own_kernel {
            true => format!("a container with a kernel of its own (the engine's runtime {runtime})"),
            false => format!("the engine at {address}"),
        };
        let refuse = |what: &str| {
            let message = format!("{who} does not see this host's files, and {what}");
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        let info = self.engine.info()?;
        let machine = info.architecture.unwrap_or_default();
        if !machine.is_empty() && machine != std::env::consts::ARCH {
            return refuse(&format!(
                "it is an {machine} machine: the guest here is for {}",
                std::env::consts::ARCH
            ));
        }
        if has_trees {
            return refuse(
                "the image `host` is made of them; name another one (--image docker-daemon:NAME for one of \
                 the engine's, --image oci://NAME for one that is pulled here and carried there)",
            );
        }
        if !spec.volumes.is_empty() {
            return refuse("volumes (--volume) are directories of this host; copy them in with `glass cp`");
        }
        if self.engine.is_podman()? {
            return refuse("Podman reads the system call filter from one of them; use it on this machine");
        }
        if spec.owner.is_some_and(|pid| pid != std::process::id()) {
            return refuse(
                "a box there can only die with the process that made it (--owner); use --ttl, or `glass run`",
            );
        }
        Ok(())
    }

    /// Makes the container of a box around the volume with the guest, and starts it.
    pub(super) fn contain_far(&self, hull: Hull<'_>, generation: u64) -> Result<Container<'_>> {
        let (lock, empty) = (self.home.path("engine").join(LOCK), self.home.path("engine/empty"));
        fs::create_dir_all(&empty).context(format_args!("make {}", empty.display()))?;
        let container = loop {
            let share = self.hold_volumes()?;
            if let Some(volume) = self.whole_volume()? {
                let hull = Hull { way: Way::Far { volume: &volume }, ..hull };
                break self.contain(&hull, generation);
            }
            drop(share);
            let _alone = descriptor::lock_path(&lock).context("lock the volumes")?;
            if self.whole_volume()?.is_none() {
                self.fill_volume(hull.image)?;
            }
        };
        container.map_err(super::Unmade::into_error)
    }

    /// As long as this is held, nobody collects volumes and containers that are of no box.
    pub(super) fn hold_volumes(&self) -> Result<fs::File> {
        descriptor::lock_shared(&self.home.path("engine").join(LOCK)).context("lock the volumes")
    }

    fn volume_name(&self) -> Result<String> {
        let hash = blake3::hash(crate::guest_program()).to_hex();
        Ok(format!("glasshouse-guest-{}-{}", self.home_name()?, &hash[..16]))
    }

    /// The file that says which volume is whole, by the word on its label.
    fn volume_note(&self, volume: &str) -> std::path::PathBuf {
        self.home.path("engine").join(format!("filled-{volume}"))
    }

    /// The volume with the guest in it, if there is one, and nobody was killed while he filled it.
    fn whole_volume(&self) -> Result<Option<String>> {
        let name = self.volume_name()?;
        let ask =
            self.engine.ask_known("look for a volume", async |docker| docker.inspect_volume(&name).await);
        let made = ask?.and_then(|mut volume| volume.labels.remove(LABEL_FILL));
        let noted = start::read_small(self.volume_note(&name));
        Ok((made.is_some() && made == noted).then_some(name))
    }

    /// Makes the volume and puts the guest into it, through a container that never runs.
    fn fill_volume(&self, image: &str) -> Result<()> {
        let (name, home, word) = (self.volume_name()?, self.home_name()?, crate::sandboxes::new_id()?);
        let _ = fs::remove_file(self.volume_note(&name));
        self.drop_volume(&name)?;
        let request = VolumeCreateRequest {
            name: Some(name.clone()),
            labels: Some(HashMap::from([
                (LABEL_HOME.to_owned(), home.clone()),
                (LABEL_FILL.to_owned(), word.clone()),
            ])),
            ..VolumeCreateRequest::default()
        };
        self.engine.ask("make a volume for the guest", async |docker| docker.create_volume(request).await)?;
        let options = CreateContainerOptions::default();
        let body = hull::filler(&home, image, &name);
        let filler = self.engine.ask("make a container to fill a volume through", async |docker| {
            docker.create_container(Some(options), body).await
        })?;
        let filler = Container { engine: &self.engine, name: filler.id, kept: false };
        let options = UploadToContainerOptionsBuilder::new().path(DOOR).build();
        let archive = archive().context("pack the guest")?;
        self.engine.ask("put the guest into a volume", async |docker| {
            let body = bollard::body_full(archive.into());
            docker.upload_to_container(&filler.name, Some(options), body).await
        })?;
        write_private(&self.volume_note(&name), &word)
    }

    /// Removes a volume. One that is not there is none; one that is in use stays.
    fn drop_volume(&self, name: &str) -> Result<bool> {
        let removed = self.engine.ask_known("remove a volume", async |docker| {
            docker.remove_volume(name, None::<RemoveVolumeOptions>).await
        });
        match removed {
            Err(e) if e.kind() == ErrorKind::Exists => Ok(false),
            removed => Ok(removed?.is_some()),
        }
    }

    /// Removes the volumes of this home that no container uses, and what those left who were killed while they filled one.
    pub(crate) fn drop_volumes(&self) -> Result<()> {
        let engine = self.home.path("engine");
        if !door::was_used(&self.home) {
            return Ok(());
        }
        let _alone = descriptor::lock_path(&engine.join(LOCK)).context("lock the volumes")?;
        let label = format!("{LABEL_HOME}={}", self.home_name()?);
        let filters = HashMap::from([("label".to_owned(), vec![label])]);
        let options = ListContainersOptions {
            all: true,
            filters: Some(filters.clone()),
            ..ListContainersOptions::default()
        };
        let found =
            self.engine.ask("list containers", async |docker| docker.list_containers(Some(options)).await)?;
        let is_filler = |labels: &HashMap<String, String>| !labels.contains_key(LABEL_BOX);
        for found in found.into_iter().filter(|found| found.labels.as_ref().is_some_and(is_filler)) {
            super::remove(&self.engine, &found.id.unwrap_or_default())?;
        }
        let options = ListVolumesOptions { filters: Some(filters) };
        let found =
            self.engine.ask("list volumes", async |docker| docker.list_volumes(Some(options)).await)?;
        for volume in found.volumes.into_iter().flatten() {
            if self.drop_volume(&volume.name)? {
                let _ = fs::remove_file(self.volume_note(&volume.name));
            }
        }
        Ok(())
    }

    /// Starts a container whose guest waits for us, and goes to it.
    pub(super) fn start_far(&self, name: &str) -> Result<UnixStream> {
        self.engine.ask("start the container", async |docker| docker.start_container(name, None).await)?;
        bridge::connect(&self.engine, name, End::Ours).map_err(|e| match self.sees_running(name) {
            // Why it ended says more than that it did.
            Err(super::Unmade::Other(ended)) if ended.kind() != ErrorKind::Unreachable => ended,
            _ => e,
        })
    }

    /// Gives a guest its plan that nobody here can see.
    pub(super) fn raise_far(&self, site: super::Site<'_>, stream: UnixStream) -> Result<Created> {
        // Whether its kernel has Landlock is told by the guest.
        let mut missing = self.strength(true)?.missing;
        let tracking = Tracking::Group;
        let guest = GuestConfig {
            rlimits: native::standard_rlimits(),
            apart: Some(Apart { landlock_abi_min: native::LANDLOCK_ABI_MIN }),
            ..site.guest(tracking)
        };
        let plan = Plan { fds: Vec::new(), steps: steps(), guest, fault: native::faults::current() };
        let ready = start::greet_far(stream, &plan).map_err(step_failed)?;
        missing.extend(ready.lacking.iter().cloned());
        let (info, runtime) = (self.engine.info()?, site.spec.engine_runtime.as_deref());
        let strength = probe::behind_kernel(ready.kernel.as_deref(), runtime, &info, missing);
        super::check_level(site.spec, strength.level, &strength.missing)?;
        let name = &site.container.name;
        let pid = self.inspect(name)?.state.and_then(|state| state.pid).unwrap_or_default();
        let record = site.record(pid as i32, strength, tracking, true)?;
        write_private(&site.claim.path().join(FAR), name)?;
        self.home.note_pause(site.id, false)?;
        self.home.write_record(&record)?;
        if site.spec.owner.is_some() {
            let tie = bridge::connect(&self.engine, name, End::Both)?;
            self.tie(tie)?;
        }
        let stream = ready.commit()?;
        if self.has_own_kernel(runtime)? {
            self.note_kept(&record.info)?;
        }
        site.keep();
        Ok(Created { info: record.info, stream, pidfd: None })
    }

    /// Ends the first process of a box there, politely if it listens, and waits until the engine knows that it is gone.
    pub(super) fn end_far(&self, info: &SandboxInfo) -> Result<()> {
        let name = self.container_of(&info.id, info.generation)?;
        self.end_container(&name, info)?;
        self.engine.bridges.wait_down(&name);
        Ok(())
    }

    fn end_container(&self, name: &str, info: &SandboxInfo) -> Result<()> {
        let found = self
            .engine
            .ask_known("look at the container", async |docker| docker.inspect_container(name, None).await)?;
        if found.and_then(|found| found.state).is_none_or(|state| state.running != Some(true)) {
            return Ok(());
        }
        if let Ok(stream) = self.connect(info) {
            native::ask_to_shut_down(&stream);
            if self.engine.wait_ended(name, GOODBYE_TIMEOUT)? {
                return Ok(());
            }
        }
        // One that has ended in this moment, or is gone, is what we want.
        let _ = self.engine.ask("kill the container", async |docker| docker.kill_container(name, None).await);
        self.engine.wait_ended(name, DEATH_TIMEOUT).map(drop)
    }

    /// Holds a stream for as long as this process lives, or its box does.
    fn tie(&self, mut tie: UnixStream) -> Result<()> {
        let wait = move || {
            // Nothing is ever said on it: it ends.
            let _ = std::io::copy(&mut tie, &mut std::io::sink());
        };
        let thread = std::thread::Builder::new().name("glass-tie".into()).spawn(wait);
        thread.map(drop).context("start a thread that ties the box to this process")
    }

    /// Whether the container of a box on another machine runs. One that nobody tells us of is not known to be dead.
    pub(super) fn lives_there(engine: &super::Engine, container: &str) -> bool {
        let asked = super::engine::beside(|| {
            engine.ask_known("look at the container", async |docker| {
                let looked = docker.inspect_container(container, None);
                let looked = tokio::time::timeout(LOOK_MAX, looked).await;
                looked.unwrap_or(Err(EngineError::RequestTimeoutError))
            })
        });
        match asked {
            Ok(found) => found.and_then(|found| found.state).is_some_and(|state| state.running == Some(true)),
            Err(_) => true,
        }
    }

    /// Whether the guest of a box on another machine refuses what a paused one does. For boxes whose pause somebody asked
    /// for: where nobody can be asked, it is believed to be so.
    pub(super) fn is_paused_there(engine: &super::Engine, container: &str) -> bool {
        let ask = || -> Result<bool> {
            let stream = bridge::connect(engine, container, End::Ours)?;
            stream.set_read_timeout(Some(LOOK_MAX)).context("use the stream to the guest")?;
            let file = FileOp::Stat { path: "/".into(), follow: false };
            let asked = native::ask_once(stream, &Request::File { file, user: None });
            match asked {
                Err(e) if e.kind() == ErrorKind::Paused => Ok(true),
                answered => answered.map(|_| false),
            }
        };
        ask().unwrap_or(true)
    }
}

/// The guest's program as an archive.
fn archive() -> std::io::Result<Vec<u8>> {
    let program = crate::guest_program();
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    header.set_entry_type(tar::EntryType::Regular);
    builder.append_data(&mut header, DOOR_GUEST, program)?;
    let mut bytes = builder.into_inner()?;
    bytes.flush()?;
    Ok(bytes)
}
