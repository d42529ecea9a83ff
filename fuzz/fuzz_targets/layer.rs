//! Whatever a layer is, it is unpacked or refused, and nothing is written but where it was to go.

#![no_main]

use std::fs::{self, File};
use std::os::fd::AsFd as _;

use glasshouse_linux::archive;
use glasshouse_linux::unpack::{Bounds, Chain, Owners, Shape, unpack};
use libfuzzer_sys::fuzz_target;

/// Enough for any shape, and little for a disk.
const BOUNDS: Bounds = Bounds { bytes: 1 << 20, entries: 1000, except: &[], shape: Shape::IMAGE, deletions: true };

fuzz_target!(|bytes: &[u8]| {
    let dir = tempfile::tempdir().expect("there is room for temporary files");
    let outside = dir.path().join("outside");
    fs::write(&outside, "untouched").expect("it is ours");
    for name in ["below", "layer", "tree"] {
        fs::create_dir(dir.path().join(name)).expect("it is ours");
    }
    fs::create_dir(dir.path().join("below/dir")).expect("it is ours");
    fs::write(dir.path().join("below/file"), "below").expect("it is ours");
    std::os::unix::fs::symlink("../../outside", dir.path().join("below/link")).expect("it is ours");
    let open = |name: &str| File::open(dir.path().join(name)).expect("it is there");
    let chain = Chain::new(vec![open("below").into()], c"user.overlay.opaque");
    let _ = unpack(bytes, open("layer").as_fd(), &chain, Owners::Ours, BOUNDS);
    let _ = archive::unpack_at_most(bytes, open("tree").as_fd(), BOUNDS.bytes);
    assert_eq!(fs::read(&outside).expect("it is there"), b"untouched");
    assert_eq!(fs::read_dir(dir.path()).expect("it is ours").count(), 4, "something was written outside");
    assert_eq!(fs::read(dir.path().join("below/file")).expect("it is there"), b"below");
});
