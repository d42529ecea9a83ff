//! Where homes, images and volumes lie, and the places that they are given in a box.

use std::path::Path;

use glasshouse_tests::{House, Mode, ORDINARY, is_root};

/// Runs the program, which may give boxes what lies below this directory. It has to succeed.
#[track_caller]
fn ok(house: &House, allowed: &Path, args: &[&str]) -> String {
    let output = house.glass(args).env("GLASSHOUSE_VOLUMES", allowed).output().expect("it can be started");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}: {args:?}: {told}", house.mode);
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// A directory that everybody may write to, and that is the mode's user's.
fn directory(house: &House, below: &Path, name: &str) -> String {
    let path = below.join(name);
    std::fs::create_dir(&path).expect("it is ours");
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o777);
    std::fs::set_permissions(&path, open).expect("it is ours");
    if house.mode == Mode::Rootless && is_root() {
        std::os::unix::fs::chown(&path, Some(ORDINARY), Some(ORDINARY)).expect("root may give it away");
    }
    path.to_str().expect("it is UTF-8").to_owned()
}

/// What builds a box mounts something of its own for a moment; it must not cover what the box is made of.
#[test]
fn homes_images_and_volumes_may_lie_below_tmp() {
    for mode in Mode::all() {
        let below = tempfile::tempdir_in("/tmp").expect("/tmp can be written");
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(below.path(), open).expect("it is ours");
        let house = House::on(mode, Some(below.path()));
        let (volume, image) = (directory(&house, below.path(), "v"), directory(&house, below.path(), "i"));
        std::fs::create_dir(format!("{image}/bin")).expect("it is ours");
        std::fs::copy("/bin/busybox", format!("{image}/bin/sh")).expect("busybox is installed");
        let (image, volume) = (format!("dir:{image}"), format!("{volume}:/data"));
        let kinds = [vec![], vec!["--image", &image], vec!["--deterministic"]];
        for (n, options) in kinds.iter().enumerate() {
            let make = [&["create", "--volume", volume.as_str()], &options[..]].concat();
            let id = ok(&house, below.path(), &make);
            for _ in 0..2 {
                let line = format!("echo x > /data/{n} && read x < /data/{n} && echo $x");
                let said = ok(&house, below.path(), &["exec", &id, "--", "sh", "-c", &line]);
                assert_eq!(said, "x", "{mode:?}");
                ok(&house, below.path(), &["reset", &id, "--verify"]);
            }
            ok(&house, below.path(), &["kill", &id]);
        }
    }
}

/// Where the image has no directory for a volume, the box has one that it did not make.
#[test]
fn the_place_of_a_volume_is_nobodys_change() {
    for house in Mode::all().into_iter().map(House::new) {
        let (mode, allowed) = (house.mode, house.path());
        let volume = format!("{}:/srv/a/b", directory(&house, allowed, "v"));
        let id = ok(&house, allowed, &["create", "--record", "steps", "--volume", &volume]);
        assert_eq!(ok(&house, allowed, &["diff", &id]), "", "{mode:?}");
        for name in ["x", "y"] {
            ok(&house, allowed, &["exec", &id, "--", "touch", name]);
        }
        assert!(
            ok(&house, allowed, &["replay", "--of", &id, "--volume", &volume]).starts_with("the same, 2"),
            "{mode:?}"
        );
        ok(&house, allowed, &["jump", &id, "1"]);
        assert_eq!(ok(&house, allowed, &["exec", &id, "--", "ls"]), "x", "{mode:?}");
        assert_eq!(ok(&house, allowed, &["diff", &id]), "A /workspace/x", "{mode:?}");
        // A box of its state that is given no volume has no place for one.
        let snapshot = ok(&house, allowed, &["snapshot", &id]);
        let plain = ok(&house, allowed, &["create", "--image", &format!("snapshot:{snapshot}")]);
        let look = ["exec", &plain, "--shell", "--", "test -e /srv/a || echo none"];
        assert_eq!(ok(&house, allowed, &look), "none", "{mode:?}");
    }
}
