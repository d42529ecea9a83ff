//! The viewer in a real browser: Debian's Chromium, driven by Playwright.
//!
//! What each page has to do is said by a script in `tests/viewer/pages`; all of them end with looking whether anything went
//! wrong that nobody sees: errors in the console, and what the page's policy refused.

#![allow(clippy::unwrap_used, reason = "all of this is test code")]

#[allow(dead_code, reason = "the suite of the service uses all of it")]
#[path = "../serve/stage.rs"]
mod stage;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glasshouse_tests::{House, Mode, glass, python, skip};

use crate::stage::Server;

const PACKAGES: &str = include_str!("requirements.txt");
const CHROMIUM: &str = "/usr/bin/chromium";

/// A Python that can drive the browser.
fn driver() -> Option<&'static PathBuf> {
    static DRIVER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || match Path::new(CHROMIUM).exists() {
        true => python::python("python-browser", PACKAGES),
        false => Err(format!("{CHROMIUM} is not installed")),
    };
    match DRIVER.get_or_init(install) {
        Ok(python) => Some(python),
        Err(why) => {
            skip("viewer", why);
            None
        }
    }
}

/// Looks at a server with a script. It says itself what it expects.
fn check(script: &str, server: &Server, vars: &[(&str, &str)]) {
    let Some(python) = driver() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("viewer/pages").join(script);
    let output = Command::new(python)
        .args(["-B".as_ref(), script.as_os_str()])
        .env("VIEWER_URL", format!("http://{}", server.address))
        .env("GLASSHOUSE_HOME", server.house.home())
        .env("GLASS", glass())
        .env("NO_PROXY", "127.0.0.1")
        .envs(vars.iter().copied())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}{}",
        script.display(),
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn boxes_appear_change_and_go_without_a_reload() {
    check("boxes.py", &Server::new(), &[]);
}

#[test]
fn a_run_is_seen_step_by_step_with_its_output_and_files() {
    check("timeline.py", &Server::new(), &[]);
}

#[test]
fn a_command_in_the_background_runs_until_it_ends() {
    check("background.py", &Server::new(), &[]);
}

#[test]
fn snapshots_with_the_same_layers_stand_on_older_ones() {
    check("kin.py", &Server::new(), &[]);
}

#[test]
fn snapshots_are_a_tree_to_fork_and_restore() {
    check("snapshots.py", &Server::new(), &[]);
}

#[test]
fn a_replay_shows_both_sides_of_a_divergence() {
    check("replay.py", &Server::new(), &[]);
}

#[test]
fn a_terminal_leads_into_a_box() {
    check("terminal.py", &Server::new(), &[]);
}

#[test]
fn nothing_that_a_box_says_runs_in_the_page() {
    check("hostile.py", &Server::new(), &[]);
}

#[test]
fn pages_of_others_reach_nothing() {
    check("foreign.py", &Server::new(), &[]);
}

#[test]
fn with_keys_there_is_a_log_in() {
    let house = House::new(Mode::all()[0]);
    let key = |args: &[&str]| house.run(&[&["key", "add"], args].concat()).1.trim().to_owned();
    let (red, blue) = (key(&["red", "--tenant", "red"]), key(&["all", "--operator"]));
    let server = Server::of(house, &[]);
    check("login.py", &server, &[("KEY_RED", &red), ("KEY_ALL", &blue)]);
}

#[test]
fn behind_a_proxy_that_calls_the_server_by_another_name_there_is_a_log_in() {
    let house = House::new(Mode::all()[0]);
    let key = house.run(&["key", "add", "all", "--operator"]).1.trim().to_owned();
    let server = Server::of(house, &["--public-host", "boxes.example"]);
    let body = serde_json::json!({ "key": key }).to_string();
    let log_in = |origin: &str| {
        let headers = [
            ("host", "10.0.0.7:8080"),
            ("origin", origin),
            ("sec-fetch-site", "same-origin"),
            ("content-type", "application/json"),
        ];
        server.request("POST", "/viewer/session", &headers, body.as_bytes()).status
    };
    assert_eq!(log_in("https://boxes.example"), 204);
    assert_eq!(log_in("https://evil.example"), 403);
}

#[test]
fn a_server_that_does_not_answer_is_told() {
    check("gone.py", &Server::new(), &[]);
}

#[test]
fn it_reads_well_narrow_and_wide_light_and_dark_and_by_keyboard() {
    check("look.py", &Server::new(), &[]);
}

#[test]
fn a_record_of_ten_thousand_steps_is_read_page_by_page() {
    let server = Server::new();
    let dir = server.house.home().join("traces/long0record");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("trace.jsonl"), long_record(10_000)).unwrap();
    check("long.py", &server, &[]);
}

/// A record as a box writes it, but for the hashes, which nobody looks at here.
fn long_record(steps: u64) -> String {
    let prev = "0".repeat(64);
    let mut text = String::new();
    let mut seq = 0_u64;
    let mut line = |event: &str| {
        seq += 1;
        let time = 1_794_813_474_000_u64 + seq;
        let _ = writeln!(text, r#"{{"v":2,"seq":{seq},"time_ms":{time},"prev":"{prev}","event":{event}}}"#);
    };
    line(r#"{"type":"box_created","id":"long0record","runtime":"native","level":"full","image":"host"}"#);
    for n in 1..=steps {
        let code = u64::from(n % 1000 == 0);
        line(&format!(r#"{{"type":"exec_started","exec":{n},"program":{{"shell":"echo number {n}"}}}}"#));
        line(&format!(
            r#"{{"type":"exec_ended","exec":{n},"report":{{"exit":{{"kind":"code","code":{code}}},"wall_us":900,"cpu_us":800,"peak_memory_bytes":1000000,"stdout_bytes":12,"stderr_bytes":0,"oom_kills":0}},"stdout":{{"bytes_total":12,"head":{{"text":"number {n}\n"}}}},"stderr":{{"bytes_total":0}}}}"#
        ));
        line(&format!(r#"{{"type":"step","step":{n},"exec":{n},"wall_us":900}}"#));
    }
    line(r#"{"type":"box_ended","why":"destroyed"}"#);
    text
}
