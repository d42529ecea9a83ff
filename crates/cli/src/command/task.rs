//! A box with a repository in it: what `glass create` does with `--repo`.

use std::ffi::OsString;
use std::pin::pin;

use anyhow::Result;
use clap::Args;
use glasshouse_sandbox::{SandboxSpec, Sandboxes, Stop, TaskInfo, TaskSpec};
use serde_json::{Value, json};

use super::create::{Made, remove};
use crate::args::Global;
use crate::signals::{Signals, Told};
use crate::{output, progress};

/// What git is given of our environment: where programs are, logins, and the way through proxies.
const GIT_ENV: [&str; 21] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SSH_AUTH_SOCK",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "TMPDIR",
    "KRB5CCNAME",
    "XDG_RUNTIME_DIR",
    "TZ",
];

/// What a box is set up for.
#[derive(Debug, Clone, Args)]
pub(crate) struct TaskOptions {
    /// A repository to put into the box: a URL, or a path of this machine
    #[arg(long, value_name = "URL|PATH", requires = "commit", help_heading = "Task")]
    repo: Option<String>,
    /// Which commit of it: an id or the beginning of one, a branch, or a tag
    #[arg(long, value_name = "COMMIT", requires = "repo", help_heading = "Task")]
    commit: Option<String>,
    /// A line for the box's shell that sets it up, in the repository (repeatable)
    #[arg(long, value_name = "CMD", requires = "repo", help_heading = "Task")]
    setup: Vec<String>,
    /// The line that tests it, which `glass info` shows
    #[arg(long, value_name = "CMD", requires = "repo", help_heading = "Task")]
    test: Option<String>,
    /// Where in the box the repository lies [default: the working directory]
    #[arg(long, value_name = "PATH", requires = "repo", help_heading = "Task")]
    repo_dir: Option<String>,
}

impl TaskOptions {
    /// Whether nothing was said.
    pub(super) fn is_empty(&self) -> bool {
        self.repo.is_none()
    }

    /// The task that these options describe, if they describe one.
    pub(super) fn spec(self, global: &Global) -> Option<TaskSpec> {
        let (Some(repo), Some(commit)) = (self.repo, self.commit) else { return None };
        let (setup, test, dir) = (self.setup, self.test, self.repo_dir);
        Some(with_surroundings(TaskSpec { repo, commit, setup, test, dir, ..TaskSpec::default() }, global))
    }
}

/// What git is given of our environment.
pub(super) fn git_env() -> Vec<(String, OsString)> {
    let ours = |name: &str| Some((name.to_owned(), std::env::var_os(name)?));
    GIT_ENV.into_iter().filter_map(ours).collect()
}

/// The task, with what git needs of our environment.
pub(super) fn with_surroundings(task: TaskSpec, global: &Global) -> TaskSpec {
    TaskSpec { git_env: git_env(), progress: progress::phases(global.quiet || global.json), ..task }
}

/// Makes a box of a task, or leaves nothing behind. Whoever ends us ends that, too.
pub(super) async fn make(
    house: &Sandboxes,
    spec: SandboxSpec,
    task: TaskSpec,
    signals: &mut Signals,
) -> Result<Made> {
    let stop = Stop::default();
    let task = TaskSpec { stop: Some(stop.clone()), ..task };
    let mut work = pin!(house.create_task(spec, task));
    let mut ended_by = None;
    let made = loop {
        tokio::select! {
            made = &mut work => break made,
            told = signals.next() => if let Told::End(signal) = told {
                if signals.insist() {
                    return Ok(Made::Stopped(signal));
                }
                ended_by = Some(signal);
                stop.stop();
            }
        }
    };
    // Layers that nobody needs after all.
    house.settle().await;
    match (made, ended_by) {
        (Ok((sandbox, _)), None) => Ok(Made::Box(sandbox)),
        (Ok((sandbox, _)), Some(signal)) => {
            remove(&sandbox, signals).await?;
            Ok(Made::Stopped(signal))
        }
        (Err(_), Some(signal)) => Ok(Made::Stopped(signal)),
        (Err(error), None) => {
            // What a set-up command wrote is read in lines, and the sentence is the last one.
            let text = error.to_string();
            let Some((sentence, said)) = text.split_once("; the end of what it wrote:\n") else {
                return Err(error.into());
            };
            said.lines().for_each(output::say_beside);
            Err(anyhow::Error::msg(sentence.to_owned()))
        }
    }
}

/// What a box was set up for, also for snapshots.
pub(super) fn json(task: Option<&TaskInfo>) -> Value {
    let Some(task) = task else { return Value::Null };
    json!({
        "repo": task.repo,
        "asked": task.asked,
        "commit": task.commit,
        "setup": task.setup,
        "test": task.test,
        "dir": task.dir,
    })
}

/// The same for people.
pub(super) fn rows(task: &TaskInfo) -> Vec<(&'static str, String)> {
    let commit = match task.asked == task.commit {
        true => task.commit.clone(),
        false => format!("{} ({})", task.commit, task.asked),
    };
    let mut rows = vec![("repository", task.repo.clone()), ("commit", commit), ("lies in", task.dir.clone())];
    rows.extend(task.setup.iter().map(|line| ("set up by", line.clone())));
    rows.extend(task.test.clone().map(|line| ("tested by", line)));
    rows
}
