//! bubblewrap, with all that it can unshare and as much of a root as a program needs.

use super::process::{CommandLine, find};

const OPTIONS: &str = "--unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
    --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp";

pub(super) fn line(argv: &[&str]) -> CommandLine {
    // One that is not installed is found missing when it is tried.
    let program = find("bwrap").unwrap_or_else(|_| "/usr/bin/bwrap".into());
    let options: Vec<&str> = OPTIONS.split_whitespace().chain(["--"]).collect();
    CommandLine::new(&[program]).args(&options).args(argv)
}
