//! The walls of a container, as a command in it sees them.

use glasshouse_sandbox::{EngineSettings, ErrorKind, Image, Level, SandboxSpec, Sandboxes, Settings};
use glasshouse_tests::engine::{Manner, PrivateEngine, REMAPPED};
use glasshouse_tests::skip;

use crate::far::small;
use crate::stage::{Stage, open, perform, spec, stdout_of};
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
        let error = stage.house.create(SandboxSpec { deterministic: true, ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    });
}

fn with_runtime(stage: &Stage, host: String, runtime: &str) -> Sandboxes {
    let engine =
        EngineSettings { host: Some(host), runtime: Some(runtime.into()), ..EngineSettings::default() };
    Sandboxes::open_with(Settings { home: stage.dir.path().join("other") }, engine).unwrap()
}

/// A runtime with a kernel of its own, if this machine has one.
fn runsc() -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join("runsc")).find(|file| file.is_file())
}

#[test]
fn a_container_with_a_kernel_of_its_own_says_how_strong_it_is_or_what_it_lacks() {
    perform(async |stage| {
        let Some(runsc) = runsc() else { return skip("runsc", "gVisor is not installed (Debian: runsc)") };
        // Boxes have no network, and it would set one up.
        let config = format!(
            r#"{{"runtimes": {{"walled": {{"path": "{}", "runtimeArgs": ["--network=none"]}}}}}}"#,
            runsc.display()
        );
        let file = stage.dir.path().join("daemon.json");
        std::fs::write(&file, config).unwrap();
        let args = vec![format!("--config-file={}", file.display())];
        let engine = PrivateEngine::start_as(&stage.place(), &Manner { args, ..Manner::default() }).unwrap();
        let house = open(&stage.dir.path().join("other"), &engine.host());
        let spec = SandboxSpec {
            image: Image::Directory(small(stage.dir.path())),
            engine_runtime: Some("walled".into()),
            ..spec()
        };
        match house.create(spec.clone()).await {
            Ok(sandbox) => {
                let own = stdout_of(&sandbox, "cat /proc/sys/kernel/osrelease").await;
                let machines = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
                assert_ne!(own, machines, "it has a kernel of its own");
                assert_eq!(sandbox.info().level, Level::Full, "{:?}", sandbox.info());
                sandbox.destroy().await.unwrap();
            }
            // What Debian has of it is too old for us.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("pidfd_open"), "it is said what is missing: {error}");
            }
        }
        assert_eq!((house.list().await.unwrap().len(), engine.docker(&["ps", "-aq"]).as_str()), (0, ""));
        // What cannot be had there is said.
        let error = house.create(SandboxSpec { image: Image::Host, ..spec }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("kernel of its own"), "{error}");
        house.settle().await;
        house.gc().await.unwrap();
        assert_eq!(
            (engine.docker(&["ps", "-aq"]), engine.docker(&["volume", "ls", "-q"])),
            Default::default()
        );
        engine.end();
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
