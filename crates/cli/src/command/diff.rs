//! `glass diff`: what differs between two states.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueHint};
use glasshouse_sandbox::{Content, Diff, DiffOptions, Difference, Sandboxes, Thing};
use owo_colors::OwoColorize as _;
use serde_json::{Map, Value, json};

use super::export::attributes_left_out;
use crate::args::Global;
use crate::escape::plain;
use crate::outfile::OutFile;
use crate::output;
use crate::words::{count, size};

/// Tell what differs between a box or a snapshot and another one, or what it began with
#[derive(Debug, Args)]
#[command(after_help = "\
A line each: A was added, C has changed, D was removed. With two, it tells what has to be done
to the first to get the second.

Examples:
  glass diff web                              what the box did since it was made
  glass diff before-upgrade web --content
  glass diff web --tar layer.tar              the same as a layer of an image")]
pub(crate) struct DiffStates {
    /// The box or the snapshot: its id, the beginning of it, or its name
    #[arg(value_name = "ID|SNAPSHOT")]
    first: String,
    /// What it became
    #[arg(value_name = "ID|SNAPSHOT")]
    second: Option<String>,
    /// Print only how much differs
    #[arg(long, conflicts_with_all = ["content", "tar"])]
    stat: bool,
    /// Compare what files hold, line by line
    #[arg(long, conflicts_with = "tar")]
    content: bool,
    /// Write the differences as a layer of an image to a file, or to stdout with `-`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tar: Option<PathBuf>,
}

impl DiffStates {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let (name, against) = match &self.second {
            Some(second) => (second.as_str(), Some(self.first.as_str())),
            None => (self.first.as_str(), None),
        };
        let house = global.open()?;
        if let Some(path) = &self.tar {
            return tar(global, &house, name, against, path).await;
        }
        let diff = house.diff(name, against, DiffOptions { content: self.content }).await?;
        if global.json {
            output::print_json(&json(&diff, self.stat))?;
            return Ok(0);
        }
        if diff.racy {
            global.say("something changed while it was read; take a snapshot, and compare that");
        }
        if self.stat {
            output::print([stat_line(&diff)])?;
        } else {
            print(&diff)?;
        }
        Ok(0)
    }
}

async fn tar(
    global: &Global,
    house: &Sandboxes,
    name: &str,
    against: Option<&str>,
    path: &Path,
) -> Result<i32> {
    let to_stdout = path == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        bail!("a layer is nothing for a terminal; name a file, or send stdout somewhere else");
    }
    if to_stdout && global.json {
        bail!("stdout cannot be a layer and JSON at once; name a file");
    }
    let file = (!to_stdout).then(|| OutFile::create(path)).transpose()?;
    let out: Box<dyn Write + Send> = match &file {
        None => Box::new(io::stdout()),
        Some(file) => Box::new(file.writer()?),
    };
    let packed = house.diff_tar(name, against, BufWriter::new(out)).await?;
    file.map_or(Ok(()), OutFile::finish)?;
    if packed.left_out > 0 {
        let left_out = count(packed.left_out as usize, "device or socket", "devices and sockets");
        global.say(&format!("{left_out} left out: a layer has no place for them"));
    }
    if packed.attributes_left_out > 0 {
        global.say(&attributes_left_out(packed.attributes_left_out));
    }
    if global.json {
        let (entries, bytes, left_out) = (packed.entries, packed.bytes, packed.left_out);
        output::print_json(&json!({
            "entries": entries, "bytes": bytes, "left_out": left_out,
            "attributes_left_out": packed.attributes_left_out,
        }))?;
    }
    Ok(0)
}

/// To a terminal with colours, to everybody else as it is: what boxes wrote may look like colours too.
fn print(diff: &Diff) -> Result<()> {
    if io::stdout().is_terminal() {
        return output::print(diff.changes.iter().flat_map(lines).map(coloured));
    }
    let lines = diff.changes.iter().flat_map(lines);
    output::print_bytes(lines.flat_map(|line| [line, "\n".to_owned()]).collect::<String>().as_bytes())
}

/// A line with nothing in it that a terminal could act on, but for our colours and tabs.
fn coloured(line: String) -> String {
    let line = line.split('\t').map(plain).collect::<Vec<_>>().join("\t");
    match line.chars().next() {
        Some('A' | '+') => line.green().to_string(),
        Some('D' | '-') => line.red().to_string(),
        Some('C') => line.yellow().to_string(),
        Some('@') => line.cyan().to_string(),
        _ => line,
    }
}

/// What happened to it, in one letter.
fn letter(change: &Difference) -> &'static str {
    match (&change.from, &change.to) {
        (None, _) => "A",
        (_, None) => "D",
        _ => "C",
    }
}

fn lines(change: &Difference) -> Vec<String> {
    let name = String::from_utf8_lossy(&change.path).into_owned();
    let directory =
        change.to.as_ref().or(change.from.as_ref()).is_some_and(|thing| thing.kind == "directory");
    let slash = if directory && name != "/" { "/" } else { "" };
    let mut line = format!("{} {}{slash}", letter(change), plain(&name));
    let told: Vec<&str> = change.what.iter().copied().filter(|what| *what != "content").collect();
    if !told.is_empty() {
        line.push_str(&format!(" ({})", told.join(", ")));
    }
    let mut lines = vec![line];
    match &change.content {
        Some(Content::Text(text)) => {
            let side = |thing: &Option<Thing>, letter: &str| match thing {
                Some(_) => format!("{letter}{}", plain(&name)),
                None => "/dev/null".to_owned(),
            };
            lines.push(format!("--- {}", side(&change.from, "a")));
            lines.push(format!("+++ {}", side(&change.to, "b")));
            lines.extend(text.split_terminator('\n').map(str::to_owned));
        }
        Some(Content::Binary) => lines.push("  not a text".to_owned()),
        Some(Content::TooLarge) => lines.push("  too large to be compared".to_owned()),
        None => {}
    }
    lines
}

/// How many of each letter, and the bytes that came and went.
fn totals(diff: &Diff) -> ([usize; 3], u64, u64) {
    let number = |wanted: &str| diff.changes.iter().filter(|change| letter(change) == wanted).count();
    let (mut came, mut went) = (0, 0);
    for change in &diff.changes {
        let bytes = |thing: &Option<Thing>| thing.as_ref().map_or(0, |thing| thing.bytes);
        let content = change.from.is_none() || change.to.is_none() || change.what.contains(&"content");
        if content || change.what.contains(&"kind") || change.what.contains(&"target") {
            came += bytes(&change.to);
            went += bytes(&change.from);
        }
    }
    ([number("A"), number("C"), number("D")], came, went)
}

fn stat_line(diff: &Diff) -> String {
    let ([added, changed, removed], came, went) = totals(diff);
    format!(
        "{added} added, {changed} changed, {removed} removed; {} written, {} gone",
        size(came),
        size(went)
    )
}

fn json(diff: &Diff, stat: bool) -> Value {
    let ([added, changed, removed], came, went) = totals(diff);
    let mut object = json!({
        "from": diff.from, "to": diff.to, "racy": diff.racy, "added": added, "changed": changed,
        "removed": removed, "bytes_written": came, "bytes_gone": went,
    });
    if !stat {
        object["changes"] = diff.changes.iter().map(change_json).collect();
    }
    object
}

fn change_json(change: &Difference) -> Value {
    let mut object = Map::new();
    let change_name = match letter(change) {
        "A" => "added",
        "D" => "removed",
        _ => "changed",
    };
    object.insert("change".into(), change_name.into());
    match std::str::from_utf8(&change.path) {
        Ok(path) => object.insert("path".into(), path.into()),
        Err(_) => object.insert("path_base64".into(), STANDARD.encode(&change.path).into()),
    };
    object.insert("what".into(), json!(change.what));
    for (key, thing) in [("from", &change.from), ("to", &change.to)] {
        let Some(Thing { kind, mode, uid, gid, bytes }) = thing else { continue };
        let mode = format!("{mode:o}");
        object.insert(
            key.into(),
            json!({ "kind": kind, "mode": mode, "uid": uid, "gid": gid, "bytes": bytes }),
        );
    }
    match &change.content {
        Some(Content::Text(text)) => object.insert("content".into(), json!({ "diff": text })),
        Some(Content::Binary) => object.insert("content".into(), json!({ "binary": true })),
        Some(Content::TooLarge) => object.insert("content".into(), json!({ "too_large": true })),
        None => None,
    };
    Value::Object(object)
}
