//! Ends that a limit or a wall brings about, each provoked and told as what it is.

use glasshouse_sandbox::{
    ErrorKind, ExecOutput, ExecSpec, Exit, Limits, Rlimit, RlimitKind, RuntimeKind, Sandbox, SandboxSpec,
};

use crate::follow::Follow;
use crate::stage::{Stage, argv, exit_of, on_every_runtime, perl, run, settle, shell, stdout_of, text};

on_every_runtime![
    cpu_time_that_is_used_up_is_a_cpu_limit,
    a_box_out_of_memory_says_so,
    a_grandchild_out_of_memory_is_told_by_its_shell,
    an_oom_kill_that_a_command_survives_is_counted,
    more_output_than_allowed_is_an_output_limit,
    who_ends_before_its_output_is_read_has_written_too_much_all_the_same,
    as_much_output_as_allowed_is_none,
    a_box_out_of_processes_says_so,
    a_command_for_which_no_process_is_left_says_so,
    a_full_disk_says_so,
    a_file_that_does_not_fit_says_so,
    a_small_file_limit_is_the_programs_own_affair,
    a_system_call_of_a_foreign_abi_is_forbidden,
];

/// A box with limits; `None` where they are refused by design, which is checked.
pub(crate) async fn limited(stage: &Stage, limits: Limits) -> Option<Sandbox> {
    let spec = SandboxSpec { limits: limits.clone(), ..SandboxSpec::default() };
    match stage.create(spec).await {
        Ok(_) if stage.runtime == RuntimeKind::Process => panic!("no wall, and yet {limits:?}"),
        Ok(sandbox) => Some(sandbox),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(!stage.is_native_root(), "root can enforce {limits:?}: {error}");
            let reason = error.to_string();
            assert!(reason.contains("use `native`") || reason.contains("cannot enforce"), "{reason}");
            None
        }
    }
}

async fn cpu_time_that_is_used_up_is_a_cpu_limit(sandbox: &Sandbox) {
    let rlimits = vec![Rlimit { kind: RlimitKind::CpuSeconds, value: 1 }];
    let output = run(sandbox, ExecSpec { rlimits, ..perl("1 while 1") }).await;
    assert_eq!((output.report.exit.clone(), output.report.exit.shell_code()), (Exit::CpuLimit, 152));
    // The kernel counts in ticks for the limit and exactly for the report: they agree roughly.
    assert!(output.report.cpu_us >= 500_000, "{} µs", output.report.cpu_us);
}

const MEMORY: u64 = 64 << 20;
/// Takes more memory than there is, page by page, and holds it.
const GREEDY: &str = "push @all, 'x' x 1048576 while 1";

async fn memory_box(stage: &Stage) -> Option<Sandbox> {
    limited(stage, Limits { memory_bytes: Some(MEMORY), ..Limits::default() }).await
}

fn check_out_of_memory(output: &ExecOutput) {
    let Exit::OutOfMemory { peak_bytes } = output.report.exit else { panic!("{:?}", output.report) };
    assert!((MEMORY / 2..=MEMORY).contains(&peak_bytes), "a peak of {peak_bytes} bytes");
    assert!(output.report.oom_kills >= 1);
    assert_eq!(output.report.exit.shell_code(), 137);
}

async fn a_box_out_of_memory_says_so(stage: &Stage) {
    let Some(sandbox) = memory_box(stage).await else { return };
    for _ in 0..3 {
        check_out_of_memory(&run(&sandbox, perl(GREEDY)).await);
    }
    assert_eq!(stdout_of(&sandbox, "echo on").await, "on\n", "the box goes on");
}

async fn a_grandchild_out_of_memory_is_told_by_its_shell(stage: &Stage) {
    let Some(sandbox) = memory_box(stage).await else { return };
    check_out_of_memory(&run(&sandbox, shell(&format!("perl -e '{GREEDY}'; exit $?"))).await);
}

async fn an_oom_kill_that_a_command_survives_is_counted(stage: &Stage) {
    let Some(sandbox) = memory_box(stage).await else { return };
    let output = run(&sandbox, shell(&format!("perl -e '{GREEDY}'; echo went on"))).await;
    assert_eq!(
        (output.report.exit.clone(), text(&output.stdout).as_str()),
        (Exit::Code { code: 0 }, "went on\n")
    );
    assert!(output.report.oom_kills >= 1);
    let next = run(&sandbox, shell("exit 137")).await.report;
    assert_eq!((next.exit, next.oom_kills), (Exit::Code { code: 137 }, 0), "what was before does not count");
}

async fn more_output_than_allowed_is_an_output_limit(sandbox: &Sandbox) {
    for line in ["yes", "yes >&2", "yes & yes"] {
        let mut loud =
            Follow::start(sandbox, ExecSpec { output_bytes_max: Some(100_000), ..shell(line) }).await;
        let report = loud.end().await;
        assert_eq!((report.exit.clone(), report.exit.shell_code()), (Exit::OutputLimit, 137), "{line}");
        assert_eq!(loud.place, report.stdout_bytes + report.stderr_bytes, "what was seen is told");
        assert_eq!(loud.place, 100_000, "{line}: nothing of what came until it was dead");
    }
}

async fn who_ends_before_its_output_is_read_has_written_too_much_all_the_same(sandbox: &Sandbox) {
    // It fits into the pipe, so nobody waits for anybody; `--output-max` is looked at when it is read.
    for _ in 0..10 {
        let spec = ExecSpec { output_bytes_max: Some(5), ..shell("printf abcdefgh") };
        let output = run(sandbox, spec).await;
        assert_eq!((output.report.exit, text(&output.stdout).as_str()), (Exit::OutputLimit, "abcde"));
    }
}

async fn as_much_output_as_allowed_is_none(sandbox: &Sandbox) {
    let spec = ExecSpec { output_bytes_max: Some(5), ..shell("printf abc; printf de >&2") };
    assert_eq!(exit_of(sandbox, spec).await, Exit::Code { code: 0 });
}

/// Starts processes until there are no more, says how many there were, and gives up.
const FORKS: &str = "while (defined($pid = fork)) { $n++; if (!$pid) { sleep 1000; exit } } print $n; exit 3";
const PIDS: u64 = 24;

async fn pids_box(stage: &Stage) -> Option<Sandbox> {
    limited(stage, Limits { pids: Some(PIDS), ..Limits::default() }).await
}

async fn a_box_out_of_processes_says_so(stage: &Stage) {
    let Some(sandbox) = pids_box(stage).await else { return };
    let output = run(&sandbox, perl(FORKS)).await;
    let started: u64 = text(&output.stdout).parse().unwrap();
    assert!((1..PIDS).contains(&started), "{started} processes of {PIDS}");
    let exit = output.report.exit;
    if stage.has_root() {
        assert_eq!((exit.clone(), exit.shell_code()), (Exit::PidsLimit { code: Some(3) }, 3));
        return;
    }
    // Only a cgroup counts what it refuses; without one the command's own word is all there is.
    assert!(matches!(exit, Exit::PidsLimit { code: Some(3) } | Exit::Code { code: 3 }), "{exit:?}");
}

async fn a_command_for_which_no_process_is_left_says_so(stage: &Stage) {
    let Some(sandbox) = pids_box(stage).await else { return };
    let script = FORKS.replace("exit 3", "print qq(\\n); sleep 1000");
    let mut hog = Follow::start(&sandbox, perl(&format!("$| = 1; {script}"))).await;
    hog.line().await;
    let exit = exit_of(&sandbox, argv(&["true"])).await;
    assert_eq!((exit.clone(), exit.shell_code()), (Exit::PidsLimit { code: None }, 125));
    let exec = hog.exec.id();
    sandbox.kill_exec(exec).await.unwrap();
    hog.end().await;
    settle("there is room again", async || exit_of(&sandbox, argv(&["true"])).await.success()).await;
}

const DISK: u64 = 8 << 20;

async fn a_full_disk_says_so(stage: &Stage) {
    let Some(sandbox) = limited(stage, Limits { disk_bytes: Some(DISK), ..Limits::default() }).await else {
        return;
    };
    let output = run(&sandbox, shell("head -c 64000000 /dev/zero > big")).await;
    assert_eq!(output.report.exit, Exit::DiskFull { code: Some(1) }, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("No space left"));
    let size = sandbox.stat("big", false).await.unwrap().size;
    assert!((DISK / 2..=DISK).contains(&size), "{size} bytes");
    sandbox.remove_file("big", false).await.unwrap();
    assert_eq!(
        exit_of(&sandbox, shell("echo x > small; exit 4")).await,
        Exit::Code { code: 4 },
        "it is not full now"
    );
}

async fn a_file_that_does_not_fit_says_so(stage: &Stage) {
    let Some(sandbox) = limited(stage, Limits { disk_bytes: Some(DISK), ..Limits::default() }).await else {
        return;
    };
    sandbox.write_file("old", b"old", None).await.unwrap();
    let large = vec![1; 2 * DISK as usize];
    for path in ["new", "old"] {
        assert_eq!(sandbox.write_file(path, &large, None).await.unwrap_err().kind(), ErrorKind::DiskFull);
    }
    assert_eq!(sandbox.append_file("new", &large).await.unwrap_err().kind(), ErrorKind::DiskFull);
    sandbox.remove_file("new", false).await.unwrap();
    assert_eq!(sandbox.read_file("old", 0, None).await.unwrap(), b"old", "whole, or not at all");
    assert_eq!(stdout_of(&sandbox, "ls -A").await, "old\n", "nothing half is left");
}

async fn a_small_file_limit_is_the_programs_own_affair(sandbox: &Sandbox) {
    let rlimits = vec![Rlimit { kind: RlimitKind::FileBytes, value: 1000 }];
    let spec = ExecSpec { rlimits, ..argv(&["dd", "if=/dev/zero", "of=file", "bs=2000", "count=2"]) };
    assert_eq!(exit_of(sandbox, spec).await, Exit::Signal { signal: 25 });
}

/// A program of a few bytes: asks for its number in the i386 way, and ends with code 42 in the x86-64 way.
fn foreign_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let code: [&[u8]; 4] = [
        &[0xb8, 20, 0, 0, 0],                    // mov eax, 20 (getpid)
        &[0xcd, 0x80],                           // int 0x80
        &[0xb8, 60, 0, 0, 0, 0xbf, 42, 0, 0, 0], // mov eax, 60 (exit); mov edi, 42
        &[0x0f, 0x05],                           // syscall
    ];
    let code = code.concat();
    let size = HEADERS + code.len() as u64;
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let halves = |halves: &[u16]| halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>();
    let elf_header = [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        halves(&[2, 62, 1, 0]),          // an executable of x86-64
        words(&[BASE + HEADERS, 64, 0]), // entry, program header, no sections
        halves(&[0, 0, 64, 56, 1, 0, 0, 0]),
    ];
    // One segment, read and executed: the whole file.
    let program_header = [1u32.to_le_bytes(), 5u32.to_le_bytes()].concat();
    let segment = words(&[0, BASE, BASE, size, size, 0x1000]);
    [elf_header.concat(), program_header, segment, code].concat()
}

async fn a_system_call_of_a_foreign_abi_is_forbidden(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    sandbox.write_file("foreign", &foreign_program(), Some(0o755)).await.unwrap();
    let exit = exit_of(&sandbox, argv(&["./foreign"])).await;
    if stage.runtime == RuntimeKind::Process {
        // There is no wall. A kernel that has no such calls at all answers with SIGSEGV.
        assert!(matches!(exit, Exit::Code { code: 42 } | Exit::Signal { signal: 11 }), "{exit:?}");
        return;
    }
    if exit == (Exit::Signal { signal: 11 }) {
        eprintln!("this kernel has no i386 calls: the filter is not what stopped it");
        return;
    }
    assert!(matches!(&exit, Exit::Forbidden { what } if what.contains("foreign")), "{exit:?}");
    assert_eq!(exit.shell_code(), 159);
}
