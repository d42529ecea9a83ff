//! What one pass has found out.

use serde_json::{Value, json};

use crate::memory::Memory;
use crate::sample::{Figures, Samples};
use crate::{goal, machine};

/// Whose boxes are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The host's root.
    Root,
    /// An ordinary user.
    Rootless,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Root => "root",
            Mode::Rootless => "rootless",
        }
    }

    pub(crate) fn of_name(name: &Value) -> Option<Mode> {
        [Mode::Root, Mode::Rootless].into_iter().find(|mode| name == mode.name())
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// From nothing to the end of the first command.
    First,
    /// A command in a box that lives.
    Exec,
    /// The parts of a box's life.
    Life,
    /// Starting an interpreter.
    Python,
}

impl Measure {
    pub(crate) const ALL: [Measure; 4] = [Measure::First, Measure::Exec, Measure::Life, Measure::Python];

    fn name(self) -> &'static str {
        match self {
            Measure::First => "first",
            Measure::Exec => "exec",
            Measure::Life => "life",
            Measure::Python => "python",
        }
    }

    /// The name of a row, for `--only` and JSON.
    pub(crate) fn row(self, contender: &str) -> String {
        format!("{}/{contender}", self.name())
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) measure: Measure,
    pub(crate) contender: String,
    pub(crate) outcome: Outcome,
}

/// What came of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Sampled(Samples),
    /// It is not to be had here, and why.
    Missing(String),
    /// It should have been measured, and could not be.
    Failed(String),
}

impl Outcome {
    pub(crate) fn figures(&self) -> Option<Figures> {
        match self {
            Outcome::Sampled(samples) => samples.figures(),
            Outcome::Missing(_) | Outcome::Failed(_) => None,
        }
    }

    /// Writes it into a row, for the first pass to read.
    pub(crate) fn put(&self, row: &mut Value) {
        match self {
            Outcome::Sampled(samples) => row["samples_ns"] = json!(samples.nanoseconds()),
            Outcome::Missing(why) => row["missing"] = json!(why),
            Outcome::Failed(why) => row["failed"] = json!(why),
        }
    }

    /// Reads it from a row.
    pub(crate) fn of_row(row: &Value) -> Option<Outcome> {
        let word = |key: &str| row[key].as_str().map(str::to_owned);
        match (row["samples_ns"].as_array(), word("missing"), word("failed")) {
            (Some(samples), ..) => Some(Outcome::Sampled(Samples::from_nanoseconds(
                samples.iter().filter_map(Value::as_u64).collect(),
            ))),
            (_, Some(why), _) => Some(Outcome::Missing(why)),
            (_, _, Some(why)) => Some(Outcome::Failed(why)),
            _ => None,
        }
    }
}

/// Writes figures into a row, for whoever reads the file.
pub(crate) fn put_figures(figures: &Figures, row: &mut Value) {
    let us = |time: std::time::Duration| time.as_nanos() as f64 / 1000.0;
    row["count"] = json!(figures.count);
    let times = [figures.min, figures.p50, figures.p90, figures.p99];
    for (key, time) in ["min_us", "p50_us", "p90_us", "p99_us"].into_iter().zip(times) {
        row[key] = json!(us(time));
    }
}

/// What one pass has found out.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) mode: Mode,
    pub(crate) rows: Vec<Row>,
    pub(crate) memory: Option<Result<Memory, String>>,
    /// How strongly the boxes were isolated.
    pub(crate) level: String,
    pub(crate) load_before: String,
    pub(crate) load_after: String,
}

impl Row {
    pub(crate) fn name(&self) -> String {
        self.measure.row(&self.contender)
    }

    pub(crate) fn figures(&self) -> Option<Figures> {
        self.outcome.figures()
    }

    fn to_json(&self) -> Value {
        let mut value = json!({ "row": self.name() });
        self.outcome.put(&mut value);
        value
    }

    fn from_json(value: &Value) -> Option<Row> {
        let (measure, contender) = value["row"].as_str()?.split_once('/')?;
        let measure = Measure::ALL.into_iter().find(|m| m.name() == measure)?;
        Some(Row { measure, contender: contender.into(), outcome: Outcome::of_row(value)? })
    }
}

impl Report {
    /// Whether everything that should have been measured was.
    pub(crate) fn is_whole(&self) -> bool {
        let failed = |row: &Row| matches!(row.outcome, Outcome::Failed(_));
        !self.rows.iter().any(failed) && !matches!(self.memory, Some(Err(_)))
    }

    pub(crate) fn figures(&self, measure: Measure, contender: &str) -> Option<Figures> {
        self.rows.iter().find(|row| row.measure == measure && row.contender == contender)?.figures()
    }

    /// How many times the p50 of another contender in the same measure.
    pub(crate) fn ratio(&self, row: &Row, to: &str) -> Option<f64> {
        let (ours, theirs) = (row.figures()?.p50, self.figures(row.measure, to)?.p50);
        (!theirs.is_zero()).then(|| ours.as_secs_f64() / theirs.as_secs_f64())
    }

    /// All of it, for the first pass to read.
    pub(crate) fn to_json(&self) -> Value {
        let memory = match &self.memory {
            None => Value::Null,
            Some(Ok(memory)) => memory.to_json(),
            Some(Err(why)) => json!({ "failed": why }),
        };
        json!({
            "mode": self.mode.name(), "level": self.level, "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "memory": memory, "load_before": self.load_before, "load_after": self.load_after,
        })
    }

    /// All of it and what follows from it, for whoever reads the file.
    pub(crate) fn to_json_with_figures(&self) -> Value {
        let mut value = self.to_json();
        for (json, row) in value["rows"].as_array_mut().into_iter().flatten().zip(&self.rows) {
            if let Some(figures) = row.figures() {
                put_figures(&figures, json);
                json["p50_to_bare"] = json!(self.ratio(row, "bare"));
                json["p50_to_bwrap"] = json!(self.ratio(row, "bwrap"));
            }
        }
        value["goals"] = goal::all(self).iter().map(goal::Goal::to_json).collect();
        value
    }

    pub(crate) fn from_json(value: &Value) -> Option<Report> {
        let word = |key: &str| value[key].as_str().map(str::to_owned);
        let memory = match &value["memory"] {
            Value::Null => None,
            memory => Some(match memory["failed"].as_str() {
                Some(why) => Err(why.to_owned()),
                None => Ok(Memory::from_json(memory)?),
            }),
        };
        Some(Report {
            mode: Mode::of_name(&value["mode"])?,
            rows: value["rows"].as_array()?.iter().map(Row::from_json).collect::<Option<_>>()?,
            memory,
            level: word("level")?,
            load_before: word("load_before")?,
            load_after: word("load_after")?,
        })
    }

    /// A pass that did not come about.
    pub(crate) fn failed(mode: Mode, why: &str) -> Report {
        let outcome = Outcome::Failed(why.to_owned());
        let row = Row { measure: Measure::First, contender: "library".into(), outcome };
        let load = machine::load();
        let (load_before, load_after) = (load.clone(), load);
        Report { mode, rows: vec![row], memory: None, level: "unknown".into(), load_before, load_after }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report with these samples, in microseconds.
    pub(crate) fn report(rows: &[(Measure, &str, &[u64])]) -> Report {
        let row = |(measure, contender, samples): &(Measure, &str, &[u64])| Row {
            measure: *measure,
            contender: (*contender).to_owned(),
            outcome: Outcome::Sampled(Samples::from_nanoseconds(
                samples.iter().map(|us| us * 1000).collect(),
            )),
        };
        let rows = rows.iter().map(row).collect();
        let (load_before, load_after) = ("0.10".to_owned(), "0.20".to_owned());
        Report { mode: Mode::Root, rows, memory: None, level: "full".into(), load_before, load_after }
    }

    #[test]
    fn what_the_second_pass_tells_is_what_the_first_reads() {
        let mut report =
            report(&[(Measure::First, "bare", &[1, 2, 3]), (Measure::Exec, "library-in-guest", &[])]);
        let row = |outcome| Row { measure: Measure::Python, contender: "bwrap".into(), outcome };
        report.rows.push(row(Outcome::Missing("not installed".into())));
        report.rows.push(row(Outcome::Failed("no".into())));
        report.memory = Some(Err("no memory".into()));
        let again = Report::from_json(&report.to_json()).unwrap();
        assert_eq!(again.rows, report.rows);
        assert_eq!(again.memory, report.memory);
        assert!(!again.is_whole());
    }

    #[test]
    fn ratios_stay_within_a_measure() {
        let report = report(&[
            (Measure::First, "bare", &[100]),
            (Measure::First, "library", &[250]),
            (Measure::Exec, "library", &[120]),
        ]);
        assert_eq!(report.ratio(&report.rows[1], "bare"), Some(2.5));
        assert_eq!(report.ratio(&report.rows[2], "bare"), None);
        assert!(report.is_whole());
    }
}
