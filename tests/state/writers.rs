//! A snapshot under four writers shows one moment, and they go on as if nothing had been.

use std::path::PathBuf;

use glasshouse_sandbox::{ExecSpec, Method, Program, Sandbox, SnapshotOptions};

use crate::rerun::{self, PYTHON};

const WRITERS: usize = 4;
const SNAPSHOTS: usize = 20;

/// Writes record after record, each first to `a` and then to `b`, until somebody says `stop`. Two of the writers keep
/// their files open, and two open them anew for each record.
const WRITER: &str = r#"
import os, sys, time
me, n = int(sys.argv[1]), 0
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
names = [f'/workspace/w{me}.{part}' for part in 'ab']
kept = [os.open(name, flags) for name in names]
while not os.path.exists('/workspace/stop'):
    n += 1
    record = f'writer {me} record {n:09} {"x" * 40}\n'.encode()
    for name, fd in zip(names, kept):
        if me % 2: fd = os.open(name, flags)
        assert os.write(fd, record) == len(record)
        if me % 2: os.close(fd)
    time.sleep(0.0002)
print(n)
"#;

/// Says how many records each file holds, if they are whole, without a gap, and `b` is at most one behind `a`.
const READER: &str = r#"
import sys
for me in range(4):
    counts = []
    for part in 'ab':
        try: text = open(f'/workspace/w{me}.{part}').read()
        except FileNotFoundError: text = ''
        lines = text.splitlines(True)
        for n, line in enumerate(lines, 1):
            if line != f'writer {me} record {n:09} {"x" * 40}\n': sys.exit(f'writer {me}, {part}, {n}: {line!r}')
        counts.append(len(lines))
    if counts[0] - counts[1] not in (0, 1): sys.exit(f'writer {me}: {counts}')
    print(*counts)
"#;

/// Waits until every writer has written more than a number of bytes.
const GROWTH: &str = r#"
import os, sys, time
until = time.monotonic() + 30
for me, bytes in enumerate(map(int, sys.argv[1:])):
    while not os.path.exists(f'/workspace/w{me}.b') or os.path.getsize(f'/workspace/w{me}.b') <= bytes:
        if time.monotonic() > until: sys.exit(f'writer {me} is stuck at {bytes}')
        time.sleep(0.001)
"#;

/// Bytes of a record.
const RECORD_BYTES: u64 = 67;

/// How many records each writer has in `a` and `b`.
async fn counts(sandbox: &Sandbox) -> Vec<(u64, u64)> {
    let text = rerun::python(sandbox, READER, &[]).await;
    let pair = |line: &str| {
        let (a, b) = line.split_once(' ').expect("two numbers");
        (a.parse().expect("a number"), b.parse().expect("a number"))
    };
    text.lines().map(pair).collect()
}

async fn growth(sandbox: &Sandbox, beyond: &[u64]) {
    let args: Vec<String> = beyond.iter().map(|records| (records * RECORD_BYTES).to_string()).collect();
    rerun::python(sandbox, GROWTH, &args.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

async fn run(home: PathBuf) {
    let (house, sandbox) = rerun::house(&home).await;
    let mut writers = Vec::new();
    for me in 0..WRITERS {
        let argv = [PYTHON, "-I", "-S", "-c", WRITER, &me.to_string()].map(String::from).into();
        let spec = ExecSpec { program: Program::Argv(argv), ..ExecSpec::default() };
        writers.push(sandbox.exec(spec).await.expect("the box lives"));
    }
    let mut before = vec![0; WRITERS];
    for n in 0..SNAPSHOTS {
        // Each has gone on since the snapshot before.
        growth(&sandbox, &before).await;
        let taken = sandbox.snapshot(SnapshotOptions::default()).await.expect("it can be kept");
        assert!(matches!(taken.method, Method::Copy | Method::Reflink), "{n}: {:?}", taken.method);
        assert!(taken.processes >= WRITERS as u64, "{n}: {} processes", taken.processes);
        let fork = house.fork(&taken.id, 1).await.expect("it can be forked").remove(0);
        let counted = counts(&fork).await;
        fork.destroy().await.expect("it can be removed");
        for (me, ((a, _), before)) in counted.iter().zip(&mut before).enumerate() {
            assert!(*a > *before, "{n}: writer {me} has {a} records, and had {before} before");
            *before = *a;
        }
    }
    growth(&sandbox, &before).await;
    rerun::python(&sandbox, "open('/workspace/stop', 'w')", &[]).await;
    for (me, writer) in writers.into_iter().enumerate() {
        let output = writer.collect().await;
        let said = String::from_utf8_lossy(&output.stdout.bytes).trim().to_owned();
        let why = String::from_utf8_lossy(&output.stderr.bytes).into_owned();
        assert!(output.report.exit.success(), "writer {me}: {:?}: {why}", output.report.exit);
        let written: u64 = said.parse().expect("it says how many it wrote");
        assert_eq!(counts(&sandbox).await[me], (written, written), "writer {me} lost something");
    }
    rerun::clear(&house, &home).await;
}

#[test]
fn a_snapshot_under_four_writers_shows_one_moment() {
    rerun::each("writers::a_snapshot_under_four_writers_shows_one_moment", run);
}
