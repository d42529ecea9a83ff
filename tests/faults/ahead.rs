//! Boxes that were begun before anybody wanted them go with whoever began them, however that ends.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use glasshouse_linux::process;
use glasshouse_sandbox::{ExecSpec, Program, SandboxSpec, Sandboxes, Settings, faults};
use glasshouse_tests::begun::begun;
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{Mode, scratch};

use crate::rerun::as_ordinary;
use crate::victim::{self, PATIENCE};
use crate::{alone, event_loop, guest_in_memory, nothing_left, open};

/// Boxes after which others are begun ahead, and one more, which is made of one of those.
const BOXES: usize = 5;
/// How often a maker of boxes is killed.
const KILLS: u64 = 10;
/// Where who is to be killed finds the home that it makes boxes in.
const MAKER: &str = "GLASSHOUSE_TEST_MAKER";

/// Boxes are begun ahead, until the test is over.
struct Allowed;

impl Allowed {
    fn now() -> Allowed {
        faults::make_nothing_ahead(false);
        Allowed
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        faults::make_nothing_ahead(true);
    }
}

async fn make_some(house: &Sandboxes) {
    for _ in 0..BOXES {
        let owner = Some(std::process::id());
        let sandbox = house.create(SandboxSpec { owner, ..SandboxSpec::default() }).await;
        let sandbox = sandbox.expect("a box can be made");
        sandbox.destroy().await.expect("a box can be removed");
        house.settle().await;
    }
}

/// A house that makes boxes one after the other has others begun, and takes them along when it ends.
fn go_along(home: &Path) {
    guest_in_memory();
    let threads = event_loop();
    let before = {
        // The image's layer is there from now on.
        let house = open(home);
        threads.block_on(make_some(&house));
        drop(house);
        Leaks::now(home)
    };
    let _allowed = Allowed::now();
    let house = open(home);
    faults::make_nothing_ahead(false);
    threads.block_on(make_some(&house));
    assert_eq!(begun(home).len(), 2, "two wait for whoever wants one");
    let listed = threads.block_on(house.list()).expect("they can be listed");
    assert!(listed.is_empty(), "nobody wants them yet: {listed:?}");
    threads.block_on(house.gc()).expect("what is left can be removed");
    assert_eq!(begun(home).len(), 2, "they are not taken for what somebody left");
    drop(house);
    nothing_left(&before, home, "the end of a house with boxes that were begun");
}

/// What is particular to a box comes late to one that was begun: its variables, its directory, its name, its owner.
#[test]
fn a_box_that_was_begun_is_what_was_asked_for() {
    if !Mode::all().contains(&Mode::Root) {
        return;
    }
    let _turn = alone();
    let (dir, threads) = (scratch(), event_loop());
    let house = open(dir.path());
    let _allowed = Allowed::now();
    threads.block_on(async {
        make_some(&house).await;
        let waiting = begun(dir.path());
        let mut owner = Command::new("sleep").arg("1000").spawn().expect("it can be started");
        let sandbox = house.create(SandboxSpec {
            name: Some("wanted".into()),
            owner: Some(owner.id()),
            env: vec![("COLOUR".into(), "green".into())],
            cwd: Some("/tmp".into()),
            ..SandboxSpec::default()
        });
        let sandbox = sandbox.await.expect("a box can be made");
        assert!(waiting.contains(&sandbox.id().to_owned()), "{} is none of {waiting:?}", sandbox.id());
        let program = Program::Shell("echo $COLOUR; pwd; id -u".into());
        let exec = sandbox.exec(ExecSpec { program, ..ExecSpec::default() }).await.expect("it lives");
        let output = exec.collect().await;
        assert_eq!(String::from_utf8_lossy(&output.stdout.bytes), "green\n/tmp\n1000\n");
        assert_eq!(house.info("wanted").await.expect("it has its name").id, sandbox.id());
        let guest = process::open(sandbox.info().pid).expect("it lives");
        owner.kill().expect("it is our child");
        owner.wait().expect("it is our child");
        victim::ends(&guest, "a box whose owner has ended");
        house.gc().await.expect("what is left can be removed");
    });
}

#[test]
fn boxes_begun_ahead_go_with_their_house() {
    if !Mode::all().contains(&Mode::Root) {
        return;
    }
    let _turn = alone();
    go_along(scratch().path());
}

#[test]
fn boxes_begun_ahead_go_with_their_house_without_root() {
    let Some(home) = as_ordinary("ahead::boxes_begun_ahead_go_with_their_house_without_root") else { return };
    let _turn = alone();
    go_along(&home.path);
}

/// Directories of boxes that are on no record. Their locks are not looked at: whoever does so holds them for a moment, and is in the
/// way of who makes one.
fn unrecorded(home: &Path) -> usize {
    let boxes = std::fs::read_dir(home.join("boxes")).into_iter().flatten().flatten();
    boxes.filter(|entry| !entry.path().join("box.json").exists()).count()
}

/// Makes boxes until it is killed, if this is who is to be.
fn make_until_killed() {
    let Some(home) = std::env::var_os(MAKER) else { return };
    let (threads, house) = (event_loop(), Sandboxes::open(Settings { home: home.into() }));
    let house = house.expect("the home can be used");
    loop {
        threads.block_on(make_some(&house));
    }
}

/// This very program makes boxes, and is killed while it has some begun.
fn killed(home: &Path, test: &str) {
    guest_in_memory();
    let threads = event_loop();
    threads.block_on(make_some(&open(home)));
    let before = Leaks::now(home);
    for round in 0..KILLS {
        let mut maker = Command::new(std::env::current_exe().expect("a test knows where it is"));
        maker.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(MAKER, home).current_dir("/");
        maker.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let mut maker = maker.spawn().expect("it can be executed");
        let deadline = Instant::now() + PATIENCE;
        while unrecorded(home) < 2 {
            let ended = maker.try_wait().expect("it is our child");
            assert_eq!(ended, None, "round {round}: it ended before");
            assert!(Instant::now() < deadline, "round {round}: nothing is begun ahead");
        }
        // Each at another moment of what comes next.
        victim::spin(Duration::from_micros(700 * round));
        maker.kill().expect("it may be killed");
        maker.wait().expect("it is our child");
        // They see that it is gone, and end by themselves.
        while !begun(home).is_empty() {
            assert!(Instant::now() < deadline, "round {round}: boxes that were begun live on");
        }
        threads.block_on(open(home).gc()).expect("what is left can be removed");
        nothing_left(&before, home, &format!("the kill of who makes boxes, round {round}"));
    }
}

#[test]
fn boxes_begun_ahead_go_when_their_maker_is_killed() {
    make_until_killed();
    if !Mode::all().contains(&Mode::Root) {
        return;
    }
    let _turn = alone();
    killed(scratch().path(), "ahead::boxes_begun_ahead_go_when_their_maker_is_killed");
}

#[test]
fn boxes_begun_ahead_go_when_their_maker_is_killed_without_root() {
    make_until_killed();
    let test = "ahead::boxes_begun_ahead_go_when_their_maker_is_killed_without_root";
    let Some(home) = as_ordinary(test) else { return };
    let _turn = alone();
    killed(&home.path, test);
}
