//! The library that is preloaded into the programs of a deterministic box: a clock and random numbers that are the same
//! in every run.
//!
//! The kernel has one clock for everybody, programs read it without a system call, and no filter sees that. So the
//! functions of the C library that tell the time are taken over here, for each dynamic program that starts with
//! `LD_PRELOAD`. A clock that does not go by the kernel's has a price: whoever computes a moment from it and waits for
//! that moment would wait for years, or not at all. So all that waits is taken over, too ([`wait`]).
//!
//! | module | takes over |
//! |---|---|
//! | [`clock`] | what tells the time |
//! | [`wait`] | what waits for a time |
//! | [`random`] | what gives random bytes |
//! | [`kernel`] | nothing: how the kernel, and the function that would have been called, are asked |
//!
//! This is no module of the crate beside it: `crates/guest/build.rs` compiles it alone, without the standard library, and
//! the guest carries the result. It needs nothing at load time but a C library, glibc or musl, and allocates nothing.

#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

mod clock;
mod kernel;
mod random;
mod wait;

/// Nothing here panics; a library without the standard one has to say what would happen.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        kernel::exit_now();
    }
}
