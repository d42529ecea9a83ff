//! State that the engine keeps: snapshots are images, and another root is another container.

use glasshouse_linux::rustix::process::{Pid, Signal, kill_process};
use glasshouse_sandbox::{
    Method, Recording, ReplayOptions, RuntimeKind, SandboxSpec, SandboxState, SnapshotOptions,
};

use crate::stage::{perform, run, shell, spec, stdout_of};

#[test]
fn a_snapshot_is_gone_back_to_and_forked() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        stdout_of(&sandbox, "echo one > a; echo gone > b").await;
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        assert_eq!(snapshot.method, Method::Commit);
        stdout_of(&sandbox, "echo two > a; rm b; echo new > c").await;
        let fork = stage.house.fork(&snapshot.id, 1).await.unwrap().remove(0);
        let fork = stage.house.get(fork.id()).await.unwrap();
        assert_eq!(fork.info().runtime.name(), "native", "a snapshot does not say where it wants to be");
        assert_eq!(stdout_of(&fork, "cat a b; ls").await, "one\ngone\na\nb\n");
        sandbox.restore(&snapshot.id).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "cat a b; ls").await, "one\ngone\na\nb\n");
        sandbox.reset().await.unwrap();
        assert_eq!(stdout_of(&sandbox, "ls -A").await, "");
        assert_eq!(stage.images().len(), 1);
        fork.destroy().await.unwrap();
        stage.house.remove_snapshot(&snapshot.id).await.unwrap();
        stage.house.settle().await;
        stage.house.gc().await.unwrap();
        assert_eq!(stage.images(), Vec::<String>::new(), "its image goes with a snapshot");
    });
}

#[test]
fn a_trajectory_of_one_runtime_replays_on_the_other() {
    perform(async |stage| {
        let recorded = |runtime| SandboxSpec { runtime, recording: Some(Recording::Steps), ..spec() };
        let runtimes = [RuntimeKind::Docker, RuntimeKind::Native];
        for (from, to) in [(runtimes[0], runtimes[1]), (runtimes[1], runtimes[0])] {
            let sandbox = stage.create(recorded(from)).await;
            for line in ["echo one > a; cat a", "mkdir d; mv a d/b; ls -R", "exit 3"] {
                run(&sandbox, shell(line)).await;
            }
            let id = sandbox.id().to_owned();
            sandbox.destroy().await.unwrap();
            let (trajectory, _) = stage.house.trajectory(&id).unwrap();
            let ground = stage.create(recorded(to)).await;
            let replay = stage.house.replay(&ground, &trajectory, ReplayOptions::default()).await.unwrap();
            let replayed = replay.run(|_| ()).await.unwrap();
            assert_eq!((replayed.done, replayed.is_same()), (3, true), "{from:?} to {to:?}: {replayed:?}");
            assert_eq!(replayed.notes, Vec::<String>::new(), "files are compared, too");
        }
    });
}

#[test]
fn forks_of_a_box_are_its_equals_and_share_nothing() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        stdout_of(&sandbox, "echo one > a").await;
        let forks = sandbox.fork(2).await.unwrap();
        for (n, fork) in forks.iter().enumerate() {
            assert_eq!(fork.info().runtime, sandbox.info().runtime);
            assert_eq!(stdout_of(fork, "cat a").await, "one\n");
            stdout_of(fork, &format!("echo {n} > a")).await;
        }
        assert_eq!(stdout_of(&sandbox, "cat a").await, "one\n");
        assert_eq!(stdout_of(&forks[0], "cat a").await, "0\n");
        for fork in forks {
            fork.destroy().await.unwrap();
        }
    });
}

#[test]
fn a_stopped_box_starts_on_what_it_had_written() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        let id = sandbox.id().to_owned();
        stdout_of(&sandbox, "echo kept > a").await;
        stage.house.stop(&id).await.unwrap();
        assert_eq!(stage.house.info(&id).await.unwrap().state, SandboxState::Stopped);
        assert_eq!(stage.house.list().await.unwrap().len(), 1, "it is not taken for dead");
        let again = stage.house.start(&id).await.unwrap();
        assert_eq!(stdout_of(&again, "cat a").await, "kept\n");
        // Whoever held it before goes on with it.
        assert_eq!(stdout_of(&sandbox, "cat a").await, "kept\n");
    });
}

/// Who looks after a container for the engine, held up: the engine learns late of what happens in it.
struct HeldUp(Pid);

impl HeldUp {
    fn new(first_process: i32) -> HeldUp {
        let stat = std::fs::read_to_string(format!("/proc/{first_process}/stat")).unwrap();
        let parent = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap();
        let shim = Pid::from_raw(parent.parse().unwrap()).unwrap();
        kill_process(shim, Signal::STOP).unwrap();
        HeldUp(shim)
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn a_box_is_started_again_though_the_engine_learns_late_that_it_ended() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        let id = sandbox.id().to_owned();
        stdout_of(&sandbox, "echo kept > a").await;
        let held_up = HeldUp::new(sandbox.info().pid);
        stage.house.stop(&id).await.unwrap();
        // Whichever comes first, it starts. Most likely the engine is asked while it does not know yet.
        let learns = async {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            drop(held_up);
        };
        let (again, ()) = tokio::join!(stage.house.start(&id), learns);
        assert_eq!(stdout_of(&again.unwrap(), "cat a").await, "kept\n");
    });
}

#[test]
fn the_digest_of_a_container_is_that_of_a_native_box_with_the_same_files() {
    perform(async |stage| {
        let native = stage.house.create(SandboxSpec::default()).await.unwrap();
        let sandbox = stage.sandbox().await;
        let digest = async |id: &str| stage.house.digest(id).await.unwrap().digest;
        let lines = ["true", "mkdir -p d/e; echo text > d/e/f; ln -s f d/e/g", "rm -r d; chmod 700 ."];
        for line in lines {
            stdout_of(&native, line).await;
            stdout_of(&sandbox, line).await;
            assert_eq!(digest(sandbox.id()).await, digest(native.id()).await, "after {line}");
        }
        stdout_of(&sandbox, "echo x > more").await;
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        assert_eq!(digest(sandbox.id()).await, digest(&snapshot.id).await);
    });
}

#[test]
fn steps_are_recorded_with_what_they_changed() {
    perform(async |stage| {
        let sandbox = stage.create(SandboxSpec { recording: Some(Recording::Steps), ..spec() }).await;
        stdout_of(&sandbox, "echo text > file").await;
        let diff = stage.house.diff(sandbox.id(), None, Default::default()).await.unwrap();
        let paths: Vec<_> = diff.changes.iter().map(|difference| difference.path.clone()).collect();
        assert_eq!(paths, [b"/workspace/file".to_vec()]);
    });
}
