//! `glass key`: who may call `glass serve`, and for whom.

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use glasshouse_server::{KeyInfo, Keys};
use serde_json::{Value, json};

use crate::args::Global;
use crate::{output, table, terminal};

/// Make, list and revoke the keys that callers of `glass serve` show
#[derive(Debug, Args)]
#[command(after_help = "\
A key belongs to a tenant, who sees the boxes, snapshots and records that were made with his
keys, and no others; or to an operator, who sees all. It is printed once, when it is made: only
its hash is kept. A server that runs knows of new and revoked keys at once.

Examples:
  glass key add ci --tenant red
  glass key list
  glass key revoke ci")]
pub(crate) struct KeyCommands {
    #[command(subcommand)]
    command: KeyCommand,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key, and print it
    Add(Add),
    /// List the keys
    List,
    /// End a key
    Revoke {
        /// Its name
        name: String,
    },
}

/// A new key.
#[derive(Debug, Args)]
struct Add {
    /// What to call it: here, and in the audit
    name: String,
    /// Whose boxes it opens
    #[arg(long, value_name = "NAME", required_unless_present = "operator")]
    tenant: Option<String>,
    /// It opens all boxes
    #[arg(long, conflicts_with = "tenant")]
    operator: bool,
}

impl KeyCommands {
    pub(crate) fn run(self, global: &Global) -> Result<i32> {
        let keys = Keys::of(&global.home()?);
        match self.command {
            KeyCommand::Add(Add { name, tenant, .. }) => {
                let key = keys.add(&name, tenant.as_deref())?;
                match global.json {
                    true => output::print_json(&json!({ "name": name, "tenant": tenant, "key": key }))?,
                    false => output::print([&key])?,
                }
            }
            KeyCommand::List => list(global, &keys.list()?)?,
            KeyCommand::Revoke { name } => {
                if !keys.revoke(&name)? {
                    bail!("there is no key {name:?}; `glass key list` shows those that are");
                }
                if global.json {
                    output::print_json(&json!({ "name": name }))?;
                }
            }
        }
        Ok(0)
    }
}

fn list(global: &Global, keys: &[KeyInfo]) -> Result<()> {
    if global.json {
        let told =
            |key: &KeyInfo| json!({ "name": key.name, "tenant": key.tenant, "created_ms": key.created_ms });
        return output::print_json(&Value::Array(keys.iter().map(told).collect()));
    }
    if keys.is_empty() {
        global.say("there are no keys");
        return Ok(());
    }
    let row =
        |key: &KeyInfo| vec![key.name.clone(), key.tenant.clone().unwrap_or_else(|| "(all)".to_owned())];
    let rows: Vec<Vec<String>> = keys.iter().map(row).collect();
    output::print(table::lines(&["NAME", "TENANT"], &rows, terminal::width()))
}
