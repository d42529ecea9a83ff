//! Records outlive everything, so they have to be true whatever happened: the end of the last line may be torn off,
//! and nothing else.

use std::path::Path;

use glasshouse_trace::{ErrorKind, verify};

/// Checks every record of a home. How many there are.
#[track_caller]
pub(crate) fn hold(home: &Path) -> usize {
    let (traces, blobs) = (home.join("traces"), home.join("blobs"));
    let mut count = 0;
    for entry in std::fs::read_dir(&traces).expect("a home has records") {
        let dir = entry.expect("a home has records").path();
        match verify(&dir, &blobs) {
            Ok(report) => {
                assert!(report.ok && report.first_bad.is_none(), "{}: {report:?}", dir.display());
                assert_eq!(report.missing_blobs, 0, "{}: {report:?}", dir.display());
                count += 1;
            }
            // Whoever made the directory died before the first line.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => panic!("{}: {}", dir.display(), error.with_source()),
        }
    }
    count
}
