//! What others do to a box's container, or to the engine, and how that is told.

use std::process::Command;

use glasshouse_sandbox::{ErrorKind, ExecSpec, Exit, Image, Limits, SandboxSpec, SnapshotOptions};
use glasshouse_tests::engine::{Manner, PrivateEngine, is_new_store, left_of, mounts_below};
use glasshouse_tests::skip;

use crate::stage::{argv, open, perform, run, settle, shell, spec, stdout_of};

#[test]
fn a_container_that_is_removed_behind_our_back_is_gone() {
    for act in [&["rm", "-f"][..], &["kill"], &["stop", "-t", "0"]] {
        perform(async |stage| {
            let sandbox = stage.sandbox().await;
            let exec = sandbox.exec(shell("echo begun; exec sleep 1000")).await.unwrap();
            let container = stage.containers().remove(0);
            let done = stage.engine.docker(&[act, &[container.as_str()]].concat());
            assert!(done.status.success(), "{done:?}");
            let end = exec.collect().await.report.exit;
            assert!(matches!(end, Exit::BoxGone { .. }), "{act:?}: {end:?}");
            let error = sandbox.exec(shell("true")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
            assert_eq!(stage.house.list().await.unwrap(), [], "it is cleaned up");
        });
    }
}

#[test]
fn an_engine_that_is_not_there_is_said_and_stops_nothing_else() {
    perform(async |stage| {
        let house = open(&stage.dir.path().join("other"), "unix:///nowhere/docker.sock");
        let error = house.create(spec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("/nowhere/docker.sock"), "{error}");
        assert_eq!(house.list().await.unwrap(), []);
        house.gc().await.unwrap();
    });
}

#[test]
fn a_box_whose_time_is_up_ends_without_anybody_and_leaves_no_container() {
    perform(async |stage| {
        let limits = Limits { ttl: Some(std::time::Duration::from_secs(5)), ..Limits::default() };
        let sandbox = stage.create(SandboxSpec { limits, ..spec() }).await;
        // On a busy machine the time may be up before this begins.
        match sandbox.exec(shell("exec sleep 1000")).await {
            Ok(exec) => assert!(!exec.collect().await.report.exit.success()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Gone, "{error}"),
        }
        settle("the box is listed no more", async || stage.house.list().await.unwrap().is_empty()).await;
        assert_eq!(stage.containers(), Vec::<String>::new());
    });
}

#[test]
fn a_disk_limit_that_the_storage_driver_cannot_keep_is_refused() {
    perform(async |stage| {
        let limits = Limits { disk_bytes: Some(64 << 20), ..Limits::default() };
        match stage.house.create(SandboxSpec { limits, ..spec() }).await {
            // Only on xfs with project quotas.
            Ok(sandbox) => {
                assert!(!is_new_store() && sandbox.info().limits.iter().any(|limit| limit.name == "disk"))
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("storage-opt"), "the engine's reason is told: {error}");
                let report = stage.house.doctor().await;
                let report = report.into_iter().find(|report| report.runtime.name() == "docker").unwrap();
                let row = report.features.iter().find(|feature| feature.name == "disk limit").unwrap();
                let driver = if is_new_store() { "containerd" } else { "overlay2" };
                assert!(!row.ok && row.detail.contains(driver), "it is said before, too: {row:?}");
            }
        }
        assert_eq!(stage.house.list().await.unwrap().len(), stage.containers().len());
    });
}

#[test]
fn a_disk_limit_is_kept_where_the_storage_driver_has_quotas() {
    perform(async |stage| {
        let dir = stage.place();
        let (disk, data) = (dir.join("disk"), dir.join("data"));
        std::fs::File::create(&disk).unwrap().set_len(512 << 20).unwrap();
        let make = Command::new("mkfs.btrfs").arg("-q").arg(&disk).output();
        if !make.is_ok_and(|make| make.status.success()) {
            return skip("disks", "no btrfs: mkfs.btrfs is missing");
        }
        let mounts = format!("mount -t btrfs -o loop {} {}", disk.display(), data.display());
        let manner =
            Manner { args: vec!["--storage-driver=btrfs".into()], mounts: Some(mounts), ..Manner::default() };
        let engine = PrivateEngine::start_as(&dir, &manner).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let limits = Limits { disk_bytes: Some(32 << 20), ..Limits::default() };
        let made = house.create(SandboxSpec { limits, ..spec() }).await;
        if is_new_store() {
            let error = made.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "it would take it and not keep it: {error}");
            return engine.end();
        }
        let sandbox = made.unwrap();
        let limit = sandbox.info().limits.iter().find(|limit| limit.name == "disk").unwrap();
        assert_eq!(limit.amount, Some(32 << 20), "{limit:?}");
        let fill =
            "head -c 64M /dev/zero > big || echo refused; [ $(stat -c %s big) -le 33554432 ] && echo bounded";
        assert_eq!(stdout_of(&sandbox, fill).await, "refused\nbounded\n");
        // Quotas of btrfs are not in what the file system says of its room, by which a full disk is known elsewhere.
        let end = run(&sandbox, shell("exec head -c 64M /dev/zero > more")).await.report.exit;
        assert!(matches!(end, Exit::Code { code: 1.. }), "{end:?}");
        sandbox.destroy().await.unwrap();
        engine.end();
    });
}

#[test]
fn a_command_that_fills_the_engines_disk_is_ended_as_such() {
    perform(async |stage| {
        let dir = stage.place();
        // The room that is kept is 1 GiB.
        let mounts = format!("mount -t tmpfs -o size=1200m none {}", dir.join("data").display());
        let manner = Manner { mounts: Some(mounts), ..Manner::default() };
        let engine = PrivateEngine::start_as(&dir, &manner).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = house.create(spec()).await.unwrap();
        let end = run(&sandbox, shell("head -c 400M /dev/zero > big; exec sleep 1000")).await.report.exit;
        assert!(matches!(end, Exit::DiskFull { .. }), "{end:?}");
        sandbox.destroy().await.unwrap();
        engine.end();
    });
}

#[test]
fn an_engine_without_room_for_an_image_says_that_its_disk_is_full() {
    perform(async |stage| {
        let dir = stage.place();
        let mounts = format!("mount -t tmpfs -o size=8m none {}", dir.join("data").display());
        let manner = Manner { mounts: Some(mounts), ..Manner::default() };
        let engine = PrivateEngine::start_as(&dir, &manner).unwrap();
        let tree = stage.dir.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("big"), vec![7; 32 << 20]).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let error = house.create(SandboxSpec { image: Image::Directory(tree), ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull, "{error}");
        assert_eq!(house.list().await.unwrap(), []);
        engine.end();
    });
}

#[test]
fn an_engine_that_is_restarted_ends_its_boxes_and_makes_others() {
    perform(async |stage| {
        let dir = stage.place();
        let engine = PrivateEngine::start(&dir).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = house.create(spec()).await.unwrap();
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        engine.end();
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::BoxGone { .. }), "{end:?}");
        let engine = PrivateEngine::start(&dir).unwrap();
        let error = sandbox.exec(shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert_eq!(house.list().await.unwrap(), []);
        let another = house.create(spec()).await.unwrap();
        assert_eq!(stdout_of(&another, "echo here").await, "here\n");
        another.destroy().await.unwrap();
        assert_eq!(engine.docker(&["ps", "-aq"]), "", "nothing of either is left");
        engine.end();
    });
}

#[test]
fn a_command_whose_time_is_up_and_one_that_is_killed_end_as_such() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        let timeout_ms = Some(100);
        let end = run(&sandbox, ExecSpec { timeout_ms, ..shell("exec sleep 1000") }).await.report.exit;
        assert_eq!(end, Exit::TimedOut);
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        exec.input().kill().await.unwrap();
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::Killed { .. }), "{end:?}");
        assert_eq!(stdout_of(&sandbox, "echo alive").await, "alive\n");
    });
}

#[test]
fn what_a_killed_maker_left_is_collected() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        let id = sandbox.id().to_owned();
        drop(sandbox);
        // As if its record had never been written, and its directory was lost.
        let home = stage.dir.path().join("home");
        std::fs::remove_dir_all(home.join("boxes").join(&id)).unwrap();
        assert_eq!(stage.containers().len(), 1);
        assert_eq!(stage.house.gc().await.unwrap().containers, 1);
        assert_eq!(stage.containers(), Vec::<String>::new());
    });
}

#[test]
fn an_engine_that_is_killed_takes_no_box_along_and_is_not_needed_by_its_commands() {
    perform(async |stage| {
        let dir = stage.dir.path().join("engine");
        std::fs::create_dir(&dir).unwrap();
        let engine = PrivateEngine::start(&dir).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = house.create(spec()).await.unwrap();
        engine.kill();
        assert_eq!(stdout_of(&sandbox, "echo still here").await, "still here\n");
        assert_eq!(house.list().await.unwrap().len(), 1);
        let error = house.snapshot(sandbox.id(), SnapshotOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        // It cannot be removed without its engine: it stays on record, and is removed when there is one.
        let error = house.destroy(sandbox.id()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(house.list().await.unwrap().len(), 1, "others are listed, whatever an engine does");
        let engine = PrivateEngine::start(&dir).unwrap();
        assert_eq!(house.list().await.unwrap(), []);
        engine.end();
        assert_eq!(mounts_below(&dir), Vec::<std::path::PathBuf>::new(), "the directory can be removed");
    });
}

#[test]
fn an_engine_of_a_test_that_failed_leaves_nothing() {
    perform(async |stage| {
        let dir = stage.place();
        let engine = PrivateEngine::start(&dir).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = house.create(SandboxSpec { owner: None, ..spec() }).await.unwrap();
        let first = std::path::PathBuf::from(format!("/proc/{}/ns", sandbox.info().pid));
        assert!(first.exists() && !left_of(&dir).is_empty());
        // As at the end of a panic.
        drop(engine);
        assert_eq!(left_of(&dir), Vec::<i32>::new());
        assert!(std::fs::read_link(first.join("mnt")).is_err(), "what ran in it is gone, too");
        assert_eq!(mounts_below(&dir), Vec::<std::path::PathBuf>::new());
    });
}

#[test]
fn a_box_out_of_memory_says_so_and_lives() {
    perform(async |stage| {
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let sandbox = stage.create(SandboxSpec { limits, ..spec() }).await;
        let greedy = run(&sandbox, shell("exec perl -e 'push @all, q(x) x 1048576 while 1'")).await.report;
        assert!(matches!(greedy.exit, Exit::OutOfMemory { .. }), "{greedy:?}");
        assert_eq!(stdout_of(&sandbox, "echo alive").await, "alive\n");
    });
}

#[test]
fn memory_that_belongs_to_no_process_does_not_take_the_guest_along() {
    perform(async |stage| {
        let limits = Limits { memory_bytes: Some(32 << 20), ..Limits::default() };
        let sandbox = stage.create(SandboxSpec { limits, ..spec() }).await;
        let script =
            "for (1..100) { $id = shmget(0, 1 << 20, 01600); shmwrite($id, q(x) x (1 << 20), 0, 1 << 20) }";
        let end = run(&sandbox, argv(&["perl", "-e", script])).await.report.exit;
        assert!(matches!(end, Exit::OutOfMemory { .. }), "{end:?}");
        sandbox.execs().await.expect("the guest lives, and tells of it");
    });
}
