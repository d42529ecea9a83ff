//! What boxes use, as the host sees it: nothing is run in a box for it, and nothing put on its record.
//!
//! A box's processes are those below its first one: whoever is orphaned in a box becomes a child of that. What processes have
//! used that ended is told by those that collected them. So one walk over `/proc` tells of all boxes. Of a box whose first process
//! is not to be seen here (on an engine elsewhere) that tells nothing.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use glasshouse_sandbox::SandboxInfo;

use crate::clock::now_ms;
use crate::limits::{USAGE_PAUSE, USAGE_SAMPLES};

/// What is remembered of all boxes.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    boxes: HashMap<String, Looked>,
}

/// What is remembered of one box. Each has a time of its own: who asks for one box must not make others wait that somebody
/// else looks at.
#[derive(Debug, Default)]
struct Looked {
    last: Option<Instant>,
    samples: VecDeque<Sample>,
}

/// What a box had used at some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) at_ms: u64,
    /// Processor time, in all.
    pub(crate) cpu_ms: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u64,
}

impl Usage {
    /// What these boxes used lately, by their ids. Looks anew if that was not just done. It reads files, and may take a while.
    pub(crate) fn of(&self, boxes: &[SandboxInfo]) -> HashMap<String, Vec<Sample>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = boxes.iter().filter(|info| info.state.is_alive());
        let due: Vec<&SandboxInfo> = alive.filter(|info| kept.is_due(&info.id)).collect();
        if !due.is_empty() {
            let (at_ms, processes) = (now_ms(), Processes::read());
            for info in due {
                let sample = processes.of(info.pid, info.start_ticks);
                kept.add(&info.id, sample.map(|sample| Sample { at_ms, ..sample }));
            }
        }
        let told = |info: &SandboxInfo| {
            let looked = kept.boxes.get(&info.id)?;
            Some((info.id.clone(), looked.samples.iter().copied().collect()))
        };
        boxes.iter().filter_map(told).collect()
    }

    /// Forgets all boxes but these.
    pub(crate) fn keep(&self, boxes: &[SandboxInfo]) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.boxes.retain(|id, _| boxes.iter().any(|info| info.id == *id));
    }
}

impl Kept {
    fn is_due(&self, id: &str) -> bool {
        let last = self.boxes.get(id).and_then(|looked| looked.last);
        last.is_none_or(|last| last.elapsed() > USAGE_PAUSE)
    }

    /// It was looked at, also if there was nothing to be seen.
    fn add(&mut self, id: &str, sample: Option<Sample>) {
        let looked = self.boxes.entry(id.to_owned()).or_default();
        looked.last = Some(Instant::now());
        looked.samples.extend(sample);
        if looked.samples.len() > USAGE_SAMPLES {
            looked.samples.pop_front();
        }
    }
}

/// What a box uses now. It reads files, and may take a while.
pub(crate) fn now(info: &SandboxInfo) -> Option<Sample> {
    Processes::read().of(info.pid, info.start_ticks).map(|sample| Sample { at_ms: now_ms(), ..sample })
}

/// What these processes use, by their `stat` files: of a box that has to be asked itself.
pub(crate) fn told(stats: impl IntoIterator<Item = String>) -> Sample {
    let processes = stats.into_iter().filter_map(|stat| Process::parse(&stat));
    processes.fold(Sample { at_ms: now_ms(), ..Sample::default() }, Sample::with)
}

impl Sample {
    fn with(self, process: Process) -> Sample {
        Sample {
            cpu_ms: self.cpu_ms + process.ticks * TICK_MS,
            memory_bytes: self.memory_bytes + process.pages * PAGE_BYTES,
            processes: self.processes + 1,
            ..self
        }
    }
}

/// Linux counts in hundredths of a second towards programs, on every machine.
const TICK_MS: u64 = 10;
const PAGE_BYTES: u64 = 4096;

/// All processes of this machine.
#[derive(Debug, Default)]
struct Processes {
    by_pid: HashMap<i32, Process>,
    children: HashMap<i32, Vec<i32>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Process {
    parent: i32,
    /// Its own, and that of those that it has collected.
    ticks: u64,
    start_ticks: u64,
    pages: u64,
}

impl Processes {
    fn read() -> Processes {
        let mut all = Processes::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // One that has ended meanwhile is not there any more.
            let Ok(text) = fs::read(entry.path().join("stat")) else { continue };
            all.add(pid, &String::from_utf8_lossy(&text));
        }
        all
    }

    fn add(&mut self, pid: i32, stat: &str) {
        let Some(process) = Process::parse(stat) else { return };
        self.children.entry(process.parent).or_default().push(pid);
        self.by_pid.insert(pid, process);
    }

    /// What a process and all below it use, if it is the one that began then.
    fn of(&self, first: i32, start_ticks: u64) -> Option<Sample> {
        self.by_pid.get(&first).filter(|process| process.start_ticks == start_ticks)?;
        let (mut sample, mut left) = (Sample::default(), vec![first]);
        while let Some(pid) = left.pop() {
            let Some(process) = self.by_pid.get(&pid) else { continue };
            sample = sample.with(*process);
            // What is read one after the other may name a process twice, but not for ever.
            if sample.processes as usize > self.by_pid.len() {
                return None;
            }
            left.extend(self.children.get(&pid).into_iter().flatten());
        }
        Some(sample)
    }
}

impl Process {
    fn parse(stat: &str) -> Option<Process> {
        // The name is in parentheses and may hold anything; what follows is counted from the third on.
        let (_, rest) = stat.rsplit_once(") ")?;
        let words: Vec<&str> = rest.split(' ').collect();
        let number = |at: usize| words.get(at - 3).and_then(|word| word.trim().parse::<u64>().ok());
        Some(Process {
            parent: words.get(1)?.parse().ok()?,
            ticks: number(14)? + number(15)? + number(16)? + number(17)?,
            start_ticks: number(22)?,
            pages: number(24)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, parent: i32, start: u64) -> String {
        format!(
            "7 ({name}) S {parent} 1 1 0 -1 4194624 58 0 0 0 20 5 3 2 25 5 1 0 {start} 2281472 256 1844674"
        )
    }

    #[test]
    fn every_box_has_a_time_of_its_own() {
        let mut kept = Kept::default();
        kept.add("one", Some(Sample::default()));
        assert!(!kept.is_due("one") && kept.is_due("other"), "who looks at one does not starve the other");
        kept.add("far", None);
        assert!(!kept.is_due("far"), "one that is not to be seen here is not looked for all the time");
        for _ in 0..2 * USAGE_SAMPLES {
            kept.add("one", Some(Sample::default()));
        }
        assert_eq!(kept.boxes["one"].samples.len(), USAGE_SAMPLES);
    }

    #[test]
    fn a_box_is_its_first_process_and_all_below_it() {
        let mut all = Processes::default();
        for (pid, parent, start) in [(10, 1, 100), (11, 10, 200), (12, 11, 300), (20, 1, 100)] {
            all.add(pid, &stat("a) b (c", parent, start));
        }
        let sample = all.of(10, 100).unwrap();
        assert_eq!((sample.cpu_ms, sample.processes), (3 * 300, 3));
        assert_eq!(sample.memory_bytes, 3 * 256 * 4096);
        assert_eq!(all.of(20, 100).unwrap().processes, 1);
        assert_eq!((all.of(10, 101), all.of(99, 100)), (None, None), "a number that was given away again");
        all.add(30, "no such thing");
        assert_eq!(all.of(30, 0), None);
    }
}
