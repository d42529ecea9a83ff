//! Code that is run in a box: contexts that remember, and runs in them.
//!
//! A context is an interpreter that lives in the box until it is deleted, lost, or its box is reset. A run is an [`Exec`]
//! like a command's: it is numbered, streamed, attached to, killed and recorded as one. What it tells beside its output
//! comes as [`crate::ExecEvent::Result`].
//!
//! What speaks with a kernel of Jupyter's is brought into the box when the first such context is made, and does all of it there.

use glasshouse_protocol::{
    Code, ContextInfo, ContextSpec, ContextState, ExecSpec, Language, Program, Reply, Request,
};
use glasshouse_trace::ContextChange;

use crate::carry::KERNEL;
use crate::client;
use crate::driver::Act;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::{Exec, ExecOutput};
use crate::sandbox::Sandbox;
use crate::sandboxes::check_variables;

/// Code to be run, and how.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CodeSpec {
    /// What to run.
    pub code: String,
    /// It is a whole program, and nothing is run in its context after it: it goes on until nothing is left that it waits for.
    pub whole: bool,
    /// Whether its stdin is fed. Without, it is empty.
    pub stdin: bool,
    /// Wall time after which it is interrupted, and after `grace_ms` more killed with its context.
    pub timeout_ms: Option<u64>,
    /// Time between the interrupt and the kill.
    pub grace_ms: Option<u64>,
    /// It goes on when whoever started it is gone.
    pub background: bool,
    /// Bytes of output and results that are kept for later readers, head and tail.
    pub kept_output_bytes: Option<u64>,
    /// It is ended when it has written and told more than this.
    pub output_bytes_max: Option<u64>,
    /// What the caller calls it.
    pub label: Option<String>,
}

impl CodeSpec {
    /// Just this code.
    pub fn new(code: impl Into<String>) -> CodeSpec {
        CodeSpec { code: code.into(), ..CodeSpec::default() }
    }

    fn exec(self, context: &str, language: Language) -> ExecSpec {
        let code = Code { context: context.to_owned(), language, code: self.code, whole: self.whole };
        ExecSpec {
            program: Program::Code(code),
            stdin: self.stdin,
            timeout_ms: self.timeout_ms,
            grace_ms: self.grace_ms,
            background: self.background,
            kept_output_bytes: self.kept_output_bytes,
            output_bytes_max: self.output_bytes_max,
            label: self.label,
            ..ExecSpec::default()
        }
    }
}

/// Said of a box that was made before this was invented.
const NO_KERNELS: &str =
    "this box was made by an older version, whose guest knows no kernels of Jupyter's; make a new box";

fn in_context(reply: Reply) -> Result<ContextInfo> {
    match reply {
        Reply::Context(info) => Ok(info),
        other => Err(client::unexpected(&other)),
    }
}

fn is_not_understood(error: &Error) -> bool {
    error.kind() == ErrorKind::Unsupported && error.to_string().starts_with("not understood")
}

/// The guest of a box that was made by an older program knows nothing of contexts.
fn told_by_old(error: Error) -> Error {
    match is_not_understood(&error) {
        true => Error::new(
            ErrorKind::Unsupported,
            "this box was made by an older version, whose guest knows no code contexts; make a new box",
        ),
        false => error,
    }
}

impl Sandbox {
    /// Starts an interpreter that remembers, and waits until it is there.
    pub async fn create_context(&self, spec: ContextSpec) -> Result<ContextInfo> {
        check_variables(&spec.env)?;
        let mut change = ContextChange {
            what: "create".into(),
            language: Some(spec.language),
            interpreter: spec.interpreter.clone(),
            cwd: spec.cwd.clone(),
            user: spec.user.clone(),
            env_names: spec.env.iter().map(|(name, _)| name.clone()).collect(),
            ..ContextChange::default()
        };
        let values = spec.env.iter().map(|(_, value)| value.clone()).collect();
        self.driver.tell(Act::Hide(values)).await;
        let info = self.started_context(spec).await?;
        change.context.clone_from(&info.id);
        self.driver.act(|recorded| Act::Context { change, recorded }).await?;
        Ok(info)
    }

    /// A guest that knows nothing of warm interpreters is asked for a cold one.
    async fn started_context(&self, mut spec: ContextSpec) -> Result<ContextInfo> {
        spec.carried = match spec.language {
            Language::Jupyter => Some(KERNEL.bring_into(self).await?),
            _ => None,
        };
        let made = self.call(Request::CreateContext(Box::new(spec.clone()))).await;
        let is_old = matches!(&made, Err(e) if is_not_understood(e));
        if is_old && spec.language == Language::Jupyter {
            return Err(Error::new(ErrorKind::Unsupported, NO_KERNELS));
        }
        if !is_old || spec.warm.is_none() {
            return in_context(made.map_err(told_by_old)?);
        }
        let spec = ContextSpec { warm: None, ..spec };
        let info = self.context_reply(Request::CreateContext(Box::new(spec))).await?;
        let cold = Some("the box was made by an older version, whose guest keeps no interpreter warm".into());
        Ok(ContextInfo { cold, ..info })
    }

    /// All contexts of the box, those that were lost included.
    pub async fn contexts(&self) -> Result<Vec<ContextInfo>> {
        match self.call(Request::Contexts).await.map_err(told_by_old)? {
            Reply::Contexts { contexts } => Ok(contexts),
            other => Err(client::unexpected(&other)),
        }
    }

    /// One context, by its name.
    pub async fn context(&self, id: &str) -> Result<ContextInfo> {
        let found = self.contexts().await?.into_iter().find(|context| context.id == id);
        found.ok_or_else(|| {
            let message = format!(
                "box {} has no context {id}; `glass context list` shows those that it has",
                self.id()
            );
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// The context of this name: made if there is none, and anew if it was lost.
    pub async fn have_context(&self, spec: ContextSpec) -> Result<ContextInfo> {
        let Some(id) = spec.id.clone() else { return self.create_context(spec).await };
        match self.contexts().await?.into_iter().find(|context| context.id == id) {
            Some(lost) if matches!(lost.state, ContextState::Lost { .. }) => {
                self.restart_context(&lost.id).await
            }
            Some(found) => Ok(found),
            None => match self.create_context(spec).await {
                // Somebody else wanted it at the same moment.
                Err(e) if e.kind() == ErrorKind::Exists => self.context(&id).await,
                made => made,
            },
        }
    }

    /// Runs code in a context. One that is busy refuses it, with [`ErrorKind::Busy`].
    pub async fn run_code(&self, context: &ContextInfo, spec: CodeSpec) -> Result<Exec> {
        self.exec(spec.exec(&context.id, context.language)).await.map_err(told_by_old)
    }

    /// Runs code in a context of its own, which is gone afterwards.
    pub async fn run_once(&self, context: ContextSpec, spec: CodeSpec) -> Result<ExecOutput> {
        let context = self.create_context(context).await?;
        let output = match self.run_code(&context, spec).await {
            Ok(exec) => Ok(exec.collect().await),
            Err(e) => Err(e),
        };
        // It may have gone with its box; what the run came to is what was asked for.
        let _ = self.delete_context(&context.id).await;
        output
    }

    /// Interrupts what runs in a context, which lives on.
    pub async fn interrupt_context(&self, id: &str) -> Result<()> {
        self.change_context("interrupt", id, Request::InterruptContext { context: id.to_owned() })
            .await
            .map(drop)
    }

    /// Kills a context's interpreter with all that it started, and starts it anew.
    pub async fn restart_context(&self, id: &str) -> Result<ContextInfo> {
        match self.change_context("restart", id, Request::RestartContext { context: id.to_owned() }).await? {
            Reply::Context(info) => Ok(info),
            other => Err(client::unexpected(&other)),
        }
    }

    /// Kills a context's interpreter with all that it started, and forgets it.
    pub async fn delete_context(&self, id: &str) -> Result<()> {
        self.change_context("delete", id, Request::DeleteContext { context: id.to_owned() }).await.map(drop)
    }

    /// Whether a context is gone, and why.
    pub async fn why_lost(&self, id: &str) -> Result<Option<String>> {
        Ok(match self.context(id).await?.state {
            ContextState::Lost { why } => Some(why),
            ContextState::Starting | ContextState::Idle | ContextState::Busy { .. } => None,
        })
    }

    async fn context_reply(&self, request: Request) -> Result<ContextInfo> {
        in_context(self.call(request).await.map_err(told_by_old)?)
    }

    async fn change_context(&self, what: &str, id: &str, request: Request) -> Result<Reply> {
        let reply = self.call(request).await.map_err(told_by_old)?;
        let change = ContextChange { what: what.into(), context: id.to_owned(), ..ContextChange::default() };
        self.driver.act(|recorded| Act::Context { change, recorded }).await?;
        Ok(reply)
    }
}
