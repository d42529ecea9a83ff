//! Random bytes that are the same in every run: a stream for each process, told apart by its number.
//!
//! Nothing here is fit for keys, and the box says so. Static programs get `/dev/urandom` instead, which is a file of such
//! bytes; it has an end, and begins alike for everybody. Who opens it through the C library begins somewhere else, and
//! finds no end.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::{call, next, number, pid, set_errno};

/// Any number does. The guest fills `/dev/urandom` by the same rule (`crates/guest/src/build/pin.rs`).
const SEED: u64 = 0x676c_6173_7368_6f75;
/// How far into the file of random bytes somebody may begin; the guest makes it twice as long.
const FILE_BEGIN_MAX: u64 = 512 * 1024;
const ENTROPY_MAX: usize = 256;
const EIO: c_int = 5;

/// Words that this process has been given; a forked one goes on counting, under its own number.
static GIVEN: AtomicU64 = AtomicU64::new(0);

/// The mixing of splitmix64: each number gives another, and neighbours have nothing in common.
fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(SEED);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn word() -> u64 {
    mix(mix(pid()) ^ GIVEN.fetch_add(1, Ordering::Relaxed))
}

/// Fills the caller's memory.
///
/// # Safety
/// There have to be so many bytes.
unsafe fn fill(to: *mut u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        for byte in word().to_le_bytes().into_iter().take(bytes - done) {
            // SAFETY: below `bytes`, of which the caller says that they are there. Volatile, because the compiler would
            // make a call of the C library of it, and that may be on its way here.
            unsafe { to.add(done).write_volatile(byte) };
            done += 1;
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getrandom(to: *mut c_void, bytes: usize, _flags: c_uint) -> isize {
    // SAFETY: the caller's.
    unsafe { fill(to.cast(), bytes) };
    bytes as isize
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getentropy(to: *mut c_void, bytes: usize) -> c_int {
    if bytes > ENTROPY_MAX {
        set_errno(EIO);
        return -1;
    }
    // SAFETY: the caller's.
    unsafe { fill(to.cast(), bytes) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn arc4random() -> c_uint {
    word() as c_uint
}

#[unsafe(no_mangle)]
unsafe extern "C" fn arc4random_buf(to: *mut c_void, bytes: usize) {
    // SAFETY: the caller's.
    unsafe { fill(to.cast(), bytes) };
}

#[unsafe(no_mangle)]
extern "C" fn arc4random_uniform(bound: c_uint) -> c_uint {
    // The high half of a product: below the bound, and as even as 64 bits make it.
    (u128::from(word()) * u128::from(bound) >> 64) as c_uint
}

/// Whether a path is one of the two devices.
///
/// # Safety
/// It has to be a C string.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the caller says so.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path == b"/dev/urandom" || path == b"/dev/random"
}

/// Has somebody who has opened a device begin at a place of his own.
///
/// # Safety
/// The path has to be a C string if the file was opened.
unsafe fn opened(file: c_int, path: *const c_char) -> c_int {
    // SAFETY: the kernel has taken it for one.
    if file >= 0 && unsafe { is_device(path) } {
        // Whole words, and below half of the file.
        let place = word() % FILE_BEGIN_MAX & !7;
        // SAFETY: the call takes numbers.
        unsafe { call(number::LSEEK, [c_long::from(file), place as c_long, 0, 0, 0, 0]) };
    }
    file
}

/// Opening, by its many names. Those that take a mode take it always, as registers.
macro_rules! opens {
    ($($name:ident($($arg:ident: $type:ty),*) $path:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> c_int {
            let Some(next) = next!($name, fn($($type),*) -> c_int) else { return -1 };
            // SAFETY: the caller's arguments go where he meant them to go.
            let file = unsafe { next($($arg),*) };
            // SAFETY: if it was opened, the path is one.
            unsafe { opened(file, $path) }
        }
    )*};
}

opens! {
    open(path: *const c_char, flags: c_int, mode: c_uint) path;
    open64(path: *const c_char, flags: c_int, mode: c_uint) path;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) path;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) path;
    __open_2(path: *const c_char, flags: c_int) path;
    __open64_2(path: *const c_char, flags: c_int) path;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) path;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) path;
}

macro_rules! opens_streams {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut c_void {
            let Some(next) = next!($name, fn(*const c_char, *const c_char) -> *mut c_void) else {
                return core::ptr::null_mut();
            };
            // SAFETY: the caller's arguments go where he meant them to go.
            let stream = unsafe { next(path, mode) };
            if !stream.is_null()
                && let Some(fileno) = next!(fileno, fn(*mut c_void) -> c_int)
            {
                // SAFETY: a stream that has just been opened, and the path that it was opened by.
                unsafe { opened(fileno(stream), path) };
            }
            stream
        }
    )*};
}

opens_streams! {
    fopen;
    fopen64;
}

/// The end of a device is its beginning.
#[unsafe(no_mangle)]
unsafe extern "C" fn read(file: c_int, to: *mut c_void, bytes: usize) -> isize {
    let Some(next) = next!(read, fn(c_int, *mut c_void, usize) -> isize) else { return -1 };
    // SAFETY: the caller's arguments go where he meant them to go.
    let got = unsafe { next(file, to, bytes) };
    if got == 0 && bytes > 0 && is_open_device(file) {
        // SAFETY: the call takes numbers.
        unsafe { call(number::LSEEK, [c_long::from(file), 0, 0, 0, 0, 0]) };
        // SAFETY: as above.
        return unsafe { next(file, to, bytes) };
    }
    got
}

/// Whether an open file is one of the devices, by their numbers.
fn is_open_device(file: c_int) -> bool {
    /// Its beginning: device and inode. The whole is 144 bytes.
    type Stat = [u64; 18];
    const EMPTY_PATH: c_long = 0x1000;
    let look = |dir: c_long, path: &CStr, flags: c_long| {
        let mut stat: Stat = [0; 18];
        let arguments = [dir, path.as_ptr() as c_long, &raw mut stat as c_long, flags, 0, 0];
        // SAFETY: a C string, and room for the structure.
        let answer = unsafe { call(number::NEWFSTATAT, arguments) };
        (answer == 0).then_some((stat[0], stat[1]))
    };
    let own = look(c_long::from(file), c"", EMPTY_PATH);
    own.is_some() && (own == look(-100, c"/dev/urandom", 0) || own == look(-100, c"/dev/random", 0))
}
