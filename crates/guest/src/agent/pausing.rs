//! A box that is paused: nothing in it runs but us.
//!
//! ```text
//!            pause: everything is stopped as for a hold          resume, or a reset
//!  running ──────────────────────────────────────────▶ paused ─────────────────────▶ running
//!                                                        │ commands, files, ports: refused at once
//!                                                        │ hold (snapshot, diff, …): as ever, and leaves it paused
//!                                                        └ end of the box's life, of its owner: as ever
//! ```
//! We stay awake: whoever asks for something is told why not, and the box's time goes on. That of its commands does not:
//! their deadlines move by as long as they stood still. The host sees the state by a lock, which is ours as long as we live,
//! so that nobody has to remember it.

use super::*;

/// What is said to whoever wants something done meanwhile.
pub(super) const REFUSED: &str = "the box is paused; `glass resume` lets it go on";

/// What was stopped.
#[derive(Debug)]
pub(super) struct Pause {
    since: Instant,
    /// By a signal, in this order.
    stopped: Vec<i32>,
    /// By their cgroups.
    frozen: bool,
}

/// Whether a request would have to move something.
pub(super) fn is_refused(request: &Request) -> bool {
    match request {
        Request::Exec(_)
        | Request::File { .. }
        | Request::Carry { .. }
        | Request::Signal { .. }
        | Request::CreateContext(_)
        | Request::InterruptContext { .. }
        | Request::RestartContext { .. }
        | Request::Dial { .. } => true,
        Request::Hello(_)
        | Request::Attach { .. }
        | Request::Kill { .. }
        | Request::Resize(_)
        | Request::Execs
        | Request::Contexts
        | Request::DeleteContext { .. }
        | Request::Unrecorded
        | Request::Recorded { .. }
        | Request::Hold { .. }
        | Request::Top { .. }
        | Request::Walk
        | Request::Release { .. }
        | Request::Ports
        | Request::Pause
        | Request::Resume
        | Request::Shutdown
        | Request::Answer { .. }
        | Request::Ping => false,
    }
}

impl Agent {
    pub(super) fn pause_all(&mut self, n: usize, stream: u32) -> Result<()> {
        if self.pause.is_some() {
            self.reply(n, stream, &Reply::Ok);
            return Ok(());
        }
        let wish =
            holding::Wish { kill: false, stop: true, top: false, settle: false, pause: true, same: false };
        self.hold(n, stream, wish)
    }

    /// Everything stands still.
    pub(super) fn paused(&mut self, stopped: Vec<i32>, frozen: bool) {
        self.pause = Some(Pause { since: Instant::now(), stopped, frozen });
        self.end_tunnels(FailureKind::Paused, REFUSED);
        self.show_paused(true);
    }

    /// Lets everything go on that was paused, if it was.
    pub(super) fn resume_all(&mut self) {
        let Some(Pause { since, stopped, frozen }) = self.pause.take() else { return };
        let stood = since.elapsed();
        for exec in self.execs.values_mut().filter(|exec| exec.main.is_none()) {
            exec.deadline = exec.deadline.map(|at| at + stood);
            exec.kill_at = exec.kill_at.map(|at| at + stood);
        }
        self.let_go(stopped, frozen);
        self.show_paused(false);
    }

    /// Lets go what was stopped.
    pub(super) fn let_go(&self, stopped: Vec<i32>, frozen: bool) {
        if frozen {
            self.tracker.freeze(false);
        }
        // Children before those who wait for them, who would take them for stopped.
        for pid in stopped.into_iter().rev() {
            let _ = process::signal_pid(pid, rustix::process::Signal::CONT.as_raw());
        }
    }

    /// Whether time passes for a command: not for one that stands still.
    pub(super) fn has_moments(&self, exec: &Exec) -> bool {
        self.pause.is_none() || exec.main.is_some()
    }

    fn show_paused(&self, paused: bool) {
        if let Some(alive) = &self.alive {
            // Where it cannot be shown, we say so to whoever asks.
            let _ = descriptor::mark(alive.as_fd(), paused);
        }
    }
}
