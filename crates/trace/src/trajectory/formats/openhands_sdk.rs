//! The events of the newer OpenHands, whose SDK names the class of each in `kind`, as those of the older one.
//!
//! ```text
//!  kind                     becomes                                            its answer is found by
//!  ActionEvent              the action of the tool's name, with its args
//!  ObservationEvent         an observation, text and all                       action_id, or tool_call_id
//!  AgentErrorEvent          the observation `error`                            tool_call_id
//!  UserRejectObservation    the observation `error`                            action_id, or tool_call_id
//!  MessageEvent             the action `message`
//!  anything else            an event that is no step, kept as it was
//! ```
//! They are only read in this shape: what is written is the older one. Fields that it has no place for stay beside the
//! others, and ids, which are words here and numbers there, as `event_id`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::trajectory::fields::{Fields, Object};

/// Tools of the SDK that are a terminal, whose output is stdout and stderr together.
const TERMINALS: [&str; 3] = ["terminal", "execute_bash", "bash"];

/// Whether this is an event of the SDK.
pub(crate) fn is_event(value: &Value) -> bool {
    let kind = value.get("kind").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.ends_with("Event") || kind == "UserRejectObservation")
        && value.get("steps").is_none()
        && !value.get("action").is_some_and(Value::is_string)
        && !value.get("observation").is_some_and(Value::is_string)
}

/// Reads the events of a log, one after the other. Those of the older OpenHands stay as they are.
#[derive(Default)]
pub(crate) struct Older {
    /// Which place an action of this id, or with this call, has in the log.
    places: HashMap<String, usize>,
    seen: usize,
    /// A log of the SDK has words as ids; all its events are numbered then.
    is_sdk: bool,
}

impl Older {
    /// The next event of the log.
    pub(crate) fn take(&mut self, event: Value) -> Value {
        let place = self.seen;
        self.seen += 1;
        self.is_sdk |= is_event(&event);
        if !self.is_sdk || !event.is_object() {
            return event;
        }
        let mut fields = Fields::of(event);
        let kind = fields.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut head = Object::default().with("id", place);
        if let Some(id) = fields.text("id") {
            head = head.with("event_id", id.clone());
            self.places.insert(id, place);
        }
        for name in ["timestamp", "source"] {
            head = head.maybe(name, fields.text(name));
        }
        match kind.as_str() {
            "ActionEvent" => self.action(head, fields, place),
            "ObservationEvent" => self.observation(head, fields),
            "AgentErrorEvent" | "UserRejectObservation" => self.failure(head, fields),
            "MessageEvent" => message(head, fields),
            _ => head.with("event", fields.rest()).value(),
        }
    }

    fn action(&mut self, head: Object, mut fields: Fields, place: usize) -> Value {
        let call = fields.get("tool_call_id").and_then(Value::as_str);
        self.places.extend(call.map(|call| (format!("call {call}"), place)));
        let mut args = Fields::of(fields.take("action").unwrap_or_default());
        let class = args.take("kind");
        let named = fields.get("tool_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut params = match args.object("data") {
            // What an MCP server is sent lies one deeper.
            Some(data) if args.is_empty() => data,
            Some(data) => {
                args.put("data", Value::Object(data));
                args.rest()
            }
            // What could not be executed is known by the model's words alone.
            None if args.is_empty() => called_with(&fields).unwrap_or_default(),
            None => args.rest(),
        };
        let thought = fields.list("thought").map(|list| text_of(&Value::Array(list))).unwrap_or_default();
        params.insert("thought".to_owned(), thought.into());
        head.with("action", named)
            .with("args", params)
            .maybe("action_kind", class)
            .with("message", fields.text("summary").unwrap_or_default())
            .and(fields)
            .value()
    }

    fn observation(&mut self, head: Object, mut fields: Fields) -> Value {
        let cause = self.cause(&fields);
        let mut seen = Fields::of(fields.take("observation").unwrap_or_default());
        let tool = fields.get("tool_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_error = seen.boolean("is_error").unwrap_or_default();
        let content = match seen.take("content") {
            Some(content) => text_of(&content),
            None => seen.text("output").unwrap_or_default(),
        };
        let kind = match TERMINALS.contains(&tool.as_str()) {
            _ if is_error => "error".to_owned(),
            true => "run".to_owned(),
            false => tool,
        };
        let class = seen.take("kind");
        head.with("observation", kind)
            .with("content", content)
            .maybe("cause", cause)
            .with("extras", seen.rest())
            .maybe("observation_kind", class)
            .and(fields)
            .value()
    }

    fn failure(&mut self, head: Object, mut fields: Fields) -> Value {
        let cause = self.cause(&fields);
        let why = fields.text("error").or_else(|| fields.text("rejection_reason")).unwrap_or_default();
        head.with("observation", "error").with("content", why).maybe("cause", cause).and(fields).value()
    }

    /// The place of the action that this answers.
    fn cause(&self, fields: &Fields) -> Option<usize> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let by_id = text("action_id").and_then(|id| self.places.get(id));
        by_id.or_else(|| self.places.get(&format!("call {}", text("tool_call_id")?))).copied()
    }
}

fn message(head: Object, fields: Fields) -> Value {
    let said = fields.get("llm_message").and_then(|message| message.get("content"));
    let content = said.map(text_of).unwrap_or_default();
    let head = head.with("action", "message").with("args", json!({ "content": content }));
    head.with("message", content).and(fields).value()
}

/// The parameters that the model called the tool with, as it wrote them.
fn called_with(fields: &Fields) -> Option<Map<String, Value>> {
    let call = fields.get("tool_call")?;
    let arguments = call.get("arguments").or_else(|| call.pointer("/function/arguments"))?.as_str()?;
    match serde_json::from_str(arguments).ok()? {
        Value::Object(params) => Some(params),
        _ => None,
    }
}

/// The text of a message, which comes in pieces.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(pieces) => pieces.iter().filter_map(|piece| piece.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}
