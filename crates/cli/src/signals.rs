//! Signals that others send us.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::session::Part;

/// What a signal asks of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// To end, by this signal.
    End(i32),
    /// The terminal has another size.
    Resized,
    /// We were stopped, and go on.
    Continued,
}

/// The signals that are ours to handle, from the moment this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Told, Signal)>,
    /// How often we were told to end.
    ends: u32,
}

/// We were told to end twice, and did not wait for what was going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Impatient {
    /// By this signal.
    pub(crate) signal: i32,
}

impl Signals {
    /// Those that would end us and, where the command has a terminal, those that concern ours.
    pub(crate) fn of(part: Part) -> io::Result<Signals> {
        const SIGCONT: i32 = 18;
        let mut ends = vec![SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit()];
        // Whoever starts us with nohup wants us and the command to outlive the terminal.
        if !is_ignored(SignalKind::hangup()) {
            ends.push(SignalKind::hangup());
        }
        let mut kinds: Vec<_> = ends.into_iter().map(|kind| (Told::End(kind.as_raw_value()), kind)).collect();
        if part.tty {
            kinds.push((Told::Resized, SignalKind::window_change()));
            kinds.push((Told::Continued, SignalKind::from_raw(SIGCONT)));
        }
        let streams =
            kinds.into_iter().map(|(told, kind)| Ok((told, signal(kind)?))).collect::<io::Result<_>>()?;
        Ok(Signals { streams, ends: 0 })
    }

    /// The next one. May be dropped at any point.
    pub(crate) async fn next(&mut self) -> Told {
        let told = poll_fn(|cx| {
            for (told, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*told);
                }
            }
            Poll::Pending
        })
        .await;
        if matches!(told, Told::End(_)) {
            self.ends += 1;
        }
        told
    }

    /// Whether we were told to end more than once.
    pub(crate) fn insist(&self) -> bool {
        self.ends > 1
    }

    /// Waits for `work` until we are told to end: it may take as long as it likes. By which signal, if we were.
    pub(crate) async fn unless_told<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                told = self.next() => if let Told::End(signal) = told {
                    return Err(signal);
                }
            }
        }
    }

    /// Waits for `work` although we are told to end, because it is short and should not be left half done.
    /// Whoever tells us twice need not wait. Says by which signal we were told to end meanwhile.
    pub(crate) async fn through<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<(T, Option<i32>), Impatient> {
        let mut work = pin!(work);
        let mut ended_by = None;
        loop {
            tokio::select! {
                done = &mut work => return Ok((done, ended_by)),
                told = self.next() => if let Told::End(signal) = told {
                    if self.insist() {
                        return Err(Impatient { signal });
                    }
                    ended_by = Some(signal);
                }
            }
        }
    }
}

/// Whether our parent wanted us not to hear a signal.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}
