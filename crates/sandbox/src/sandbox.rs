//! A box, as its user holds it.

use std::sync::Arc;

use glasshouse_protocol::{ExecInfo, ExecSpec, Reply, Request};

use crate::client;
use crate::driver::{Act, Handle};
use crate::error::Result;
use crate::exec::Exec;
use crate::sandboxes::Sandboxes;
use crate::spec::{Recording, SandboxInfo};
use crate::state::steps::Done;

/// A living box. Copies are the same box; it outlives them all, unless it has an owner or is destroyed.
#[derive(Clone)]
pub struct Sandbox {
    info: Arc<SandboxInfo>,
    pub(crate) driver: Handle,
    house: Sandboxes,
    /// What is done through this is a part of a step, and no step by itself.
    within: bool,
    /// As whom files are touched and commands run, unless they say otherwise.
    user: Option<Arc<str>>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.info.id).finish_non_exhaustive()
    }
}

impl Sandbox {
    pub(crate) fn new(info: SandboxInfo, driver: Handle, house: Sandboxes) -> Sandbox {
        Sandbox { info: Arc::new(info), driver, house, within: false, user: None }
    }

    /// The same box, for what a tool does in it: only the call of the tool is a step.
    pub(crate) fn within_step(&self) -> Sandbox {
        Sandbox { within: true, ..self.clone() }
    }

    /// The same box, whose files are touched as another of its users (`name`, `uid`, `name:group` or `uid:gid`), and whose
    /// commands run as him unless they say otherwise.
    pub fn as_user(&self, user: &str) -> Sandbox {
        Sandbox { user: Some(user.into()), ..self.clone() }
    }

    /// As whom files are touched; without one, the box's user.
    pub(crate) fn user(&self) -> Option<String> {
        self.user.as_deref().map(str::to_owned)
    }

    /// Whether what is done through this is a step by itself, and steps are recorded.
    pub(crate) fn takes_steps(&self) -> bool {
        !self.within && self.info.recording != Recording::Commands
    }

    /// Puts a step on record.
    pub(crate) async fn step(&self, done: Done) {
        // A driver that is gone has nothing to record any more.
        let _ = self.driver.act(|recorded| Act::Step { done: Box::new(done), recorded }).await;
    }

    pub(crate) fn house(&self) -> &Sandboxes {
        &self.house
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.info.id
    }

    /// What was known of it when it was made or found.
    pub fn info(&self) -> &SandboxInfo {
        &self.info
    }

    /// Runs a command. A program that cannot be started is no error: it is the command's end.
    pub async fn exec(&self, spec: ExecSpec) -> Result<Exec> {
        let step = !self.within;
        let user = spec.user.or_else(|| self.user());
        let spec = ExecSpec { user, ..spec };
        self.driver.act(|answer| Act::Exec { spec: Box::new(spec), step, answer }).await?
    }

    /// Reads the kept output of a command from a place on and, to `follow`, what comes after.
    pub async fn attach(&self, exec: u64, from: u64, follow: bool) -> Result<Exec> {
        self.driver.act(|answer| Act::Attach { exec, from, follow, answer }).await?
    }

    /// The commands that run, and those that ended and are still known.
    pub async fn execs(&self) -> Result<Vec<ExecInfo>> {
        match self.call(Request::Execs).await? {
            Reply::Execs { execs } => Ok(execs),
            other => Err(client::unexpected(&other)),
        }
    }

    /// Sends a signal to a command's main process or, with `tree`, to its whole group.
    pub async fn signal(&self, exec: u64, signal: i32, tree: bool) -> Result<()> {
        self.call(Request::Signal { exec, signal, tree }).await.map(|_| ())
    }

    /// Kills the whole tree of a command.
    pub async fn kill_exec(&self, exec: u64) -> Result<()> {
        self.call(Request::Kill { exec }).await.map(|_| ())
    }

    pub(crate) async fn call(&self, request: Request) -> Result<Reply> {
        self.driver.act(|answer| Act::Call { request, answer }).await?
    }

    /// Whether it runs on: neither ended nor paused, nor started again since. Its record is not read. `None`: only that can tell.
    pub fn runs_on(&self) -> Result<Option<bool>> {
        // Whose guest we still talk to, as far as we have heard, has the same first process.
        let is_here = self.info.start_ticks != crate::runtime::ELSEWHERE;
        if is_here && self.driver.line.is_unbroken() {
            return self.house.home().is_running(self.id()).map(Some);
        }
        self.house.runs_on(&self.info)
    }

    /// Waits until the box has ended. One in a container that is given another root has a new first process, which is
    /// taken for an end if it is not there yet.
    pub async fn ended(&self) {
        while let Ok(link) = self.driver.line.link().await {
            if link.closed().is_some() {
                return;
            }
            link.wait_closed().await;
        }
    }

    /// Ends the box and removes all of it but its record.
    pub async fn destroy(&self) -> Result<()> {
        // A driver that is gone already has said so in the record.
        let _ = self.driver.act(|answer| Act::Close { why: "destroyed", answer }).await;
        self.house.remove(self.info.as_ref().clone()).await
    }
}
