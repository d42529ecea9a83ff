//! The house rules that a compiler does not check: who may know whom, where unsafe code is, how long files are, and
//! that the documents tell the truth about what is there.

mod documents;
mod schema;
mod source;
mod walls;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Every file below a directory with this ending, as (path from the root, text).
fn files(dir: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("the directory can be listed").path();
            if path.is_dir() {
                if !path.ends_with("target") && !path.ends_with(".git") {
                    dirs.push(path);
                }
            } else if path.to_string_lossy().ends_with(ending) {
                let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push((name, std::fs::read_to_string(&path).expect("source is UTF-8")));
            }
        }
    }
    found.sort();
    found
}

/// All Rust source of ours.
fn rust_files() -> Vec<(String, String)> {
    ["crates", "tests", "bench"].iter().flat_map(|dir| files(dir, ".rs")).collect()
}
