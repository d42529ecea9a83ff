//! Several writers of one trace, and writers that die.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod home;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use glasshouse_trace::{ErrorKind, Event, Payload, Recorder, Writer, limits};
use home::{Home, ended, settings_at, signal};

const WRITERS: u64 = 8;
const EVENTS: u64 = 500;
/// With this variable set, `child` is what a child process runs: `<what>:<home>`.
const CHILD: &str = "GLASSHOUSE_TRACE_TEST_CHILD";

fn spawn(what: &str, root: &Path) -> Child {
    command(what, root, Command::new(std::env::current_exe().unwrap()))
}

fn command(what: &str, root: &Path, mut command: Command) -> Child {
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, format!("{what}:{}", root.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Not a test: what the child processes of the others do.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let (what, root) = task.split_once(':').unwrap();
    let settings = settings_at(Path::new(root));
    match what {
        "append" => append_all(&mut Writer::open(settings).unwrap()),
        "endless" => {
            let mut writer = Writer::open(settings).unwrap();
            for exec in 0.. {
                writer.append(ended(exec, &[b'x'; 4000], &[0xff; 5000])).unwrap();
                if exec == 20 {
                    println!("\nready");
                }
            }
        }
        "bounded" => {
            let mut recorder = Recorder::new(settings);
            for exec in 0..100 {
                recorder.record(ended(exec, &[b'x'; 500], b""));
            }
            println!("\nlost {}", recorder.lost());
        }
        other => panic!("unknown task {other}"),
    }
}

fn append_all(writer: &mut Writer) {
    for exec in 0..EVENTS {
        writer.append(signal(exec)).unwrap();
    }
}

/// Each writer's events are all there, in its order.
fn assert_unbroken(home: &Home) {
    let report = home.verify();
    assert!(report.ok && !report.torn_tail, "{report:?}");
    assert_eq!(report.lines, WRITERS * EVENTS);
    let mut counts = vec![0; EVENTS as usize];
    for event in home.events() {
        let Event::Signal { exec, .. } = event else { panic!("{event:?}") };
        counts[exec as usize] += 1;
    }
    assert!(counts.iter().all(|&count| count == WRITERS));
}

fn wait_until_ready(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "ready"), "the child died early");
}

#[test]
fn threads_with_their_own_writers_make_one_unbroken_chain() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for _ in 0..WRITERS {
            scope.spawn(|| append_all(&mut home.writer()));
        }
    });
    assert_unbroken(&home);
}

#[test]
fn processes_make_one_unbroken_chain() {
    let home = Home::new();
    let children: Vec<Child> = (0..WRITERS).map(|_| spawn("append", home.root())).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_unbroken(&home);
}

#[test]
fn a_killed_writer_leaves_a_trace_that_goes_on() {
    let home = Home::new();
    for _ in 0..10 {
        let mut child = spawn("endless", home.root());
        wait_until_ready(&mut child);
        child.kill().unwrap();
        child.wait().unwrap();
        home.writer().append(signal(0)).unwrap();
    }
    let report = home.verify();
    assert!(report.ok && !report.torn_tail, "{report:?}");
    assert!(report.lines >= 10 * 22);
}

#[test]
fn a_line_torn_at_any_place_is_repaired() {
    let home = Home::new();
    let mut writer = home.writer();
    for exec in 0..3 {
        writer.append(signal(exec)).unwrap();
    }
    let bytes = home.bytes();
    let ends: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == b'\n').map(|at| at + 1).collect();
    for cut in 0..bytes.len() {
        // A dead writer of the line that is cut never got to write the head.
        fs::write(home.file(), &bytes[..cut]).unwrap();
        fs::remove_file(home.dir().join("head")).unwrap();
        home.writer().append(signal(9)).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        let torn = cut - ends[..whole].last().copied().unwrap_or(0);
        let events = home.events();
        let mut expected: Vec<Event> = (0..whole as u64).map(signal).collect();
        expected.extend((torn > 0).then_some(Event::Repaired { dropped_bytes: torn as u64 }));
        expected.push(signal(9));
        assert_eq!(events, expected, "cut at {cut}");
        assert!(home.verify().ok, "cut at {cut}");
    }
}

#[test]
fn an_open_writer_repairs_what_another_left() {
    let home = Home::new();
    let mut writer = home.writer();
    writer.append(signal(1)).unwrap();
    fs::write(home.file(), [home.bytes(), b"{\"v\":1,".to_vec()].concat()).unwrap();
    writer.append(signal(2)).unwrap();
    assert_eq!(home.events(), [signal(1), Event::Repaired { dropped_bytes: 7 }, signal(2)]);
}

#[test]
fn the_longest_torn_line_behind_the_longest_line_is_repaired() {
    let home = Home::new();
    let mut writer = home.writer();
    let why = "x".repeat(limits::LINE_BYTES_MAX - 300);
    writer.append(Event::BoxEnded { why }).unwrap();
    let torn = vec![b'x'; limits::LINE_BYTES_MAX];
    fs::write(home.file(), [home.bytes(), torn].concat()).unwrap();
    home.writer().append(signal(2)).unwrap();
    let repaired = Event::Repaired { dropped_bytes: limits::LINE_BYTES_MAX as u64 };
    assert_eq!(home.events()[1..], [repaired, signal(2)]);
}

#[test]
fn a_trace_that_is_not_ours_is_refused_and_left_alone() {
    for content in [&b"hello\n"[..], &[b'x'; 3 << 20]] {
        let home = Home::new();
        fs::create_dir_all(home.dir()).unwrap();
        fs::write(home.file(), content).unwrap();
        assert_eq!(home.writer().append(signal(1)).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
        assert!(home.bytes() == content);
    }
}

#[test]
fn a_write_that_the_disk_takes_only_a_part_of_leaves_no_part() {
    let home = Home::new();
    // Ignored signals stay ignored across exec, so that writing too much is an error and not a death.
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "trap '' XFSZ; ulimit -f 16; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap());
    let output = command("bounded", home.root(), shell).wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let lost: u64 = said.lines().find_map(|line| line.strip_prefix("lost ")).unwrap().parse().unwrap();
    let report = home.verify();
    assert!(report.ok && !report.torn_tail, "{report:?}");
    let kept = home.events().iter().filter(|event| !matches!(event, Event::Lost { .. })).count() as u64;
    assert!(kept > 0 && lost > 0);
    assert_eq!(kept + lost, 100);
}

#[test]
fn everything_is_for_the_owner_alone() {
    let home = Home::new();
    let payload = Payload::whole(vec![0xff; 10]);
    home.writer().append(Event::Stdin { exec: 1, payload }).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    for path in home.files() {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
        assert_eq!(mode(path.parent().unwrap()), 0o700, "{}", path.display());
    }
    assert_eq!(home.files().len(), 3);
}

#[test]
fn an_append_adds_to_the_file_and_changes_nothing_before() {
    let home = Home::new();
    let mut writer = home.writer();
    writer.append(signal(1)).unwrap();
    let before = home.bytes();
    writer.append(signal(2)).unwrap();
    assert!(home.bytes().starts_with(&before));
}
