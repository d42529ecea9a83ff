//! Faults on purpose, for tests: makes one step of every plan of this process fail.

use std::sync::Mutex;

use glasshouse_protocol::plan::Fault;

static FAULT: Mutex<Option<Fault>> = Mutex::new(None);

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
