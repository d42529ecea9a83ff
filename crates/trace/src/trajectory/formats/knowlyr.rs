//! The five formats of knowlyr: the replay file (A), the recorder (B), the recording wrapper (C), the history of
//! the environment (D) and the hub (E). None of them has a place for files, processes or typed ends; A and D know
//! nothing of thoughts and times either.
//!
//! All of them hold what the same five tools answered. Their own replay compares what is left after stripping, and the
//! answers of tools that are no programs have no end of line there, as ours have.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Format, python, seconds, take_seconds, take_time, take_total, time_text, trimmed};
use crate::trajectory::fields::{Fields, Object, keep, kept};
use crate::trajectory::model::{Observed, Outcome, Step, Task, Trajectory};
use crate::trajectory::problem::Problems;
use crate::trajectory::text::Text;

/// How many hex digits of the hub's hash are kept.
const HASH_DIGITS: usize = 16;

pub(super) fn decode_a(value: Value) -> Trajectory {
    let mut fields = Fields::of(value);
    let mut trajectory = Trajectory { rules: trimmed(), ..Trajectory::default() };
    for step in fields.list("steps").unwrap_or_default() {
        let mut fields = Fields::of(step);
        let mut step = Step {
            tool: fields.text("tool_name").unwrap_or_default(),
            params: fields.object("params").unwrap_or_default(),
            observed: Observed {
                output: fields.text("expected_output").map(Text::Text),
                ..Observed::default()
            },
            ..Step::default()
        };
        keep(&mut step.extra, Format::KnowlyrA, fields);
        trajectory.steps.push(step);
    }
    let mut metadata = Fields::of(fields.take("metadata").unwrap_or_default());
    trajectory.agent = metadata.words("agent");
    trajectory.model = metadata.words("model");
    if !metadata.is_empty() {
        fields.put("metadata", Value::Object(metadata.rest()));
    }
    keep(&mut trajectory.extra, Format::KnowlyrA, fields);
    trajectory
}

pub(super) fn encode_a(trajectory: &Trajectory) -> Value {
    let step = |step: &Step| {
        Object::default()
            .with("tool_name", step.tool.as_str())
            .with("params", step.params.clone())
            .with("expected_output", output(step))
            .and(kept(&step.extra, Format::KnowlyrA))
            .value()
    };
    let mut kept = kept(&trajectory.extra, Format::KnowlyrA);
    let metadata = Object::default()
        .maybe("agent", trajectory.agent.as_deref())
        .maybe("model", trajectory.model.as_deref())
        .and(Fields::of(kept.take("metadata").unwrap_or_default()));
    Object::default()
        .with("steps", trajectory.steps.iter().map(step).collect::<Vec<_>>())
        .with("metadata", metadata.0)
        .and(kept)
        .value()
}

pub(super) fn decode_b(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    let mut trajectory = Trajectory {
        agent: fields.words("agent"),
        model: fields.words("model"),
        task: fields.take("task").and_then(task_b),
        rules: trimmed(),
        ..Trajectory::default()
    };
    let steps = fields.list("steps").unwrap_or_default();
    trajectory.outcome = fields.take("outcome").and_then(|outcome| outcome_b(outcome, steps.len(), problems));
    for (index, step) in steps.into_iter().enumerate() {
        let mut fields = Fields::of(step);
        let mut call = Fields::of(fields.take("tool_call").unwrap_or_default());
        let mut result = Fields::of(fields.take("tool_result").unwrap_or_default());
        take_total(&mut fields, "step_id", index);
        let mut step = Step {
            thought: fields.words("thought"),
            tool: call.text("name").unwrap_or_default(),
            params: call.object("parameters").unwrap_or_default(),
            observed: observed(&mut result),
            time_ms: take_time(&mut fields, "timestamp"),
            tokens: fields.count("token_count"),
            ..Step::default()
        };
        put_rest(&mut fields, "tool_call", call);
        put_rest(&mut fields, "tool_result", result);
        keep(&mut step.extra, Format::KnowlyrB, fields);
        trajectory.steps.push(step);
    }
    keep(&mut trajectory.extra, Format::KnowlyrB, fields);
    trajectory
}

fn task_b(value: Value) -> Option<Task> {
    let mut fields = Fields::of(value);
    let setup = fields.list("setup_commands").unwrap_or_default();
    let mut task = Task {
        id: fields.words("task_id"),
        description: fields.words("description"),
        repo: fields.words("repo"),
        commit: fields.words("base_commit"),
        test: fields.words("test_command"),
        setup: setup.into_iter().filter_map(|command| command.as_str().map(str::to_owned)).collect(),
        ..Task::default()
    };
    keep(&mut task.extra, Format::KnowlyrB, fields);
    (task != Task::default()).then_some(task)
}

fn outcome_b(value: Value, steps: usize, problems: &mut Problems) -> Option<Outcome> {
    let mut fields = Fields::of(value);
    take_total(&mut fields, "total_steps", steps);
    if fields.has("total_steps") {
        problems.warning(&["outcome".into(), "total_steps".into()], format!("there are {steps} steps"));
    }
    let mut outcome = Outcome {
        success: fields.boolean("success"),
        score: fields.number("score"),
        tests_passed: fields.count("tests_passed"),
        tests_failed: fields.count("tests_failed"),
        tokens: fields.count("total_tokens"),
        ..Outcome::default()
    };
    keep(&mut outcome.extra, Format::KnowlyrB, fields);
    (outcome != Outcome::default()).then_some(outcome)
}

pub(super) fn encode_b(trajectory: &Trajectory) -> Value {
    let kept = kept(&trajectory.extra, Format::KnowlyrB);
    Object::default()
        .with("task", encode_task_b(trajectory.task.as_ref()))
        .with("agent", trajectory.agent.as_deref().unwrap_or_default())
        .with("model", trajectory.model.as_deref().unwrap_or_default())
        .with("steps", trajectory.steps.iter().enumerate().map(encode_step_b).collect::<Vec<_>>())
        .with("outcome", encode_outcome_b(trajectory))
        .and(kept)
        .value()
}

fn encode_task_b(task: Option<&Task>) -> Value {
    let Some(task) = task else { return json!({}) };
    Object::default()
        .maybe("task_id", task.id.as_deref())
        .maybe("description", task.description.as_deref())
        .maybe("repo", task.repo.as_deref())
        .maybe("base_commit", task.commit.as_deref())
        .maybe("test_command", task.test.as_deref())
        .maybe("setup_commands", (!task.setup.is_empty()).then(|| task.setup.clone()))
        .and(kept(&task.extra, Format::KnowlyrB))
        .value()
}

fn encode_step_b((index, step): (usize, &Step)) -> Value {
    let mut kept = kept(&step.extra, Format::KnowlyrB);
    let call = Object::default()
        .with("name", step.tool.as_str())
        .with("parameters", step.params.clone())
        .and(Fields::of(kept.take("tool_call").unwrap_or_default()));
    let result = Object::default()
        .maybe("output", step.observed.output.as_ref().map(Text::lossy))
        .maybe("exit_code", step.observed.exit_code)
        .with("error", step.observed.error.clone())
        .and(Fields::of(kept.take("tool_result").unwrap_or_default()));
    let id = kept.take("step_id").unwrap_or_else(|| index.into());
    let time = time_text(&mut kept, "timestamp", step.time_ms);
    Object::default()
        .with("step_id", id)
        .with("thought", step.thought.as_deref().unwrap_or_default())
        .with("tool_call", call.0)
        .with("tool_result", result.0)
        .with("timestamp", time.unwrap_or_default())
        .with("token_count", step.tokens)
        .and(kept)
        .value()
}

fn encode_outcome_b(trajectory: &Trajectory) -> Value {
    let total = trajectory.steps.len();
    let Some(outcome) = &trajectory.outcome else { return json!({ "total_steps": total }) };
    let mut kept = kept(&outcome.extra, Format::KnowlyrB);
    let total = kept.take("total_steps").unwrap_or_else(|| total.into());
    Object::default()
        .maybe("success", outcome.success)
        .maybe("score", outcome.score)
        .maybe("tests_passed", outcome.tests_passed)
        .maybe("tests_failed", outcome.tests_failed)
        .with("total_steps", total)
        .maybe("total_tokens", outcome.tokens)
        .and(kept)
        .value()
}

pub(super) fn decode_c(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    let mut trajectory = Trajectory {
        agent: fields.words("agent"),
        model: fields.words("model"),
        rules: trimmed(),
        ..Trajectory::default()
    };
    let mut task = Fields::of(fields.take("task").unwrap_or_default());
    let mut found =
        Task { id: task.words("task_id"), description: task.words("description"), ..Task::default() };
    keep(&mut found.extra, Format::KnowlyrC, task);
    trajectory.task = (found != Task::default()).then_some(found);
    let steps = fields.list("steps").unwrap_or_default();
    let mut outcome = Fields::of(fields.take("outcome").unwrap_or_default());
    take_total(&mut outcome, "total_steps", steps.len());
    if outcome.has("total_steps") {
        problems
            .warning(&["outcome".into(), "total_steps".into()], format!("there are {} steps", steps.len()));
    }
    let mut found = Outcome {
        success: outcome.boolean("success"),
        terminated: outcome.boolean("terminated"),
        truncated: outcome.boolean("truncated"),
        ..Outcome::default()
    };
    keep(&mut found.extra, Format::KnowlyrC, outcome);
    trajectory.outcome = (found != Outcome::default()).then_some(found);
    let steps = steps.into_iter().enumerate();
    trajectory.steps = steps.map(|(index, step)| decode_step(step, index, Format::KnowlyrC)).collect();
    keep(&mut trajectory.extra, Format::KnowlyrC, fields);
    trajectory
}

pub(super) fn encode_c(trajectory: &Trajectory) -> Value {
    let task = trajectory.task.as_ref().map_or_else(Object::default, |task| {
        Object::default()
            .with("task_id", task.id.as_deref().unwrap_or_default())
            .with("description", task.description.as_deref().unwrap_or_default())
            .and(kept(&task.extra, Format::KnowlyrC))
    });
    let total = trajectory.steps.len();
    let outcome = trajectory.outcome.as_ref().map_or_else(Object::default, |outcome| {
        let mut kept = kept(&outcome.extra, Format::KnowlyrC);
        Object::default()
            .maybe("success", outcome.success)
            .with("total_steps", kept.take("total_steps").unwrap_or_else(|| total.into()))
            .maybe("terminated", outcome.terminated)
            .maybe("truncated", outcome.truncated)
            .and(kept)
    });
    let steps = trajectory.steps.iter().enumerate();
    Object::default()
        .with("task", task.0)
        .with("agent", trajectory.agent.as_deref().unwrap_or_default())
        .with("model", trajectory.model.as_deref().unwrap_or_default())
        .with(
            "steps",
            steps.map(|(index, step)| encode_step(step, index, Format::KnowlyrC)).collect::<Vec<_>>(),
        )
        .with("outcome", outcome.0)
        .and(kept(&trajectory.extra, Format::KnowlyrC))
        .value()
}

pub(super) fn decode_d(value: Value, problems: &mut Problems) -> Trajectory {
    let Value::Array(steps) = value else { return Trajectory::default() };
    for (index, step) in steps.iter().enumerate() {
        let number = step.get("step").and_then(Value::as_u64);
        if number.is_some_and(|number| number != index as u64 + 1) {
            problems.warning(&[index.into(), "step".into()], format!("expected {}", index + 1));
        }
    }
    let steps = steps.into_iter().enumerate();
    let steps = steps.map(|(index, step)| decode_step(step, index, Format::KnowlyrD)).collect();
    Trajectory { steps, rules: trimmed(), ..Trajectory::default() }
}

pub(super) fn encode_d(trajectory: &Trajectory) -> Value {
    let steps = trajectory.steps.iter().enumerate();
    steps.map(|(index, step)| encode_step(step, index, Format::KnowlyrD)).collect()
}

pub(super) fn decode_e(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    let steps = fields.list("steps").unwrap_or_default();
    let hash = content_hash(&steps);
    if let Some(found) = fields.text("content_hash").filter(|found| !found.is_empty() && *found != hash) {
        let what =
            format!("{found:?}, but its steps give {hash:?}: they were changed, or it was taken elsewhere");
        problems.warning(&["content_hash".into()], what);
    }
    take_total(&mut fields, "total_steps", steps.len());
    if fields.has("total_steps") {
        problems.warning(&["total_steps".into()], format!("there are {} steps", steps.len()));
    }
    let rewards = fields.list("step_rewards").unwrap_or_default();
    let outcome = Outcome {
        success: fields.boolean("success"),
        score: fields.number("reward"),
        duration_us: take_seconds(&mut fields, "duration_seconds"),
        ..Outcome::default()
    };
    let task = Task { id: fields.words("task_id"), ..Task::default() };
    let mut trajectory = Trajectory {
        agent: fields.words("agent_framework"),
        model: fields.words("agent_model"),
        task: (task != Task::default()).then_some(task),
        outcome: (outcome != Outcome::default()).then_some(outcome),
        rules: trimmed(),
        ..Trajectory::default()
    };
    for (index, step) in steps.into_iter().enumerate() {
        let mut step = decode_step(step, index, Format::KnowlyrE);
        step.reward = step.reward.or_else(|| rewards.get(index).and_then(Value::as_f64));
        trajectory.steps.push(step);
    }
    if rewards.len() > trajectory.steps.len() {
        fields.put("step_rewards", rewards.into());
        problems.warning(&["step_rewards".into()], "there are more of them than steps");
    }
    keep(&mut trajectory.extra, Format::KnowlyrE, fields);
    trajectory
}

pub(super) fn encode_e(trajectory: &Trajectory) -> Value {
    let steps = trajectory.steps.iter().enumerate();
    let steps: Vec<Value> = steps.map(|(index, step)| encode_step(step, index, Format::KnowlyrE)).collect();
    let hash = content_hash(&steps);
    let rewards: Vec<Value> = trajectory.steps.iter().map(|step| step.reward.into()).collect();
    let outcome = trajectory.outcome.clone().unwrap_or_default();
    let mut kept = kept(&trajectory.extra, Format::KnowlyrE);
    let rewards = kept.take("step_rewards").unwrap_or_else(|| match rewards.iter().all(Value::is_null) {
        true => json!([]),
        false => rewards.into(),
    });
    let total = kept.take("total_steps").unwrap_or_else(|| steps.len().into());
    let duration = seconds(&mut kept, "duration_seconds", outcome.duration_us);
    let task = trajectory.task.as_ref().and_then(|task| task.id.as_deref());
    Object::default()
        .with("task_id", task.unwrap_or_default())
        .with("agent_framework", trajectory.agent.as_deref().unwrap_or_default())
        .with("agent_model", trajectory.model.as_deref().unwrap_or_default())
        .with("steps", steps)
        .with("total_steps", total)
        .maybe("success", outcome.success)
        .maybe("reward", outcome.score)
        .with("step_rewards", rewards)
        .maybe("duration_seconds", duration)
        .with("content_hash", hash)
        .and(kept)
        .value()
}

/// The hub's name for what was done: the same tools, parameters and outputs have the same.
fn content_hash(steps: &[Value]) -> String {
    let field = |step: &Value, name: &str, none: Value| step.get(name).cloned().unwrap_or(none);
    let done = |step: &Value| {
        json!({
            "tool": field(step, "tool", json!("")),
            "params": field(step, "params", json!({})),
            "output": field(step, "output", json!("")),
        })
    };
    let text = python::json(&steps.iter().map(done).collect());
    let digest = Sha256::digest(text.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..HASH_DIGITS].to_owned()
}

/// A step of C, D or E.
fn decode_step(value: Value, index: usize, format: Format) -> Step {
    let mut fields = Fields::of(value);
    match format {
        Format::KnowlyrD => take_total(&mut fields, "step", index + 1),
        Format::KnowlyrC => take_total(&mut fields, "step_id", index),
        _ => {}
    }
    let has_more = format != Format::KnowlyrD;
    let mut step = Step {
        thought: if has_more { fields.words("thought") } else { None },
        tool: fields.text("tool").unwrap_or_default(),
        params: fields.object("params").unwrap_or_default(),
        observed: observed(&mut fields),
        reward: if has_more { fields.number("reward") } else { None },
        time_ms: if has_more { take_time(&mut fields, "timestamp") } else { None },
        ..Step::default()
    };
    keep(&mut step.extra, format, fields);
    step
}

fn encode_step(step: &Step, index: usize, format: Format) -> Value {
    let mut kept = kept(&step.extra, format);
    let mut object = Object::default()
        .with("tool", step.tool.as_str())
        .with("params", step.params.clone())
        .maybe("output", step.observed.output.as_ref().map(Text::lossy))
        .maybe("exit_code", step.observed.exit_code)
        .maybe("error", step.observed.error.as_deref());
    if format != Format::KnowlyrD {
        let time = time_text(&mut kept, "timestamp", step.time_ms);
        object = object.with("thought", step.thought.as_deref().unwrap_or_default()).maybe("timestamp", time);
    }
    if format == Format::KnowlyrC {
        object = object.maybe("reward", step.reward);
    }
    match format {
        Format::KnowlyrD => object.and(kept).or("step", index + 1),
        Format::KnowlyrC => object.and(kept).or("step_id", index),
        _ => object.and(kept),
    }
    .value()
}

fn observed(fields: &mut Fields) -> Observed {
    Observed {
        output: fields.text("output").map(Text::Text),
        exit_code: fields.code("exit_code"),
        error: fields.text("error"),
        ..Observed::default()
    }
}

/// What A calls the expected output; null is not checked.
fn output(step: &Step) -> Value {
    step.observed.output.as_ref().map(Text::lossy).into()
}

/// Puts an object that was taken apart back, if something of it was left over.
fn put_rest(fields: &mut Fields, name: &str, rest: Fields) {
    if !rest.is_empty() {
        fields.put(name, Value::Object(rest.rest()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_s_hash_is_what_python_makes_of_it() {
        let steps = json!({"steps": [{"tool": "shell", "params": {"command": "ls"}, "output": "a.py\n", "thought": "x"}]});
        assert_eq!(content_hash(steps["steps"].as_array().unwrap()), "0a9d2db38c1a45f4");
        assert_eq!(content_hash(&[]), "4f53cda18c2baa0c");
    }

    #[test]
    fn a_hash_that_does_not_fit_is_told() {
        let mut problems = Problems::default();
        decode_e(json!({"steps": [], "content_hash": "0000000000000000", "total_steps": 3}), &mut problems);
        assert_eq!(problems.found.len(), 2);
        assert!(!problems.fatal);
    }

    #[test]
    fn the_error_of_a_hub_s_step_is_kept() {
        let value = json!({"steps": [{"tool": "t", "error": "e", "mood": 7}]});
        let trajectory = decode_e(value, &mut Problems::default());
        assert_eq!(trajectory.steps[0].observed.error.as_deref(), Some("e"));
        assert_eq!(trajectory.steps[0].extra["knowlyr-e"], json!({"mood": 7}));
    }
}
