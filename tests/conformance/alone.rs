//! Tests that need a process of their own: to measure it, or to start it in an unusual way.

use std::process::Command;

/// Set for a process that runs one test alone.
const ALONE: &str = "GLASSHOUSE_TEST_ALONE";

/// Whether this process runs one test and nothing else.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs one test in a process of its own, started by `starter` (none: directly), shows what it prints, and fails if it
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
    print!("{stdout}{stderr}");
    assert!(ended.status.success(), "{name}, run alone: {}", ended.status);
    assert!(stdout.contains("1 passed"), "{name} is no test");
}
