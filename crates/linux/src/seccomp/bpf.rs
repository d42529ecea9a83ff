//! Instructions of classic BPF, and the few shapes our filters are put together from.
//!
//! Every piece of [`Code`] ends in a return on all its paths and jumps only inside itself. So pieces can be
//! placed anywhere and joined without labels: a branch is one test, the piece for "no", the piece for "yes". [`on_value`] alone goes
//! on behind itself.

use super::Insn;

/// A piece of a filter that ends in a return on every path.
pub(super) type Code = Vec<Insn>;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const MASK: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const GO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const XOR: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_K) as u16;
const OR_KEPT: u16 = (libc::BPF_ALU | libc::BPF_OR | libc::BPF_X) as u16;
const LOAD_KEPT: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM) as u16;
const KEEP: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// The call goes through.
pub(super) fn allow() -> Code {
    vec![plain(RETURN, libc::SECCOMP_RET_ALLOW)]
}

/// The call fails with this error number and the kernel does nothing.
pub(super) fn fail(errno: i32) -> Code {
    vec![plain(RETURN, libc::SECCOMP_RET_ERRNO | errno.unsigned_abs() & libc::SECCOMP_RET_DATA)]
}

/// The whole process dies of SIGSYS, as no honest program gets here.
pub(super) fn kill() -> Code {
    vec![plain(RETURN, libc::SECCOMP_RET_KILL_PROCESS)]
}

/// Judges by the ABI the call came in with.
pub(super) fn on_arch(then: Code) -> Code {
    after(&[plain(LOAD_WORD, 4)], then)
}

/// Judges by the number of the call.
pub(super) fn on_number(then: Code) -> Code {
    after(&[plain(LOAD_WORD, 0)], then)
}

/// Judges by the low half of argument `index`. Use it only where the kernel drops the high half too, which
/// is so for each argument of type `int`, `unsigned int` or `umode_t`, and for the flags of clone.
pub(super) fn on_argument(index: u32, then: Code) -> Code {
    after(&[plain(LOAD_WORD, low_half(index))], then)
}

/// Judges by some bits of the low half of argument `index`.
pub(super) fn on_argument_bits(index: u32, bits: u32, then: Code) -> Code {
    after(&[plain(LOAD_WORD, low_half(index)), plain(MASK, bits)], then)
}

/// `then` if the loaded value is this one; else whatever code follows.
pub(super) fn on_value(value: u32, then: Code) -> Code {
    let jf = u8::try_from(then.len()).expect("a short piece");
    [vec![Insn { code: IF_EQUAL, jt: 0, jf, k: value }], then].concat()
}

/// `yes` if the arguments from `first` on are these, else `no`. All of them are looked at before anything is decided, so that
/// how long it takes does not tell which of them is right.
pub(super) fn if_arguments(first: u32, values: &[u64], yes: Code, no: Code) -> Code {
    let halves = values.iter().flat_map(|value| [*value as u32, (*value >> 32) as u32]);
    let mut code = vec![plain(LOAD_KEPT, 0)];
    for (at, half) in halves.enumerate() {
        let load = plain(LOAD_WORD, low_half(first) + 4 * at as u32);
        code.extend([load, plain(XOR, half), plain(OR_KEPT, 0), plain(KEEP, 0)]);
    }
    code.extend(branch(IF_EQUAL, 0, yes, no));
    code
}

/// `yes` if the loaded value has any of `bits`, else `no`.
pub(super) fn if_any_bit(bits: u32, yes: Code, no: Code) -> Code {
    branch(IF_ANY_BIT, bits, yes, no)
}

/// `yes` if the loaded value is one of `values`, else `no`. One test each, so for short lists.
pub(super) fn if_one_of(values: &[u32], yes: Code, no: Code) -> Code {
    let mut code = Code::new();
    for (index, &value) in values.iter().enumerate() {
        let later_tests = values.len() - index - 1;
        let jt = u8::try_from(later_tests + no.len()).expect("short lists before short pieces");
        code.push(Insn { code: IF_EQUAL, jt, jf: 0, k: value });
    }
    code.extend(no);
    code.extend(yes);
    code
}

/// Binary search: each pair is the first value of an interval and what to do in it; the last one is open.
/// The pairs are sorted and the first starts at 0.
pub(super) fn search(intervals: &[(u32, Code)]) -> Code {
    if let [(_, only)] = intervals {
        return only.clone();
    }
    let (below, from) = intervals.split_at(intervals.len() / 2);
    branch(IF_AT_LEAST, from[0].0, search(from), search(below))
}

fn branch(test: u16, k: u32, yes: Code, no: Code) -> Code {
    let mut code = match u8::try_from(no.len()) {
        Ok(jt) => vec![Insn { code: test, jt, jf: 0, k }],
        // A test can jump 255 instructions far. Beyond that it steps onto or over a long jump.
        Err(_) => {
            let far = u32::try_from(no.len()).expect("a filter is far below 4 billion instructions");
            vec![Insn { code: test, jt: 0, jf: 1, k }, plain(GO, far)]
        }
    };
    code.extend(no);
    code.extend(yes);
    code
}

fn after(before: &[Insn], then: Code) -> Code {
    [before, &then].concat()
}

fn plain(code: u16, k: u32) -> Insn {
    Insn { code, jt: 0, jf: 0, k }
}

/// Where `struct seccomp_data` keeps the low half of an argument on a little-endian machine.
fn low_half(index: u32) -> u32 {
    16 + 8 * index
}

#[cfg(target_endian = "big")]
compile_error!("the offsets above are those of a little-endian machine");
