//! What an idle box costs in memory, the kernel's part included.
//!
//! Two answers, which should be near each other: how much less memory the whole machine has available, which other
//! work disturbs; and the sum of the parts that the kernel tells, which leaves out what it does not tell.

use std::fs;
use std::io::{BufRead, Write};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::stage::{self, Stage};

/// Kibibytes for each box.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Memory {
    pub(crate) boxes: usize,
    /// Less memory available (`MemAvailable`).
    pub(crate) available_kib: f64,
    /// The guest's own, shared pages divided among those who share them (`Pss`); or nothing, if we may not look.
    pub(crate) guest_kib: Option<f64>,
    /// The kernel's objects (`Slab`).
    pub(crate) slab_kib: f64,
    /// The part of them that cannot be taken back (`SUnreclaim`).
    pub(crate) unreclaimable_kib: f64,
    /// `PageTables`, `KernelStack` and `Percpu`.
    pub(crate) other_kernel_kib: f64,
    /// What this process grew by.
    pub(crate) caller_kib: f64,
}

impl Memory {
    /// The sum of the parts.
    pub(crate) fn sum_kib(&self) -> f64 {
        self.guest_kib.unwrap_or(0.0) + self.slab_kib + self.other_kernel_kib + self.caller_kib
    }

    /// The less flattering answer.
    pub(crate) fn all_told_kib(&self) -> f64 {
        self.available_kib.max(self.sum_kib())
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "boxes": self.boxes, "available_kib": self.available_kib, "guest_kib": self.guest_kib,
            "slab_kib": self.slab_kib, "unreclaimable_kib": self.unreclaimable_kib,
            "other_kernel_kib": self.other_kernel_kib, "caller_kib": self.caller_kib,
            "all_told_kib": self.all_told_kib(),
        })
    }

    pub(crate) fn from_json(value: &Value) -> Option<Memory> {
        let number = |key: &str| value[key].as_f64();
        Some(Memory {
            boxes: value["boxes"].as_u64()? as usize,
            available_kib: number("available_kib")?,
            guest_kib: number("guest_kib"),
            slab_kib: number("slab_kib")?,
            unreclaimable_kib: number("unreclaimable_kib")?,
            other_kernel_kib: number("other_kernel_kib")?,
            caller_kib: number("caller_kib")?,
        })
    }
}

/// Makes so many boxes, looks, and takes them away.
pub(crate) async fn of_idle_boxes(stage: &Stage, options: &Options, interrupt: &Interrupt) -> Result<Memory> {
    let before = Reading::take()?;
    let mut made = Vec::new();
    let filled = fill(stage, options.boxes, &mut made, interrupt).await;
    let result = filled.and_then(|()| compare(&before, &made, options.common.ordinary));
    for (id, _) in &made {
        stage.house.destroy(id).await.with_context(|| format!("cannot remove box {id}"))?;
    }
    result
}

/// Boxes are let go of as soon as they are made: what is left is what `glass create` leaves, and no descriptor here.
async fn fill(
    stage: &Stage,
    boxes: usize,
    made: &mut Vec<(String, i32)>,
    interrupt: &Interrupt,
) -> Result<()> {
    for n in 0..boxes {
        interrupt.check().await?;
        let sandbox =
            stage.house.create(stage::spec()).await.with_context(|| format!("cannot make box {}", n + 1))?;
        made.push((sandbox.id().to_owned(), sandbox.info().pid));
    }
    Ok(())
}

fn compare(before: &Reading, made: &[(String, i32)], ordinary: bool) -> Result<Memory> {
    let after = Reading::take()?;
    let pids: Vec<i32> = made.iter().map(|(_, pid)| *pid).collect();
    let guests = match ordinary {
        true => ask(&pids)?,
        false => look(&pids),
    };
    let count = made.len() as f64;
    let grown = |field: fn(&Reading) -> f64| (field(&after) - field(before)) / count;
    Ok(Memory {
        boxes: made.len(),
        available_kib: -grown(|r| r.available),
        guest_kib: guests.map(|kib| kib / count),
        slab_kib: grown(|r| r.slab),
        unreclaimable_kib: grown(|r| r.unreclaimable),
        other_kernel_kib: grown(|r| r.other_kernel),
        caller_kib: grown(|r| r.caller),
    })
}

/// The machine's memory at one moment, in KiB.
struct Reading {
    available: f64,
    slab: f64,
    unreclaimable: f64,
    other_kernel: f64,
    caller: f64,
}

impl Reading {
    fn take() -> Result<Reading> {
        let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
        let field = |name: &str| kib_in(&text, name).with_context(|| format!("/proc/meminfo has no {name}"));
        let other =
            ["PageTables", "KernelStack", "Percpu"].iter().filter_map(|name| kib_in(&text, name)).sum();
        Ok(Reading {
            available: field("MemAvailable")?,
            slab: field("Slab")?,
            unreclaimable: field("SUnreclaim")?,
            other_kernel: other,
            caller: pss_kib("self").context("cannot read /proc/self/smaps_rollup")?,
        })
    }
}

/// The memory of all these guests. They are not dumpable: only the host's root may look.
fn look(pids: &[i32]) -> Option<f64> {
    pids.iter().map(|pid| pss_kib(&pid.to_string())).sum()
}

/// The second pass asks the first, which is root, to look.
fn ask(pids: &[i32]) -> Result<Option<f64>> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", json!({ "look_at": pids }))?;
    stdout.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("the first pass does not answer")?;
    Ok(answer.trim().parse().ok())
}

/// Answers such a question, if it is one.
pub(crate) fn answer(question: &Value) -> Option<String> {
    let pids: Vec<i32> =
        question["look_at"].as_array()?.iter().filter_map(|pid| Some(pid.as_i64()? as i32)).collect();
    Some(look(&pids).map_or("nothing".into(), |kib| kib.to_string()))
}

fn pss_kib(process: &str) -> Option<f64> {
    kib_in(&fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?, "Pss")
}

fn kib_in(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Pss_Anon:  5 kB\nPss:    12 kB\nSlab:  1 pages\n";
        assert_eq!((kib_in(text, "Pss"), kib_in(text, "Slab"), kib_in(text, "Ps")), (Some(12.0), None, None));
    }

    #[test]
    fn what_is_told_of_memory_can_be_read_again() {
        let memory = Memory {
            boxes: 3,
            available_kib: 900.5,
            guest_kib: None,
            slab_kib: 500.0,
            unreclaimable_kib: 300.0,
            other_kernel_kib: 100.0,
            caller_kib: 1.0,
        };
        assert_eq!(Memory::from_json(&memory.to_json()), Some(memory.clone()));
        assert_eq!((memory.sum_kib(), memory.all_told_kib()), (601.0, 900.5));
    }
}
