//! The guest is one small static program that runs in any root, an empty one included.

use crate::{create, each_mode};

/// Far above what it is; a guest that grows past this has swallowed something.
const SIZE_MAX: usize = 4 << 20;
/// Resident, idle, in an empty root.
const RESIDENT_MAX: u64 = 4 << 20;

#[test]
fn the_embedded_guest_is_a_static_program() {
    let program = glasshouse_sandbox::guest_program();
    assert_eq!(&program[..5], b"\x7fELF\x02", "a 64-bit ELF file");
    let field = |at: usize, size: usize| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&program[at..at + size]);
        u64::from_le_bytes(bytes) as usize
    };
    let (headers, size, count) = (field(0x20, 8), field(0x36, 2), field(0x38, 2));
    let kinds: Vec<usize> = (0..count).map(|n| field(headers + n * size, 4)).collect();
    // PT_INTERP names a loader, PT_DYNAMIC what it would have to load.
    assert!(!kinds.contains(&3), "it asks for an interpreter");
    assert!(!kinds.contains(&2), "it asks for libraries");
    println!("guest: {} bytes", program.len());
    assert!(program.len() < SIZE_MAX, "{} bytes", program.len());
}

#[test]
fn a_box_of_an_empty_directory_lives_and_runs_a_static_program() {
    each_mode(|house| {
        let root = house.path().join("empty");
        std::fs::create_dir(&root).unwrap();
        let id = create(house, &["--image", &format!("dir:{}", root.display())]);
        // The guest itself is the nearest static program: without a plan it says so and ends with 2.
        let local = house.path().join("program");
        std::fs::write(&local, glasshouse_sandbox::guest_program()).unwrap();
        let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(&local, open).unwrap();
        let (code, _, stderr) = house.run(&["cp", &local.display().to_string(), &format!("{id}:/program")]);
        assert_eq!(code, 0, "{stderr}");
        let (code, _, stderr) = house.run(&["exec", &id, "--", "/program"]);
        assert!(code == 2 && stderr.contains("plan"), "{code} {stderr}");
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0, "the image is not written");
        let (_, info, _) = house.run(&["info", &id, "--json"]);
        let pid = crate::json(&info)["pid"].as_u64().expect("the box has a first process");
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        let resident = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap() * 4096;
        println!("guest: {resident} bytes resident, idle, {:?}", house.mode);
        assert!(resident < RESIDENT_MAX, "{resident} bytes resident");
    });
}
