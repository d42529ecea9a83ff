//! Two tests at scale: very many commands, and a very long stream.

use std::time::{Duration, Instant};

use glasshouse_sandbox::{ExecEvent, Exit, OutputStream, RuntimeKind, Sandbox};
use tokio::sync::Notify;

use crate::alone::{figure, is_alone, run_alone};
use crate::stage::{Stage, argv, on_every_runtime, perl, run, within};
use crate::stdin::resident_bytes;

on_every_runtime![
    hundred_thousand_small_execs_lose_nothing,
    a_gibibyte_with_a_slow_reader_arrives_whole_while_memory_stays_flat,
];

/// Boxes that are used at once, and commands that run at once in each.
const BOXES: usize = 4;
const TASKS_PER_BOX: usize = 4;
/// In a run by hand; CI runs all hundred thousand.
const EXECS_BY_HAND: usize = 20_000;
const EXECS_IN_CI: usize = 100_000;

/// How many commands to run: `GLASS_EXECS`, or by where we are. The other runtimes get a tenth: there the same guest does
/// the same, and only the walls are others.
fn execs(runtime: RuntimeKind) -> usize {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let asked = std::env::var("GLASS_EXECS").ok().map(|text| text.parse().expect("GLASS_EXECS is a number"));
    let all = asked.unwrap_or(if in_ci { EXECS_IN_CI } else { EXECS_BY_HAND });
    if runtime == RuntimeKind::Native { all } else { all / 10 }
}

async fn hundred_thousand_small_execs_lose_nothing(stage: &Stage) {
    let execs = execs(stage.runtime);
    let since = Instant::now();
    let mut tasks = Vec::new();
    for boxed in 0..BOXES {
        let sandbox = stage.sandbox().await;
        for task in 0..TASKS_PER_BOX {
            let (sandbox, share) = (sandbox.clone(), execs / (BOXES * TASKS_PER_BOX));
            tasks.push(tokio::spawn(async move {
                for n in 0..share {
                    check_echo(&sandbox, &format!("{boxed}.{task}.{n} ünï")).await;
                }
                share
            }));
        }
    }
    let mut done = 0;
    for task in tasks {
        done += task.await.expect("no command failed");
    }
    let seconds = since.elapsed().as_secs_f64();
    let rate = done as f64 / seconds;
    figure(&format!("{}: {done} execs in {seconds:.1} s, {rate:.0} a second", stage.runtime.name()));
}

/// One small command, whose words tell it from all others.
async fn check_echo(sandbox: &Sandbox, words: &str) {
    let output = run(sandbox, argv(&["/bin/echo", "-n", words])).await;
    let report = &output.report;
    assert_eq!(report.exit, Exit::Code { code: 0 }, "{words}");
    assert_eq!(String::from_utf8_lossy(&output.stdout.bytes), words);
    assert_eq!((report.stdout_bytes, report.stderr_bytes), (words.len() as u64, 0), "{words}");
}

const GIBIBYTE: u64 = 1 << 30;
/// The stream is made of blocks of this size, which divides no buffer of anybody.
const BLOCK: usize = 1_000_003;
/// What this process and the guest may grow by meanwhile.
const HOST_GROWTH_BYTES: u64 = 64 << 20;
const GUEST_GROWTH_BYTES: u64 = 8 << 20;
/// The reader stands still after each of these stretches.
const STRETCH: u64 = 64 << 20;

/// Each block begins with its number, so that a lost block is missed, and goes on with noise, so that a lost byte is.
const STREAM: &str = r#"
    my ($x, $base) = (12345, '');
    for (1..1000003) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $base .= chr(($x >> 16) & 255) }
    for (my ($n, $left) = (0, 1 << 30); $left > 0; $n++) {
        substr($base, 0, 8) = pack 'Q<', $n;
        my $size = $left < 1000003 ? $left : 1000003;
        my $at = 0; $at += syswrite STDOUT, $base, $size - $at, $at while $at < $size;
        $left -= $size }
"#;

/// The same stream, as it has to be.
struct Expected {
    base: Vec<u8>,
    place: u64,
}

impl Expected {
    fn new() -> Expected {
        let mut x: u32 = 12_345;
        let mut next = || {
            x = x.wrapping_mul(1_103_515_245).wrapping_add(12_345) & 0x7fff_ffff;
            (x >> 16) as u8
        };
        Expected { base: (0..BLOCK).map(|_| next()).collect(), place: 0 }
    }

    /// Checks the next piece.
    fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (block, at) = (self.place / BLOCK as u64, (self.place % BLOCK as u64) as usize);
            if at == 0 || self.place == 0 {
                self.base[..8].copy_from_slice(&block.to_le_bytes());
            }
            let n = bytes.len().min(BLOCK - at);
            assert!(bytes[..n] == self.base[at..at + n], "other bytes than expected after {}", self.place);
            self.place += n as u64;
            bytes = &bytes[n..];
        }
    }
}

async fn a_gibibyte_with_a_slow_reader_arrives_whole_while_memory_stays_flat(stage: &Stage) {
    if !is_alone() {
        // Other tests of this process would grow, too.
        let name = "a_gibibyte_with_a_slow_reader_arrives_whole_while_memory_stays_flat";
        return run_alone(&format!("heavy::{}::{name}", stage.runtime.name()), &[]).await;
    }
    let sandbox = stage.sandbox().await;
    let (host, guest) = (std::process::id() as i32, sandbox.info().pid);
    let before = (resident_bytes(host), resident_bytes(guest));
    let mut most = before;
    let since = Instant::now();
    let mut exec = sandbox.exec(perl(STREAM)).await.unwrap();
    let mut expected = Expected::new();
    let mut next_stop = STRETCH;
    let report = loop {
        let event = within("the next piece", exec.next()).await.expect("an end comes before nothing does");
        match event {
            ExecEvent::Output(chunk) => {
                assert_eq!((chunk.stream, chunk.offset), (OutputStream::Stdout, expected.place), "in order");
                expected.take(&chunk.bytes);
            }
            ExecEvent::Ended(report) => break report,
            other => panic!("{other:?}"),
        }
        if expected.place >= next_stop {
            next_stop += STRETCH;
            stand_still(&sandbox).await;
            most = (most.0.max(resident_bytes(host)), most.1.max(resident_bytes(guest)));
        }
    };
    let seconds = since.elapsed().as_secs_f64();
    assert_eq!((report.exit, report.stdout_bytes), (Exit::Code { code: 0 }, GIBIBYTE));
    assert_eq!(expected.place, GIBIBYTE, "every byte has arrived");
    let grown = (most.0.saturating_sub(before.0), most.1.saturating_sub(before.1));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    figure(&format!(
        "{}: 1 GiB in {seconds:.1} s, {:.0} MiB/s; host {:.1} MiB + {:.1}, guest {:.1} MiB + {:.1}",
        stage.runtime.name(),
        1024.0 / seconds,
        mib(before.0),
        mib(grown.0),
        mib(before.1),
        mib(grown.1),
    ));
    assert!(grown.0 < HOST_GROWTH_BYTES, "the host's side grew by {} bytes", grown.0);
    assert!(grown.1 < GUEST_GROWTH_BYTES, "the guest grew by {} bytes", grown.1);
}

/// Does not read for as long as something else takes: commands of the same box, on the same connection.
async fn stand_still(sandbox: &Sandbox) {
    let done = Notify::new();
    let others = async {
        for n in 0..3 {
            check_echo(sandbox, &format!("meanwhile {n}")).await;
        }
        // Long enough for every buffer on the way to fill.
        let slept = run(sandbox, argv(&["sleep", "0.2"])).await.report;
        assert!(Duration::from_micros(slept.wall_us) >= Duration::from_millis(200));
        done.notify_one();
    };
    tokio::join!(others, within("the others' end", done.notified()));
}
