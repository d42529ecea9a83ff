//! One thing done to several, each for itself.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::Global;
use crate::output;

/// Does `work` to each, prints the id of each that it was done to, and says why it was not to the others, which do not
/// keep it from the rest. In JSON, those that it was done to stand under `done`.
pub(super) async fn each(
    global: &Global,
    names: Vec<String>,
    done: &str,
    work: impl AsyncFn(&str) -> Result<String>,
) -> Result<i32> {
    let (mut ids, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        match work(&name).await {
            Ok(id) => {
                if !global.json {
                    output::print([&id])?;
                }
                ids.push(Value::from(id));
            }
            Err(error) => {
                let sentence = output::sentence(&error);
                output::say(&sentence);
                failed.push(json!({ "id": name, "error": sentence }));
            }
        }
    }
    let code = i32::from(!failed.is_empty());
    if global.json {
        output::print_json(&json!({ done: ids, "failed": failed }))?;
    }
    Ok(code)
}
