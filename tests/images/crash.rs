//! Pulls that are killed at random moments: what is there is whole, what is not leaves nothing, and the next one gets it all.

use std::process::Stdio;
use std::time::{Duration, Instant};

use glasshouse_tests::{House, crash_rounds};

use crate::pull::noise;
use crate::registry::Registry;
use crate::workshop::Workshop;
use crate::{each_mode, names, ok};

/// Rounds for each mode. `CRASH_ROUNDS` says otherwise.
const ROUNDS: usize = 12;
/// Layers of the image, each of so many bytes.
const LAYERS: usize = 3;
const LAYER_BYTES: u64 = 1 << 20;

/// Nothing but what the image needs; what was downloaded of it may wait for the next pull.
fn tidy(house: &House, round: u32) -> usize {
    assert_eq!(names(house, "incoming"), ["blobs"], "round {round}");
    assert_eq!(names(house, "trash"), [""; 0], "round {round}");
    let images = names(house, "images");
    assert!(images.iter().all(|name| name.ends_with(".json")), "round {round}: {images:?}");
    assert_eq!(names(house, "layers").len(), images.len() * LAYERS, "round {round}: {images:?}");
    images.len()
}

#[test]
fn a_pull_that_is_killed_is_all_or_nothing() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.new_image("one");
        for n in 0..LAYERS {
            let tree = workshop.tree(&format!("tree{n}"));
            noise(&tree.join(format!("noise{n}")), LAYER_BYTES);
            workshop.add("one", &tree, "/");
        }
        registry.push(&workshop, "one", "noise", &[]);
        let name = registry.name("noise");
        let pull = ["image", "pull", &name];
        let start = Instant::now();
        ok(house, &pull);
        let whole = start.elapsed();
        // A walk through all moments. To wait for one is the point here, not a stand-in for an event.
        let rounds = u32::try_from(crash_rounds(ROUNDS)).expect("a few");
        for round in 0..rounds {
            ok(house, &["image", "remove", &name]);
            assert_eq!((tidy(house, round), names(house, "incoming/blobs").len()), (0, 0));
            let mut command = house.glass(&pull);
            let mut child =
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it can be started");
            std::thread::sleep(Duration::from_secs_f64(
                whole.as_secs_f64() * f64::from(round) / f64::from(rounds),
            ));
            let _ = child.kill();
            child.wait().expect("it was started");
            ok(house, &["gc"]);
            let there = tidy(house, round);
            if there == 1 {
                // By its digest: every layer is what the registry has.
                let trees =
                    names(house, "layers").into_iter().map(|layer| house.home().join("layers").join(layer));
                let bytes: u64 = trees.map(|layer| tree_bytes(&layer.join("tree"))).sum();
                assert_eq!(bytes, LAYER_BYTES * LAYERS as u64, "round {round}");
            }
            ok(house, &pull);
            assert_eq!((tidy(house, round), names(house, "incoming/blobs").len()), (1, 0), "round {round}");
        }
    });
}

fn tree_bytes(tree: &std::path::Path) -> u64 {
    let files = std::fs::read_dir(tree).expect("it is a directory");
    files.map(|file| file.and_then(|file| file.metadata()).expect("it is there").len()).sum()
}
