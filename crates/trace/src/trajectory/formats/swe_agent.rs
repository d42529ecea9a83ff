//! SWE-agent's `.traj`: a list `trajectory` of actions with what was seen, the messages of the model in `history`,
//! and `info`. Older and other writers have only `history`, of messages or of pairs; these are read too.
//!
//! Its agents have a shell and nothing else, so an action is a command line: the tool `bash`. What is seen is
//! stdout and stderr together, trimmed. Exit codes are not recorded.

use serde_json::{Map, Value};

use super::command::{command_of, line_of};
use super::{Format, both_streams, seconds, take_seconds, trimmed};
use crate::trajectory::fields::{Fields, Object, keep, kept};
use crate::trajectory::json;
use crate::trajectory::model::{Observed, Outcome, Step, Task, Trajectory};
use crate::trajectory::problem::Problems;
use crate::trajectory::text::Text;

/// The agent that the format itself names.
const AGENT: &str = "swe-agent";
/// The tool that all actions are, and the one that they are not.
const SHELL: &str = "bash";
const SUBMIT: &str = "submit";

pub(super) fn decode(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    let mut trajectory =
        Trajectory { agent: Some(AGENT.to_owned()), rules: trimmed(), ..Trajectory::default() };
    trajectory.steps = match fields.list("trajectory") {
        Some(steps) => steps.into_iter().map(step_of).collect(),
        None => match fields.get("history") {
            Some(Value::Array(history)) => from_history(history),
            _ => {
                problems.error(&[], "there is neither a list \"trajectory\" nor one \"history\"");
                Vec::new()
            }
        },
    };
    let mut info = Fields::of(fields.take("info").unwrap_or_default());
    let outcome = Outcome {
        status: info.text("exit_status"),
        submission: info.text("submission"),
        tokens: info.get("model_stats").and_then(tokens),
        ..Outcome::default()
    };
    trajectory.outcome = (outcome != Outcome::default()).then_some(outcome);
    let config = Config::of(&fields);
    let task = Task {
        id: info.words("instance_id").or(config.id),
        description: fields.words("problem_statement").or(config.description),
        repo: info.words("repo"),
        commit: info.words("base_commit"),
        ..Task::default()
    };
    trajectory.task = (task != Task::default()).then_some(task);
    trajectory.model = info.words("model_name").or(config.model);
    if !info.is_empty() {
        fields.put("info", Value::Object(info.rest()));
    }
    keep(&mut trajectory.extra, Format::SweAgent, fields);
    trajectory
}

fn step_of(value: Value) -> Step {
    let mut fields = Fields::of(value);
    let action = fields.text("action").unwrap_or_default();
    let mut step = Step {
        thought: fields.words("thought"),
        observed: seen(fields.text("observation")),
        duration_us: take_seconds(&mut fields, "execution_time"),
        ..command(&action)
    };
    keep(&mut step.extra, Format::SweAgent, fields);
    step
}

/// The step of a command line.
fn command(action: &str) -> Step {
    let (tool, params) = match action.trim() == SUBMIT {
        true if action == SUBMIT => (SUBMIT, Map::new()),
        true => (SUBMIT, Map::from_iter([("command".to_owned(), action.into())])),
        false => (SHELL, Map::from_iter([("command".to_owned(), action.into())])),
    };
    Step { tool: tool.to_owned(), params, ..Step::default() }
}

fn seen(output: Option<String>) -> Observed {
    Observed { mixed: output.is_some(), output: output.map(Text::Text), ..Observed::default() }
}

/// Messages, of which an action and the next observation make a step; or pairs of both.
fn from_history(history: &[Value]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut waits = false;
    for item in history {
        if let Value::Array(pair) = item {
            steps.extend(from_pair(pair));
            waits = false;
            continue;
        }
        let role = item.get("role").and_then(Value::as_str).unwrap_or_default();
        if item.get("is_demo") == Some(&Value::Bool(true)) {
            continue;
        }
        match role {
            "assistant" => {
                let step = from_message(item);
                waits = step.is_some();
                steps.extend(step);
            }
            "user" | "tool" if waits => {
                if let Some(step) = steps.last_mut() {
                    step.observed = seen(item.get("content").and_then(words));
                }
                waits = false;
            }
            _ => {}
        }
    }
    steps
}

fn from_message(item: &Value) -> Option<Step> {
    let thought = item.get("thought").and_then(Value::as_str).filter(|text| !text.is_empty());
    let step = match item.get("action").and_then(Value::as_str) {
        Some(action) => command(action),
        None => {
            let function = item.get("tool_calls")?.get(0)?.get("function")?;
            let arguments = match function.get("arguments") {
                Some(Value::String(text)) => json::parse(text.as_bytes()).unwrap_or_default(),
                Some(other) => other.clone(),
                None => Value::Null,
            };
            Step {
                tool: function.get("name")?.as_str()?.to_owned(),
                params: Fields::of(arguments).rest(),
                ..Step::default()
            }
        }
    };
    Some(Step { thought: thought.map(str::to_owned), ..step })
}

fn from_pair(pair: &[Value]) -> Option<Step> {
    let observed = seen(pair.get(1).and_then(words));
    match pair.first()? {
        Value::String(action) => Some(Step { observed, ..command(action) }),
        Value::Object(action) => {
            let mut fields = Fields::of(Value::Object(action.clone()));
            Some(Step {
                tool: fields.words("action").unwrap_or_else(|| SHELL.to_owned()),
                thought: fields.words("thought"),
                params: fields.rest(),
                observed,
                ..Step::default()
            })
        }
        _ => None,
    }
}

/// The text of a message: a string, or parts of which some are texts.
fn words(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let parts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            Some(parts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

fn tokens(stats: &Value) -> Option<u64> {
    let count = |name: &str| stats.get(name).and_then(Value::as_f64);
    let total = count("tokens_sent")? + count("tokens_received")?;
    (0.0..9e15).contains(&total).then_some(total as u64)
}

/// What the configuration of the run says, which is JSON in a string.
#[derive(Default)]
struct Config {
    id: Option<String>,
    description: Option<String>,
    model: Option<String>,
}

impl Config {
    fn of(fields: &Fields) -> Self {
        let config = match fields.get("replay_config") {
            Some(Value::String(text)) => json::parse(text.as_bytes()).unwrap_or_default(),
            Some(other) => other.clone(),
            None => return Config::default(),
        };
        let text = |pointer: &str| {
            config.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        Config {
            id: text("/problem_statement/id"),
            description: text("/problem_statement/text"),
            model: text("/agent/model/name"),
        }
    }
}

pub(super) fn encode(trajectory: &Trajectory) -> Value {
    let mut kept = kept(&trajectory.extra, Format::SweAgent);
    let config = Config::of(&kept);
    let task = trajectory.task.clone().unwrap_or_default();
    let outcome = trajectory.outcome.clone().unwrap_or_default();
    // Only what the configuration does not say already.
    let unless = |said: Option<String>, by: Option<String>| said.filter(|said| by.as_ref() != Some(said));
    let info = Object::default()
        .maybe("exit_status", outcome.status)
        .maybe("submission", outcome.submission)
        .maybe("instance_id", unless(task.id, config.id))
        .maybe("model_name", unless(trajectory.model.clone(), config.model))
        .maybe("repo", task.repo)
        .maybe("base_commit", task.commit)
        .and(Fields::of(kept.take("info").unwrap_or_default()));
    Object::default()
        .with("trajectory", trajectory.steps.iter().map(encode_step).collect::<Vec<_>>())
        .maybe("problem_statement", unless(task.description, config.description))
        .with("info", info.0)
        .and(kept)
        .or("history", Vec::<Value>::new())
        .value()
}

fn encode_step(step: &Step) -> Value {
    let mut kept = kept(&step.extra, Format::SweAgent);
    let action = match step.tool.as_str() {
        SUBMIT => step.params.get("command").and_then(Value::as_str).unwrap_or(SUBMIT).to_owned(),
        _ => command_of(step).unwrap_or_else(|| line_of(step)),
    };
    let time = seconds(&mut kept, "execution_time", step.duration_us);
    Object::default()
        .with("action", action)
        .with("observation", both_streams(&step.observed))
        .with("thought", step.thought.as_deref().unwrap_or_default())
        .maybe("execution_time", time)
        .and(kept)
        .or("response", step.thought.as_deref().unwrap_or_default())
        .or("state", Map::new())
        .value()
}
