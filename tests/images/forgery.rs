//! Images written byte by byte, because no honest tool would write them.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use glasshouse_tests::House;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::readable;

/// A layer in the making.
pub(crate) struct Layer(pub(crate) Vec<u8>);

impl Layer {
    /// With a shell and a place for it.
    pub(crate) fn new() -> Layer {
        let busybox = std::fs::read("/bin/busybox").expect("everybody may read it");
        let layer = Layer(Vec::new()).entry(EntryType::Directory, "bin/", "", 0o755, b"");
        layer.entry(EntryType::Regular, "bin/busybox", "", 0o755, &busybox).link("bin/sh", "busybox")
    }

    pub(crate) fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        target: &str,
        mode: u32,
        content: &[u8],
    ) -> Layer {
        let header = header(kind, name, target, mode, content.len() as u64);
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Layer {
        self.entry(EntryType::Regular, name, "", 0o644, content.as_bytes())
    }

    pub(crate) fn link(self, name: &str, target: &str) -> Layer {
        self.entry(EntryType::Symlink, name, target, 0o777, b"")
    }

    pub(crate) fn hard(self, name: &str, target: &str) -> Layer {
        self.entry(EntryType::Link, name, target, 0o644, b"")
    }

    pub(crate) fn device(mut self, kind: EntryType, name: &str, major: u32, minor: u32) -> Layer {
        let mut header = header(kind, name, "", 0o666, 0);
        header.set_device_major(major).expect("it fits");
        header.set_device_minor(minor).expect("it fits");
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    /// Attributes for the next entry.
    pub(crate) fn attributes(self, attributes: &[(&str, &str)]) -> Layer {
        let mut text = String::new();
        for (name, value) in attributes {
            let rest = format!(" SCHILY.xattr.{name}={value}\n");
            let length =
                (rest.len() + 2..).find(|n| n.to_string().len() + rest.len() == *n).expect("there is one");
            text.push_str(&format!("{length}{rest}"));
        }
        self.entry(EntryType::XHeader, "pax", "", 0o644, text.as_bytes())
    }

    /// Bytes as they are.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Layer {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn bytes(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

pub(crate) fn header(kind: EntryType, name: &str, target: &str, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1);
    header.set_size(size);
    header.set_cksum();
    header
}

/// A layer as it is stored, and the digest of its content.
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    pub(crate) diff_id: String,
}

impl Stored {
    pub(crate) fn plain(bytes: Vec<u8>) -> Stored {
        Stored { diff_id: digest(&bytes), bytes }
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// Writes an image as a directory of the OCI's layout.
pub(crate) fn layout(house: &House, layers: &[Stored], config: Value) -> PathBuf {
    let dir = house.path().join("forged");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("blobs/sha256")).expect("the house is ours");
    let put = |bytes: &[u8], kind: &str| {
        let digest = digest(bytes);
        let name = digest.trim_start_matches("sha256:");
        std::fs::write(dir.join("blobs/sha256").join(name), bytes).expect("the house is ours");
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len()})
    };
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let whole = json!({
        "os": "linux", "architecture": std::env::consts::ARCH, "config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = put(whole.to_string().as_bytes(), "config.v1+json");
    let layers: Vec<Value> = layers.iter().map(|layer| put(&layer.bytes, "layer.v1.tar")).collect();
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let manifest = put(manifest.to_string().as_bytes(), "manifest.v1+json");
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    std::fs::write(dir.join("index.json"), index.to_string()).expect("the house is ours");
    std::fs::write(dir.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").expect("the house is ours");
    readable(house, &dir);
    dir
}

/// Compresses by gzip: these bytes, and so many zeros behind them.
pub(crate) fn gzip_with_zeros(bytes: &[u8], zeros: u64) -> Vec<u8> {
    let mut packed = Vec::new();
    for (content, more) in [(bytes, 0), (&[][..], zeros)] {
        let mut gzip = Command::new("gzip")
            .arg("-1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("gzip");
        let mut stdin = gzip.stdin.take().expect("it was asked for");
        let content = content.to_vec();
        let writer = std::thread::spawn(move || {
            stdin.write_all(&content).expect("it reads");
            std::io::copy(&mut std::io::Read::take(std::io::repeat(0), more), &mut stdin).expect("it reads");
        });
        packed.extend(gzip.wait_with_output().expect("it ends").stdout);
        writer.join().expect("it wrote");
    }
    packed
}
