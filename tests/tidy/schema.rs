//! The wire format of each version is written down, and stays what it was.

use glasshouse_protocol::{FileOp, Reply, Request, VERSION};

use crate::{read, root};

/// The schema of what crosses the wall, as this build has it.
fn schema() -> String {
    let generator = || schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let schemas = serde_json::json!({
        "version": VERSION,
        "request": generator().into_root_schema_for::<Request>(),
        "reply": generator().into_root_schema_for::<Reply>(),
        "file": generator().into_root_schema_for::<FileOp>(),
    });
    serde_json::to_string_pretty(&schemas).expect("a schema is JSON") + "\n"
}

#[test]
fn the_snapshot_of_this_version_is_what_this_build_speaks() {
    let path = format!("crates/protocol/schema/v{VERSION}.json");
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(root().join(&path), schema()).expect("the snapshot can be written");
    }
    assert!(
        read(&path) == schema(),
        "the wire format differs from {path}: a new message wants a new VERSION (see docs/protocol.md); \
         a new optional field wants UPDATE_SCHEMA=1"
    );
}
