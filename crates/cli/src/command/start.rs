//! `glass start`: start boxes that were stopped, on what they had written.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::{Global, unknown_box};
use crate::output;

/// Start boxes that were stopped, on what they had written
#[derive(Debug, Args)]
#[command(after_help = "\
Limits, environment and names are as before; its time to live begins anew.

Example:
  glass start web")]
pub(crate) struct Start {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Start {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for name in self.names {
            match house.start(&name).await.map(|sandbox| sandbox.id().to_owned()) {
                Ok(id) => {
                    if !global.json {
                        output::print([&id])?;
                    }
                    done.push(id);
                }
                // The others have their turn all the same.
                Err(error) => {
                    let sentence = output::sentence(&unknown_box(error));
                    output::say(&sentence);
                    failed.push(json!({ "id": name, "error": sentence }));
                }
            }
        }
        let code = i32::from(!failed.is_empty());
        if global.json {
            output::print_json(&json!({ "done": done, "failed": failed }))?;
        }
        Ok(code)
    }
}
