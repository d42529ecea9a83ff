//! Pulling from a registry: every kind of layer and index, and nothing that is not what it says.

use glasshouse_tests::{is_root, skip, trees};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::proxy::Proxy;
use crate::registry::Registry;
use crate::workshop::{Workshop, tool};
use crate::{assert_nothing_half, each_mode, names, ok, refused, wait_until};

fn inspect(house: &glasshouse_tests::House, name: &str) -> Value {
    serde_json::from_str(&ok(house, &["image", "inspect", name, "--json"])).expect("it is JSON")
}

#[test]
fn an_image_is_pulled_and_run_as_it_wants_to_be() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.debian("one");
        registry.push(&workshop, "one", "debian:one", &[]);
        let name = registry.name("debian:one");
        assert_eq!(ok(house, &["image", "pull", &name]).trim_end(), name);
        // Its own command, user, directory and environment.
        let release = std::fs::read_to_string("/etc/os-release").expect("every system has one");
        assert_eq!(ok(house, &["run", "--image", &name]), release);
        let script = "id -u; pwd; echo $GREETING; cat /srv/data/second; ls -d /etc/deleted || echo gone";
        let said = ok(house, &["run", "--image", &name, "--", "/bin/sh", "-c", script]);
        assert_eq!(said, "1234\n/srv/app\ngood day\nof the second layer\ngone\n");
        let info = inspect(house, &name);
        assert_eq!(info["config"]["entrypoint"], json!(["/bin/cat"]));
        assert_eq!(info["config"]["labels"]["maker"], "workshop");
        assert!(ok(house, &["image", "list"]).contains(&name));
        // Another user and directory than the image's.
        let args =
            ["run", "--image", &name, "--user", "0", "--cwd", "/", "--", "/bin/sh", "-c", "id -u; pwd"];
        assert_eq!(ok(house, &args), "0\n/\n");
    });
}

#[test]
fn a_whole_debian_is_pulled_and_knows_its_packages() {
    if !is_root() {
        return skip("images", "only root can make a Debian by debootstrap");
    }
    each_mode(|house| {
        let tree = match trees::debian() {
            Ok(tree) => tree,
            Err(why) => return skip("images", &format!("there is no Debian: {why}")),
        };
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.new_image("whole");
        workshop.add("whole", &tree, "/");
        registry.push(&workshop, "whole", "debian:whole", &[]);
        let name = registry.name("debian:whole");
        ok(house, &["image", "pull", &name]);
        let status = std::fs::read_to_string(tree.join("var/lib/dpkg/status")).expect("a Debian has one");
        let packages = status.lines().filter(|line| line.starts_with("Package: ")).count();
        let listed = ok(house, &["run", "--image", &name, "--", "dpkg", "-l"]);
        let installed = listed.lines().filter(|line| line.starts_with("ii  ")).count();
        assert!(
            packages > 50 && installed == packages,
            "{packages} packages, {installed} of them:\n{listed}"
        );
        let said = ok(house, &["run", "--image", &name, "--", "python3", "-c", "print(6 * 7)"]);
        assert_eq!(said, "42\n");
    });
}

#[test]
fn an_image_without_a_shell_is_run() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.distroless("one");
        registry.push(&workshop, "one", "distroless", &[]);
        let name = format!("oci://{}", registry.name("distroless"));
        // Pulled because it is not here.
        let said = ok(house, &["run", "--image", &name]);
        assert!(said.starts_with("hello from 65532:") && said.ends_with(" at /\n"), "{said}");
        drop(registry);
        assert_eq!(ok(house, &["run", "--image", &name]), said, "it is here now");
    });
}

#[test]
fn layers_of_zstd_are_understood() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.debian("one");
        // Plain first: the tool would send on what is compressed already.
        let (from, plain) = (
            format!("oci:{}", workshop.image("one")),
            format!("dir:{}", house.path().join("plain").display()),
        );
        tool("skopeo", &["--insecure-policy", "copy", "-q", "--dest-decompress", &from, &plain]);
        registry.push_from(&plain, "debian:zstd", &["--format", "oci", "--dest-compress-format", "zstd"]);
        for digest in registry.layers("debian:zstd") {
            let blob = std::fs::read(registry.blob(&digest)).expect("the registry has it");
            assert_eq!(blob[..4], [0x28, 0xb5, 0x2f, 0xfd], "the tool has written zstd");
        }
        let name = registry.name("debian:zstd");
        ok(house, &["image", "pull", &name]);
        assert_eq!(
            ok(house, &["run", "--image", &name, "--", "cat", "/srv/data/second"]),
            "of the second layer\n"
        );
    });
}

#[test]
fn an_index_gives_the_image_of_the_machine_that_is_asked_for() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        let mut manifests = Vec::new();
        for arch in ["amd64", "arm64"] {
            workshop.distroless(arch);
            workshop.configure(arch, &["--architecture", arch, "--config.env", &format!("FOR={arch}")]);
            manifests.push(entry(&workshop, arch));
        }
        // What tools add to an index beside images.
        let note = json!({"architecture": "unknown", "os": "unknown"});
        let mut attestation = manifests[0].clone();
        attestation["platform"] = note;
        manifests.insert(0, attestation);
        put_index(&workshop, "multi", &manifests);
        registry.push(&workshop, "multi", "multi:1", &["--all"]);
        let name = registry.name("multi:1");
        for (platform, wanted) in [("linux/amd64", "amd64"), ("linux/arm64", "arm64")] {
            ok(house, &["image", "pull", &name, "--platform", platform]);
            assert_eq!(
                inspect(house, &name)["config"]["env"],
                json!([format!("FOR={wanted}")]),
                "{platform}"
            );
        }
        let sentence = refused(house, &["image", "pull", &name, "--platform", "linux/s390x"]);
        assert!(sentence.contains("only for linux/amd64, linux/arm64"), "{sentence}");
    });
}

/// The entry of an image in an index.
fn entry(workshop: &Workshop, tag: &str) -> Value {
    let index = std::fs::read(workshop.layout().join("index.json")).expect("it is ours");
    let index: Value = serde_json::from_slice(&index).expect("it is JSON");
    let entries = index["manifests"].as_array().expect("it has entries");
    let named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == tag;
    let entry = entries.iter().find(named).expect("it was made");
    json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": entry["digest"], "size": entry["size"],
        "platform": {"os": "linux", "architecture": tag},
    })
}

fn put_index(workshop: &Workshop, tag: &str, manifests: &[Value]) {
    let kind = "application/vnd.oci.image.index.v1+json";
    let text = json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}).to_string();
    let digits: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(workshop.layout().join("blobs/sha256").join(&digits), &text).expect("it is ours");
    let path = workshop.layout().join("index.json");
    let mut index: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("it is ours")).expect("it is JSON");
    index["manifests"].as_array_mut().expect("it has entries").push(json!({
        "mediaType": kind, "digest": format!("sha256:{digits}"), "size": text.len(),
        "annotations": {"org.opencontainers.image.ref.name": tag},
    }));
    std::fs::write(&path, index.to_string()).expect("it is ours");
}

#[test]
fn what_is_not_what_it_says_is_refused() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.debian("one");
        registry.push(&workshop, "one", "debian:one", &[]);
        let blob = registry.blob(&registry.layers("debian:one")[0]);
        let whole = std::fs::read(&blob).expect("the registry has it");
        let mut changed = whole.clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        let name = registry.name("debian:one");
        std::fs::write(&blob, &changed).expect("the registry is ours");
        let sentence = refused(house, &["image", "pull", &name]);
        assert!(sentence.contains("digest") && sentence.contains("damaged"), "{sentence}");
        assert_nothing_half(house);
        // Shorter, and longer.
        std::fs::write(&blob, &whole[..middle]).expect("the registry is ours");
        refused(house, &["image", "pull", &name]);
        assert_nothing_half(house);
        std::fs::write(&blob, [&whole[..], b"more"].concat()).expect("the registry is ours");
        refused(house, &["image", "pull", &name]);
        assert_nothing_half(house);
        // As it was: what is left of the failures does no harm.
        std::fs::write(&blob, &whole).expect("the registry is ours");
        ok(house, &["image", "pull", &name]);
    });
}

#[test]
fn a_digest_is_asked_for_and_got() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.distroless("one");
        registry.push(&workshop, "one", "it:one", &[]);
        ok(house, &["image", "pull", &registry.name("it:one")]);
        let digest =
            inspect(house, &registry.name("it:one"))["digest"].as_str().expect("a digest").to_owned();
        let name = registry.name(&format!("it@{digest}"));
        ok(house, &["image", "pull", &name]);
        assert_eq!(inspect(house, &name)["digest"], *digest);
        let other = registry.name(&format!("it@sha256:{}", "0".repeat(64)));
        assert!(refused(house, &["image", "pull", &other]).contains("does not have it"));
        assert!(refused(house, &["image", "pull", &registry.name("nothing")]).contains("does not have it"));
    });
}

#[test]
fn layers_are_downloaded_side_by_side_and_only_once() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.new_image("one");
        for n in 0..4 {
            let tree = workshop.tree(&format!("noise{n}"));
            noise(&tree.join("noise"), 1 << 20);
            workshop.add("one", &tree, &format!("/{n}"));
        }
        registry.push(&workshop, "one", "noise", &[]);
        let proxy = Proxy::new(&registry.address);
        // Documents pass, and no layer is whole before several are on their way.
        proxy.stop_after(256 << 10);
        let name = proxy.name("noise");
        let pull = house.glass(&["image", "pull", &name]).spawn().expect("the program can be started");
        wait_until("three connections at once", || proxy.connections() >= 3);
        proxy.go_on();
        let output = pull.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(names(house, "layers").len(), 4);
        // A second pull finds all of it here.
        proxy.go_on();
        ok(house, &["image", "pull", &name]);
        assert!(proxy.bytes() < 64 << 10, "{} bytes for what is here", proxy.bytes());
        // And so does another image with the same layers.
        workshop.configure("one", &["--config.env", "A=B"]);
        registry.push(&workshop, "one", "other", &[]);
        proxy.go_on();
        ok(house, &["image", "pull", &proxy.name("other")]);
        assert!(proxy.bytes() < 64 << 10, "{} bytes for what is here", proxy.bytes());
        assert_eq!(names(house, "layers").len(), 4);
    });
}

#[test]
fn two_who_pull_the_same_do_not_get_in_each_others_way() {
    each_mode(|house| {
        let (workshop, registry) = (Workshop::new(house), Registry::new());
        workshop.debian("one");
        registry.push(&workshop, "one", "debian:one", &[]);
        let name = registry.name("debian:one");
        let start = |_| house.glass(&["image", "pull", &name]).spawn().expect("the program can be started");
        let pulls: Vec<_> = (0..4).map(start).collect();
        for mut pull in pulls {
            assert!(pull.wait().expect("it ends").success());
        }
        assert_eq!(names(house, "incoming"), ["blobs"]);
        assert_eq!(names(house, "incoming/blobs"), Vec::<String>::new());
        assert_eq!(
            ok(house, &["run", "--image", &name, "--", "cat", "/srv/data/second"]),
            "of the second layer\n"
        );
    });
}

/// A file that cannot be compressed.
pub(crate) fn noise(path: &std::path::Path, bytes: u64) {
    use std::io::Read as _;
    let random = std::fs::File::open("/dev/urandom").expect("every system has it");
    let mut file = std::fs::File::create(path).expect("it is ours");
    std::io::copy(&mut random.take(bytes), &mut file).expect("it is ours");
}
