//! Tests that need a process of their own: to measure it, or to start it in an unusual way.

use std::io::Write;
use std::process::Command;

/// Set for a process that runs one test alone.
const ALONE: &str = "GLASSHOUSE_TEST_ALONE";

/// Whether this process runs one test and nothing else.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs one test in a process of its own, started by `starter` (none: directly), passes its figures on, and fails if it
/// fails.
pub(crate) async fn run_alone(name: &str, starter: &[&str]) {
    let test = std::env::current_exe().expect("a test knows where it is");
    let mut command = match starter {
        [] => Command::new(&test),
        [program, words @ ..] => {
            let mut command = Command::new(program);
            command.args(words).arg(&test);
            command
        }
    };
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    let ended = tokio::task::spawn_blocking(move || command.output()).await.expect("waiting does not panic");
    let ended = ended.expect("the test can be started again");
    let (stdout, stderr) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{name}, run alone: {}\n{stdout}\n{stderr}", ended.status);
    assert!(stdout.contains("1 passed"), "{name} is no test");
    for line in stderr.lines() {
        if let Some((_, words)) = line.split_once(FIGURE) {
            figure(words);
        }
    }
}

const FIGURE: &str = "FIGURE ";

/// Tells a figure to whoever runs the tests, also if the test passes: what a test prints is shown only if it fails, what
/// it writes is not held back.
pub(crate) fn figure(words: &str) {
    writeln!(std::io::stderr(), "{FIGURE}{words}").expect("stderr is open");
}
