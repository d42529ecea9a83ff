//! The medians against the number of files, drawn: what does not depend on it is a flat line.

use std::fmt::Write as _;

use super::report::{Pass, Verb};

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 320.0;
/// Room for the axes, and for the names of the lines at the right.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 45.0;
/// Ends of the axes, as powers of ten: files, and milliseconds.
const FILES: (f64, f64) = (2.0, 6.0);
const MILLISECONDS: (f64, f64) = (-1.0, 5.0);

fn colour(verb: Verb) -> &'static str {
    match verb {
        Verb::Snapshot => "#0072b2",
        Verb::Held => "#999999",
        Verb::Restore => "#56b4e9",
        Verb::Reset => "#009e73",
        Verb::Fork => "#cc79a7",
        Verb::Copy => "#d55e00",
        Verb::Commit => "#e69f00",
    }
}

fn x(files: f64) -> f64 {
    LEFT + (files.log10() - FILES.0) / (FILES.1 - FILES.0) * (WIDTH - LEFT - RIGHT)
}

fn y(ms: f64) -> f64 {
    let share = (ms.log10() - MILLISECONDS.0) / (MILLISECONDS.1 - MILLISECONDS.0);
    HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
}

/// One panel for each pass.
pub(super) fn svg(passes: &[Pass]) -> String {
    let mut text = String::new();
    // Nothing fails that writes to a string.
    let _ = writeln!(
        text,
        "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{}' font-family='sans-serif' font-size='11'>",
        HEIGHT * passes.len() as f64
    );
    let _ = writeln!(text, "<rect width='100%' height='100%' fill='white'/>");
    for (n, pass) in passes.iter().enumerate() {
        let _ = writeln!(text, "<g transform='translate(0 {})'>", HEIGHT * n as f64);
        axes(&mut text, pass);
        lines(&mut text, pass);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

fn axes(text: &mut String, pass: &Pass) {
    let title = escaped(&format!("{}, home on {}", pass.mode.name(), pass.disk));
    let _ = writeln!(text, "<text x='{LEFT}' y='20' font-size='13'>{title}</text>");
    for power in FILES.0 as i32..=FILES.1 as i32 {
        let at = x(10f64.powi(power));
        let _ = writeln!(
            text,
            "<text x='{at:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            HEIGHT - BOTTOM + 16.0,
            10u64.pow(power as u32)
        );
    }
    for power in MILLISECONDS.0 as i32..=MILLISECONDS.1 as i32 {
        let (at, ms) = (y(10f64.powi(power)), 10f64.powi(power));
        let _ = writeln!(
            text,
            "<line x1='{LEFT}' x2='{:.1}' y1='{at:.1}' y2='{at:.1}' stroke='#dddddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{ms} ms</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<text x='{:.1}' y='{:.1}' text-anchor='middle'>files in the box</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - BOTTOM + 34.0
    );
}

fn lines(text: &mut String, pass: &Pass) {
    let bytes = pass.rows.iter().map(|row| row.bytes).min();
    for verb in Verb::ALL.into_iter().filter(|verb| *verb != Verb::Held) {
        let rows = pass.rows.iter().filter(|row| row.verb == verb && Some(row.bytes) == bytes);
        let mut points: Vec<(usize, f64)> = rows.filter_map(|row| Some((row.files, row.p50_ms()?))).collect();
        points.sort_unstable_by_key(|(files, _)| *files);
        let Some(&(files, ms)) = points.last() else { continue };
        let places: Vec<String> =
            points.iter().map(|&(files, ms)| format!("{:.1},{:.1}", x(files as f64), y(ms))).collect();
        let colour = colour(verb);
        let _ = writeln!(text, "<polyline points='{}' fill='none' stroke='{colour}'/>", places.join(" "));
        for &(files, ms) in &points {
            let _ = writeln!(
                text,
                "<circle cx='{:.1}' cy='{:.1}' r='3' fill='{colour}'><title>{} {ms:.3} ms</title></circle>",
                x(files as f64),
                y(ms),
                verb.name()
            );
        }
        let _ = writeln!(
            text,
            "<text x='{:.1}' y='{:.1}' fill='{colour}'>{} {ms:.2}</text>",
            x(files as f64) + 6.0,
            y(ms) + 4.0,
            verb.name()
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::pass;
    use super::*;

    #[test]
    fn what_costs_the_same_is_drawn_flat() {
        let text = svg(&[pass(&[
            (Verb::Snapshot, 100, 4, 700),
            (Verb::Snapshot, 10_000, 4, 700),
            (Verb::Copy, 100, 4, 2000),
            (Verb::Copy, 10_000, 4, 200_000),
        ])]);
        let heights = |colour: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.contains("polyline") && line.contains(colour)).unwrap();
            let points = line.split('\'').nth(1).unwrap();
            points.split(' ').map(|point| point.split_once(',').unwrap().1.to_owned()).collect()
        };
        let (flat, steep) = (heights(colour(Verb::Snapshot)), heights(colour(Verb::Copy)));
        assert_eq!(flat[0], flat[1]);
        assert_ne!(steep[0], steep[1]);
    }
}
