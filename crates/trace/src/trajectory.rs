//! Trajectories: what an agent did, step by step, and what it saw. They are read, written, checked and compared
//! here; nothing is executed.
//!
//! The walk: [`Trajectories::open`] looks at the first value of a file, tells its [`Format`], and gives one
//! [`Trajectory`] after the other. Every format has a JSON Schema (`crates/trace/schema`), which is checked
//! before a value is taken apart, so that each [`Problem`] names its line and its step. What a format says and
//! the model has no place for is kept under the format's name in `extra`, and put back when the same format is
//! written. [`write()`](write()) writes any format and tells each [`Loss`]: what would not come back. A [`Comparer`] tells
//! whether two steps went the same way, and which noise it overlooked by which [`Rule`].
//!
//! Trajectories come from strangers. Their size, depth and count are bounded by [`limits`]; nothing of them is
//! ever used as a path here.

mod canonical;
mod compare;
mod detect;
mod difference;
mod fields;
mod formats;
mod imported;
mod json;
mod loss;
mod model;
mod past;
mod problem;
mod read;
mod record;
mod schema;
mod text;
mod time;
mod write;

pub mod limits;

pub use canonical::{BUILT_IN, BuiltIn, Rules, is_noise};
pub use compare::{
    Aspect, Comparer, Difference, Divergence, Ignored, Place, Strictness, diff, diff_with_rules,
};
pub use formats::Format;
pub use loss::{Loss, lost_on_record};
pub use model::{
    Base, Change, FileChange, Observed, Outcome, Profile, Rule, StateAfter, Step, Task, Trajectory, VERSION,
};
pub use problem::Problem;
pub use read::{Found, Trajectories, Validation, read_one, validate};
pub use record::{
    FromTrace, INTERRUPT, NO_OBJECT, REDACTED, RESTARTS, SIGNALS, SIGNALS_BEFORE, Sent, UNREADABLE, Way,
};
pub use schema::schema;
pub use text::{Text, path_bytes, path_text};
pub use write::{Shape, write};
