//! kill -9 of whatever changes the store, at random moments: what was kept before is whole, what was being made is whole or
//! not there, and after `gc` nothing stays that nobody refers to.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use glasshouse_linux::process;
use glasshouse_linux::rustix::process::Signal;
use glasshouse_tests::{House, Mode, ORDINARY, crash_rounds, is_root};
use serde_json::Value;

use crate::rerun::Dice;
use crate::stage::Stage;

/// Rounds for each mode, of all verbs in turn; the first of each is not killed, and tells how long one takes.
/// `CRASH_ROUNDS` says otherwise.
const ROUNDS: usize = 45;
/// Layers of a box whose next snapshot merges them.
const DEEP: usize = 15;
/// Files of the root that boxes are made from.
const FILES: usize = 150;
/// Files that take a while to remove.
const LITTER_FILES: usize = 50_000;
/// How long a list of no boxes may take on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(30);
const LARGE_BYTES: usize = 2 << 20;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verb {
    Commit,
    TakeRoot,
    RemoveImage,
    Gc,
    Export,
    Import,
    Merge,
    RemoveSnapshot,
    Restore,
}

const VERBS: [Verb; 9] = [
    Verb::Commit,
    Verb::TakeRoot,
    Verb::Gc,
    Verb::Export,
    Verb::Import,
    Verb::RemoveImage,
    Verb::Merge,
    Verb::Restore,
    Verb::RemoveSnapshot,
];

/// What a record may have become, by its name: a digest, and whether it may be missing.
type Records = BTreeMap<String, (String, bool)>;

struct Store {
    stage: Stage,
    dice: Dice,
    root: String,
    /// A snapshot whose chain is about to be merged.
    deep: String,
    /// What an image of the root shows.
    root_digest: String,
    snapshots: Records,
    images: Records,
    /// What each layer held when it was first seen.
    layers: BTreeMap<String, u64>,
    takes: BTreeMap<Verb, Duration>,
}

impl Store {
    fn new(mode: Mode) -> Option<Store> {
        let house = House::new(mode);
        let root = house.path().join("root");
        for dir in ["etc", "tmp", "proc", "sys", "dev", "work/d"] {
            std::fs::create_dir_all(root.join(dir)).expect("the house is ours");
        }
        for n in 0..FILES {
            std::fs::write(root.join(format!("work/d/{n}")), n.to_string()).expect("the house is ours");
        }
        let large: Vec<u8> = (0..LARGE_BYTES).map(|n| (n / 7 % 251) as u8).collect();
        std::fs::write(root.join("work/large"), large).expect("the house is ours");
        give(mode, &root);
        let stage = Stage::in_house(house, &["--image", &format!("dir:{}", root.display())])?;
        let mut store = Store {
            dice: Dice::new("store"),
            root: root.display().to_string(),
            deep: String::new(),
            root_digest: String::new(),
            snapshots: Records::new(),
            images: Records::new(),
            layers: BTreeMap::new(),
            takes: BTreeMap::new(),
            stage,
        };
        store.root_digest = store.stage.ok(&["digest", &store.stage.id]);
        for n in 0..DEEP {
            store.write(&n.to_string());
            let id = store.stage.snapshot();
            let digest = store.stage.ok(&["digest", &id]);
            store.snapshots.insert(id.clone(), (digest, false));
            store.deep = id;
        }
        Some(store)
    }

    fn path(&self, part: &str) -> PathBuf {
        self.stage.house.home().join(part)
    }

    /// Writes to the box: there is no program in it.
    fn write(&self, text: &str) {
        let file = self.stage.house.path().join("n");
        std::fs::write(&file, text).expect("the house is ours");
        self.stage.ok(&["cp", &file.display().to_string(), &format!("{}:/work/{text}", self.stage.id)]);
    }

    /// One of those that are there, and not what the test stands on.
    fn any(&mut self, of_images: bool) -> Option<String> {
        let records = if of_images { &self.images } else { &self.snapshots };
        let names: Vec<String> = records.keys().filter(|name| **name != self.deep).cloned().collect();
        self.dice.of(&names).cloned()
    }

    /// One round: what is done is killed, unless it is the first.
    fn round(&mut self, verb: Verb, round: usize) {
        let box_id = self.stage.id.clone();
        let name = format!("{verb:?}-{round}").to_lowercase();
        let deep = self.deep.clone();
        let deep_digest = self.snapshots[&deep].0.clone();
        let file = self.stage.house.home().join("state").display().to_string();
        let mut before = self.stage.ok(&["digest", &box_id]);
        let mut after = before.clone();
        let args: Vec<String> = match verb {
            Verb::Commit => {
                self.images.insert(format!("docker.io/library/{name}:latest"), (deep_digest, true));
                ["commit", &deep, "-t", &name].map(String::from).to_vec()
            }
            Verb::TakeRoot => {
                let digest = self.root_digest.clone();
                self.images.insert(format!("docker.io/library/{name}:latest"), (digest, true));
                ["image", "import", &self.root, "--name", &name].map(String::from).to_vec()
            }
            Verb::RemoveImage => {
                let Some(image) = self.any(true) else { return };
                self.images.entry(image.clone()).and_modify(|(_, may_miss)| *may_miss = true);
                ["image", "remove", &image].map(String::from).to_vec()
            }
            Verb::Gc => {
                self.plant();
                vec!["gc".into()]
            }
            Verb::Export => {
                let _ = std::fs::remove_file(&file);
                ["export", &deep, "-o", &file].map(String::from).to_vec()
            }
            Verb::Import => {
                self.stage.ok(&["export", &deep, "-o", &file]);
                self.snapshots.insert(name.clone(), (deep_digest, true));
                ["import", &file, "--name", &name].map(String::from).to_vec()
            }
            Verb::Merge => {
                self.stage.ok(&["restore", &box_id, &deep]);
                self.write(&name);
                (before, after) = {
                    let now = self.stage.ok(&["digest", &box_id]);
                    (now.clone(), now)
                };
                self.snapshots.insert(name.clone(), (after.clone(), true));
                ["snapshot", &box_id, "--name", &name].map(String::from).to_vec()
            }
            Verb::RemoveSnapshot => {
                let Some(snapshot) = self.any(false) else { return };
                self.snapshots.entry(snapshot.clone()).and_modify(|(_, may_miss)| *may_miss = true);
                ["snapshots", "remove", &snapshot].map(String::from).to_vec()
            }
            Verb::Restore => {
                self.write(&name);
                before = self.stage.ok(&["digest", &box_id]);
                let Some(snapshot) = self.any(false) else { return };
                after = self.snapshots[&snapshot].0.clone();
                ["restore", &box_id, &snapshot].map(String::from).to_vec()
            }
        };
        self.run(verb, &args);
        let shown = format!("{:?}: round {round}: {args:?}", self.stage.house.mode);
        let now = self.stage.ok(&["digest", &box_id]);
        assert!(now == before || now == after, "{shown}: the box is neither as before nor as after");
        self.stage.ok(&["gc"]);
        self.look(&shown);
    }

    /// Runs the program, and kills it somewhere on its way.
    fn run(&mut self, verb: Verb, args: &[String]) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let start = Instant::now();
        let Some(takes) = self.takes.get(&verb) else {
            self.stage.ok(&args);
            self.takes.insert(verb, start.elapsed());
            return;
        };
        let until = takes.mul_f64(self.dice.below(1100) as f64 / 1000.0);
        let mut command = self.stage.house.glass(&args);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started");
        // To wait for a moment is the point here, not a stand-in for an event.
        std::thread::sleep(until);
        let _ = child.kill();
        child.wait().expect("it was started");
    }

    /// Records and layers as they are in the home.
    fn look(&mut self, shown: &str) {
        let (snapshots, images) = (self.records("snapshots", "id"), self.records("images", "name"));
        let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (records, key) in [(&snapshots, "chain"), (&images, "layers")] {
            chains.extend(records.iter().map(|(name, value)| (name.clone(), strings(&value[key]))));
        }
        // What is there by its other name, too.
        let called = |value: &Value| value["name"].as_str().map(str::to_owned);
        for (kind, found, known) in
            [("snapshot", &snapshots, &mut self.snapshots), ("image", &images, &mut self.images)]
        {
            let there = |name: &String| {
                found.contains_key(name) || found.values().any(|value| called(value).as_ref() == Some(name))
            };
            for (name, (_, may_miss)) in known.iter() {
                assert!(*may_miss || there(name), "{shown}: the {kind} {name} is lost");
            }
            known.retain(|name, _| there(name));
            assert_eq!(known.len(), found.len(), "{shown}: {kind}s that nobody made: {found:?}");
        }
        for (records, of_images) in [(self.snapshots.clone(), false), (self.images.clone(), true)] {
            for (name, (digest, new)) in records {
                if new {
                    assert_eq!(self.digest(&name, of_images), digest, "{shown}: {name} shows another tree");
                    let records = if of_images { &mut self.images } else { &mut self.snapshots };
                    records.insert(name, (digest, false));
                }
            }
        }
        self.tidy(chains, shown);
    }

    /// What a record shows, read from its layers and not from what is known of them.
    fn digest(&self, name: &str, is_image: bool) -> String {
        for layer in names(&self.path("layers")) {
            let _ = std::fs::remove_file(self.path("layers").join(layer).join("index"));
        }
        if !is_image {
            return self.stage.ok(&["digest", name]);
        }
        let id = self.stage.ok(&["create", "--image", name]);
        let digest = self.stage.ok(&["digest", &id]);
        self.stage.ok(&["kill", &id]);
        digest
    }

    /// By id, or by name.
    fn records(&self, dir: &str, key: &str) -> BTreeMap<String, Value> {
        let mut records = BTreeMap::new();
        for file in names(&self.path(dir)) {
            assert!(file.ends_with(".json"), "{dir}/{file} is left");
            let text = std::fs::read(self.path(dir).join(&file)).expect("it can be read");
            let value: Value = serde_json::from_slice(&text).expect("a record is JSON");
            records.insert(value[key].as_str().expect("a record has a name").to_owned(), value);
        }
        records
    }

    /// Nothing but what somebody refers to, and that as it was.
    fn tidy(&mut self, chains: BTreeMap<String, Vec<String>>, shown: &str) {
        let mut wanted: BTreeSet<String> = chains.into_values().flatten().collect();
        assert_eq!(names(&self.path("boxes")), [self.stage.id.as_str()], "{shown}");
        let text = std::fs::read(self.path("boxes").join(&self.stage.id).join("box.json")).expect("it lives");
        let value: Value = serde_json::from_slice(&text).expect("a record is JSON");
        assert_eq!(value.get("pending"), None, "{shown}");
        for key in ["chain", "origin", "mounted"] {
            wanted.extend(strings(&value[key]));
        }
        wanted.retain(|name| !name.starts_with("dir:"));
        let there: BTreeSet<String> = names(&self.path("layers")).into_iter().collect();
        assert_eq!(there, wanted, "{shown}: layers that are there, and those that are named");
        self.layers.retain(|name, _| there.contains(name));
        for name in there {
            let layer = self.path("layers").join(&name);
            let known = ["index", "layer.json", "tree"];
            let odd = names(&layer).into_iter().find(|part| !known.contains(&part.as_str()));
            assert_eq!(odd, None, "{shown}: in layer {name}");
            let now = fingerprint(&layer.join("tree"));
            let first = *self.layers.entry(name.clone()).or_insert(now);
            assert_eq!(now, first, "{shown}: layer {name} is not what it was");
        }
        assert_eq!(names(&self.path("incoming")), ["blobs"], "{shown}");
        for dir in ["incoming/blobs", "trash", "names"] {
            assert_eq!(names(&self.path(dir)), [""; 0], "{shown}: {dir}");
        }
        // Of the one directory that is a layer.
        assert!(names(&self.path("indexes")).len() <= 1, "{shown}: {:?}", names(&self.path("indexes")));
        let own = names(&self.path("boxes").join(&self.stage.id));
        assert_eq!(own.iter().filter(|name| name.starts_with("top")).count(), 1, "{shown}: {own:?}");
        assert!(!own.iter().any(|name| name.starts_with("index~")), "{shown}: {own:?}");
    }

    /// Leaves what those leave who are killed: layers that nobody names, work that nobody does, records half written.
    fn plant(&self) {
        for place in
            ["layers/top-left", "layers/sha256-left", "incoming/top-left", "incoming/0left", "trash/left"]
        {
            let tree = self.path(place).join("tree/d");
            std::fs::create_dir_all(&tree).expect("the home is ours");
            for n in 0..FILES {
                std::fs::write(tree.join(n.to_string()), "left").expect("the home is ours");
            }
        }
        for (dir, file) in [
            ("incoming", "export-left"),
            ("incoming", "index-left"),
            ("incoming/blobs", "left"),
            ("images", ".left~"),
            ("snapshots", "left~"),
            ("indexes", "left"),
        ] {
            std::fs::write(self.path(dir).join(file), "").expect("the home is ours");
        }
        for dir in ["layers", "incoming", "trash", "images", "snapshots", "indexes"] {
            give(self.stage.house.mode, &self.path(dir));
        }
    }
}

fn strings(value: &Value) -> Vec<String> {
    let words = value.as_array().into_iter().flatten();
    words.map(|word| word.as_str().expect("a list of names").to_owned()).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Gives what root made to the ordinary user whose home it is in, if it is one.
fn give(mode: Mode, path: &Path) {
    if mode == Mode::Root || !is_root() {
        return;
    }
    lchown(path, Some(ORDINARY), Some(ORDINARY)).expect("root may give files away");
    if path.symlink_metadata().expect("it is there").is_dir() {
        names(path).into_iter().for_each(|name| give(mode, &path.join(name)));
    }
}

/// A number for a tree with all names, modes, sizes and contents.
fn fingerprint(tree: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut todo = vec![tree.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().expect("it is there");
        path.strip_prefix(tree).expect("it is below").as_os_str().as_bytes().hash(&mut hasher);
        (meta.mode(), meta.uid(), meta.gid(), meta.rdev()).hash(&mut hasher);
        if meta.is_dir() {
            todo.extend(names(&path).into_iter().map(|name| path.join(name)));
        } else if meta.is_file() {
            std::fs::read(&path).expect("it can be read").hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[test]
fn whoever_is_killed_at_the_store_loses_nothing_and_leaves_nothing() {
    for mode in Mode::all() {
        let Some(mut store) = Store::new(mode) else { continue };
        for round in 0..crash_rounds(ROUNDS).div_ceil(VERBS.len()) {
            for verb in VERBS {
                store.round(verb, round);
            }
        }
        // All that is on record is what it was, and goes without a trace.
        let records: Vec<_> = store.snapshots.clone().into_iter().collect();
        for (name, (digest, _)) in records {
            assert_eq!(store.digest(&name, false), digest, "{mode:?}: {name}");
            store.stage.ok(&["snapshots", "remove", &name]);
        }
        let records: Vec<_> = store.images.clone().into_iter().collect();
        for (name, (digest, _)) in records {
            assert_eq!(store.digest(&name, true), digest, "{mode:?}: {name}");
            store.stage.ok(&["image", "remove", &name]);
        }
        store.stage.ok(&["kill", &store.stage.id]);
        store.stage.ok(&["gc"]);
        assert_eq!(names(&store.path("layers")), [""; 0], "{mode:?}");
        assert_eq!(names(&store.path("boxes")), [""; 0], "{mode:?}");
    }
}

#[test]
fn what_is_on_its_way_out_already_is_no_hindrance() {
    for mode in Mode::all() {
        let Some(store) = Store::new(mode) else { continue };
        let take = ["image", "import", &store.root, "--name", "again"];
        store.stage.ok(&take);
        let images = store.records("images", "name");
        let layer = strings(&images["docker.io/library/again:latest"]["layers"]).remove(0);
        // Somebody was killed who was removing the same layer.
        let left = store.path("trash").join(&layer);
        std::fs::create_dir_all(left.join("tree")).expect("the home is ours");
        give(mode, &left);
        store.stage.ok(&["image", "remove", "again"]);
        assert!(!names(&store.path("layers")).contains(&layer), "{mode:?}");
        store.stage.ok(&["gc"]);
        assert_eq!(names(&store.path("trash")), [""; 0], "{mode:?}");
    }
}

/// A tree on its way out that takes a while to remove.
fn litter(house: &House) -> PathBuf {
    assert_eq!(house.run(&["list"]).0, 0, "{:?}: a home can be made", house.mode);
    let tree = house.home().join("trash/left");
    std::fs::create_dir(&tree).expect("the home is ours");
    for n in 0..LITTER_FILES {
        std::fs::write(tree.join(n.to_string()), "").expect("the home is ours");
    }
    give(house.mode, &tree);
    tree
}

/// Somebody who cleans up.
fn cleaner(house: &House) -> Child {
    let silent = house.glass(&["gc"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    silent.expect("the program can be started")
}

#[test]
fn who_stands_still_while_he_empties_the_trash_holds_up_nobody() {
    for mode in Mode::all() {
        let house = House::new(mode);
        let tree = litter(&house);
        let mut gc = cleaner(&house);
        let pidfd = process::open(gc.id() as i32).expect("it is our child");
        while names(&tree).len() == LITTER_FILES {}
        process::signal(pidfd.as_fd(), Signal::STOP.as_raw()).expect("it is ours to stop");
        assert_ne!(names(&tree), [""; 0], "{mode:?}: it was to be stopped in the middle");
        let mut list = house.glass(&["list"]).stdout(Stdio::null()).spawn().expect("it can be started");
        let other = process::open(list.id() as i32).expect("it is our child");
        let answered = process::wait_end(other.as_fd(), ANSWER_MAX).expect("it can be waited for");
        let _ = (gc.kill(), list.kill());
        let _ = (gc.wait(), list.wait());
        assert!(answered, "{mode:?}: who lists boxes waits for who empties the trash");
        // It was killed in the middle: the next one goes on.
        assert_eq!(house.run(&["gc"]).0, 0, "{mode:?}");
        assert_eq!(names(&house.home().join("trash")), [""; 0], "{mode:?}");
    }
}

#[test]
fn two_who_empty_the_trash_at_once_both_succeed() {
    for mode in Mode::all() {
        let house = House::new(mode);
        litter(&house);
        for mut gc in [cleaner(&house), cleaner(&house)] {
            assert!(gc.wait().expect("it can be waited for").success(), "{mode:?}");
        }
        assert_eq!(names(&house.home().join("trash")), [""; 0], "{mode:?}");
    }
}
