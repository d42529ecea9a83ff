//! What a person reads.

use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::goal::{self, Bound, Goal};
use crate::machine::Machine;
use crate::memory::Memory;
use crate::options::Options;
use crate::report::{Measure, Outcome, Report, Row};
use crate::sample::Samples;

/// What stands for a figure that is not there.
pub(crate) const NONE: &str = "—";

pub(crate) fn all(machine: &Machine, options: &Options, reports: &[Report]) -> String {
    let mut lines = machine.lines();
    lines.push(format!(
        "{} rounds, every contender once in each, in shuffled order (seed {}); times in ms, ratios of p50",
        options.common.rounds, options.common.seed
    ));
    for report in reports {
        lines.push(String::new());
        lines.push(format!(
            "== {} (level {}; load average {} before, {} after)",
            report.mode.name(),
            report.level,
            report.load_before,
            report.load_after
        ));
        lines.extend(times(report));
        match &report.memory {
            Some(Ok(memory)) => lines.extend(memory_lines(memory)),
            Some(Err(why)) => lines.push(format!("memory: FAILED: {why}")),
            None => {}
        }
        lines.extend(goals(report, options));
    }
    lines.push(String::new());
    lines.push(goal::LATER.into());
    lines.join("\n")
}

/// A line of a table: a name, and the least, the median and nearly the most.
pub(crate) fn sampled(name: &str, samples: &Samples) -> Vec<String> {
    let mut cells = vec![format!("  {name}")];
    match samples.figures() {
        Some(figures) => cells.extend([figures.min, figures.p50, figures.p99].map(milliseconds)),
        None => cells.extend([NONE; 3].map(String::from)),
    }
    cells
}

fn heading(measure: Measure) -> &'static str {
    match measure {
        Measure::First => "create to first result of /bin/true",
        Measure::Exec => "exec of /bin/true in a live box",
        Measure::Life => "the life of our box (library)",
        Measure::Python => "python3 -c pass",
    }
}

fn label(row: &Row) -> String {
    let label = match (row.measure, row.contender.as_str()) {
        (_, "bare") => "bare spawn (vfork, exec)",
        (_, "bwrap") => "bwrap --unshare-all",
        (_, "runc") => "runc run",
        (_, "crun") => "crun run",
        (Measure::First, "docker") => "docker run --rm --network none",
        (_, "docker") => "docker exec",
        (Measure::First | Measure::Python, "library") => "glasshouse, library",
        (Measure::First, "library-begun") => "  from a box that was begun ahead",
        (_, "library-and-destroy") => "  and destroy",
        (Measure::First, "program") => "glass run",
        (Measure::Exec, "library") => "glasshouse, library, open connection",
        (_, "library-in-guest") => "  of it, fork to exit in the box",
        (Measure::Exec, "program") => "glass exec",
        (_, "create") => "create",
        (_, "first-exec") => "first exec",
        (_, "destroy") => "destroy",
        (_, "live") => "glasshouse, library, live box",
        (_, other) => other,
    };
    format!("  {label}")
}

fn times(report: &Report) -> Vec<String> {
    let mut rows = Vec::new();
    for measure in Measure::ALL {
        let of_measure: Vec<&Row> = report.rows.iter().filter(|row| row.measure == measure).collect();
        if !of_measure.is_empty() {
            rows.push(vec![heading(measure).to_owned()]);
            rows.extend(of_measure.into_iter().map(|row| line(report, row)));
        }
    }
    table(&["", "min", "p50", "p90", "p99", "× bare", "× bwrap", ""], &rows)
}

fn line(report: &Report, row: &Row) -> Vec<String> {
    let mut cells = vec![label(row)];
    match row.figures() {
        Some(f) => cells.extend([f.min, f.p50, f.p90, f.p99].map(milliseconds)),
        None => cells.extend([NONE; 4].map(String::from)),
    }
    cells.extend(
        ["bare", "bwrap"].map(|to| report.ratio(row, to).map_or(NONE.into(), |ratio| format!("{ratio:.2}"))),
    );
    cells.push(match &row.outcome {
        Outcome::Sampled(_) => String::new(),
        Outcome::Missing(why) => why.clone(),
        Outcome::Failed(why) => format!("FAILED: {why}"),
    });
    cells
}

pub(crate) fn milliseconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

fn memory_lines(memory: &Memory) -> Vec<String> {
    // Adding zero takes the sign off a zero.
    let kib = |kib: f64| format!("{:.0}", kib.round() + 0.0);
    let guest = match memory.guest_kib {
        Some(guest) => (kib(guest), String::new()),
        None => (NONE.into(), "a guest shows its memory to nobody but the host's root".into()),
    };
    let rows = [
        (
            "  less available memory (MemAvailable)",
            (kib(memory.available_kib), "other work disturbs it".to_owned()),
        ),
        ("  the parts that the kernel tells", (kib(memory.sum_kib()), String::new())),
        ("    guest (Pss)", guest),
        (
            "    slab",
            (kib(memory.slab_kib), format!("{} of it unreclaimable", kib(memory.unreclaimable_kib))),
        ),
        ("    page tables, stacks, per CPU", (kib(memory.other_kernel_kib), String::new())),
        ("    this process", (kib(memory.caller_kib), String::new())),
    ];
    let rows: Vec<Vec<String>> =
        rows.into_iter().map(|(what, (figure, note))| vec![what.to_owned(), figure, note]).collect();
    table(&[&format!("memory of {} idle boxes, each", memory.boxes), "KiB", ""], &rows)
}

/// Goals without a figure are shown only if all were to be measured.
fn goals(report: &Report, options: &Options) -> Vec<String> {
    let row = |goal: &Goal| {
        let bound = match goal.bound {
            Bound::AtMost(bound) => format!("≤ {bound} {}", goal.unit),
            Bound::AtLeast(bound) => format!("≥ {bound} {}", goal.unit),
        };
        let number = |number: Option<f64>| number.map_or(NONE.into(), |number| format!("{number:.2}"));
        let (p50, min) = goal.found.map_or((None, None), |(p50, min)| (Some(p50), min));
        let verdict = match (goal.met(), goal.found) {
            (Some(true), _) => "met",
            (Some(false), _) => "not met",
            (None, found) => found.err().unwrap_or_default(),
        };
        vec![format!("  {}", goal.what), bound, number(p50), number(min), verdict.into()]
    };
    let goals = goal::all(report);
    let rows: Vec<_> =
        goals.iter().filter(|goal| options.only.is_empty() || goal.found.is_ok()).map(row).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    table(&["goals of the design", "goal", "p50", "min", ""], &rows)
}

/// Columns that line up: words to the left, figures to the right, and remarks at the end.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header.iter().copied());
    for row in rows {
        let mut row = row.clone();
        row.resize(header.len(), String::new());
        table.add_row(row);
    }
    for (n, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if n > 0 && n + 1 < header.len() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn a_missing_contender_says_why() {
        let mut report = report(&[(Measure::First, "bare", &[1000]), (Measure::First, "library", &[2500])]);
        let outcome = Outcome::Missing("not installed".into());
        report.rows.push(Row { measure: Measure::First, contender: "crun".into(), outcome });
        let lines = times(&report);
        let line = |part: &str| lines.iter().find(|line| line.contains(part)).unwrap();
        assert!(line("crun").contains(NONE) && line("crun").ends_with("not installed"));
        assert!(line("library").contains("2.50"), "{lines:?}");
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["  a".to_owned(), "1.0".into(), "why".into()],
            vec!["  long name".to_owned(), "10.0".into()],
        ];
        assert_eq!(
            table(&["what", "min", ""], &rows),
            ["what          min", "  a           1.0  why", "  long name  10.0",]
        );
    }
}
