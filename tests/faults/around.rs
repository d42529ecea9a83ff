//! What can be wrong around the plan: the disk, the home, the image, the rights and the limits of whoever calls.
//!
//! Where something runs out (files, descriptors, processes), every amount from far too little to enough is tried, so
//! that each use of it fails once. Each time: one clear sentence, an exit code that says so, and nothing left.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use glasshouse_tests::leaks::Leaks;
use glasshouse_tests::{House, Mode, ORDINARY, is_root, skip};

use crate::{alone, nothing_left, tell};

/// What came of a command.
#[derive(Debug)]
struct Outcome {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Outcome {
    fn of(command: &mut Command) -> Outcome {
        Outcome::from(command.output().expect("it can be started"))
    }

    fn from(output: Output) -> Outcome {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        Outcome { code, stdout: text(&output.stdout), stderr: text(&output.stderr) }
    }

    /// It failed: in one sentence with one of these words, and with nothing on stdout.
    #[track_caller]
    fn refused(&self, words: &[&str]) {
        assert!(self.code > 0 && self.code <= 125 && self.code != 101, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let sentence = self.stderr.strip_prefix("glass: ").and_then(|rest| rest.strip_suffix('\n'));
        let sentence = sentence.unwrap_or_else(|| panic!("no sentence of ours: {self:?}"));
        assert!(!sentence.contains('\n') && !sentence.contains("panicked"), "{self:?}");
        // The kernel's bare words do not say what was tried, nor on what.
        assert!(sentence.split(' ').count() > 7, "{self:?}");
        assert!(words.iter().any(|word| sentence.contains(word)), "none of {words:?} in {self:?}");
    }
}

/// A house, and what was there before it was used.
struct Site {
    house: House,
    before: Leaks,
    uid: u32,
}

impl Site {
    fn new(mode: Mode) -> Site {
        let house = House::new(mode);
        let before = Leaks::now(&house.home());
        Site { house, before, uid: ORDINARY }
    }

    /// The same after the image's layer was made.
    fn used(self) -> Site {
        let made = self.through("$GLASS run -- true");
        assert_eq!(made.code, 0, "{made:?}");
        Site { before: Leaks::now(&self.house.home()), ..self }
    }

    /// A script that changes the surroundings and then starts `$GLASS`, which is the program as the site's user.
    fn through(&self, script: &str) -> Outcome {
        Outcome::of(&mut self.shell(script))
    }

    /// The same in a user namespace that has all ids, and all rights in it.
    fn in_user_namespace(&self, script: &str) -> Outcome {
        let script = format!("exec unshare --user --keep-caps sh -c 'echo ready; read go; {script}'");
        let mut command = self.shell(&script);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("sh can be started");
        let mut ready = [0; 6];
        child.stdout.as_mut().expect("asked for").read_exact(&mut ready).expect("it says when it is there");
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{}/{map}", child.id()), "0 0 4294967295")
                .expect("root may map all ids");
        }
        child.stdin.as_mut().expect("asked for").write_all(b"go\n").expect("it waits for that");
        Outcome::from(child.wait_with_output().expect("it is our child"))
    }

    fn shell(&self, script: &str) -> Command {
        let (mut become_user, mut owner) = (String::new(), "0".to_owned());
        let glass = self.house.path().join("glass");
        if self.house.mode == Mode::Rootless && is_root() {
            owner = self.uid.to_string();
            become_user = format!("setpriv --reuid {owner} --regid {owner} --clear-groups");
        }
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .current_dir("/")
            .env_clear()
            .env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command.env("GLASSHOUSE_HOME", self.house.home()).env("OWNER", owner);
        command.env("GLASS", format!("{become_user} {}", glass.display()));
        command
    }

    #[track_caller]
    fn nothing_left(&self, after: &str) {
        nothing_left(&self.before, &self.house.home(), after);
    }

    /// An image without anything in it.
    fn empty_image(&self) -> String {
        let path = self.house.path().join("image");
        std::fs::create_dir_all(&path).expect("the house is ours");
        format!("dir:{}", path.display())
    }
}

/// Modes in which the surroundings can be changed: both, for root.
fn modes() -> Vec<Mode> {
    if !is_root() {
        skip("native-root", "only root can mount a small disk and change limits for others");
        return Vec::new();
    }
    Mode::all()
}

/// Creates with a disk of its own for the home, in a mount namespace that goes with the script. A box that came of it
/// is removed, and what is left then is said on stdout.
fn on_a_disk(options: &str, create: &str) -> String {
    format!(
        "exec unshare --mount sh -c '
            mount -t tmpfs -o mode=0700,uid=$OWNER,gid=$OWNER,{options} none $GLASSHOUSE_HOME || exit 99
            $GLASS create {create}; code=$?
            if [ $code = 0 ]; then $GLASS --quiet kill --all >/dev/null || exit 98; fi
            cd $GLASSHOUSE_HOME; find boxes trash uids names -mindepth 1 2>/dev/null
            exit $code'"
    )
}

/// Tries all amounts. How many were refused, and how many were enough.
fn sweep(amounts: impl Iterator<Item = u64>, mut attempt: impl FnMut(u64) -> bool) -> (usize, usize) {
    let (enough, refused): (Vec<u64>, Vec<u64>) = amounts.partition(|amount| attempt(*amount));
    assert!(!enough.is_empty() && !refused.is_empty(), "refused with {refused:?}, enough with {enough:?}");
    (refused.len(), enough.len())
}

#[test]
fn a_full_disk_is_told_and_leaves_nothing() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode);
        let image = site.empty_image();
        let attempt = |files: u64| {
            let outcome =
                site.through(&on_a_disk(&format!("nr_inodes={files}"), &format!("--image {image}")));
            site.nothing_left(&format!("a disk of {files} files ({mode:?})"));
            full_or_made(&outcome)
        };
        // Beginning with the home's own directories: 2 is the least that can be mounted.
        let (refused, enough) = sweep(2..40, attempt);
        tell(&format!(
            "{mode:?}: create failed cleanly on {refused} disks with too few files, {enough} had enough"
        ));
        let attempt = |bytes: u64| {
            let outcome = site.through(&on_a_disk(&format!("size={bytes}"), ""));
            site.nothing_left(&format!("a disk of {bytes} bytes ({mode:?})"));
            full_or_made(&outcome)
        };
        // The image `host` is copied to the disk first.
        sweep([4 << 10, 64 << 10, 256 << 10, 64 << 20].into_iter(), attempt);
    }
}

#[track_caller]
fn full_or_made(outcome: &Outcome) -> bool {
    if outcome.code == 0 {
        assert_eq!(outcome.stdout.trim().len(), 10, "an id, and nothing left: {outcome:?}");
        return true;
    }
    outcome.refused(&["No space left", "is full"]);
    false
}

#[test]
fn a_home_that_cannot_be_written_is_told() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode);
        let read_only = "mount --bind $GLASSHOUSE_HOME $GLASSHOUSE_HOME && \
            mount -o remount,bind,ro $GLASSHOUSE_HOME || exit 99; $GLASS";
        let words = ["Read-only", "read-only"];
        for args in ["create", "run -- true", "gc", "kill nothing"] {
            site.through(&format!("unshare --mount sh -c '{read_only} {args}'")).refused(&words);
            site.nothing_left(&format!("{args} in an empty read-only home"));
        }
        let site = site.used();
        for args in ["create", "run -- true"] {
            site.through(&format!("unshare --mount sh -c '{read_only} {args}'")).refused(&words);
            site.nothing_left(&format!("{args} in a read-only home that was used before"));
        }
    }
}

#[test]
fn a_home_of_somebody_else_is_told() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode);
        let file = site.house.path().join("file");
        std::fs::write(&file, "").unwrap();
        site.through(&format!("$GLASS --home {} create", file.display())).refused(&[
            "Not a directory",
            "not a directory",
            "File exists",
        ]);
        site.nothing_left("a home that is a file");
        if mode == Mode::Rootless {
            let closed = site.house.path().join("closed");
            std::fs::create_dir(&closed).unwrap();
            for home in [closed.clone(), closed.join("below")] {
                site.through(&format!("$GLASS --home {} create", home.display()))
                    .refused(&["Permission denied"]);
            }
            assert_eq!(std::fs::read_dir(closed).unwrap().count(), 0);
            site.nothing_left("a home of root's");
        }
    }
}

#[test]
fn an_image_that_is_not_there_is_told() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode);
        let path = |name: &str| -> PathBuf { site.house.path().join(name) };
        std::fs::write(path("file"), "").unwrap();
        let refuse = |image: &Path, word: &str| {
            for command in ["create", "run"] {
                let script = format!("$GLASS {command} --image dir:{} -- true", image.display());
                site.through(script.trim_end_matches(if command == "create" { " -- true" } else { "" }))
                    .refused(&[word]);
                site.nothing_left(&format!("{command} with image {}", image.display()));
            }
        };
        refuse(&path("missing"), "No such file");
        refuse(&path("file"), "not a directory");
        if mode == Mode::Rootless {
            std::fs::create_dir(path("closed")).unwrap();
            let closed = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o700);
            std::fs::set_permissions(path("closed"), closed).unwrap();
            refuse(&path("closed"), "Permission denied");
        }
    }
}

#[test]
fn a_kernel_that_refuses_namespaces_is_told() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode);
        for args in ["create", "run -- true"] {
            let outcome =
                site.in_user_namespace(&format!("echo 0 >/proc/sys/user/max_user_namespaces; $GLASS {args}"));
            outcome.refused(&["namespaces"]);
            assert!(outcome.stderr.contains("max_user_namespaces"), "it says what to do: {outcome:?}");
            site.nothing_left(&format!("{args} without namespaces ({mode:?})"));
        }
    }
}

#[test]
fn root_of_a_namespace_with_one_id_is_served_or_told() {
    if !modes().contains(&Mode::Root) {
        return;
    }
    let _turn = alone();
    let site = Site::new(Mode::Root);
    let outcome = site.through("exec unshare --user --map-root-user $GLASS run -- true");
    if outcome.code != 0 {
        outcome.refused(&["range of uids", "uid_map"]);
    }
    site.nothing_left("a root with one id");
}

#[test]
fn too_few_descriptors_are_told() {
    for mode in modes() {
        let _turn = alone();
        let site = Site::new(mode).used();
        // Below 4 it is the loader that fails, before any line of ours.
        let counts = (4..40).chain([64, 256]);
        let (refused, enough) = sweep(counts, |count| {
            let outcome = site.through(&format!("exec prlimit --nofile={count}:{count} $GLASS run -- true"));
            site.nothing_left(&format!("{count} descriptors ({mode:?})"));
            if outcome.code != 0 {
                outcome.refused(&["open files"]);
            }
            outcome.code == 0
        });
        tell(&format!(
            "{mode:?}: run failed cleanly with {refused} limits of descriptors, {enough} were enough"
        ));
    }
}

#[test]
fn too_few_processes_are_told() {
    if !modes().contains(&Mode::Rootless) {
        return;
    }
    let _turn = alone();
    // A user who has no process yet, whoever else runs tests here.
    let site = Site { uid: ORDINARY + 1, ..Site::new(Mode::Rootless) };
    std::os::unix::fs::chown(site.house.home(), Some(site.uid), Some(site.uid)).unwrap();
    let site = site.used();
    let (refused, enough) = sweep(1..16, |count| {
        let outcome = site.through(&format!("exec prlimit --nproc={count}:{count} $GLASS run -- true"));
        site.nothing_left(&format!("{count} processes"));
        if outcome.code != 0 {
            outcome.refused(&["processes", "temporarily unavailable"]);
        }
        outcome.code == 0
    });
    tell(&format!("run failed cleanly with {refused} limits of processes, {enough} were enough"));
}

#[test]
fn hard_limits_of_the_caller_are_kept() {
    if !modes().contains(&Mode::Rootless) {
        return;
    }
    let _turn = alone();
    let site = Site { uid: ORDINARY + 1, ..Site::new(Mode::Rootless) };
    std::os::unix::fs::chown(site.house.home(), Some(site.uid), Some(site.uid)).unwrap();
    for (option, show, value) in [("nproc", "-u", 500), ("data", "-d", 1 << 30), ("nofile", "-n", 300)] {
        let script = format!("exec prlimit --{option}={value}:{value} $GLASS run -- bash -c 'ulimit {show}'");
        let outcome = site.through(&script);
        let shown = if show == "-d" { value / 1024 } else { value };
        assert_eq!(
            (outcome.code, outcome.stdout.trim()),
            (0, shown.to_string().as_str()),
            "{option}: {outcome:?}"
        );
        site.nothing_left(option);
    }
}
