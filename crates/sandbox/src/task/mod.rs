//! Tasks: a commit of a repository, set up in a box, and kept for the next box of the same task.
//!
//! Git runs on the host, so that the box stays offline; what it fetched is copied in as data. The set-up
//! commands run in a box that is only for building. Its state is kept as a snapshot whose key says all that
//! it was made of, and every box of the task, the first one too, is a fork of that: a reset goes back to the
//! task as it was set up.

mod git;
mod repository;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use glasshouse_protocol::{ExecSpec, Exit, Program};
use serde_json::{Value, json};

pub use self::git::GitLogins;
use self::git::{Given, check_stop};
use self::repository::{Address, Repository, check_word, whole_id};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::ExecEvent;
use crate::image::{self, Stop};
use crate::sandbox::Sandbox;
use crate::sandboxes::{Sandboxes, check};
use crate::snapshot::records::{self, SnapshotInfo};
use crate::spec::{Image, Recording, RuntimeKind, SandboxSpec};
use crate::state::SnapshotOptions;
use crate::threads::blocking;

/// What a failed set-up command wrote last, in the error.
const SAID_BYTES: usize = 4096;
/// Set-up commands of a task.
const SETUP_MAX: usize = 1000;
/// Where a repository lies in a box whose commands would otherwise run in its root directory.
const DIR: &str = "/workspace";
/// A change of what a key is made of changes this word.
const KEY_KIND: &str = "glasshouse task 1";

/// A task that boxes are wanted for.
#[derive(Clone, Default)]
pub struct TaskSpec {
    /// The repository: a URL, or a path of the host. A login in it is used and never written down.
    pub repo: String,
    /// The commit: its id or the beginning of that, a branch, or a tag.
    pub commit: String,
    /// Lines for the box's shell that set it up, in this order.
    pub setup: Vec<String>,
    /// The line that tests it. It is only remembered.
    pub test: Option<String>,
    /// Where in the box it lies. Without a word, in the box's working directory.
    pub dir: Option<String>,
    /// The environment of git, which gets nothing else: `PATH`, and for logins `HOME` and `SSH_AUTH_SOCK`.
    pub git_env: Vec<(String, OsString)>,
    /// Which logins git may use.
    pub git_logins: GitLogins,
    /// For whom it is set up: what was set up for somebody is found again for him alone, since a whole id is found
    /// without asking the repository whether he may read it. Any word; without one, for the house.
    pub scope: Option<String>,
    /// Hears what is being done.
    pub progress: Option<Arc<dyn Fn(TaskPhase) + Send + Sync>>,
    /// Whoever says it ends the work; then nothing is left.
    pub stop: Option<Stop>,
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskPhase {
    /// The repository is asked which commit is meant.
    Resolving,
    /// It is fetched.
    Fetching,
    /// It is copied into a box.
    Copying,
    /// A set-up command runs.
    SettingUp {
        /// Which one, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// The command.
        command: String,
    },
    /// The result is kept.
    Keeping,
    /// A box is made of what was kept.
    Forking,
}

/// What a box was set up for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskInfo {
    /// The repository, without any login.
    pub repo: String,
    /// The commit, as it was asked for.
    pub asked: String,
    /// Its whole id.
    pub commit: String,
    /// Lines that set it up.
    pub setup: Vec<String>,
    /// The line that tests it.
    pub test: Option<String>,
    /// Where in the box it lies.
    pub dir: String,
}

impl fmt::Debug for TaskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the repository, which may hold a login.
        f.debug_struct("TaskSpec")
            .field("commit", &self.commit)
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}

impl TaskInfo {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "repo": self.repo, "asked": self.asked, "commit": self.commit, "setup": self.setup,
            "test": self.test, "dir": self.dir,
        })
    }

    pub(crate) fn from_json(value: &Value) -> Option<TaskInfo> {
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let setup = value.get("setup")?.as_array()?.iter().map(|line| line.as_str().map(str::to_owned));
        Some(TaskInfo {
            repo: text("repo")?,
            asked: text("asked")?,
            commit: text("commit")?,
            setup: setup.collect::<Option<_>>()?,
            test: text("test"),
            dir: text("dir")?,
        })
    }
}

/// All that the state of a task is made of, but its commit.
#[derive(Debug, Clone)]
struct Ground {
    image: Image,
    chain: Vec<String>,
    user: String,
    scope: Option<String>,
    task: TaskInfo,
}

impl Ground {
    /// What the state of the task is found by.
    fn key(&self, commit: &str) -> String {
        let Ground { image, chain, user, scope, task } = self;
        let mut parts =
            vec![json!(KEY_KIND), json!(image.to_string()), json!(chain), json!(user), json!(task.repo)];
        parts.extend([json!(commit), json!(task.setup), json!(task.dir)]);
        // One part more, so that keys without a scope are those that they have always been.
        parts.extend(scope.iter().map(|scope| json!(scope)));
        let parts = Value::Array(parts);
        blake3::hash(parts.to_string().as_bytes()).to_hex().to_string()
    }
}

impl Sandboxes {
    /// Makes a box with a commit of a repository in it, set up. What was set up once is found again. If it
    /// fails, nothing is left.
    pub async fn create_task(&self, mut spec: SandboxSpec, task: TaskSpec) -> Result<(Sandbox, TaskInfo)> {
        check(&spec)?;
        // From what was named: the snapshot that it is forked of in the end is of a box that was only for setting it up.
        self.inherit(&mut spec)?;
        crate::tools::check(&spec, &self.rust_tools())?;
        self.check_task(&spec, &task)?;
        let address = Address::parse(&task.repo)?;
        let image = self.have_image(&spec.image).await?;
        let spec = SandboxSpec { image, ..spec };
        let ground = self.ground(&spec, &task, address.shown.clone()).await?;
        // What is named by its whole id, and was set up before, needs no repository.
        if let Some(id) = whole_id(&task.commit)
            && let Some(found) = self.set_up_before(&ground.key(&id)).await?
        {
            return self.fork_task(spec, &task, ground.task, found).await;
        }
        task.tell(TaskPhase::Resolving);
        let (home, asked) = (self.home().clone(), task.commit.clone());
        let (env, logins, stop) = (task.git_env.clone(), task.git_logins, task.stop.clone());
        let (repository, id) = blocking(move || {
            let mut repository = Repository::open(&home, address, Given { env: &env, logins }, stop)?;
            let id = repository.resolve(&asked)?;
            Ok((repository, id))
        })
        .await?;
        if let Some(found) = self.set_up_before(&ground.key(&id)).await? {
            return self.fork_task(spec, &task, ground.task, found).await;
        }
        task.tell(TaskPhase::Fetching);
        let (repository, commit) = blocking(move || {
            let mut repository = repository;
            let commit = repository.check_out(&id)?;
            Ok((repository, commit))
        })
        .await?;
        check_stop(task.stop.as_ref())?;
        // What was named was a tag, or somebody else was faster.
        if let Some(found) = self.set_up_before(&ground.key(&commit)).await? {
            return self.fork_task(spec, &task, ground.task, found).await;
        }
        let mut ground = ground;
        ground.task.commit = commit;
        let kept = self.build_task(&spec, &task, &mut ground, repository).await?;
        self.fork_task(spec, &task, ground.task, kept).await
    }

    /// Refuses what would only fail after all the work.
    fn check_task(&self, spec: &SandboxSpec, task: &TaskSpec) -> Result<()> {
        let refuse = |kind, message: String| Err(Error::new(kind, message));
        check_word(&task.commit, "a commit")?;
        if let Some(dir) = &task.dir
            && (!dir.starts_with('/') || dir.contains('\0'))
        {
            return refuse(
                ErrorKind::Invalid,
                format!("{dir:?} cannot hold the repository; it has to begin with `/`"),
            );
        }
        if task.setup.len() > SETUP_MAX {
            return refuse(ErrorKind::Limit, format!("a task has at most {SETUP_MAX} set-up commands"));
        }
        if spec.runtime == RuntimeKind::Process {
            let message = format!("the runtime `{}` keeps no state, so it has no tasks", spec.runtime.name());
            return refuse(ErrorKind::Unsupported, message);
        }
        match &spec.name {
            Some(name) if self.home().has_name(name) => {
                refuse(ErrorKind::Exists, format!("a box named {name:?} is there already"))
            }
            _ => Ok(()),
        }
    }

    async fn ground(&self, spec: &SandboxSpec, task: &TaskSpec, repo: String) -> Result<Ground> {
        let (home, image) = (self.home().clone(), spec.image.clone());
        let base = blocking(move || {
            let _share = home.store_shared()?;
            image::resolve(&home, &image)
        })
        .await?;
        let own = if base.cwd == "/" { DIR.to_owned() } else { base.cwd };
        let scope = task.scope.clone();
        let task = TaskInfo {
            repo,
            asked: task.commit.clone(),
            commit: String::new(),
            setup: task.setup.clone(),
            test: task.test.clone(),
            dir: task.dir.clone().or_else(|| spec.cwd.clone()).unwrap_or(own),
        };
        let user = spec.user.clone().unwrap_or(base.user);
        Ok(Ground { image: base.image, chain: base.chain, user, scope, task })
    }

    /// The state of a task, if it is there and can be trusted.
    async fn set_up_before(&self, key: &str) -> Result<Option<SnapshotInfo>> {
        let (house, key) = (self.clone(), key.to_owned());
        blocking(move || records::of_key(house.home(), &key)).await
    }

    /// Sets a task up in a box that is only for that, and keeps the result.
    async fn build_task(
        &self,
        spec: &SandboxSpec,
        task: &TaskSpec,
        ground: &mut Ground,
        repository: Repository,
    ) -> Result<SnapshotInfo> {
        let mut building = SandboxSpec {
            name: None,
            labels: BTreeMap::new(),
            read_only: false,
            // What is set up is for boxes of both kinds, and keys that it makes must not be guessed.
            deterministic: Some(false),
            // Where the repository will be may not be there yet.
            cwd: None,
            // Whatever becomes of us, it does not stay.
            owner: Some(std::process::id()),
            // Its commands are no steps of anybody's.
            recording: Some(Recording::Commands),
            ..spec.clone()
        };
        building.limits.ttl = None;
        // For the house, what is set up may be larger than what is written later: the limit holds for the boxes that are made of it.
        // Somebody else could fill the host's disk by a task.
        if task.scope.is_none() {
            building.limits.disk_bytes = None;
        }
        let sandbox = self.create(building).await?;
        // The image may have been replaced since we looked.
        ground.image = sandbox.info().root_image.clone();
        ground.chain.clone_from(&sandbox.info().origin);
        let built = self.build_in(&sandbox, task, ground, repository).await;
        let removed = sandbox.destroy().await;
        let built = built?;
        removed.map(|()| built)
    }

    async fn build_in(
        &self,
        sandbox: &Sandbox,
        task: &TaskSpec,
        ground: &Ground,
        repository: Repository,
    ) -> Result<SnapshotInfo> {
        task.tell(TaskPhase::Copying);
        sandbox.copy_tree_in(&repository.tree(), &ground.task.dir).await.map_err(|e| {
            let message = format!(
                "cannot put the repository into {} of the box: {e}; --repo-dir names another place",
                ground.task.dir
            );
            Error::new(e.kind(), message)
        })?;
        drop(repository);
        own(sandbox, &ground.task.dir).await?;
        for (at, line) in task.setup.iter().enumerate() {
            check_stop(task.stop.as_ref())?;
            let (number, of) = (at + 1, task.setup.len());
            task.tell(TaskPhase::SettingUp { number, of, command: line.clone() });
            set_up(sandbox, task, line, &ground.task.dir).await?;
        }
        check_stop(task.stop.as_ref())?;
        task.tell(TaskPhase::Keeping);
        let (house, id) = (self.clone(), sandbox.id().to_owned());
        let key = ground.key(&ground.task.commit);
        let info = ground.task.clone();
        // It has to survive the host: who set it up once should not wait for it again.
        let options = SnapshotOptions { durable: true, ..SnapshotOptions::default() };
        let kept = blocking(move || house.take(&id, options, Some((key, info)))).await?;
        self.record(sandbox.info(), &[])
            .state("snapshot", Some(&kept.id), Some(kept.method.name()), None)
            .await;
        self.tidy_later(sandbox.info().runtime, None);
        Ok(kept)
    }

    /// Makes a box on the state of a task.
    async fn fork_task(
        &self,
        spec: SandboxSpec,
        task: &TaskSpec,
        info: TaskInfo,
        kept: SnapshotInfo,
    ) -> Result<(Sandbox, TaskInfo)> {
        check_stop(task.stop.as_ref())?;
        task.tell(TaskPhase::Forking);
        let commit = kept.task.map_or(info.commit, |kept| kept.commit);
        let info = TaskInfo { commit, ..info };
        let spec = SandboxSpec {
            image: Image::Snapshot(kept.id),
            cwd: Some(spec.cwd.unwrap_or_else(|| info.dir.clone())),
            task: Some(info.clone()),
            ..spec
        };
        Ok((self.create(spec).await?, info))
    }
}

impl TaskSpec {
    fn tell(&self, phase: TaskPhase) {
        if let Some(progress) = &self.progress {
            progress(phase);
        }
    }
}

/// Gives the directory that the repository lies in to whom the repository belongs, the box's user. An image may have had it before,
/// as another's, who lets him write in it; and git refuses to work where somebody else could have put something.
async fn own(sandbox: &Sandbox, dir: &str) -> Result<()> {
    let (lies_in, checkout) =
        (sandbox.stat(dir, true).await?, sandbox.stat(&format!("{dir}/.git"), false).await?);
    if lies_in.uid == checkout.uid {
        return Ok(());
    }
    // Only the box's root may do that, by the rights of its guest.
    match sandbox.as_user("root").chown(dir, Some(checkout.uid), None).await {
        // An engine may have left the guest without them. The box can be used all the same, and git says itself what it wants.
        Err(e) if e.kind() == ErrorKind::Denied => Ok(()),
        given => given,
    }
}

/// Runs a set-up command. One that fails says how it ended and what it wrote last.
async fn set_up(sandbox: &Sandbox, task: &TaskSpec, line: &str, dir: &str) -> Result<()> {
    let program = Program::Shell(line.to_owned());
    let spec = ExecSpec { program, cwd: Some(dir.to_owned()), ..ExecSpec::default() };
    let mut exec = sandbox.exec(spec).await?;
    let mut said: VecDeque<u8> = VecDeque::new();
    let exit = loop {
        let stopped = async {
            match &task.stop {
                Some(stop) => stop.said().await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = exec.next() => event,
            () = stopped => return check_stop(task.stop.as_ref()),
        };
        match event {
            Some(ExecEvent::Output(chunk)) => {
                said.extend(&chunk.bytes);
                said.drain(..said.len().saturating_sub(SAID_BYTES));
            }
            Some(ExecEvent::Ended(report)) => break report.exit,
            Some(_) => {}
            None => break Exit::BoxGone { why: "the end of the command was not told".into() },
        }
    };
    if exit.success() {
        return Ok(());
    }
    let said: Vec<u8> = said.into();
    let said = String::from_utf8_lossy(&said);
    let end = match said.trim_end() {
        "" => " and wrote nothing".to_owned(),
        said => format!("; the end of what it wrote:\n{said}"),
    };
    Err(Error::new(ErrorKind::Failed, format!("the set-up command {line:?} failed ({exit}){end}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_scope_a_key_is_what_it_has_always_been() {
        let task = TaskInfo { repo: "https://h/r".into(), dir: "/workspace".into(), ..TaskInfo::default() };
        let (image, user) = (Image::Host, "root".to_owned());
        let ground = Ground { image, chain: Vec::new(), user, scope: None, task };
        let parts = r#"["glasshouse task 1","host",[],"root","https://h/r","abc",[],"/workspace"]"#;
        assert_eq!(ground.key("abc"), blake3::hash(parts.as_bytes()).to_hex().to_string());
    }

    #[test]
    fn all_that_a_state_is_made_of_is_in_its_key() {
        let task = TaskInfo { repo: "/r".into(), setup: vec!["a".into(), "b".into()], ..TaskInfo::default() };
        let ground = Ground {
            image: Image::Host,
            chain: vec!["host-1".into()],
            user: "root".into(),
            scope: None,
            task: task.clone(),
        };
        let with = |change: &dyn Fn(&mut Ground)| {
            let mut other = ground.clone();
            change(&mut other);
            other.key("c")
        };
        let key = ground.key("c");
        assert_eq!(key, with(&|_| {}));
        // What tests it, and how the commit was named, changes nothing in the box.
        assert_eq!(key, with(&|g| (g.task.test, g.task.asked) = (Some("t".into()), "main".into())));
        let others = [
            ground.key("d"),
            with(&|g| g.chain.push("host-2".into())),
            with(&|g| g.user = "1000".into()),
            with(&|g| g.scope = Some("red".into())),
            with(&|g| g.scope = Some("blue".into())),
            with(&|g| g.task.repo = "/s".into()),
            with(&|g| g.task.dir = "/d".into()),
            with(&|g| g.task.setup = vec!["a b".into()]),
            with(&|g| g.task.setup.reverse()),
        ];
        for (at, other) in others.iter().enumerate() {
            assert_ne!(&key, other, "{at}");
            assert!(!others[..at].contains(other), "{at}");
        }
        assert_eq!(TaskInfo::from_json(&task.to_json()), Some(task));
    }
}
