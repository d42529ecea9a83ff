//! Every step of the plan fails in turn: with an error, and by the sudden death of the process that is at it.

use std::path::Path;

use glasshouse_linux::rustix::io::Errno;
use glasshouse_sandbox::{Limits, SandboxSpec, Sandboxes, faults};
use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{Mode, scratch};
use tokio::runtime::Runtime;

use crate::rerun::as_ordinary;
use crate::{alone, event_loop, nothing_left, open, tell};

/// What the process at a step does: two errors, and death without a word.
const WAYS: [i32; 3] = [Errno::PERM.raw_os_error(), Errno::NOMEM.raw_os_error(), 0];
/// No plan has so many steps.
const STEPS_MAX: usize = 100;
/// How often a fault that stays is met.
const TIMES: usize = 3;

/// Takes the faults away, however the test ends.
struct Cleared;

impl Drop for Cleared {
    fn drop(&mut self) {
        faults::clear();
    }
}

struct Site<'a> {
    home: &'a Path,
    house: Sandboxes,
    threads: Runtime,
    before: Leaks,
}

impl Site<'_> {
    /// On a home where a box was made before: the image's layer is there, and the guest is in memory.
    fn new(home: &Path) -> Site<'_> {
        let (threads, house) = (event_loop(), open(home));
        let site = Site { home, house, threads, before: Leaks::default() };
        site.works(&SandboxSpec::default(), "at the start");
        Site { before: Leaks::now(home), ..site }
    }

    fn create(&self, spec: &SandboxSpec) -> Result<glasshouse_sandbox::Sandbox, glasshouse_sandbox::Error> {
        self.threads.block_on(self.house.create(spec.clone()))
    }

    #[track_caller]
    fn works(&self, spec: &SandboxSpec, when: &str) {
        let sandbox = self.create(spec).unwrap_or_else(|e| panic!("{when}: {e}"));
        self.threads.block_on(sandbox.destroy()).unwrap_or_else(|e| panic!("{when}: {e}"));
    }

    /// The step that failed, by the name that the error gives it. `None`: there is no such step.
    fn fail(&self, spec: &SandboxSpec, step: usize, errno: i32) -> Option<String> {
        let _cleared = Cleared;
        faults::set(step, errno);
        let mut name = None;
        for time in 0..TIMES {
            let when = format!("step {step} failed with {errno} for the {time}. time");
            let message = match self.create(spec) {
                Ok(sandbox) => {
                    assert_eq!(time, 0, "{when}: it failed before");
                    self.threads.block_on(sandbox.destroy()).expect("a box can be removed");
                    return None;
                }
                Err(error) => error.to_string(),
            };
            name = Some(check_message(&message, errno));
            nothing_left(&self.before, self.home, &when);
        }
        faults::clear();
        // It failed for once: the next one is not hurt by it.
        self.works(spec, &format!("after step {step} had failed with {errno}"));
        nothing_left(&self.before, self.home, &format!("recovery from step {step} with {errno}"));
        name
    }
}

/// The error says which step it was and what the kernel answered; of a death, that there was one.
fn check_message(message: &str, errno: i32) -> String {
    let rest = message.strip_prefix("cannot build the box: ").unwrap_or_else(|| panic!("{message:?}"));
    if errno == 0 {
        assert!(rest.contains("ended without a word"), "{message:?}");
        return "a death".into();
    }
    let reason = std::io::Error::from_raw_os_error(errno).to_string();
    let (step, rest) = rest.strip_prefix("step ").and_then(|rest| rest.split_once(" (")).expect(message);
    assert!(rest.contains("a fault made on purpose") && rest.contains(&reason), "{message:?}");
    step.into()
}

/// Fails all steps of the plans for these specs. The names of the steps.
fn every_step(home: &Path) -> Vec<Vec<String>> {
    let site = Site::new(home);
    let limits = Limits { disk_bytes: Some(8 << 20), ..Limits::default() };
    let specs = [
        SandboxSpec::default(),
        SandboxSpec { read_only: true, limits, name: Some("it".into()), ..SandboxSpec::default() },
    ];
    let mut all = Vec::new();
    for spec in &specs {
        let mut names = Vec::new();
        for step in 0..STEPS_MAX {
            let [name, other, death] = WAYS.map(|errno| site.fail(spec, step, errno));
            assert_eq!((name.is_some(), &name), (death.is_some(), &other), "step {step} is one step");
            match name {
                Some(name) => names.push(name),
                None => break,
            }
        }
        assert!(names.len() > 10 && names.len() < STEPS_MAX, "{names:?}");
        all.push(names);
    }
    all
}

fn check(home: &Path, mode: &str, first: &[&str]) {
    let [plain, read_only] = every_step(home).try_into().expect("two specs");
    tell(&format!(
        "{mode}: {} and {} steps failed in {} ways each",
        plain.len(),
        read_only.len(),
        WAYS.len()
    ));
    assert_eq!(plain[..first.len()], *first);
    assert_eq!(plain.last().map(String::as_str), Some("system call filter"));
    for added in ["mount tmpfs", "read-only root"] {
        assert!(read_only.iter().any(|name| name == added), "{read_only:?}");
    }
}

#[test]
fn every_step_that_fails_leaves_nothing_as_root() {
    if !Mode::all().contains(&Mode::Root) {
        return;
    }
    let _turn = alone();
    let dir = scratch();
    check(dir.path(), "root", &["private mounts", "namespaces", "id maps", "host tree", "overlay root"]);
}

#[test]
fn every_step_that_fails_leaves_nothing_without_root() {
    let Some(home) = as_ordinary("steps::every_step_that_fails_leaves_nothing_without_root") else { return };
    let _turn = alone();
    check(&home.path, "without root", &["namespaces", "id maps", "hand-over"]);
}
