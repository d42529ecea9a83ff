//! How far a measurement is: a line on stderr that is overwritten, where somebody looks at it. Elsewhere each row that is
//! done is a line, so that a log shows that it goes on.

use std::io::{self, IsTerminal as _, Write};

/// Where that is told.
pub(crate) struct Progress<W> {
    out: W,
    terminal: bool,
}

impl Progress<io::Stderr> {
    pub(crate) fn on_stderr() -> Progress<io::Stderr> {
        let out = io::stderr();
        Progress { terminal: out.is_terminal(), out }
    }
}

// Nobody needs this so much as to fail for it: what cannot be written is left out.
impl<W: Write> Progress<W> {
    /// What is being done, on a terminal.
    pub(crate) fn show(&mut self, text: &str) {
        if self.terminal {
            let _ = write!(self.out, "\r\x1b[K{text}");
            let _ = self.out.flush();
        }
    }

    /// Takes that line away again.
    pub(crate) fn clear(&mut self) {
        self.show("");
    }

    /// A row is done. A terminal is shown the whole table in the end.
    pub(crate) fn done(&mut self, row: &str) {
        match self.terminal {
            true => self.clear(),
            false => {
                let _ = writeln!(self.out, "{row}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(terminal: bool) -> String {
        let mut progress = Progress { out: Vec::new(), terminal };
        progress.show("round 1 of 2");
        progress.show("round 2 of 2");
        progress.done("a row");
        String::from_utf8(progress.out).unwrap()
    }

    #[test]
    fn a_log_has_a_line_for_each_row_and_nothing_else() {
        assert_eq!(told(false), "a row\n");
    }

    #[test]
    fn a_terminal_has_one_line_that_is_gone_in_the_end() {
        let told = told(true);
        assert!(
            told.contains("round 1 of 2") && !told.contains('\n') && told.ends_with("\r\x1b[K"),
            "{told:?}"
        );
    }
}
