//! Numbers and ends as a person reads them.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use glasshouse_sandbox::{Exit, SandboxInfo};

use crate::escape::plain;

/// `9.8 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// `12 ms`, `1.24 s`, `2 min 05 s`, `3 h 20 min`, `4 d 02 h`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.2} s", time.as_secs_f64()),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// How long ago, roughly: `12 s`, `5 min`, `3 h`, `9 d`.
pub(crate) fn age(since_ms: u64) -> String {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
    let seconds = now_ms.saturating_sub(since_ms) / 1000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// `1 box`, `3 boxes`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// At most so many characters of a text: its beginning, which says what it is about, and its end, which says why.
pub(crate) fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= chars_max {
        return Cow::Borrowed(text);
    }
    let head = chars_max / 2;
    let tail = chars_max.saturating_sub(head + 1);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail)).collect()
}

/// An end in a few words, for a table.
pub(crate) fn exit(exit: &Exit) -> String {
    match exit {
        Exit::Signal { signal } => match signal_name(*signal) {
            Some(name) => format!("ended by signal {signal} ({name})"),
            None => exit.to_string(),
        },
        exit => plain(&exit.to_string()).into_owned(),
    }
}

/// Whose limits a hint speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// A box of this very command.
    Here,
    /// A box that was made earlier.
    Earlier,
}

/// Where a box's files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disk {
    /// On one of its own, with a limit.
    Own,
    /// On the host's, of which boxes leave some to the host.
    Hosts,
}

impl Disk {
    pub(crate) fn of(info: &SandboxInfo) -> Disk {
        let is_limited = info.limits.iter().any(|limit| limit.name == "disk" && limit.amount.is_some());
        if is_limited { Disk::Own } else { Disk::Hosts }
    }
}

/// Why a program did not end by itself, and what could be done; nothing if it did.
pub(crate) fn cause(end: &Exit, limited: Limited, disk: Disk) -> Option<String> {
    let made = match limited {
        Limited::Here => "",
        Limited::Earlier => " when the box is created",
    };
    let hint = match end {
        Exit::Code { .. } => return None,
        Exit::TimedOut => "; allow more with --timeout".to_owned(),
        Exit::CpuLimit => "; allow more with --cpu-time".to_owned(),
        Exit::OutputLimit => "; allow more with --output-max".to_owned(),
        Exit::OutOfMemory { .. } => format!("; raise it with --memory{made}"),
        Exit::PidsLimit { .. } => format!("; raise it with --pids{made}"),
        // A limit would not make the host's disk any larger.
        Exit::DiskFull { .. } if disk == Disk::Hosts => {
            return Some("failed with the host's disk nearly full; make room on it".to_owned());
        }
        Exit::DiskFull { .. } => format!("; raise it with --disk{made}"),
        _ => String::new(),
    };
    Some(format!("{}{hint}", exit(end)))
}

/// The name of a signal that programs die of.
fn signal_name(signal: i32) -> Option<&'static str> {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([12, 2048, 10 << 20, 3 << 40].map(size), ["12 B", "2.0 KiB", "10.0 MiB", "3.0 TiB"]);
        let spans = [12, 1_240, 125_000, 12_000_000, 352_800_000].map(|ms| span(Duration::from_millis(ms)));
        assert_eq!(spans, ["12 ms", "1.24 s", "2 min 05 s", "3 h 20 min", "4 d 02 h"]);
        assert_eq!([count(1, "box", "boxes"), count(2, "box", "boxes")], ["1 box", "2 boxes"]);
    }

    #[test]
    fn what_is_too_long_keeps_its_two_ends() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("abcdefg", 6), "abc…fg");
        assert_eq!(shortened("abcdefg", 5), "ab…fg");
    }

    #[test]
    fn a_plain_code_needs_no_words() {
        assert_eq!(cause(&Exit::Code { code: 3 }, Limited::Here, Disk::Own), None);
    }

    #[test]
    fn a_cause_says_what_to_do() {
        let check = |end: Exit, limited, words: &str| {
            assert_eq!(cause(&end, limited, Disk::Own).as_deref(), Some(words))
        };
        let memory = Exit::OutOfMemory { peak_bytes: 64 << 20 };
        check(memory.clone(), Limited::Here, "out of memory (peak 64.0 MiB); raise it with --memory");
        let earlier = "out of memory (peak 64.0 MiB); raise it with --memory when the box is created";
        check(memory, Limited::Earlier, earlier);
        check(Exit::TimedOut, Limited::Earlier, "timed out; allow more with --timeout");
        check(Exit::Signal { signal: 11 }, Limited::Here, "ended by signal 11 (SIGSEGV)");
        check(Exit::Signal { signal: 40 }, Limited::Here, "ended by signal 40");
    }

    #[test]
    fn a_full_disk_is_the_boxs_or_the_hosts() {
        let full = |disk| cause(&Exit::DiskFull { code: Some(1) }, Limited::Here, disk);
        assert_eq!(full(Disk::Own).as_deref(), Some("failed with the box's disk full; raise it with --disk"));
        let hosts = "failed with the host's disk nearly full; make room on it";
        assert_eq!(full(Disk::Hosts).as_deref(), Some(hosts));
    }

    #[test]
    fn words_of_a_box_cannot_steer_the_terminal() {
        let end = Exit::BoxGone { why: "\x1b]0;x\x07".to_owned() };
        assert_eq!(cause(&end, Limited::Here, Disk::Own).as_deref(), Some("the box is gone: \\x1b]0;x\\x07"));
    }
}
