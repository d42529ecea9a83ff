//! `glass replay`: a trajectory once more.

use std::io::{self, BufRead as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use glasshouse_sandbox::{
    Beginning, ErrorKind, Exit, ExitReport, Ground, Limits, ReplayOptions, Replayed, Sandbox, SandboxSpec,
    Sandboxes, TaskSpec, ToolResult, ToolsSpec, canonical_tool, complete_tool,
};
use glasshouse_trace::trajectory::{Format, StateAfter, Step, Strictness, Text, Trajectory};
use serde_json::{Value, json};

use super::create::{Made, make, remove};
use super::image::{Fetched, fetch};
use super::task::{self, TaskOptions};
use super::tools::OwnTools;
use super::trajectory::diff::{DIVERGED_CODE, divergence_json, divergence_lines, ignored_json, ignored_line};
use crate::args::{BoxOptions, Global, Surroundings};
use crate::output;
use crate::session::{Part, signal_code};
use crate::signals::{Impatient, Signals};
use crate::words::count;

/// Do the steps of a trajectory again, and name the first one that goes another way
#[derive(Debug, Args)]
#[command(after_help = "\
FILE is a trajectory of any known format (`glass trajectory schema` lists them), or the record
of a box: `--of ID`. Without --on, a fresh box is made of what the trajectory began with, and
removed. What is not said of it (--image, --user, --memory …) is as on record; it records steps,
to compare files.

Modes:
  verify   do every step again; exit code 0: the same, 3: it went another way, 1: something failed
  serve    answer from the record without doing anything: a request a line on stdin, as JSON
           {\"tool\":…,\"params\":…}, an answer a line on stdout; one that differs from the
           recorded one at its place is an error, exit code 3
  branch   do the first --until steps, and leave the box to you; prints its id. If the last of them
           has a snapshot that is here (--record snapshots), the box is forked of that instead

Examples:
  glass replay run.json
  glass replay run.json --until 16 --mode branch
  glass replay --of web --strict --json
  glass replay theirs.traj --repo https://host/it.git --commit v1 --output-only --keep-going")]
pub(crate) struct Replay {
    /// The trajectory; `-` is standard input
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "of")]
    file: Option<PathBuf>,
    /// The record of this box instead of a file
    #[arg(long, value_name = "ID", conflicts_with = "file")]
    of: Option<String>,
    /// The format of the file [default: as it looks]
    #[arg(long, value_name = "FORMAT", value_parser = super::trajectory::format(), conflicts_with = "of")]
    format: Option<Format>,
    /// Replay in this box, as it is, and keep it
    #[arg(long, value_name = "ID")]
    #[arg(conflicts_with_all = [
        "image", "runtime", "engine_runtime", "min_level", "name", "label", "read_only", "volume", "record", "redact", "deterministic", "memory",
        "cpu", "pids", "disk", "output", "ttl", "env", "cwd", "user", "repo", "commit", "setup", "test", "repo_dir",
        "without_tool", "tool_file",
    ])]
    on: Option<String>,
    /// What is done
    #[arg(long, value_enum, default_value_t = Mode::Verify)]
    mode: Mode,
    /// Only the first so many steps
    #[arg(long, value_name = "STEPS")]
    until: Option<usize>,
    /// Byte by byte: no rule for noise holds
    #[arg(long, conflicts_with = "output_only")]
    strict: bool,
    /// Compare only what was written
    #[arg(long)]
    output_only: bool,
    /// Go on after a step that went another way
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    surroundings: Surroundings,
    #[command(flatten)]
    task: TaskOptions,
    #[command(flatten)]
    tools: OwnTools,
}

/// What is done with a trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Do it again and compare
    Verify,
    /// Answer from the record
    Serve,
    /// Do it again up to a step, and leave the box
    Branch,
}

impl Replay {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let trajectory = match (&self.of, &self.file) {
            (Some(name), _) => super::trajectory::of_box(&house, name)?.0,
            (None, Some(file)) => super::trajectory::read(file, self.format)?.trajectory,
            (None, None) => bail!("say which trajectory: a file, or --of ID"),
        };
        if let Some(until) = self.until.filter(|until| *until > trajectory.steps.len()) {
            bail!("the trajectory has {} steps, and not {until}", trajectory.steps.len());
        }
        if self.mode == Mode::Serve {
            self.only_answers()?;
            return serve(&trajectory, self.until);
        }
        let mut signals = Signals::of(Part::default())?;
        if let Some(code) = self.fork_of_step(global, &house, &trajectory, &mut signals).await? {
            return Ok(code);
        }
        let (made, own) = self.ground(global, &house, &trajectory, &mut signals).await?;
        let sandbox = match made {
            Made::Box(sandbox) => sandbox,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        let options = ReplayOptions {
            until: self.until,
            strictness: match (self.strict, self.output_only) {
                (true, _) => Strictness::Strict,
                (_, true) => Strictness::OutputOnly,
                _ => Strictness::Normal,
            },
            keep_going: self.keep_going,
        };
        let work = replay(global, &house, &sandbox, &trajectory, options);
        let replayed = match signals.unless_told(work).await {
            Ok(replayed) => replayed,
            Err(signal) => {
                if own {
                    remove(&sandbox, &mut signals).await?;
                }
                return Ok(signal_code(signal));
            }
        };
        let same = replayed.as_ref().is_ok_and(Replayed::is_same);
        // A box that somebody is to go on with stays, if it is what it should be.
        let keep = self.mode == Mode::Branch && same;
        if own && !keep {
            remove(&sandbox, &mut signals).await?;
        }
        let replayed = replayed?;
        match global.json {
            true => output::print_json(&report_json(&replayed, keep.then(|| sandbox.id())))?,
            false => tell(global, &replayed, keep.then(|| sandbox.id()))?,
        }
        Ok(if replayed.is_same() { 0 } else { DIVERGED_CODE })
    }

    /// Answering from the record makes no box and compares nothing but requests: who asks for more is told.
    fn only_answers(&self) -> Result<()> {
        let no_box = self.the_box.spec()? == SandboxSpec::default() && self.surroundings.is_empty();
        let no_tools = self.tools.clone().spec()? == ToolsSpec::default();
        let no_task = self.task.is_empty();
        match no_box
            && no_tools
            && no_task
            && self.on.is_none()
            && !self.strict
            && !self.output_only
            && !self.keep_going
        {
            true => Ok(()),
            false => bail!(
                "`--mode serve` executes nothing and compares only requests; of the options, it takes --of, --format \
                 and --until"
            ),
        }
    }

    /// A box on the snapshot of the last step that is asked for, if there is one here and nothing else is needed.
    async fn fork_of_step(
        &self,
        global: &Global,
        house: &Sandboxes,
        trajectory: &Trajectory,
        signals: &mut Signals,
    ) -> Result<Option<i32>> {
        let steps = self.until.unwrap_or(trajectory.steps.len());
        let wanted = self.mode == Mode::Branch && self.on.is_none() && self.the_box.image()?.is_none();
        let last = trajectory.steps[..steps].last().filter(|_| wanted && self.task.is_empty());
        let Some((state, snapshot)) = last.and_then(state_kept) else { return Ok(None) };
        let spec = match Ground::of(trajectory, self.asked()?)? {
            Ground::Box(spec) | Ground::Task(spec, _) => *spec,
        };
        let sandbox = match make_like(house, &spec, &state.digest, snapshot, signals).await {
            Ok(Some(Made::Box(sandbox))) => sandbox,
            Ok(Some(Made::Stopped(signal))) => return Ok(Some(signal_code(signal))),
            // Doing the steps again needs no snapshot, and says what is wrong with the rest.
            Ok(None) | Err(_) => return Ok(None),
        };
        let note = format!("no step was done again: the state after step {steps} was here");
        let replayed = Replayed { total: trajectory.steps.len(), notes: vec![note], ..Replayed::default() };
        match global.json {
            true => output::print_json(&report_json(&replayed, Some(sandbox.id())))?,
            false => {
                global.say(&format!("{}; the box is yours", replayed.notes[0]));
                output::print([sandbox.id()])?;
            }
        }
        Ok(Some(0))
    }

    /// What was said of the box.
    fn asked(&self) -> Result<SandboxSpec> {
        let mut spec = self.the_box.spec()?;
        spec.env = self.surroundings.variables()?;
        spec.cwd.clone_from(&self.surroundings.cwd);
        spec.user.clone_from(&self.surroundings.user);
        spec.tools = self.tools.clone().spec()?;
        Ok(spec)
    }

    /// The box to replay in, and whether we made it.
    async fn ground(
        &self,
        global: &Global,
        house: &Sandboxes,
        trajectory: &Trajectory,
        signals: &mut Signals,
    ) -> Result<(Made, bool)> {
        if let Some(on) = &self.on {
            return Ok((Made::Box(global.connect(on).await?), false));
        }
        let mut spec = self.asked()?;
        if self.mode == Mode::Verify {
            spec.owner = Some(std::process::id());
        }
        let asked_limits = spec.limits.clone();
        let asked = self.task.clone().spec(global);
        let (mut spec, task) = match (asked, Ground::of(trajectory, spec)?) {
            (asked, Ground::Box(spec)) => (*spec, asked),
            (Some(task), Ground::Task(spec, _)) => (*spec, Some(task)),
            (None, Ground::Task(spec, task)) => (*spec, Some(task::with_surroundings(*task, global))),
        };
        // Whoever names an image means it; whether it is the recorded one, its digest tells.
        if let Some(image) = self.the_box.image()? {
            spec.image = image;
        }
        if let Some(recording) = self.the_box.recording() {
            spec.recording = Some(recording);
        }
        if let Some(Fetched::Stopped(signal)) = fetch(global, house, &mut spec.image, signals).await? {
            return Ok((Made::Stopped(signal), true));
        }
        // Whoever names an image or a task means that.
        let named = self.the_box.image()?.is_some() || !self.task.is_empty();
        let beginning = Beginning::of(trajectory).filter(|_| !named);
        let ground = Start { task, beginning, needed: !self.output_only };
        let first = make_either(house, spec.clone(), ground.clone(), signals).await;
        let made = match first {
            // Nobody asked for the limits that are on record, so they need not be refused; but it is told.
            Err(error) if is_unsupported(&error) && spec.limits != asked_limits => {
                global.say(&format!("replaying without the limits on record: {}", output::sentence(&error)));
                let Limits { timeout, output_bytes, .. } = spec.limits;
                let limits = Limits { timeout, output_bytes, ..asked_limits };
                make_either(house, SandboxSpec { limits, ..spec }, ground, signals).await?
            }
            first => first?,
        };
        Ok((made, true))
    }
}

/// The state after a step, and its snapshot, if that is all there was: processes are in no snapshot.
fn state_kept(step: &Step) -> Option<(&StateAfter, &str)> {
    let state = step.observed.state.as_ref()?;
    let alone = state.processes.as_ref().is_none_or(Vec::is_empty);
    let is_settled = !state.racy && !state.at_work && !state.overlapped;
    let snapshot = state.snapshot.as_deref().filter(|_| alone && is_settled)?;
    Some((state, snapshot))
}

/// What a fresh box begins with, where that is not its image.
#[derive(Debug, Clone)]
struct Start {
    task: Option<TaskSpec>,
    beginning: Option<Beginning>,
    /// Another one will not do.
    needed: bool,
}

/// Makes a box: on the state that the trajectory began with, of its task, or of its image.
async fn make_either(
    house: &Sandboxes,
    spec: SandboxSpec,
    start: Start,
    signals: &mut Signals,
) -> Result<Made> {
    let Start { task, beginning, needed } = start;
    if let Some(Beginning { of, digest: Some(digest) }) = &beginning
        && let Some(made) = make_like(house, &spec, digest, of, signals).await?
    {
        return Ok(made);
    }
    match (task, beginning) {
        (Some(task), _) => task::make(house, spec, task, signals).await,
        (None, Some(Beginning { of, digest: Some(digest) })) if needed => bail!(
            "the trajectory began as a fork of {of}, and no snapshot or box here has those files (digest {digest}); name a \
             box that has them with --on, or `--output-only`, which compares only what is written"
        ),
        // What was not recorded is not compared, and a snapshot is known by its name, too.
        (None, _) => make(house, spec, signals).await,
    }
}

async fn make_like(
    house: &Sandboxes,
    spec: &SandboxSpec,
    digest: &str,
    of: &str,
    signals: &mut Signals,
) -> Result<Option<Made>> {
    match signals.through(house.create_like(spec.clone(), digest, Some(of))).await {
        Ok((made, None)) => Ok(made?.map(Made::Box)),
        Ok((made, Some(signal))) => {
            if let Ok(Some(sandbox)) = made {
                remove(&sandbox, signals).await?;
            }
            Ok(Some(Made::Stopped(signal)))
        }
        Err(Impatient { signal }) => Ok(Some(Made::Stopped(signal))),
    }
}

fn is_unsupported(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<glasshouse_sandbox::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::Unsupported)
}

async fn replay(
    global: &Global,
    house: &Sandboxes,
    sandbox: &Sandbox,
    trajectory: &Trajectory,
    options: ReplayOptions,
) -> glasshouse_sandbox::Result<Replayed> {
    let progress = crate::progress::steps(global.quiet || global.json);
    let replay = house.replay(sandbox, trajectory, options).await?;
    replay.run(|done| progress(done.number, done.of, &done.step.tool)).await
}

/// What came of it, for people.
fn tell(global: &Global, replayed: &Replayed, branch: Option<&str>) -> Result<()> {
    for note in &replayed.notes {
        global.say(note);
    }
    for divergence in &replayed.divergences {
        output::print(divergence_lines(divergence, "recorded", "replayed"))?;
    }
    output::print(replayed.ignored.iter().map(ignored_line))?;
    let steps = match replayed.done == replayed.total {
        true => count(replayed.total, "step", "steps"),
        false => format!("{} of {}", replayed.done, count(replayed.total, "step", "steps")),
    };
    match (branch, replayed.divergences.first()) {
        (Some(id), _) => {
            global.say(&format!("the same, {steps}; the box is yours"));
            output::print([id])?;
        }
        (None, Some(first)) => global.say(&format!("step {} went another way", first.step)),
        (None, None) => output::print([format!("the same, {steps}")])?,
    }
    Ok(())
}

fn report_json(replayed: &Replayed, branch: Option<&str>) -> Value {
    json!({
        "same": replayed.is_same(),
        "steps": replayed.total,
        "done": replayed.done,
        "first_divergence": replayed.divergences.first().map(|first| first.step),
        "divergences": replayed.divergences.iter().map(divergence_json).collect::<Vec<_>>(),
        "ignored": replayed.ignored.iter().map(ignored_json).collect::<Vec<_>>(),
        "notes": replayed.notes,
        "box": branch,
    })
}

/// A line of a request, at the most.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// Answers from the record.
fn serve(trajectory: &Trajectory, until: Option<usize>) -> Result<i32> {
    let mut input = io::stdin().lock();
    let steps = &trajectory.steps[..until.unwrap_or(trajectory.steps.len())];
    let end = match until {
        Some(until) if until < trajectory.steps.len() => format!("`--until {until}` ends here"),
        _ => "the record ends here".to_owned(),
    };
    let over = (steps.len() + 1, end);
    let mut steps = steps.iter().enumerate();
    loop {
        let mut line = Vec::new();
        let read = io::Read::take(&mut input, REQUEST_BYTES_MAX).read_until(b'\n', &mut line);
        if read.context("cannot read the next request")? == 0 {
            return Ok(0);
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let request: Value = serde_json::from_slice(&line).context("a request is a line of JSON")?;
        let answer = match steps.next() {
            None => Err(over.clone()),
            Some((index, step)) => match difference(step, &request) {
                None => Ok(answer(step)),
                Some(why) => Err((index + 1, why)),
            },
        };
        let (value, code) = match answer {
            Ok(value) => (value, None),
            Err((step, why)) => (json!({ "diverged": step, "error": why }), Some(DIVERGED_CODE)),
        };
        output::print_json(&value)?;
        if let Some(code) = code {
            return Ok(code);
        }
    }
}

/// What of a request is not what was recorded.
fn difference(step: &Step, request: &Value) -> Option<String> {
    let tool = request.get("tool").and_then(Value::as_str).unwrap_or_default();
    let empty = json!({});
    // Nothing is nothing, whoever wrote it down how.
    let params = request.get("params").filter(|params| !params.is_null()).unwrap_or(&empty);
    // What is meant without a word may be said as well.
    let recorded = complete_tool(&step.tool, step.asked());
    let asked = complete_tool(tool, params.clone());
    if recorded.0 != asked.0 {
        return Some(format!("the record has a call of {:?} here, and not of {tool:?}", step.tool));
    }
    (recorded.1 != asked.1).then(|| {
        let recorded = canonical_tool(&step.tool, step.asked()).1;
        format!("{tool:?} was called with {recorded}, and not with {params}")
    })
}

/// The answer as the tool gave it. What was only measured is on no record.
fn answer(step: &Step) -> Value {
    let observed = &step.observed;
    let text = |text: &Option<Text>| text.as_ref().map(Text::lossy).unwrap_or_default();
    let (stdout, stderr) = (text(&observed.output), text(&observed.stderr));
    let code = observed.exit_code.or(observed.end.as_ref().map(Exit::shell_code));
    let exit_code = code.unwrap_or_else(|| i32::from(observed.error.is_some()));
    let failed = || match &observed.end {
        Some(end) => end.to_string(),
        None => format!("exit code {exit_code}"),
    };
    let end = observed.end.as_ref().map(|end| ExitReport {
        wall_us: step.duration_us.unwrap_or_default(),
        stdout_bytes: stdout.len() as u64,
        stderr_bytes: stderr.len() as u64,
        ..ExitReport::never_ran(end.clone())
    });
    let error = observed.error.clone().or_else(|| (exit_code != 0).then(failed));
    let success = exit_code == 0;
    ToolResult { exit_code, error, success, end, ..ToolResult::remarked(stdout, stderr) }.to_json()
}
