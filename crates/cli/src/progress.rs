//! The progress of a pull, a line for each layer, and of a task, a line for each step. On a terminal only.

use std::collections::HashMap;
use std::io::{self, IsTerminal as _};
use std::sync::{Arc, Mutex};

use glasshouse_sandbox::{PullPhase, PullProgress, TaskPhase};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::escape::plain;

/// As many digits of a digest as people look at.
const DIGITS: usize = 12;

/// Lines on stderr, if somebody is there to look at them.
pub(crate) fn lines(quiet: bool) -> Option<Arc<dyn Fn(PullProgress) + Send + Sync>> {
    if quiet || !io::stderr().is_terminal() {
        return None;
    }
    let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let lines: Mutex<HashMap<String, ProgressBar>> = Mutex::default();
    Some(Arc::new(move |step| {
        let Ok(mut lines) = lines.lock() else { return };
        let line = lines.entry(step.layer.clone()).or_insert_with(|| new_line(&all, &step));
        show(line, &step);
    }))
}

fn new_line(all: &MultiProgress, step: &PullProgress) -> ProgressBar {
    let line = all.add(ProgressBar::new(step.total));
    line.set_prefix(short(&step.layer).to_owned());
    if let Ok(style) =
        ProgressStyle::with_template("{prefix} {msg:11} [{bar:30}] {bytes:>10} of {total_bytes}")
    {
        line.set_style(style.progress_chars("=> "));
    }
    line
}

fn show(line: &ProgressBar, step: &PullProgress) {
    line.set_message(word(step.phase));
    line.set_position(step.done);
    if matches!(step.phase, PullPhase::Done | PullPhase::Here) {
        line.finish();
    }
}

fn word(phase: PullPhase) -> &'static str {
    match phase {
        PullPhase::Waiting => "waiting",
        PullPhase::Downloading => "downloading",
        PullPhase::Downloaded => "downloaded",
        PullPhase::Unpacking => "unpacking",
        PullPhase::Done => "done",
        PullPhase::Here => "is here",
    }
}

/// A line for each step of a task, on stderr, if somebody is there to look at them.
pub(crate) fn phases(quiet: bool) -> Option<Arc<dyn Fn(TaskPhase) + Send + Sync>> {
    if quiet || !io::stderr().is_terminal() {
        return None;
    }
    let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let last: Mutex<Option<ProgressBar>> = Mutex::default();
    Some(Arc::new(move |phase| {
        let Ok(mut last) = last.lock() else { return };
        if let Some(done) = last.take() {
            done.finish();
        }
        let line = all.add(ProgressBar::new_spinner());
        if let Ok(style) = ProgressStyle::with_template("{msg}") {
            line.set_style(style);
        }
        line.set_message(sentence(&phase));
        line.tick();
        *last = Some(line);
    }))
}

fn sentence(phase: &TaskPhase) -> String {
    match phase {
        TaskPhase::Resolving => "asking the repository for the commit".to_owned(),
        TaskPhase::Fetching => "fetching the repository".to_owned(),
        TaskPhase::Copying => "copying it into the box".to_owned(),
        TaskPhase::SettingUp { number, of, command } => {
            format!("setting up, {number} of {of}: {}", plain(command))
        }
        TaskPhase::Keeping => "keeping the result".to_owned(),
        TaskPhase::Forking => "making the box".to_owned(),
    }
}

/// A bar for the steps of a replay, on stderr, if somebody is there to look at it. It is gone at the end.
pub(crate) fn steps(quiet: bool) -> impl Fn(usize, usize, &str) {
    let bar = (!quiet && io::stderr().is_terminal()).then(|| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("step {pos} of {len} [{bar:30}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar
    });
    move |number, of, what| {
        let Some(bar) = &bar else { return };
        bar.set_length(of as u64);
        bar.set_position(number as u64);
        bar.set_message(plain(what).into_owned());
        if number == of {
            bar.finish_and_clear();
        }
    }
}

/// The beginning of a digest, without its kind.
pub(crate) fn short(digest: &str) -> &str {
    let digits = digest.split_once(':').map_or(digest, |(_, digits)| digits);
    digits.get(..DIGITS).unwrap_or(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_shown_by_its_beginning() {
        assert_eq!(short("sha256:0123456789abcdef"), "0123456789ab");
        assert_eq!(short("odd"), "odd");
    }
}
