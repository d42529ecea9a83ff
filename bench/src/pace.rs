//! How fast the machine is, so that figures of two machines can be compared.
//!
//! The design states its goals in milliseconds, and what they stand on: a bare spawn of `/bin/true` in 0.6 ms at the most.
//! A machine on which that takes twice as long is as slow at everything else that the kernel does for a box. So beside each
//! figure stands what it would be at that pace, by a spawn that is measured in the same rounds. What is judged is the figure itself.

use std::time::Duration;

use anyhow::Result;

use crate::contender::CommandLine;

/// What a bare spawn takes where the goals hold, in milliseconds.
pub(crate) const SPAWN_MS: f64 = 0.6;

/// One bare spawn.
pub(crate) fn spawn() -> Result<Duration> {
    CommandLine::new(&["/bin/true"]).time()
}

/// What so many milliseconds are at the design's pace, on a machine where a spawn takes so long.
pub(crate) fn at_pace(found_ms: f64, spawn: Duration) -> f64 {
    found_ms * SPAWN_MS / (spawn.as_secs_f64() * 1e3).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_machine_of_half_the_pace_a_figure_is_twice_what_it_stands_for() {
        assert!((at_pace(2.0, Duration::from_micros(1200)) - 1.0).abs() < 1e-9);
    }
}
