//! Durations of the same thing, again and again.

use std::time::Duration;

/// All that was measured of one thing, in the order of the rounds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Samples {
    nanoseconds: Vec<u64>,
}

/// What a table shows of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) count: usize,
    pub(crate) min: Duration,
    pub(crate) p50: Duration,
    pub(crate) p90: Duration,
    pub(crate) p99: Duration,
}

impl Samples {
    pub(crate) fn from_nanoseconds(nanoseconds: Vec<u64>) -> Samples {
        Samples { nanoseconds }
    }

    pub(crate) fn nanoseconds(&self) -> &[u64] {
        &self.nanoseconds
    }

    pub(crate) fn push(&mut self, time: Duration) {
        self.nanoseconds.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Nothing if nothing was measured.
    pub(crate) fn figures(&self) -> Option<Figures> {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        // The nearest rank: each figure is a time that was really seen.
        let rank = |percent: usize| {
            let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
            sorted.get(at).map(|&ns| Duration::from_nanos(ns))
        };
        Some(Figures { count: sorted.len(), min: rank(0)?, p50: rank(50)?, p90: rank(90)?, p99: rank(99)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_times_that_were_seen() {
        let mut samples = Samples::default();
        assert_eq!(samples.figures(), None);
        (1..=200).rev().for_each(|ms| samples.push(Duration::from_millis(ms)));
        let figures = samples.figures().unwrap();
        let ms = |time: Duration| time.as_millis();
        assert_eq!((figures.count, ms(figures.min), ms(figures.p50)), (200, 1, 100));
        assert_eq!((ms(figures.p90), ms(figures.p99)), (180, 198));
    }

    #[test]
    fn one_sample_is_all_of_its_figures() {
        let figures = Samples::from_nanoseconds(vec![5]).figures().unwrap();
        assert!([figures.min, figures.p50, figures.p90, figures.p99].iter().all(|time| time.as_nanos() == 5));
    }
}
