//! Deterministic boxes: two runs of the same commands give the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use glasshouse_tests::{House, Mode};

use crate::stage::Stage;

/// What differs from run to run of a plain box, each on a line of its own. Modules that a small Python lacks are left out.
const PROBE: &str = r#"
import os, random, socket, subprocess, sys, tempfile, time
def say(name, value):
    print(name, str(value).strip().replace("\n", " "))
def run(*argv):
    return subprocess.run(argv, stdout=subprocess.PIPE).stdout.decode()
say("time", time.time())
say("monotonic", time.monotonic())
say("random", random.random())
say("urandom", os.urandom(8).hex())
say("device", open("/dev/urandom", "rb").read(8).hex())
say("hash", hash("glass"))
say("set", list({"a", "b", "c", "d", "e"}))
say("id", id(object()))
say("tempfile", tempfile.mktemp())
say("pid", os.getpid())
say("ppid", os.getppid())
say("hostname", socket.gethostname())
say("cpus", os.cpu_count())
say("uptime", open("/proc/uptime").read())
say("boot", open("/proc/sys/kernel/random/boot_id").read())
say("stat", open("/proc/stat").read())
say("meminfo", open("/proc/meminfo").read())
say("date", run("date", "+%s.%N"))
say("bash", run("bash", "-c", "echo $RANDOM $$ $EPOCHREALTIME $SRANDOM"))
say("perl", run("perl", "-e", "%h = map { $_ => 1 } 1..9; print join(',', keys %h), rand, time"))
say("stack", [line.split()[0] for line in open("/proc/self/maps") if "stack" in line or "heap" in line])
try:
    import secrets, uuid
    say("secrets", secrets.token_hex(8))
    say("uuid1", uuid.uuid1())
    say("uuid4", uuid.uuid4())
except ImportError:
    pass
"#;

const DETERMINISTIC: &[&str] = &["--deterministic"];

fn probe(stage: &Stage, id: &str) -> BTreeMap<String, String> {
    let text = stage.ok(&["exec", id, "--", "python3", "-c", PROBE]);
    let pair = |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let values: BTreeMap<String, String> = text.lines().filter_map(pair).collect();
    assert!(values.len() >= 21, "{text}");
    values
}

/// The names of what differs.
fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> BTreeSet<String> {
    assert!(a.keys().eq(b.keys()), "{a:?}\n{b:?}");
    a.keys().filter(|name| a[*name] != b[*name]).cloned().collect()
}

#[test]
fn two_fresh_boxes_show_the_same_values() {
    for stage in Stage::each(DETERMINISTIC) {
        let first = probe(&stage, &stage.id);
        let other = stage.ok(&["create", "--deterministic"]);
        let second = probe(&stage, &other);
        assert_eq!(
            differing(&first, &second),
            BTreeSet::new(),
            "{:?}: {first:?}\n{second:?}",
            stage.house.mode
        );
        // The second command of each is the same as well, and not the same as the first.
        let again = probe(&stage, &stage.id);
        assert_eq!(differing(&again, &probe(&stage, &other)), BTreeSet::new(), "{:?}", stage.house.mode);
        let moved: BTreeSet<String> =
            ["time", "monotonic", "random", "urandom", "pid"].map(String::from).into();
        assert!(differing(&first, &again).is_superset(&moved), "{first:?}\n{again:?}");
    }
}

#[test]
fn two_plain_boxes_do_not() {
    for stage in Stage::each(&[]) {
        let (first, other) = (probe(&stage, &stage.id), stage.ok(&["create"]));
        let differing = differing(&first, &probe(&stage, &other));
        for name in ["time", "monotonic", "random", "urandom", "device", "tempfile", "date"] {
            assert!(differing.contains(name), "{:?}: {name} is the same", stage.house.mode);
        }
        let info = stage.json(&["info", &stage.id]);
        assert!(info["deterministic"] == false && info["uncontrolled"] == serde_json::json!([]), "{info}");
    }
}

#[test]
fn the_box_stays_so_whatever_becomes_of_it() {
    let is_one = |stage: &Stage, id: &str| stage.json(&["info", id])["deterministic"] == true;
    for stage in Stage::each(DETERMINISTIC) {
        let look = "echo $$ $(date +%s.%N) $(head -c 8 /dev/urandom | od -An -tx1)";
        let first = stage.sh(look);
        stage.sh("echo x > a");
        let snapshot = stage.snapshot();
        for from in [&stage.id, &snapshot] {
            let fork = stage.ok(&["fork", from]);
            assert!(is_one(&stage, &fork), "{:?}", stage.house.mode);
            assert_eq!(stage.sh_in(&fork, look), first, "{:?}: a fork begins again", stage.house.mode);
        }
        stage.ok(&["reset", &stage.id]);
        assert_eq!(stage.sh(look), first, "{:?}: after a reset", stage.house.mode);
        stage.ok(&["restore", &stage.id, &snapshot]);
        assert_eq!(stage.sh(look), first, "{:?}: after a restore", stage.house.mode);
        stage.ok(&["stop", &stage.id]);
        stage.ok(&["start", &stage.id]);
        assert!(is_one(&stage, &stage.id));
        assert_eq!(stage.sh(look), first, "{:?}: after a stop", stage.house.mode);
    }
}

#[test]
fn processes_are_numbered_by_command() {
    for stage in Stage::each(DETERMINISTIC) {
        let look = "echo $$ $(sh -c 'echo $$; :') $(exec sh -c 'echo $PPID')";
        let (first, second) = (stage.sh(look), stage.sh(look));
        let numbers = |text: &str| text.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u32>>();
        assert_eq!((numbers(&first)[0], numbers(&second)[0]), (1000, 2000), "{:?}", stage.house.mode);
        let moved: Vec<u32> = numbers(&first).iter().map(|pid| pid + 1000).collect();
        assert_eq!(numbers(&second), moved, "{:?}", stage.house.mode);
        // Somebody in the background changes nothing for those who come later, also when the numbers begin again.
        stage.ok(&["exec", &stage.id, "--background", "--shell", "--", "sh -c 'sleep 1000; :' & sleep 1000"]);
        for _ in 0..40 {
            stage.sh(":");
        }
        let pid: u32 = stage.sh("echo $$").parse().unwrap();
        assert_eq!(pid % 1000, 0, "{:?}", stage.house.mode);
    }
}

#[test]
fn time_passes_for_those_who_wait_for_it() {
    let script = r#"
import select, threading, time
began = time.monotonic()
while time.monotonic() < began + 0.05: pass
for wait in [lambda: time.sleep(0.2), lambda: threading.Event().wait(0.2), lambda: select.select([], [], [], 0.2)]:
    before = time.time()
    wait()
    print(0.2 <= time.time() - before < 0.3)
done = threading.Event()
threading.Thread(target=done.set).start()
before = time.time()
print(done.wait(100), time.time() - before < 50)
import subprocess
print(subprocess.run(["sleep", "0.01"], timeout=100).returncode)
"#;
    for stage in Stage::each(DETERMINISTIC) {
        let text = stage.ok(&["exec", &stage.id, "--timeout", "60s", "--", "python3", "-c", script]);
        assert_eq!(text, "True\nTrue\nTrue\nTrue True\n0", "{:?}", stage.house.mode);
        let line = "end=$(($(date +%s) + 2)); while [ $(date +%s) -lt $end ]; do :; done; date +%Y";
        assert_eq!(stage.ok(&["exec", &stage.id, "--timeout", "60s", "--shell", "--", line]), "2030");
        let first: f64 = stage.sh("date +%s.%N").parse().unwrap();
        let second: f64 = stage.sh("date +%s.%N").parse().unwrap();
        assert!(second > first, "{first} {second}");
    }
}

#[test]
fn random_bytes_have_no_end_and_are_not_those_of_another_process() {
    for stage in Stage::each(DETERMINISTIC) {
        assert_eq!(stage.sh("head -c 3000000 /dev/urandom | wc -c"), "3000000", "{:?}", stage.house.mode);
        let line =
            "head -c 16 /dev/urandom | od -An -tx1; od -An -tx1 -N 16 < /dev/random; mktemp -u; mktemp -u";
        let lines = stage.sh(line);
        assert_eq!(lines.lines().collect::<BTreeSet<_>>().len(), 4, "{:?}: {lines}", stage.house.mode);
        // Who is not linked dynamically finds no other source.
        let bare = "env -u LD_PRELOAD perl -e '$b = \"x\" x 8; print syscall(318, $b, 8, 0), $b, 0 + $!'";
        assert_eq!(stage.sh(bare), "-1xxxxxxxx38", "{:?}", stage.house.mode);
    }
}

#[test]
fn what_the_caller_sets_is_his() {
    for stage in
        Stage::each(&["--deterministic", "--env", "TZ=Asia/Tokyo", "--env", "LD_PRELOAD=/lib/none.so"])
    {
        let text = stage.ok(&["exec", &stage.id, "--env", "PYTHONHASHSEED=7", "--", "env"]);
        for line in
            ["TZ=Asia/Tokyo", "PYTHONHASHSEED=7", "LC_ALL=C.UTF-8", "LD_PRELOAD=/dev/.glass.so:/lib/none.so"]
        {
            assert!(text.lines().any(|l| l == line), "{:?}: {line}: {text}", stage.house.mode);
        }
    }
}

#[test]
fn it_says_what_is_not_controlled_and_puts_that_on_record() {
    for stage in Stage::each(DETERMINISTIC) {
        let info = stage.json(&["info", &stage.id]);
        let listed = info["uncontrolled"].as_array().expect("a list");
        let words = info["uncontrolled"].to_string();
        assert!(words.contains("static programs") && words.contains("threads"), "{info}");
        // On a machine where tests run, nothing is lacking.
        assert!(!words.contains("kernel does not let"), "{info}");
        let log = stage.ok(&["log", &stage.id]);
        assert_eq!(log.matches("not controlled").count(), listed.len(), "{log}");
    }
}

#[test]
fn what_has_no_walls_cannot_be_deterministic() {
    let house = House::new(Mode::all()[0]);
    let (code, _, err) = house.run(&["run", "--runtime", "process", "--deterministic", "--", "true"]);
    assert!(code == 125 && err.contains("--deterministic") && err.contains("native"), "{code} {err}");
}
