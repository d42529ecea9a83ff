//! Debian's docker-registry, on a port of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::workshop::{Workshop, tool};

/// A registry that ends with the value.
pub(crate) struct Registry {
    child: Child,
    dir: tempfile::TempDir,
    /// `127.0.0.1:port`
    pub(crate) address: String,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry::with("", "")
    }

    /// With more in its configuration: of how it listens, and of all else.
    pub(crate) fn with(http: &str, more: &str) -> Registry {
        let dir = glasshouse_tests::scratch();
        let config = dir.path().join("config.yml");
        let store = dir.path().join("store");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"127.0.0.1:0\"{http}}}\n{more}",
            store.display()
        );
        std::fs::write(&config, text).expect("it is ours");
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the registry can be started");
        let mut log = BufReader::new(child.stderr.take().expect("it was asked for"));
        let mut said = String::new();
        let address = loop {
            let mut line = String::new();
            let n = log.read_line(&mut line).expect("its log is text");
            assert!(n > 0, "the registry ended: {said}");
            said.push_str(&line);
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
            }
        };
        // A pipe that nobody reads would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Registry { child, dir, address }
    }

    /// The name of an image here.
    pub(crate) fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// Pushes an image of the workshop, by skopeo.
    pub(crate) fn push(&self, workshop: &Workshop, tag: &str, name: &str, args: &[&str]) {
        self.push_from(&format!("oci:{}", workshop.image(tag)), name, args);
    }

    /// Pushes an image from wherever skopeo can find it.
    pub(crate) fn push_from(&self, from: &str, name: &str, args: &[&str]) {
        let to = format!("docker://{}", self.name(name));
        let plain = ["--insecure-policy", "copy", "-q", "--dest-tls-verify=false"];
        tool("skopeo", &[&plain[..], args, &[from, &to]].concat());
    }

    /// Where the registry keeps a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let digits = digest.trim_start_matches("sha256:");
        let blobs = Path::new("store/docker/registry/v2/blobs/sha256");
        self.dir.path().join(blobs).join(&digits[..2]).join(digits).join("data")
    }

    /// The manifest of an image, and its digest.
    pub(crate) fn manifest(&self, name: &str) -> serde_json::Value {
        let name = format!("docker://{}", self.name(name));
        let text = tool("skopeo", &["--insecure-policy", "inspect", "--raw", "--tls-verify=false", &name]);
        serde_json::from_str(&text).expect("a manifest is JSON")
    }

    /// Digests of an image's layers, lowest first.
    pub(crate) fn layers(&self, name: &str) -> Vec<String> {
        let manifest = self.manifest(name);
        let layers = manifest["layers"].as_array().expect("an image has layers");
        layers.iter().map(|layer| layer["digest"].as_str().expect("a digest").to_owned()).collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
