//! Contexts that are forked from an interpreter that is kept warm: like any other, and apart from each other.

use glasshouse_sandbox::{
    CodeSpec, ContextInfo, ContextSpec, ContextState, ErrorKind, Exit, Language, Method, RuntimeKind,
    Sandbox, SandboxSpec, ShotsSpec, SnapshotOptions, Warm,
};

use crate::code::{error, run, run_spec, start, state, value};
use crate::stage::{Stage, on_every_runtime, settle, stdout_of, text, wait_gone, within};

on_every_runtime!(
    a_warm_context_is_a_context_like_any_other,
    siblings_share_nothing_that_could_be_told,
    a_fork_has_descriptors_of_its_own,
    a_fork_stands_as_a_cold_context_does,
    a_fork_cannot_look_into_others,
    nobody_gets_at_the_zygote,
    a_zygote_that_is_killed_or_stopped_is_replaced,
    modules_are_loaded_ahead,
    what_cannot_be_loaded_is_told,
    other_languages_are_cold_and_say_so,
    hostile_forks_leave_their_siblings_alone,
    what_a_fork_started_goes_with_it,
    an_interrupt_and_a_deadline_hit_the_fork,
    a_run_of_a_fork_reports_its_own_time_and_memory,
    a_reset_box_is_warm_at_once,
    a_reset_takes_along_what_somebody_did_to_the_zygote,
    a_zygote_that_came_later_goes_with_the_reset,
    a_warm_box_is_quiet,
    a_paused_box_goes_on_warm,
    one_shots_begin_anew,
    a_python_without_the_words_of_a_fork_is_warm_all_the_same,
);

fn spec(imports: &[&str]) -> ContextSpec {
    let imports = imports.iter().map(|name| (*name).to_owned()).collect();
    ContextSpec { warm: Some(Warm { imports }), ..ContextSpec::default() }
}

/// A context that is warm, where this is possible, and says why not elsewhere.
async fn warm(sandbox: &Sandbox) -> ContextInfo {
    let made = sandbox.create_context(spec(&[])).await.expect("a context can be made");
    assert_eq!(made.warm, made.cold.is_none(), "{made:?}");
    if !made.warm {
        let why = made.cold.as_deref().unwrap_or_default();
        assert!(why.starts_with("without cgroups"), "{why}");
    }
    made
}

/// The same, where it has to be warm for a test to mean anything.
async fn forked(sandbox: &Sandbox) -> Option<ContextInfo> {
    Some(warm(sandbox).await).filter(|context| context.warm)
}

/// The processes that a command of the box's user cannot look into, its first one aside: zygotes and their spares.
const HIDDEN: &str = "
import os
def hidden():
    def is_hidden(pid):
        try: os.listdir('/proc/%d/fd' % pid)
        except PermissionError: return True
        except OSError: pass
        return False
    return sorted(pid for pid in map(int, filter(str.isdigit, os.listdir('/proc'))) if pid != 1 and is_hidden(pid))
";

async fn hidden(sandbox: &Sandbox, context: &ContextInfo) -> String {
    value(sandbox, context, &format!("{HIDDEN}\nhidden()")).await
}

async fn a_warm_context_is_a_context_like_any_other(sandbox: &Sandbox) {
    let (a, b) = (warm(sandbox).await, warm(sandbox).await);
    assert!(run(sandbox, &a, "x = 41\ndef f(): return x + 1").await.report.exit.success());
    assert_eq!(value(sandbox, &a, "f()").await, "42");
    assert_eq!(error(&run(sandbox, &b, "x").await).name, "NameError");
    let cold = sandbox.create_context(ContextSpec::default()).await.unwrap();
    assert!(!cold.warm && cold.cold.is_none() && cold.version == a.version);
    let look = "import os, sys\n__name__, os.getcwd(), sorted(os.environ.items()), sys.argv, sys.path, sys.flags, \
                sys.getrecursionlimit(), os.getppid(), os.getpid() == os.getsid(0) == os.getpgid(0), \
                sorted(k for k in globals() if k not in ('os', 'sys'))";
    assert_eq!(value(sandbox, &a, look).await.replace(", 'f', 'x'", ""), value(sandbox, &cold, look).await);
    assert_eq!(
        text(&run(sandbox, &a, "import subprocess\nsubprocess.run(['echo', 'hi'])").await.stdout),
        "hi\n"
    );
    let failed = run(sandbox, &b, "def g():\n    return 1 / 0\ng()").await;
    let lines = &error(&failed).traceback;
    assert!(lines.iter().any(|line| line.contains("<cell 2>")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("<glasshouse>")), "{lines:?}");
    assert_eq!(run(sandbox, &a, "import sys; sys.exit(7)").await.report.exit, Exit::Code { code: 7 });
    // What it is started anew as.
    let again = sandbox.restart_context(&a.id).await.unwrap();
    assert_eq!((again.warm, again.runs), (a.warm, 0));
    assert_eq!(error(&run(sandbox, &again, "x").await).name, "NameError");
    // All of its surroundings are its own.
    let env = vec![("WORD".to_owned(), "here".to_owned())];
    let other = ContextSpec { cwd: Some("/tmp".into()), env, ..spec(&[]) };
    let other = sandbox.create_context(other).await.unwrap();
    assert_eq!(
        value(sandbox, &other, "import os\nos.getcwd(), os.environ['WORD']").await,
        "('/tmp', 'here')"
    );
    let nowhere = ContextSpec { cwd: Some("/no/such/place".into()), ..spec(&[]) };
    assert_eq!(sandbox.create_context(nowhere).await.unwrap_err().kind(), ErrorKind::Invalid);
}

async fn siblings_share_nothing_that_could_be_told(sandbox: &Sandbox) {
    let code = "
import random, tempfile, uuid, secrets, os, multiprocessing.process
values = [random.random(), random.Random().random(), random.getrandbits(64), uuid.uuid4().hex, secrets.token_hex(),
          os.path.basename(tempfile.mktemp()), next(tempfile._get_candidate_names()), os.urandom(8).hex(),
          bytes(multiprocessing.process.current_process().authkey).hex()]
print('\\n'.join(map(str, values)))";
    let mut seen = std::collections::BTreeSet::new();
    for n in 1..=4 {
        let context =
            sandbox.create_context(spec(&["random", "tempfile", "uuid", "multiprocessing.process"])).await;
        let output = run(sandbox, &context.unwrap(), code).await;
        seen.extend(text(&output.stdout).lines().map(str::to_owned));
        assert_eq!(seen.len(), 9 * n, "{seen:?}");
    }
}

async fn a_fork_has_descriptors_of_its_own(sandbox: &Sandbox) {
    let cold = sandbox.create_context(ContextSpec::default()).await.unwrap();
    let look = "
import os
def what(n):
    try: name = os.readlink('/proc/self/fd/' + n)
    except OSError: return None
    return int(n), name.split(':')[0].replace(str(os.getpid()), 'PID'), os.get_inheritable(int(n))
print(sorted(filter(None, map(what, os.listdir('/proc/self/fd')))))";
    let kinds = text(&run(sandbox, &cold, look).await.stdout);
    let (a, b) = (warm(sandbox).await, warm(sandbox).await);
    assert_eq!(text(&run(sandbox, &a, look).await.stdout), kinds);
    assert_eq!(text(&run(sandbox, &b, look).await.stdout), kinds);
    // No socket or pipe of one is one of the other's.
    let names = "import os\nfor n in ('0', '1', '2', '3'): print(os.readlink('/proc/self/fd/' + n))";
    let own = text(&run(sandbox, &a, names).await.stdout);
    let others = text(&run(sandbox, &b, names).await.stdout);
    for name in own.lines().filter(|name| !name.contains("/dev/null")) {
        assert!(!others.contains(name), "{name} is in {others}");
    }
}

async fn a_fork_stands_as_a_cold_context_does(sandbox: &Sandbox) {
    let cold = sandbox.create_context(ContextSpec::default()).await.unwrap();
    let look = "
import os
keys = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters',
        'SigBlk', 'SigIgn', 'SigCgt', 'Umask', 'Threads', 'Cpus_allowed_list')
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print([(key, status.get(key)) for key in keys])
print(open('/proc/self/limits').read(), open('/proc/self/oom_score_adj').read(), os.nice(0), os.sched_getscheduler(0))
print(os.stat('/proc/self/maps').st_uid)";
    let expected = text(&run(sandbox, &cold, look).await.stdout);
    let context = warm(sandbox).await;
    assert_eq!(text(&run(sandbox, &context, look).await.stdout), expected);
}

async fn a_fork_cannot_look_into_others(stage: &Stage) {
    // As the host's root, it could.
    if stage.runtime != RuntimeKind::Native {
        return;
    }
    let sandbox = stage.sandbox().await;
    let (a, b) = (warm(&sandbox).await, warm(&sandbox).await);
    let pid = b.pid.expect("it lives");
    // Where Landlock stands, it keeps forks apart as it does commands: each has a fence of its own.
    let look = format!("open('/proc/{pid}/mem', 'rb').read(0)");
    let cold = sandbox.create_context(ContextSpec::default()).await.unwrap();
    let expected = run(&sandbox, &cold, &look).await.report.exit;
    let seen = run(&sandbox, &a, &look).await;
    assert_eq!(seen.report.exit, expected);
    assert_eq!(error(&seen).name, "PermissionError", "{seen:?}");
    let same = format!("open('/proc/{}/mem', 'rb').read(0)", a.pid.unwrap());
    assert_eq!(value(&sandbox, &a, &same).await, "b''");
}

async fn nobody_gets_at_the_zygote(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let sandbox = stage.sandbox().await;
    let Some(context) = forked(&sandbox).await else { return };
    // The zygote and its spare: whoever stands between them while that is made is not there for long.
    let is_made = async || hidden(&sandbox, &context).await.split(',').count() == 2;
    settle("the spare is there", is_made).await;
    let before = hidden(&sandbox, &context).await;
    let attack = format!(
        "{HIDDEN}
import ctypes, signal
library = ctypes.CDLL(None, use_errno=True)
got = []
for pid in hidden():
    for name in ('mem', 'maps', 'environ', 'fd/3', 'exe', 'cwd/etc', 'root/etc', 'syscall', 'stack'):
        try:
            # One that has just ended has nothing in it.
            if open('/proc/%d/%s' % (pid, name), 'rb').read(1): got.append((pid, name))
        except OSError: pass
    for request in (16, 0x4206):
        if library.ptrace(request, pid, 0, 0) == 0: got.append((pid, 'ptrace', request))
    pidfd = library.syscall(434, pid, 0)
    for number in range(8):
        if library.syscall(438, pidfd, number, 0) >= 0: got.append((pid, 'pidfd_getfd', number))
    buffer = ctypes.create_string_buffer(8)
    one = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    for call in (310, 311):
        if library.syscall(call, pid, one, 1, one, 1, 0) >= 0: got.append((pid, 'process_vm', call))
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try: os.kill(pid, number)
            except OSError: pass
got"
    );
    assert_eq!(value(&sandbox, &context, &attack).await, "[]");
    assert_eq!(hidden(&sandbox, &context).await, before, "all of them live");
    assert!(warm(&sandbox).await.warm);
}

async fn a_zygote_that_is_killed_or_stopped_is_replaced(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let sandbox = stage.sandbox().await;
    let Some(context) = forked(&sandbox).await else { return };
    for signal in ["KILL", "STOP", "KILL"] {
        let harm = format!(
            "{HIDDEN}\nimport signal\nfor pid in hidden():\n    try: os.kill(pid, signal.SIG{signal})\n    except OSError: pass"
        );
        assert!(run(&sandbox, &context, &harm).await.report.exit.success());
        let next = within("the next one is there", sandbox.create_context(spec(&[]))).await.unwrap();
        assert_eq!(next.warm, next.cold.is_none(), "{next:?}");
        assert_eq!(value(&sandbox, &next, "1 + 1").await, "2");
        assert!(forked(&sandbox).await.is_some(), "and the one after it is warm");
    }
}

async fn modules_are_loaded_ahead(sandbox: &Sandbox) {
    let made = sandbox.create_context(spec(&["wave", "xml.etree.ElementTree"])).await.unwrap();
    let look =
        "import sys\n'wave' in sys.modules, 'xml.etree.ElementTree' in sys.modules, 'wave' in globals()";
    let expected = if made.warm { "(True, True, False)" } else { "(False, False, False)" };
    assert_eq!(value(sandbox, &made, look).await, expected);
    // One kind does not have what another has loaded.
    assert_eq!(value(sandbox, &warm(sandbox).await, look).await, "(False, False, False)");
}

async fn what_cannot_be_loaded_is_told(sandbox: &Sandbox) {
    let refused = async |imports: &[&str]| sandbox.create_context(spec(imports)).await.unwrap_err();
    for bad in ["", "a b", "os; import x", "x\"", "1x"] {
        let error = refused(&[bad]).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("cannot be the name of a module"), "{error}");
    }
    let error = refused(&["os"; 65]).await;
    assert!(error.to_string().contains("65 modules are too many"), "{error}");
    if forked(sandbox).await.is_some() {
        let error = refused(&["no_such_module"]).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("no_such_module: ModuleNotFoundError"), "{error}");
    }
    assert!(sandbox.contexts().await.unwrap().iter().all(|context| context.state == ContextState::Idle));
}

async fn other_languages_are_cold_and_say_so(sandbox: &Sandbox) {
    let made = sandbox
        .create_context(ContextSpec { language: Language::Bash, ..spec(&[]) })
        .await
        .expect("it starts");
    assert_eq!((made.warm, made.cold.as_deref()), (false, Some("only Python is kept warm")));
}

async fn hostile_forks_leave_their_siblings_alone(sandbox: &Sandbox) {
    let good = warm(sandbox).await;
    let codes = [
        "import os\nos._exit(3)",
        "import os, time\nos.closerange(0, 1024)\ntime.sleep(1000)",
        "import os, signal\nos.kill(os.getpid(), 9)",
        "import os, time\nfor fd in range(3, 64):\n    try: os.write(fd, b'ready 1\\nborn\\nhello 1\\ndone 1 0\\n')\n    except OSError: pass\ntime.sleep(1000)",
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(1000)\nos._exit(0)",
        "import ctypes\nctypes.string_at(8)",
        "import ctypes, os\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nos.setpgid(0, 0) if os.getpid() != os.getpgid(0) else None\nos.abort()",
    ];
    for code in codes {
        let bad = warm(sandbox).await;
        let output = run(sandbox, &bad, code).await;
        assert!(!output.report.exit.success() || code.ends_with("os._exit(0)"), "{code}: {output:?}");
        let lost = state(sandbox, &bad).await;
        assert!(matches!(lost, ContextState::Lost { .. }), "{code}: {lost:?}");
        assert_eq!(value(sandbox, &good, "1 + 1").await, "2");
        sandbox.delete_context(&bad.id).await.unwrap();
    }
    let next = warm(sandbox).await;
    assert_eq!((next.warm, value(sandbox, &next, "2 + 2").await), (good.warm, "4".to_owned()));
}

async fn what_a_fork_started_goes_with_it(sandbox: &Sandbox) {
    let (bad, good) = (warm(sandbox).await, warm(sandbox).await);
    let daemon = "
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode()); time.sleep(1000)
    os._exit(0)
int(os.read(r, 16))";
    let pid: u32 = value(sandbox, &bad, daemon).await.parse().unwrap();
    let other: u32 = value(sandbox, &good, daemon).await.parse().unwrap();
    sandbox.delete_context(&bad.id).await.unwrap();
    wait_gone(sandbox, pid).await;
    assert_eq!(stdout_of(sandbox, &format!("test -d /proc/{other} && echo lives")).await, "lives\n");
    assert_eq!(value(sandbox, &good, "1 + 1").await, "2");
    assert_eq!(warm(sandbox).await.warm, good.warm);
    sandbox.delete_context(&good.id).await.unwrap();
    wait_gone(sandbox, other).await;
}

async fn an_interrupt_and_a_deadline_hit_the_fork(sandbox: &Sandbox) {
    let (a, b) = (warm(sandbox).await, warm(sandbox).await);
    let waiting = "import time\nprint('on', flush=True)\ntime.sleep(1000)";
    let (first, second) =
        (start(sandbox, &a, CodeSpec::new(waiting)).await, start(sandbox, &b, CodeSpec::new(waiting)).await);
    sandbox.interrupt_context(&a.id).await.unwrap();
    let ended = within("it is interrupted", first.collect()).await;
    assert_eq!(error(&ended).name, "KeyboardInterrupt");
    assert_eq!(state(sandbox, &b).await, ContextState::Busy { exec: second.id() });
    sandbox.interrupt_context(&b.id).await.unwrap();
    within("it is interrupted", second.collect()).await;
    let deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)";
    let spec = CodeSpec { timeout_ms: Some(100), grace_ms: Some(50), ..CodeSpec::new(deaf) };
    assert_eq!(run_spec(sandbox, &a, spec).await.report.exit, Exit::TimedOut);
    assert!(matches!(state(sandbox, &a).await, ContextState::Lost { .. }));
    assert_eq!(value(sandbox, &b, "1 + 1").await, "2");
}

async fn a_run_of_a_fork_reports_its_own_time_and_memory(sandbox: &Sandbox) {
    let (a, b) = (warm(sandbox).await, warm(sandbox).await);
    let busy = "import time\nx = bytearray(64 << 20)\nuntil = time.process_time() + 0.2\nwhile time.process_time() < until: pass\ndel x";
    let report = run(sandbox, &a, busy).await.report;
    assert!(report.cpu_us >= 150_000 && report.peak_memory_bytes > 64 << 20, "{report:?}");
    for context in [&a, &b] {
        let report = run(sandbox, context, "pass").await.report;
        assert!(report.cpu_us < 150_000, "{report:?}");
        assert!(report.peak_memory_bytes > 0 && report.peak_memory_bytes < 64 << 20, "{report:?}");
    }
}

async fn a_reset_box_is_warm_at_once(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let sandbox = stage.sandbox().await;
    let Some(context) = forked(&sandbox).await else { return };
    let zygote = hidden(&sandbox, &context).await;
    let mess = "
import os, builtins
builtins.mess = 1
open('mess', 'w').write('x'); open('/tmp/mess', 'w').write('x'); open('/dev/shm/mess', 'w').write('x')
os.system('sleep 1000 &')";
    assert!(run(&sandbox, &context, mess).await.report.exit.success());
    let (_, verified) = stage.house.reset_verified(sandbox.id()).await.unwrap();
    assert_eq!(verified.difference, None);
    let next = warm(&sandbox).await;
    assert!(next.warm);
    let look = "import os, builtins\nos.listdir(), os.listdir('/tmp'), os.listdir('/dev/shm'), hasattr(builtins, 'mess')";
    assert_eq!(value(&sandbox, &next, look).await, "([], [], [], False)");
    // Files can be written where they could, and Landlock's fence is that of the new root.
    assert!(run(&sandbox, &next, "open('new', 'w').write('x')").await.report.exit.success());
    assert_eq!(stdout_of(&sandbox, "cat new").await, "x");
    if stage.is_native_root() {
        let first = |pids: &str| pids.trim_start_matches('[').split(',').next().map(str::to_owned);
        assert_eq!(first(&hidden(&sandbox, &next).await), first(&zygote), "it is the same zygote");
    }
    if stage.runtime != RuntimeKind::Native {
        return;
    }
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..5 {
        let context = warm(&sandbox).await;
        ids.insert(value(&sandbox, &context, "import random\nrandom.random()").await);
        sandbox.reset().await.unwrap();
    }
    assert_eq!(ids.len(), 5);
}

async fn a_reset_takes_along_what_somebody_did_to_the_zygote(stage: &Stage) {
    // In a container, nothing at all outlives a reset.
    if stage.runtime != RuntimeKind::Native {
        return;
    }
    let sandbox = stage.sandbox().await;
    let Some(context) = forked(&sandbox).await else { return };
    let look = "import os, resource\nprint(open('/proc/self/limits').read(), os.nice(0), os.sched_getaffinity(0), os.sched_getscheduler(0))";
    let expected = text(&run(&sandbox, &context, look).await.stdout);
    for harm in [
        "resource.prlimit(pid, resource.RLIMIT_NOFILE, (20, 20))",
        "resource.prlimit(pid, resource.RLIMIT_STACK, (65536, 65536))",
        "os.setpriority(os.PRIO_PROCESS, pid, 19)",
        "os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))",
        "os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})",
        "os.kill(pid, signal.SIGSTOP)",
    ] {
        let context = warm(&sandbox).await;
        let code = format!(
            "{HIDDEN}\nimport resource, signal\nfor pid in hidden():\n    try: {harm}\n    except ProcessLookupError: pass"
        );
        let output = run(&sandbox, &context, &code).await;
        assert!(output.report.exit.success(), "{harm}: {output:?}");
        sandbox.reset().await.unwrap();
        let next = within(harm, sandbox.create_context(spec(&[]))).await.unwrap();
        assert_eq!(text(&run(&sandbox, &next, look).await.stdout), expected, "{harm}");
        sandbox.reset().await.unwrap();
    }
}

async fn a_zygote_that_came_later_goes_with_the_reset(stage: &Stage) {
    if stage.runtime == RuntimeKind::Process {
        return;
    }
    let sandbox = stage.sandbox().await;
    if forked(&sandbox).await.is_none() {
        return;
    }
    stdout_of(&sandbox, "echo 'import builtins; builtins.planted = 1' > planted.py; echo 'import builtins; builtins.planted = 1' > wave.py").await;
    let planted = sandbox.create_context(spec(&["wave"])).await.unwrap();
    assert_eq!(value(&sandbox, &planted, "planted").await, "1");
    assert!(sandbox.create_context(spec(&["planted"])).await.unwrap().warm);
    sandbox.reset().await.unwrap();
    let clean = sandbox.create_context(spec(&["wave"])).await.unwrap();
    assert_eq!(error(&run(&sandbox, &clean, "planted").await).name, "NameError");
    let error = sandbox.create_context(spec(&["planted"])).await.unwrap_err();
    assert!(error.to_string().contains("planted"), "{error}");
}

async fn a_warm_box_is_quiet(stage: &Stage) {
    if stage.runtime != RuntimeKind::Native {
        return;
    }
    let sandbox = stage.sandbox().await;
    let Some(context) = forked(&sandbox).await else { return };
    assert!(run(&sandbox, &context, "open('kept', 'w').write('x')").await.report.exit.success());
    sandbox.delete_context(&context.id).await.unwrap();
    let taken = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    assert_eq!((taken.method, taken.processes), (Method::Rotate, 0));
    // What is forked now lives in the root that the box has now.
    let next = warm(&sandbox).await;
    assert!(next.warm);
    assert_eq!(value(&sandbox, &next, "open('kept').read()").await, "'x'");
    assert!(run(&sandbox, &next, "open('more', 'w').write('x')").await.report.exit.success());
    sandbox.reset().await.unwrap();
    assert_eq!(value(&sandbox, &warm(&sandbox).await, "import os\nos.listdir()").await, "[]");
    sandbox.restore(&taken.id).await.unwrap();
    assert_eq!(value(&sandbox, &warm(&sandbox).await, "import os\nos.listdir()").await, "['kept']");
}

async fn a_paused_box_goes_on_warm(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let before = warm(&sandbox).await;
    stage.house.pause(sandbox.id()).await.unwrap();
    assert_eq!(sandbox.create_context(spec(&[])).await.unwrap_err().kind(), ErrorKind::Paused);
    stage.house.resume(sandbox.id()).await.unwrap();
    assert_eq!(warm(&sandbox).await.warm, before.warm);
    assert_eq!(value(&sandbox, &before, "1 + 1").await, "2");
}

async fn one_shots_begin_anew(stage: &Stage) {
    let spec = SandboxSpec { runtime: stage.runtime, ..SandboxSpec::default() };
    let shots = stage.house.shots(ShotsSpec { sandbox: spec, context: self::spec(&[]), boxes: 2 });
    let code = "
import os, sys
print(sorted(os.listdir()), sorted(os.listdir('/dev/shm')) if os.getpid() != os.getppid() else '', 'mess' in globals())
mess = 1
open('mess', 'w').write('x')
os.system('sleep 1000 &')";
    let mut running = tokio::task::JoinSet::new();
    for n in 0..8 {
        let shots = shots.clone();
        // Whoever ends badly is no trouble to the next.
        let code = if n % 4 == 3 { "import os\nos._exit(9)".to_owned() } else { code.to_owned() };
        running.spawn(async move { (n, shots.run(CodeSpec::new(code)).await.unwrap()) });
    }
    while let Some(done) = within("it ends", running.join_next()).await {
        let (n, output) = done.unwrap();
        if n % 4 == 3 {
            assert_eq!(output.report.exit, Exit::Code { code: 9 });
        } else if stage.runtime != RuntimeKind::Process {
            assert_eq!(text(&output.stdout), "[] [] False\n");
        }
    }
    let boxes = stage.house.list().await.unwrap().len();
    assert!(boxes <= 2, "{boxes} boxes");
    within("all of them go", shots.close()).await.unwrap();
    assert_eq!(stage.house.list().await.unwrap(), []);
    // One that is not given back is not used again.
    let shots = stage.house.shots(ShotsSpec {
        sandbox: SandboxSpec { runtime: stage.runtime, ..SandboxSpec::default() },
        context: self::spec(&[]),
        boxes: 1,
    });
    let shot = shots.take().await.unwrap();
    let id = shot.sandbox().unwrap().id().to_owned();
    stdout_of(shot.sandbox().unwrap(), "true").await;
    drop(shot);
    let next = shots.take().await.unwrap();
    assert_ne!(next.sandbox().unwrap().id(), id);
    next.done();
    within("all of them go", shots.close()).await.unwrap();
    settle("there is none left", async || stage.house.list().await.unwrap().is_empty()).await;
}

/// One that does not let others call what it does around a fork forks as any program can.
async fn a_python_without_the_words_of_a_fork_is_warm_all_the_same(sandbox: &Sandbox) {
    if forked(sandbox).await.is_none() {
        return;
    }
    let site = "
import ctypes
class Bare(ctypes.PyDLL):
    def __getattr__(self, name):
        if name.startswith('PyOS_'): raise AttributeError(name)
        return super().__getattr__(name)
ctypes.PyDLL = Bare";
    // Its own directory: without walls, all others are the host's.
    let dir = format!("{}/bare", stdout_of(sandbox, "pwd").await.trim());
    sandbox.write_file(&format!("{dir}/sitecustomize.py"), site.as_bytes(), None).await.unwrap();
    let env = vec![("PYTHONPATH".to_owned(), dir)];
    let cold = ContextSpec { env: env.clone(), ..ContextSpec::default() };
    let cold = sandbox.create_context(cold).await.unwrap();
    let look = "import ctypes, os\nhasattr(ctypes.PyDLL(None), 'PyOS_BeforeFork'), os.getppid(), \
                os.getpid() == os.getsid(0) == os.getpgid(0)";
    let expected = value(sandbox, &cold, look).await;
    assert!(expected.starts_with("(False, "), "{expected}");
    let mut pids = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let made = sandbox.create_context(ContextSpec { env: env.clone(), ..spec(&[]) }).await.unwrap();
        assert!(made.warm, "{made:?}");
        assert_eq!(value(sandbox, &made, look).await, expected);
        assert_eq!(text(&run(sandbox, &made, "os.system('echo hi');").await.stdout), "hi\n");
        pids.insert(made.pid);
    }
    assert_eq!(pids.len(), 3, "{pids:?}");
}
