//! How a command ended: a true, typed cause, never an error of ours.

use serde::{Deserialize, Serialize};

/// The cause of an end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Exit {
    /// The program ended by itself with this code.
    Code {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it that neither we nor a limit sent.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// The deadline passed and the whole tree of this command was killed.
    TimedOut,
    /// It used up the CPU time that it was given.
    CpuLimit,
    /// The kernel killed it because the box's memory was used up.
    OutOfMemory {
        /// The most memory the box (or, without a memory cgroup, its largest process) held.
        peak_bytes: u64,
    },
    /// It wrote more than it was allowed to, and the caller had asked for that to end it.
    OutputLimit,
    /// It failed after the box had refused it a new process.
    PidsLimit {
        /// The code with which it gave up, if it started at all.
        code: Option<i32>,
    },
    /// It failed with the box's disk full.
    DiskFull {
        /// The code with which it gave up.
        code: Option<i32>,
    },
    /// It made a system call that is answered with death (a foreign ABI), SIGSYS.
    Forbidden {
        /// What was forbidden, in words.
        what: String,
    },
    /// Somebody ended it on purpose.
    Killed {
        /// Who.
        by: Killer,
    },
    /// The box ended before the command did.
    BoxGone {
        /// What is known of the reason.
        why: String,
    },
    /// The program was never started.
    NotStarted {
        /// Why.
        why: NotStarted,
        /// The same in a sentence, with the path.
        message: String,
    },
}

/// Who ended a command on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Killer {
    /// A caller asked for it.
    Caller,
    /// The connection that the command belonged to was closed.
    Disconnect,
    /// The time to live of the box had passed.
    Ttl,
    /// The box was removed.
    Destroy,
    /// The box was put back to an earlier state.
    Reset,
    /// The interpreter that it ran in broke off the line to us, or spoke out of turn. Since version 5, of code alone.
    Broken,
}

/// Why a program was never started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum NotStarted {
    /// No such program.
    NotFound,
    /// It is there, and may not be executed.
    NotExecutable,
    /// The working directory cannot be entered.
    BadCwd,
    /// The user does not exist in the box, or the box cannot become that user.
    BadUser,
    /// Arguments and environment are too large.
    TooLarge,
    /// The box has as many commands as it may.
    TooMany,
    /// The kernel refused something else.
    Other,
}

/// The whole truth about an end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExitReport {
    /// The cause.
    pub exit: Exit,
    /// From start to end.
    pub wall_us: u64,
    /// User and system time of the command's whole tree where a cgroup counts it, else of the waited-for processes.
    pub cpu_us: u64,
    /// The largest resident size of one process of the command; never told below what the guest itself held when the
    /// command started, because the kernel counts on from there.
    pub peak_memory_bytes: u64,
    /// Bytes written to stdout, whether kept or not.
    pub stdout_bytes: u64,
    /// Bytes written to stderr, whether kept or not.
    pub stderr_bytes: u64,
    /// How many processes of the box the kernel killed for memory while this command ran.
    #[serde(default)]
    pub oom_kills: u64,
}

impl ExitReport {
    /// A report of something that never ran.
    pub fn never_ran(exit: Exit) -> Self {
        ExitReport {
            exit,
            wall_us: 0,
            cpu_us: 0,
            peak_memory_bytes: 0,
            stdout_bytes: 0,
            stderr_bytes: 0,
            oom_kills: 0,
        }
    }
}

impl Exit {
    /// The program ended by itself with 0.
    pub fn success(&self) -> bool {
        matches!(self, Exit::Code { code: 0 })
    }

    /// The exit code of a program that passes this end on: 124 timed out, 137 killed or out of memory, 126/127 not
    /// started, 125 when the fault is ours or the box's.
    pub fn shell_code(&self) -> i32 {
        match self {
            Exit::Code { code } => *code,
            Exit::Signal { signal } => 128 + signal,
            Exit::TimedOut => 124,
            Exit::CpuLimit => 152,
            Exit::OutOfMemory { .. } | Exit::OutputLimit | Exit::Killed { .. } => 137,
            Exit::PidsLimit { code } | Exit::DiskFull { code } => code.filter(|&c| c != 0).unwrap_or(125),
            Exit::Forbidden { .. } => 159,
            Exit::BoxGone { .. } => 125,
            Exit::NotStarted { why: NotStarted::NotFound, .. } => 127,
            Exit::NotStarted { why: NotStarted::NotExecutable, .. } => 126,
            Exit::NotStarted { .. } => 125,
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code { code } => write!(f, "exit code {code}"),
            Exit::Signal { signal } => write!(f, "ended by signal {signal}"),
            Exit::TimedOut => write!(f, "timed out"),
            Exit::CpuLimit => write!(f, "used up its CPU time"),
            Exit::OutOfMemory { peak_bytes } => {
                write!(f, "out of memory (peak {:.1} MiB)", *peak_bytes as f64 / 1048576.0)
            }
            Exit::OutputLimit => write!(f, "wrote more than its output limit"),
            Exit::PidsLimit { .. } => write!(f, "failed at the box's limit of processes"),
            Exit::DiskFull { .. } => write!(f, "failed with the box's disk full"),
            Exit::Forbidden { what } => write!(f, "killed for {what}"),
            Exit::Killed { by: Killer::Caller } => write!(f, "killed on request"),
            Exit::Killed { by: Killer::Disconnect } => write!(f, "killed because its client went away"),
            Exit::Killed { by: Killer::Ttl } => write!(f, "killed when the box's time to live had passed"),
            Exit::Killed { by: Killer::Destroy } => write!(f, "killed with its box"),
            Exit::Killed { by: Killer::Reset } => write!(f, "killed when its box was put back"),
            Exit::Killed { by: Killer::Broken } => {
                write!(f, "killed because its interpreter broke off the line to the box's guest")
            }
            Exit::BoxGone { why } => write!(f, "the box is gone: {why}"),
            Exit::NotStarted { message, .. } => write!(f, "not started: {message}"),
        }
    }
}
