//! Filters for system calls: which calls hostile code may make at all.
//!
//! [`base`] is the wall. The guest, PID 1 of the box, loads it once, after its last mount and before its first command.
//! Everything in the box inherits it and nothing can take it off.
//!
//! One power the guest still needs after that, and nobody else may have: to clone into a cgroup or a new namespace, which takes
//! clone3. So the wall has a door, and whoever loads it makes up the key: a **word** (`word.rs`) of 256 random bits that clone3
//! has to come with, in the registers of the arguments that it does not have. Nothing in the box can learn it: the guest's memory
//! and registers are closed to all others, because it is not dumpable before it loads the filter, a program begins with empty registers, and the kernel shows no filter to whoever is under one. A
//! second filter for each command would do the same, and has been here: the kernel compiles it at every start and takes it
//! apart at every end, which was a twentieth of all that a short command costs.
//!
//! [`without_random`] is such a second filter, for the commands of deterministic boxes alone; [`command`] is the one of before, for
//! guests that were put into a container by an older version.
//!
//! All want "no new privileges" set first (see [`crate::caps::no_new_privs`]). The kernel runs all loaded
//! filters and the harshest answer wins, so a second filter can only take away.
//!
//! A [`Filter`] is plain numbers. The host builds it, [`Filter::to_words`] carries it over the wall, and
//! whoever loads it makes a [`Program`] while it may still allocate. [`Program::load`] is then one system
//! call and fit for the time between vfork and exec.
//!
//! `table` lists the calls by name, `rules` judges by arguments, `bpf` knows the instructions.
//! Pointers cannot be followed from here: a path, or the flags inside `clone3`, stay unseen.

mod bpf;
mod rules;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod word;

use std::io;

pub use rules::{Lists, base, command, lists, without_random};

/// The most instructions the kernel takes in one filter.
pub const INSTRUCTIONS_MAX: usize = 4096;

/// One instruction of classic BPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    /// What to do.
    pub code: u16,
    /// How many instructions to skip if the test holds.
    pub jt: u8,
    /// How many instructions to skip if it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// A filter as plain data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The instructions, run from the first one.
    pub insns: Vec<Insn>,
}

impl Filter {
    /// One number per instruction, from the high bits down: code, jt, jf, k.
    pub fn to_words(&self) -> Vec<u64> {
        let word = |insn: &Insn| {
            u64::from(insn.code) << 48
                | u64::from(insn.jt) << 40
                | u64::from(insn.jf) << 32
                | u64::from(insn.k)
        };
        self.insns.iter().map(word).collect()
    }

    /// The reverse of [`Filter::to_words`]; refuses what is empty or too long. The kernel checks the rest.
    pub fn from_words(words: &[u64]) -> io::Result<Filter> {
        if words.is_empty() || words.len() > INSTRUCTIONS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "filter is empty or too long"));
        }
        let insn = |&word: &u64| Insn {
            code: (word >> 48) as u16,
            jt: (word >> 40) as u8,
            jf: (word >> 32) as u8,
            k: word as u32,
        };
        Ok(Filter { insns: words.iter().map(insn).collect() })
    }

    /// Loads it on the calling thread, for good, with a word that this process alone knows from then on: what it starts is in the
    /// box's walls, and cannot make namespaces.
    pub fn load_with_word(&self) -> io::Result<()> {
        let word = word::make_up()?;
        rules::kept_by(self, &word).program().load()?;
        word::keep(word);
        Ok(())
    }

    /// The same filter in the kernel's own layout, ready to load.
    pub fn program(&self) -> Program {
        let insn = |i: &Insn| libc::sock_filter { code: i.code, jt: i.jt, jf: i.jf, k: i.k };
        Program(self.insns.iter().map(insn).collect())
    }
}

/// A filter that can be loaded without allocating.
#[derive(Clone, Debug)]
pub struct Program(Vec<libc::sock_filter>);

impl Program {
    /// Puts the filter on the calling thread, for good. Needs "no new privileges" or CAP_SYS_ADMIN.
    ///
    /// Other threads keep what they had, so call this while there is only one.
    pub fn load(&self) -> io::Result<()> {
        let Ok(len) = u16::try_from(self.0.len()) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let program = libc::sock_fprog { len, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: `program` and the `len` instructions it points at outlive the call, as `self` owns them,
        // and the kernel only reads them, so the cast away from const is never used to write.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
