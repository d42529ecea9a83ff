//! A clock that goes by what a program does: it begins at a fixed moment and moves on by a millisecond whenever it is
//! read, and by what was waited for ([`crate::wait`]).
//!
//! Where a process begins depends on what is the same in every run: the number of the command of the box
//! ([`COMMAND`], which the guest sets), and which process of the command it is. So time passes from command to command
//! and from process to process, also for a script that asks `date` again and again. A forked process goes on with its
//! parent's time.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::{call, next, number, pid, told};

/// 2030-01-01T00:00:00Z. Files have real times, which lie before it: a clock behind them makes `make` and `tar` complain
/// of files from the future, each time in other words.
const WALL_START: i64 = 1_893_456_000 * SECOND;
/// How long the machine has been up then.
const UP_START: i64 = 100 * SECOND;

/// In nanoseconds, the unit of everything here. Wide enough for two centuries; numbers twice as wide would need code for
/// their division that comes with more than we can load.
const SECOND: i64 = 1_000_000_000;
/// Moments after this are this one: still to come for everybody.
const SECONDS_MAX: i64 = 4_000_000_000;
/// Between two readings.
const TICK: u64 = 1_000_000;
/// Between two commands.
const COMMAND_SPAN: u64 = 1000 * SECOND as u64;
/// Between two processes of a command.
const PROCESS_SPAN: u64 = SECOND as u64 / 10;
/// The guest numbers the processes of a command from a multiple of this.
const PIDS_OF_COMMAND: u64 = 1000;
/// The variable with the command's number.
const COMMAND: &[u8] = b"GLASS_COMMAND=";

/// Where this process began, nanoseconds after the box did, and 1 more: 0 is not known yet.
static START: AtomicU64 = AtomicU64::new(0);
/// What has passed since.
static PASSED: AtomicU64 = AtomicU64::new(0);

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Timespec {
    seconds: i64,
    nanos: i64,
}

#[repr(C)]
pub(crate) struct Timeval {
    seconds: i64,
    micros: i64,
}

unsafe extern "C" {
    /// The environment, in both C libraries.
    static environ: *const *const c_char;
}

/// A clock of the kernel's that we have taken over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    Wall,
    Up,
    Cpu,
}

impl Clock {
    pub(crate) fn of(id: c_int) -> Option<Clock> {
        match id {
            0 | 5 | 8 | 11 => Some(Clock::Wall),
            1 | 4 | 6 | 7 | 9 => Some(Clock::Up),
            2 | 3 => Some(Clock::Cpu),
            _ => None,
        }
    }

    /// The one that a moment is meant on: they are decades apart.
    pub(crate) fn of_moment(moment: Timespec) -> Clock {
        const DECADES: i64 = 1_000_000_000;
        if moment.seconds > DECADES { Clock::Wall } else { Clock::Up }
    }

    /// Nanoseconds on this clock when nothing has passed in this process.
    fn origin(self) -> i64 {
        match self {
            Clock::Wall => WALL_START + start() as i64,
            Clock::Up => UP_START + start() as i64,
            Clock::Cpu => 0,
        }
    }

    /// The time, which moves on.
    fn read(self) -> i64 {
        self.origin().saturating_add((PASSED.fetch_add(TICK, Ordering::Relaxed) + TICK) as i64)
    }

    /// What must have passed in this process for this clock to show the moment.
    fn passed_at(self, moment: Timespec) -> u64 {
        (moment.nanos_all() - self.origin()).max(0) as u64
    }
}

impl Timespec {
    pub(crate) fn of(nanos: i64) -> Timespec {
        Timespec { seconds: nanos / SECOND, nanos: nanos % SECOND }
    }

    fn nanos_all(self) -> i64 {
        self.seconds.clamp(0, SECONDS_MAX) * SECOND + self.nanos.clamp(0, SECOND)
    }

    /// As a stretch of time; one that is no such thing is the kernel's to refuse.
    pub(crate) fn stretch(self) -> u64 {
        self.nanos_all() as u64
    }

    pub(crate) fn is_valid(self) -> bool {
        (0..SECOND).contains(&self.nanos)
    }
}

impl Timeval {
    pub(crate) fn stretch(&self) -> u64 {
        Timespec { seconds: self.seconds, nanos: self.micros.saturating_mul(1000) }.stretch()
    }
}

/// A moment on our clock, as the kernel's clock will show it.
pub(crate) struct Moment {
    /// On the kernel's clock.
    pub(crate) real: Timespec,
    /// From now.
    pub(crate) stretch: u64,
    passed: u64,
}

impl Moment {
    pub(crate) fn of(moment: Timespec, clock: Clock) -> Moment {
        let passed = clock.passed_at(moment);
        let stretch = passed.saturating_sub(PASSED.load(Ordering::Relaxed));
        let id = if clock == Clock::Wall { 0 } else { 1 };
        let mut now = Timespec { seconds: 0, nanos: 0 };
        // SAFETY: the kernel writes to a live timespec.
        unsafe { call(number::CLOCK_GETTIME, [id, &raw mut now as c_long, 0, 0, 0, 0]) };
        Moment { real: Timespec::of(now.nanos_all().saturating_add(stretch as i64)), stretch, passed }
    }

    /// It has been waited for.
    pub(crate) fn came(&self) {
        PASSED.fetch_max(self.passed, Ordering::Relaxed);
    }
}

/// A stretch of time has been waited for.
pub(crate) fn pass(nanos: u64) {
    PASSED.fetch_add(nanos, Ordering::Relaxed);
}

fn start() -> u64 {
    let known = START.load(Ordering::Relaxed);
    if known != 0 {
        return known - 1;
    }
    let start = command().wrapping_mul(COMMAND_SPAN) + pid() % PIDS_OF_COMMAND * PROCESS_SPAN;
    START.store(start + 1, Ordering::Relaxed);
    start
}

/// The number of the command that this process belongs to, as its environment tells; 0 if that was taken away.
fn command() -> u64 {
    // SAFETY: the C library keeps a list of C strings here that a null ends, or null.
    let mut at = unsafe { environ };
    while !at.is_null() {
        // SAFETY: within the list, whose end is looked for.
        let variable = unsafe { *at };
        if variable.is_null() {
            return 0;
        }
        // SAFETY: an entry of the list is a C string.
        let variable = unsafe { CStr::from_ptr(variable) }.to_bytes();
        if let Some(value) = variable.strip_prefix(COMMAND) {
            let digit = |number: u64, byte: &u8| {
                number.wrapping_mul(10).wrapping_add(u64::from(byte.wrapping_sub(b'0') % 10))
            };
            // Bounded, so that what follows cannot overflow: no box runs that many commands.
            return value.iter().take(6).fold(0, digit);
        }
        at = at.wrapping_add(1);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(id: c_int, to: *mut Timespec) -> c_int {
    match Clock::of(id) {
        Some(clock) if !to.is_null() => {
            // SAFETY: the caller's, and not null.
            unsafe { *to = Timespec::of(clock.read()) };
            0
        }
        // SAFETY: the kernel looks at the pointer itself.
        _ => told(unsafe { call(number::CLOCK_GETTIME, [c_long::from(id), to as c_long, 0, 0, 0, 0]) })
            as c_int,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn gettimeofday(to: *mut Timeval, zone: *mut c_void) -> c_int {
    if !zone.is_null() {
        // SAFETY: the caller's; two numbers, which have long been zero everywhere.
        unsafe { *zone.cast::<[c_int; 2]>() = [0, 0] };
    }
    if !to.is_null() {
        let now = Clock::Wall.read();
        // SAFETY: the caller's, and not null.
        unsafe { *to = Timeval { seconds: now / SECOND, micros: now % SECOND / 1000 } };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn time(to: *mut i64) -> i64 {
    let now = Clock::Wall.read() / SECOND;
    if !to.is_null() {
        // SAFETY: the caller's, and not null.
        unsafe { *to = now };
    }
    now
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timespec_get(to: *mut Timespec, base: c_int) -> c_int {
    let clock = match base {
        1 => Clock::Wall,
        2 => Clock::Up,
        _ => return 0,
    };
    // SAFETY: the caller's.
    unsafe { *to = Timespec::of(clock.read()) };
    base
}

/// CPU time in millionths of a second.
#[unsafe(no_mangle)]
extern "C" fn clock() -> c_long {
    Clock::Cpu.read() / 1000
}

/// `struct sysinfo` of Linux, as far as it differs from moment to moment.
#[repr(C)]
struct Machine {
    up_seconds: c_long,
    loads: [u64; 3],
    memory: u64,
    free: u64,
    shared: u64,
    buffers: u64,
    swap: u64,
    swap_free: u64,
    processes: u16,
    _padding: u16,
    memory_high: u64,
    free_high: u64,
    unit: u32,
}

/// The memory that a deterministic box is told of; `/proc/meminfo` says the same.
const MEMORY_BYTES: u64 = 4 << 30;

#[unsafe(no_mangle)]
unsafe extern "C" fn sysinfo(to: *mut c_void) -> c_int {
    let Some(next) = next!(sysinfo, fn(*mut c_void) -> c_int) else { return -1 };
    // SAFETY: the caller's pointer goes where he meant it to go.
    let answer = unsafe { next(to) };
    if answer == 0 {
        // SAFETY: the call succeeded, so there is room for the structure; its beginning is as described.
        let machine = unsafe { &mut *to.cast::<Machine>() };
        machine.up_seconds = Clock::Up.read() / SECOND;
        machine.loads = [0; 3];
        (machine.memory, machine.free, machine.unit) = (MEMORY_BYTES, MEMORY_BYTES / 2, 1);
        (machine.shared, machine.buffers, machine.swap, machine.swap_free) = (0, 0, 0, 0);
        (machine.processes, machine.memory_high, machine.free_high) = (1, 0, 0);
    }
    answer
}

/// What a program asks of the clock by the number of the call.
pub(crate) unsafe fn by_number(number: c_long, a: [c_long; 6]) -> Option<c_long> {
    match number {
        // SAFETY: the pointer is the caller's.
        number::CLOCK_GETTIME => Some(unsafe { clock_gettime(a[0] as c_int, a[1] as *mut Timespec) }.into()),
        // SAFETY: the pointers are the caller's.
        number::GETTIMEOFDAY => {
            Some(unsafe { gettimeofday(a[0] as *mut Timeval, a[1] as *mut c_void) }.into())
        }
        // SAFETY: the pointer is the caller's.
        number::TIME => Some(unsafe { time(a[0] as *mut i64) }),
        _ => None,
    }
}
