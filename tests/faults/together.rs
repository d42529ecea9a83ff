//! Several processes at once, on one home.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use glasshouse_sandbox::SandboxSpec;
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{Mode, scratch};

use crate::program::{Site, end};
use crate::{alone, event_loop, guest_in_memory, nothing_left, open, tell, traces};

/// Processes that make boxes at the same time.
const CREATORS: usize = 4;
/// Boxes that each of them makes.
const BOXES: usize = 25;
/// Boxes that live at once.
const CROWD: usize = 50;

#[test]
fn gc_never_takes_a_box_that_lives_or_is_being_made() {
    for mode in Mode::all() {
        let _turn = alone();
        let site = Site::new(mode);
        let (done, doomed) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
        let gcs = std::thread::scope(|scope| {
            let sweeper = scope.spawn(|| {
                let mut count = 0;
                while !done.load(Ordering::SeqCst) {
                    let removed = site.ok(&["gc"]);
                    // It may come across a box that somebody is just removing.
                    let doomed = doomed.lock().unwrap();
                    removed.lines().for_each(|id| assert!(doomed.contains(id), "gc took {id}"));
                    count += 1;
                }
                count
            });
            // On a fresh home: the first of them also make the image's layer.
            let creators: Vec<_> =
                (0..CREATORS).map(|_| scope.spawn(|| create_and_use(&site, &doomed))).collect();
            let results: Vec<_> = creators.into_iter().map(|creator| creator.join()).collect();
            done.store(true, Ordering::SeqCst);
            results.into_iter().for_each(|result| result.expect("no creator failed"));
            sweeper.join().expect("no gc failed")
        });
        site.nothing_left("creators against gc");
        let records = traces::hold(&site.house.home());
        assert_eq!(records, CREATORS * BOXES);
        tell(&format!("{mode:?}: {CREATORS} x {BOXES} boxes against {gcs} runs of gc"));
    }
}

fn create_and_use(site: &Site, doomed: &Mutex<BTreeSet<String>>) {
    for _ in 0..BOXES {
        let id = site.ok(&["create"]);
        assert_eq!(site.ok(&["exec", &id, "--", "echo", "alive"]), "alive");
        doomed.lock().expect("no thread has failed").insert(id.clone());
        assert_eq!(site.ok(&["kill", &id]), id);
    }
}

#[test]
fn gcs_at_once_remove_everything_that_died_and_do_not_fail() {
    for mode in Mode::all() {
        let _turn = alone();
        let site = Site::new(mode);
        let dead: BTreeSet<String> = (0..8).map(|_| site.ok(&["create"])).collect();
        let living = site.ok(&["create"]);
        dead.iter().for_each(|id| site.kill_guest(id));
        let gcs: Vec<_> = (0..3).map(|_| site.start(&["gc"])).collect();
        let mut removed = BTreeSet::new();
        for (code, stdout, stderr) in gcs.into_iter().map(end) {
            assert_eq!(code, Some(0), "{stderr}");
            removed.extend(stdout.lines().map(str::to_owned));
        }
        assert_eq!(removed, dead);
        assert_eq!(site.ok(&["exec", &living, "--", "echo", "alive"]), "alive");
        site.ok(&["kill", &living]);
        site.nothing_left("three gcs at once");
        traces::hold(&site.house.home());
    }
}

#[test]
fn a_crowd_of_boxes_is_removed_by_two_at_once() {
    for mode in Mode::all() {
        let _turn = alone();
        let site = Site::new(mode);
        let crowd: BTreeSet<String> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..2)
                .map(|_| scope.spawn(|| (0..CROWD / 2).map(|_| site.ok(&["create"])).collect::<Vec<_>>()))
                .collect();
            makers.into_iter().flat_map(|maker| maker.join().expect("no maker failed")).collect()
        });
        assert_eq!(site.living(), crowd.iter().cloned().collect::<Vec<_>>());
        let killers: Vec<_> = (0..2).map(|_| site.start(&["kill", "--all"])).collect();
        let mut removed = BTreeSet::new();
        for (code, stdout, stderr) in killers.into_iter().map(end) {
            assert_eq!(code, Some(0), "a box that the other one removed is no failure: {stderr}");
            removed.extend(stdout.lines().map(str::to_owned));
        }
        assert_eq!(removed, crowd);
        site.nothing_left("two kills of all");
    }
}

#[test]
fn threads_of_one_process_make_boxes_in_a_fresh_home() {
    let _turn = alone();
    let dir = scratch();
    guest_in_memory();
    let (threads, house) = (event_loop(), open(dir.path()));
    let before = Leaks::now(dir.path());
    threads.block_on(async {
        let make = || {
            let house = house.clone();
            tokio::spawn(async move { house.create(SandboxSpec::default()).await })
        };
        let making: Vec<_> = (0..8).map(|_| make()).collect();
        for one in making {
            one.await.unwrap().unwrap().destroy().await.unwrap();
        }
    });
    threads.block_on(house.gc()).unwrap();
    nothing_left(&before, dir.path(), "threads that made boxes at once");
}
