//! Somebody hostile inside a box: the probe (`probe/`, a static C program that is compiled on the spot), and the
//! boxes that it is let loose in, in both modes and as both users.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use glasshouse_tests::engine::engine;
use glasshouse_tests::{House, Mode, ORDINARY, is_root, skip};
use serde_json::Value;

use crate::CONTAINED;

/// Where the probe is inside.
pub(crate) const PROBE: &str = "/tmp/probe";

/// A box, and the user of it that attacks.
pub(crate) struct Attacker {
    pub(crate) house: Arc<House>,
    pub(crate) user: &'static str,
    pub(crate) id: String,
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// What it wrote, if it did what it was to do.
    pub(crate) fn text(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }
}

impl From<(i32, String, String)> for Ran {
    fn from((code, out, err): (i32, String, String)) -> Ran {
        Ran { code, out, err }
    }
}

/// The compiled probe; without a C compiler there is none, and that is said.
pub(crate) fn probe() -> Option<&'static Path> {
    static PROBE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PROBE.get_or_init(compile) {
        Ok(path) => Some(path),
        Err(why) => {
            skip("escape", why);
            None
        }
    }
}

fn compile() -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("escape/probe");
    let files =
        std::fs::read_dir(&sources).map_err(|e| format!("the probe's sources cannot be read: {e}"))?;
    let files: Vec<PathBuf> = files
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "c"))
        .collect();
    // Two runs at once do not tread on each other; what is renamed is whole.
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("escape-probe");
    let part = to.with_extension(std::process::id().to_string());
    let mut cc = Command::new("cc");
    cc.args(["-static", "-O1", "-Wall", "-Wno-unused-parameter", "-pthread", "-o"]).arg(&part).args(&files);
    let compiled =
        cc.output().map_err(|e| format!("the probe needs a C compiler, and cc cannot be run: {e}"))?;
    if !compiled.status.success() {
        let words = String::from_utf8_lossy(&compiled.stderr);
        return Err(format!("the probe cannot be compiled (it needs libc6-dev for -static): {words}"));
    }
    std::fs::rename(&part, &to).map_err(|e| format!("the probe cannot be moved: {e}"))?;
    Ok(to)
}

/// The modes that are tested: in containers there is one, where there is an engine.
pub(crate) fn modes() -> Vec<Mode> {
    match CONTAINED.then(engine) {
        None => Mode::all(),
        Some(Ok(_)) => vec![Mode::Root],
        Some(Err(why)) => {
            skip("docker", why);
            Vec::new()
        }
    }
}

/// The group of tests that a mode belongs to.
pub(crate) fn group(mode: Mode) -> &'static str {
    match mode {
        Mode::Root => "native-root",
        Mode::Rootless => "native-rootless",
    }
}

impl Attacker {
    /// In each mode, as each of the box's two users.
    pub(crate) fn everywhere() -> impl Iterator<Item = Attacker> {
        let places = modes().into_iter().flat_map(|mode| ["user", "root"].map(|user| (mode, user)));
        places.filter_map(|(mode, user)| Attacker::new(mode, user, &[]))
    }

    /// The same, but not in containers: for what those lack and SECURITY.md lists.
    pub(crate) fn in_native_boxes() -> impl Iterator<Item = Attacker> {
        (!CONTAINED).then(Attacker::everywhere).into_iter().flatten()
    }

    /// In each mode, as the user that boxes have by default.
    pub(crate) fn each_mode(options: &[&str]) -> impl Iterator<Item = Attacker> {
        modes().into_iter().filter_map(move |mode| Attacker::new(mode, "user", options))
    }

    /// In a fresh box of these options, with the probe in it.
    pub(crate) fn new(mode: Mode, user: &'static str, options: &[&str]) -> Option<Attacker> {
        if CONTAINED && !modes().contains(&mode) {
            return None;
        }
        probe()?;
        let house = house(mode);
        let id = create(&house, user, options)?;
        let attacker = Attacker { house, user, id };
        attacker.bring_probe(&attacker.id);
        Some(attacker)
    }

    /// Another box of the same house, with the probe in it.
    pub(crate) fn neighbour(&self) -> Attacker {
        let id = create(&self.house, self.user, &[]).expect("the first was made, too");
        self.bring_probe(&id);
        Attacker { house: self.house.clone(), user: self.user, id }
    }

    fn bring_probe(&self, id: &str) {
        self.glass(&["cp", &self.house.path().join("probe").to_string_lossy(), &format!("{id}:{PROBE}")])
            .text();
    }

    /// Who, for messages.
    pub(crate) fn name(&self) -> String {
        match CONTAINED {
            true => format!("a container as {}", self.user),
            false => format!("{:?} mode as {}", self.house.mode, self.user),
        }
    }

    /// The program with these arguments.
    pub(crate) fn glass(&self, args: &[&str]) -> Ran {
        self.house.run(args).into()
    }

    /// A command in the box, with options before it.
    pub(crate) fn exec(&self, options: &[&str], argv: &[&str]) -> Ran {
        self.glass(&[&["exec", self.id.as_str()], options, &["--"], argv].concat())
    }

    /// The same, as the JSON that `glass` makes of it.
    pub(crate) fn exec_json(&self, options: &[&str], argv: &[&str]) -> Value {
        let ran = self.exec(&[&["--json"], options].concat(), argv);
        serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{}: {e}: {ran:?}", self.name()))
    }

    /// A line for the shell of the box.
    pub(crate) fn sh(&self, line: &str) -> Ran {
        self.exec(&["--shell"], &[line])
    }

    /// The probe with these words.
    pub(crate) fn probe(&self, words: &[&str]) -> Ran {
        self.exec(&[], &[&[PROBE], words].concat())
    }

    /// The probe as a program that is fed and watched by the test.
    pub(crate) fn glass_piped(&self, args: &[&str]) -> std::process::Child {
        let mut command = self.house.glass(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program can be started")
    }

    /// The box lives, and works; or what it says instead.
    pub(crate) fn alive(&self) -> Result<(), String> {
        let ran = self.exec(&[], &["echo", "alive"]);
        match (ran.code, ran.out.as_str()) {
            (0, "alive\n") => Ok(()),
            _ => Err(format!("{}: the box does not work any more: {ran:?}", self.name())),
        }
    }

    /// The box lives, and works.
    pub(crate) fn assert_alive(&self) {
        self.alive().unwrap_or_else(|e| panic!("{e}"));
    }

    /// What is known of the box.
    pub(crate) fn info(&self) -> Value {
        serde_json::from_str(&self.glass(&["info", &self.id, "--json"]).text()).expect("info is JSON")
    }

    /// The box's first process, as the host sees it.
    pub(crate) fn first_process(&self) -> PathBuf {
        Path::new("/proc").join(self.info()["pid"].to_string())
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // The house, and what is still in it, goes with its last attacker.
        let _ = self.house.glass(&["kill", &self.id]).output();
    }
}

/// The house of a mode. All tests that run at the same time share it: to make and to clear one takes its time.
fn house(mode: Mode) -> Arc<House> {
    static HOUSES: Mutex<[Weak<House>; 2]> = Mutex::new([Weak::new(), Weak::new()]);
    let mut houses = HOUSES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let place = &mut houses[usize::from(mode == Mode::Rootless)];
    if let Some(house) = place.upgrade() {
        return house;
    }
    let mut house = House::new(mode);
    if CONTAINED {
        house.engine = engine().ok().map(|engine| engine.host.clone());
    }
    let house = Arc::new(house);
    if let Some(probe) = probe() {
        glasshouse_tests::place_program(probe, &house.path().join("probe"));
    }
    *place = Arc::downgrade(&house);
    house
}

/// Makes a box, unless this host has no namespaces for this mode.
pub(crate) fn create(house: &House, user: &str, options: &[&str]) -> Option<String> {
    let runtime = if CONTAINED { &["--runtime", "docker"][..] } else { &[] };
    let words = [&["create", "--user", user, "--cwd", "/tmp"], runtime, options].concat();
    let (code, out, err) = house.run(&words);
    if code != 0 && err.contains("step namespaces") {
        skip(group(house.mode), &err);
        return None;
    }
    assert_eq!(code, 0, "{:?} mode as {user}: {err}", house.mode);
    Some(out.trim().to_owned())
}

/// Makes the attacks of a group everywhere, in deterministic boxes too. Each must end as expected (one of the words), and the box must live on.
/// What the kernel would have answered without us is found out, too: an attack that it refuses by itself shows
/// nothing about our walls, and the test's output says so.
pub(crate) fn check(group: &str, at_least: usize, expected: impl Fn(&str) -> &'static str) {
    let alone = bare(group);
    let mut wrong = Vec::new();
    let mut met = BTreeMap::new();
    let deterministic = (!CONTAINED).then(|| Attacker::each_mode(&["--deterministic"])).into_iter().flatten();
    for attacker in Attacker::everywhere().chain(deterministic) {
        let answers = answers(&attacker.probe(&[group]).text());
        assert!(answers.len() >= at_least, "{}: only {} attacks were made", attacker.name(), answers.len());
        for (name, answer) in &answers {
            let wanted = expected(name);
            if !wanted.split('|').any(|word| word == answer) {
                wrong.push(format!("{}: {name}: {answer}, and not {wanted}", attacker.name()));
            }
        }
        met.extend(answers);
        wrong.extend(attacker.alive().err());
    }
    say_what_is_not_shown(&met, &alone);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Names the attacks that fail without us just as well, and that no other attack by the same call shows.
fn say_what_is_not_shown(met: &BTreeMap<String, String>, alone: &BTreeMap<String, String>) {
    // Attacks made for nothing but this: nonsense that the kernel answers otherwise than our filter does.
    const TELLING: [&str; 5] = [" flag", " of nobody", "_nowhere", "_nothing", "_too_large"];
    // Calls that are refused whatever is asked of them.
    const WHOLE: [&str; 2] = ["mount ", "setns "];
    let is_shown = |name: &str| met.get(name) != alone.get(name);
    let shown: Vec<&str> = met
        .keys()
        .filter(|name| is_shown(name))
        .filter_map(|name| {
            let whole = WHOLE.into_iter().find(|call| name.starts_with(call));
            whole.or_else(|| TELLING.iter().find_map(|end| name.strip_suffix(end)))
        })
        .collect();
    let mut silent: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, answer) in met {
        if answer != "ok" && !is_shown(name) && !shown.iter().any(|call| name.starts_with(call)) {
            silent.entry(answer).or_default().push(name);
        }
    }
    for (answer, names) in silent {
        eprintln!("cannot be shown here: this kernel answers {answer} by itself to: {}", names.join(", "));
    }
}

/// The lines of the probe.
pub(crate) fn answers(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| line.split_once(": ").map(|(name, answer)| (name.to_owned(), answer.to_owned()));
    text.lines().filter_map(line).collect()
}

/// What the kernel alone says: as root in fresh namespaces of an ordinary user, with no wall of ours around.
fn bare(group: &str) -> BTreeMap<String, String> {
    let Some(probe) = probe() else { return BTreeMap::new() };
    let dir = glasshouse_tests::scratch();
    let work = dir.path().join("work");
    let there = dir.path().join("probe");
    std::fs::create_dir(&work).expect("the scratch directory can be written");
    glasshouse_tests::place_program(probe, &there);
    let mut command = Command::new(&there);
    command.args(["bare", group]).env_clear().current_dir(&work).stdin(Stdio::null());
    if is_root() {
        use std::os::unix::process::CommandExt;
        std::os::unix::fs::chown(&work, Some(ORDINARY), Some(ORDINARY))
            .expect("root may give a directory away");
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.output().expect("the probe can be run");
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        eprintln!("cannot be shown here: what this kernel does without us ({})", why.trim());
    }
    answers(&String::from_utf8_lossy(&output.stdout))
}
