//! Directories of the host in a box: only those that are allowed, and nothing beside them.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::PathBuf;

use glasshouse_sandbox::{
    DiffOptions, ErrorKind, ExecSpec, Image, RuntimeKind, Sandbox, SandboxSpec, SnapshotOptions, Volume,
};
use glasshouse_tests::is_root;

use crate::follow::Follow;
use crate::stage::{Stage, on_every_runtime, open, perl, run, shell, stdout_of, text};

on_every_runtime![
    a_volume_is_shared_by_box_and_host,
    a_read_only_volume_cannot_be_written,
    a_volume_outlives_every_root_of_its_box,
    a_volume_is_no_part_of_the_state,
    what_is_not_allowed_is_refused,
    a_link_of_the_image_leads_no_volume_astray,
    a_box_that_exchanges_what_others_are_given_gains_nothing,
];

/// A directory of the host that boxes may be given, and that their user may write.
fn shared(stage: &Stage, name: &str) -> PathBuf {
    let below = stage.dir().join("shared");
    let dir = below.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    if is_root() {
        // The user of boxes of the image `host`.
        chown(&dir, Some(1000), Some(1000)).unwrap();
    }
    stage.house.allow_volumes(vec![below]).unwrap();
    dir
}

fn with(volumes: &[Volume]) -> SandboxSpec {
    SandboxSpec { volumes: volumes.to_vec(), ..SandboxSpec::default() }
}

/// A box with one volume at /data; none on a runtime without walls, which has to say so.
async fn sharing(stage: &Stage, dir: &PathBuf, read_only: bool) -> Option<Sandbox> {
    let spec = with(&[Volume::new(dir, "/data", read_only)]);
    if stage.runtime == RuntimeKind::Process {
        let error = stage.refusal(spec).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return None;
    }
    Some(stage.create(spec).await.unwrap())
}

async fn a_volume_is_shared_by_box_and_host(stage: &Stage) {
    let dir = shared(stage, "v");
    std::fs::write(dir.join("from-host"), "of the host").unwrap();
    let Some(sandbox) = sharing(stage, &dir, false).await else { return };
    assert_eq!(stdout_of(&sandbox, "cat /data/from-host").await, "of the host");
    stdout_of(&sandbox, "mkdir /data/d; echo of the box > /data/d/from-box").await;
    let file = dir.join("d/from-box");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of the box\n");
    let owner = if is_root() { 1000 } else { std::fs::metadata(&dir).unwrap().uid() };
    assert_eq!(std::fs::metadata(&file).unwrap().uid(), owner, "the owner is the same on both sides");
    assert_eq!(stdout_of(&sandbox, "stat -c %u /data/d/from-box; id -u").await, "1000\n1000\n");
    sandbox.write_file("/data/by-operation", b"x", None).await.unwrap();
    assert_eq!(std::fs::read(dir.join("by-operation")).unwrap(), b"x");
    if stage.runtime == RuntimeKind::Native {
        let mounts = stdout_of(&sandbox, "grep ' /data ' /proc/self/mountinfo").await;
        assert!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");
    }
    let told = stage.house.info(sandbox.id()).await.unwrap().volumes;
    assert_eq!(told[0].to_string(), format!("{}:/data", dir.display()));
    sandbox.destroy().await.unwrap();
    assert!(file.exists(), "what is in a volume is not the box's to take away");
}

async fn a_read_only_volume_cannot_be_written(stage: &Stage) {
    let dir = shared(stage, "v");
    std::fs::write(dir.join("file"), "x").unwrap();
    let Some(sandbox) = sharing(stage, &dir, true).await else { return };
    for line in ["echo y > /data/file", "touch /data/new", "rm /data/file", "chmod 777 /data"] {
        let output = run(&sandbox, shell(line)).await;
        assert!(!output.report.exit.success(), "{line}");
    }
    sandbox.write_file("/data/file", b"y", None).await.unwrap_err();
    assert_eq!(std::fs::read_to_string(dir.join("file")).unwrap(), "x");
}

async fn a_volume_outlives_every_root_of_its_box(stage: &Stage) {
    let dir = shared(stage, "v");
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let sandbox = stage.create(with(&[Volume::new(&dir, "/srv/a/b", false)])).await.unwrap();
    let check = async |sandbox: &Sandbox, word: &str| {
        stdout_of(sandbox, &format!("echo {word} >> /srv/a/b/words")).await;
        assert!(
            std::fs::read_to_string(dir.join("words")).unwrap().ends_with(&format!("{word}\n")),
            "{word}"
        );
    };
    check(&sandbox, "made").await;
    let taken = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    check(&sandbox, "kept").await;
    // Box root may move what is above it. That is its own loss, until the next root. (Not by `mv`, which copies and removes where
    // the kernel cannot.)
    let user = stage.has_root().then(|| "root".into());
    run(&sandbox, ExecSpec { user, ..perl(r#"rename "/srv/a", "/srv/c""#) }).await;
    // Whoever gives it another root need not be allowed to give volumes.
    let other = open(&stage.home());
    let (_, verified) = other.reset_verified(sandbox.id()).await.unwrap();
    assert_eq!(verified.difference, None, "the way to a volume is nothing that the box left");
    check(&sandbox, "reset").await;
    other.restore(sandbox.id(), &taken.id).await.unwrap();
    check(&sandbox, "restored").await;
    other.stop(sandbox.id()).await.unwrap();
    let again = other.start(sandbox.id()).await.unwrap();
    check(&again, "started").await;
    let words = std::fs::read_to_string(dir.join("words")).unwrap();
    assert_eq!(words.lines().count(), 5, "nothing of it was undone: {words}");
}

async fn a_volume_is_no_part_of_the_state(stage: &Stage) {
    let dir = shared(stage, "v");
    let Some(sandbox) = sharing(stage, &dir, false).await else { return };
    // Whether it is marked as racy is a matter of how long ago the box was made.
    let digest = async || stage.house.digest(sandbox.id()).await.unwrap().digest;
    let before = digest().await;
    stdout_of(&sandbox, "echo x > /data/file").await;
    assert_eq!(digest().await, before);
    let diff = stage.house.diff(sandbox.id(), None, DiffOptions::default()).await.unwrap();
    assert!(!format!("{diff:?}").contains("data/file"), "{diff:?}");
    let [fork] = &sandbox.fork(1).await.unwrap()[..] else { panic!("one was wanted") };
    stdout_of(fork, "echo by the fork > /data/shared").await;
    assert_eq!(stdout_of(&sandbox, "cat /data/shared").await, "by the fork\n", "forks share it");
    let taken = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    let spec = SandboxSpec { image: Image::Snapshot(taken.id), ..SandboxSpec::default() };
    let plain = stage.create(spec).await.unwrap();
    // An engine makes the place of a volume among the files of a container; a native box's is nobody's.
    let look = "ls /data 2> /dev/null || true";
    assert_eq!(stdout_of(&plain, look).await, "", "a snapshot has nothing of what was in it");
    // Who may not give volumes cannot fork a box that has some.
    let error = open(&stage.home()).fork(sandbox.id(), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

async fn what_is_not_allowed_is_refused(stage: &Stage) {
    let dir = shared(stage, "v");
    symlink("/etc", dir.join("out")).unwrap();
    let refused = [
        (Volume::new("/etc", "/data", true), ErrorKind::Denied),
        (Volume::new(dir.join("out"), "/data", true), ErrorKind::Denied),
        (Volume::new(dir.join("../../home"), "/data", true), ErrorKind::Invalid),
        (Volume::new(stage.home(), "/data", true), ErrorKind::Denied),
        (Volume::new(dir.join("none"), "/data", true), ErrorKind::NotFound),
        (Volume::new(&dir, "/", true), ErrorKind::Invalid),
        (Volume::new(&dir, "/proc/sys", true), ErrorKind::Invalid),
        (Volume::new(&dir, "/dev/.glasshouse", true), ErrorKind::Invalid),
        (Volume::new(&dir, "/a/../dev", true), ErrorKind::Invalid),
    ];
    for (volume, kind) in refused {
        let error = stage.refusal(with(std::slice::from_ref(&volume))).await;
        assert_eq!(error.kind(), kind, "{volume}: {error}");
    }
    let error = open(&stage.home()).create(with(&[Volume::new(&dir, "/data", true)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "a house allows none by itself: {error}");
    assert!(error.to_string().contains("GLASSHOUSE_VOLUMES"), "{error}");
    assert_eq!(stage.house.list().await.unwrap(), []);
}

async fn a_link_of_the_image_leads_no_volume_astray(stage: &Stage) {
    let dir = shared(stage, "v");
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let maker = stage.sandbox().await;
    stdout_of(&maker, "cd /tmp; ln -s /etc link; echo file > file").await;
    let taken = maker.snapshot(SnapshotOptions::default()).await.unwrap();
    for place in ["/tmp/link", "/tmp/link/new", "/tmp/file/new"] {
        let image = Image::Snapshot(taken.id.clone());
        let error = stage.refusal(SandboxSpec { image, ..with(&[Volume::new(&dir, place, false)]) }).await;
        assert_ne!(error.kind(), ErrorKind::Gone, "{place}: {error}");
    }
    assert_eq!(stage.house.list().await.unwrap().len(), 1, "nothing is left of those");
}

async fn a_box_that_exchanges_what_others_are_given_gains_nothing(stage: &Stage) {
    let dir = shared(stage, "v");
    let Some(hostile) = sharing(stage, &dir, false).await else { return };
    stdout_of(&hostile, "mkdir /data/d; echo mine > /data/d/mark").await;
    let line = "cd /data; echo begun; while :; do mv d e; ln -s /etc d; rm d; mv e d; done";
    let mut exchange = Follow::start(&hostile, shell(line)).await;
    assert_eq!(exchange.line().await, "begun");
    for _ in 0..if stage.runtime == RuntimeKind::Docker { 8 } else { 40 } {
        let Ok(other) = stage.create(with(&[Volume::new(dir.join("d"), "/data", true)])).await else {
            continue;
        };
        assert_eq!(text(&run(&other, shell("ls /data")).await.stdout), "mark\n");
        other.destroy().await.unwrap();
    }
    exchange.exec.input().kill().await.unwrap();
    exchange.end().await;
}
