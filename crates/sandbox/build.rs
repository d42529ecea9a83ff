//! Builds the guest (static, small), the search and what speaks with kernels, and leaves them where they are embedded.
//!
//! A second cargo, in a target directory of its own, because the guest needs another profile and must not be linked
//! with the features that the host's crates turn on. It uses the same lock file and the same registry cache, so an
//! ordinary `cargo build` is all that anybody has to type.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let workspace = here.join("../..");
    for watched in ["guest", "protocol", "linux"] {
        println!("cargo::rerun-if-changed={}", workspace.join("crates").join(watched).display());
    }
    println!("cargo::rerun-if-changed={}", workspace.join("Cargo.lock").display());
    println!("cargo::rerun-if-changed=build.rs");
    let target_dir = shared_target_dir(&out);
    let status = Command::new(env::var_os("CARGO").expect("cargo sets CARGO"))
        .args(["build", "--package", "glasshouse-guest", "--bins", "--profile", "guest"])
        .args(["--target", &target, "--manifest-path"])
        .arg(workspace.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        // What the outer build was told about flags and wrappers (clippy, coverage) is not meant for the guest.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static -Crelocation-model=static")
        .status()
        .expect("cannot start cargo to build the guest");
    assert!(status.success(), "the guest does not build; its errors are above");
    let programs = [
        ("glass-guest", "GLASSHOUSE_GUEST"),
        ("glass-search", "GLASSHOUSE_SEARCH"),
        ("glass-kernel", "GLASSHOUSE_KERNEL"),
    ];
    for (name, variable) in programs {
        let built = target_dir.join(&target).join("guest").join(name);
        let embedded = out.join(name);
        std::fs::copy(&built, &embedded).unwrap_or_else(|e| panic!("cannot copy {name}: {e}"));
        println!("cargo::rustc-env={variable}={}", embedded.display());
    }
}

/// One directory for all profiles and kinds of builds in this target directory, so that the guest is built once.
fn shared_target_dir(out: &Path) -> PathBuf {
    // OUT_DIR is <target>/<profile>/build/<package>-<hash>/out.
    out.ancestors().nth(4).unwrap_or(out).join("guest")
}
