//! One thing done to several, each for itself.

use anyhow::Result;
use serde_json::{Value, json};

use crate::args::Global;
use crate::output;

/// What the things are called in JSON.
#[derive(Clone, Copy)]
pub(super) struct Words {
    /// What was done to them.
    pub(super) done: &'static str,
    /// What the name of one to which it could not be done stands for.
    pub(super) name: &'static str,
}

/// Does `work` to each, prints the id of each that it was done to, and says why it was not to the others, which do not
/// keep it from the rest. One without an id needs no word: it is gone, as was wanted.
pub(super) async fn each(
    global: &Global,
    names: Vec<String>,
    words: Words,
    work: impl AsyncFn(&str) -> Result<Option<String>>,
) -> Result<i32> {
    let (mut ids, mut failed) = (Vec::new(), Vec::new());
    for name in names {
        match work(&name).await {
            Ok(None) => {}
            Ok(Some(id)) => {
                if !global.json {
                    output::print([&id])?;
                }
                ids.push(Value::from(id));
            }
            Err(error) => {
                let sentence = output::sentence(&error);
                output::say(&sentence);
                failed.push(json!({ words.name: name, "error": sentence }));
            }
        }
    }
    let code = i32::from(!failed.is_empty());
    if global.json {
        output::print_json(&json!({ words.done: ids, "failed": failed }))?;
    }
    Ok(code)
}
