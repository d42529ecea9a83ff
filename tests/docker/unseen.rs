//! States on engines whose storage cannot be read from here: elsewhere, with other users, by another driver. They are told
//! by the guest and saved by the engine, and are the same as a native box's with the same files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use glasshouse_sandbox::{
    Content, DiffOptions, Error, ErrorKind, ExportOptions, Image, Recording, ReplayOptions, RuntimeKind,
    Sandbox, SandboxSpec, Sandboxes, SnapshotInfo, SnapshotOptions,
};
use glasshouse_tests::engine::{Manner, PrivateEngine, is_new_store};
use glasshouse_tests::skip;

use crate::far::{Far, small};
use crate::stage::{Stage, open, perform, run, shell, spec, stdout_of};

/// What is done to a box, as far as a shell and busybox can, each line a state of its own.
const LINES: [&str; 9] = [
    "true",
    "busybox mkdir -p /a/b/c; echo one > /a/b/c/file; echo two > /top",
    "busybox chmod 4711 /a/b/c/file; busybox chmod 0700 /a; busybox ln -s ../top /a/link",
    "busybox ln /top /a/hard; busybox mkfifo /a/pipe; busybox truncate -s 1T /a/huge; echo x >> /a/huge",
    "rm /bin/tail; busybox mv /bin/nc /bin/moved; busybox mkdir /etc/d; echo name > /etc/d/hostile",
    // The same size and the same time as before.
    "busybox touch -r /top /ref; echo TWO > /top; busybox touch -r /ref /top",
    // So with a file of the image: engines that compare trees take it for the one that it was.
    "busybox touch -r /etc/kept /ref; echo TWO > /etc/kept; busybox touch -r /ref /etc/kept",
    "busybox chmod 0 /a/b/c/file; busybox rm -r /a/huge",
    "busybox rm -r /bin/sleep; busybox mkdir /bin/sleep; busybox ln -s nowhere /bin/sleep/sh",
];

/// A tree with the directories that every runtime mounts on.
fn tree(stage: &Stage) -> PathBuf {
    let tree = small(stage.dir.path());
    for dir in ["dev", "etc", "proc", "sys", "tmp"] {
        std::fs::create_dir_all(tree.join(dir)).unwrap();
    }
    // Not what engines make of it.
    std::fs::set_permissions(tree.join("etc"), Permissions::from_mode(0o711)).unwrap();
    std::fs::write(tree.join("etc/hosts"), "127.0.0.1 here\n").unwrap();
    std::fs::write(tree.join("etc/kept"), "one\n").unwrap();
    // Long ago: an engine that goes by times knows them to the second, and what is touched in the same one is as before.
    let kept = std::fs::File::options().write(true).open(tree.join("etc/kept")).unwrap();
    kept.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    tree
}

/// Both boxes, after each of the lines.
async fn compare(house: &Sandboxes, native: &Sandbox, there: &Sandbox) {
    let mut seen = Vec::new();
    for line in LINES {
        // Whether a line succeeds is no part of a state, and the same in both.
        let ends = [run(native, shell(line)).await.report.exit, run(there, shell(line)).await.report.exit];
        assert_eq!(ends[0], ends[1], "{line}");
        let (here, other) =
            (house.digest(native.id()).await.unwrap(), house.digest(there.id()).await.unwrap());
        let told = async || house.diff(native.id(), Some(there.id()), DiffOptions::default()).await.unwrap();
        assert_eq!(other.digest, here.digest, "{line}: {:?}", told().await.changes);
        assert!(!other.racy && !seen.contains(&here.digest), "{line}");
        seen.push(here.digest);
    }
    let options = DiffOptions { content: true };
    let changes = async |of: &Sandbox| house.diff(of.id(), None, options).await.unwrap().changes;
    let (here, other) = (changes(native).await, changes(there).await);
    assert_eq!(other, here);
    let top = other.iter().find(|change| change.path == b"/top").unwrap();
    assert_eq!(top.content, Some(Content::Text("@@ -0,0 +1 @@\n+TWO\n".into())));
}

/// How an engine finds out what is to be in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notices {
    /// By what is in a container's own layer.
    All,
    /// By sizes and times: what it does not notice is not lost, but refused.
    Most,
}

async fn take(there: &Sandbox, notices: Notices) -> SnapshotInfo {
    let taken = there.snapshot(SnapshotOptions::default()).await;
    if notices == Notices::All {
        return taken.unwrap();
    }
    let error = taken.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("done to /etc/kept: the engine takes it for what it was"), "{error}");
    assert_eq!(stdout_of(there, "busybox touch /etc/kept; cat /etc/kept").await, "TWO\n", "it goes on");
    there.snapshot(SnapshotOptions::default()).await.unwrap()
}

/// All that can be asked about states, on an engine.
async fn look(house: &Sandboxes, image: Image, notices: Notices) {
    let spec = || SandboxSpec { image: image.clone(), user: Some("root".into()), ..spec() };
    let native = house.create(SandboxSpec { runtime: RuntimeKind::Native, ..spec() }).await.unwrap();
    let there = house.create(spec()).await.unwrap();
    compare(house, &native, &there).await;
    let digest = house.digest(there.id()).await.unwrap().digest;

    // A snapshot is the same, a fork of it too, and what is written to a file.
    let snapshot = take(&there, notices).await;
    let differs = house.diff(there.id(), Some(&snapshot.id), DiffOptions::default()).await.unwrap();
    assert_eq!(differs.changes, []);
    assert_eq!(house.digest(&snapshot.id).await.unwrap().digest, digest);
    let fork = there.fork(1).await.unwrap().remove(0);
    assert_eq!(house.digest(fork.id()).await.unwrap().digest, digest);
    assert_eq!(house.diff(fork.id(), None, DiffOptions::default()).await.unwrap().changes, []);
    // Made native, it is one as well.
    let image = Image::Snapshot(snapshot.id.clone());
    let twin = SandboxSpec { runtime: RuntimeKind::Native, image, ..spec() };
    let twin = house.create(twin).await.unwrap();
    assert_eq!(house.digest(twin.id()).await.unwrap().digest, digest);
    assert_eq!(stdout_of(&twin, "cat /top /etc/kept").await, "TWO\nTWO\n");
    twin.destroy().await.unwrap();
    let exported = house.export(&snapshot.id, ExportOptions::default(), std::io::sink()).await.unwrap();
    assert_eq!(exported.digest, digest);

    // Nobody is there to tell of a stopped one.
    house.stop(fork.id()).await.unwrap();
    let told = |error: Error| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("glass start"), "{error}");
    };
    told(house.digest(fork.id()).await.unwrap_err());
    if notices == Notices::Most {
        told(house.snapshot(fork.id(), SnapshotOptions::default()).await.unwrap_err());
    }
    fork.destroy().await.unwrap();

    there.restore(&snapshot.id).await.unwrap();
    assert_eq!(house.digest(there.id()).await.unwrap().digest, digest);
    let (_, verified) = house.reset_verified(there.id()).await.unwrap();
    assert_eq!(verified.difference, None);
    let (_, verified) = house.reset_verified(native.id()).await.unwrap();
    assert_eq!(verified.difference, None);
    assert_eq!(
        house.digest(there.id()).await.unwrap().digest,
        house.digest(native.id()).await.unwrap().digest
    );
    for one in [native, there] {
        one.destroy().await.unwrap();
    }
    house.remove_snapshot(&snapshot.id).await.unwrap();
    replays(house, spec()).await;
}

/// What is recorded natively replays there, and the other way round.
async fn replays(house: &Sandboxes, spec: SandboxSpec) {
    let recorded = |runtime| SandboxSpec { runtime, recording: Some(Recording::Steps), ..spec.clone() };
    let runtimes = [RuntimeKind::Native, RuntimeKind::Docker];
    for (from, to) in [(runtimes[0], runtimes[1]), (runtimes[1], runtimes[0])] {
        let sandbox = house.create(recorded(from)).await.unwrap();
        for line in ["echo one > /a; cat /a", "busybox mkdir /d; busybox mv /a /d/b; ls -R /d", "exit 3"] {
            run(&sandbox, shell(line)).await;
        }
        let id = sandbox.id().to_owned();
        sandbox.destroy().await.unwrap();
        let (trajectory, _) = house.trajectory(&id).unwrap();
        let ground = house.create(recorded(to)).await.unwrap();
        let replay = house.replay(&ground, &trajectory, ReplayOptions::default()).await.unwrap();
        let replayed = replay.run(|_| ()).await.unwrap();
        assert_eq!((replayed.done, replayed.is_same()), (3, true), "{from:?} to {to:?}: {replayed:?}");
        assert_eq!(replayed.notes, Vec::<String>::new(), "files are compared, too");
        ground.destroy().await.unwrap();
    }
}

async fn look_on(stage: &Stage, manner: &Manner, notices: Notices) {
    let engine = PrivateEngine::start_as(&stage.place(), manner).unwrap();
    let house = open(&stage.dir.path().join("other"), &engine.host());
    look(&house, Image::Directory(tree(stage)), notices).await;
    house.settle().await;
    house.gc().await.unwrap();
    engine.end();
}

#[test]
fn states_elsewhere_are_those_of_native_boxes() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        look(&house, Image::Directory(tree(stage)), Notices::All).await;
        far.end(house).await;
    });
}

#[test]
fn states_by_another_driver_are_those_of_native_boxes() {
    perform(async |stage| {
        let driver = if is_new_store() { "native" } else { "vfs" };
        let args = vec![format!("--storage-driver={driver}")];
        look_on(stage, &Manner { args, ..Manner::default() }, Notices::Most).await;
    });
}

#[test]
fn states_of_remapped_users_are_those_of_native_boxes() {
    perform(async |stage| {
        if is_new_store() {
            return skip(
                "remapped",
                "engines do not commit such containers of containerd's store themselves",
            );
        }
        look_on(stage, &Manner::remapping(&stage.place()), Notices::All).await;
    });
}

#[test]
fn an_image_of_the_engine_is_fetched_once_to_be_compared_with() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let tree = tree(stage);
        std::fs::write(tree.join("etc/os"), "one\n").unwrap();
        std::fs::write(tree.join("proc/none"), "").unwrap();
        far.engine.import(&tree, "local/small");
        let root = |runtime, image| SandboxSpec { runtime, image, user: Some("root".into()), ..spec() };
        let there =
            house.create(root(RuntimeKind::Docker, Image::Engine("local/small".into()))).await.unwrap();
        let native = house.create(root(RuntimeKind::Native, Image::Directory(tree))).await.unwrap();
        let line = "echo two > /etc/os; rm /bin/tail";
        for one in [&there, &native] {
            stdout_of(one, line).await;
        }
        let digests = [house.digest(native.id()).await.unwrap(), house.digest(there.id()).await.unwrap()];
        let told = async || house.diff(native.id(), Some(there.id()), DiffOptions::default()).await.unwrap();
        assert_eq!(digests[0].digest, digests[1].digest, "{:?}", told().await.changes);
        let changes = house.diff(there.id(), None, DiffOptions { content: true }).await.unwrap().changes;
        let paths: Vec<_> = changes.iter().map(|change| change.path.as_slice()).collect();
        assert_eq!(paths, [&b"/bin/tail"[..], b"/etc/os"]);
        assert_eq!(changes[1].content, Some(Content::Text("@@ -1 +1 @@\n-one\n+two\n".into())));
        // Once is enough: the engine may forget its name.
        let (_, verified) = house.reset_verified(there.id()).await.unwrap();
        assert_eq!(verified.difference, None);
        there.destroy().await.unwrap();
        native.destroy().await.unwrap();
        house.settle().await;
        house.gc().await.unwrap();
        let left: Vec<_> = std::fs::read_dir(far.home.join("layers")).unwrap().flatten().collect();
        assert!(left.is_empty(), "what was fetched goes with who needed it: {left:?}");
        far.end(house).await;
    });
}

/// A box that has done what no engine lists as a change, nor keeps: an attribute of a file. And what it has done beside that.
async fn mark(house: &Sandboxes, tree: PathBuf) -> Sandbox {
    let user = Some("root".into());
    let sandbox = house.create(SandboxSpec { image: Image::Directory(tree), user, ..spec() }).await.unwrap();
    stdout_of(&sandbox, "/tool mark /etc/kept; echo new > /new").await;
    let changes = house.diff(sandbox.id(), None, DiffOptions::default()).await.unwrap().changes;
    let told: Vec<_> = changes.iter().map(|change| (&change.path[..], &change.what[..])).collect();
    assert_eq!(told, [(&b"/etc/kept"[..], &["xattrs"][..]), (b"/new", &[])], "a digest has it, and a diff");
    sandbox
}

#[test]
fn attributes_of_files_are_told_and_no_part_of_an_engines_snapshot() {
    perform(async |stage| {
        let tree = tree(stage);
        glasshouse_tests::trees::scratch(&tree).unwrap();
        let house = &stage.house;
        let sandbox = mark(house, tree.clone()).await;
        let listed = stage.engine.docker(&["diff", &stage.containers()[0]]);
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("/new") && !listed.contains("/etc/kept"), "{listed}");
        // Whoever wants to know what a snapshot is without can ask.
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        let differs = house.diff(sandbox.id(), Some(&snapshot.id), DiffOptions::default()).await.unwrap();
        let differs: Vec<_> = differs.changes.iter().map(|change| &change.path[..]).collect();
        assert_eq!(differs, [b"/etc/kept"]);

        // Where it is looked at what the engine misses, it is refused.
        let driver = if is_new_store() { "native" } else { "vfs" };
        let args = vec![format!("--storage-driver={driver}")];
        let engine = PrivateEngine::start_as(&stage.place(), &Manner { args, ..Manner::default() }).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = mark(&house, tree).await;
        let error = sandbox.snapshot(SnapshotOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("/etc/kept: it has attributes"), "{error}");
        sandbox.destroy().await.unwrap();
        engine.end();
    });
}

#[test]
fn what_an_engines_list_of_changes_is_without_is_in_ours() {
    perform(async |stage| {
        let sandbox = stage.create(SandboxSpec { image: Image::Directory(tree(stage)), ..spec() }).await;
        let forge = "busybox touch -r /etc/kept /tmp/ref; echo TWO > /etc/kept; busybox touch -r /tmp/ref /etc/kept; rm /tmp/ref";
        stdout_of(&sandbox.as_user("root"), forge).await;
        let listed = stage.engine.docker(&["diff", &stage.containers()[0]]);
        assert!(listed.status.success(), "{listed:?}");
        assert!(!String::from_utf8(listed.stdout).unwrap().contains("/etc/kept"), "so it is no diff");
        let changes =
            stage.house.diff(sandbox.id(), None, DiffOptions { content: true }).await.unwrap().changes;
        let kept = changes.iter().find(|change| change.path == b"/etc/kept").unwrap();
        assert_eq!(kept.content, Some(Content::Text("@@ -1 +1 @@\n-one\n+TWO\n".into())));
        // It is in the container's own layer, and so in a snapshot.
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        let differs =
            stage.house.diff(sandbox.id(), Some(&snapshot.id), DiffOptions::default()).await.unwrap();
        assert_eq!(differs.changes, []);
    });
}
