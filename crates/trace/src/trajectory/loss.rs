//! What a format cannot say. It is found by reading what was written: whatever does not come back is lost, so
//! nothing can be forgotten in a list.

use serde_json::{Map, Value};

use super::formats::Format;
use super::model::{Observed, Outcome, Rule, Step, Task, Trajectory};

/// Something that does not come back from a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The step, from 1; none if it is about the whole.
    pub step: Option<u64>,
    /// The field of the model, like `observed.stderr`.
    pub field: String,
    /// What happens to it.
    pub why: String,
}

/// Everything that was in `before` and is not in `after`, which came back from this format.
pub(crate) fn losses(format: Format, before: &Trajectory, after: &Trajectory) -> Vec<Loss> {
    let mut losses = Losses { format, step: None, found: Vec::new() };
    losses.text("id", &before.id, &after.id);
    losses.text("agent", &before.agent, &after.agent);
    losses.text("model", &before.model, &after.model);
    losses.task(&before.task.clone().unwrap_or_default(), &after.task.clone().unwrap_or_default());
    losses.field("base", before.base.as_ref(), after.base.as_ref());
    losses.field("profile", before.profile.as_ref(), after.profile.as_ref());
    let came_back = |rule: &Rule| after.rules.contains(rule);
    if !before.rules.iter().all(came_back) {
        losses.lost("rules", format!("{format} has no place for rules"));
    }
    losses.outcome(&before.outcome.clone().unwrap_or_default(), &after.outcome.clone().unwrap_or_default());
    losses.extra("extra", &before.extra, &after.extra);
    if before.steps.len() != after.steps.len() {
        losses.lost("steps", format!("{} of them come back as {}", before.steps.len(), after.steps.len()));
        return losses.found;
    }
    for (index, (before, after)) in before.steps.iter().zip(&after.steps).enumerate() {
        losses.step = Some(index as u64 + 1);
        losses.step(before, after);
    }
    losses.found
}

/// What a record that a trajectory was taken in as does not give back.
pub fn lost_on_record(before: &Trajectory, after: &Trajectory) -> Vec<Loss> {
    let mut lost = losses(Format::Glasshouse, before, after);
    for loss in &mut lost {
        loss.why = "the record does not hold it as it was".to_owned();
    }
    lost
}

struct Losses {
    format: Format,
    step: Option<u64>,
    found: Vec<Loss>,
}

impl Losses {
    fn lost(&mut self, field: &str, why: String) {
        self.found.push(Loss { step: self.step, field: field.to_owned(), why });
    }

    /// A field that must come back as it was.
    fn field<T: PartialEq>(&mut self, name: &str, before: Option<T>, after: Option<T>) {
        match (before, after) {
            (None, _) => {}
            (Some(_), None) => self.lost(name, format!("{} has no place for it", self.format)),
            (Some(before), Some(after)) if before == after => {}
            (Some(_), Some(_)) => self.lost(name, format!("{} cannot say it exactly", self.format)),
        }
    }

    /// The same for words, of which none and an empty text are the same.
    fn text(&mut self, name: &str, before: &Option<String>, after: &Option<String>) {
        let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        self.field(name, full(before), full(after));
    }

    fn task(&mut self, before: &Task, after: &Task) {
        self.text("task.id", &before.id, &after.id);
        self.text("task.description", &before.description, &after.description);
        self.text("task.repo", &before.repo, &after.repo);
        self.text("task.commit", &before.commit, &after.commit);
        let list = |list: &[String]| Some(list.to_vec()).filter(|list| !list.is_empty());
        self.field("task.setup", list(&before.setup), list(&after.setup));
        self.text("task.test", &before.test, &after.test);
        self.text("task.image", &before.image, &after.image);
        self.extra("task.extra", &before.extra, &after.extra);
    }

    fn outcome(&mut self, before: &Outcome, after: &Outcome) {
        self.field("outcome.success", before.success, after.success);
        self.field("outcome.score", before.score, after.score);
        self.field("outcome.tests_passed", before.tests_passed, after.tests_passed);
        self.field("outcome.tests_failed", before.tests_failed, after.tests_failed);
        self.field("outcome.tokens", before.tokens, after.tokens);
        self.field("outcome.duration_us", before.duration_us, after.duration_us);
        self.field("outcome.terminated", before.terminated, after.terminated);
        self.field("outcome.truncated", before.truncated, after.truncated);
        self.text("outcome.status", &before.status, &after.status);
        self.text("outcome.submission", &before.submission, &after.submission);
        self.extra("outcome.extra", &before.extra, &after.extra);
    }

    fn step(&mut self, before: &Step, after: &Step) {
        self.text("thought", &before.thought, &after.thought);
        if before.tool != after.tool {
            self.lost("tool", format!("{:?} is written as {:?}", before.tool, after.tool));
        }
        if before.params != after.params {
            let gone = |name: &&String| after.params.get(*name) != before.params.get(*name);
            let names: Vec<&str> = before.params.keys().filter(gone).map(String::as_str).collect();
            let why = match names.is_empty() {
                true => format!("{} adds to them", self.format),
                false => format!("{} has no place for {}", self.format, names.join(", ")),
            };
            self.lost("params", why);
        }
        self.observed(&before.observed, &after.observed);
        self.field("time_ms", before.time_ms, after.time_ms);
        self.field("duration_us", before.duration_us, after.duration_us);
        self.field("tokens", before.tokens, after.tokens);
        self.field("reward", before.reward, after.reward);
        self.extra("extra", &before.extra, &after.extra);
    }

    fn observed(&mut self, before: &Observed, after: &Observed) {
        self.field("observed.output", before.output.as_ref(), after.output.as_ref());
        if before.output.is_none() && after.output.is_some() {
            self.lost("observed.output", "what was not recorded comes back as recorded".to_owned());
        }
        self.field("observed.stderr", before.stderr.as_ref(), after.stderr.as_ref());
        self.field("observed.mixed", before.mixed.then_some(true), after.mixed.then_some(true));
        self.field("observed.exit_code", before.exit_code, after.exit_code);
        self.field("observed.error", before.error.as_ref(), after.error.as_ref());
        self.field("observed.end", before.end.as_ref(), after.end.as_ref());
        self.field("observed.state", before.state.as_ref(), after.state.as_ref());
    }

    /// What came from other formats, or from a newer version.
    fn extra(&mut self, name: &str, before: &Map<String, Value>, after: &Map<String, Value>) {
        let own = self.format.name();
        for (key, value) in before.iter().filter(|(key, _)| key.as_str() != own) {
            let after = after.get(key);
            if after != Some(value) {
                self.field(&format!("{name}.{key}"), Some(value), after);
            }
        }
    }
}
