//! The formats: their names, and who takes them apart and puts them together.

mod atif;
mod command;
mod knowlyr;
mod native;
mod openhands;
mod openhands_sdk;
mod python;
mod swe_agent;

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::fields::Fields;
use super::model::{Observed, Rule, Trajectory};
use super::problem::Problems;
use super::text::Text;
use super::time;

pub(crate) use openhands_sdk::{Older, is_event as is_sdk_event};

/// A file format of trajectories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Our own, which says everything.
    Glasshouse,
    /// knowlyr's replay file.
    KnowlyrA,
    /// What knowlyr's recorder writes, a line each.
    KnowlyrB,
    /// What the recording wrapper of knowlyr's core gives.
    KnowlyrC,
    /// The history of knowlyr's environment.
    KnowlyrD,
    /// What knowlyr's hub exports, a line each.
    KnowlyrE,
    /// SWE-agent's `.traj`.
    SweAgent,
    /// The events of OpenHands: a list, or a line each.
    OpenHands,
    /// Harbor's agent trajectory interchange format. Versions 1.0 to 1.8 are read, 1.7 is written.
    Atif,
}

impl Format {
    /// Every format, our own first.
    pub const ALL: [Format; 9] = [
        Format::Glasshouse,
        Format::KnowlyrA,
        Format::KnowlyrB,
        Format::KnowlyrC,
        Format::KnowlyrD,
        Format::KnowlyrE,
        Format::SweAgent,
        Format::OpenHands,
        Format::Atif,
    ];

    /// Its name, as options take it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Glasshouse => "glasshouse",
            Format::KnowlyrA => "knowlyr-a",
            Format::KnowlyrB => "knowlyr-b",
            Format::KnowlyrC => "knowlyr-c",
            Format::KnowlyrD => "knowlyr-d",
            Format::KnowlyrE => "knowlyr-e",
            Format::SweAgent => "swe-agent",
            Format::OpenHands => "openhands",
            Format::Atif => "atif",
        }
    }

    /// What it is, in a few words.
    pub const fn about(self) -> &'static str {
        match self {
            Format::Glasshouse => "Glasshouse's own, version 1",
            Format::KnowlyrA => "knowlyr's replay file",
            Format::KnowlyrB => "knowlyr's recorder, a line each",
            Format::KnowlyrC => "knowlyr's recording wrapper",
            Format::KnowlyrD => "the history of knowlyr's environment",
            Format::KnowlyrE => "knowlyr's hub, a line each",
            Format::SweAgent => "SWE-agent's .traj",
            Format::OpenHands => "the events of OpenHands",
            Format::Atif => "Harbor's ATIF; 1.0 to 1.8 are read, 1.7 is written",
        }
    }

    /// Whether its files have a line for each trajectory rather than one document.
    pub(crate) fn is_lines(self) -> bool {
        matches!(self, Format::KnowlyrB | Format::KnowlyrE)
    }

    /// Takes a document apart that has the shape of this format. Whatever is odd about it is told.
    pub(crate) fn decode(self, value: Value, problems: &mut Problems) -> Trajectory {
        match self {
            Format::Glasshouse => native::decode(value, problems),
            Format::KnowlyrA => knowlyr::decode_a(value),
            Format::KnowlyrB => knowlyr::decode_b(value, problems),
            Format::KnowlyrC => knowlyr::decode_c(value, problems),
            Format::KnowlyrD => knowlyr::decode_d(value, problems),
            Format::KnowlyrE => knowlyr::decode_e(value, problems),
            Format::SweAgent => swe_agent::decode(value, problems),
            Format::OpenHands => openhands::decode(value, problems),
            Format::Atif => atif::decode(value, problems),
        }
    }

    /// Puts a document of this format together, with all that it has a place for.
    pub(crate) fn encode(self, trajectory: &Trajectory) -> Value {
        match self {
            Format::Glasshouse => native::encode(trajectory),
            Format::KnowlyrA => knowlyr::encode_a(trajectory),
            Format::KnowlyrB => knowlyr::encode_b(trajectory),
            Format::KnowlyrC => knowlyr::encode_c(trajectory),
            Format::KnowlyrD => knowlyr::encode_d(trajectory),
            Format::KnowlyrE => knowlyr::encode_e(trajectory),
            Format::SweAgent => swe_agent::encode(trajectory),
            Format::OpenHands => openhands::encode(trajectory),
            Format::Atif => atif::encode(trajectory),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Format::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
            format!("no format has this name; there are {}", names.join(", "))
        })
    }
}

/// A trajectory in our own format, with its head first.
pub(crate) fn native_document(trajectory: &Trajectory, indented: bool) -> Vec<u8> {
    let document = native::Document::of(trajectory);
    let written = match indented {
        true => serde_json::to_vec_pretty(&document),
        false => serde_json::to_vec(&document),
    };
    // Nothing in the model has keys that are no strings; that is all that could fail.
    let mut bytes = written.unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// What was seen of a step, for formats that have one text for both streams: their readers take it as such.
fn both_streams(observed: &Observed) -> Option<String> {
    let output = observed.output.as_ref()?;
    match observed.stderr.as_ref().filter(|_| !observed.mixed) {
        Some(stderr) => Some(Text::of([output.bytes(), stderr.bytes()].concat()).lossy()),
        None => Some(output.lossy()),
    }
}

/// Where formats trim what they record, space at both ends means nothing.
fn trimmed() -> Vec<Rule> {
    vec![Rule { name: "edges".to_owned(), ..Rule::default() }]
}

/// Takes a time. One that we would write in another way, or cannot read, stays as it is too.
fn take_time(fields: &mut Fields, name: &str) -> Option<u64> {
    let raw = fields.words(name)?;
    let time_ms = time::parse(&raw);
    if time_ms.and_then(time::format).as_deref() != Some(&raw) {
        fields.put(name, raw.into());
    }
    time_ms
}

/// The text of a time: as it was found, if it still means that.
fn time_text(kept: &mut Fields, name: &str, time_ms: Option<u64>) -> Option<String> {
    match kept.text(name) {
        Some(raw) if time::parse(&raw) == time_ms => Some(raw),
        _ => time_ms.and_then(time::format),
    }
}

/// Takes seconds as microseconds. A number that would not come back the same stays as it is too.
fn take_seconds(fields: &mut Fields, name: &str) -> Option<u64> {
    let raw = fields.number(name)?;
    let micros = raw * 1e6;
    if !(0.0..9e15).contains(&micros) {
        fields.put(name, raw.into());
        return None;
    }
    let micros = micros.round() as u64;
    if micros as f64 / 1e6 != raw {
        fields.put(name, raw.into());
    }
    Some(micros)
}

/// Microseconds as seconds: as they were found, if they still mean that.
fn seconds(kept: &mut Fields, name: &str, micros: Option<u64>) -> Option<f64> {
    match kept.number(name) {
        Some(raw) if micros == Some((raw * 1e6).round() as u64) || micros.is_none() => Some(raw),
        _ => micros.map(|micros| micros as f64 / 1e6),
    }
}

/// Takes a count that says again what the list itself says; keeps it if it says something else.
fn take_total(fields: &mut Fields, name: &str, steps: usize) {
    if fields.get(name).and_then(Value::as_u64) == Some(steps as u64) {
        fields.take(name);
    }
}
