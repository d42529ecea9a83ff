//! kill -9, at any moment, of whoever makes a box, uses it or removes it. Whatever is left then is found and removed
//! by the next `glass gc`; boxes that nobody was about to remove live on; and the records are true.

use std::process::Child;
use std::time::{Duration, Instant};

use glasshouse_tests::Mode;

use crate::program::{Site, end};
use crate::random::Random;
use crate::victim::{self, PATIENCE, Part};
use crate::{alone, tell, traces};

/// A mode's share of the 200 rounds.
const ROUNDS: [(Kill, usize); 10] = [
    (Kill::Program("create"), 20),
    (Kill::Program("run"), 16),
    (Kill::Part(Part::Builder), 14),
    (Kill::Part(Part::First), 14),
    (Kill::Program("exec"), 8),
    (Kill::Program("cp"), 8),
    (Kill::Program("kill"), 8),
    (Kill::Program("gc"), 5),
    (Kill::Program("list"), 2),
    (Kill::Guest, 5),
];

/// Whom a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    /// `glass` with this command.
    Program(&'static str),
    /// A process that makes the box, under `glass create`.
    Part(Part),
    /// The first process of a living box, under `glass exec`.
    Guest,
}

/// What the rounds of a mode have in common.
struct Rounds {
    site: Site,
    /// A file that is copied into boxes.
    file: String,
    cleanings: usize,
}

impl Rounds {
    fn new(mode: Mode) -> Rounds {
        let site = Site::new(mode);
        let file = site.house.path().join("file");
        std::fs::write(&file, vec![7; 1 << 20]).expect("the house is ours");
        Rounds { file: file.display().to_string(), site, cleanings: 0 }
    }

    /// A box, if the command wants one; for `gc` one that has died.
    fn prepare(&self, command: &str) -> Option<String> {
        if matches!(command, "create" | "run") {
            return None;
        }
        let id = self.site.ok(&["create"]);
        if matches!(command, "gc" | "list") {
            self.site.kill_guest(&id);
        }
        Some(id)
    }

    fn start(&self, command: &str, id: Option<&str>) -> Child {
        let id = id.unwrap_or_default();
        let target = format!("{id}:/workspace/");
        let args: Vec<&str> = match command {
            "create" => vec!["create", "--name", "it"],
            "run" => vec!["run", "--", "echo", "word"],
            "exec" => vec!["exec", id, "--", "sh", "-c", "echo word; echo word >&2"],
            "cp" => vec!["cp", &self.file, &target],
            "kill" => vec!["kill", id],
            other => vec![other],
        };
        self.site.start(&args)
    }

    /// How long a command takes when nobody kills it; a bit more, so that moments after its end are among those tried.
    fn duration(&self, command: &str) -> Duration {
        let id = self.prepare(command);
        let start = Instant::now();
        let (code, _, stderr) = end(self.start(command, id.as_deref()));
        let time = start.elapsed();
        assert_eq!(code, Some(0), "{command}: {stderr}");
        self.site.ok(&["kill", "--all"]);
        time * 5 / 4
    }

    /// How long a process that makes a box is at it when nobody kills it, and a bit more.
    fn build_time(&self, part: Part) -> Duration {
        let mut program = self.site.start(&["create"]);
        let pidfd = victim::part(&mut program, part).expect("a box is made");
        let start = Instant::now();
        // The first process of the box goes on living; its part in making it ends with the program.
        if part == Part::Builder {
            victim::ends(&pidfd, "the builder");
        }
        let builder_time = start.elapsed();
        assert_eq!(end(program).0, Some(0));
        let time = if part == Part::Builder { builder_time } else { start.elapsed() };
        self.site.ok(&["kill", "--all"]);
        time * 5 / 4
    }

    /// The program is killed. Its box lives on if it was made or used, and `kill` may have come too far to go back.
    fn kill_program(&self, command: &str, delay: Duration) {
        let id = self.prepare(command);
        let mut program = self.start(command, id.as_deref());
        victim::spin(delay);
        program.kill().expect("it is our child");
        program.wait().expect("it is our child");
        if let Some(id) = id.filter(|_| matches!(command, "exec" | "cp")) {
            assert_eq!(self.site.living(), [id.as_str()], "{command} is not the owner of the box");
            assert_eq!(self.site.ok(&["exec", &id, "--", "echo", "alive"]), "alive");
        }
        for id in self.site.living() {
            assert_ne!(command, "gc", "a dead box does not live");
            // What is listed as living is whole, whoever made it is gone; but one that dies with its owner may be dying.
            if command != "run" {
                assert_eq!(
                    self.site.ok(&["exec", &id, "--", "echo", "alive"]),
                    "alive",
                    "after kill -9 of {command}"
                );
            }
        }
    }

    /// A process that makes the box is killed: `create` says so in one sentence and leaves nothing, or it was done.
    fn kill_part(&self, part: Part, delay: Duration) -> bool {
        let mut program = self.site.start(&["create"]);
        if let Some(pidfd) = victim::part(&mut program, part) {
            victim::spin(delay);
            victim::kill(&pidfd);
        }
        let (code, stdout, stderr) = end(program);
        if code == Some(0) {
            return false;
        }
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
        assert!(stderr.lines().count() == 1 && stderr.starts_with("glass: "), "{stderr}");
        // The creator lives and cleans up itself, without any further command.
        self.site.nothing_left(&format!("kill -9 of the {part:?}: {stderr}"));
        true
    }

    /// The guest is killed while a command runs: the command's caller is told, and so is everybody after.
    fn kill_guest_under_exec(&self, delay: Duration) {
        let id = self.site.ok(&["create"]);
        let program = self.site.start(&["exec", &id, "--", "sleep", "1000"]);
        victim::spin(delay);
        self.site.kill_guest(&id);
        let (code, _, stderr) = end(program);
        assert_eq!(code, Some(125), "{stderr}");
        assert!(stderr.starts_with("glass: ") && stderr.lines().count() == 1, "{stderr}");
    }

    /// Cleans up as a user would, until nothing is left.
    fn clean(&mut self, after: &str) {
        self.site.ok(&["gc"]);
        self.site.ok(&["kill", "--all"]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.cleanings += 1;
            let left = self.site.before.since(&self.site.house.home());
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "after {after}: left behind:\n  {}", left.join("\n  "));
            // A box that was being made when its maker died needs a moment to notice, and is swept up after that.
            self.site.ok(&["gc"]);
        }
    }

    fn round(&mut self, kill: Kill, delay: Duration) -> bool {
        let hit = match kill {
            Kill::Program(command) => {
                self.kill_program(command, delay);
                true
            }
            Kill::Part(part) => self.kill_part(part, delay),
            Kill::Guest => {
                self.kill_guest_under_exec(delay);
                true
            }
        };
        self.clean(&format!("{kill:?} after {delay:?} ({:?})", self.site.house.mode));
        traces::hold(&self.site.house.home());
        hit
    }
}

fn rounds(mode: Mode) {
    let _turn = alone();
    let mut random = Random::for_test(&format!("kill -9, {mode:?}"));
    let mut rounds = Rounds::new(mode);
    rounds.duration("run");
    let (mut done, mut hits, mut built) = (0, 0, 0);
    for (kill, count) in ROUNDS {
        let window = match kill {
            Kill::Program(command) => rounds.duration(command),
            Kill::Part(part) => rounds.build_time(part),
            Kill::Guest => rounds.duration("exec") / 2,
        };
        for index in 0..count {
            let hit = rounds.round(kill, random.moment(index, count, window));
            built += usize::from(matches!(kill, Kill::Part(_)));
            hits += usize::from(matches!(kill, Kill::Part(_)) && hit);
            done += 1;
        }
    }
    assert!(hits > 0, "all {built} builds were done before they could be hit");
    let records = traces::hold(&rounds.site.house.home());
    let cleanings = rounds.cleanings;
    tell(&format!(
        "{mode:?}: {done} rounds, {hits} of {built} builds hit, {cleanings} looks until clean, {records} records hold"
    ));
    assert_eq!(done, 100);
}

#[test]
fn kill_nine_at_any_moment_leaves_nothing_as_root() {
    if Mode::all().contains(&Mode::Root) {
        rounds(Mode::Root);
    }
}

#[test]
fn kill_nine_at_any_moment_leaves_nothing_without_root() {
    rounds(Mode::Rootless);
}
