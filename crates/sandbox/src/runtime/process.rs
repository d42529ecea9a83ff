//! The runtime `process`: the guest on the host itself, with no wall at all.
//!
//! For tests, and for those who have a wall of their own around everything. It is used only when it is asked for by
//! name, says level `none`, and refuses every limit that it cannot enforce.

use std::os::unix::net::UnixStream;

use glasshouse_linux::cgroup::{Limits as CgroupLimits, Trees};
use glasshouse_linux::process;
use glasshouse_protocol::plan::{FdRole, GuestConfig, Plan, Tracking};
use std::os::fd::AsFd;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::image::Base;
use crate::limits::GOODBYE_TIMEOUT;
use crate::runtime::builders::{Builder, Mode};
use crate::runtime::start::{self, Failed, Parcel};
use crate::runtime::{
    Created, Facts, Feature, Runtime, RuntimeReport, Still, Taken, connect_in, describe, native,
};
use crate::spec::{Image, Level, LimitInForce, Recording, RuntimeKind, SandboxInfo, SandboxSpec};

pub(crate) struct Process {
    home: Home,
    trees: Trees,
}

impl Process {
    pub(crate) fn new(home: Home, trees: Trees) -> Process {
        Process { home, trees }
    }

    fn check(spec: &SandboxSpec) -> Result<()> {
        if spec.min_level.is_some_and(|level| level > Level::None) {
            let message =
                "the runtime `process` has no isolation; it cannot be asked for a level above `none`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let refused = [
            (spec.limits.memory_bytes.is_some(), "a memory limit"),
            (spec.limits.cpus.is_some(), "a CPU limit"),
            (spec.limits.pids.is_some(), "a limit of processes"),
            (spec.limits.disk_bytes.is_some(), "a disk limit"),
            (spec.read_only, "a read-only root"),
            (spec.image != Image::Host, "an image"),
            (spec.user.is_some(), "another user"),
            (spec.is_deterministic(), "a clock, random numbers and pids of its own (--deterministic)"),
            (spec.recording() != Recording::Commands, "a state to be recorded (--record)"),
            (!spec.volumes.is_empty(), "a volume"),
        ];
        if let Some((_, what)) = refused.iter().find(|(asked, _)| *asked) {
            let message =
                format!("the runtime `process` has no walls and cannot give a box {what}; use `native`");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    fn limits(spec: &SandboxSpec) -> Vec<LimitInForce> {
        let mut limits: Vec<LimitInForce> = ["memory", "cpu", "pids", "disk"]
            .into_iter()
            .map(|name| LimitInForce {
                name: name.into(),
                value: "none".into(),
                amount: None,
                mechanism: "the runtime `process` has no walls".into(),
            })
            .collect();
        limits.extend(native::guest_limits(&spec.limits));
        limits
    }
}

impl Runtime for Process {
    fn probe(&self) -> RuntimeReport {
        let isolation = Feature {
            name: "isolation".into(),
            ok: false,
            detail: "none, by design".into(),
            hint: Some("use the runtime `native` for anything that you do not trust".into()),
        };
        RuntimeReport {
            runtime: RuntimeKind::Process,
            level: Level::None,
            features: vec![isolation],
            limits: Process::limits(&SandboxSpec::default()),
        }
    }

    fn create(&self, id: &str, spec: &SandboxSpec, base: &Base) -> Result<Created> {
        Process::check(spec)?;
        let claim = self.home.claim(id)?;
        let cwd = match &spec.cwd {
            Some(cwd) => cwd.clone(),
            None => {
                let work = claim.path().join("work");
                std::fs::create_dir(&work).context(format_args!("make {}", work.display()))?;
                work.to_string_lossy().into_owned()
            }
        };
        if let Some(name) = &spec.name {
            self.home.take_name(name, id)?;
        }
        let mut parcel = Parcel::for_box(&claim)?;
        parcel.add_owner(spec.owner)?;
        let mut group = None;
        if self.trees.tracking().is_ok() {
            let made = self.trees.create(id, CgroupLimits::default()).context("make the box's cgroups")?;
            native::note_cgroup(&claim, &made)?;
            if let Some(places) = made.track(rustix_uid()).context("open the box's cgroup")? {
                parcel.add(FdRole::Track, places.commands);
            }
            group = Some(made);
        }
        let plan = Plan {
            fds: parcel.roles.clone(),
            steps: Vec::new(),
            guest: GuestConfig {
                image_env: base.env.clone(),
                cwd: cwd.clone(),
                tracking: if group.is_some() { Tracking::Cgroup } else { Tracking::Group },
                ..native::guest_config(spec)
            },
            fault: None,
        };
        let guest = Builder::execute(Mode::Serve).map_err(Failed::from);
        let made = guest.and_then(|guest| start::start(guest, &plan, &parcel.borrow()));
        let made = made.map_err(|failed| match failed {
            Failed::Other(error) => error,
            Failed::Step(step) => {
                Error::new(ErrorKind::Failed, format!("cannot start the guest: {}", step.step))
            }
        });
        let ready = match made {
            Ok(ready) => ready,
            Err(e) => {
                if let Some(group) = &group {
                    let _ = group.remove();
                }
                return Err(e);
            }
        };
        let facts = Facts {
            runtime: RuntimeKind::Process,
            level: Level::None,
            missing: vec!["isolation: none, by design".into()],
            limits: Process::limits(spec),
            user: String::new(),
            cwd,
            tracking: plan.guest.tracking,
            uid_base: None,
            generation: 0,
            uncontrolled: Vec::new(),
            far: false,
        };
        let record = describe(id, spec, base, ready.pid, facts)?;
        self.home.write_record(&record)?;
        let (stream, pidfd) = ready.commit()?;
        claim.keep();
        Ok(Created { info: record.info, stream, pidfd: Some(pidfd) })
    }

    fn snapshot(&self, _: &str, _: &str) -> Result<Taken> {
        Err(no_state())
    }

    fn hold_still(&self, _: &str, _: &mut dyn FnMut(Still<'_>) -> Result<()>) -> Result<()> {
        Err(no_state())
    }

    fn restore(&self, _: &str, _: Vec<String>) -> Result<SandboxInfo> {
        Err(no_state())
    }

    fn stop(&self, _: &str) -> Result<()> {
        Err(no_state())
    }

    fn start(&self, _: &str) -> Result<Created> {
        Err(no_state())
    }

    fn connect(&self, info: &SandboxInfo) -> Result<UnixStream> {
        connect_in(&self.home, info)
    }

    fn destroy(&self, info: Option<&SandboxInfo>, id: &str) -> Result<()> {
        let group = native::cgroups_of(&self.home, &self.trees, id)?;
        if let Some(info) = info
            && let Some(pidfd) = native::living(&self.home, info)?
        {
            // Politely first: without walls, only the guest knows all of its commands.
            if let Ok(stream) = self.connect(info) {
                native::ask_to_shut_down(&stream);
                let _ = process::wait_end(pidfd.as_fd(), GOODBYE_TIMEOUT);
            }
            start::end(pidfd.as_fd());
        }
        group.kill().context("kill what is left of the box")?;
        group.remove().context("remove the box's cgroups")?;
        self.home.remove_box(info, id)
    }

    fn traces_outside(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fn no_state() -> Error {
    let message = "the runtime `process` has no walls, so a box of it has no state of its own; use `native`";
    Error::new(ErrorKind::Unsupported, message)
}

fn rustix_uid() -> u32 {
    glasshouse_linux::rustix::process::getuid().as_raw()
}
