//! The user's terminal: its size, and raw mode that is always taken back.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};

use glasshouse_sandbox::TtySize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Takes back what a box may have done: colours, a hidden cursor, mouse and focus reports, marked pasting.
const SWITCH_OFF: &[u8] =
    b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l";

/// The size of the terminal, from whichever of our ends is one.
pub(crate) fn size() -> Option<TtySize> {
    [rustix::stdio::stdout(), rustix::stdio::stdin(), rustix::stdio::stderr()]
        .into_iter()
        .find_map(|fd| tcgetwinsize(fd).ok())
        .filter(|size| size.ws_row > 0 && size.ws_col > 0)
        .map(|size| TtySize { rows: size.ws_row, cols: size.ws_col })
}

/// How wide lines on stdout may be, if it is a terminal.
pub(crate) fn width() -> Option<usize> {
    let terminal = io::stdout().is_terminal();
    size().filter(|_| terminal).map(|size| size.cols.into())
}

/// While it lives, every key goes to us as it is.
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Switches the terminal on stdin to raw mode; nothing if stdin is none.
    pub(crate) fn enter() -> io::Result<Option<RawMode>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let raw = RawMode { before: tcgetattr(rustix::stdio::stdin())? };
        raw.again()?;
        Ok(Some(raw))
    }

    /// Once more, after somebody stopped us and a shell took the terminal back.
    pub(crate) fn again(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw)?)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if io::stdout().is_terminal() {
            let _ = io::stdout().write_all(SWITCH_OFF).and_then(|()| io::stdout().flush());
        }
        // What is still unread may be an answer that the box coaxed out of the terminal; the shell that comes
        // next must not take it for a command.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Flush, &self.before);
    }
}

impl fmt::Debug for RawMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RawMode")
    }
}
