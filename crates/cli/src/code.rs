//! Code that comes from files, and what it tells, for a terminal and as JSON.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use glasshouse_sandbox::{CODE_BYTES_MAX, CodeResult, MimeBundle, Tongue};
use serde_json::{Value, json};

use crate::words;

/// The language of a word, and the kernel, if it names one.
pub(crate) fn tongue(word: &str) -> Result<Tongue, String> {
    word.parse()
}

/// Code from a file, or from our stdin. What is more than a run takes is refused here, before there is a box.
pub(crate) fn read(file: Option<&Path>) -> Result<String> {
    let (mut bytes, one_more) = (Vec::new(), CODE_BYTES_MAX as u64 + 1);
    let from = file.filter(|file| *file != Path::new("-"));
    let read = match from {
        Some(path) => std::fs::File::open(path).and_then(|file| file.take(one_more).read_to_end(&mut bytes)),
        None => std::io::stdin().take(one_more).read_to_end(&mut bytes),
    };
    let shown = from.map_or("stdin".to_owned(), |path| path.display().to_string());
    read.with_context(|| format!("cannot read the code from {shown}"))?;
    if bytes.len() > CODE_BYTES_MAX {
        bail!("the code in {shown} is longer than {}", words::size(CODE_BYTES_MAX as u64));
    }
    match String::from_utf8(bytes) {
        Ok(code) => Ok(code),
        Err(_) => bail!("the code in {shown} is no UTF-8"),
    }
}

/// What a terminal shows of a result: its text, and what else there is by kind and size. Whether it is an error.
pub(crate) fn shown(result: &CodeResult) -> (String, bool) {
    match result {
        CodeResult::Value(bundle) | CodeResult::Display(bundle) => (shown_bundle(bundle), false),
        CodeResult::Error(error) if error.traceback.is_empty() => {
            (format!("{}: {}\n", error.name, error.value), true)
        }
        CodeResult::Error(error) => (error.traceback.join("\n") + "\n", true),
    }
}

/// Whether it is something to look at, of which a terminal says no more than that it is there.
pub(crate) fn is_picture(result: &CodeResult) -> bool {
    let is_image = |bundle: &MimeBundle| bundle.data.keys().any(|mime| mime.starts_with("image/"));
    matches!(result, CodeResult::Value(bundle) | CodeResult::Display(bundle) if is_image(bundle))
}

fn shown_bundle(bundle: &MimeBundle) -> String {
    let mut out = String::new();
    if let Some(text) = bundle.text() {
        out.push_str(text);
        out.push('\n');
    }
    for (mime, data) in bundle.data.iter().filter(|(mime, _)| *mime != "text/plain") {
        let is_bytes = mime.starts_with("image/") && mime != "image/svg+xml" || mime == "application/pdf";
        let bytes = if is_bytes { data.len() as u64 / 4 * 3 } else { data.len() as u64 };
        out.push_str(&format!("[{mime}, {}]\n", words::size(bytes)));
    }
    out
}

/// All of a result.
pub(crate) fn json(result: &CodeResult) -> Value {
    match result {
        CodeResult::Value(bundle) => {
            json!({ "type": "value", "data": bundle.data, "metadata": bundle.metadata })
        }
        CodeResult::Display(bundle) => {
            json!({ "type": "display", "data": bundle.data, "metadata": bundle.metadata })
        }
        CodeResult::Error(error) => {
            json!({ "type": "error", "name": error.name, "value": error.value, "traceback": error.traceback })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_named_by_kind_and_size() {
        let data = [("image/png", "a".repeat(4000)), ("text/plain", "<Figure>".to_owned())];
        let data = data.into_iter().map(|(mime, data)| (mime.to_owned(), data)).collect();
        let (text, is_error) = shown(&CodeResult::Display(MimeBundle { data, metadata: None }));
        assert_eq!((text.as_str(), is_error), ("<Figure>\n[image/png, 2.9 KiB]\n", false));
    }
}
