//! Boxes that a house has begun before anybody wants them: no boxes yet, and nothing that was left behind.

use std::os::fd::AsFd;
use std::path::Path;

use glasshouse_linux::descriptor;

/// Their ids, in this home: on no record, and somebody holds the lock that says that they live.
#[must_use]
pub fn begun(home: &Path) -> Vec<String> {
    let is_begun = |path: &Path| {
        let dir = std::fs::File::open(path).ok()?;
        let lives = descriptor::is_locked(dir.as_fd(), "alive").ok()?;
        Some(lives && !path.join("box.json").exists())
    };
    let entries = std::fs::read_dir(home.join("boxes")).into_iter().flatten().flatten();
    let begun = entries.filter(|entry| is_begun(&entry.path()) == Some(true));
    begun.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
