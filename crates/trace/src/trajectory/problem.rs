//! What is wrong with somebody's file, and where.

use std::fmt;

use super::json::Part;
use super::limits::PROBLEMS_MAX;

/// One thing that is wrong, or odd, with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line of the file, from 1.
    pub line: Option<u64>,
    /// The step (of an event log, the event), from 1.
    pub step: Option<u64>,
    /// Where in the document, like `steps[2].params`.
    pub path: String,
    /// What is wrong there.
    pub what: String,
    /// Whether the file cannot be used because of it. The others are only told.
    pub fatal: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        if let Some(line) = self.line {
            write!(f, "line {line}")?;
            before = ", ";
        }
        if let Some(step) = self.step {
            write!(f, "{before}step {step}")?;
            before = ", ";
        }
        if !self.path.is_empty() {
            write!(f, "{before}{}", self.path)?;
            before = ", ";
        }
        let between = if before.is_empty() { "" } else { ": " };
        write!(f, "{between}{}", self.what)
    }
}

/// Problems of one trajectory as they are found: the place in the document is turned into a line later, by
/// whoever has the text.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    pub(crate) found: Vec<(Vec<Part>, Problem)>,
    pub(crate) untold: u64,
    pub(crate) fatal: bool,
}

impl Problems {
    /// Something that makes the file unusable.
    pub(crate) fn error(&mut self, at: &[Part], what: impl Into<String>) {
        self.push(at, what.into(), true);
    }

    /// Something that is only told.
    pub(crate) fn warning(&mut self, at: &[Part], what: impl Into<String>) {
        self.push(at, what.into(), false);
    }

    fn push(&mut self, at: &[Part], what: String, fatal: bool) {
        self.fatal |= fatal;
        if self.found.len() >= PROBLEMS_MAX {
            self.untold += 1;
            return;
        }
        let index = at.iter().find_map(|part| match part {
            Part::Index(index) => Some(*index as u64 + 1),
            Part::Key(_) => None,
        });
        let problem = Problem { line: None, step: index, path: written(at), what, fatal };
        self.found.push((at.to_vec(), problem));
    }
}

/// A place in a document, as people write it.
fn written(at: &[Part]) -> String {
    let mut out = String::new();
    for part in at {
        match part {
            Part::Index(index) => out.push_str(&format!("[{index}]")),
            Part::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.extend(key.chars().take(60).filter(|c| !c.is_control()));
            }
        }
    }
    out
}
