//! Threads for what blocks: kept for a while when they have nothing to do, because to start one takes longer than most of
//! the work.
//!
//! ```text
//!  started ──▶ works ──▶ waits ──▶ works …
//!                          └── nothing came for a while: ends
//! ```
//! Not tokio's own threads: those panic where the host has no thread left to give.

use std::any::Any;
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::limits::BLOCKING_THREADS;

/// How long a thread waits for more work.
const WAIT_MAX: Duration = Duration::from_secs(2);

type Work = Box<dyn FnOnce() + Send>;

/// Those that wait, the one that worked last at the end: its memory is the warmest.
static WAITING: Mutex<Vec<(u64, SyncSender<Work>)>> = Mutex::new(Vec::new());

/// Runs what blocks where it holds up nobody.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (answer, wait) = oneshot::channel();
    take_turn(Box::new(move || drop(answer.send(work()))), wait).await
}

/// The same for work that leaves something to do when its answer was given. What comes with the answer tells when that is done.
pub(crate) async fn blocking_and_after<T: Send + 'static, After: FnOnce()>(
    work: impl FnOnce() -> Result<(T, After)> + Send + 'static,
) -> Result<(T, oneshot::Receiver<()>)> {
    let (answer, wait) = oneshot::channel();
    let (over, done) = oneshot::channel();
    take_turn(
        Box::new(move || match work() {
            Ok((value, after)) => {
                let _ = answer.send(Ok(value));
                after();
                let _ = over.send(());
            }
            Err(e) => drop(answer.send(Err(e))),
        }),
        wait,
    )
    .await
    .map(|value| (value, done))
}

/// Room for work: a piece of it each.
static ROOM: Semaphore = Semaphore::const_new(BLOCKING_THREADS);

/// Has work done when there is room for it, and waits for its answer.
async fn take_turn<T>(work: Work, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    let broken_off = |_| Error::new(ErrorKind::Failed, "the work was broken off");
    let room = ROOM.acquire().await.map_err(|_| Error::new(ErrorKind::Failed, "no more work is taken"))?;
    // It is the work's, and not its caller's: one who has gone takes no thread along.
    give(Box::new(move || {
        let _room = room;
        work();
    }))?;
    answer.await.map_err(broken_off)?
}

/// Has somebody else take part in work, if a thread can be had. Nothing may hang on it.
pub(crate) fn lend(work: Box<dyn FnOnce() + Send>) {
    let _ = give(work);
}

thread_local! {
    /// What the work of this thread has left to be let go of. None: it lets go of all at once.
    static LEFT: RefCell<Option<Vec<Box<dyn Any>>>> = const { RefCell::new(None) };
}

/// For work that is short: what it lets go of by [`drop_later`] waits for its answer.
pub(crate) fn answer_first() {
    LEFT.set(Some(Vec::new()));
}

/// Lets go of something, behind the answer of work that wants that, else at once. To close a connection has its other end run, and
/// not whoever waits.
pub(crate) fn drop_later(thing: impl Any) {
    LEFT.with_borrow_mut(|left| {
        if let Some(left) = left {
            left.push(Box::new(thing));
        }
    });
}

/// Gives work to a thread that waits, or to a new one.
fn give(mut work: Work) -> Result<()> {
    loop {
        let waiting = locked().pop();
        let Some((_, thread)) = waiting else { break };
        match thread.send(work) {
            Ok(()) => return Ok(()),
            // It ended just now.
            Err(unsent) => work = unsent.0,
        }
    }
    let thread = std::thread::Builder::new().name("glasshouse".into()).spawn(move || run(work));
    thread.map(drop).context("start a thread (is the limit of processes reached?)")
}

fn run(first: Work) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let mut work = first;
    loop {
        work();
        drop(LEFT.take());
        let (sender, receiver) = sync_channel(1);
        locked().push((number, sender));
        match next(number, &receiver) {
            Some(more) => work = more,
            None => return,
        }
    }
}

fn next(number: u64, receiver: &Receiver<Work>) -> Option<Work> {
    match receiver.recv_timeout(WAIT_MAX) {
        Ok(work) => Some(work),
        Err(RecvTimeoutError::Disconnected) => None,
        Err(RecvTimeoutError::Timeout) => {
            let mut waiting = locked();
            let at = waiting.iter().position(|(other, _)| *other == number);
            match at {
                Some(at) => {
                    waiting.remove(at);
                    None
                }
                // Somebody has taken our end, and is about to send.
                None => {
                    drop(waiting);
                    receiver.recv().ok()
                }
            }
        }
    }
}

fn locked() -> MutexGuard<'static, Vec<(u64, SyncSender<Work>)>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_row(rounds: usize) -> Vec<std::thread::ThreadId> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        let work = || blocking(|| Ok(std::thread::current().id()));
        (0..rounds).map(|_| runtime.block_on(work()).expect("it is done")).collect()
    }

    #[test]
    fn a_thread_that_waits_is_used_again() {
        // Others use the same threads meanwhile; of a hundred pieces of work in a row, some meet again.
        let mut threads = in_a_row(100);
        threads.sort_by_key(|id| format!("{id:?}"));
        threads.dedup();
        assert!(threads.len() < 100, "each had a thread of its own");
    }

    #[test]
    fn what_work_leaves_is_let_go_of_behind_its_answer() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        let (gate, wait) = sync_channel::<()>(0);
        let (thing, gone) = sync_channel::<()>(0);
        struct Left(Receiver<()>, Option<SyncSender<()>>);
        impl Drop for Left {
            fn drop(&mut self) {
                let _ = self.0.recv();
                self.1.take();
            }
        }
        // Let go of before its answer, it would wait for ever.
        let answered = runtime.block_on(blocking(move || {
            answer_first();
            drop_later(Left(wait, Some(thing)));
            Ok("answered")
        }));
        assert_eq!(answered.expect("it is answered"), "answered");
        drop(gate);
        assert!(gone.recv().is_err(), "and let go of then");
        let (thing, gone) = sync_channel::<()>(0);
        let at_once = runtime.block_on(blocking(move || {
            drop_later(thing);
            Ok(gone.recv().is_err())
        }));
        assert!(at_once.expect("it is answered"), "at once where nobody has asked for that");
    }

    #[test]
    fn work_whose_caller_has_gone_takes_room_until_it_is_done() {
        const GONE: usize = 8;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        let (begin, begun) = sync_channel(GONE);
        let gates = [(); GONE].map(|()| {
            let (open, gate) = sync_channel::<()>(0);
            let begin = begin.clone();
            let work = blocking(move || {
                let _ = begin.send(());
                let _ = gate.recv();
                Ok(())
            });
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    done = work => done.expect("it waits at its gate"),
                    // Others may have all the room for now.
                    () = async { while begun.try_recv().is_err() { tokio::task::yield_now().await } } => {}
                }
            });
            open
        });
        assert!(ROOM.available_permits() <= BLOCKING_THREADS - GONE);
        drop(gates);
    }

    #[test]
    fn work_that_panics_is_an_error_and_takes_no_other_along() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime can be made");
        let panics = runtime.block_on(blocking(|| -> Result<()> { panic!("on purpose") }));
        assert_eq!(panics.expect_err("it was broken off").kind(), ErrorKind::Failed);
        assert_eq!(in_a_row(10).len(), 10);
    }
}
