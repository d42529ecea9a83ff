//! Limits of a box: each is enforced, or refused with the reason, and each says what enforces it.

use std::time::Duration;

use glasshouse_sandbox::{
    ErrorKind, ExecSpec, Exit, Image, Level, LimitInForce, Limits, RuntimeKind, Sandbox, SandboxSpec,
};

use crate::ends::limited;
use crate::follow::Follow;
use crate::stage::{Stage, argv, exit_of, on_every_runtime, perl, run, stdout_of, text};

on_every_runtime![
    every_limit_names_what_enforces_it,
    a_limit_that_was_asked_for_is_in_force_or_refused,
    nonsense_is_refused,
    a_share_of_the_cpu_is_all_there_is,
    the_boxs_memory_is_shared_by_its_commands,
    the_boxs_disk_is_shared_by_its_commands,
    kept_output_is_as_much_as_was_asked_for,
    a_read_only_root_cannot_be_written,
    what_a_runtime_without_walls_cannot_give_is_refused,
    a_level_that_is_not_reached_is_refused,
];

fn spec(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..SandboxSpec::default() }
}

fn named<'a>(sandbox: &'a Sandbox, name: &str) -> &'a LimitInForce {
    sandbox.info().limits.iter().find(|limit| limit.name == name).expect("every limit is told of")
}

async fn every_limit_names_what_enforces_it(sandbox: &Sandbox) {
    let names: Vec<_> = sandbox.info().limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["memory", "cpu", "pids", "disk", "output", "timeout", "ttl"]);
    for limit in &sandbox.info().limits {
        assert!(limit.mechanism.len() > 5 && !limit.value.is_empty(), "{limit:?}");
        assert_eq!(limit.amount.is_none(), limit.value == "none", "{limit:?}");
    }
    if sandbox.info().runtime != RuntimeKind::Process {
        for name in ["memory", "pids"] {
            assert!(
                named(sandbox, name).amount.is_some(),
                "a box has this by default, and something enforces it"
            );
        }
    }
}

async fn a_limit_that_was_asked_for_is_in_force_or_refused(stage: &Stage) {
    let none = Limits::default();
    for (name, limits, amount) in [
        ("memory", Limits { memory_bytes: Some(64 << 20), ..none.clone() }, 64 << 20),
        ("cpu", Limits { cpus: Some(0.5), ..none.clone() }, 500),
        ("pids", Limits { pids: Some(50), ..none.clone() }, 50),
        ("disk", Limits { disk_bytes: Some(16 << 20), ..none.clone() }, 16 << 20),
    ] {
        let Some(sandbox) = limited(stage, limits).await else { continue };
        let limit = named(&sandbox, name);
        assert_eq!(limit.amount, Some(amount), "{limit:?}");
        assert!(!limit.mechanism.contains("not asked for"), "{limit:?}");
        // What another process reads of it is the same.
        assert_eq!(stage.house.info(sandbox.id()).await.unwrap().limits, sandbox.info().limits);
    }
    // Those that the guest sees to work everywhere.
    let limits = Limits {
        output_bytes: Some(5000),
        timeout: Some(Duration::from_secs(100)),
        ttl: Some(Duration::from_secs(1000)),
        ..none
    };
    let sandbox = stage.create(spec(limits)).await.unwrap();
    for (name, amount) in [("output", 5000), ("timeout", 100_000), ("ttl", 1_000_000)] {
        let limit = named(&sandbox, name);
        assert_eq!((limit.amount, limit.mechanism.contains("guest")), (Some(amount), true), "{limit:?}");
    }
}

async fn nonsense_is_refused(stage: &Stage) {
    let mut nonsense = vec![
        spec(Limits { timeout: Some(Duration::ZERO), ..Limits::default() }),
        spec(Limits { ttl: Some(Duration::ZERO), ..Limits::default() }),
        SandboxSpec { env: vec![("A=B".into(), "c".into())], ..SandboxSpec::default() },
        SandboxSpec { env: vec![("A".into(), "\0".into())], ..SandboxSpec::default() },
        SandboxSpec { cwd: Some("relative".into()), ..SandboxSpec::default() },
        SandboxSpec { name: Some("no/name".into()), ..SandboxSpec::default() },
    ];
    if stage.runtime != RuntimeKind::Process {
        nonsense.extend([
            spec(Limits { memory_bytes: Some(1), ..Limits::default() }),
            spec(Limits { cpus: Some(0.0), ..Limits::default() }),
            spec(Limits { cpus: Some(f64::NAN), ..Limits::default() }),
            spec(Limits { pids: Some(0), ..Limits::default() }),
            spec(Limits { disk_bytes: Some(1), ..Limits::default() }),
        ]);
    }
    for spec in nonsense {
        let shown = format!("{spec:?}");
        assert_eq!(stage.refusal(spec).await.kind(), ErrorKind::Invalid, "{shown}");
    }
    assert_eq!(stage.house.list().await.unwrap(), [], "nothing is left of it");
}

async fn a_share_of_the_cpu_is_all_there_is(stage: &Stage) {
    let Some(sandbox) = limited(stage, Limits { cpus: Some(0.2), ..Limits::default() }).await else { return };
    let script = "do { $x++ for 1..1000; ($u, $s) = times } until $u + $s >= 0.6";
    let report = run(&sandbox, perl(script)).await.report;
    assert_eq!(report.exit, Exit::Code { code: 0 });
    // 0.6 s of CPU time at a fifth of a CPU take 3 s; a busy machine can only make that longer.
    assert!(report.wall_us >= 2_000_000, "{report:?}");
}

async fn the_boxs_memory_is_shared_by_its_commands(stage: &Stage) {
    let limits = Limits { memory_bytes: Some(64 << 20), ..Limits::default() };
    let Some(sandbox) = limited(stage, limits).await else { return };
    // Either fits alone; together they do not, and one of them goes.
    let hold = "$| = 1; open Z, '<', '/dev/zero'; sysread Z, $x, 40_000_000; print qq(held\\n); sleep 1000";
    let mut first = Follow::start(&sandbox, perl(hold)).await;
    assert_eq!(first.line().await, "held");
    let mut second = Follow::start(&sandbox, perl(hold)).await;
    let gone = tokio::select! {
        report = first.end() => report,
        report = second.end() => report,
    };
    assert!(matches!(gone.exit, Exit::OutOfMemory { .. }), "{gone:?}");
}

async fn the_boxs_disk_is_shared_by_its_commands(stage: &Stage) {
    let limits = Limits { disk_bytes: Some(8 << 20), ..Limits::default() };
    let Some(sandbox) = limited(stage, limits).await else { return };
    assert_eq!(stdout_of(&sandbox, "head -c 5000000 /dev/zero > one; stat -c %s one").await, "5000000\n");
    let exit = exit_of(&sandbox, argv(&["dd", "if=/dev/zero", "of=two", "bs=5000000", "count=1"])).await;
    assert_eq!(exit, Exit::DiskFull { code: Some(1) });
    // Many small files are a full disk, too.
    let script = "for (1..1000000) { open my $f, '>', qq(f$_) or exit 7; close $f }";
    stdout_of(&sandbox, "rm one two").await;
    assert_eq!(exit_of(&sandbox, perl(script)).await, Exit::DiskFull { code: Some(7) });
}

async fn kept_output_is_as_much_as_was_asked_for(stage: &Stage) {
    let sandbox = stage.create(spec(Limits { output_bytes: Some(3000), ..Limits::default() })).await.unwrap();
    let output = run(&sandbox, perl("print 'x' x 100_000")).await;
    assert_eq!((output.stdout.total, output.stdout.gap_at.is_some()), (100_000, true));
    assert!(output.stdout.bytes.len() <= 3000, "{} bytes", output.stdout.bytes.len());
    let small = run(&sandbox, perl("print 'x' x 2000")).await;
    assert_eq!(text(&small.stdout).len(), 2000);
    let more = ExecSpec { kept_output_bytes: Some(200_000), ..perl("print 'x' x 100_000") };
    assert_eq!(text(&run(&sandbox, more).await.stdout).len(), 100_000, "a command may ask for more");
}

async fn a_read_only_root_cannot_be_written(stage: &Stage) {
    let spec = SandboxSpec { read_only: true, ..SandboxSpec::default() };
    if stage.runtime == RuntimeKind::Process {
        assert_eq!(stage.refusal(spec).await.kind(), ErrorKind::Unsupported);
        return;
    }
    let sandbox = stage.create(spec).await.unwrap();
    assert!(sandbox.info().read_only);
    for place in [".", "/workspace", "/home/user", "/var/tmp", "/"] {
        let script = format!("open F, '>', '{place}/file' and exit 0; exit $!{{EROFS}} ? 30 : 1");
        assert_eq!(
            exit_of(&sandbox, perl(&format!("use Errno; {script}"))).await,
            Exit::Code { code: 30 },
            "{place}"
        );
    }
    let error = sandbox.write_file("file", b"x", None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(stdout_of(&sandbox, "echo x > /tmp/file && cat /tmp/file").await, "x\n");
    sandbox.write_file("/tmp/other", b"y", None).await.unwrap();
    assert_eq!(sandbox.read_file("/tmp/other", 0, None).await.unwrap(), b"y");
    let full = exit_of(&sandbox, argv(&["dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=200"])).await;
    assert!(!full.success(), "what is memory has a bound: {full:?}");
}

async fn what_a_runtime_without_walls_cannot_give_is_refused(stage: &Stage) {
    if stage.runtime != RuntimeKind::Process {
        return;
    }
    for spec in [
        SandboxSpec { image: Image::Directory(stage.dir().to_owned()), ..SandboxSpec::default() },
        SandboxSpec { user: Some("nobody".into()), ..SandboxSpec::default() },
        SandboxSpec { read_only: true, ..SandboxSpec::default() },
        SandboxSpec { min_level: Some(Level::Reduced), ..SandboxSpec::default() },
    ] {
        let error = stage.refusal(spec).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("`process`"), "it says who cannot: {error}");
    }
}

async fn a_level_that_is_not_reached_is_refused(stage: &Stage) {
    let plain = stage.sandbox().await;
    for level in [Level::None, Level::Reduced, Level::Full] {
        let spec = SandboxSpec { min_level: Some(level), ..SandboxSpec::default() };
        match stage.create(spec).await {
            Ok(sandbox) => assert!(sandbox.info().level >= level),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(plain.info().level < level, "{error}");
            }
        }
    }
    assert_eq!(plain.info().missing.is_empty(), plain.info().level == Level::Full);
}
