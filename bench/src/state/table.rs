//! What a person reads.

use super::options::Options;
use super::report::{Goal, Pass, Row, Verb};
use crate::machine::Machine;
use crate::pace;
use crate::report::Outcome;
use crate::table::{NONE, milliseconds, table};

pub(super) fn all(machine: &Machine, options: &Options, passes: &[Pass]) -> String {
    let mut lines = machine.lines();
    lines.push(format!(
        "{} rounds, every contender once in each, in shuffled order (seed {}); times in ms, goals for p50",
        options.common.rounds, options.common.seed
    ));
    for pass in passes {
        lines.push(String::new());
        lines.push(format!("== {}, home on {} (load average {})", pass.mode.name(), pass.disk, pass.load));
        lines.extend(times(pass));
        let growth = |verb: Verb| Some(format!("{} × {:.2}", verb.name(), pass.growth(verb)?));
        let growths: Vec<String> = Verb::ALL.into_iter().filter_map(growth).collect();
        if !growths.is_empty() {
            lines.push(format!(
                "at the design's pace: what the goal bounds, as if a bare spawn took {} ms (p50)",
                pace::SPAWN_MS
            ));
            lines.push(format!("from the smallest tree to the largest: {}", growths.join(", ")));
        }
    }
    lines.join("\n")
}

fn times(pass: &Pass) -> Vec<String> {
    let mut rows = Vec::new();
    let mut last = None;
    for row in &pass.rows {
        if last.replace((row.files, row.bytes)) != Some((row.files, row.bytes)) {
            rows.push(vec![heading(row)]);
        }
        rows.push(line(pass, row));
    }
    table(&["", "min", "p50", "p99", "goal", "", "at the design's pace"], &rows)
}

fn heading(row: &Row) -> String {
    match row.verb.is_read() {
        true => format!("{} files, each read once in the box, on a fresh root", row.files),
        false => format!("{} files, {} KiB changed", row.files, row.bytes / 1024),
    }
}

fn line(pass: &Pass, row: &Row) -> Vec<String> {
    let label = match row.verb {
        Verb::Held => "  of it, in the runtime",
        Verb::Fork => "fork (snapshot and create)",
        Verb::Digest => "digest of 10 more changes",
        Verb::Walk => "  a bare walk over what is new",
        Verb::DigestCold => "digest, nothing known before",
        Verb::ReadFlat => "written at once",
        Verb::ReadDeep => "written with a snapshot after each",
        verb => verb.name(),
    };
    let mut cells = vec![format!("  {label}")];
    match row.figures() {
        Some(f) => cells.extend([f.min, f.p50, f.p99].map(milliseconds)),
        None => cells.extend([NONE; 3].map(String::from)),
    }
    cells.push(match row.verb.goal() {
        Some(Goal::Milliseconds(most)) => format!("≤ {most}"),
        Some(Goal::MillisecondsOver(most, _)) => format!("≤ {most} + walk"),
        Some(Goal::Times(most, _)) => format!("≤ {most} ×"),
        None => String::new(),
    });
    cells.push(match (&row.outcome, pass.judged(row)) {
        (Outcome::Sampled(_), Some((found, most))) if found <= most => "met".into(),
        (Outcome::Sampled(_), Some(_)) => "not met".into(),
        (Outcome::Sampled(_), None) => String::new(),
        (Outcome::Missing(why), _) => why.clone(),
        (Outcome::Failed(why), _) => format!("FAILED: {why}"),
    });
    cells.extend(pass.at_pace(row).map(|ms| format!("{ms:.2}")));
    cells
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::pass;
    use super::*;

    #[test]
    fn goals_stand_beside_the_figures() {
        let lines = times(&pass(&[(Verb::Snapshot, 100, 4096, 700), (Verb::Reset, 100, 4096, 1500)]));
        let line = |part: &str| lines.iter().find(|line| line.contains(part)).unwrap();
        assert!(
            line("snapshot").trim_end().ends_with(" met") && line("snapshot").contains("≤ 0.8 "),
            "{lines:?}"
        );
        assert!(line("reset").trim_end().ends_with("≤ 1  not met"), "{lines:?}");
        assert!(line("100 files").contains("4 KiB"), "{lines:?}");
        let spawn = (Verb::Spawn, 100, 4096, 1200);
        let lines = times(&pass(&[(Verb::Reset, 100, 4096, 1500), spawn]));
        assert!(lines.iter().any(|line| line.contains("not met") && line.ends_with(" 0.75")), "{lines:?}");
    }
}
