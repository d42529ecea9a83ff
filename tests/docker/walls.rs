//! The walls of a container, as a command in it sees them.

use glasshouse_sandbox::{
    EngineSettings, ErrorKind, ExecSpec, Exit, Image, Level, Limits, RuntimeKind, SandboxSpec, Sandboxes,
    Settings, SnapshotOptions,
};
use glasshouse_tests::engine::{Manner, PrivateEngine, REMAPPED, program};
use glasshouse_tests::skip;
use serde_json::json;

use crate::far::small;
use crate::stage::{Stage, open, perform, run, shell, spec, stdout_of};
use crate::ways::works;

#[test]
fn commands_have_no_capability_and_cannot_gain_one() {
    perform(async |stage| {
        for user in ["root", "user"] {
            let sandbox = stage.create(SandboxSpec { user: Some(user.into()), ..spec() }).await;
            let status = stdout_of(&sandbox, "grep -E 'Cap|NoNew|Seccomp:' /proc/self/status").await;
            for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert!(status.contains(&format!("{name}:\t0000000000000000")), "{user}: {status}");
            }
            assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{user}: {status}");
        }
    });
}

#[test]
fn the_engine_was_told_of_every_wall_and_every_limit() {
    perform(async |stage| {
        let (memory_bytes, pids, cpus) = (Some(64 << 20), Some(50), Some(0.5));
        let limits = Limits { memory_bytes, pids, cpus, ..Limits::default() };
        let labels = [("team".to_owned(), "red".to_owned())].into();
        let sandbox = stage.create(SandboxSpec { limits, labels, read_only: true, ..spec() }).await;
        let config = stage.engine.docker(&["inspect", &stage.containers()[0]]);
        let config: serde_json::Value = serde_json::from_slice(&config.stdout).unwrap();
        let (host, labels) = (&config[0]["HostConfig"], &config[0]["Config"]["Labels"]);
        for (name, told) in [
            ("NetworkMode", json!("none")),
            ("IpcMode", json!("private")),
            ("PidMode", json!("")),
            ("UTSMode", json!("")),
            ("UsernsMode", json!("")),
            ("Privileged", json!(false)),
            ("CapDrop", json!(["ALL"])),
            ("Devices", json!(null)),
            ("PortBindings", json!(null)),
            ("Binds", json!(null)),
            ("ReadonlyRootfs", json!(true)),
            ("Memory", json!(64 << 20)),
            ("MemorySwap", json!(64 << 20)),
            ("PidsLimit", json!(50)),
            ("NanoCpus", json!(500_000_000)),
        ] {
            // Engines of today leave out, or show as empty, what older ones show as nothing.
            let is_nothing = |value: &serde_json::Value| {
                matches!(value.as_array(), Some(list) if list.is_empty())
                    || value.is_null()
                    || matches!(value.as_object(), Some(map) if map.is_empty())
            };
            assert!(
                host[name] == told || (is_nothing(&host[name]) && is_nothing(&told)),
                "{name}: {}",
                host[name]
            );
        }
        let options = host["SecurityOpt"].to_string();
        assert!(options.contains("no-new-privileges") && options.contains("seccomp={"), "{options}");
        assert!(host["Tmpfs"]["/tmp"].is_string(), "{}", host["Tmpfs"]);
        assert_eq!((&labels["team"], &labels["glasshouse.box"]), (&json!("red"), &json!(sandbox.id())));
        assert_eq!(stdout_of(&sandbox, "echo x > /tmp/x && cat /tmp/x").await, "x\n");
        assert_eq!(stdout_of(&sandbox, "echo x 2>/dev/null > /x || echo no").await, "no\n");
    });
}

#[test]
fn nothing_of_the_host_is_in_sight() {
    perform(async |stage| {
        let sandbox = stage.create(SandboxSpec { user: Some("root".into()), ..spec() }).await;
        assert_eq!(
            stdout_of(&sandbox, "cat /proc/cmdline; ls /sys; ls -A /sys/fs/cgroup").await,
            "devices\nfs\nkernel\n"
        );
        assert_eq!(stdout_of(&sandbox, "ls /sys/class /sys/block /sys/firmware 2>/dev/null; true").await, "");
        assert_eq!(stdout_of(&sandbox, "ls /sys/devices/system/cpu").await, "online\npossible\npresent\n");
        assert_eq!(stdout_of(&sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo\n");
        assert_eq!(stdout_of(&sandbox, "ls -A /dev/.glasshouse").await, "guest\n", "the door is closed");
        assert_eq!(
            stdout_of(&sandbox, "echo x > /dev/.glasshouse/guest 2>/dev/null || echo no").await,
            "no\n"
        );
        assert_eq!(stdout_of(&sandbox, "echo x > /usr/x 2>/dev/null || echo no").await, "no\n");
    });
}

#[test]
fn a_box_says_how_strong_it_is_and_more_is_refused() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        assert_eq!(sandbox.info().level, Level::Reduced);
        assert!(
            sandbox.info().missing.iter().any(|lack| lack.contains("uid range")),
            "{:?}",
            sandbox.info().missing
        );
        assert_eq!(sandbox.info().tracking, "cgroup v2");
        let error =
            stage.house.create(SandboxSpec { min_level: Some(Level::Full), ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("--min-level reduced"), "{error}");
        let report =
            stage.house.doctor().await.into_iter().find(|report| report.runtime.name() == "docker").unwrap();
        assert_eq!(report.level, Level::Reduced);
        assert!(report.features.iter().any(|feature| feature.name == "engine" && feature.ok), "{report:?}");
    });
}

#[test]
fn determinism_is_refused() {
    perform(async |stage| {
        let error =
            stage.house.create(SandboxSpec { deterministic: Some(true), ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

fn with_runtime(stage: &Stage, host: String, runtime: &str) -> Sandboxes {
    let engine =
        EngineSettings { host: Some(host), runtime: Some(runtime.into()), ..EngineSettings::default() };
    Sandboxes::open_with(Settings { home: stage.dir.path().join("other") }, engine).unwrap()
}

/// An engine with gVisor as two of its runtimes: `walled`, which keeps to itself what containers write, as it does unless
/// somebody says otherwise, and `shown`, which leaves it to the engine. None if gVisor is not installed.
fn with_gvisor(stage: &Stage) -> Option<PrivateEngine> {
    let runsc = program("runsc")?;
    // Boxes have no network, and it would set one up.
    let runtime = |words: &str| {
        format!(r#"{{"path": "{}", "runtimeArgs": ["--network=none"{words}]}}"#, runsc.display())
    };
    let (walled, shown) = (runtime(""), runtime(r#", "--overlay2=none""#));
    let file = stage.dir.path().join("daemon.json");
    std::fs::write(&file, format!(r#"{{"runtimes": {{"walled": {walled}, "shown": {shown}}}}}"#)).unwrap();
    let args = vec![format!("--config-file={}", file.display())];
    Some(PrivateEngine::start_as(&stage.place(), &Manner { args, ..Manner::default() }).unwrap())
}

/// A small tree with all that boxes are mounted on, and a directory that everybody may write to.
fn open_tree(stage: &Stage) -> Image {
    use std::os::unix::fs::PermissionsExt;
    let tree = small(stage.dir.path());
    for name in ["dev", "etc", "home", "proc", "sys", "tmp"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    std::fs::set_permissions(tree.join("home"), std::fs::Permissions::from_mode(0o777)).unwrap();
    Image::Directory(tree)
}

const NO_GVISOR: &str = "gVisor is not installed (Debian: runsc)";

/// Sees that nothing of a house is left on an engine, and ends that.
async fn end_clean(house: Sandboxes, engine: PrivateEngine) {
    house.settle().await;
    house.gc().await.unwrap();
    let left = (engine.docker(&["ps", "-aq"]), engine.docker(&["volume", "ls", "-q"]));
    assert_eq!((house.list().await.unwrap().len(), left), Default::default());
    engine.end();
}

#[test]
fn a_box_behind_gvisor_says_so_and_does_what_others_do() {
    perform(async |stage| {
        let Some(engine) = with_gvisor(stage) else { return skip("runsc", NO_GVISOR) };
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let walled = SandboxSpec {
            image: open_tree(stage),
            user: Some("1000".into()),
            engine_runtime: Some("walled".into()),
            min_level: Some(Level::Gvisor),
            ..spec()
        };
        let sandbox = house.create(walled).await.unwrap();
        assert_eq!((sandbox.info().level, &sandbox.info().missing[..]), (Level::Gvisor, &[][..]));
        let own = stdout_of(&sandbox, "busybox uname -r").await;
        let machines = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_ne!(own, machines, "it has a kernel of its own");
        let status = stdout_of(&sandbox, "cat /proc/self/status").await;
        for line in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Seccomp:\t2"] {
            assert!(status.contains(line), "{status}");
        }
        // Ends are true without descriptors of processes, too.
        let end = async |line: &str| run(&sandbox, shell(line)).await.report.exit;
        assert_eq!(end("exit 7").await, Exit::Code { code: 7 });
        assert!(matches!(end("kill -9 $$").await, Exit::Signal { .. }));
        let timeout_ms = Some(200);
        let slow = run(&sandbox, ExecSpec { timeout_ms, ..shell("sleep 1000 & exec sleep 1000") }).await;
        assert_eq!(slow.report.exit, Exit::TimedOut);
        // Files are the user's, and links of /proc lead nowhere else.
        sandbox.write_file("/home/own", b"x", None).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "stat -c %u:%g /home/own").await, "1000:1000\n");
        let error = sandbox.write_file("/bin/own", b"x", None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        stdout_of(&sandbox, "cd /home; busybox ln -s /proc/self/fd/0 link; busybox ln -s own plain").await;
        assert!(sandbox.read_file("/home/link", 0, None).await.is_err());
        assert_eq!(sandbox.read_file("/home/plain", 0, None).await.unwrap(), b"x");
        sandbox.destroy().await.unwrap();
        end_clean(house, engine).await;
    });
}

#[test]
fn states_behind_gvisor_are_those_of_native_boxes_or_refused() {
    perform(async |stage| {
        let Some(engine) = with_gvisor(stage) else { return skip("runsc", NO_GVISOR) };
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let root = |runtime, engine_runtime: Option<&str>| SandboxSpec {
            runtime,
            image: open_tree(stage),
            user: Some("root".into()),
            engine_runtime: engine_runtime.map(str::to_owned),
            ..spec()
        };
        let native = house.create(root(RuntimeKind::Native, None)).await.unwrap();
        let change = "busybox mkdir /new; echo one > /new/file; busybox ln -s file /new/link; rm /bin/tail; busybox chmod 700 /etc";
        stdout_of(&native, change).await;
        let wanted = house.digest(native.id()).await.unwrap().digest;
        for runtime in ["walled", "shown"] {
            let sandbox = house.create(root(RuntimeKind::Docker, Some(runtime))).await.unwrap();
            stdout_of(&sandbox, change).await;
            let told =
                async || house.diff(native.id(), Some(sandbox.id()), Default::default()).await.unwrap();
            let digest = house.digest(sandbox.id()).await.unwrap().digest;
            assert_eq!(digest, wanted, "{runtime}: {:?}", told().await.changes);
            match (runtime, sandbox.snapshot(SnapshotOptions::default()).await) {
                // Whatever it does by itself: what is kept is all there.
                (_, Ok(snapshot)) => {
                    stdout_of(&sandbox, "rm /new/file").await;
                    sandbox.restore(&snapshot.id).await.unwrap();
                    assert_eq!(stdout_of(&sandbox, "cat /new/file").await, "one\n");
                    let fork = sandbox.fork(1).await.unwrap().remove(0);
                    assert_eq!(stdout_of(&fork, "cat /new/link").await, "one\n");
                    assert_eq!(house.digest(fork.id()).await.unwrap().digest, wanted);
                    fork.destroy().await.unwrap();
                    house.stop(sandbox.id()).await.unwrap();
                    let again = house.start(sandbox.id()).await.unwrap();
                    assert_eq!(stdout_of(&again, "cat /new/file").await, "one\n");
                    house.remove_snapshot(&snapshot.id).await.unwrap();
                }
                // What the engine does not have cannot be kept by it.
                ("walled", Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert!(error.to_string().contains("--overlay2=none"), "{error}");
                    let error = house.stop(sandbox.id()).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                }
                (_, Err(error)) => panic!("{runtime}: {error}"),
            }
            let (_, verified) = house.reset_verified(sandbox.id()).await.unwrap();
            assert_eq!(verified.difference, None, "{runtime}");
            assert_eq!(stdout_of(&sandbox, "ls -d /new 2>/dev/null || echo none").await, "none\n");
            sandbox.destroy().await.unwrap();
        }
        native.destroy().await.unwrap();
        end_clean(house, engine).await;
    });
}

#[test]
fn what_needs_this_hosts_files_is_refused_behind_a_kernel_of_its_own() {
    perform(async |stage| {
        let Some(engine) = with_gvisor(stage) else { return skip("runsc", NO_GVISOR) };
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let engine_runtime = Some("walled".into());
        let error = house.create(SandboxSpec { engine_runtime, ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("kernel of its own"), "{error}");
        end_clean(house, engine).await;
    });
}

#[test]
fn a_runtime_that_only_has_the_name_of_a_stronger_one_does_not_count_for_more() {
    perform(async |stage| {
        let args = vec!["--add-runtime=runsc=/usr/sbin/runc".to_owned()];
        let engine = PrivateEngine::start_as(&stage.place(), &Manner { args, ..Manner::default() }).unwrap();
        let house = with_runtime(stage, engine.host(), "runsc");
        let image = Image::Directory(small(stage.dir.path()));
        let sandbox = house.create(SandboxSpec { image: image.clone(), ..spec() }).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "echo runs").await, "runs\n");
        assert_eq!(sandbox.info().level, Level::Reduced);
        assert!(sandbox.info().missing.iter().any(|lack| lack.contains("uid range")), "{:?}", sandbox.info());
        let min_level = Some(Level::Full);
        let error = house.create(SandboxSpec { image, min_level, ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        sandbox.destroy().await.unwrap();
        assert_eq!(engine.docker(&["ps", "-aq"]), "", "nothing of either is left");
        engine.end();
    });
}

#[test]
fn a_runtime_that_the_engine_does_not_have_is_named_with_those_that_it_has() {
    perform(async |stage| {
        let house = with_runtime(stage, stage.engine.host.clone(), "nobodys");
        let error = house.create(spec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("no runtime nobodys"), "{error}");
        assert!(error.to_string().contains("runc"), "{error}");
        assert_eq!(house.list().await.unwrap(), []);
    });
}

#[test]
fn the_engine_is_asked_for_the_runtime_that_was_chosen() {
    perform(async |stage| {
        let args = ["--add-runtime=other=/usr/sbin/runc", "--add-runtime=walled=/nowhere/runsc"];
        let manner = Manner { args: args.map(str::to_owned).to_vec(), ..Manner::default() };
        let engine = PrivateEngine::start_as(&stage.place(), &manner).unwrap();
        let house = with_runtime(stage, engine.host(), "other");
        let sandbox = house.create(spec()).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "echo runs").await, "runs\n");
        let id = engine.docker(&["ps", "-q"]);
        let used = engine.docker(&["inspect", "-f", "{{.HostConfig.Runtime}}", id.trim()]);
        assert_eq!(used.trim(), "other");
        let report =
            house.doctor().await.into_iter().find(|report| report.runtime.name() == "docker").unwrap();
        let row = report.features.iter().find(|feature| feature.name == "runtimes").unwrap();
        assert!(row.ok && row.detail.starts_with("other is used"), "{row:?}");
        // It stays the box's, whatever others choose for theirs.
        let others = open(&stage.dir.path().join("other"), &engine.host());
        others.get(sandbox.id()).await.unwrap().reset().await.unwrap();
        let id = engine.docker(&["ps", "-q"]);
        let used = engine.docker(&["inspect", "-f", "{{.HostConfig.Runtime}}", id.trim()]);
        assert_eq!(used.trim(), "other");
        sandbox.destroy().await.unwrap();
        // By what is executed, whatever it is called.
        let error = with_runtime(stage, engine.host(), "walled").create(spec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("runtime walled"), "{error}");
        engine.end();
    });
}

#[test]
fn on_an_engine_that_remaps_users_a_box_is_nobody_of_the_hosts() {
    perform(async |stage| {
        let dir = stage.place();
        let engine = PrivateEngine::start_as(&dir, &Manner::remapping(&dir)).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let sandbox = house.create(SandboxSpec { user: Some("root".into()), ..spec() }).await.unwrap();
        let info = sandbox.info();
        assert!(!info.missing.iter().any(|lack| lack.contains("uid range")), "{:?}", info.missing);
        assert_eq!(info.level, if info.missing.is_empty() { Level::Full } else { Level::Reduced });
        assert_eq!(stdout_of(&sandbox, "id -u; awk '{ print $2 }' /proc/self/uid_map").await, "0\n700000\n");
        let first = std::fs::metadata(format!("/proc/{}", info.pid)).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&first), REMAPPED);
        sandbox.destroy().await.unwrap();
        works(&house).await;
        engine.end();
    });
}
