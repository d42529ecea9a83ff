//! A tree that was copied into a box, on record: what each file held, so that it can be copied once more.
//!
//! It is read off the archive that went into the box, and made an archive again for a replay. Texts stay texts, so that
//! secrets in them are found. What is larger than a step may keep, or has names that are no UTF-8, is not kept.

use std::io::{self, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tar::{Archive, Builder, EntryType, Header};

/// The entries of an archive of ours, if all of them can be kept.
pub(super) fn entries_of(archive: &[u8]) -> Option<Value> {
    let mut entries = Vec::new();
    for entry in Archive::new(archive).entries().ok()? {
        let mut entry = entry.ok()?;
        let path = String::from_utf8(entry.path_bytes().into_owned()).ok()?;
        let mode = entry.header().mode().ok()?;
        entries.push(match entry.header().entry_type() {
            EntryType::Directory => json!({ "path": path, "kind": "directory", "mode": mode }),
            EntryType::Symlink => {
                let target = String::from_utf8(entry.link_name_bytes()?.into_owned()).ok()?;
                json!({ "path": path, "kind": "symlink", "target": target })
            }
            EntryType::Regular => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).ok()?;
                let mut file = json!({ "path": path, "kind": "file", "mode": mode });
                super::put_content(&mut file, &content);
                file
            }
            _ => return None,
        });
    }
    Some(Value::Array(entries))
}

/// The archive of these entries. They may be of a stranger's making; what is wrong with them is said.
pub(crate) fn archive_of(entries: &Value) -> Result<Vec<u8>, String> {
    let entries = entries.as_array().ok_or("`tree` is a list of files")?;
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let text = |name: &str| entry.get(name).and_then(Value::as_str);
        let path = text("path").ok_or("each entry of `tree` has a `path`")?;
        append(&mut builder, path, entry).map_err(|e| format!("{path:?} cannot be packed: {e}"))?;
    }
    builder.into_inner().map_err(|e| e.to_string())
}

fn append(builder: &mut Builder<Vec<u8>>, path: &str, entry: &Value) -> io::Result<()> {
    let text = |name: &str| entry.get(name).and_then(Value::as_str);
    let mode = entry.get("mode").and_then(Value::as_u64).unwrap_or(0o644) as u32 & 0o777;
    let mut header = Header::new_gnu();
    header.set_mode(mode);
    header.set_size(0);
    match text("kind") {
        Some("directory") => {
            header.set_entry_type(EntryType::Directory);
            builder.append_data(&mut header, path, io::empty())
        }
        Some("symlink") => {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, path, text("target").unwrap_or_default())
        }
        Some("file") => {
            let lost = || io::Error::other("the record does not hold what was in it");
            let content = entry.as_object().and_then(content_of).ok_or_else(lost)?;
            header.set_entry_type(EntryType::Regular);
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, path, content.as_slice())
        }
        _ => Err(io::Error::other("it is no file, directory or link")),
    }
}

/// What a file is to hold, as it is on record.
pub(crate) fn content_of(on_record: &Map<String, Value>) -> Option<Vec<u8>> {
    let text = |name: &str| on_record.get(name).and_then(Value::as_str);
    match text("content") {
        Some(text) => Some(text.as_bytes().to_vec()),
        None => STANDARD.decode(text("content_base64")?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_back_as_it_was() {
        let long = "x".repeat(150);
        let tree = json!([
            { "path": "./", "kind": "directory", "mode": 0o755 },
            { "path": "a", "kind": "file", "mode": 0o640, "content": "text\n" },
            { "path": "d", "kind": "directory", "mode": 0o700 },
            { "path": format!("d/{long}"), "kind": "file", "mode": 0o755, "content_base64": "/wAB" },
            { "path": "d/l", "kind": "symlink", "target": format!("../{long}") },
        ]);
        let archive = archive_of(&tree).unwrap();
        assert_eq!(entries_of(&archive), Some(tree));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for tree in [
            json!({}),
            json!([7]),
            json!([{ "path": "a" }]),
            json!([{ "path": "a", "kind": "device" }]),
            json!([{ "path": "a", "kind": "file" }]),
            json!([{ "path": "../a", "kind": "file", "content": "" }]),
            json!([{ "path": "", "kind": "directory" }]),
        ] {
            assert!(archive_of(&tree).is_err(), "{tree}");
        }
    }
}
