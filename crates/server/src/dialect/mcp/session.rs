//! The boxes of one session, and what is done with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::{
    Error, ErrorKind, GitLogins, Image, Recording, ReplayOptions, RuntimeKind, Sandbox, SandboxSpec,
    Sandboxes, SnapshotOptions, TaskSpec,
};
use glasshouse_trace::trajectory::read_one;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;

use super::{McpConfig, code, tools};
use crate::limits::{MCP_BOXES, MCP_FILE_BYTES};
use crate::tenants::{self, Exceeded, Kind, Place, Tenants};

/// One session. Copies are the same.
#[derive(Clone)]
pub(super) struct Session {
    house: Sandboxes,
    config: McpConfig,
    /// What holds for boxes where no process is there for them to die with.
    lease: Option<Lease>,
    boxes: Arc<Mutex<BTreeMap<String, Sandbox>>>,
    /// Snapshots that were taken in it: others may hold what is none of this agent's business.
    snapshots: Arc<Mutex<BTreeSet<String>>>,
}

/// How long the boxes of a caller over HTTP live, and whose they are.
#[derive(Clone)]
pub(super) struct Lease {
    pub(super) ttl: Duration,
    pub(super) tenants: Arc<Tenants>,
    pub(super) tenant: Option<String>,
}

/// What a tool was called with.
pub(super) type Arguments = Map<String, Value>;
type Answer = Result<Value, Error>;

/// What a tool answers.
pub(super) struct Said {
    pub(super) value: Value,
    /// Kinds, and base64.
    pub(super) pictures: Vec<(&'static str, String)>,
}

impl Session {
    pub(super) fn new(house: Sandboxes, config: McpConfig, lease: Option<Lease>) -> Session {
        Session { house, config, lease, boxes: Arc::default(), snapshots: Arc::default() }
    }

    /// Does what a tool does. An error is for the agent to read.
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Arguments,
        cancelled: impl Future<Output = ()>,
    ) -> Result<Said, Error> {
        tools::check(name, &arguments).map_err(invalid)?;
        if name == "run_code" {
            return code::run(&self.the_box(&arguments).await?, &arguments, cancelled).await;
        }
        let runs = tools::runs_a_command(tool_of(name, &arguments));
        let value = tokio::select! {
            value = self.act(name, arguments) => value?,
            // A command of the foreground ends with whoever waits for it. What else is under way is done to its end.
            () = cancelled, if runs => return Err(called_off()),
        };
        Ok(Said { value, pictures: Vec::new() })
    }

    async fn act(&self, name: &str, mut arguments: Arguments) -> Answer {
        match name {
            "create_sandbox" => self.create(&arguments).await,
            "execute_tool" => {
                let (sandbox, tool) = (self.the_box(&arguments).await?, word(&arguments, "tool_name")?);
                let params = arguments.get("params").cloned().unwrap_or_else(|| json!({}));
                tool_answer(&sandbox, tool, params).await
            }
            "reset_sandbox" => {
                let sandbox = self.the_box(&arguments).await?;
                sandbox.reset().await?;
                Ok(json!({ "sandbox_id": sandbox.id(), "reset": true }))
            }
            "replay_trajectory" => self.replay(&arguments).await,
            "sandbox_snapshot" => self.snapshot(&arguments).await,
            "restore_sandbox" => self.restore(&arguments).await,
            "fork_sandbox" => self.fork(&arguments).await,
            "list_sandboxes" => {
                self.forget_those_that_are_gone().await?;
                Ok(json!({ "sandboxes": self.list().await }))
            }
            "destroy_sandbox" => {
                let sandbox = self.the_box(&arguments).await?;
                self.boxes.lock().await.remove(sandbox.id());
                sandbox.destroy().await?;
                Ok(json!({ "sandbox_id": sandbox.id(), "destroyed": true }))
            }
            "upload_file" => self.upload(&arguments).await,
            "download_file" => self.download(&arguments).await,
            name if tools::is_of_boxes(name) => {
                let sandbox = self.the_box(&arguments).await?;
                arguments.remove("sandbox_id");
                tool_answer(&sandbox, name, Value::Object(arguments)).await
            }
            other => Err(invalid(format!("there is no tool {other:?}"))),
        }
    }

    /// Ends all boxes.
    pub(super) async fn end(&self) {
        let boxes = std::mem::take(&mut *self.boxes.lock().await);
        for sandbox in boxes.into_values() {
            // Whatever stays goes with its owner, which is this process.
            let _ = sandbox.destroy().await;
        }
    }

    async fn create(&self, arguments: &Arguments) -> Answer {
        let optional =
            |name: &str| arguments.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let (repo, commit) = (optional("repo_url"), optional("base_commit"));
        let image = optional("image").unwrap_or("host");
        let seconds = seconds(arguments)?.unwrap_or(COMMAND_SECONDS);
        let mut spec = SandboxSpec {
            image: named(image, self.config.runtime)?,
            recording: Some(Recording::Steps),
            ..SandboxSpec::default()
        };
        spec.limits.timeout = Some(Duration::from_secs(seconds));
        let sandbox = match (repo, commit) {
            (None, None) => self.made(spec, None).await?,
            (Some(repo), Some(commit)) => {
                self.check_repo(repo)?;
                let (repo, commit) = (repo.to_owned(), commit.to_owned());
                let git_env = self.config.git_env.clone();
                // A tenant is not whoever runs the server, and reads nothing that only that one may.
                let git_logins = if self.tenant().is_some() { GitLogins::Address } else { GitLogins::User };
                let scope = self.tenant().map(str::to_owned);
                let task = TaskSpec { repo, commit, git_env, git_logins, scope, ..TaskSpec::default() };
                self.made(spec, Some(task)).await?
            }
            _ => return Err(invalid("a repository needs both repo_url and base_commit")),
        };
        let commit =
            sandbox.info().task.as_ref().map(|task| task.commit.clone()).or(commit.map(str::to_owned));
        let level = sandbox.info().level.name();
        Ok(
            json!({ "sandbox_id": sandbox.id(), "image": image, "repo_url": repo, "base_commit": commit, "level": level }),
        )
    }

    /// Makes a box that dies with this process, and takes it in.
    async fn made(&self, mut spec: SandboxSpec, task: Option<TaskSpec>) -> Result<Sandbox, Error> {
        spec.owner = Some(std::process::id());
        spec.runtime = self.config.runtime;
        let mut place = Place::default();
        if let Some(Lease { ttl, tenants, tenant }) = &self.lease {
            spec.limits.ttl = Some(*ttl);
            tenants.bound(tenant.as_deref(), &mut spec.limits);
            spec.labels.extend(tenant.iter().map(|tenant| (tenants::LABEL.to_owned(), tenant.clone())));
            let exceeded = |Exceeded(message): Exceeded| Error::new(ErrorKind::Limit, message);
            place = tenants.place(&self.house, tenant.as_deref(), &spec.limits, 1).await.map_err(exceeded)?;
        }
        self.forget_those_that_are_gone().await?;
        if self.boxes.lock().await.len() >= MCP_BOXES {
            let message = format!("a session has at most {MCP_BOXES} boxes; destroy_sandbox ends one");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let sandbox = match task {
            Some(task) => {
                let sandbox = self.house.create_task(spec, task).await?.0;
                // What the box was made from is kept for the next one, and is his as well.
                if let Image::Snapshot(kept) = &sandbox.info().image {
                    self.mark(Kind::Snapshot, kept);
                }
                sandbox
            }
            None => self.house.create(spec).await?,
        };
        drop(place);
        self.mark(Kind::Box, sandbox.id());
        self.boxes.lock().await.insert(sandbox.id().to_owned(), sandbox.clone());
        Ok(sandbox)
    }

    /// Remembers whose it is. What cannot be marked is seen by whoever runs the server, and by nobody else.
    fn mark(&self, kind: Kind, id: &str) {
        if let Some(lease) = &self.lease {
            let _ = lease.tenants.mark(kind, id, lease.tenant.as_deref());
        }
    }

    /// A box whose time was over, or that somebody else ended, does not count.
    async fn forget_those_that_are_gone(&self) -> Result<(), Error> {
        let there: BTreeSet<String> = self.house.list().await?.into_iter().map(|info| info.id).collect();
        self.boxes.lock().await.retain(|id, _| there.contains(id));
        Ok(())
    }

    /// Whose session it is, if he is not whoever runs the server.
    fn tenant(&self) -> Option<&str> {
        self.lease.as_ref()?.tenant.as_deref()
    }

    fn check_repo(&self, repo: &str) -> Result<(), Error> {
        let is_one_of = |schemes: &[&str]| schemes.iter().any(|scheme| repo.starts_with(scheme));
        if let Some(Lease { tenants, tenant: Some(tenant), .. }) = &self.lease {
            if !tenants.may_fetch(tenant) {
                let message =
                    "this server fetches no repositories for its tenants; upload_file puts files into a box";
                return Err(Error::new(ErrorKind::Denied, message));
            }
            // Ssh would show the keys of whoever runs the server; a tenant has no way to bring his own.
            return match is_one_of(&["https://", "http://", "git://"]) {
                true => Ok(()),
                false => {
                    Err(invalid("a repository has to be a URL (https, http, git); a login can be part of it"))
                }
            };
        }
        if is_one_of(&["https://", "http://", "ssh://", "git://"]) || self.config.local_repos {
            return Ok(());
        }
        let message = "a repository has to be a URL (https, http, ssh, git); `glass mcp --local-repos` allows paths of this machine";
        Err(invalid(message))
    }

    /// A box of this session.
    async fn the_box(&self, arguments: &Arguments) -> Result<Sandbox, Error> {
        let id = word(arguments, "sandbox_id")?;
        let unknown = || {
            let message = format!("this session has no box {id:?}; list_sandboxes tells those that it has");
            Error::new(ErrorKind::NotFound, message)
        };
        self.boxes.lock().await.get(id).cloned().ok_or_else(unknown)
    }

    async fn list(&self) -> Vec<Value> {
        let boxes = self.boxes.lock().await;
        let told = |sandbox: &Sandbox| {
            let info = sandbox.info();
            json!({ "sandbox_id": info.id, "image": info.image.to_string(), "level": info.level.name() })
        };
        boxes.values().map(told).collect()
    }

    async fn snapshot(&self, arguments: &Arguments) -> Answer {
        let sandbox = self.the_box(arguments).await?;
        let label = arguments.get("label").and_then(Value::as_str);
        let name = label.filter(|label| !label.is_empty()).map(str::to_owned);
        let options = SnapshotOptions { name, ..SnapshotOptions::default() };
        let taken = match sandbox.snapshot(options).await {
            // A label is for people: it may be any text, and come again. Then the id is all that it is called.
            Err(e) if label.is_some() && matches!(e.kind(), ErrorKind::Invalid | ErrorKind::Exists) => {
                sandbox.snapshot(SnapshotOptions::default()).await?
            }
            taken => taken?,
        };
        self.snapshots.lock().await.insert(taken.id.clone());
        self.mark(Kind::Snapshot, &taken.id);
        Ok(json!({
            "sandbox_id": sandbox.id(), "snapshot_id": taken.id, "label": label, "name": taken.name,
            "took_us": taken.took_us, "processes": taken.processes,
        }))
    }

    async fn restore(&self, arguments: &Arguments) -> Answer {
        let (sandbox, snapshot) = (self.the_box(arguments).await?, word(arguments, "snapshot_id")?);
        if !self.snapshots.lock().await.contains(snapshot) {
            let message = format!("this session has taken no snapshot {snapshot:?}");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        sandbox.restore(snapshot).await?;
        Ok(json!({ "sandbox_id": sandbox.id(), "snapshot_id": snapshot }))
    }

    /// Another box on the same files. A snapshot carries them over and is not needed any more then.
    async fn fork(&self, arguments: &Arguments) -> Answer {
        let sandbox = self.the_box(arguments).await?;
        let info = sandbox.info();
        let taken = sandbox.snapshot(SnapshotOptions::default()).await?;
        let timeout = info.limits.iter().find(|limit| limit.name == "timeout").and_then(|limit| limit.amount);
        let mut spec = SandboxSpec {
            image: Image::Snapshot(taken.id.clone()),
            user: Some(info.user.clone()),
            cwd: Some(info.cwd.clone()),
            recording: Some(info.recording),
            task: info.task.clone(),
            ..SandboxSpec::default()
        };
        spec.limits.timeout = timeout.map(Duration::from_millis);
        let made = self.made(spec, None).await;
        self.house.remove_snapshot(&taken.id).await?;
        Ok(json!({ "sandbox_id": made?.id(), "forked_from": sandbox.id() }))
    }

    async fn replay(&self, arguments: &Arguments) -> Answer {
        let sandbox = self.the_box(arguments).await?;
        let text = arguments.get("trajectory").map(Value::to_string).unwrap_or_default();
        let found = read_one(text.as_bytes(), None)
            .map_err(|e| invalid(format!("the trajectory cannot be read: {e}")))?;
        let trajectory = found.1.trajectory;
        let replay = self.house.replay(&sandbox, &trajectory, ReplayOptions::default()).await?;
        let replayed = replay.run(|_| ()).await?;
        let details: Vec<Value> = replayed
            .divergences
            .iter()
            .flat_map(|divergence| {
                divergence.differences.iter().map(|difference| {
                    json!({
                        "step": divergence.step, "path": difference.path, "expected": difference.expected,
                        "actual": difference.actual, "diff": difference.diff,
                    })
                })
            })
            .collect();
        Ok(json!({
            "success": replayed.is_same(), "total_steps": replayed.total, "completed_steps": replayed.done,
            "divergence_step": replayed.divergences.first().map(|first| first.step), "details": details,
            "notes": replayed.notes,
        }))
    }

    async fn upload(&self, arguments: &Arguments) -> Answer {
        let (sandbox, path) = (self.the_box(arguments).await?, word(arguments, "path")?);
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let bytes = match (text("content"), text("content_base64")) {
            (Some(text), None) => text.as_bytes().to_vec(),
            (None, Some(coded)) => {
                STANDARD.decode(coded).map_err(|e| invalid(format!("content_base64 is no base64: {e}")))?
            }
            _ => return Err(invalid("give one of content and content_base64")),
        };
        sandbox.write_file(path, &bytes, None).await?;
        Ok(json!({ "path": path, "bytes": bytes.len() }))
    }

    async fn download(&self, arguments: &Arguments) -> Answer {
        let (sandbox, path) = (self.the_box(arguments).await?, word(arguments, "path")?);
        let size = sandbox.stat(path, true).await?.size;
        if size > MCP_FILE_BYTES {
            let message = format!(
                "{path} has {size} bytes, and {MCP_FILE_BYTES} are told at most; file_read reads parts"
            );
            return Err(Error::new(ErrorKind::Limit, message));
        }
        let bytes = sandbox.read_file(path, 0, Some(MCP_FILE_BYTES)).await?;
        Ok(match String::from_utf8(bytes) {
            Ok(text) => json!({ "path": path, "content": text }),
            Err(e) => json!({ "path": path, "content_base64": STANDARD.encode(e.as_bytes()) }),
        })
    }
}

/// Seconds that a command may take, unless said otherwise.
const COMMAND_SECONDS: u64 = 300;

async fn tool_answer(sandbox: &Sandbox, name: &str, params: Value) -> Answer {
    let result = sandbox.tool(name, params).await?;
    Ok(json!({ "output": result.output, "exit_code": result.exit_code, "error": result.error }))
}

/// An image by its name. No path of this machine can be named.
fn named(image: &str, runtime: RuntimeKind) -> Result<Image, Error> {
    if image == "host" {
        return Ok(Image::Host);
    }
    // An engine has images of its own.
    let store = if runtime == RuntimeKind::Docker { "docker-daemon:" } else { "oci://" };
    format!("{store}{}", image.strip_prefix("oci://").unwrap_or(image)).parse()
}

pub(super) fn word<'a>(arguments: &'a Arguments, name: &str) -> Result<&'a str, Error> {
    let found = arguments.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    found.ok_or_else(|| invalid(format!("{name} is missing, or no text")))
}

/// The tool of a box that is called, by its own name or by that of another.
fn tool_of<'a>(name: &'a str, arguments: &'a Arguments) -> &'a str {
    match name {
        "execute_tool" => arguments.get("tool_name").and_then(Value::as_str).unwrap_or_default(),
        name => name,
    }
}

/// Nobody waits for the answer any more.
pub(super) fn called_off() -> Error {
    Error::new(ErrorKind::Gone, "the call was cancelled")
}

/// How long something may take. What is no such number is not taken for none.
pub(super) fn seconds(arguments: &Arguments) -> Result<Option<u64>, Error> {
    let Some(said) = arguments.get("timeout").filter(|said| !said.is_null()) else { return Ok(None) };
    let whole = said.as_f64().filter(|seconds| seconds.fract() == 0.0 && (1.0..=1e9).contains(seconds));
    let whole = whole.map(|seconds| seconds as u64);
    whole.map(Some).ok_or_else(|| invalid("timeout has to be a whole number of seconds, 1 or more"))
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}
