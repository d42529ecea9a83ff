//! What this machine takes for the two things that everything here is made of: giving a process a page of memory, and waking
//! another thread. Virtual machines in virtual machines take ten times as long for either as the metal does, and no program
//! that runs on them can be faster than that.

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::sample::Samples;

const PAGE_BYTES: usize = 4096;
/// Few enough that no kernel makes huge pages of them.
const PAGES: usize = 400;
const BLOCKS: usize = 21;
const ROUNDS: usize = 200;
/// What a thread is left alone for, so that it sleeps when it is woken, as whoever waits for a box does.
const PAUSE: Duration = Duration::from_micros(300);

/// What was measured: the medians.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Floor {
    pub(crate) fault: Duration,
    pub(crate) wake: Duration,
}

impl Floor {
    pub(crate) fn measure() -> Result<Floor> {
        Ok(Floor { fault: fault(), wake: wake()? })
    }

    pub(crate) fn line(&self) -> String {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        format!(
            "a page of memory {:.1} µs, to wake a thread and be woken by it {:.0} µs",
            us(self.fault),
            us(self.wake)
        )
    }
}

/// A page that is written to for the first time.
fn fault() -> Duration {
    let (mut samples, mut kept) = (Samples::default(), Vec::new());
    for _ in 0..BLOCKS {
        let mut pages = vec![0u8; PAGES * PAGE_BYTES];
        let start = Instant::now();
        for page in pages.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
        }
        samples.push(start.elapsed() / PAGES as u32);
        // What is given back may be given out again, and is there already then.
        kept.push(black_box(pages));
    }
    median(&samples)
}

/// A byte to another thread, and one back.
fn wake() -> Result<Duration> {
    let (mut here, mut there) = UnixStream::pair().context("cannot make a pair of sockets")?;
    let other = std::thread::spawn(move || {
        let mut byte = [0];
        while there.read_exact(&mut byte).is_ok() && there.write_all(&byte).is_ok() {}
    });
    let mut samples = Samples::default();
    for _ in 0..ROUNDS {
        std::thread::sleep(PAUSE);
        let (start, mut byte) = (Instant::now(), [0]);
        here.write_all(&byte).context("cannot wake a thread")?;
        here.read_exact(&mut byte).context("cannot be woken by a thread")?;
        samples.push(start.elapsed());
    }
    drop(here);
    other.join().map_err(|_| anyhow::anyhow!("a thread has panicked"))?;
    Ok(median(&samples))
}

fn median(samples: &Samples) -> Duration {
    samples.figures().map_or(Duration::ZERO, |figures| figures.p50)
}
