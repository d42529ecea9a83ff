//! What one pass has found out.

use serde_json::{Value, json};

use crate::report::{Mode, Outcome};
use crate::sample::{Figures, Samples};

/// What is done to a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Snapshot,
    /// The part of a snapshot in which the box is held.
    Held,
    Restore,
    Reset,
    Fork,
    Copy,
    Commit,
}

impl Verb {
    pub(super) const ALL: [Verb; 7] =
        [Verb::Snapshot, Verb::Held, Verb::Restore, Verb::Reset, Verb::Fork, Verb::Copy, Verb::Commit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Snapshot => "snapshot",
            Verb::Held => "snapshot-held",
            Verb::Restore => "restore",
            Verb::Reset => "reset",
            Verb::Fork => "fork",
            Verb::Copy => "cp -a",
            Verb::Commit => "docker commit",
        }
    }

    /// Milliseconds of the design, at the most, for the median.
    pub(super) fn goal_ms(self) -> Option<f64> {
        match self {
            Verb::Snapshot => Some(0.8),
            Verb::Reset => Some(1.0),
            Verb::Fork => Some(2.5),
            Verb::Held | Verb::Restore | Verb::Copy | Verb::Commit => None,
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) verb: Verb,
    /// In the tree.
    pub(super) files: usize,
    /// Changed since the last snapshot.
    pub(super) bytes: usize,
    pub(super) outcome: Outcome,
}

impl Row {
    pub(super) fn figures(&self) -> Option<Figures> {
        match &self.outcome {
            Outcome::Sampled(samples) => samples.figures(),
            Outcome::Missing(_) | Outcome::Failed(_) => None,
        }
    }

    pub(super) fn p50_ms(&self) -> Option<f64> {
        self.figures().map(|figures| figures.p50.as_secs_f64() * 1e3)
    }

    fn to_json(&self) -> Value {
        let mut value = json!({ "verb": self.verb.name(), "files": self.files, "bytes": self.bytes });
        match &self.outcome {
            Outcome::Sampled(samples) => value["samples_ns"] = json!(samples.nanoseconds()),
            Outcome::Missing(why) => value["missing"] = json!(why),
            Outcome::Failed(why) => value["failed"] = json!(why),
        }
        value
    }

    fn from_json(value: &Value) -> Option<Row> {
        let verb = Verb::ALL.into_iter().find(|verb| value["verb"] == verb.name())?;
        let word = |key: &str| value[key].as_str().map(str::to_owned);
        let outcome = match (value["samples_ns"].as_array(), word("missing"), word("failed")) {
            (Some(samples), ..) => Outcome::Sampled(Samples::from_nanoseconds(
                samples.iter().filter_map(Value::as_u64).collect(),
            )),
            (_, Some(why), _) => Outcome::Missing(why),
            (_, _, Some(why)) => Outcome::Failed(why),
            _ => return None,
        };
        let number = |key: &str| value[key].as_u64().map(|number| number as usize);
        Some(Row { verb, files: number("files")?, bytes: number("bytes")?, outcome })
    }
}

/// One user on one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) mode: Mode,
    pub(super) disk: String,
    pub(super) rows: Vec<Row>,
    pub(super) load: String,
}

impl Pass {
    pub(super) fn failed(mode: Mode, disk: &str, why: &str) -> Pass {
        let row = Row { verb: Verb::Snapshot, files: 0, bytes: 0, outcome: Outcome::Failed(why.into()) };
        Pass { mode, disk: disk.into(), rows: vec![row], load: String::new() }
    }

    pub(super) fn is_whole(&self) -> bool {
        !self.rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_)))
    }

    /// How many times the median grows from the smallest tree to the largest, with the same bytes changed.
    pub(super) fn growth(&self, verb: Verb) -> Option<f64> {
        let of_verb = |row: &&Row| row.verb == verb && row.figures().is_some();
        let bytes = self.rows.iter().filter(of_verb).map(|row| row.bytes).min()?;
        let rows = || self.rows.iter().filter(of_verb).filter(move |row| row.bytes == bytes);
        let (least, most) = (rows().min_by_key(|row| row.files)?, rows().max_by_key(|row| row.files)?);
        (least.files < most.files).then_some(most.p50_ms()? / least.p50_ms()?)
    }

    /// All of it, for the first pass to read.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "mode": self.mode.name(), "disk": self.disk, "load": self.load,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
        })
    }

    /// All of it and what follows from it, for whoever reads the file.
    pub(super) fn to_json_with_figures(&self) -> Value {
        let mut value = self.to_json();
        let us = |time: std::time::Duration| time.as_nanos() as f64 / 1000.0;
        for (json, row) in value["rows"].as_array_mut().into_iter().flatten().zip(&self.rows) {
            if let Some(f) = row.figures() {
                for (key, time) in [("min_us", f.min), ("p50_us", f.p50), ("p99_us", f.p99)] {
                    json[key] = json!(us(time));
                }
                json["goal_ms"] = json!(row.verb.goal_ms());
            }
        }
        value
    }

    pub(super) fn from_json(value: &Value) -> Option<Pass> {
        let word = |key: &str| value[key].as_str().map(str::to_owned);
        let mode = [Mode::Root, Mode::Rootless].into_iter().find(|mode| value["mode"] == mode.name())?;
        let rows = value["rows"].as_array()?.iter().map(Row::from_json).collect::<Option<_>>()?;
        Some(Pass { mode, disk: word("disk")?, rows, load: word("load")? })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::state) fn pass(rows: &[(Verb, usize, usize, u64)]) -> Pass {
        let row = |&(verb, files, bytes, us): &(Verb, usize, usize, u64)| {
            let outcome = Outcome::Sampled(Samples::from_nanoseconds(vec![us * 1000]));
            Row { verb, files, bytes, outcome }
        };
        let rows = rows.iter().map(row).collect();
        Pass { mode: Mode::Root, disk: "ext4 (/dev/vda)".into(), rows, load: "0 0 0".into() }
    }

    #[test]
    fn what_the_second_pass_tells_is_what_the_first_reads() {
        let mut pass = pass(&[(Verb::Snapshot, 100, 1, 5), (Verb::Copy, 7, 1, 9)]);
        let outcome = Outcome::Missing("not installed".into());
        pass.rows.push(Row { verb: Verb::Commit, files: 1, bytes: 1, outcome });
        assert_eq!(Pass::from_json(&pass.to_json()), Some(pass.clone()));
        assert!(pass.is_whole() && !Pass::failed(Mode::Root, "", "no").is_whole());
    }

    #[test]
    fn growth_is_told_for_the_same_bytes() {
        let pass = pass(&[
            (Verb::Snapshot, 100, 4, 500),
            (Verb::Snapshot, 100, 99, 9000),
            (Verb::Snapshot, 10_000, 4, 600),
        ]);
        assert_eq!(pass.growth(Verb::Snapshot), Some(1.2));
        assert_eq!(pass.growth(Verb::Fork), None);
    }
}
