//! The events of OpenHands: actions and observations, an observation naming the action that caused it.
//!
//! An action that does something, with its observation, is a step; the tool is the action's name, or for tools of
//! MCP servers theirs. Messages, changes of state and recalls are no steps: they are kept, with the place where
//! they stood. What a command is seen to write is stdout and stderr together.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::command::command_of;
use super::{Format, both_streams, take_time, time_text, trimmed};
use crate::trajectory::fields::{Fields, Object, keep, kept};
use crate::trajectory::model::{Observed, Step, Task, Trajectory};
use crate::trajectory::problem::Problems;
use crate::trajectory::text::Text;

/// The agent that the format itself names.
const AGENT: &str = "openhands";
/// Actions that do nothing to a box and have no answer that is the box's.
const NO_STEPS: [&str; 10] = [
    "message",
    "system",
    "change_agent_state",
    "agent_state_changed",
    "recall",
    "condensation",
    "condensation_request",
    "null",
    "initialize",
    "loop_recovery",
];
/// Actions that OpenHands knows; other tools are written as those of an MCP server.
const ACTIONS: [&str; 12] = [
    "run",
    "run_ipython",
    "read",
    "write",
    "edit",
    "browse",
    "browse_interactive",
    "think",
    "finish",
    "reject",
    "delegate",
    "task_tracking",
];
/// The action that calls a tool of an MCP server.
const MCP: &str = "call_tool_mcp";

pub(super) fn decode(value: Value, problems: &mut Problems) -> Trajectory {
    let Value::Array(events) = value else { return Trajectory::default() };
    let mut log = Log::default();
    let ids: HashSet<i64> =
        events.iter().filter_map(|event| event.get("id").and_then(Value::as_i64)).collect();
    for (index, event) in events.into_iter().enumerate() {
        if let Some(cause) = event.get("cause").and_then(Value::as_i64)
            && !ids.contains(&cause)
        {
            problems.warning(&[index.into(), "cause".into()], format!("no event has the id {cause}"));
        }
        log.take(event);
    }
    let mut trajectory = Trajectory {
        agent: Some(AGENT.to_owned()),
        model: log.model,
        task: log.task.map(|description| Task { description: Some(description), ..Task::default() }),
        rules: trimmed(),
        steps: log.steps,
        ..Trajectory::default()
    };
    if !log.others.is_empty() {
        trajectory.extra.insert(Format::OpenHands.name().to_owned(), json!({ "events": log.others }));
    }
    trajectory
}

/// A log as it is read.
#[derive(Default)]
struct Log {
    steps: Vec<Step>,
    /// Which step an action's id belongs to.
    by_id: HashMap<i64, usize>,
    last_has_id: bool,
    /// Events that are no part of a step.
    others: Vec<Value>,
    task: Option<String>,
    model: Option<String>,
}

impl Log {
    fn take(&mut self, event: Value) {
        let model = event.pointer("/tool_call_metadata/model_response/model").and_then(Value::as_str);
        if self.model.is_none() {
            self.model = model.filter(|model| !model.is_empty()).map(str::to_owned);
        }
        let action = event.get("action").and_then(Value::as_str);
        match action {
            Some(action) if !NO_STEPS.contains(&action) => self.action(event),
            Some(_) => {
                self.message(&event);
                self.other(event);
            }
            None => match event.get("observation").and_then(Value::as_str) {
                Some(kind) if !NO_STEPS.contains(&kind) => self.observation(event),
                _ => self.other(event),
            },
        }
    }

    fn other(&mut self, event: Value) {
        self.others.push(json!({ "at": self.steps.len(), "event": event }));
    }

    /// The first thing that the user says is the task.
    fn message(&mut self, event: &Value) {
        let is_users =
            event.get("action") == Some(&json!("message")) && event.get("source") == Some(&json!("user"));
        let content = event.pointer("/args/content").and_then(Value::as_str);
        if is_users && self.task.is_none() {
            self.task = content.filter(|text| !text.is_empty()).map(str::to_owned);
        }
    }

    fn action(&mut self, event: Value) {
        let mut fields = Fields::of(event);
        let id = fields.get("id").and_then(Value::as_i64);
        self.last_has_id = id.is_some();
        self.by_id.extend(id.map(|id| (id, self.steps.len())));
        let action = fields.text("action").unwrap_or_default();
        let mut args = Fields::of(fields.take("args").unwrap_or_default());
        let mut step = Step {
            thought: args.words("thought").or_else(|| fields.words("thought")),
            time_ms: take_time(&mut fields, "timestamp"),
            ..Step::default()
        };
        if action == MCP && args.get("name").is_some_and(Value::is_string) {
            step.tool = args.text("name").unwrap_or_default();
            step.params = args.object("arguments").unwrap_or_default();
            fields.put("action", MCP.into());
            if !args.is_empty() {
                fields.put("args", Value::Object(args.rest()));
            }
        } else {
            step.tool = action;
            step.params = args.rest();
        }
        keep(&mut step.extra, Format::OpenHands, fields);
        self.steps.push(step);
    }

    fn observation(&mut self, event: Value) {
        let place = match event.get("cause").and_then(Value::as_i64) {
            Some(cause) => self.by_id.get(&cause).copied(),
            // Logs without ids: an observation answers what came before it.
            None => self.steps.len().checked_sub(1).filter(|_| !self.last_has_id),
        };
        let free = |step: &Step| step.observed == Observed::default();
        let Some(step) = place.and_then(|place| self.steps.get_mut(place)).filter(|step| free(step)) else {
            return self.other(event);
        };
        let mut fields = Fields::of(event);
        let content = fields.text("content");
        let kind = fields.get("observation").and_then(Value::as_str).unwrap_or_default();
        let is_error = kind == "error";
        let extras = fields.get("extras");
        let code =
            extras.and_then(|extras| extras.pointer("/metadata/exit_code").or(extras.get("exit_code")));
        // -1 stands for a command that has not ended.
        let code =
            code.and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok()).filter(|code| *code != -1);
        step.observed = Observed {
            mixed: kind == "run",
            exit_code: code,
            error: content.clone().filter(|_| is_error),
            output: content.filter(|_| !is_error).map(Text::Text),
            ..Observed::default()
        };
        let mut kept = kept(&step.extra, Format::OpenHands);
        kept.put("result", Value::Object(fields.rest()));
        keep(&mut step.extra, Format::OpenHands, kept);
    }
}

pub(super) fn encode(trajectory: &Trajectory) -> Value {
    let mut kept = kept(&trajectory.extra, Format::OpenHands);
    let mut others: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for other in kept.list("events").unwrap_or_default() {
        let mut other = Fields::of(other);
        let at = other.count("at").unwrap_or(0).min(trajectory.steps.len() as u64);
        others.entry(at).or_default().extend(other.take("event").filter(Value::is_object));
    }
    let mut events = Vec::new();
    let is_told = others.values().flatten().any(|event| event.get("action") == Some(&json!("message")));
    let description = trajectory.task.as_ref().and_then(|task| task.description.as_deref());
    if let Some(description) = description.filter(|_| !is_told) {
        events.push(json!({
            "source": "user", "action": "message", "args": {"content": description}, "message": description,
        }));
    }
    for (index, step) in trajectory.steps.iter().enumerate() {
        events.extend(others.remove(&(index as u64)).unwrap_or_default());
        events.extend(encode_step(step));
    }
    events.extend(others.into_values().flatten());
    Value::Array(numbered(events))
}

/// What stands for the place of an observation's cause until all have their numbers.
const CAUSE_BEFORE: &str = "before";

/// Gives every event its id. Those that were found are kept if all of them were.
fn numbered(mut events: Vec<Value>) -> Vec<Value> {
    let ids: Vec<Option<i64>> = events.iter().map(|event| event.get("id").and_then(Value::as_i64)).collect();
    let distinct: HashSet<i64> = ids.iter().flatten().copied().collect();
    if distinct.len() == events.len() {
        for at in 1..events.len() {
            if events[at].get("cause") == Some(&json!(CAUSE_BEFORE)) {
                let id = ids[at - 1];
                events[at]["cause"] = id.into();
            }
        }
        events.sort_by_key(|event| event.get("id").and_then(Value::as_i64));
        return events;
    }
    let renumbered: HashMap<i64, usize> =
        ids.iter().enumerate().filter_map(|(at, id)| id.map(|id| (id, at))).collect();
    for (at, event) in events.iter_mut().enumerate() {
        let cause = match event.get("cause") {
            Some(Value::String(_)) => at.checked_sub(1),
            Some(Value::Number(number)) => number.as_i64().and_then(|id| renumbered.get(&id).copied()),
            _ => None,
        };
        let Value::Object(object) = event else { continue };
        object.insert("id".to_owned(), at.into());
        if let Some(cause) = cause {
            object.insert("cause".to_owned(), cause.into());
        }
    }
    events
}

/// The action and the observation of a step.
fn encode_step(step: &Step) -> Vec<Value> {
    let mut kept = kept(&step.extra, Format::OpenHands);
    let result = kept.take("result");
    let was_mcp = kept.take("action").is_some();
    let mut args = Fields::of(kept.take("args").unwrap_or_default());
    let thought = step.thought.as_deref().unwrap_or_default();
    let is_known = ACTIONS.contains(&step.tool.as_str()) || kept.has("id") || kept.has("source");
    let (action, args) = match command_of(step) {
        _ if is_known && !was_mcp => (step.tool.as_str(), step.params.clone()),
        Some(command) if !was_mcp => ("run", Map::from_iter([("command".to_owned(), command.into())])),
        _ => {
            args.put("name", step.tool.as_str().into());
            args.put("arguments", Value::Object(step.params.clone()));
            (MCP, args.rest())
        }
    };
    let args = Object(args).or("thought", thought).0;
    let time = time_text(&mut kept, "timestamp", step.time_ms);
    let event = Object::default()
        .with("action", action)
        .with("args", args)
        .maybe("timestamp", time)
        .and(kept)
        .or("source", "agent")
        .or("message", "");
    let mut events = vec![event.value()];
    let observed = &step.observed;
    let is_seen = observed.output.is_some() || observed.error.is_some() || observed.exit_code.is_some();
    if is_seen || result.is_some() {
        events.push(encode_result(step, action, Fields::of(result.unwrap_or_default())));
    }
    events
}

fn encode_result(step: &Step, action: &str, mut kept: Fields) -> Value {
    let observed = &step.observed;
    let (kind, content) = match (&observed.output, &observed.error) {
        (None, Some(error)) => ("error".to_owned(), Some(error.clone())),
        (output, _) => {
            let kind = if action == MCP { "mcp" } else { action };
            let kind = kept.text("observation").unwrap_or_else(|| kind.to_owned());
            // Only of a command does it hold both streams.
            let content = match kind == "run" {
                true => both_streams(observed),
                false => output.as_ref().map(Text::lossy),
            };
            (kind, content)
        }
    };
    kept.take("observation");
    let mut extras = Fields::of(kept.take("extras").unwrap_or_default());
    if let Some(code) = observed.exit_code {
        let older = extras.get("exit_code").is_some() && extras.get("metadata").is_none();
        match older {
            true => extras.put("exit_code", code.into()),
            false => {
                let mut metadata = Fields::of(extras.take("metadata").unwrap_or_default());
                metadata.put("exit_code", code.into());
                extras.put("metadata", Value::Object(metadata.rest()));
            }
        }
    }
    Object::default()
        .with("observation", kind)
        .maybe("content", content)
        .with("extras", extras.rest())
        .and(kept)
        .or("cause", CAUSE_BEFORE)
        .or("source", "agent")
        .or("message", "")
        .value()
}
