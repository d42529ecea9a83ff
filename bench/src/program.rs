//! The program `glass`: where it is, or how it comes to be there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::options::Options;

/// Where the program is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Glass {
    /// Nobody has said, and nobody has looked.
    Unknown,
    At(PathBuf),
    /// There is none, and why.
    Missing(String),
}

impl Glass {
    /// Its path, or why there is none.
    pub(crate) fn path(&self) -> Result<&Path, String> {
        match self {
            Glass::At(path) => Ok(path),
            Glass::Missing(why) => Err(why.clone()),
            Glass::Unknown => Err("nobody has looked for it".into()),
        }
    }
}

/// The program that was named; else the one beside ours, built anew if cargo started us, so that it is never an old
/// one that is measured.
pub(crate) fn glass(options: &Options) -> Glass {
    if options.glass != Glass::Unknown {
        return options.glass.clone();
    }
    found().map_or_else(|error| Glass::Missing(format!("{error:#}")), Glass::At)
}

fn found() -> Result<PathBuf> {
    let here = std::env::current_exe()?.parent().context("a program lies in a directory")?.to_owned();
    let release = here.file_name().is_some_and(|name| name == "release");
    if let Some(cargo) = std::env::var_os("CARGO")
        && let Some(manifest) = std::env::var_os("CARGO_MANIFEST_DIR")
        && let Some(target) = here.parent()
    {
        let mut build = Command::new(cargo);
        build
            .args(["build", "--quiet", "--package", "glasshouse-cli", "--bin", "glass", "--target-dir"])
            .arg(target);
        if release {
            build.arg("--release");
        }
        let status =
            build.current_dir(manifest).stdin(Stdio::null()).status().context("cannot start cargo")?;
        if !status.success() {
            bail!("`cargo build -p glasshouse-cli` failed");
        }
    }
    let glass = here.join("glass");
    if !glass.is_file() {
        let profile = if release { " --release" } else { "" };
        bail!("not built: `cargo build{profile} -p glasshouse-cli`");
    }
    Ok(glass)
}
