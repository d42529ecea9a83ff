//! Commands that somebody ended: by a signal, by an interrupt of their context, by killing them, or by going away.
//!
//! They would not end by themselves. So a replay does to them what was done then, after the same time, and says so: what
//! such a command had written by then, and to which files, is a matter of time. One that goes on all the same is killed in
//! the end, which is another end than the one on record: a replay waits for no command for ever that somebody had to end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use glasshouse_protocol::{ExecState, Exit};
use glasshouse_trace::ContextChange;
use glasshouse_trace::trajectory::{INTERRUPT, SIGNALS, Sent, Step};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::Sandbox;

/// How much longer than then a command may take to end by a signal that nobody on record has sent. It may have sent it
/// itself; or a caller did, by a way that is not on record.
const SIGNAL_WAIT: Duration = Duration::from_secs(1);

/// How much longer than twice the time that it took then a command may go on to which all was done that ended it then.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// The signal that an interrupt is.
const SIGINT: i32 = 2;

/// What has to be done to a command, in this order, and how much of that was.
#[derive(Debug, Default)]
pub(super) struct Ending {
    acts: Vec<(Duration, Act)>,
    done: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Signal(i32),
    /// It and all that it has started.
    Kill,
    /// The same to one that nobody killed then: what did end it has not.
    GiveUp,
}

impl Ending {
    /// Of a step on record. `next` is the one after it.
    pub(super) fn of(step: &Step, next: Option<&Step>) -> Result<Ending> {
        let sent = signals(step.extra.get(SIGNALS))?;
        let killed = is_ended_by_others(step.observed.end.as_ref());
        let act = |sent: &Sent| match sent.signal {
            9 if killed => Act::Kill,
            signal => Act::Signal(signal),
        };
        let took = Duration::from_micros(step.duration_us.unwrap_or_default());
        let after = |sent: &Sent| Duration::from_millis(sent.after_ms.unwrap_or_default());
        let mut acts: Vec<(Duration, Act)> = sent.iter().map(|sent| (after(sent), act(sent))).collect();
        if killed && acts.iter().all(|(_, act)| *act != Act::Kill) {
            acts.push((took, Act::Kill));
        }
        let unsaid = match &step.observed.end {
            Some(Exit::Signal { signal }) => Some(*signal),
            _ => is_interrupted(step, next)?.then_some(SIGINT),
        };
        if let (Some(signal), true) = (unsaid, acts.is_empty()) {
            acts.push((took + took + SIGNAL_WAIT, Act::Signal(signal)));
        }
        if let (Some((last, _)), false) = (acts.last(), killed) {
            acts.push((took + took.max(*last) + LAST_WAIT, Act::GiveUp));
        }
        Ok(Ending { acts, done: AtomicUsize::new(0) })
    }

    /// Whether nobody did anything to it.
    pub(super) fn is_none(&self) -> bool {
        self.acts.is_empty()
    }

    /// What was done, in words; if anything was.
    pub(super) fn words(&self) -> Option<String> {
        let done = self.done.load(Ordering::Relaxed);
        let word = |(after, act): &(Duration, Act)| match act {
            Act::Signal(signal) => format!("signal {signal} after {} ms", after.as_millis()),
            Act::Kill => format!("killed after {} ms", after.as_millis()),
            Act::GiveUp => format!("and, as it went on, killed after {} ms", after.as_millis()),
        };
        (done > 0).then(|| self.acts[..done].iter().map(word).collect::<Vec<_>>().join(", "))
    }

    /// Does it to what was started since `first`, one after the other. Never ends: whoever waits for the command does.
    pub(super) async fn execute(&self, sandbox: &Sandbox, first: u64) {
        let begun = Instant::now();
        for (after, act) in &self.acts {
            sleep_until(begun + *after).await;
            let running = running(sandbox, first).await;
            self.done.fetch_add(usize::from(!running.is_empty()), Ordering::Relaxed);
            for exec in running {
                // One that has just ended needs nothing any more.
                let _ = match act {
                    Act::Signal(signal) => sandbox.signal(exec, *signal, false).await,
                    Act::Kill | Act::GiveUp => sandbox.kill_exec(exec).await,
                };
            }
        }
        std::future::pending().await
    }
}

/// Whether somebody else than the command and its limits ended it.
pub(super) fn is_ended_by_others(end: Option<&Exit>) -> bool {
    matches!(end, Some(Exit::Killed { .. } | Exit::BoxGone { .. }))
}

/// Whether the context of a step's code was interrupted, in a trajectory of a version that did not say when: it is said of
/// the next step there, as what was done before that.
fn is_interrupted(step: &Step, next: Option<&Step>) -> Result<bool> {
    let context = step.params.get("code").and_then(|code| code.get("context")).and_then(Value::as_str);
    let (Some(context), Some(next), "exec") = (context, next, step.tool.as_str()) else { return Ok(false) };
    Ok(contexts(next)?.iter().any(|change| change.what == INTERRUPT && change.context == context))
}

/// What was done to contexts before a step.
pub(super) fn contexts(step: &Step) -> Result<Vec<ContextChange>> {
    let wrong = |_| Error::new(ErrorKind::Invalid, "`contexts` is a list of what was done to contexts");
    let done = step.extra.get("contexts");
    done.map(|done| serde_json::from_value(done.clone()).map_err(wrong))
        .transpose()
        .map(Option::unwrap_or_default)
}

/// A list of signals.
pub(super) fn signals(list: Option<&Value>) -> Result<Vec<Sent>> {
    let wrong =
        |_| Error::new(ErrorKind::Invalid, "a list of signals has `signal` and `after_ms`, or `step`");
    list.map(|list| serde_json::from_value(list.clone()).map_err(wrong))
        .transpose()
        .map(Option::unwrap_or_default)
}

/// The commands of a step: those that run and that nobody had started before.
async fn running(sandbox: &Sandbox, first: u64) -> Vec<u64> {
    let execs = sandbox.execs().await.unwrap_or_default();
    let is_of_step = |exec: &glasshouse_protocol::ExecInfo| {
        exec.exec >= first && !exec.background && exec.state == ExecState::Running
    };
    execs.iter().filter(|exec| is_of_step(exec)).map(|exec| exec.exec).collect()
}

#[cfg(test)]
mod tests {
    use glasshouse_protocol::Killer;
    use glasshouse_trace::trajectory::Observed;
    use serde_json::json;

    use super::*;

    fn check(end: Exit, signals: Value, expected: &[(u64, Act)]) {
        let observed = Observed { end: Some(end), ..Observed::default() };
        let extra = [(SIGNALS.to_owned(), signals)].into_iter().collect();
        let step = Step { observed, extra, duration_us: Some(7000), tool: "exec".into(), ..Step::default() };
        let acts: Vec<_> = expected.iter().map(|(ms, act)| (Duration::from_millis(*ms), *act)).collect();
        assert_eq!(Ending::of(&step, None).unwrap().acts, acts);
    }

    #[test]
    fn what_was_done_to_a_command_is_done_again() {
        let killed = |by| Exit::Killed { by };
        check(Exit::Code { code: 0 }, json!([]), &[]);
        check(
            Exit::Code { code: 0 },
            json!([{"signal": 10, "after_ms": 3}]),
            &[(3, Act::Signal(10)), (10014, Act::GiveUp)],
        );
        check(killed(Killer::Caller), json!([{"signal": 9, "after_ms": 5}]), &[(5, Act::Kill)]);
        check(
            Exit::Signal { signal: 9 },
            json!([{"signal": 9, "after_ms": 5}]),
            &[(5, Act::Signal(9)), (10014, Act::GiveUp)],
        );
        check(Exit::Signal { signal: 2 }, json!([]), &[(1014, Act::Signal(2)), (11021, Act::GiveUp)]);
        check(killed(Killer::Disconnect), json!([]), &[(7, Act::Kill)]);
        check(
            killed(Killer::Ttl),
            json!([{"signal": 2, "after_ms": 1}]),
            &[(1, Act::Signal(2)), (7, Act::Kill)],
        );
    }

    #[test]
    fn an_interrupt_that_stands_on_the_next_step_belongs_to_the_code_before_it() {
        let code = |context: &str| {
            let params = json!({"code": {"context": context, "language": "bash", "code": "sleep inf"}});
            let params = params.as_object().cloned().unwrap_or_default();
            Step { tool: "exec".into(), params, duration_us: Some(7000), ..Step::default() }
        };
        let contexts = json!([{"what": "interrupt", "context": "b"}]);
        let extra = [("contexts".to_owned(), contexts)].into_iter().collect();
        let next = Step { tool: "exec".into(), extra, ..Step::default() };
        let acts = |step: Step| Ending::of(&step, Some(&next)).unwrap().acts;
        let after = Duration::from_millis;
        assert_eq!(acts(code("b")), [(after(1014), Act::Signal(2)), (after(11021), Act::GiveUp)]);
        assert_eq!(acts(code("other")), []);
    }
}
