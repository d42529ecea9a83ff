//! ATIF, Harbor's agent trajectory interchange format, as its RFC 0001 describes it. All versions from 1.0 to 1.8
//! are read, each of which only added to the one before; 1.7 is written, the first with a place for what we know
//! beyond it: the `extra` of tool calls.
//!
//! An agent's turn there may call several tools; each call is a step here, and those after the first are marked as
//! going on with the turn. Turns that call nothing, and what users and the system say, are kept with their place.
//! What ATIF has no field for is written below `extra.glasshouse`, so that nothing is lost.

use std::collections::{HashMap, VecDeque};

use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{Format, take_time, time_text};
use crate::trajectory::fields::{Fields, Object, keep, kept};
use crate::trajectory::json::Part;
use crate::trajectory::model::{Outcome, Step, Task, Trajectory};
use crate::trajectory::problem::Problems;
use crate::trajectory::text::Text;
use crate::trajectory::time;

/// The version that is written.
const WRITTEN: &str = "ATIF-v1.7";
/// Those that are read.
const READ: [&str; 9] = [
    "ATIF-v1.0",
    "ATIF-v1.1",
    "ATIF-v1.2",
    "ATIF-v1.3",
    "ATIF-v1.4",
    "ATIF-v1.5",
    "ATIF-v1.6",
    WRITTEN,
    "ATIF-v1.8",
];
/// Where our own is, in any `extra`.
const OURS: &str = "glasshouse";

pub(super) fn decode(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    let version = fields.text("schema_version").unwrap_or_default();
    if !READ.contains(&version.as_str()) {
        let what = format!("{version:?} is no version that is read: ATIF-v1.0 to ATIF-v1.8");
        problems.error(&["schema_version".into()], what);
    }
    let ours = take_ours(&mut fields);
    let mut trajectory = match ours.map(Trajectory::deserialize) {
        Some(Ok(trajectory)) => trajectory,
        Some(Err(e)) => {
            problems.warning(&["extra".into(), OURS.into()], format!("it is not understood: {e}"));
            Trajectory::default()
        }
        None => Trajectory::default(),
    };
    trajectory.id = fields.text("session_id");
    let mut agent = Fields::of(fields.take("agent").unwrap_or_default());
    trajectory.agent = agent.words("name");
    trajectory.model = agent.words("model_name");
    if agent.get("version") == Some(&json!(UNKNOWN)) {
        agent.take("version");
    }
    if !agent.is_empty() {
        fields.put("agent", Value::Object(agent.rest()));
    }
    if let Some(tokens) = fields.get("final_metrics").and_then(total_tokens) {
        trajectory.outcome.get_or_insert_with(Outcome::default).tokens.get_or_insert(tokens);
    }
    let mut turns = Turns { steps: Vec::new(), others: Vec::new(), task: None };
    for (index, turn) in fields.list("steps").unwrap_or_default().into_iter().enumerate() {
        turns.take(turn, index, problems);
    }
    trajectory.steps = turns.steps;
    if let Some(description) = turns.task {
        trajectory.task.get_or_insert_with(Task::default).description.get_or_insert(description);
    }
    if !turns.others.is_empty() {
        fields.put("turns", turns.others.into());
    }
    keep(&mut trajectory.extra, Format::Atif, fields);
    trajectory
}

/// What an agent's version is called if nobody knows it.
const UNKNOWN: &str = "unknown";

/// Takes what is ours out of an object's `extra`.
fn take_ours(fields: &mut Fields) -> Option<Value> {
    let mut extra = Fields::of(fields.take("extra")?);
    let ours = extra.take(OURS).filter(Value::is_object);
    if !extra.is_empty() {
        fields.put("extra", Value::Object(extra.rest()));
    }
    ours
}

fn total_tokens(metrics: &Value) -> Option<u64> {
    let count = |name: &str| metrics.get(name).and_then(Value::as_u64);
    count("total_prompt_tokens")?.checked_add(count("total_completion_tokens")?)
}

/// The turns of a document as they become steps.
struct Turns {
    steps: Vec<Step>,
    others: Vec<Value>,
    task: Option<String>,
}

impl Turns {
    fn take(&mut self, turn: Value, index: usize, problems: &mut Problems) {
        let at = |name: &str| ["steps".into(), index.into(), name.into()];
        if turn.get("step_id").and_then(Value::as_u64) != Some(index as u64 + 1) {
            problems.warning(&at("step_id"), format!("expected {}", index + 1));
        }
        let calls = turn.get("tool_calls").and_then(Value::as_array).map_or(0, Vec::len);
        let source = turn.get("source").and_then(Value::as_str).unwrap_or_default();
        if source == "user" && self.task.is_none() && self.steps.is_empty() {
            self.task = turn.get("message").and_then(words).filter(|text| !text.is_empty());
        }
        if calls == 0 {
            self.others.push(json!({ "at": self.steps.len(), "turn": turn }));
            return;
        }
        if source != "agent" {
            problems.warning(
                &at("tool_calls"),
                format!("only an agent calls tools, and this is the {source}'s turn"),
            );
        }
        self.calls(Fields::of(turn), &at("observation"), problems);
    }

    /// An agent's turn: a step for each call.
    fn calls(&mut self, mut turn: Fields, place: &[Part], problems: &mut Problems) {
        turn.take("step_id");
        let calls = turn.list("tool_calls").unwrap_or_default();
        let mut results = Results::take(&mut turn, calls.len());
        let first = self.steps.len();
        for (number, call) in calls.into_iter().enumerate() {
            let mut call = Fields::of(call);
            let result = results.of(call.get("tool_call_id").and_then(Value::as_str).unwrap_or_default());
            let mut step = decode_call(&mut call, result.map(Fields::of));
            let mut about = match number {
                0 => {
                    step.thought = take_thought(&mut turn);
                    step.time_ms = take_time(&mut turn, "timestamp").or(step.time_ms);
                    if let Some(tokens) = turn.get("metrics").and_then(tokens) {
                        step.tokens.get_or_insert(tokens);
                    }
                    std::mem::replace(&mut turn, Fields::of(Value::Null))
                }
                _ => Fields::of(json!({ "continues": true })),
            };
            if let Some(Value::Object(result)) = step.extra.remove(RESULT) {
                about.put(RESULT, Value::Object(result));
            }
            if !call.is_empty() {
                about.put("call", Value::Object(call.rest()));
            }
            keep(&mut step.extra, Format::Atif, about);
            self.steps.push(step);
        }
        let results: Vec<Value> = results.list.into_iter().flatten().collect();
        if results.is_empty() {
            return;
        }
        problems.warning(place, "a result belongs to none of the calls");
        if let Some(step) = self.steps.get_mut(first) {
            let mut about = kept(&step.extra, Format::Atif);
            about.put("results", results.into());
            keep(&mut step.extra, Format::Atif, about);
        }
    }
}

/// Where a result's other fields wait until they are put with the rest.
const RESULT: &str = "result";

/// The results of a turn, found by the call that they belong to.
struct Results {
    list: Vec<Option<Value>>,
    by_call: HashMap<String, VecDeque<usize>>,
    /// The only call and the only result belong together without a name.
    only: bool,
}

impl Results {
    fn take(turn: &mut Fields, calls: usize) -> Self {
        let mut observation = Fields::of(turn.take("observation").unwrap_or_default());
        let list = observation.list("results").unwrap_or_default();
        if !observation.is_empty() {
            turn.put("observation", Value::Object(observation.rest()));
        }
        let mut by_call: HashMap<String, VecDeque<usize>> = HashMap::new();
        let mut nameless = false;
        for (at, result) in list.iter().enumerate() {
            match result.get("source_call_id").and_then(Value::as_str) {
                Some(call) => by_call.entry(call.to_owned()).or_default().push_back(at),
                None => nameless = true,
            }
        }
        let only = calls == 1 && list.len() == 1 && nameless;
        Results { list: list.into_iter().map(Some).collect(), by_call, only }
    }

    /// The next result of this call.
    fn of(&mut self, call: &str) -> Option<Value> {
        let at = match self.only {
            true => 0,
            false => self.by_call.get_mut(call)?.pop_front()?,
        };
        self.list.get_mut(at)?.take()
    }
}

/// The step of a call, with what is ours in it, and what else its result says.
fn decode_call(call: &mut Fields, result: Option<Fields>) -> Step {
    let tool = call.text("function_name").unwrap_or_default();
    let ours = take_ours(call).map(|mut ours| {
        if let Value::Object(object) = &mut ours {
            object.insert("tool".to_owned(), tool.as_str().into());
        }
        ours
    });
    let is_ours = ours.is_some();
    let mut step = ours.and_then(|ours| Step::deserialize(ours).ok()).unwrap_or_default();
    step.tool = tool;
    step.params = call.object("arguments").unwrap_or_default();
    let Some(mut result) = result else { return step };
    if result.text("source_call_id").is_none() {
        // The only call and the only result belong together without a name.
        result.put("source_call_id", Value::Null);
    }
    let content = result.take("content").filter(|content| !content.is_null());
    if let Some(content) = content {
        let text = words(&content);
        if content.is_array() {
            result.put("content", content);
        }
        // Bytes that are no text are with ours.
        step.observed.output = step.observed.output.or(text.map(Text::Text));
        // Nobody else says what of it was written where.
        step.observed.mixed |= !is_ours && step.observed.output.is_some();
    }
    step.extra.insert(RESULT.to_owned(), Value::Object(result.rest()));
    step
}

fn take_thought(turn: &mut Fields) -> Option<String> {
    if let Some(reasoning) = turn.words("reasoning_content") {
        // Marks that the message is another text.
        turn.put("reasoning_content", true.into());
        return Some(reasoning);
    }
    let message = turn.take("message")?;
    let text = words(&message).filter(|text| !text.is_empty());
    if message.is_array() {
        turn.put("message", message);
    }
    text
}

/// The text of a message: a string, or parts of which some are texts.
fn words(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str));
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    }
}

fn tokens(metrics: &Value) -> Option<u64> {
    let count = |name: &str| metrics.get(name).and_then(Value::as_u64);
    count("prompt_tokens").unwrap_or(0).checked_add(count("completion_tokens")?)
}

pub(super) fn encode(trajectory: &Trajectory) -> Value {
    let mut kept = kept(&trajectory.extra, Format::Atif);
    let agent = Object::default()
        .with("name", trajectory.agent.as_deref().unwrap_or_default())
        .maybe("model_name", trajectory.model.as_deref())
        .and(Fields::of(kept.take("agent").unwrap_or_default()))
        .or("version", UNKNOWN);
    let extra = kept.take("extra").unwrap_or_default();
    let ours = our_head(trajectory, kept.get("final_metrics").and_then(total_tokens));
    let turns = turns(trajectory, kept.list("turns").unwrap_or_default());
    Object::default()
        .with("schema_version", WRITTEN)
        .maybe("session_id", trajectory.id.as_deref())
        .with("agent", agent.0)
        .with("steps", turns)
        .maybe("extra", with_ours(extra, ours))
        .and(kept)
        .value()
}

/// An `extra` with our part in it; none if both are empty.
fn with_ours(extra: Value, ours: Map<String, Value>) -> Option<Value> {
    let mut extra = Fields::of(extra);
    if !ours.is_empty() {
        extra.put(OURS, Value::Object(ours));
    }
    (!extra.is_empty()).then(|| Value::Object(extra.rest()))
}

/// What ATIF cannot say of the whole, or says elsewhere.
fn our_head(trajectory: &Trajectory, tokens: Option<u64>) -> Map<String, Value> {
    let mut ours = Trajectory { steps: Vec::new(), id: None, agent: None, model: None, ..trajectory.clone() };
    ours.extra.remove(Format::Atif.name());
    let only_description =
        |task: &Task| *task == Task { description: task.description.clone(), ..Task::default() };
    ours.task = ours.task.filter(|task| !only_description(task));
    if let Some(outcome) = ours.outcome.as_mut().filter(|outcome| outcome.tokens == tokens) {
        outcome.tokens = None;
    }
    ours.outcome = ours.outcome.filter(|outcome| *outcome != Outcome::default());
    let mut map = object(serde_json::to_value(&ours));
    map.remove("steps");
    map
}

fn object(value: serde_json::Result<Value>) -> Map<String, Value> {
    Fields::of(value.unwrap_or_default()).rest()
}

/// The turns of the document, with those put back that called nothing.
fn turns(trajectory: &Trajectory, others: Vec<Value>) -> Vec<Value> {
    let mut others: Vec<(u64, Value)> = others
        .into_iter()
        .filter_map(|other| {
            let mut other = Fields::of(other);
            Some((other.count("at").unwrap_or(0), other.take("turn").filter(Value::is_object)?))
        })
        .collect();
    others.reverse();
    let is_told = others.iter().any(|(_, turn)| turn.get("source") == Some(&json!("user")));
    let description = trajectory.task.as_ref().and_then(|task| task.description.as_deref());
    let mut turns: Vec<Value> = Vec::new();
    if let Some(description) = description.filter(|_| !is_told) {
        turns.push(json!({ "source": "user", "message": description }));
    }
    for (index, step) in trajectory.steps.iter().enumerate() {
        let mut about = kept(&step.extra, Format::Atif);
        let continues = about.boolean("continues") == Some(true) && index > 0;
        while !continues && others.last().is_some_and(|(at, _)| *at <= index as u64) {
            turns.extend(others.pop().map(|(_, turn)| turn));
        }
        let (call, result) = encode_call(step, index, continues, &mut about);
        if !continues {
            turns.push(new_turn(step, about));
        }
        if let Some(turn) = turns.last_mut() {
            push(turn, &["tool_calls"], call);
            if let Some(result) = result {
                push(turn, &["observation", "results"], result);
            }
        }
    }
    turns.extend(others.into_iter().rev().map(|(_, turn)| turn));
    for (index, turn) in turns.iter_mut().enumerate() {
        if let Value::Object(turn) = turn {
            turn.insert("step_id".to_owned(), (index + 1).into());
        }
    }
    turns
}

/// Adds to a list below these keys, before what is there that is no part of a step.
fn push(turn: &mut Value, way: &[&str], value: Value) {
    let Some((key, rest)) = way.split_first() else {
        match turn {
            Value::Array(list) => list.push(value),
            other => *other = json!([value]),
        }
        return;
    };
    if !turn.is_object() {
        *turn = json!({});
    }
    if let Value::Object(object) = turn {
        push(object.entry((*key).to_owned()).or_insert(Value::Null), rest, value);
    }
}

fn new_turn(step: &Step, mut about: Fields) -> Value {
    let thought = step.thought.as_deref();
    let (message, reasoning) = match about.take("reasoning_content") {
        Some(_) => (about.take("message").unwrap_or_else(|| json!("")), thought),
        None => match about.take("message") {
            Some(parts) if words(&parts).as_deref().unwrap_or_default() == thought.unwrap_or_default() => {
                (parts, None)
            }
            _ => (json!(thought.unwrap_or_default()), None),
        },
    };
    let results = about.list("results").unwrap_or_default();
    let time = time_text(&mut about, "timestamp", step.time_ms);
    let mut turn = Object::default()
        .with("message", message)
        .maybe("reasoning_content", reasoning)
        .maybe("timestamp", time)
        .and(about)
        .or("source", "agent")
        .value();
    results.into_iter().for_each(|result| push(&mut turn, &["observation", "results"], result));
    turn
}

/// The call of a step, and what came of it.
fn encode_call(step: &Step, index: usize, continues: bool, about: &mut Fields) -> (Value, Option<Value>) {
    let mut kept = Fields::of(about.take("call").unwrap_or_default());
    let result = about.take(RESULT);
    let extra = kept.take("extra").unwrap_or_default();
    let call = Object::default()
        .with("function_name", step.tool.as_str())
        .with("arguments", step.params.clone())
        .maybe("extra", with_ours(extra, our_step(step, continues, about)))
        .and(kept)
        .or("tool_call_id", format!("call_{}", index + 1));
    let id = call.0.get("tool_call_id").cloned();
    let output = step.observed.output.as_ref().map(Text::lossy);
    if output.is_none() && result.is_none() {
        return (call.value(), None);
    }
    let mut result = Fields::of(result.unwrap_or_default());
    let id = id.filter(|_| result.take("source_call_id").is_none());
    let content = match result.take("content") {
        Some(parts) if words(&parts) == output => Some(parts),
        _ => output.map(Value::from),
    };
    let result = Object::default().maybe("source_call_id", id).maybe("content", content).and(result);
    (call.value(), Some(result.value()))
}

/// What ATIF cannot say of a step.
fn our_step(step: &Step, continues: bool, about: &Fields) -> Map<String, Value> {
    let mut ours = Step {
        params: Map::new(),
        thought: step.thought.clone().filter(|_| continues),
        time_ms: step.time_ms.filter(|&time_ms| continues || time::format(time_ms).is_none()),
        ..step.clone()
    };
    ours.extra.remove(Format::Atif.name());
    ours.observed.output = ours.observed.output.filter(|output| output.as_str().is_none());
    if about.get("metrics").and_then(tokens) == ours.tokens {
        ours.tokens = None;
    }
    let mut map = object(serde_json::to_value(&ours));
    map.remove("tool");
    map.remove("params");
    if map.get("observed").and_then(Value::as_object).is_some_and(Map::is_empty) {
        map.remove("observed");
    }
    // Where nothing of ours is said, an output is read as both streams.
    match step.observed.mixed {
        _ if step.observed.output.is_none() => {}
        true if map == object(Ok(json!({ "observed": { "mixed": true } }))) => map.clear(),
        false if map.is_empty() => map = object(Ok(json!({ "observed": { "mixed": false } }))),
        _ => {}
    }
    map
}
