//! What code told beside its output: values, tables, pictures, an error.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_sandbox::{CodeError, CodeResult, MimeBundle};
use serde_json::{Value, json};

use super::text;
use crate::limits::{PICTURES_BYTES, RESULTS, SHOWN_BYTES};

/// Pictures that a browser draws and that hold nothing to run.
const PICTURES: [&str; 2] = ["image/png", "image/jpeg"];
/// Shapes in words that say more than plain text does; they are shown as they are written.
const WORDS: [&str; 2] = ["text/markdown", "text/plain"];

/// What a run told, line by line. What is no line of it, because something was cut out there, is left out.
pub(super) fn told(lines: &[u8]) -> Value {
    let mut room = PICTURES_BYTES;
    let results = lines.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    results.take(RESULTS).map(|result| one(result, &mut room)).collect()
}

fn one(result: CodeResult, room: &mut usize) -> Value {
    match result {
        CodeResult::Value(bundle) => shown("value", bundle, room),
        CodeResult::Display(bundle) => shown("display", bundle, room),
        CodeResult::Error(CodeError { name, value, traceback }) => json!({
            "kind": "error", "text": text(format!("{name}: {value}").as_bytes(), SHOWN_BYTES),
            "traceback": text(traceback.join("\n").as_bytes(), SHOWN_BYTES),
        }),
    }
}

fn shown(kind: &str, bundle: MimeBundle, room: &mut usize) -> Value {
    let words = WORDS.iter().find_map(|mime| bundle.data.get(*mime));
    let words = words.map(|words| text(words.as_bytes(), SHOWN_BYTES));
    let picture = PICTURES.iter().find_map(|mime| Some((*mime, bundle.data.get(*mime)?)));
    // What is no base64 would be part of an address that is not ours.
    let picture = picture.filter(|(_, data)| data.len() <= *room && STANDARD.decode(data.trim_end()).is_ok());
    *room -= picture.map_or(0, |(_, data)| data.len());
    let picture = picture.map(|(mime, data)| json!({ "mime": mime, "data": data.trim_end() }));
    let shapes: Vec<&String> = bundle.data.keys().take(RESULTS).collect();
    json!({ "kind": kind, "text": words, "picture": picture, "shapes": shapes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_come_as_pictures_and_nothing_else_does() {
        let lines = br#"{"value":{"data":{"text/plain":"2","text/html":"<b>"}}}
{"display":{"data":{"image/png":"AQI=","text/plain":"<Figure>"}}}
{"display":{"data":{"image/png":"AQI=\" onerror=\"x","text/plain":"hostile"}}}
{"display":{"data":{"image/svg+xml":"<svg onload=x>"}}}
cut off here {"value"
{"error":{"name":"ValueError","value":"no","traceback":["a","b"]}}
"#;
        let told = told(lines);
        let picture = |n: usize| told[n]["picture"]["data"].as_str();
        assert_eq!(told.as_array().unwrap().len(), 5);
        assert_eq!((told[0]["text"].as_str(), picture(0)), (Some("2"), None));
        assert_eq!((told[1]["text"].as_str(), picture(1)), (Some("<Figure>"), Some("AQI=")));
        assert_eq!((told[2]["text"].as_str(), picture(2)), (Some("hostile"), None));
        assert_eq!((told[3]["text"].as_str(), picture(3)), (None, None));
        assert_eq!(
            (&told[3]["shapes"], &told[4]["text"]),
            (&json!(["image/svg+xml"]), &json!("ValueError: no"))
        );
    }
}
