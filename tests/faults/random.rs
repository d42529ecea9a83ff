//! Numbers that look random and can be had again: the seed is printed, and taken from `FAULTS_SEED` if that is set.

use std::time::Duration;

use crate::tell;

/// A sequence of numbers (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    /// Says its seed, so that a round that failed can be played again.
    pub(crate) fn for_test(name: &str) -> Random {
        let given = std::env::var("FAULTS_SEED").ok().and_then(|text| text.parse().ok());
        let now = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
        let seed = given.unwrap_or_else(now);
        tell(&format!("{name}: FAULTS_SEED={seed}"));
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A moment in the `index`th of `count` parts of a time: all together they cover it evenly.
    pub(crate) fn moment(&mut self, index: usize, count: usize, time: Duration) -> Duration {
        let part = time / count as u32;
        part * index as u32 + Duration::from_nanos(self.next() % (part.as_nanos() as u64).max(1))
    }
}

#[test]
fn moments_cover_a_time_evenly() {
    let mut random = Random(1);
    let time = Duration::from_millis(10);
    let moments: Vec<Duration> = (0..5).map(|index| random.moment(index, 5, time)).collect();
    for (index, moment) in moments.iter().enumerate() {
        let part = time / 5;
        assert!((part * index as u32..part * (index as u32 + 1)).contains(moment), "{moments:?}");
    }
}
