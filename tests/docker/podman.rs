//! Podman's service, which speaks as a Docker engine does.

use glasshouse_sandbox::{ErrorKind, Exit, Limits, RuntimeKind, Sandbox, SandboxSpec, SnapshotOptions};
use glasshouse_tests::podman::Podman;
use glasshouse_tests::skip;

use crate::stage::{open, perform, run, shell, spec, stdout_of};

#[test]
fn a_box_on_podman_lives_and_is_kept_forked_reset_and_removed() {
    perform(async |stage| {
        let dir = stage.place();
        let podman = match Podman::start(&dir) {
            Ok(podman) => podman,
            Err(why) => return skip("podman", &why),
        };
        let house = open(&stage.dir.path().join("other"), &podman.host());
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let sandbox = house.create(SandboxSpec { limits, ..spec() }).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "id -un; echo one > a; cat a").await, "user\none\n");
        let status = stdout_of(&sandbox, "grep -E 'CapBnd|CapEff|NoNew|Seccomp:' /proc/self/status").await;
        for line in
            ["CapBnd:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
        {
            assert!(status.contains(line), "{status}");
        }
        assert_eq!(stdout_of(&sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo\n");
        let greedy = run(&sandbox, shell("exec perl -e 'push @all, q(x) x 1048576 while 1'")).await.report;
        assert!(matches!(greedy.exit, Exit::OutOfMemory { .. }), "{greedy:?}");

        // Its storage is not read: the guest tells what a native box's layers would.
        let native = house.create(SandboxSpec { runtime: RuntimeKind::Native, ..spec() }).await.unwrap();
        stdout_of(&native, "echo one > a").await;
        let digest = async |of: &Sandbox| house.digest(of.id()).await.unwrap().digest;
        let told = async || house.diff(native.id(), Some(sandbox.id()), Default::default()).await.unwrap();
        assert_eq!(digest(&sandbox).await, digest(&native).await, "{:?}", told().await.changes);
        native.destroy().await.unwrap();

        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        stdout_of(&sandbox, "echo two > a").await;
        let fork = sandbox.fork(1).await.unwrap().remove(0);
        assert_eq!(stdout_of(&fork, "cat a").await, "two\n");
        sandbox.restore(&snapshot.id).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "cat a").await, "one\n");
        house.stop(sandbox.id()).await.unwrap();
        let again = house.start(sandbox.id()).await.unwrap();
        assert_eq!(stdout_of(&again, "cat a").await, "one\n");
        sandbox.reset().await.unwrap();
        assert_eq!(stdout_of(&sandbox, "ls -A").await, "");

        fork.destroy().await.unwrap();
        sandbox.destroy().await.unwrap();
        assert_eq!(house.list().await.unwrap(), []);
        let error = sandbox.exec(shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        house.remove_snapshot(&snapshot.id).await.unwrap();
        house.settle().await;
        house.gc().await.unwrap();
    });
}
