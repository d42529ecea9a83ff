//! The kernel, and the function that would have been called without us.

use core::arch::asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};

pub(crate) const ETIMEDOUT: c_int = 110;
pub(crate) const ENOSYS: c_int = 38;

/// Numbers of system calls. x86_64 is the one machine that boxes are made on.
pub(crate) mod number {
    use core::ffi::c_long;

    pub(crate) const LSEEK: c_long = 8;
    pub(crate) const GETPID: c_long = 39;
    pub(crate) const GETTIMEOFDAY: c_long = 96;
    pub(crate) const TIME: c_long = 201;
    pub(crate) const FUTEX: c_long = 202;
    pub(crate) const CLOCK_GETTIME: c_long = 228;
    pub(crate) const EXIT_GROUP: c_long = 231;
    pub(crate) const NEWFSTATAT: c_long = 262;
    pub(crate) const GETRANDOM: c_long = 318;
}

unsafe extern "C" {
    /// Both C libraries have it, under this name and of this shape.
    fn __errno_location() -> *mut c_int;
}

/// A system call: what the kernel answers, a negative error included.
///
/// # Safety
/// The arguments have to be what the call takes.
pub(crate) unsafe fn call(number: c_long, a: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: the kernel clobbers rcx and r11 only; what it does to memory is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            out("rcx") _, out("r11") _,
            options(nostack),
        );
    }
    result
}

/// The end of the process.
pub(crate) fn exit_now() {
    // SAFETY: the call takes a number and does not come back.
    unsafe { call(number::EXIT_GROUP, [127, 0, 0, 0, 0, 0]) };
}

/// The number of this process in its box.
pub(crate) fn pid() -> u64 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { call(number::GETPID, [0; 6]) as u64 }
}

/// An answer of the kernel as C functions give it: -1 and errno.
pub(crate) fn told(answer: c_long) -> c_long {
    if (-4095..0).contains(&answer) {
        set_errno(-answer as c_int);
        return -1;
    }
    answer
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the function has no condition; its answer is this thread's own and valid as long as the thread.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = value };
}

type Lookup = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type OldLookup = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void) -> *mut c_void;

/// The next function of this name after ours; null if there is none.
///
/// Weak: before glibc 2.34 `dlsym` is in a library that not every program has. There, libc has it under another name.
pub(crate) fn look_up(name: &CStr) -> *mut c_void {
    const AFTER_US: *mut c_void = -1isize as *mut c_void;
    let (lookup, old): (*const c_void, *const c_void);
    // SAFETY: reads two addresses that the loader has put into our table, null where it found nothing.
    unsafe {
        asm!(
            ".weak dlsym",
            ".weak _dl_sym",
            "mov {}, qword ptr [rip + dlsym@GOTPCREL]",
            "mov {}, qword ptr [rip + _dl_sym@GOTPCREL]",
            out(reg) lookup, out(reg) old,
            options(nostack, readonly, preserves_flags),
        );
    }
    if !lookup.is_null() {
        // SAFETY: the C library's dlsym has this type.
        let lookup: Lookup = unsafe { core::mem::transmute(lookup) };
        // SAFETY: the name is a C string; the handle is the one for "after the caller".
        return unsafe { lookup(AFTER_US, name.as_ptr()) };
    }
    if !old.is_null() {
        // SAFETY: glibc's _dl_sym has this type: dlsym, told by the third argument who asks.
        let old: OldLookup = unsafe { core::mem::transmute(old) };
        // SAFETY: as above; the third argument is an address of ours.
        return unsafe { old(AFTER_US, name.as_ptr(), look_up as *const c_void) };
    }
    core::ptr::null_mut()
}

/// The function that would have been called without us, looked up once: `next!(name, fn(types) -> type)`, an option.
macro_rules! next {
    ($name:ident, fn($($arg:ty),*) -> $out:ty) => {{
        use core::sync::atomic::{AtomicPtr, Ordering};
        static PLACE: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());
        let mut address = PLACE.load(Ordering::Relaxed);
        if address.is_null() {
            const NAME: &core::ffi::CStr =
                match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                };
            address = $crate::kernel::look_up(NAME);
            PLACE.store(address, Ordering::Relaxed);
        }
        // SAFETY: a function of this name has this type in every C library; null becomes None.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, Option<unsafe extern "C" fn($($arg),*) -> $out>>(address) }
    }};
}
pub(crate) use next;
