//! What one pass has found out.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pace;
use crate::report::{Mode, Outcome, put_figures};
use crate::sample::Figures;

/// What is done to a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Snapshot,
    /// The part of a snapshot in which the box is held.
    Held,
    Restore,
    Reset,
    Fork,
    /// The digest of a box with a few changes since the last one.
    Digest,
    /// A bare walk over what the box has written: what a digest cannot do without.
    Walk,
    /// The digest when nothing is known of any layer.
    DigestCold,
    Copy,
    Commit,
    /// A bare spawn outside: the machine's pace.
    Spawn,
    /// Reading a tree that was written at once.
    ReadFlat,
    /// Reading the same tree, written with a snapshot after each file.
    ReadDeep,
}

impl Verb {
    pub(super) const ALL: [Verb; 13] = [
        Verb::Snapshot,
        Verb::Held,
        Verb::Restore,
        Verb::Reset,
        Verb::Fork,
        Verb::Digest,
        Verb::Walk,
        Verb::DigestCold,
        Verb::Copy,
        Verb::Commit,
        Verb::Spawn,
        Verb::ReadFlat,
        Verb::ReadDeep,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Snapshot => "snapshot",
            Verb::Held => "snapshot-held",
            Verb::Restore => "restore",
            Verb::Reset => "reset",
            Verb::Fork => "fork",
            Verb::Digest => "digest",
            Verb::Walk => "walk",
            Verb::DigestCold => "cold digest",
            Verb::Copy => "cp -a",
            Verb::Commit => "docker commit",
            Verb::Spawn => "bare spawn",
            Verb::ReadFlat => "read-flat",
            Verb::ReadDeep => "read-deep",
        }
    }

    /// Whether it says how a tree is read, and not what is done to it.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Verb::ReadFlat | Verb::ReadDeep)
    }

    /// What the design allows, at the most, for the median.
    pub(super) fn goal(self) -> Option<Goal> {
        match self {
            Verb::Snapshot => Some(Goal::Milliseconds(0.8)),
            Verb::Reset => Some(Goal::Milliseconds(1.0)),
            Verb::Fork => Some(Goal::Milliseconds(2.5)),
            Verb::Digest => Some(Goal::MillisecondsOver(0.3, Verb::Walk)),
            Verb::ReadDeep => Some(Goal::Times(2.0, Verb::ReadFlat)),
            _ => None,
        }
    }
}

/// A bound of the design.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Goal {
    Milliseconds(f64),
    /// So much more than another row.
    MillisecondsOver(f64, Verb),
    /// So many times another row.
    Times(f64, Verb),
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
        self.outcome.figures()
    }

    pub(super) fn p50_ms(&self) -> Option<f64> {
        self.figures().map(|figures| figures.p50.as_secs_f64() * 1e3)
    }

    fn to_json(&self) -> Value {
        let mut value = json!({ "verb": self.verb.name(), "files": self.files, "bytes": self.bytes });
        self.outcome.put(&mut value);
        value
    }

    fn from_json(value: &Value) -> Option<Row> {
        let verb = Verb::ALL.into_iter().find(|verb| value["verb"] == verb.name())?;
        let outcome = Outcome::of_row(value)?;
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

    /// The median of another row of the same tree.
    fn p50_of(&self, row: &Row, verb: Verb) -> Option<f64> {
        let same = |other: &&Row| (other.verb, other.files, other.bytes) == (verb, row.files, row.bytes);
        self.rows.iter().find(same)?.p50_ms()
    }

    /// What the goal of a row bounds, and the bound.
    pub(super) fn judged(&self, row: &Row) -> Option<(f64, f64)> {
        let p50 = row.p50_ms()?;
        match row.verb.goal()? {
            Goal::Milliseconds(most) => Some((p50, most)),
            Goal::MillisecondsOver(most, verb) => Some((p50 - self.p50_of(row, verb)?, most)),
            Goal::Times(most, verb) => Some((p50 / self.p50_of(row, verb)?, most)),
        }
    }

    /// What a goal in milliseconds bounds, at the pace that it was set at.
    pub(super) fn at_pace(&self, row: &Row) -> Option<f64> {
        let (found, _) = self.judged(row)?;
        let spawn = Duration::from_secs_f64(self.p50_of(row, Verb::Spawn)? / 1e3);
        match row.verb.goal()? {
            Goal::Milliseconds(_) | Goal::MillisecondsOver(..) => Some(pace::at_pace(found, spawn)),
            Goal::Times(..) => None,
        }
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
        for (json, row) in value["rows"].as_array_mut().into_iter().flatten().zip(&self.rows) {
            if let Some(figures) = row.figures() {
                put_figures(&figures, json);
            }
            if let Some((found, goal)) = self.judged(row) {
                (json["judged"], json["goal"]) = (json!(found), json!(goal));
                json["at_pace"] = json!(self.at_pace(row));
            }
        }
        value
    }

    pub(super) fn from_json(value: &Value) -> Option<Pass> {
        let word = |key: &str| value[key].as_str().map(str::to_owned);
        let mode = Mode::of_name(&value["mode"])?;
        let rows = value["rows"].as_array()?.iter().map(Row::from_json).collect::<Option<_>>()?;
        Some(Pass { mode, disk: word("disk")?, rows, load: word("load")? })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sample::Samples;

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

    #[test]
    fn a_goal_may_stand_on_another_row_of_the_same_tree() {
        let pass = pass(&[
            (Verb::Digest, 100, 4, 500),
            (Verb::Walk, 100, 4, 300),
            (Verb::Walk, 10_000, 4, 9),
            (Verb::ReadDeep, 1000, 0, 3000),
            (Verb::ReadFlat, 1000, 0, 2000),
        ]);
        let (found, most) = pass.judged(&pass.rows[0]).unwrap();
        assert!((found - 0.2).abs() < 1e-9 && most == 0.3, "{found}");
        assert_eq!(pass.judged(&pass.rows[3]), Some((1.5, 2.0)));
        assert_eq!(pass.judged(&pass.rows[1]), None);
    }
}
