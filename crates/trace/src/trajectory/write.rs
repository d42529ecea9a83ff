//! Writing trajectories in any format, and telling what would not come back.

use serde_json::Value;

use super::formats::{Format, native_document};
use super::loss::{Loss, losses};
use super::model::Trajectory;
use super::problem::Problems;

/// How a file is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One document, for people: indented.
    Document,
    /// One value in one line, so that others can follow.
    Line,
}

impl Shape {
    /// How files of a format are laid out, if there is nothing against it.
    pub fn of(format: Format) -> Self {
        if format.is_lines() { Shape::Line } else { Shape::Document }
    }
}

/// The bytes of a trajectory in this format, a newline behind them, and everything that would not come back.
pub fn write(trajectory: &Trajectory, format: Format, shape: Shape) -> (Vec<u8>, Vec<Loss>) {
    if format == Format::Glasshouse {
        return (native_document(trajectory, shape == Shape::Document), Vec::new());
    }
    let value = format.encode(trajectory);
    let bytes = text(&value, shape);
    let again = format.decode(value, &mut Problems::default());
    (bytes, losses(format, trajectory, &again))
}

fn text(value: &Value, shape: Shape) -> Vec<u8> {
    let mut text = match shape {
        Shape::Document => format!("{value:#}"),
        Shape::Line => value.to_string(),
    };
    text.push('\n');
    text.into_bytes()
}
