//! Starting a command: one vfork, a fixed sequence of calls, one exec.
//!
//! All that the new process needs is laid out in [`Command`] before it exists. Between the clone and the exec it
//! shares our memory while we stand still, so it allocates nothing, takes no lock and reports its failure by writing
//! to [`Outcome`], which we read when the kernel lets us go on.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::namespace::{CLONE_INTO_CGROUP, Flags};
use crate::process::Child;
use crate::seccomp::{Program, word};

/// Everything about a command that the kernel is told. The descriptors stay the caller's.
#[derive(Debug)]
pub struct Command<'a> {
    /// Paths to try one after the other; the first that exists decides.
    pub candidates: Vec<CString>,
    /// The program itself, in place of paths to it: an executable image, close-on-exec.
    pub program: Option<BorrowedFd<'a>>,
    /// A descriptor that the program finds as its number 3.
    pub line: Option<BorrowedFd<'a>>,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// `KEY=value`.
    pub env: Vec<CString>,
    /// The working directory, entered as the user.
    pub cwd: CString,
    /// stdin, stdout and stderr; all of them 3 or above.
    pub stdio: [BorrowedFd<'a>; 3],
    /// stdin is a terminal, to be the session's.
    pub terminal: bool,
    /// Whom to become; `None` stays who we are.
    pub user: Option<User>,
    /// (resource, soft, hard) for `setrlimit`.
    pub rlimits: Vec<(u32, u64, u64)>,
    /// A directory of the cgroup v2 tree to be born in.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// cgroup v1 `tasks` files to enter.
    pub enter: Vec<BorrowedFd<'a>>,
    /// Be born in a UTS namespace of its own.
    pub tag: bool,
    /// Be killed when the thread that starts it ends. What it starts itself does not inherit this.
    pub dies_with_starter: bool,
    /// Restrict the file system.
    pub landlock: Option<BorrowedFd<'a>>,
    /// A filter of its own.
    pub filter: Option<&'a Program>,
    /// The number that it is to have in our namespace. Needs CAP_CHECKPOINT_RESTORE there.
    pub pid: Option<i32>,
    /// The one CPU that it runs on.
    pub cpu: Option<u32>,
}

/// A user of the box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Further groups; `None` leaves them alone (they cannot be set in a box with one user).
    pub groups: Option<Vec<u32>>,
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Before there was a process.
    Clone = 0,
    /// Session, terminal, stdio, limits.
    Setup = 1,
    /// Becoming the user.
    User = 2,
    /// Entering the directory.
    Cwd = 3,
    /// Landlock or the filter.
    Walls = 4,
    /// Executing the program.
    Exec = 5,
}

/// A start that failed.
#[derive(Debug)]
pub struct SpawnError {
    /// Where.
    pub stage: Stage,
    /// Why.
    pub source: io::Error,
}

#[repr(C)]
struct Outcome {
    stage: Stage,
    errno: i32,
}

/// What the new process reads: plain pointers into a [`Command`] that outlives it.
struct Errand<'a> {
    command: &'a Command<'a>,
    candidates: &'a [*const libc::c_char],
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    starter: i32,
    outcome: Outcome,
}

/// Where the new process finds the line that it is given: right after its stdio.
const LINE_FD: RawFd = 3;
const STACK_BYTES: usize = 64 * 1024;
/// More CPUs than Linux knows.
const CPUS_MAX: usize = 8192;

/// Starts the command.
pub fn spawn(command: &Command<'_>) -> Result<Child, SpawnError> {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (candidates, argv, env) =
        (pointers(&command.candidates), pointers(&command.argv), pointers(&command.env));
    let mut errand = Errand {
        command,
        candidates: &candidates,
        argv: &argv,
        env: &env,
        starter: std::process::id() as i32,
        outcome: Outcome { stage: Stage::Clone, errno: 0 },
    };
    let mut pidfd: i32 = -1;
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
    // SAFETY: clone_args is plain data, for which all zeros is a value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = STACK_BYTES as u64;
    if let Some(cgroup) = command.cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    if command.tag {
        args.flags |= Flags::UTS.bits();
    }
    if let Some(pid) = &command.pid {
        args.set_tid = std::ptr::from_ref(pid) as u64;
        args.set_tid_size = 1;
    }
    let mut pid = clone_and_run(Call::new(&mut args), &mut errand);
    if pid == -i64::from(libc::EINVAL) {
        // A kernel without descriptors of processes says no more than that; so does one that minds something else, again.
        args.flags &= !(libc::CLONE_PIDFD as u64);
        args.pidfd = 0;
        pid = clone_and_run(Call::new(&mut args), &mut errand);
    }
    if pid == -i64::from(libc::ENOSYS)
        && let Some(older) = Call::older(&args)
    {
        pid = clone_and_run(older, &mut errand);
    }
    let fail = |stage, errno| SpawnError { stage, source: io::Error::from_raw_os_error(errno) };
    if pid < 0 {
        return Err(fail(Stage::Clone, -pid as i32));
    }
    // SAFETY: the kernel wrote through this place; volatile, because the compiler cannot know.
    let child = Child::new(pid as i32, unsafe { std::ptr::read_volatile(&pidfd) });
    // SAFETY: the child wrote through this place while we were suspended; volatile, because the compiler cannot know.
    let errno = unsafe { std::ptr::read_volatile(&errand.outcome.errno) };
    if errno != 0 {
        // SAFETY: as above.
        let stage = unsafe { std::ptr::read_volatile(&errand.outcome.stage) };
        let _ = child.reap();
        return Err(fail(stage, errno));
    }
    Ok(child)
}

/// A call that makes a process, its first two arguments, and what is said behind them: a word, or that there are no others.
struct Call {
    number: libc::c_long,
    first: u64,
    second: u64,
    word: [u64; 4],
}

impl Call {
    fn new(args: &mut libc::clone_args) -> Call {
        let size = size_of::<libc::clone_args>() as u64;
        let first = std::ptr::from_mut(args) as u64;
        Call { number: libc::SYS_clone3, first, second: size, word: word::ours() }
    }

    /// The same by `clone`, for kernels without clone3 (gVisor's of 2022): as far as that can say it.
    fn older(args: &libc::clone_args) -> Option<Call> {
        let plain = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD) as u64;
        if args.flags & !plain != 0 || args.set_tid_size != 0 {
            return None;
        }
        let flags = args.flags & !(libc::CLONE_PIDFD as u64) | args.exit_signal;
        let second = args.stack + args.stack_size;
        Some(Call { number: libc::SYS_clone, first: flags, second, word: [0; 4] })
    }
}

/// Makes the call. In the new process, on its own stack, runs the errand; it never comes back from there.
#[cfg(target_arch = "x86_64")]
fn clone_and_run(call: Call, errand: &mut Errand<'_>) -> i64 {
    let result: i64;
    // SAFETY: the new process runs on the stack that the call names, which is ours, aligned to 16 bytes and large enough.
    // It enters `child`, which never returns. CLONE_VFORK keeps us here until it has executed or ended, so
    // everything that `errand` points at outlives its use. The old process sees an ordinary system call, which
    // clobbers rcx and r11 only.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") call.number => result,
            in("rdi") call.first,
            in("rsi") call.second,
            in("rdx") call.word[0],
            in("r10") call.word[1],
            in("r8") call.word[2],
            in("r9") call.word[3],
            in("r12") std::ptr::from_mut(errand),
            in("r13") child as extern "C" fn(*mut Errand<'_>) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

/// Elsewhere: a plain fork. Slower, and the failure has to come back another way, which nobody has needed yet.
#[cfg(not(target_arch = "x86_64"))]
compile_error!("starting commands is written for x86_64; see spawn.rs");

extern "C" fn child(errand: *mut Errand<'_>) -> ! {
    // SAFETY: the pointer is to the parent's live value, and the parent stands still (CLONE_VFORK).
    let errand = unsafe { &mut *errand };
    let mut stage = Stage::Setup;
    let errno = run(errand, &mut stage);
    // SAFETY: as above; volatile, because the parent reads it from what is another process to the compiler.
    unsafe { std::ptr::write_volatile(&mut errand.outcome, Outcome { stage, errno }) };
    crate::process::exit_now(127)
}

/// The sequence. Its order is its point; the errno of the first failure comes back.
fn run(errand: &Errand<'_>, stage: &mut Stage) -> i32 {
    let command = errand.command;
    macro_rules! call {
        ($number:expr $(, $arg:expr)*) => {{
            // SAFETY: each pointer among the arguments is to a live value of the suspended parent or to a constant;
            // the raw call allocates nothing and takes no lock.
            let result = unsafe { libc::syscall($number $(, $arg)*) };
            if result < 0 {
                return errno();
            }
            result
        }};
    }
    call!(libc::SYS_setsid);
    for tasks in &command.enter {
        call!(libc::SYS_write, tasks.as_raw_fd(), c"0".as_ptr(), 1);
    }
    for (to, from) in command.stdio.iter().enumerate() {
        call!(libc::SYS_dup3, from.as_raw_fd(), to as RawFd, 0);
    }
    if command.terminal {
        call!(libc::SYS_ioctl, 0, libc::TIOCSCTTY, 0);
    }
    if let Some(Err(errno)) = command.cpu.map(stay_on) {
        return errno;
    }
    for &(resource, soft, hard) in &command.rlimits {
        let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
        call!(libc::SYS_prlimit64, 0, resource, &limit, 0);
    }
    *stage = Stage::Walls;
    if let Some(ruleset) = command.landlock {
        call!(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0);
    }
    *stage = Stage::Setup;
    // Before any path is looked at: one that leads through /proc/self/fd must find nothing of ours there. But for the
    // program, if it has no path: it is closed by the exec.
    let rest = match keep(command) {
        Ok(rest) => rest,
        Err(errno) => return errno,
    };
    call!(libc::SYS_close_range, rest, crate::descriptor::FD_LAST, 0);
    *stage = Stage::User;
    if let Some(user) = &command.user {
        if let Some(groups) = &user.groups {
            call!(libc::SYS_setgroups, groups.len(), groups.as_ptr());
        }
        call!(libc::SYS_setresgid, user.gid, user.gid, user.gid);
        call!(libc::SYS_setresuid, user.uid, user.uid, user.uid);
    }
    if command.dies_with_starter {
        // After the change of user, which clears it. A starter that is gone by now sends nothing more.
        *stage = Stage::Setup;
        call!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if call!(libc::SYS_getppid) != i64::from(errand.starter) {
            return libc::ESRCH;
        }
    }
    *stage = Stage::Cwd;
    call!(libc::SYS_chdir, command.cwd.as_ptr());
    *stage = Stage::Setup;
    // Ignored signals stay ignored over an exec; Rust programs ignore SIGPIPE, and others must not inherit that.
    let action = [libc::SIG_DFL, 0, 0, 0];
    call!(libc::SYS_rt_sigaction, libc::SIGPIPE, &action, 0, 8);
    let no_signals = 0u64;
    call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &no_signals, 0, 8);
    *stage = Stage::Walls;
    if let Some(filter) = command.filter
        && let Err(e) = filter.load()
    {
        return e.raw_os_error().unwrap_or(libc::EINVAL);
    }
    *stage = Stage::Exec;
    execute(errand)
}

/// Where the new process holds a program that has no path: behind the line, if there is one.
fn program_fd(command: &Command<'_>) -> RawFd {
    if command.line.is_some() { LINE_FD + 1 } else { LINE_FD }
}

/// Puts the further descriptors, if there are any, where they are expected. The first number that is not kept.
fn keep(command: &Command<'_>) -> Result<RawFd, i32> {
    let program_fd = program_fd(command);
    let mut program = command.program.map(|program| program.as_raw_fd());
    if let (Some(fd), Some(_)) = (program, command.line) {
        // Out of the way of the line, wherever both of them are.
        // SAFETY: the call takes numbers; it allocates nothing and takes no lock.
        let moved = unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, program_fd + 1) };
        if moved < 0 {
            return Err(errno());
        }
        program = Some(moved as RawFd);
    }
    if let Some(line) = command.line {
        put(line.as_raw_fd(), LINE_FD, 0, 0)?;
    }
    match program {
        Some(program) => {
            put(program, program_fd, libc::O_CLOEXEC, libc::FD_CLOEXEC)?;
            Ok(program_fd + 1)
        }
        None => Ok(program_fd),
    }
}

/// Gives a descriptor a number, with flags as the one and the other call want them.
fn put(fd: RawFd, number: RawFd, flags: i32, flag: i32) -> Result<(), i32> {
    let result = match fd == number {
        // SAFETY: the call takes numbers; it allocates nothing and takes no lock.
        true => unsafe { libc::syscall(libc::SYS_fcntl, number, libc::F_SETFD, flag) },
        // SAFETY: as above.
        false => unsafe { libc::syscall(libc::SYS_dup3, fd, number, flags) },
    };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// From now on this process runs on one CPU.
fn stay_on(cpu: u32) -> Result<(), i32> {
    let mut mask = [0u64; CPUS_MAX / 64];
    let Some(word) = mask.get_mut(cpu as usize / 64) else { return Err(libc::EINVAL) };
    *word = 1 << (cpu % 64);
    // SAFETY: the mask lives for the call and is as long as is said; the raw call allocates nothing and takes no lock.
    let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&mask), &mask) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

/// The error of the last call. It belongs to the suspended parent's thread, which is ours to use meanwhile.
fn errno() -> i32 {
    // SAFETY: the call has no condition; it answers with the place of this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is valid for as long as the thread is.
    unsafe { *place }
}

/// Tries the candidates as a shell does: a missing one is passed over, a forbidden one is remembered.
fn execute(errand: &Errand<'_>) -> i32 {
    if errand.command.program.is_some() {
        // SAFETY: the descriptor is open, the path is empty, and argv and env are null-ended arrays of C strings of the
        // suspended parent.
        unsafe {
            libc::syscall(
                libc::SYS_execveat,
                program_fd(errand.command),
                c"".as_ptr(),
                errand.argv.as_ptr(),
                errand.env.as_ptr(),
                libc::AT_EMPTY_PATH,
            )
        };
        return errno();
    }
    let mut answer = libc::ENOENT;
    for &path in errand.candidates {
        if path.is_null() {
            break;
        }
        // SAFETY: path, argv and env are null-ended arrays of C strings of the suspended parent.
        unsafe { libc::syscall(libc::SYS_execve, path, errand.argv.as_ptr(), errand.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => answer = libc::EACCES,
            other => return other,
        }
    }
    answer
}

/// The candidates for a program: itself if it has a slash, else one for each part of `PATH`.
pub fn candidates(program: &CStr, path: &str) -> Vec<CString> {
    let name = program.to_bytes();
    if name.contains(&b'/') {
        return vec![program.to_owned()];
    }
    if name.is_empty() {
        return Vec::new();
    }
    path.split(':')
        .map(|dir| if dir.is_empty() { "." } else { dir })
        .filter_map(|dir| CString::new([dir.as_bytes(), b"/", name].concat()).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::time::Duration;

    fn run_it(argv: &[&str], cwd: &str) -> Result<(String, crate::process::How), SpawnError> {
        run_program(None, None, argv, cwd)
    }

    fn run_program(
        program: Option<BorrowedFd<'_>>,
        line: Option<BorrowedFd<'_>>,
        argv: &[&str],
        cwd: &str,
    ) -> Result<(String, crate::process::How), SpawnError> {
        let null = File::open("/dev/null").unwrap();
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let argv: Vec<CString> = argv.iter().map(|a| CString::new(*a).unwrap()).collect();
        let child = spawn(&Command {
            candidates: candidates(&argv[0], "/nonexistent:/usr/bin:/bin"),
            program,
            line,
            argv,
            env: vec![],
            cwd: CString::new(cwd).unwrap(),
            stdio: [null.as_fd(), write.as_fd(), null.as_fd()],
            terminal: false,
            user: None,
            rlimits: vec![],
            cgroup: None,
            enter: vec![],
            tag: false,
            dies_with_starter: false,
            landlock: None,
            filter: None,
            pid: None,
            cpu: None,
        })?;
        drop(write);
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).unwrap();
        let end = child.end().expect("this kernel has descriptors of processes");
        assert!(crate::process::wait_end(end, Duration::from_secs(10)).unwrap());
        let ended = child.reap().unwrap().unwrap();
        Ok((text, ended.how))
    }

    #[test]
    fn a_program_found_in_the_path_runs_with_its_arguments() {
        let (text, how) = run_it(&["sh", "-c", "echo $1; pwd; exit 7", "sh", "a b"], "/usr").unwrap();
        assert_eq!((text.as_str(), how), ("a b\n/usr\n", crate::process::How::Code(7)));
    }

    #[test]
    fn a_signal_is_not_an_exit_code() {
        assert_eq!(run_it(&["sh", "-c", "kill -9 $$"], "/").unwrap().1, crate::process::How::Signal(9));
    }

    #[test]
    fn a_missing_program_and_a_missing_directory_are_told_apart() {
        let error = run_it(&["no-such-program"], "/").unwrap_err();
        assert_eq!((error.stage, error.source.raw_os_error()), (Stage::Exec, Some(libc::ENOENT)));
        let error = run_it(&["true"], "/no/such/dir").unwrap_err();
        assert_eq!((error.stage, error.source.raw_os_error()), (Stage::Cwd, Some(libc::ENOENT)));
    }

    #[test]
    fn only_stdio_is_passed_on() {
        let _extra = File::open("/dev/null").unwrap();
        let (text, _) = run_it(&["sh", "-c", "cd /proc/self/fd; echo *"], "/").unwrap();
        // The shell itself holds one more while it expands the star.
        assert_eq!(text.split_whitespace().take(3).collect::<Vec<_>>(), ["0", "1", "2"]);
        assert!(text.split_whitespace().count() <= 4, "{text}");
    }

    #[test]
    fn a_program_without_a_path_runs_and_is_not_passed_on() {
        let shell = std::fs::read("/bin/sh").unwrap();
        let program = crate::descriptor::sealed_program("shell", &shell).unwrap();
        let line = "echo $0; cd /proc/self/fd; echo *; echo x >> /proc/self/exe";
        let (text, how) =
            run_program(Some(program.as_fd()), None, &["no-such-name", "-c", line], "/").unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("no-such-name"));
        let open: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert!(open[..3] == ["0", "1", "2"] && open.len() <= 4, "{open:?}");
        assert_ne!(how, crate::process::How::Code(0), "nobody writes to it");
        let error = run_program(Some(program.as_fd()), None, &["x"], "/proc/self/fd/3").unwrap_err();
        assert_eq!(error.stage, Stage::Cwd, "it is no way to anywhere");
    }

    #[test]
    fn a_program_without_a_path_finds_its_line_wherever_both_of_them_are() {
        let shell = std::fs::read("/bin/sh").unwrap();
        let program = crate::descriptor::sealed_program("shell", &shell).unwrap();
        let (line, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let program_behind = program.try_clone().unwrap();
        for program in [&program, &program_behind] {
            rustix::io::write(&end, b"said\n").unwrap();
            let script = "read -r word <&3; echo $word; cd /proc/self/fd; echo *";
            let (text, _) =
                run_program(Some(program.as_fd()), Some(line.as_fd()), &["sh", "-c", script], "/").unwrap();
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words[..5] == ["said", "0", "1", "2", "3"] && words.len() <= 6, "{words:?}");
        }
    }
}
