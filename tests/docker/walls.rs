//! The walls of a container, as a command in it sees them.

use glasshouse_sandbox::{EngineSettings, ErrorKind, Level, SandboxSpec, Sandboxes, Settings};

use crate::stage::{perform, spec, stdout_of};

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

#[test]
fn a_runtime_of_the_engines_with_a_kernel_of_its_own_is_refused() {
    perform(async |stage| {
        let engine = EngineSettings {
            host: Some(stage.engine.host.clone()),
            runtime: Some("runsc".into()),
            ..EngineSettings::default()
        };
        let house = Sandboxes::open_with(Settings { home: stage.dir.path().join("other") }, engine).unwrap();
        let error = house.create(spec()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("runsc"), "{error}");
    });
}
