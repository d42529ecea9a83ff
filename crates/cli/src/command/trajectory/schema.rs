//! `glass trajectory schema`: the JSON Schema of a format.

use anyhow::Result;
use clap::Args;
use glasshouse_trace::trajectory::{Format, schema};

use super::format;
use crate::args::Global;
use crate::output;

/// Print the JSON Schema of a format
#[derive(Debug, Args)]
#[command(after_help = "\
It is what `validate` checks. Fields that it does not name are allowed and kept.

Examples:
  glass trajectory schema > trajectory-v1.json
  glass trajectory schema atif")]
pub(super) struct Schema {
    /// The format
    #[arg(value_name = "FORMAT", value_parser = format(), default_value = Format::Glasshouse.name())]
    format: Format,
}

impl Schema {
    pub(super) fn run(self, global: &Global) -> Result<i32> {
        match global.json {
            true => output::print_json(&serde_json::from_str(schema(self.format))?)?,
            false => output::print_bytes(schema(self.format).as_bytes())?,
        }
        Ok(0)
    }
}
