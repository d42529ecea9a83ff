//! Tables that line up, on a terminal cut to its width.

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};

use crate::escape::plain;

/// Rows under a header, one line each. `width` cuts the lines, which the last column should be able to bear.
pub(crate) fn lines(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let mut table = bare();
    table.set_header(header.iter().copied());
    fill(&mut table, rows);
    finished(&mut table).map(|line| clipped(&line, width)).collect()
}

/// Rows without a header, whose cells are wrapped to `width`.
pub(crate) fn wrapped(rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let mut table = bare();
    fill(&mut table, rows);
    if let Some(width) = width {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(width.min(u16::MAX.into()) as u16);
    }
    finished(&mut table).collect()
}

fn bare() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

fn fill(table: &mut Table, rows: &[Vec<String>]) {
    for row in rows {
        table.add_row(row.iter().map(|cell| plain(cell).into_owned()));
    }
}

fn finished(table: &mut Table) -> impl Iterator<Item = String> {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned())
}

/// At most `width` characters, the last of them a sign if there were more.
fn clipped(line: &str, width: Option<usize>) -> String {
    match width.map(|width| width.max(1)) {
        Some(width) if line.chars().count() > width => line.chars().take(width - 1).chain(['…']).collect(),
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect()
    }

    #[test]
    fn columns_line_up_and_lines_are_cut() {
        let rows = rows(&[&["1", "running", "sleep 100"], &["12", "日本", "x"]]);
        let table = ["ID  STATE    COMMAND", "1   running  sleep 100", "12  日本     x"];
        assert_eq!(lines(&["ID", "STATE", "COMMAND"], &rows, None), table);
        assert_eq!(lines(&["ID", "STATE", "COMMAND"], &rows, Some(16))[1], "1   running  sl…");
    }

    #[test]
    fn a_cell_cannot_break_the_table() {
        let rows = rows(&[&["a\nb\x1b[2J", "x"]]);
        assert_eq!(lines(&["N", "M"], &rows, None), ["N            M", "a\\nb\\x1b[2J  x"]);
    }

    #[test]
    fn long_cells_are_wrapped_to_the_width() {
        let rows = rows(&[&["ok", "one two three four five six seven"]]);
        let lines = wrapped(&rows, Some(20));
        assert!(lines.len() > 1 && lines.iter().all(|line| line.len() <= 20), "{lines:?}");
        assert_eq!(wrapped(&rows, None).len(), 1);
    }
}
