//! A trajectory as a record: what a box would have written that had done its steps.
//!
//! Its steps are there as those of a box are, so that they can be looked at. A record has no place for thoughts, rules,
//! rewards and the like, so the document itself is there too, as far as a payload goes.

use serde_json::Value;

use super::model::{Change, FileChange, Observed, Step, Trajectory};
use super::text::Text;
use crate::blobs::Blobs;
use crate::changes::{ChangeKind, FileChange as Recorded, FileFacts};
use crate::event::{BoxCreated, DOCUMENT, Event, FileOperation, StepState};
use crate::payload::Payload;
use crate::{Result, event};

/// What such a record says that its box ran on.
pub(super) const RUNTIME: &str = "imported";

impl Trajectory {
    /// The trajectory as what a box of this id would have on record.
    pub fn to_events(&self, id: &str) -> Vec<Event> {
        let image = self.base.as_ref().map(|base| base.image.clone()).unwrap_or_default();
        let extra = self.base.as_ref().map(|base| base.extra.clone()).unwrap_or_default();
        let text = |name: &str| extra.get(name).and_then(Value::as_str).map(str::to_owned);
        let limits = extra.get("limits").and_then(Value::as_object).into_iter().flatten();
        let limit = |(name, value): (&String, &Value)| {
            let mechanism = "imported".to_owned();
            Some((name.clone(), event::LimitInForce { value: value.as_u64()?, mechanism }))
        };
        let words = [("agent", &self.agent), ("model", &self.model), ("trajectory", &self.id)];
        let label = |(name, value): (&str, &Option<String>)| Some((name.to_owned(), value.clone()?));
        let mut events = vec![Event::BoxCreated(BoxCreated {
            id: id.to_owned(),
            runtime: RUNTIME.to_owned(),
            level: "unknown".to_owned(),
            image,
            labels: words.into_iter().filter_map(label).collect(),
            limits: limits.filter_map(limit).collect(),
            user: text("user"),
            cwd: text("cwd"),
            read_only: extra.get("read_only").and_then(Value::as_bool).unwrap_or_default(),
            forked_from: text("forked_from"),
            redact: texts(extra.get("redact")),
            ..BoxCreated::default()
        })];
        events.push(self.document());
        let digest = self.base.as_ref().and_then(|base| base.digest.clone());
        let task = self.task.as_ref().and_then(|task| {
            Some(event::BaseTask {
                repo: task.repo.clone()?,
                commit: task.commit.clone()?,
                setup: task.setup.clone(),
                test: task.test.clone(),
                image: task.image.clone(),
                dir: task.extra.get("dir").and_then(Value::as_str).unwrap_or_default().to_owned(),
            })
        });
        let profile = self.profile.clone().unwrap_or_default();
        if digest.is_some() || task.is_some() || profile.deterministic {
            events.push(Event::Base(event::Base {
                digest: digest.unwrap_or_default(),
                deterministic: profile.deterministic,
                uncontrolled: profile.uncontrolled,
                task,
            }));
        }
        events.extend(self.steps.iter().zip(1..).map(|(step, number)| step.to_event(number)));
        events.push(Event::BoxEnded { why: "taken in from a file".to_owned() });
        events
    }

    /// All of it in one event, for whoever reads the record as a trajectory again.
    fn document(&self) -> Event {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        Event::File(FileOperation {
            op: DOCUMENT.to_owned(),
            path: "trajectory".to_owned(),
            bytes: Some(bytes.len() as u64),
            payload: Some(Payload::whole(bytes)),
            error: None,
        })
    }
}

/// The trajectory that an event holds whole. One of which something is missing is read from its steps.
pub(super) fn read(file: &FileOperation, blobs: &Blobs) -> Result<Option<Trajectory>> {
    let Some(payload) = file.payload.as_ref().filter(|payload| file.op == DOCUMENT && !payload.truncated())
    else {
        return Ok(None);
    };
    let Some(head) = &payload.head else { return Ok(None) };
    Ok(serde_json::from_slice(&blobs.read(head)?).ok())
}

impl Step {
    fn to_event(&self, number: u64) -> Event {
        let Observed { output, stderr, exit_code, error, end, state, .. } = &self.observed;
        let payload = |text: &Option<Text>| text.as_ref().map(|text| Payload::whole(text.bytes()));
        let state = state.as_ref().map(|state| {
            let list: Vec<Recorded> = state.changes.iter().map(recorded_of).collect();
            let changes = serde_json::to_vec(&list).ok().filter(|_| !list.is_empty()).map(Payload::whole);
            StepState {
                digest: state.digest.clone(),
                racy: state.racy,
                processes: state.processes.clone().unwrap_or_default(),
                at_work: state.at_work,
                changed: state.changes.len() as u64 + state.changes_cut,
                changes,
                unlisted: state.unlisted.clone(),
                took_us: 0,
            }
        });
        Event::Step(Box::new(event::Step {
            step: number,
            tool: Some(self.tool.clone()),
            params: Some(Payload::whole(self.asked().to_string())),
            output: payload(output),
            stderr: payload(stderr),
            exit_code: *exit_code,
            end: end.clone(),
            error: error.clone(),
            wall_us: self.duration_us.unwrap_or_default(),
            state,
            ..event::Step::default()
        }))
    }
}

fn recorded_of(change: &FileChange) -> Recorded {
    let there = change.change != Change::Removed;
    let text = change.text.as_ref().and_then(Text::as_str).map(str::to_owned);
    Recorded {
        path: change.path.clone(),
        change: match change.change {
            Change::Added => ChangeKind::Added,
            Change::Changed => ChangeKind::Changed,
            Change::Removed => ChangeKind::Removed,
        },
        now: there.then(|| FileFacts {
            kind: change.kind.clone().unwrap_or_default(),
            mode: change.mode.map(|mode| format!("{mode:o}")).unwrap_or_default(),
            uid: change.uid.unwrap_or_default(),
            gid: change.gid.unwrap_or_default(),
            bytes: change.bytes.unwrap_or_default(),
            content: change.leaf.clone(),
            xattrs: change.xattrs.clone(),
            text,
        }),
    }
}

fn texts(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    list.filter_map(Value::as_str).map(str::to_owned).collect()
}
