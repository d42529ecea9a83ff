//! What somebody at a terminal sees of a pull.

use std::process::Command;

use crate::registry::Registry;
use crate::workshop::Workshop;
use crate::{each_mode, ok};

#[test]
fn a_pull_shows_a_line_for_each_layer_on_a_terminal_and_nothing_elsewhere() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.debian("one");
        registry.push(&workshop, "one", "debian", &[]);
        let name = registry.name("debian:latest");
        // The same as the program would be started, in a terminal of script's making.
        let plain = house.glass(&["image", "pull", &name]);
        let words =
            [plain.get_program().to_string_lossy().into_owned(), format!("image pull {name}")].join(" ");
        let environment: Vec<_> =
            plain.get_envs().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))).collect();
        let mut script = Command::new("/usr/bin/script");
        script.args(["-qec", &words, "/dev/null"]).env_clear().envs(environment).env("TERM", "xterm");
        if house.mode == glasshouse_tests::Mode::Rootless && glasshouse_tests::is_root() {
            use std::os::unix::process::CommandExt as _;
            script.uid(glasshouse_tests::ORDINARY).gid(glasshouse_tests::ORDINARY);
        }
        let output = script.output().expect("script can be started");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        for digest in registry.layers("debian") {
            let short = &digest["sha256:".len()..][..12];
            assert!(said.contains(short), "{short}: {said:?}");
        }
        assert!(said.contains("done") && said.contains(&name), "{said:?}");
        ok(house, &["image", "remove", &name]);
        let (code, stdout, stderr) = house.run(&["image", "pull", &name]);
        assert_eq!((code, stdout.trim_end(), &*stderr), (0, &*name, ""));
    });
}
