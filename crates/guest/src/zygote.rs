//! A zygote: an interpreter that is kept warm to be forked, so that a new context costs a fork and not a start.
//!
//! ```text
//!            ready           fork            born                a context wants it: become
//!  Starting ───────▶ Ready ────────▶ Bearing ──────▶ with a spare ──────────────────────────▶ Bearing the next
//!     │ unable, ends, late             │ nothing is born     │ the spare ends
//!     └──▶ gone: who waits is started  └──▶ Ready            └──▶ Ready
//!          cold, and told why               who waits: cold
//! ```
//! It is started like a context, loads what it was told to, and from then on does nothing but fork: it never runs a
//! caller's code. What its forks do to themselves is no business of its, for they share nothing with it but pages that are
//! copied when they are written, and nothing with each other. A fork is made before anybody wants it, the *spare*: to enter a cgroup
//! takes the kernel milliseconds when nobody has done it for a while.
//!
//! The words on its line. From us: the driver's source with the zygote's behind it, once; then `fork`, with descriptors: the
//! line and the noise of the fork-to-be, and the `cgroup.procs` that it enters by itself. From it: `ready VERSION`, or `unable WHY` (then
//! contexts start cold), or `failed WHY` (what it was to load cannot be loaded; whoever wanted that is told so). The fork says `born`
//! on its own line, and the kernel says who it is; it is our child: born as the zygote's sibling, or, where Python has threads,
//! a grandchild whose parent has ended by then. It waits for
//! `become`, which brings the fence of Landlock along, puts it up around itself, and goes on as any driver, with `hello`. One
//! that cannot do all of this ends, and never says hello; so it is given no code.
//!
//! # Who could do it harm
//! Code of the box runs as the same user. A zygote cannot be traced, read, or robbed of descriptors (it is not dumpable), and ignores
//! every signal that can be ignored. Killed or stopped, it is noticed, and the next context has another or is cold. What is left is what any process may do to another of
//! its user: priorities and limits, which forks inherit ([`Standing`]).
//!
//! # Over a reset
//! A zygote may outlive one, so that the box that begins again has its warm interpreter at once. That must not be a way for anything
//! to outlive it, so only one may that was ready before anything of the caller's had run or was written since the box had
//! its root (`clean`), if the next root is the same again, and its standing is what it was. It is nowhere in the file system but at the
//! root, holds nothing open there, and stands outside of Landlock, whose rules stick to one root; each fork is fenced
//! anew. One that comes later is fenced from the beginning, and goes with the reset.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use glasshouse_protocol::ContextSpec;
use glasshouse_protocol::limits::{IMPORT_NAME_MAX, IMPORTS_MAX};

use crate::context::Process;
use crate::track::{Mark, Standing};

/// An interpreter that is kept warm.
#[derive(Debug)]
pub(crate) struct Zygote {
    /// What the contexts are like that are forked from it. They have names; it has none.
    pub(crate) kind: ContextSpec,
    pub(crate) process: Process,
    pub(crate) state: State,
    /// Nothing of the caller's was in the box until it was ready.
    pub(crate) clean: bool,
    /// How it stood when it was ready, if it is clean.
    pub(crate) standing: Option<Standing>,
    /// It is inside Landlock's fence itself.
    pub(crate) fenced: bool,
    pub(crate) birth: Option<Birth>,
    pub(crate) spare: Option<Process>,
    /// Contexts that wait to be forked from it, by their numbers.
    pub(crate) waiting: VecDeque<u64>,
    /// The last one that did: the number of a context.
    pub(crate) used: u64,
    /// Whom we have to be to make files of its user's.
    pub(crate) ids: Option<(u32, u32)>,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It has until then to be ready.
    Starting(Instant),
    Ready,
}

/// A fork that was asked for and is not there yet.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) line: OwnedFd,
    pub(crate) noise: OwnedFd,
    pub(crate) mark: Mark,
    pub(crate) until: Instant,
}

impl Zygote {
    /// What contexts with this have in common: all but their names.
    pub(crate) fn kind_of(spec: &ContextSpec) -> ContextSpec {
        ContextSpec { id: None, ..spec.clone() }
    }

    /// Those of its processes that we know of.
    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        [self.process.pid].into_iter().chain(self.spare.as_ref().map(|spare| spare.pid))
    }

    /// The moment at which it is given up.
    pub(crate) fn given_up_at(&self) -> Option<Instant> {
        let starting = match self.state {
            State::Starting(until) => Some(until),
            State::Ready => None,
        };
        starting.or(self.birth.as_ref().map(|birth| birth.until))
    }
}

/// Why these cannot be the modules that a zygote loads.
pub(crate) fn bad_imports(imports: &[String]) -> Option<String> {
    if imports.len() > IMPORTS_MAX {
        return Some(format!(
            "{} modules are too many to be loaded ahead; {IMPORTS_MAX} can be",
            imports.len()
        ));
    }
    let is_name = |name: &str| {
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with(|c: char| c.is_ascii_digit())
                && part.chars().all(|c| c == '_' || c.is_alphanumeric())
        };
        name.len() <= IMPORT_NAME_MAX && name.split('.').all(plain)
    };
    let bad = imports.iter().find(|name| !is_name(name))?;
    let shown: String = bad.chars().take(IMPORT_NAME_MAX).collect();
    Some(format!("{shown:?} cannot be the name of a module"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_modules_are_taken() {
        let bad = |name: &str| bad_imports(&[name.to_owned()]).is_some();
        for name in ["numpy", "xml.etree.ElementTree", "_x1"] {
            assert!(!bad(name), "{name}");
        }
        for name in ["", ".", "a..b", "a b", "os;x", "1a", "a\"", "a\n", &"a".repeat(129)] {
            assert!(bad(name), "{name:?}");
        }
        assert!(bad_imports(&vec!["os".to_owned(); IMPORTS_MAX + 1]).is_some());
    }
}
