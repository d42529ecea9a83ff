//! The goals of the design, beside what was measured. They are told as met or not; nothing fails for them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pace;
use crate::report::{Measure, Report};
use crate::sample::Figures;

/// A goal, and how it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    /// The bound.
    pub(crate) bound: Bound,
    pub(crate) unit: &'static str,
    /// By p50 and by min, or why there is no figure.
    pub(crate) found: Result<(f64, Option<f64>), &'static str>,
}

/// Which way is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// Goals that are not measured here, but by a walk of their own.
pub(crate) const LATER: &str = "snapshot, reset and fork are measured by `glass-bench state`, recording (≤ 2 %) by \
    `glass-bench record`, a warm Python context (≤ 5 ms) by `glass-bench code`";

impl Goal {
    /// Whether it is met by p50; nothing without a figure.
    pub(crate) fn met(&self) -> Option<bool> {
        let (p50, _) = self.found.ok()?;
        Some(match self.bound {
            Bound::AtMost(bound) => p50 <= bound,
            Bound::AtLeast(bound) => p50 >= bound,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let (sign, bound) = match self.bound {
            Bound::AtMost(bound) => ("at_most", bound),
            Bound::AtLeast(bound) => ("at_least", bound),
        };
        json!({
            "what": self.what, sign: bound, "unit": self.unit, "p50": self.found.ok().map(|(p50, _)| p50),
            "min": self.found.ok().and_then(|(_, min)| min), "met": self.met(), "why_not": self.found.err(),
        })
    }
}

/// How the goals stand.
#[expect(clippy::too_many_lines, reason = "one straight list")]
pub(crate) fn all(report: &Report) -> Vec<Goal> {
    use Measure::{Exec, First};
    let figures = |measure, name| report.figures(measure, name).ok_or("not measured");
    let ratio = |(measure, one), (other_measure, other)| {
        Ok(times(figures(measure, one)?, figures(other_measure, other)?))
    };
    let memory = match &report.memory {
        Some(Ok(memory)) => Ok((memory.all_told_kib() / 1024.0, None)),
        _ => Err("not measured"),
    };
    vec![
        Goal {
            what: "create to first result, cold",
            bound: Bound::AtMost(4.0),
            unit: "ms",
            found: figures(First, "library").map(ms),
        },
        Goal {
            what: "  the same from a box that was begun ahead",
            bound: Bound::AtMost(1.5),
            unit: "ms",
            found: figures(First, "library-begun").map(ms),
        },
        Goal {
            what: "  cold, to `bwrap --unshare-all`",
            bound: Bound::AtMost(0.6),
            unit: "×",
            found: ratio((First, "library"), (First, "bwrap")),
        },
        Goal {
            what: "exec in a live box to a bare spawn",
            bound: Bound::AtMost(1.15),
            unit: "×",
            found: ratio((Exec, "library"), (Exec, "bare")),
        },
        Goal {
            what: "  the same over HTTP, on a connection that is kept",
            bound: Bound::AtMost(1.0),
            unit: "ms",
            found: figures(Exec, "http").map(ms),
        },
        Goal {
            what: "  the same at the design's pace (a bare spawn in 0.6 ms)",
            bound: Bound::AtMost(1.0),
            unit: "ms",
            found: figures(Exec, "http").and_then(|http| Ok(paced(http, figures(Exec, "bare")?))),
        },
        Goal {
            what: "memory of an idle box, all told",
            bound: Bound::AtMost(1.5),
            unit: "MiB",
            found: memory,
        },
        Goal {
            what: "`docker run` to create and first result",
            bound: Bound::AtLeast(100.0),
            unit: "×",
            found: ratio((First, "docker"), (First, "library")),
        },
        Goal {
            what: "`docker exec` to exec",
            bound: Bound::AtLeast(50.0),
            unit: "×",
            found: ratio((Exec, "docker"), (Exec, "library")),
        },
        Goal {
            what: "exec in a live container to exec in a live box",
            bound: Bound::AtMost(2.0),
            unit: "×",
            found: ratio((Exec, "in-container"), (Exec, "library")),
        },
    ]
}

/// By p50 and by min.
type Found = (f64, Option<f64>);

fn ms(figures: Figures) -> Found {
    (figures.p50.as_secs_f64() * 1e3, Some(figures.min.as_secs_f64() * 1e3))
}

fn times(one: Figures, other: Figures) -> Found {
    let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64().max(1e-9);
    (ratio(one.p50, other.p50), Some(ratio(one.min, other.min)))
}

/// As if a bare spawn took what the design says.
fn paced(one: Figures, bare: Figures) -> Found {
    let ms = |time: Duration, spawn| pace::at_pace(time.as_secs_f64() * 1e3, spawn);
    (ms(one.p50, bare.p50), Some(ms(one.min, bare.min)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn goals_are_judged_by_the_median() {
        let report = report(&[
            (Measure::First, "library", &[3000, 5000, 6000]),
            (Measure::First, "bwrap", &[9000, 10000, 11000]),
            (Measure::First, "docker", &[600_000]),
        ]);
        let goals = all(&report);
        let met: Vec<Option<bool>> = goals.iter().map(Goal::met).collect();
        assert_eq!(met, [Some(false), None, Some(true), None, None, None, None, Some(true), None, None]);
        assert_eq!(goals[0].found, Ok((5.0, Some(3.0))));
        assert_eq!(goals[1].found, Err("not measured"));
    }
}
