//! `glass cp`: files and trees into a box and out of it.

use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueHint};
use serde_json::json;

use crate::args::Global;
use crate::output;

/// Copy a file or a tree into a box, or out of it
#[derive(Debug, Args)]
#[command(after_help = "\
One of the two is ID:PATH, a path inside of that box. A path of this machine that has a colon in
its first part is written with ./ before it.

Examples:
  glass cp ./src web:/workspace/src
  glass cp web:/workspace/result.json .")]
pub(crate) struct Cp {
    /// What to copy: PATH or ID:PATH
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    from: String,
    /// Where to: ID:PATH or PATH
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    to: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    Box { name: &'a str, path: &'a str },
    Here(&'a Path),
}

impl Cp {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        match (place(&self.from), place(&self.to)) {
            (Place::Here(from), Place::Box { name, path }) => {
                global.connect(name).await?.copy_in(from, path).await?;
            }
            (Place::Box { name, path }, Place::Here(to)) => {
                global.connect(name).await?.copy_out(path, to).await?;
            }
            (Place::Box { .. }, Place::Box { .. }) => {
                bail!("cannot copy from box to box; copy to this machine first, and from here on")
            }
            (Place::Here(_), Place::Here(_)) => {
                bail!("cannot copy without a box; write one of the two as ID:PATH, like web:/workspace")
            }
        }
        if global.json {
            output::print_json(&json!({ "from": self.from, "to": self.to }))?;
        }
        Ok(0)
    }
}

/// A colon before the first slash parts the name of a box from a path in it.
fn place(text: &str) -> Place<'_> {
    match text.split_once(':') {
        Some((name, path)) if !name.is_empty() && !name.contains('/') => {
            Place::Box { name, path: if path.is_empty() { "." } else { path } }
        }
        _ => Place::Here(Path::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_any_slash_names_a_box() {
        assert_eq!(place("web:/x:y"), Place::Box { name: "web", path: "/x:y" });
        assert_eq!(place("web:"), Place::Box { name: "web", path: "." });
        for here in ["/a:b", "./a:b", "a", ":x", "", "dir/a:b"] {
            assert_eq!(place(here), Place::Here(Path::new(here)));
        }
    }
}
