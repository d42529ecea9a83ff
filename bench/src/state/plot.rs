//! The medians against the number of files and against the bytes changed, drawn: what does not depend on it is a flat line.

use std::fmt::Write as _;

use super::report::{Pass, Row, Verb};

/// One panel; two stand side by side, of one pass.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 340.0;
const COLUMNS: usize = 2;
/// Room for the axes, and for the names of the lines at the right.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 160.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 50.0;
/// Names of lines are no closer than this.
const LABEL_HEIGHT: f64 = 14.0;

/// What is drawn, and how.
const LINES: [(Verb, &str); 8] = [
    (Verb::Snapshot, "#0072b2"),
    (Verb::Restore, "#56b4e9"),
    (Verb::Reset, "#009e73"),
    (Verb::Fork, "#cc79a7"),
    (Verb::Digest, "#7f6000"),
    (Verb::DigestCold, "#b59b00"),
    (Verb::Copy, "#d55e00"),
    (Verb::Commit, "#e69f00"),
];

/// What medians are drawn against: one panel each for every pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Against {
    /// The number of files, with the fewest bytes changed.
    Files,
    /// The bytes changed, with the fewest files.
    Bytes,
}

impl Against {
    const ALL: [Against; COLUMNS] = [Against::Files, Against::Bytes];

    fn of(self, row: &Row) -> usize {
        match self {
            Against::Files => row.files,
            Against::Bytes => row.bytes,
        }
    }

    /// What is the same for all points of a panel.
    fn fixed(self, row: &Row) -> usize {
        match self {
            Against::Files => row.bytes,
            Against::Bytes => row.files,
        }
    }

    /// From one mark of the axis to the next.
    fn step(self) -> f64 {
        match self {
            Against::Files => 10.0,
            Against::Bytes => 16.0,
        }
    }

    fn number(self, value: u64) -> String {
        match self {
            Against::Files => grouped(value),
            Against::Bytes => bytes(value),
        }
    }

    /// What stands below the axis.
    fn title(self, fixed: Option<usize>) -> String {
        let fixed = fixed.unwrap_or_default() as u64;
        match self {
            Against::Files => format!("files in the box, {} changed", bytes(fixed)),
            Against::Bytes => format!("bytes changed, {} files in the box", grouped(fixed)),
        }
    }
}

/// One line: medians in milliseconds against something.
struct Line {
    verb: Verb,
    colour: &'static str,
    points: Vec<(f64, f64)>,
}

/// One panel.
struct Panel {
    against: Against,
    /// What the other one is of files and bytes.
    fixed: Option<usize>,
    lines: Vec<Line>,
}

impl Panel {
    fn of(pass: &Pass, against: Against) -> Panel {
        let trees = || pass.rows.iter().filter(|row| !row.verb.is_read());
        let fixed = trees().map(|row| against.fixed(row)).min();
        let line = |&(verb, colour): &(Verb, &'static str)| {
            let rows = trees().filter(|row| row.verb == verb && Some(against.fixed(row)) == fixed);
            let point = |row: &Row| Some((against.of(row) as f64, row.p50_ms()?.max(1e-3)));
            let mut points: Vec<(f64, f64)> = rows.filter_map(point).filter(|(of, _)| *of > 0.0).collect();
            points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            Line { verb, colour, points }
        };
        let lines = LINES.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        Panel { against, fixed, lines }
    }
}

/// Ends of the axes: powers of the step from mark to mark, and of ten milliseconds.
struct Axes {
    against: Against,
    across: (i32, i32),
    ms: (i32, i32),
}

impl Axes {
    /// Wide enough for every panel of its kind, and as high as all, so that they can be compared.
    fn around(panels: &[Panel], against: Against) -> Axes {
        let all =
            || panels.iter().flat_map(|panel| panel.lines.iter().map(move |line| (panel.against, line)));
        let own =
            all().filter(|(of, _)| *of == against).flat_map(|(_, line)| &line.points).map(|point| point.0);
        let ms = all().flat_map(|(_, line)| &line.points).map(|point| point.1);
        Axes { against, across: span(own, against.step()), ms: span(ms, 10.0) }
    }

    fn x(&self, value: f64) -> f64 {
        let (from, to) = (f64::from(self.across.0), f64::from(self.across.1));
        LEFT + (value.log(self.against.step()) - from) / (to - from) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, ms: f64) -> f64 {
        let (from, to) = (f64::from(self.ms.0), f64::from(self.ms.1));
        HEIGHT - BOTTOM - (ms.log10() - from) / (to - from) * (HEIGHT - TOP - BOTTOM)
    }
}

/// The powers around all values. Also where nothing was measured, and where everything is the same.
fn span(values: impl Iterator<Item = f64>, base: f64) -> (i32, i32) {
    // What is a power is its own end, whatever a logarithm makes of it.
    let logs: Vec<f64> = values.map(|value| (value.log(base) * 1e6).round() / 1e6).collect();
    let least = logs.iter().copied().fold(f64::INFINITY, f64::min).floor();
    let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max).ceil();
    if least.is_finite() { (least as i32, (most as i32).max(least as i32 + 1)) } else { (0, 1) }
}

/// A row of panels for each pass.
pub(super) fn svg(passes: &[Pass]) -> String {
    let panel = |pass| Against::ALL.map(|against| Panel::of(pass, against));
    let panels: Vec<Panel> = passes.iter().flat_map(panel).collect();
    let axes = Against::ALL.map(|against| Axes::around(&panels, against));
    let mut text = String::new();
    // Nothing fails that writes to a string.
    let _ = writeln!(
        text,
        "<svg xmlns='http://www.w3.org/2000/svg' width='{}' height='{}' font-family='sans-serif' font-size='11'>",
        WIDTH * COLUMNS as f64,
        HEIGHT * passes.len().max(1) as f64
    );
    let _ = writeln!(text, "<rect width='100%' height='100%' fill='white'/>");
    for (n, panel) in panels.iter().enumerate() {
        let (pass, axes) = (&passes[n / COLUMNS], &axes[n % COLUMNS]);
        let (x, y) = (WIDTH * (n % COLUMNS) as f64, HEIGHT * (n / COLUMNS) as f64);
        let _ = writeln!(text, "<g transform='translate({x} {y})'>");
        draw_axes(&mut text, axes, (pass, panel.fixed));
        panel.lines.iter().for_each(|line| draw_line(&mut text, axes, line));
        draw_labels(&mut text, axes, &panel.lines);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

fn draw_axes(text: &mut String, axes: &Axes, (pass, fixed): (&Pass, Option<usize>)) {
    let title = escaped(&format!("{}, home on {}", pass.mode.name(), pass.disk));
    let _ = writeln!(text, "<text x='{LEFT}' y='24' font-size='13' font-weight='bold'>{title}</text>");
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for power in axes.across.0..=axes.across.1 {
        let value = axes.against.step().powi(power);
        let at = axes.x(value);
        let _ = writeln!(
            text,
            "<line x1='{at:.1}' x2='{at:.1}' y1='{TOP}' y2='{bottom:.1}' stroke='#eeeeee'/>\
             <text x='{at:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
            bottom + 16.0,
            axes.against.number(value.round() as u64)
        );
    }
    for power in axes.ms.0..=axes.ms.1 {
        let at = axes.y(10f64.powi(power));
        let _ = writeln!(
            text,
            "<line x1='{LEFT}' x2='{right:.1}' y1='{at:.1}' y2='{at:.1}' stroke='#dddddd'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='end'>{}</text>",
            LEFT - 8.0,
            at + 4.0,
            time(10f64.powi(power))
        );
    }
    let middle = (LEFT + right) / 2.0;
    let _ = writeln!(
        text,
        "<text x='{middle:.1}' y='{:.1}' text-anchor='middle'>{}</text>",
        bottom + 36.0,
        axes.against.title(fixed)
    );
}

fn draw_line(text: &mut String, axes: &Axes, Line { verb, colour, points }: &Line) {
    let places: Vec<String> =
        points.iter().map(|&(of, ms)| format!("{:.1},{:.1}", axes.x(of), axes.y(ms))).collect();
    let _ = writeln!(
        text,
        "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.5'/>",
        places.join(" ")
    );
    for &(of, ms) in points {
        let what = if axes.against == Against::Files { " files" } else { "" };
        let _ = writeln!(
            text,
            "<circle cx='{:.1}' cy='{:.1}' r='3' fill='{colour}'><title>{}, {}{what}: {}</title></circle>",
            axes.x(of),
            axes.y(ms),
            verb.name(),
            axes.against.number(of as u64),
            time(ms)
        );
    }
}

/// Names at the right, each beside the end of its line or as near as there is room.
fn draw_labels(text: &mut String, axes: &Axes, lines: &[Line]) {
    let mut ends: Vec<(f64, f64, &Line)> = Vec::new();
    for line in lines {
        if let Some(&(of, ms)) = line.points.last() {
            ends.push((axes.x(of), axes.y(ms), line));
        }
    }
    ends.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
    let places = spread(&ends.iter().map(|(_, y, _)| *y).collect::<Vec<_>>());
    let at = WIDTH - RIGHT + 14.0;
    for ((x, y, line), place) in ends.iter().zip(places) {
        let (colour, name) = (line.colour, line.verb.name());
        let ms = time(line.points.last().map_or(0.0, |(_, ms)| *ms));
        let (from, to, base) = (x + 4.0, at - 3.0, place + 4.0);
        let _ = writeln!(
            text,
            "<line x1='{from:.1}' y1='{y:.1}' x2='{to:.1}' y2='{place:.1}' stroke='{colour}' \
             stroke-opacity='0.4'/><text x='{at:.1}' y='{base:.1}' fill='{colour}'>{name} {ms}</text>"
        );
    }
}

/// Heights, sorted, moved apart as far as they have to be, within the panel.
fn spread(heights: &[f64]) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::with_capacity(heights.len());
    for &height in heights {
        let above = places.last().map_or(f64::NEG_INFINITY, |last| last + LABEL_HEIGHT);
        places.push(height.max(above));
    }
    let mut below = HEIGHT - BOTTOM;
    for place in places.iter_mut().rev() {
        *place = place.min(below);
        below = *place - LABEL_HEIGHT;
    }
    places
}

/// `0.75 ms`, `12 ms`, `3.4 s`: two digits that count.
fn time(ms: f64) -> String {
    let (value, unit) = if ms >= 1000.0 { (ms / 1000.0, "s") } else { (ms, "ms") };
    let digits = (1 - value.log10().floor() as i32).max(0) as usize;
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

/// `4 KiB`, `16 MiB`.
fn bytes(number: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let unit = (0..units.len()).rev().find(|unit| number >= 1 << (10 * unit)).unwrap_or(0);
    format!("{} {}", number >> (10 * unit), units[unit])
}

/// `10 000`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(" ")
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
        let colour = |verb| LINES.iter().find(|(other, _)| *other == verb).unwrap().1;
        let (flat, steep) = (heights(colour(Verb::Snapshot)), heights(colour(Verb::Copy)));
        assert_eq!(flat[0], flat[1]);
        assert_ne!(steep[0], steep[1]);
    }

    #[test]
    fn bytes_that_changed_have_a_panel_of_their_own() {
        let text = svg(&[pass(&[
            (Verb::Snapshot, 100, 4 << 10, 700),
            (Verb::Snapshot, 10_000, 4 << 10, 700),
            (Verb::Snapshot, 100, 256 << 10, 700),
            (Verb::Snapshot, 100, 16 << 20, 700),
        ])]);
        let points = |line: &str| line.split('\'').nth(1).unwrap().split(' ').count();
        let lines: Vec<usize> = text.lines().filter(|line| line.contains("polyline")).map(points).collect();
        assert_eq!(lines, [2, 3]);
        for mark in ["4 KiB<", "64 KiB<", "1 MiB<", "16 MiB<", ">files in the box, 4 KiB changed<"] {
            assert!(text.contains(mark), "{mark}: {text}");
        }
        assert!(!text.contains("256 MiB<"), "the axis ends with what was measured");
    }

    #[test]
    fn names_keep_their_distance_and_stay_in_the_panel() {
        let places = spread(&[50.0, 51.0, 52.0, 200.0, 289.0, 290.0, 290.0]);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LABEL_HEIGHT - 1e-9), "{places:?}");
        assert!(places.iter().all(|place| (TOP..=HEIGHT - BOTTOM).contains(place)), "{places:?}");
        assert_eq!((places[0], places[3]), (50.0, 200.0));
    }

    #[test]
    fn numbers_are_written_as_people_read_them() {
        let times = [0.1, 0.754, 1.0, 12.3, 100.0, 3400.0, 100_000.0].map(time);
        assert_eq!(times, ["0.1 ms", "0.75 ms", "1 ms", "12 ms", "100 ms", "3.4 s", "100 s"]);
        assert_eq!([1, 1000, 1_000_000].map(grouped), ["1", "1 000", "1 000 000"]);
        assert_eq!([1, 4096, 16 << 20].map(bytes), ["1 B", "4 KiB", "16 MiB"]);
    }

    #[test]
    fn nothing_measured_is_no_line() {
        assert!(!svg(&[pass(&[(Verb::ReadFlat, 1000, 0, 5)])]).contains("polyline"));
        assert!(svg(&[Pass::failed(crate::report::Mode::Root, "x", "no")]).ends_with("</svg>\n"));
    }
}
