//! Builds the library that programs of deterministic boxes preload, and leaves it where the guest embeds it.
//!
//! It is a shared library without the standard one, for programs of any C library, so it is no crate that cargo could
//! build beside the guest: the compiler is called once, and needs nothing but the linker that it has anyway.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let source = here.join("../linux/preload");
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build.rs");
    let library = out.join("preload.so");
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "preload"])
        .args(["-Dwarnings", "-Copt-level=s", "-Cpanic=abort", "-Ccodegen-units=1", "-Cstrip=symbols"])
        .args(["-Crelocation-model=pic", "-Ctarget-feature=-crt-static", "-Cforce-unwind-tables=no"])
        // No library is asked for at load time: the program has brought one.
        .args(["-Clink-arg=-nostdlib", "-Clink-arg=-nostartfiles"])
        .args(["--target", &env::var("TARGET").expect("cargo sets TARGET")])
        .arg("-o")
        .arg(&library)
        .arg(source.join("lib.rs"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut argument = std::ffi::OsString::from("-Clinker=");
        argument.push(linker);
        rustc.arg(argument);
    }
    let status = rustc.status().expect("cannot start rustc to build the preloaded library");
    assert!(status.success(), "the preloaded library does not build; its errors are above");
    println!("cargo::rustc-env=GLASSHOUSE_PRELOAD={}", library.display());
}
