//! How long boxes live: as long as they were meant to, with no process of ours to watch over them.

use std::process::Command;
use std::time::Duration;

use glasshouse_linux::process;
use glasshouse_sandbox::{Limits, SandboxSpec};
use glasshouse_tests::{House, Mode, is_root};

use crate::program::{Site, end, says};
use crate::{alone, event_loop, guest_in_memory, open, victim};

/// One body, both modes.
fn check(body: impl Fn(&Site)) {
    for mode in Mode::all() {
        let _turn = alone();
        let site = Site::new(mode);
        body(&site);
        site.nothing_left("all of it");
    }
}

#[test]
fn a_box_outlives_its_creator() {
    check(|site| {
        let id = site.ok(&["create"]);
        assert_eq!(site.living(), [id.as_str()]);
        assert_eq!(site.ok(&["exec", &id, "--", "echo", "alive"]), "alive");
        site.ok(&["gc"]);
        assert_eq!(site.ok(&["exec", &id, "--", "echo", "alive"]), "alive");
        site.ok(&["kill", &id]);
    });
}

#[test]
fn a_box_dies_with_its_owner() {
    check(|site| {
        let mut owner = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = site.ok(&["create", "--owner", &owner.id().to_string()]);
        assert_eq!(site.ok(&["exec", &id, "--", "echo", "alive"]), "alive");
        let guest = site.guest(&id);
        owner.kill().unwrap();
        owner.wait().unwrap();
        victim::ends(&guest, "a box whose owner was killed");
        assert_eq!(site.living(), Vec::<String>::new());
        site.ok(&["gc"]);
    });
}

#[test]
fn a_box_of_an_owner_that_is_gone_is_refused() {
    check(|site| {
        let mut owner = Command::new("true").spawn().unwrap();
        owner.wait().unwrap();
        let told = site.refused(&["create", "--owner", &owner.id().to_string()]);
        assert!(told.contains("owner"), "{told}");
    });
}

#[test]
fn run_that_is_killed_takes_its_box_along() {
    check(|site| {
        let mut run = site.start(&["run", "--", "sh", "-c", "echo up; sleep 1000"]);
        says(&mut run, "up\n");
        let ids = site.living();
        let [id] = ids.as_slice() else { panic!("one box: {ids:?}") };
        let guest = site.guest(id);
        run.kill().unwrap();
        run.wait().unwrap();
        victim::ends(&guest, "the box of a `run` that was killed");
        site.ok(&["gc"]);
    });
}

#[test]
fn a_command_of_a_client_that_is_killed_ends_and_the_box_does_not() {
    check(|site| {
        let id = site.ok(&["create"]);
        let mut exec = site.start(&["exec", &id, "--", "sh", "-c", "echo $$; exec sleep 1000"]);
        // The number inside; every box counts from 1, and this is its first command.
        says(&mut exec, "2\n");
        exec.kill().unwrap();
        exec.wait().unwrap();
        // Waits inside the box for the end of the command that nobody reads any more.
        let wait = "while kill -0 2 2>/dev/null; do :; done; echo gone";
        assert_eq!(site.ok(&["exec", &id, "--timeout", "20s", "--", "sh", "-c", wait]), "gone");
        assert_eq!(site.living(), [id.as_str()]);
        site.ok(&["kill", &id]);
    });
}

#[test]
fn a_time_to_live_ends_with_nobody_watching() {
    check(|site| {
        let id = site.ok(&["create", "--ttl", "300ms"]);
        let guest = site.guest(&id);
        victim::ends(&guest, "a box of 300 ms");
        assert_eq!(site.living(), Vec::<String>::new());
        site.ok(&["gc"]);
    });
}

#[test]
fn a_box_that_has_died_is_told_and_removed() {
    check(|site| {
        let id = site.ok(&["create", "--name", "it"]);
        site.kill_guest(&id);
        for args in [vec!["exec", &id, "--", "true"], vec!["exec", "it", "--", "true"], vec!["ps", &id]] {
            let told = site.refused(&args);
            assert!(told.contains(&id) && told.contains("ended"), "{told}");
        }
        assert_eq!(site.json(&["info", &id])["state"], "dead");
        assert_eq!(site.ok(&["gc"]), id);
        let told = site.refused(&["exec", &id, "--", "true"]);
        assert!(told.contains("no box"), "{told}");
        assert_eq!(site.living(), Vec::<String>::new());
        // Its name is free again.
        let other = site.ok(&["create", "--name", "it"]);
        site.ok(&["kill", "it"]);
        assert_ne!(other, id);
    });
}

#[test]
fn a_caller_whose_box_is_killed_is_told() {
    check(|site| {
        let id = site.ok(&["create"]);
        let mut exec = site.start(&["exec", &id, "--", "sh", "-c", "echo up; sleep 1000"]);
        says(&mut exec, "up\n");
        site.kill_guest(&id);
        let (code, _, stderr) = end(exec);
        assert!(
            code == Some(125) && stderr.starts_with("glass: ") && stderr.lines().count() == 1,
            "{code:?} {stderr}"
        );
        site.ok(&["gc"]);
    });
}

#[test]
fn a_box_that_another_process_removed_is_no_zombie_of_ours() {
    let _turn = alone();
    guest_in_memory();
    let site = Site::new(if is_root() { Mode::Root } else { Mode::Rootless });
    let (threads, house) = (event_loop(), open(&site.house.home()));
    let limits = Limits { ttl: Some(Duration::from_millis(200)), ..Limits::default() };
    let sandbox = threads.block_on(house.create(SandboxSpec { limits, ..SandboxSpec::default() })).unwrap();
    let guest = process::open(sandbox.info().pid).unwrap();
    victim::ends(&guest, "a box of 200 ms");
    drop((guest, sandbox));
    site.ok(&["gc"]);
    // The box was made by this process, so only this process can collect it.
    threads.block_on(house.gc()).unwrap();
    drop((house, threads));
    site.nothing_left("a box that ended and was removed by another process");
}

/// Of houses that are dropped in the middle of a test nothing is left either.
#[test]
fn a_house_that_is_dropped_kills_its_boxes() {
    for mode in Mode::all() {
        let _turn = alone();
        let before = glasshouse_tests::leaks::Leaks::now(std::path::Path::new("/nowhere"));
        let house = House::new(mode);
        assert_eq!(house.run(&["create"]).0, 0);
        drop(house);
        before.settle(std::path::Path::new("/nowhere")).unwrap();
    }
}
