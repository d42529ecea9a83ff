//! API keys: who may call, and for whom.
//!
//! ```text
//! <home>/server/keys/         0700
//!   <name>                    one key: its tenant, when it was made, and the hash of what is shown
//! ```
//! A key is random and long, so a plain hash of it tells nobody what it is. It is shown once, when it is made. A file each
//! makes adding and revoking one step that needs no lock, and a server that runs sees both at its next request.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::door::OWN_KEY;
use crate::error::{Error, Result};
use crate::limits::{KEY_FILE_BYTES, KEYS, NAME_BYTES};
use crate::random;

/// What is known of a key. What callers show is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// What people call it, and the audit.
    pub name: String,
    /// Whose boxes it opens; without one, all.
    pub tenant: Option<String>,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    hash: String,
}

impl KeyInfo {
    /// The hash of what callers show.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}

/// The keys of a state directory.
#[derive(Debug)]
pub struct Keys {
    dir: PathBuf,
    cached: Mutex<Option<Cached>>,
}

/// The keys as they were read, and of when their directory was then.
#[derive(Debug, Clone)]
struct Cached {
    of: SystemTime,
    by_hash: Arc<HashMap<String, KeyInfo>>,
}

impl Keys {
    /// The keys of a state directory. Nothing is read yet.
    pub fn of(home: &Path) -> Keys {
        Keys { dir: home.join("server/keys"), cached: Mutex::default() }
    }

    /// Makes a key. What callers have to show: nobody can find that out again.
    pub fn add(&self, name: &str, tenant: Option<&str>) -> Result<String> {
        for word in std::iter::once(name).chain(tenant) {
            check_name(word)?;
        }
        if name == OWN_KEY {
            return Err(Error::Refused(format!(
                "{name:?} is what the key of --key-file is called; take another"
            )));
        }
        if self.list()?.len() >= KEYS {
            return Err(Error::Refused(format!("there are {KEYS} keys already; revoke some")));
        }
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Files { what, path, source }
        };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(failed("make", &self.dir))?;
        let path = self.dir.join(name);
        let key = random::hex().and_then(|first| Ok(format!("glass_{first}{}", random::hex()?)));
        let key = key.map_err(failed("make a key for", &path))?;
        let text = json!({ "tenant": tenant, "created_ms": now_ms(), "hash": hash(&key) }).to_string();
        // Whole or not at all, and never over another: written beside, then linked.
        let temporary = self.dir.join(format!(".{}", &hash(&key)[..16]));
        let mut file = fs::File::options();
        let written = file.write(true).create_new(true).mode(0o600).open(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::hard_link(&temporary, &path)
        });
        let _ = fs::remove_file(&temporary);
        match written {
            Ok(()) => Ok(key),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Error::Refused(format!(
                "there is a key {name:?} already; revoke it, or take another name"
            ))),
            Err(e) => Err(failed("write", &path)(e)),
        }
    }

    /// All keys, by name.
    pub fn list(&self) -> Result<Vec<KeyInfo>> {
        let mut keys: Vec<KeyInfo> = self.read()?.1.values().cloned().collect();
        keys.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(keys)
    }

    /// Ends a key. Whether there was one.
    pub fn revoke(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(Error::Files { what: "remove", path, source }),
        }
    }

    /// The key that a caller shows, by its hash (`hash_of`). The time that it takes tells nothing of the keys: their hashes are compared.
    pub(crate) fn find(&self, hash: &str) -> Result<Option<KeyInfo>> {
        Ok(self.current()?.get(hash).cloned())
    }

    /// The key of this name.
    pub(crate) fn named(&self, name: &str) -> Result<Option<KeyInfo>> {
        Ok(self.current()?.values().find(|info| info.name == name).cloned())
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        Ok(self.current()?.is_empty())
    }

    fn current(&self) -> Result<Arc<HashMap<String, KeyInfo>>> {
        let now = self.changed_at()?;
        if now.is_none() {
            return Ok(Arc::default());
        }
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.as_ref().filter(|cached| Some(cached.of) == now) {
            return Ok(cached.by_hash.clone());
        }
        let (of, keys) = self.read()?;
        let by_hash = Arc::new(keys);
        // A change in the same tick of the clock would not be seen: what is as young as that is read again next time.
        let settled = of.filter(|of| of.elapsed().is_ok_and(|age| age > SETTLED));
        *cached = settled.map(|of| Cached { of, by_hash: by_hash.clone() });
        Ok(by_hash)
    }

    fn changed_at(&self) -> Result<Option<SystemTime>> {
        match fs::metadata(&self.dir).and_then(|found| found.modified()) {
            Ok(at) => Ok(Some(at)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Files { what: "look at", path: self.dir.clone(), source }),
        }
    }

    /// Reads all keys, by their hashes, and when their directory had changed before that. One that cannot be read opens
    /// nothing.
    fn read(&self) -> Result<(Option<SystemTime>, HashMap<String, KeyInfo>)> {
        let at = self.changed_at()?;
        if at.is_none() {
            return Ok((None, HashMap::new()));
        }
        let failed = |source| Error::Files { what: "read", path: self.dir.clone(), source };
        let mut keys = HashMap::new();
        for entry in fs::read_dir(&self.dir).map_err(failed)?.take(2 * KEYS) {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(info) = check_name(&name).ok().and_then(|()| key(&entry.path(), name)) {
                keys.insert(info.hash.clone(), info);
            }
        }
        Ok((at, keys))
    }
}

/// Longer than a tick of the clock that files are stamped with.
const SETTLED: Duration = Duration::from_secs(1);

fn key(path: &Path, name: String) -> Option<KeyInfo> {
    let size = fs::symlink_metadata(path).ok().filter(|found| found.is_file())?.len();
    let text = (size <= KEY_FILE_BYTES).then(|| fs::read(path).ok()).flatten()?;
    let value: Value = serde_json::from_slice(&text).ok()?;
    let tenant = match &value["tenant"] {
        Value::Null => None,
        Value::String(tenant) => Some(tenant.clone()),
        _ => return None,
    };
    let hash = value["hash"].as_str().filter(|hash| hash.len() == 64)?.to_owned();
    Some(KeyInfo { name, tenant, created_ms: value["created_ms"].as_u64()?, hash })
}

fn hash(key: &str) -> String {
    hash_of(key.as_bytes())
}

/// What is kept of a key.
pub(crate) fn hash_of(key: &[u8]) -> String {
    blake3::hash(key).to_hex().to_string()
}

/// Names of keys and of tenants: they become file names and labels.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    match begins && name.len() <= NAME_BYTES && name.bytes().all(fine) {
        true => Ok(()),
        false => Err(Error::Refused(format!(
            "{name:?} is no name: it is made of a-z, 0-9, - and _, begins with a letter or a digit, and has at most \
             {NAME_BYTES} of them"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_opens_until_it_is_revoked_and_lies_nowhere() {
        let home = tempfile::tempdir().unwrap();
        let keys = Keys::of(home.path());
        assert!(keys.is_empty().unwrap());
        let (red, all) = (keys.add("red", Some("team")).unwrap(), keys.add("all", None).unwrap());
        assert_ne!(red, all);
        // Another process, as the program is.
        let server = Keys::of(home.path());
        let found = |shown: &str| server.find(&hash(shown)).unwrap().map(|key| (key.name, key.tenant));
        assert_eq!(found(&red), Some(("red".to_owned(), Some("team".to_owned()))));
        assert_eq!(found(&all), Some(("all".to_owned(), None)));
        assert_eq!(found("glass_"), None);
        let names: Vec<String> = keys.list().unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["all", "red"]);
        for name in names {
            let text = fs::read_to_string(home.path().join("server/keys").join(name)).unwrap();
            assert!(!text.contains(&red) && !text.contains(&all));
        }
        assert!(keys.revoke("red").unwrap() && !keys.revoke("red").unwrap());
        assert_eq!(found(&red), None);
        assert_eq!(found(&all), Some(("all".to_owned(), None)));
    }

    #[test]
    fn a_name_is_taken_once_and_names_no_other_file() {
        let home = tempfile::tempdir().unwrap();
        let keys = Keys::of(home.path());
        keys.add("one", None).unwrap();
        assert!(keys.add("one", None).is_err());
        for name in ["", ".", "../x", "A", "a b", "a/b", "-a", &"a".repeat(NAME_BYTES + 1)] {
            assert!(keys.add(name, None).is_err() && keys.add("x", Some(name)).is_err(), "{name}");
            assert!(keys.revoke(name).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(home.path().join("server/keys")).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_key_opens_nothing() {
        let home = tempfile::tempdir().unwrap();
        let keys = Keys::of(home.path());
        let key = keys.add("one", None).unwrap();
        let dir = home.path().join("server/keys");
        fs::write(dir.join("damaged"), "{").unwrap();
        fs::write(dir.join("short"), r#"{"tenant":null,"created_ms":1,"hash":""}"#).unwrap();
        fs::write(dir.join("odd"), format!(r#"{{"tenant":7,"created_ms":1,"hash":"{}"}}"#, hash("x")))
            .unwrap();
        std::os::unix::fs::symlink(dir.join("one"), dir.join("link")).unwrap();
        assert_eq!(keys.list().unwrap().len(), 1);
        assert!(keys.find(&hash(&key)).unwrap().is_some() && keys.find(&hash("x")).unwrap().is_none());
    }
}
