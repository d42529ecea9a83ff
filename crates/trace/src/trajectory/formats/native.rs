//! Our own format: the model as it is, with its name and version before it. See `docs/trajectory-format.md`.

use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::trajectory::canonical::Rules;
use crate::trajectory::fields::Fields;
use crate::trajectory::json::Part;
use crate::trajectory::model::{Step, Trajectory, VERSION};
use crate::trajectory::problem::Problems;
use crate::trajectory::text::path_bytes;

/// What the first field says.
pub(crate) const NAME: &str = "glasshouse-trajectory";

/// A trajectory with its head, for writing: the head comes first.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    format: &'static str,
    version: u64,
    #[serde(flatten)]
    trajectory: &'a Trajectory,
}

impl<'a> Document<'a> {
    pub(crate) fn of(trajectory: &'a Trajectory) -> Self {
        Document { format: NAME, version: VERSION, trajectory }
    }
}

pub(super) fn encode(trajectory: &Trajectory) -> Value {
    // Nothing in the model has keys that are no strings; that is all that could fail.
    serde_json::to_value(Document::of(trajectory)).unwrap_or_default()
}

pub(super) fn decode(value: Value, problems: &mut Problems) -> Trajectory {
    let mut fields = Fields::of(value);
    fields.take("format");
    fields.take("version");
    let steps = fields.list("steps").unwrap_or_default();
    // The schema has been checked; what it cannot say (base64, octal digits, ends) is said by the types.
    let head = Value::Object(fields.rest());
    let mut trajectory = Trajectory::deserialize(head).unwrap_or_else(|e| {
        problems.error(&[], e.to_string());
        Trajectory::default()
    });
    for (index, step) in steps.into_iter().enumerate() {
        match Step::deserialize(step) {
            Ok(step) => {
                check_paths(&step, index, problems);
                trajectory.steps.push(step);
            }
            Err(e) => problems.error(&["steps".into(), index.into()], e.to_string()),
        }
    }
    if let Err(e) = Rules::new(&trajectory.rules) {
        problems.error(&["rules".into()], e.message);
    }
    trajectory
}

fn check_paths(step: &Step, index: usize, problems: &mut Problems) {
    let changes = step.observed.state.iter().flat_map(|state| &state.changes).enumerate();
    for (at, change) in changes.filter(|(_, change)| path_bytes(&change.path).is_none()) {
        let place: [Part; 7] = [
            "steps".into(),
            index.into(),
            "observed".into(),
            "state".into(),
            "changes".into(),
            at.into(),
            "path".into(),
        ];
        problems.error(&place, format!("{:?} has a backslash that escapes nothing", change.path));
    }
}
