//! `glass stop`: end boxes and keep what they have written.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::args::{Global, unknown_box};
use crate::output;

/// End boxes and keep what they have written
#[derive(Debug, Args)]
#[command(after_help = "\
Everything in it is killed; `glass start` builds the box again on its files, also after the host was
restarted.

Example:
  glass stop web")]
pub(crate) struct Stop {
    /// The boxes: ids, beginnings of ids, or names
    #[arg(value_name = "ID", required = true)]
    names: Vec<String>,
}

impl Stop {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        for name in self.names {
            match house.stop(&name).await {
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
