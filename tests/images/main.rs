//! Images: made by real tools, pulled from a real registry, imported from files, run in boxes, and made by enemies.

mod attributes;
mod called;
mod crash;
mod forgery;
mod hostile;
mod import;
mod logins;
mod proxy;
mod pull;
mod registry;
mod resume;
mod stored;
mod terminal;
mod tls;
mod workshop;

use std::path::Path;
use std::time::{Duration, Instant};

use glasshouse_tests::{House, Mode, is_root, skip};

/// How long an event may take to come on a busy machine.
const EVENT_MAX: Duration = Duration::from_secs(60);

/// Runs a test body once for each mode that this machine can show, if the tools are here.
fn each_mode(body: impl Fn(&House)) {
    for tool in ["docker-registry", "skopeo", "umoci", "openssl", "busybox"] {
        let here = ["/usr/bin", "/bin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join(tool).exists());
        if !here {
            return skip("images", &format!("{tool} is not installed"));
        }
    }
    for mode in Mode::all() {
        body(&House::new(mode));
    }
}

/// Runs the program; it has to succeed. What it says.
fn ok(house: &House, args: &[&str]) -> String {
    let (code, stdout, stderr) = house.run(args);
    assert_eq!(code, 0, "{:?}: {args:?}: {stdout}{stderr}", house.mode);
    stdout
}

/// Runs the program; it has to refuse in one sentence, which comes back.
fn refused(house: &House, args: &[&str]) -> String {
    let (code, stdout, stderr) = house.run(args);
    assert!(code == 1 || code == 125, "{:?}: {args:?}: {code}: {stdout}{stderr}", house.mode);
    assert_eq!(stderr.trim_end().lines().count(), 1, "one sentence: {stderr}");
    assert!(stderr.len() < 1000, "a short one: {stderr}");
    stderr
}

/// What is in a directory of the state directory.
fn names(house: &House, dir: &str) -> Vec<String> {
    let entries = std::fs::read_dir(house.home().join(dir));
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("the home can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Nothing of any image is there, but what a later pull may go on with.
fn assert_nothing_half(house: &House) {
    assert_eq!(names(house, "images"), Vec::<String>::new());
    assert_eq!(names(house, "layers"), Vec::<String>::new());
    let working: Vec<String> = names(house, "incoming").into_iter().filter(|name| name != "blobs").collect();
    assert_eq!(working, Vec::<String>::new());
}

/// Waits until something is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < EVENT_MAX, "this did not come: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives files to whoever the program runs as.
fn readable(house: &House, path: &Path) {
    let run = |program: &str, args: &[&str]| {
        let status = std::process::Command::new(program).args(args).arg(path).status();
        assert!(status.expect("it can be started").success(), "{program} {args:?}");
    };
    run("chmod", &["-R", "a+rX"]);
    if house.mode == Mode::Rootless && is_root() {
        run("chown", &["-R", &glasshouse_tests::ORDINARY.to_string()]);
    }
}
