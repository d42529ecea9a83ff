//! Kinds of images, made on the spot as people make them: a Debian of debootstrap's, busybox, one program that stands alone,
//! one on musl, and one of Debian's without a shell. The guest needs nothing of what is in any of them, and changes none.

use std::path::Path;

use glasshouse_sandbox::{
    ExecOutput, ExecSpec, Exit, Image, Sandbox, SandboxSpec, Sandboxes, SnapshotOptions,
};
use glasshouse_tests::skip;
use glasshouse_tests::trees;

use crate::far::Far;
use crate::images::Registry;
use crate::stage::{Stage, argv, perform, run, spec};

/// How long a command may take that waits for ever.
const TIME_MS: u64 = 100;

/// An image, and how its programs are asked for what a test wants.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Makes its files in an empty directory.
    fill: fn(&Path) -> Result<(), String>,
    /// Writes the variable COLOUR.
    say: &'static [&'static str],
    /// Ends with the code 7.
    exit: &'static [&'static str],
    /// Writes what it reads.
    copy: &'static [&'static str],
    /// Does not end.
    wait: &'static [&'static str],
}

const SCRATCH: Kind = Kind {
    name: "scratch",
    fill: trees::scratch,
    say: &["/tool", "say", "COLOUR"],
    exit: &["/tool", "exit", "7"],
    copy: &["/tool", "copy"],
    wait: &["/tool", "wait"],
};
const MUSL: Kind = Kind { name: "musl", fill: trees::musl, ..SCRATCH };
const BUSYBOX: Kind = Kind {
    name: "busybox",
    fill: trees::busybox,
    say: &["sh", "-c", "echo $COLOUR"],
    exit: &["sh", "-c", "exit 7"],
    copy: &["cat"],
    wait: &["sleep", "1000"],
};
const DISTROLESS: Kind = Kind {
    name: "distroless",
    fill: trees::distroless,
    say: &["python3", "-c", "import os; print(os.environ['COLOUR'])"],
    exit: &["python3", "-c", "raise SystemExit(7)"],
    copy: &["python3", "-c", "import sys; sys.stdout.write(sys.stdin.read())"],
    wait: &["python3", "-c", "import time; time.sleep(1000)"],
};
/// Its tree is there already.
const DEBIAN: Kind = Kind { name: "debian", fill: |_| Ok(()), ..BUSYBOX };

/// Makes the files of an image.
fn tree_of(stage: &Stage, kind: Kind) -> Result<std::path::PathBuf, String> {
    if kind.name == DEBIAN.name {
        return trees::debian();
    }
    let tree = stage.dir.path().join(kind.name);
    std::fs::create_dir(&tree).unwrap();
    (kind.fill)(&tree)?;
    Ok(tree)
}

fn name_of(kind: Kind) -> String {
    format!("glass-test/{}:kind", kind.name)
}

fn told(output: &ExecOutput) -> (Exit, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.report.exit.clone(), text(&output.stdout.bytes), text(&output.stderr.bytes))
}

/// Commands, with all that goes in and comes out.
async fn commands(sandbox: &Sandbox, kind: Kind) {
    let done = |text: &str| (Exit::Code { code: 0 }, text.to_owned(), String::new());
    let env = vec![("COLOUR".to_owned(), "blue".to_owned())];
    assert_eq!(told(&run(sandbox, ExecSpec { env, ..argv(kind.say) }).await), done("blue\n"), "{kind:?}");
    assert_eq!(run(sandbox, argv(kind.exit)).await.report.exit, Exit::Code { code: 7 }, "{kind:?}");
    let exec = sandbox.exec(ExecSpec { stdin: true, ..argv(kind.copy) }).await.unwrap();
    let input = exec.input();
    input.write(b"what went in\n").await.unwrap();
    input.close().await.unwrap();
    assert_eq!(told(&exec.collect().await), done("what went in\n"), "{kind:?}");
    let late = ExecSpec { timeout_ms: Some(TIME_MS), ..argv(kind.wait) };
    assert_eq!(run(sandbox, late).await.report.exit, Exit::TimedOut, "{kind:?}");
    let nothing = run(sandbox, argv(&["/no/such/program"])).await.report.exit;
    assert!(matches!(nothing, Exit::NotStarted { .. }), "{kind:?}: {nothing:?}");
}

/// Files go in and out, and states are kept and gone back to.
async fn files_and_states(sandbox: &Sandbox, kind: Kind) {
    let read = async |of: &Sandbox| of.read_file("/deep/in/file", 0, None).await;
    sandbox.write_file("/deep/in/file", b"one", None).await.unwrap();
    assert_eq!(read(sandbox).await.unwrap(), b"one", "{kind:?}");
    let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    sandbox.write_file("/deep/in/file", b"two", None).await.unwrap();
    let fork = sandbox.fork(1).await.unwrap().remove(0);
    assert_eq!(read(&fork).await.unwrap(), b"two", "{kind:?}");
    fork.destroy().await.unwrap();
    sandbox.restore(&snapshot.id).await.unwrap();
    assert_eq!(read(sandbox).await.unwrap(), b"one", "{kind:?}");
    sandbox.reset().await.unwrap();
    assert!(read(sandbox).await.is_err(), "{kind:?}");
    // The guest of a state that was gone back to is as good as the first.
    assert_eq!(run(sandbox, argv(kind.exit)).await.report.exit, Exit::Code { code: 7 }, "{kind:?}");
}

/// All of it in boxes of an image that the engine has by this name, and again in another one.
async fn lives(house: &Sandboxes, kind: Kind, name: &str) {
    let of = || SandboxSpec { image: Image::Engine(name.to_owned()), ..spec() };
    let sandbox = house.create(of()).await.unwrap();
    let digest = async |of: &Sandbox| house.digest(of.id()).await.unwrap().digest;
    let fresh = digest(&sandbox).await;
    commands(&sandbox, kind).await;
    files_and_states(&sandbox, kind).await;
    sandbox.write_file("/left", b"by the first", None).await.unwrap();
    let another = house.create(of()).await.unwrap();
    assert_eq!(digest(&another).await, fresh, "{kind:?}: nothing of one box is in the other's image");
    for one in [sandbox, another] {
        one.destroy().await.unwrap();
    }
    for snapshot in house.snapshots().await.unwrap() {
        house.remove_snapshot(&snapshot.id).await.unwrap();
    }
}

/// What an engine says of an image, as `docker` is asked for it.
const INSPECT: [&str; 4] = ["image", "inspect", "-f", "{{.Id}} {{json .RootFS}} {{json .Config}} {{.Size}}"];

fn check(kind: Kind) {
    perform(async |stage| {
        let tree = match tree_of(stage, kind) {
            Ok(tree) => tree,
            Err(why) => return skip("docker", &why),
        };
        let name = name_of(kind);
        stage.engine.import(&tree, &name);
        let inspect = || {
            let told = stage.engine.docker(&[&INSPECT[..], &[&name]].concat());
            assert!(told.status.success(), "{told:?}");
            String::from_utf8(told.stdout).unwrap()
        };
        let before = inspect();
        lives(&stage.house, kind, &name).await;
        assert_eq!(inspect(), before, "the image is as it was");
        stage.engine.docker(&["rmi", &name]);
    });
}

#[test]
fn a_debian_of_debootstraps() {
    check(DEBIAN);
}

#[test]
fn a_static_busybox() {
    check(BUSYBOX);
}

#[test]
fn one_static_program_from_scratch() {
    check(SCRATCH);
}

#[test]
fn a_program_on_musl() {
    check(MUSL);
}

#[test]
fn a_python_without_a_shell() {
    perform(async |stage| {
        let tree = match tree_of(stage, DISTROLESS) {
            Ok(tree) => tree,
            Err(why) => return skip("docker", &why),
        };
        for none in ["bin", "sbin", "usr/sbin", "usr/bin/sh", "usr/bin/cat", "usr/bin/tar", "usr/bin/timeout"]
        {
            assert!(!tree.join(none).exists(), "{none}");
        }
    });
    check(DISTROLESS);
}

#[test]
fn kinds_that_are_pulled_are_boxes_too() {
    perform(async |stage| {
        let registry = Registry::new(stage.dir.path());
        for kind in [SCRATCH, MUSL, DISTROLESS] {
            let tree = match tree_of(stage, kind) {
                Ok(tree) => tree,
                Err(why) => return skip("docker", &why),
            };
            let name = format!("{}/kinds/{}:1", registry.address, kind.name);
            stage.engine.import(&tree, &name);
            for args in [["push", &name], ["rmi", &name]] {
                let done = stage.engine.docker(&args);
                assert!(done.status.success(), "{done:?}");
            }
            assert_eq!(stage.house.engine_image(&name).await.unwrap(), None, "it has to be pulled");
            lives(&stage.house, kind, &name).await;
            let pulled = stage.house.engine_image(&name).await.unwrap().unwrap();
            assert!(pulled.digests.iter().any(|digest| digest.contains("@sha256:")), "{pulled:?}");
            stage.engine.docker(&["rmi", &name]);
        }
    });
}

#[test]
fn kinds_on_an_engine_that_sees_nothing_of_ours_are_boxes_too() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        for kind in [SCRATCH, MUSL, DISTROLESS] {
            let tree = match tree_of(stage, kind) {
                Ok(tree) => tree,
                Err(why) => return skip("docker", &why),
            };
            let name = name_of(kind);
            far.engine.import(&tree, &name);
            let inspect = || far.engine.docker(&[&INSPECT[..], &[&name]].concat());
            let before = inspect();
            lives(&house, kind, &name).await;
            assert_eq!(inspect(), before, "the image is as it was");
        }
        far.end(house).await;
    });
}
