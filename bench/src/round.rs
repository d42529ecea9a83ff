//! The turns: everybody once in each round, in an order that is shuffled anew.

use anyhow::Result;

use crate::contender::{self, Absent, Contender, Turn};
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::progress::Progress;
use crate::report::{Measure, Mode, Outcome, Row};
use crate::sample::Samples;
use crate::stage::Stage;

/// Rounds that are not counted: caches fill, the first box makes its image's layer, threads start.
const WARM_UP_ROUNDS: usize = 2;

/// A contender with what was measured of it.
struct Runner {
    rows: Vec<(Measure, &'static str)>,
    turn: Result<Turn, Absent>,
    samples: Vec<Samples>,
}

/// Measures everybody.
pub(crate) async fn all(
    stage: &Stage,
    mode: Mode,
    options: &Options,
    interrupt: &Interrupt,
) -> Result<Vec<Row>> {
    let field = contender::field(stage, mode, options);
    let fresh =
        |Contender { rows, turn }| Runner { samples: vec![Samples::default(); rows.len()], rows, turn };
    let mut runners: Vec<Runner> = field.contenders.into_iter().map(fresh).collect();
    let mut order: Vec<usize> = (0..runners.len()).collect();
    let mut dice = Dice(options.common.seed);
    let mut progress = Progress::on_stderr();
    for round in 0..WARM_UP_ROUNDS + options.common.rounds {
        let place = match round.checked_sub(WARM_UP_ROUNDS) {
            None => "warming up".to_owned(),
            Some(round) => format!("round {} of {}", round + 1, options.common.rounds),
        };
        progress.show(&format!("{}: {place}", mode.name()));
        dice.shuffle(&mut order);
        for &at in &order {
            interrupt.check().await?;
            runners[at].take_turn(stage, round >= WARM_UP_ROUNDS).await;
        }
    }
    progress.clear();
    Ok(runners.into_iter().flat_map(Runner::rows).collect())
}

impl Runner {
    async fn take_turn(&mut self, stage: &Stage, counts: bool) {
        let Ok(turn) = &self.turn else { return };
        match turn.take(stage).await {
            Ok(times) if counts => {
                for (samples, time) in self.samples.iter_mut().zip(times) {
                    samples.push(time);
                }
            }
            Ok(_) => {}
            // One that worked when it was tried and fails now is out: half a series would mislead.
            Err(error) => self.turn = Err(Absent::Failed(format!("{error:#}"))),
        }
    }

    fn rows(self) -> Vec<Row> {
        let outcome = |samples: Samples| match &self.turn {
            Ok(_) => Outcome::Sampled(samples),
            Err(Absent::Missing(why)) => Outcome::Missing(why.clone()),
            Err(Absent::Failed(why)) => Outcome::Failed(why.clone()),
        };
        let rows = self.rows.iter().zip(self.samples);
        rows.map(|(&(measure, name), samples)| Row {
            measure,
            contender: name.into(),
            outcome: outcome(samples),
        })
        .collect()
    }
}

/// Numbers that look like chance and are the same for the same seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher and Yates. The slight bias of the remainder is of no account for a few dozen places.
    pub(crate) fn shuffle<T>(&mut self, order: &mut [T]) {
        for last in (1..order.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            order.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shuffled(seed: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..20).collect();
        Dice(seed).shuffle(&mut order);
        order
    }

    #[test]
    fn everybody_has_a_turn_in_every_round() {
        let mut order = shuffled(7);
        order.sort_unstable();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn the_same_seed_gives_the_same_order() {
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
    }
}
