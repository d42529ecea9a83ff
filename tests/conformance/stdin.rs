//! What a command reads.

use glasshouse_sandbox::{ExecSpec, Exit, Sandbox};

use crate::follow::Follow;
use crate::stage::{argv, on_every_runtime, perl, put_away, run, shell, stdout_of, text, within};

on_every_runtime![
    lines_go_in_and_come_back_one_by_one,
    without_stdin_there_is_nothing_to_read,
    every_byte_goes_in_and_comes_back,
    a_lot_goes_in_and_comes_back_whole,
    a_program_that_never_reads_holds_up_only_its_writer,
    a_program_that_ends_without_reading_lets_its_writer_go,
    a_program_that_closes_its_stdin_lets_its_writer_go,
    what_is_written_to_a_command_without_stdin_is_dropped,
    input_may_be_written_from_several_tasks,
];

/// More than every buffer on the way holds together.
const MORE_THAN_FITS: usize = 8 << 20;
/// What a guest may grow by, however much is sent to it.
const GUEST_GROWTH_BYTES: u64 = 4 << 20;

fn fed(spec: ExecSpec) -> ExecSpec {
    ExecSpec { stdin: true, ..spec }
}

/// Bytes that differ from place to place.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n % 251) as u8 ^ (n >> 11) as u8).collect()
}

async fn lines_go_in_and_come_back_one_by_one(sandbox: &Sandbox) {
    let mut echo =
        Follow::start(sandbox, fed(shell("while read line; do echo \"got $line\"; done; echo over"))).await;
    let input = echo.exec.input();
    for round in 0..20 {
        input.write(format!("line {round}\n").as_bytes()).await.unwrap();
        assert_eq!(echo.line().await, format!("got line {round}"));
    }
    input.close().await.unwrap();
    assert_eq!(echo.line().await, "over");
    assert_eq!(echo.end().await.exit, Exit::Code { code: 0 });
}

async fn without_stdin_there_is_nothing_to_read(sandbox: &Sandbox) {
    assert_eq!(stdout_of(sandbox, "wc -c").await.trim(), "0");
}

async fn every_byte_goes_in_and_comes_back(sandbox: &Sandbox) {
    let bytes: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
    let mut cat = Follow::start(sandbox, fed(argv(&["cat"]))).await;
    cat.exec.input().write(&bytes).await.unwrap();
    cat.exec.input().close().await.unwrap();
    assert_eq!(cat.end().await.exit, Exit::Code { code: 0 });
    assert_eq!(cat.stdout, bytes);
}

async fn a_lot_goes_in_and_comes_back_whole(sandbox: &Sandbox) {
    let bytes = pattern(MORE_THAN_FITS);
    let mut cat = Follow::start(sandbox, fed(argv(&["cat"]))).await;
    let input = cat.exec.input();
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        input.write(&sent).await.unwrap();
        input.close().await.unwrap();
    });
    assert_eq!(cat.end().await.exit, Exit::Code { code: 0 });
    writer.await.unwrap();
    assert!(cat.stdout == bytes, "{} of {} bytes came back, or others", cat.stdout.len(), bytes.len());
}

async fn a_program_that_never_reads_holds_up_only_its_writer(sandbox: &Sandbox) {
    let before = resident_bytes(sandbox.info().pid);
    let sleeper = Follow::start(sandbox, fed(argv(&["sleep", "1000"]))).await;
    let input = sleeper.exec.input();
    let writer = tokio::spawn(async move { input.write(&pattern(MORE_THAN_FITS)).await });
    for round in 0..50 {
        assert_eq!(stdout_of(sandbox, &format!("echo {round}")).await.trim(), round.to_string());
    }
    assert!(!writer.is_finished(), "nobody has read it, and still it is gone");
    let grown = resident_bytes(sandbox.info().pid).saturating_sub(before);
    assert!(grown < GUEST_GROWTH_BYTES, "the guest grew by {grown} bytes");
    put_away(sandbox, &sleeper.exec).await;
    // Whether it is told that nobody reads or that all is done: it comes to its end.
    let _ = within("the writer's end", writer).await.unwrap();
}

/// What a process of the host holds in memory.
pub(crate) fn resident_bytes(pid: i32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process lives");
    let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap();
    pages * glasshouse_linux::rustix::param::page_size() as u64
}

async fn a_program_that_ends_without_reading_lets_its_writer_go(sandbox: &Sandbox) {
    let mut quick = Follow::start(sandbox, fed(argv(&["true"]))).await;
    let input = quick.exec.input();
    let writer = tokio::spawn(async move { input.write(&pattern(MORE_THAN_FITS)).await });
    assert_eq!(quick.end().await.exit, Exit::Code { code: 0 });
    let _ = within("the writer's end", writer).await.unwrap();
}

async fn a_program_that_closes_its_stdin_lets_its_writer_go(sandbox: &Sandbox) {
    let mut deaf = Follow::start(sandbox, fed(shell("exec 0<&-; echo closed; exec sleep 1000"))).await;
    assert_eq!(deaf.line().await, "closed");
    let input = deaf.exec.input();
    let bytes = pattern(MORE_THAN_FITS);
    within("what nobody wants is dropped", input.write(&bytes)).await.unwrap();
    put_away(sandbox, &deaf.exec).await;
}

async fn what_is_written_to_a_command_without_stdin_is_dropped(sandbox: &Sandbox) {
    let mut sleeper = Follow::start(sandbox, shell("echo ready; exec sleep 1000")).await;
    assert_eq!(sleeper.line().await, "ready");
    within("the write's end", sleeper.exec.input().write(&pattern(MORE_THAN_FITS))).await.unwrap();
    sleeper.exec.input().close().await.unwrap();
    put_away(sandbox, &sleeper.exec).await;
}

async fn input_may_be_written_from_several_tasks(sandbox: &Sandbox) {
    let exec = sandbox.exec(fed(perl("$n += length while <STDIN>; print $n"))).await.unwrap();
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let input = exec.input();
            tokio::spawn(async move {
                for _ in 0..100 {
                    input.write(b"a line of some length\n").await.unwrap();
                }
            })
        })
        .collect();
    let input = exec.input();
    for writer in writers {
        writer.await.unwrap();
    }
    input.close().await.unwrap();
    assert_eq!(text(&exec.collect().await.stdout), (8 * 100 * 22).to_string());
    assert_eq!(run(sandbox, argv(&["true"])).await.report.exit, Exit::Code { code: 0 });
}
