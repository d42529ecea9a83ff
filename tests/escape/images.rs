//! Images that somebody hostile made: directories whose `dev`, `proc` and the like are links to elsewhere. (6.1: 34.)

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use glasshouse_tests::Mode;

use crate::attacker::{Attacker, probe};

/// Everything about a directory that a mount, a file or a mode in it would change.
fn look(dir: &Path) -> Vec<String> {
    let mut seen: Vec<String> = std::fs::read_dir(dir)
        .expect("it is ours")
        .map(|entry| format!("{:?}", entry.expect("an entry").file_name()))
        .collect();
    seen.sort();
    seen.push(format!("{:o}", std::fs::metadata(dir).expect("it is ours").permissions().mode()));
    seen
}

/// An image with only the probe in it.
fn image(dir: &Path, probe: &Path) {
    for name in ["", "tmp", "bin"] {
        std::fs::create_dir_all(dir.join(name)).expect("it is ours");
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    std::fs::copy(probe, dir.join("bin/probe")).expect("it is ours");
}

#[test]
fn links_in_an_image_do_not_lead_mounts_outside() {
    let Some(program) = probe() else { return };
    for mode in Mode::all() {
        let Some(attacker) = Attacker::new(mode, "root", &[]) else { continue };
        let outside = attacker.house.path().join("outside");
        let _ = std::fs::remove_dir_all(&outside);
        std::fs::create_dir(&outside).expect("the house is ours");
        std::fs::write(outside.join("file"), "before").expect("it is ours");
        let before = look(&outside);
        let up = "../".repeat(20);
        let targets = [
            outside.to_string_lossy().into_owned(),
            format!("{up}{}", &outside.to_string_lossy()[1..]),
            "/etc".into(),
            "..".into(),
            "/proc/self/root".into(),
        ];
        for name in
            ["dev", "proc", "sys", "tmp", "etc", "usr", "dev/pts", "dev/shm", "dev/null", "etc/resolv.conf"]
        {
            for target in &targets {
                let dir = attacker.house.path().join("image");
                let _ = std::fs::remove_dir_all(&dir);
                image(&dir, program);
                if let Some((above, _)) = name.split_once('/') {
                    std::fs::create_dir(dir.join(above)).expect("it is ours");
                }
                let _ = std::fs::remove_dir(dir.join(name));
                symlink(target, dir.join(name)).expect("it is ours");
                let from = format!("dir:{}", dir.display());
                let args =
                    ["run", "--image", &from, "--user", "root", "--cwd", "/", "--", "/bin/probe", "facts"];
                let ran = attacker.glass(&args);
                assert_eq!(look(&outside), before, "{}: {name} -> {target}: {ran:?}", attacker.name());
                assert_eq!(std::fs::read(outside.join("file")).ok().as_deref(), Some(&b"before"[..]));
                // Either it runs, all of it inside, or it is refused in a sentence.
                let refused = ran.code == 125 && ran.err.lines().count() == 1;
                assert!(refused || ran.code == 0, "{}: {name} -> {target}: {ran:?}", attacker.name());
                let link = std::fs::read_link(dir.join(name)).expect("the image is as it was");
                assert_eq!(link, Path::new(target));
            }
        }
    }
}

#[test]
fn an_image_is_never_written() {
    let Some(program) = probe() else { return };
    for mode in Mode::all() {
        let Some(attacker) = Attacker::new(mode, "root", &[]) else { continue };
        let dir = attacker.house.path().join("kept");
        let _ = std::fs::remove_dir_all(&dir);
        image(&dir, program);
        let before = [look(&dir), look(&dir.join("bin")), look(&dir.join("tmp"))];
        let from = format!("dir:{}", dir.display());
        let run = |words: &[&str]| {
            let args = ["run", "--image", &from, "--user", "root", "--cwd", "/", "--", "/bin/probe"];
            attacker.glass(&[&args[..], words].concat())
        };
        let made = run(&["writes", "/bin", "/tmp"]);
        assert!(made.out.contains("tried"), "{}: {made:?}", attacker.name());
        run(&["exhaust", "inodes", "/nowhere"]);
        assert_eq!(
            [look(&dir), look(&dir.join("bin")), look(&dir.join("tmp"))],
            before,
            "{}",
            attacker.name()
        );
        assert_eq!(std::fs::read(dir.join("bin/probe")).ok(), std::fs::read(program).ok());
    }
}
