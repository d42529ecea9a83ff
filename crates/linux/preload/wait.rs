//! What waits for a time.
//!
//! A stretch of time is waited for as the kernel counts it, and has then passed on our clock as well. A moment was
//! computed from our clock, of which the kernel knows nothing: it is translated. So a wait takes as long as it would
//! without us, somebody who is woken earlier does not see the clock jump, and a loop that waits until the clock shows
//! something ends when it should.

use core::ffi::{c_int, c_long, c_uint, c_void};

use crate::clock::{self, Clock, Moment, Timespec, Timeval, pass};
use crate::kernel::{ENOSYS, ETIMEDOUT, call, errno, next, number, set_errno, told};
use crate::random;

const TIMER_ABSTIME: c_int = 1;

/// There is no such function to go on to, which no C library that we know of lacks.
fn missing() -> c_int {
    set_errno(ENOSYS);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nanosleep(stretch: *const Timespec, rest: *mut Timespec) -> c_int {
    let Some(next) = next!(nanosleep, fn(*const Timespec, *mut Timespec) -> c_int) else { return missing() };
    // SAFETY: the caller's pointers go where he meant them to go.
    let answer = unsafe { next(stretch, rest) };
    if answer == 0 {
        // SAFETY: the kernel has read it.
        pass(unsafe { *stretch }.stretch());
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    id: c_int,
    flags: c_int,
    time: *const Timespec,
    rest: *mut Timespec,
) -> c_int {
    let next = next!(clock_nanosleep, fn(c_int, c_int, *const Timespec, *mut Timespec) -> c_int);
    let Some(next) = next else { return ENOSYS };
    let clock = Clock::of(id).filter(|clock| *clock != Clock::Cpu);
    if flags & TIMER_ABSTIME != 0
        && let Some(clock) = clock
        // SAFETY: the caller's: a moment, or null.
        && let Some(moment) = unsafe { time.as_ref() }.filter(|moment| moment.is_valid())
    {
        let moment = Moment::of(*moment, clock);
        let id = if clock == Clock::Wall { 0 } else { 1 };
        // SAFETY: the moment is ours and lives as long as the call.
        let answer = unsafe { next(id, flags, &raw const moment.real, rest) };
        if answer == 0 {
            moment.came();
        }
        return answer;
    }
    // SAFETY: the caller's pointers go where he meant them to go.
    let answer = unsafe { next(id, flags, time, rest) };
    if answer == 0 && flags & TIMER_ABSTIME == 0 {
        // SAFETY: the kernel has read it.
        pass(unsafe { *time }.stretch());
    }
    answer
}

#[unsafe(no_mangle)]
extern "C" fn sleep(seconds: c_uint) -> c_uint {
    let Some(next) = next!(sleep, fn(c_uint) -> c_uint) else { return seconds };
    // SAFETY: the function takes a number.
    let rest = unsafe { next(seconds) };
    if rest == 0 {
        pass(u64::from(seconds) * 1_000_000_000);
    }
    rest
}

#[unsafe(no_mangle)]
extern "C" fn usleep(micros: c_uint) -> c_int {
    let Some(next) = next!(usleep, fn(c_uint) -> c_int) else { return missing() };
    // SAFETY: the function takes a number.
    let answer = unsafe { next(micros) };
    if answer == 0 {
        pass(u64::from(micros) * 1000);
    }
    answer
}

/// Nothing happened for so many milliseconds.
fn in_vain(answer: c_int, millis: c_int) -> c_int {
    if answer == 0 && millis > 0 {
        pass(millis as u64 * 1_000_000);
    }
    answer
}

/// The same, with a stretch that may be null: then somebody waited for ever.
fn in_vain_for(answer: c_int, stretch: Option<u64>) -> c_int {
    if answer == 0 {
        pass(stretch.unwrap_or(0));
    }
    answer
}

#[unsafe(no_mangle)]
unsafe extern "C" fn poll(files: *mut c_void, count: usize, millis: c_int) -> c_int {
    let Some(next) = next!(poll, fn(*mut c_void, usize, c_int) -> c_int) else { return missing() };
    // SAFETY: the caller's pointers go where he meant them to go.
    in_vain(unsafe { next(files, count, millis) }, millis)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    files: *mut c_void,
    count: usize,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    let next = next!(ppoll, fn(*mut c_void, usize, *const Timespec, *const c_void) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the caller's pointers go where he meant them to go.
    let answer = unsafe { next(files, count, time, mask) };
    // SAFETY: the caller's: a stretch, or null.
    in_vain_for(answer, unsafe { time.as_ref() }.map(|time| time.stretch()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    reads: *mut c_void,
    writes: *mut c_void,
    others: *mut c_void,
    time: *mut Timeval,
) -> c_int {
    let next = next!(select, fn(c_int, *mut c_void, *mut c_void, *mut c_void, *mut Timeval) -> c_int);
    let Some(next) = next else { return missing() };
    // Looked at before: the kernel writes there what is left of it.
    // SAFETY: the caller's: a stretch, or null.
    let stretch = unsafe { time.as_ref() }.map(Timeval::stretch);
    // SAFETY: the caller's pointers go where he meant them to go.
    in_vain_for(unsafe { next(count, reads, writes, others, time) }, stretch)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    reads: *mut c_void,
    writes: *mut c_void,
    others: *mut c_void,
    time: *const Timespec,
    mask: *const c_void,
) -> c_int {
    type Pointer = *mut c_void;
    let next = next!(pselect, fn(c_int, Pointer, Pointer, Pointer, *const Timespec, *const c_void) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the caller's pointers go where he meant them to go.
    let answer = unsafe { next(count, reads, writes, others, time, mask) };
    // SAFETY: the caller's: a stretch, or null.
    in_vain_for(answer, unsafe { time.as_ref() }.map(|time| time.stretch()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(epoll: c_int, events: *mut c_void, max: c_int, millis: c_int) -> c_int {
    let Some(next) = next!(epoll_wait, fn(c_int, *mut c_void, c_int, c_int) -> c_int) else {
        return missing();
    };
    // SAFETY: the caller's pointers go where he meant them to go.
    in_vain(unsafe { next(epoll, events, max, millis) }, millis)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut c_void,
    max: c_int,
    millis: c_int,
    mask: *const c_void,
) -> c_int {
    let next = next!(epoll_pwait, fn(c_int, *mut c_void, c_int, c_int, *const c_void) -> c_int);
    let Some(next) = next else { return missing() };
    // SAFETY: the caller's pointers go where he meant them to go.
    in_vain(unsafe { next(epoll, events, max, millis, mask) }, millis)
}

/// Waits for something until a moment. `go_on` is told the moment as the kernel counts.
fn until(time: *const Timespec, clock: Option<Clock>, go_on: impl FnOnce(*const Timespec) -> c_int) -> c_int {
    // SAFETY: the caller's: a moment, or null.
    let Some(moment) = unsafe { time.as_ref() }.copied().filter(|moment| moment.is_valid()) else {
        return go_on(time);
    };
    let moment = Moment::of(moment, clock.unwrap_or_else(|| Clock::of_moment(moment)));
    let answer = go_on(&raw const moment.real);
    // Functions of threads answer with the error, those of semaphores set it.
    if answer == ETIMEDOUT || answer == -1 && errno() == ETIMEDOUT {
        moment.came();
    }
    answer
}

/// Functions that wait until a moment, their last argument. On which clock, the moment itself tells.
macro_rules! waits_until {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type,)* time: *const Timespec) -> c_int {
            let Some(next) = next!($name, fn($($type,)* *const Timespec) -> c_int) else {
                return ENOSYS;
            };
            // SAFETY: the caller's arguments go where he meant them to go; the moment is his or ours.
            until(time, None, |time| unsafe { next($($arg,)* time) })
        }
    )*};
}

/// The same, with the clock named before the moment. The kernel's own has the same number.
macro_rules! waits_until_on {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type,)* id: c_int, time: *const Timespec) -> c_int {
            let Some(next) = next!($name, fn($($type,)* c_int, *const Timespec) -> c_int) else {
                return ENOSYS;
            };
            // SAFETY: the caller's arguments go where he meant them to go; the moment is his or ours.
            until(time, Clock::of(id), |time| unsafe { next($($arg,)* id, time) })
        }
    )*};
}

waits_until! {
    pthread_cond_timedwait(condition: *mut c_void, mutex: *mut c_void);
    pthread_mutex_timedlock(mutex: *mut c_void);
    pthread_rwlock_timedrdlock(lock: *mut c_void);
    pthread_rwlock_timedwrlock(lock: *mut c_void);
    pthread_timedjoin_np(thread: usize, result: *mut c_void);
    sem_timedwait(semaphore: *mut c_void);
    cnd_timedwait(condition: *mut c_void, mutex: *mut c_void);
    mtx_timedlock(mutex: *mut c_void);
}

waits_until_on! {
    pthread_cond_clockwait(condition: *mut c_void, mutex: *mut c_void);
    pthread_mutex_clocklock(mutex: *mut c_void);
    pthread_rwlock_clockrdlock(lock: *mut c_void);
    pthread_rwlock_clockwrlock(lock: *mut c_void);
    sem_clockwait(semaphore: *mut c_void);
}

/// A timer: when first, and how often then.
#[repr(C)]
#[derive(Clone, Copy)]
struct Timer {
    again: Timespec,
    first: Timespec,
}

/// A timer that was to strike at a moment, as one that strikes after a stretch of time. Whether it was.
fn from_now(timer: *const Timer, flags: c_int) -> Option<Timer> {
    const SHORTEST: u64 = 1;
    // SAFETY: the caller's: a timer, or null.
    let timer =
        unsafe { timer.as_ref() }.filter(|timer| flags & TIMER_ABSTIME != 0 && timer.first.is_valid())?;
    // All zeros stop it.
    if timer.first.stretch() == 0 {
        return None;
    }
    let moment = Moment::of(timer.first, Clock::of_moment(timer.first));
    Some(Timer { first: Timespec::of(moment.stretch.max(SHORTEST) as i64), ..*timer })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_settime(
    file: c_int,
    flags: c_int,
    timer: *const Timer,
    old: *mut Timer,
) -> c_int {
    let next = next!(timerfd_settime, fn(c_int, c_int, *const Timer, *mut Timer) -> c_int);
    let Some(next) = next else { return missing() };
    match from_now(timer, flags) {
        // SAFETY: the timer is ours and lives as long as the call.
        Some(timer) => unsafe { next(file, 0, &raw const timer, old) },
        // SAFETY: the caller's pointers go where he meant them to go.
        None => unsafe { next(file, flags, timer, old) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timer_settime(
    id: *mut c_void,
    flags: c_int,
    timer: *const Timer,
    old: *mut Timer,
) -> c_int {
    let next = next!(timer_settime, fn(*mut c_void, c_int, *const Timer, *mut Timer) -> c_int);
    let Some(next) = next else { return missing() };
    match from_now(timer, flags) {
        // SAFETY: the timer is ours and lives as long as the call.
        Some(timer) => unsafe { next(id, 0, &raw const timer, old) },
        // SAFETY: the caller's pointers go where he meant them to go.
        None => unsafe { next(id, flags, timer, old) },
    }
}

/// System calls by number: Rust's standard library and others wait for moments like this, and ask for random bytes.
/// The C function takes any number of arguments; as registers they are these.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    const FUTEX_COMMAND: c_long = 127;
    const FUTEX_WAIT_BITSET: c_long = 9;
    const FUTEX_WALL: c_long = 256;
    let arguments = [a, b, c, d, e, f];
    // SAFETY: the arguments are what the caller means this call to have.
    if let Some(answer) = unsafe { clock::by_number(number, arguments) } {
        return answer;
    }
    if number == number::GETRANDOM {
        // SAFETY: as above.
        return unsafe { random::getrandom(a as *mut c_void, b as usize, c as c_uint) } as c_long;
    }
    if number == number::FUTEX && b & FUTEX_COMMAND == FUTEX_WAIT_BITSET && d != 0 {
        let clock = if b & FUTEX_WALL != 0 { Clock::Wall } else { Clock::Up };
        return until(d as *const Timespec, Some(clock), |time| {
            // SAFETY: as above; the moment is the caller's or ours.
            told(unsafe { call(number, [a, b, c, time as c_long, e, f]) }) as c_int
        })
        .into();
    }
    // SAFETY: as above.
    told(unsafe { call(number, arguments) })
}
