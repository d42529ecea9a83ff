//! Engines that see nothing of our files: the guest comes in by a volume, and is reached through the engine.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use glasshouse_sandbox::{
    ErrorKind, ExecSpec, Exit, Image, Limits, Sandbox, SandboxSpec, SandboxState, Sandboxes, SnapshotOptions,
    Volume,
};
use glasshouse_tests::engine::{Manner, PrivateEngine};
use glasshouse_tests::{House, Mode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{Stage, argv, label_of, open, perform, run, settle, shell, spec, stdout_of};

/// An engine with mounts of its own, in which our home is not, nor can we see what it keeps.
pub(crate) struct Far {
    pub(crate) engine: PrivateEngine,
    pub(crate) home: PathBuf,
    tree: PathBuf,
}

impl Far {
    pub(crate) fn new(stage: &Stage) -> Far {
        let manner = Manner { mounts: Some(Far::hidden(stage)), ..Manner::default() };
        Far::with(stage, &manner)
    }

    /// As if it were on another machine: there is nothing where our files are.
    fn hidden(stage: &Stage) -> String {
        let (home, data) = (stage.dir.path().join("other"), stage.place().join("data"));
        std::fs::create_dir(&home).unwrap();
        format!("mount -t tmpfs none {}; mount -t tmpfs none {}", home.display(), data.display())
    }

    fn with(stage: &Stage, manner: &Manner) -> Far {
        let engine = PrivateEngine::start_as(&stage.place(), manner).unwrap();
        Far { engine, home: stage.dir.path().join("other"), tree: small(stage.dir.path()) }
    }

    pub(crate) fn house(&self) -> Sandboxes {
        open(&self.home, &self.engine.host())
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        SandboxSpec { image: Image::Directory(self.tree.clone()), ..spec() }
    }

    /// What the engine lists of ours.
    pub(crate) fn listed(&self, what: &[&str]) -> Vec<String> {
        let label = label_of(&self.home).unwrap();
        let listed = self.engine.docker(&[what, &["-q", "--filter", &label]].concat());
        listed.lines().map(str::to_owned).collect()
    }

    /// Ends it, when nothing of ours is left in it.
    pub(crate) async fn end(self, house: Sandboxes) {
        house.settle().await;
        house.gc().await.unwrap();
        let left = [&["ps", "-a"][..], &["images"], &["volume", "ls"]].map(|what| self.listed(what));
        assert_eq!(left, [const { Vec::<String>::new() }; 3]);
        self.engine.end();
    }
}

/// A tree with a shell and a few programs.
pub(crate) fn small(dir: &Path) -> PathBuf {
    let tree = dir.join("small");
    if tree.exists() {
        return tree;
    }
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::copy("/usr/bin/busybox", tree.join("bin/busybox")).unwrap();
    for name in
        ["sh", "cat", "ls", "id", "sleep", "grep", "head", "wc", "rm", "stat", "nc", "kill", "tail", "tr"]
    {
        symlink("busybox", tree.join("bin").join(name)).unwrap();
    }
    tree
}

async fn bytes_of(sandbox: &Sandbox, bytes: usize) -> usize {
    let output = run(sandbox, shell(&format!("head -c {bytes} /dev/zero"))).await;
    assert_eq!(output.report.exit, Exit::Code { code: 0 });
    output.report.stdout_bytes as usize
}

#[test]
fn a_box_there_is_a_box_as_any_other() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let sandbox = house.create(far.spec()).await.unwrap();
        let info = sandbox.info();
        assert_eq!(info.state, SandboxState::Running);
        assert_eq!(
            stdout_of(&sandbox, "echo hello; id -u; cat /proc/1/comm").await,
            "hello\n0\nglass-guest\n"
        );
        assert_eq!(run(&sandbox, shell("exit 7")).await.report.exit, Exit::Code { code: 7 });
        // Much, both ways.
        assert_eq!(bytes_of(&sandbox, 40 << 20).await, 40 << 20);
        let big: Vec<u8> = (0..8 << 20).map(|n: u32| (n / 251) as u8).collect();
        sandbox.write_file("/big", &big, None).await.unwrap();
        assert!(sandbox.read_file("/big", 0, None).await.unwrap() == big);
        // Somebody else, who knows of it by the home alone.
        let again = far.house();
        assert_eq!(again.list().await.unwrap().len(), 1);
        let held = again.get(sandbox.id()).await.unwrap();
        assert_eq!(stdout_of(&held, "wc -c < /big").await, format!("{}\n", 8 << 20));
        // A command that somebody waits for ends with him.
        let exec = held.exec(shell("echo begun; exec sleep 1000")).await.unwrap();
        drop((exec, held, again));
        // One that ends between its name and its content is none that matters.
        let list = "cat /proc/[0-9]*/cmdline 2>/dev/null || true";
        let none_runs = async || !stdout_of(&sandbox, list).await.contains("sleep");
        settle("the command ends with whoever waited for it", none_runs).await;
        let container = far.listed(&["ps"]);
        assert_eq!(container.len(), 1);
        house.destroy(sandbox.id()).await.unwrap();
        assert_eq!(house.list().await.unwrap(), []);
        let error = sandbox.exec(shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        far.end(house).await;
    });
}

#[test]
fn state_there_is_kept_gone_back_to_forked_and_started_again() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let sandbox = house.create(far.spec()).await.unwrap();
        stdout_of(&sandbox, "echo one > /a; echo gone > /b").await;
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        stdout_of(&sandbox, "echo two > /a; rm /b").await;
        let fork = sandbox.fork(1).await.unwrap().remove(0);
        assert_eq!(stdout_of(&fork, "cat /a; ls /b 2>/dev/null || echo none").await, "two\nnone\n");
        sandbox.restore(&snapshot.id).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "cat /a /b").await, "one\ngone\n");
        house.stop(sandbox.id()).await.unwrap();
        assert_eq!(house.info(sandbox.id()).await.unwrap().state, SandboxState::Stopped);
        assert_eq!(house.list().await.unwrap().len(), 2, "it is not taken for dead");
        let again = house.start(sandbox.id()).await.unwrap();
        assert_eq!(stdout_of(&again, "cat /a").await, "one\n");
        assert_eq!(stdout_of(&sandbox, "cat /a").await, "one\n", "whoever held it goes on with it");
        sandbox.reset().await.unwrap();
        assert_eq!(stdout_of(&sandbox, "ls /a 2>/dev/null || echo none").await, "none\n");
        // What the guest came by is no part of a state.
        let image = far.listed(&["images"]).remove(0);
        let history = far.engine.docker(&["history", "-q", &image]);
        assert!(history.lines().count() <= 2, "{history}");
        for one in [fork, sandbox] {
            one.destroy().await.unwrap();
        }
        house.remove_snapshot(&snapshot.id).await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn a_pause_there_is_seen_by_everybody_and_so_is_its_end() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let sandbox = house.create(far.spec()).await.unwrap();
        let other = far.house();
        let state = async || other.list().await.unwrap().remove(0).state;
        sandbox.pause().await.unwrap();
        assert_eq!(state().await, SandboxState::Paused);
        let error = sandbox.exec(shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Paused, "{error}");
        // Somebody was killed after he had asked for its end: the guest knows better than his note.
        let note = far.home.join("boxes").join(sandbox.id()).join("pause");
        assert!(note.exists());
        sandbox.resume().await.unwrap();
        assert!(!note.exists());
        assert_eq!(state().await, SandboxState::Running);
        std::fs::write(&note, "").unwrap();
        assert_eq!(state().await, SandboxState::Running);
        // One that begins anew is not paused.
        sandbox.pause().await.unwrap();
        sandbox.reset().await.unwrap();
        assert_eq!(state().await, SandboxState::Running);
        assert_eq!(stdout_of(&sandbox, "echo alive").await, "alive\n");
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn the_walls_there_are_the_same_and_nobody_in_the_box_comes_to_the_guest() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let sandbox = house.create(SandboxSpec { user: Some("root".into()), ..far.spec() }).await.unwrap();
        let status = stdout_of(&sandbox, "grep -E 'Cap|NoNew|Seccomp:' /proc/self/status").await;
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(status.contains(&format!("{name}:\t0000000000000000")), "{status}");
        }
        assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
        assert_eq!(stdout_of(&sandbox, "tail -n +3 /proc/net/dev | tr -d ' ' | head -c 2").await, "lo");
        let refused = async |line: &str| {
            let end = run(&sandbox, shell(line)).await.report.exit;
            assert!(matches!(end, Exit::Code { code: 1.. }), "{line}: {end:?}");
        };
        for line in [
            "ls /dev/.glasshouse-landing",
            "nc local:/dev/.glasshouse-landing/guest < /dev/null",
            "rm -r /dev/.glasshouse-landing",
            "echo x > /dev/.glasshouse/guest",
            "rm /dev/.glasshouse/guest",
            "cat /sys/devices/system/cpu/online",
            "ls /sys/class/net/",
            "echo 1 > /sys/fs/cgroup/memory/memory.limit_in_bytes || echo 1 > /sys/fs/cgroup/memory.max",
        ] {
            refused(line).await;
        }
        // Who a bridge is, nobody else can be.
        let spec = ExecSpec { user: Some("65533".into()), ..shell("true") };
        let end = run(&sandbox, spec).await.report.exit;
        assert!(matches!(&end, Exit::NotStarted { .. }), "{end:?}");
        // Nor can anybody harm one.
        let bridges = "for p in /proc/[0-9]*; do grep -q glass-bridge $p/comm && kill -9 ${p#/proc/} && echo killed; done";
        let output = run(&sandbox, shell(&format!("{bridges} 2>/dev/null; echo tried"))).await;
        assert_eq!(output.stdout.bytes, b"tried\n");
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn ends_there_are_told_as_elsewhere() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
        let sandbox = house.create(SandboxSpec { limits, ..far.spec() }).await.unwrap();
        let late = ExecSpec { timeout_ms: Some(100), ..shell("exec sleep 1000") };
        assert_eq!(run(&sandbox, late).await.report.exit, Exit::TimedOut);
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        exec.input().kill().await.unwrap();
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::Killed { .. }), "{end:?}");
        let greedy = run(&sandbox, argv(&["tail", "/dev/zero"])).await.report.exit;
        assert!(matches!(greedy, Exit::OutOfMemory { .. }), "{greedy:?}");
        assert_eq!(stdout_of(&sandbox, "echo alive").await, "alive\n");

        // Its container is removed behind our back.
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        let container = far.listed(&["ps"]).remove(0);
        far.engine.docker(&["rm", "-f", &container]);
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::BoxGone { .. }), "{end:?}");
        let error = sandbox.exec(shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        assert_eq!(house.list().await.unwrap(), [], "it is cleaned up");
        far.end(house).await;
    });
}

#[test]
fn ports_there_are_reached_and_what_runs_in_the_background_is_read_later() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let sandbox = house.create(far.spec()).await.unwrap();
        let line = "echo begun; exec nc -ll -p 8000 -e cat";
        let server = sandbox.exec(ExecSpec { background: true, ..shell(line) }).await.unwrap().id();
        let dial = async || sandbox.dial(8000).await.ok();
        settle("it listens", async || dial().await.is_some()).await;
        let (mut read, mut write) = tokio::io::split(sandbox.dial(8000).await.unwrap());
        write.write_all(b"there and back").await.unwrap();
        let mut came = [0; 14];
        read.read_exact(&mut came).await.unwrap();
        assert_eq!(&came, b"there and back");
        // Whoever comes later reads what it wrote before.
        let later = far.house().get(sandbox.id()).await.unwrap();
        sandbox.kill_exec(server).await.unwrap();
        let output = later.attach(server, 0, true).await.unwrap().collect().await;
        assert_eq!(output.stdout.bytes, b"begun\n");
        assert!(matches!(output.report.exit, Exit::Killed { .. }), "{:?}", output.report.exit);
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn a_box_there_whose_time_is_up_ends_by_itself() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let limits = Limits { ttl: Some(std::time::Duration::from_secs(3)), ..Limits::default() };
        let sandbox = house.create(SandboxSpec { limits, owner: None, ..far.spec() }).await.unwrap();
        // Nobody who made it is there to end it.
        let id = sandbox.id().to_owned();
        drop((sandbox, house));
        settle("its container has ended", async || far.engine.docker(&["ps", "-q"]).is_empty()).await;
        let house = far.house();
        assert_eq!(house.list().await.unwrap(), []);
        let error = house.get(&id).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        far.end(house).await;
    });
}

#[test]
fn what_cannot_be_had_there_is_refused_with_the_reason() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let shared = stage.dir.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        house.allow_volumes(vec![shared.clone()]).unwrap();
        let volumes = vec![Volume::new(&shared, "/data", false)];
        for (asked, word) in [
            (SandboxSpec { volumes, ..far.spec() }, "--volume"),
            (spec(), "image `host`"),
            (SandboxSpec { owner: Some(1), ..far.spec() }, "--owner"),
        ] {
            let error = house.create(asked).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            assert!(text.contains("does not see this host's files") && text.contains(word), "{error}");
        }
        assert_eq!(house.list().await.unwrap(), []);
        let sandbox = house.create(far.spec()).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "echo alive").await, "alive\n");
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn an_engine_that_sees_a_copy_of_our_files_is_one_of_these_too() {
    perform(async |stage| {
        let home = stage.dir.path().join("other");
        for dir in ["other", "up", "work"] {
            std::fs::create_dir(stage.dir.path().join(dir)).unwrap();
        }
        // As in a virtual machine that shows the host's directories: files are there, and no socket leads anywhere.
        let dir = stage.dir.path().display().to_string();
        let mounts = format!(
            "mount -t overlay none -o lowerdir={0},upperdir={dir}/up,workdir={dir}/work {0}",
            home.display()
        );
        let far = Far::with(stage, &Manner { mounts: Some(mounts), ..Manner::default() });
        let house = far.house();
        let sandbox = house.create(far.spec()).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "echo hello").await, "hello\n");
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

#[test]
fn a_box_there_ends_with_the_program_that_made_it() {
    perform(async |stage| {
        let mut program = House::new(Mode::Root);
        let hide = |dir: &Path| format!("mount -t tmpfs none {}", dir.display());
        let mounts = format!("{}; {}", hide(&program.home()), hide(&stage.place().join("data")));
        let engine =
            PrivateEngine::start_as(&stage.place(), &Manner { mounts: Some(mounts), ..Manner::default() })
                .unwrap();
        program.engine = Some(engine.host());
        let image = format!("dir:{}", small(stage.dir.path()).display());
        let run = ["run", "--runtime", "docker", "--image", &image, "--"];
        let (code, stdout, stderr) = program.run(&[&run[..], &["sh", "-c", "echo $0", "hello"]].concat());
        assert_eq!((code, stdout.as_str()), (0, "hello\n"), "{stderr}");
        let mut command = program.glass(&[&run[..], &["sh", "-c", "echo begun; exec sleep 1000"]].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        assert_eq!(engine.docker(&["ps", "-q"]).lines().count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        settle("the box ends with who made it", async || engine.docker(&["ps", "-q"]).is_empty()).await;
        assert_eq!(program.run(&["gc"]).0, 0);
        let left = [engine.docker(&["ps", "-aq"]), engine.docker(&["volume", "ls", "-q"])];
        assert_eq!(left, [String::new(), String::new()], "nothing of it is left");
        engine.end();
    });
}

#[test]
fn a_volume_that_is_gone_or_was_never_filled_is_made_anew() {
    perform(async |stage| {
        let far = Far::new(stage);
        let house = far.house();
        let first = house.create(far.spec()).await.unwrap();
        let volume = far.listed(&["volume", "ls"]).remove(0);
        first.destroy().await.unwrap();
        // Somebody tidied up; and somebody was killed who had only made it.
        for and_make in [false, true] {
            far.engine.docker(&["volume", "rm", &volume]);
            if and_make {
                far.engine.docker(&["volume", "create", &volume]);
            }
            let sandbox = house.create(far.spec()).await.unwrap();
            assert_eq!(stdout_of(&sandbox, "echo hello").await, "hello\n");
            sandbox.destroy().await.unwrap();
        }
        far.end(house).await;
    });
}
