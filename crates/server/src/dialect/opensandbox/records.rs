//! What the protocol wants remembered of a box and the library does not know: a small file each, in the server's directory.
//!
//! ```text
//! <home>/server/              0700
//!   secret                    what the tokens of boxes' endpoints are made of
//!   sandboxes/<id>.json       one of these
//!   incoming/                 large uploads on their way; emptied at every start
//! ```
//! Files are read each time they are needed: another server, or a person, may have changed them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::metadata::Metadata;
use super::model::NetworkRule;
use crate::error::{Error, Result};
use crate::random;

/// What is remembered of a box.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The image, as the caller called it.
    pub(crate) image: Option<String>,
    /// The snapshot that it was made from.
    pub(crate) snapshot: Option<String>,
    /// What it runs.
    pub(crate) entrypoint: Vec<String>,
    /// What callers say of it, as an older server remembered it. That is its labels now, which are no part of this file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Metadata>,
    /// What callers want to be told again.
    pub(crate) extensions: BTreeMap<String, String>,
    /// The platform, if the caller asked for one.
    pub(crate) platform: Option<(String, String)>,
    /// Whom it is not to talk to, as callers said it; it talks to nobody.
    #[serde(default)]
    pub(crate) egress: Vec<NetworkRule>,
    /// When it is to be removed.
    pub(crate) expires_ms: Option<u64>,
    /// How its entrypoint ended, and with it the box.
    pub(crate) ended: Option<Ended>,
    /// When it was paused or ended.
    pub(crate) since_ms: Option<u64>,
}

/// How an entrypoint ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// It ended by itself with 0.
    pub(crate) success: bool,
    /// In words.
    pub(crate) how: String,
}

/// The server's directory.
#[derive(Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

/// Opens the server's directory. The secret that lies in it.
pub(crate) fn open(dir: &Path) -> Result<(Records, [u8; 32])> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::Files { what, path, source }
    };
    let incoming = dir.join("incoming");
    // What lies there belongs to uploads that were never finished.
    match fs::remove_dir_all(&incoming) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("empty", &incoming)(e)),
        _ => {}
    }
    for path in [dir.to_owned(), dir.join("sandboxes"), incoming] {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(failed("make", &path))?;
    }
    let path = dir.join("secret");
    let secret = secret(&path).map_err(failed("read", &path))?;
    Ok((Records { dir: dir.to_owned() }, secret))
}

fn secret(path: &Path) -> io::Result<[u8; 32]> {
    if !path.exists() {
        write(path, (random::hex()? + &random::hex()?).as_bytes())?;
    }
    // Whatever lies there, all of it counts.
    Ok(*blake3::hash(&fs::read(path)?).as_bytes())
}

impl Records {
    fn path(&self, id: &str) -> PathBuf {
        self.dir.join("sandboxes").join(format!("{id}.json"))
    }

    /// Where large uploads wait.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.dir.join("incoming")
    }

    /// What is remembered of a box. What cannot be read is as good as nothing.
    pub(crate) fn get(&self, id: &str) -> Option<Record> {
        let bytes = fs::read(self.path(id)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(crate) fn put(&self, id: &str, record: &Record) -> io::Result<()> {
        write(&self.path(id), &serde_json::to_vec(record)?)
    }

    /// Forgets a box. It may be forgotten already.
    pub(crate) fn remove(&self, id: &str) {
        // A record that stays belongs to no box, and goes at the next start.
        let _ = fs::remove_file(self.path(id));
    }

    /// The boxes of which something is remembered.
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.dir.join("sandboxes"))? {
            let name = entry?.file_name();
            ids.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
        }
        Ok(ids)
    }
}

/// Writes a file: whole, or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{}~", random::hex()?));
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_survives_a_restart_and_uploads_do_not() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("server");
        let (records, secret) = open(&dir).unwrap();
        let record = Record {
            image: Some("host".into()),
            entrypoint: vec!["a".into()],
            expires_ms: Some(5),
            ended: Some(Ended { success: false, how: "exit code 3".into() }),
            ..Record::default()
        };
        records.put("abc", &record).unwrap();
        fs::write(records.incoming().join("x"), "x").unwrap();
        let (records, again) = open(&dir).unwrap();
        assert_eq!((records.get("abc"), again), (Some(record), secret));
        assert_eq!(records.ids().unwrap(), ["abc"]);
        assert_eq!(fs::read_dir(records.incoming()).unwrap().count(), 0);
        records.remove("abc");
        records.remove("abc");
        assert_eq!((records.get("abc"), records.ids().unwrap().len()), (None, 0));
    }

    #[test]
    fn a_record_that_is_damaged_is_none() {
        let home = tempfile::tempdir().unwrap();
        let (records, _) = open(home.path()).unwrap();
        fs::write(home.path().join("sandboxes/abc.json"), "{").unwrap();
        assert_eq!(records.get("abc"), None);
    }
}
