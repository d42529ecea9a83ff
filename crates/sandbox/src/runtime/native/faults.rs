//! Faults on purpose, for tests: makes one step of every plan of this process fail. And nothing ahead of time, for those that
//! look for what is left when nobody wants anything.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use glasshouse_protocol::plan::Fault;

static FAULT: Mutex<Option<Fault>> = Mutex::new(None);

static NOTHING_AHEAD: AtomicBool = AtomicBool::new(false);

/// No house of this process begins boxes before somebody wants them, or executes builders because one was made; or each does,
/// as it should.
pub fn make_nothing_ahead(nothing: bool) {
    NOTHING_AHEAD.store(nothing, Ordering::Relaxed);
}

pub(crate) fn nothing_ahead() -> bool {
    NOTHING_AHEAD.load(Ordering::Relaxed)
}

/// Makes the step at this place fail with this errno (0: sudden death) until it is cleared.
pub fn set(step: usize, errno: i32) {
    *lock() = Some(Fault { step, errno });
}

/// No more faults.
pub fn clear() {
    *lock() = None;
}

pub(in crate::runtime) fn current() -> Option<Fault> {
    *lock()
}

fn lock() -> std::sync::MutexGuard<'static, Option<Fault>> {
    FAULT.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
