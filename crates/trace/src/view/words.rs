//! Numbers as a person reads them.

use glasshouse_protocol::{Exit, ExitReport};

use crate::event::StepState;

/// `12 034 bytes`.
pub(super) fn bytes(count: u64) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{} bytes", grouped(count)) }
}

/// `12 034`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// `9.8 MiB`.
pub(super) fn size(bytes: u64) -> String {
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

/// `412 µs`, `31 ms`, `1.24 s`, `2 min 05 s`.
pub(super) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1_000),
        1_000_000..60_000_000 if us.is_multiple_of(1_000_000) => format!("{} s", us / 1_000_000),
        1_000_000..60_000_000 => format!("{:.2} s", us as f64 / 1e6),
        _ => format!("{} min {:02} s", us / 60_000_000, us / 1_000_000 % 60),
    }
}

/// `+0.012s`, from the box's start.
pub(super) fn since(ms: u64) -> String {
    format!("+{}.{:03}s", ms / 1000, ms % 1000)
}

/// How a command ended and what it took: `exit code 0 · 31 ms · cpu 28 ms · 9.8 MiB`.
pub(super) fn end(report: &ExitReport) -> String {
    let mut out = report.exit.to_string();
    if !matches!(report.exit, Exit::NotStarted { .. }) {
        let (wall, cpu) = (duration(report.wall_us), duration(report.cpu_us));
        out.push_str(&format!(" · {wall} · cpu {cpu} · {}", size(report.peak_memory_bytes)));
    }
    match report.oom_kills {
        0 => {}
        1 => out.push_str(" · 1 process killed for memory"),
        count => out.push_str(&format!(" · {count} processes killed for memory")),
    }
    out
}

/// `SIGTERM` where the name is well known.
pub(super) fn signal(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        12 => "SIGUSR2",
        15 => "SIGTERM",
        18 => "SIGCONT",
        19 => "SIGSTOP",
        28 => "SIGWINCH",
        number => return format!("signal {number}"),
    };
    name.to_owned()
}

/// What a box was like after a step.
pub(super) fn state(state: &StepState) -> String {
    let digest: String = state.digest.chars().take(15).collect();
    let changed = match state.changed {
        0 => "nothing changed".to_owned(),
        1 => "1 path changed".to_owned(),
        n => format!("{} paths changed", grouped(n)),
    };
    let processes = match state.processes.as_slice() {
        [] => String::new(),
        [one] => format!(", left running: {one}"),
        [first, rest @ ..] => format!(", left running: {first} and {} more", grouped(rest.len() as u64)),
    };
    let racy = if state.racy { ", racy" } else { "" };
    format!("{changed}{processes}  {digest}{racy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 12034, 1234567].map(grouped), ["0", "999", "1 000", "12 034", "1 234 567"]);
        assert_eq!([1, 2, 12034].map(bytes), ["1 byte", "2 bytes", "12 034 bytes"]);
        assert_eq!([12, 2048, 10 << 20, 3 << 40].map(size), ["12 B", "2.0 KiB", "10.0 MiB", "3.0 TiB"]);
        assert_eq!([412, 3_100, 31_000, 1_240_000].map(duration), ["412 µs", "3.1 ms", "31 ms", "1.24 s"]);
        assert_eq!([30_000_000, 125_000_000].map(duration), ["30 s", "2 min 05 s"]);
        assert_eq!(since(61_007), "+61.007s");
    }
}
