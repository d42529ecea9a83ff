//! Pulls that are killed or stopped in the middle, and go on.

use std::process::Stdio;

use glasshouse_tests::House;

use crate::proxy::Proxy;
use crate::pull::noise;
use crate::registry::Registry;
use crate::workshop::Workshop;
use crate::{assert_nothing_half, each_mode, names, ok, wait_until};

/// One large layer, of which the first half passes.
const LAYER_BYTES: u64 = 8 << 20;
const PASSED_BYTES: u64 = 4 << 20;
/// Headers and documents, and what was on its way.
const SLACK_BYTES: u64 = 128 << 10;

fn part_bytes(house: &House) -> u64 {
    let parts = names(house, "incoming/blobs");
    parts
        .iter()
        .map(|name| std::fs::metadata(house.home().join("incoming/blobs").join(name)).map_or(0, |m| m.len()))
        .sum()
}

/// Starts a pull that stands still in the middle.
fn stuck(house: &House, registry: &Registry, proxy: &Proxy) -> std::process::Child {
    let workshop = Workshop::new(house);
    workshop.new_image("one");
    let tree = workshop.tree("noise");
    noise(&tree.join("noise"), LAYER_BYTES);
    workshop.add("one", &tree, "/");
    registry.push(&workshop, "one", "noise", &[]);
    proxy.stop_after(PASSED_BYTES);
    let mut command = house.glass(&["image", "pull", &proxy.name("noise")]);
    let pull = command.stderr(Stdio::piped()).spawn().expect("the program can be started");
    wait_until("half of the layer", || proxy.is_stopped() && part_bytes(house) >= PASSED_BYTES - SLACK_BYTES);
    pull
}

fn goes_on(house: &House, proxy: &Proxy) {
    let have = part_bytes(house);
    assert!(have >= PASSED_BYTES - SLACK_BYTES, "{have} bytes were kept");
    assert_nothing_half(house);
    proxy.go_on();
    ok(house, &["image", "pull", &proxy.name("noise")]);
    let rest = LAYER_BYTES - have;
    assert!(proxy.bytes() < rest + SLACK_BYTES, "{} bytes for the {rest} that were missing", proxy.bytes());
    assert_eq!(names(house, "incoming/blobs"), Vec::<String>::new());
    assert_eq!(names(house, "layers").len(), 1);
}

#[test]
fn a_pull_that_was_killed_goes_on_where_it_stopped() {
    each_mode(|house| {
        let registry = Registry::new();
        let proxy = Proxy::new(&registry.address);
        let mut pull = stuck(house, &registry, &proxy);
        pull.kill().expect("it is ours");
        pull.wait().expect("it is ours");
        // It had no time to clean up. The next one finds what is left, and does not take it for work.
        ok(house, &["gc"]);
        goes_on(house, &proxy);
    });
}

#[test]
fn a_pull_that_is_stopped_by_hand_leaves_nothing_half() {
    each_mode(|house| {
        let registry = Registry::new();
        let proxy = Proxy::new(&registry.address);
        let pull = stuck(house, &registry, &proxy);
        let pid = glasshouse_linux::rustix::process::Pid::from_child(&pull);
        glasshouse_linux::rustix::process::kill_process(pid, glasshouse_linux::rustix::process::Signal::INT)
            .expect("it is ours");
        let output = pull.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(130));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("goes on with what was downloaded"), "{said}");
        goes_on(house, &proxy);
    });
}

#[test]
fn a_connection_that_breaks_is_taken_up_again() {
    each_mode(|house| {
        let registry = Registry::new();
        let proxy = Proxy::new(&registry.address);
        let workshop = Workshop::new(house);
        workshop.new_image("one");
        let tree = workshop.tree("noise");
        noise(&tree.join("noise"), LAYER_BYTES);
        workshop.add("one", &tree, "/");
        registry.push(&workshop, "one", "noise", &[]);
        proxy.cut_after(PASSED_BYTES);
        ok(house, &["image", "pull", &proxy.name("noise")]);
        assert!(proxy.connections() >= 2, "it was broken off");
        let most = LAYER_BYTES + (1 << 20) + SLACK_BYTES;
        assert!(proxy.bytes() < most, "{} bytes: it began anew", proxy.bytes());
    });
}

#[test]
fn what_was_damaged_on_our_disk_is_fetched_again() {
    each_mode(|house| {
        let registry = Registry::new();
        let proxy = Proxy::new(&registry.address);
        let mut pull = stuck(house, &registry, &proxy);
        pull.kill().expect("it is ours");
        pull.wait().expect("it is ours");
        let part = house.home().join("incoming/blobs").join(&names(house, "incoming/blobs")[0]);
        let mut bytes = std::fs::read(&part).expect("it is ours");
        bytes[1000] ^= 1;
        std::fs::write(&part, bytes).expect("it is ours");
        proxy.go_on();
        ok(house, &["image", "pull", &proxy.name("noise")]);
        assert!(proxy.bytes() > LAYER_BYTES, "all of it came anew");
    });
}
