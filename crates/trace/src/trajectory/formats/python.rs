//! JSON as Python writes it (`json.dumps` with sorted keys and `ensure_ascii=False`): some foreign hashes are
//! taken of that text.

use serde_json::{Map, Value};

/// This value as Python writes it.
pub(super) fn json(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Array(list) => {
            out.push('[');
            for (index, value) in list.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                write(value, out);
            }
            out.push(']');
        }
        Value::Object(object) => write_object(object, out),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) => out.push_str(&repr(float)),
            None => out.push_str(&number.to_string()),
        },
        // Texts, true, false and null are written the same way by both.
        other => out.push_str(&other.to_string()),
    }
}

fn write_object(object: &Map<String, Value>, out: &mut String) {
    let mut keys: Vec<&String> = object.keys().collect();
    keys.sort();
    out.push('{');
    for (index, key) in keys.into_iter().enumerate() {
        out.push_str(if index == 0 { "" } else { ", " });
        write(&Value::String(key.clone()), out);
        out.push_str(": ");
        write(&object[key], out);
    }
    out.push('}');
}

/// A float as Python's `repr` has it: the fewest digits, with an exponent from 1e16 up and below 1e-4.
fn repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    #[test]
    fn values_are_written_as_by_python() {
        // Each as printed by json.dumps(…, sort_keys=True, ensure_ascii=False) of Python 3.11.
        let check = |made: Value, expected: &str| assert_eq!(json(&made), expected);
        check(value!({"b": [1, 2.0, -0.0], "a": null}), r#"{"a": null, "b": [1, 2.0, -0.0]}"#);
        check(
            value!([1e16, 1e15, 1.5e300, 1e-5, 0.0001, 0.1]),
            "[1e+16, 1000000000000000.0, 1.5e+300, 1e-05, 0.0001, 0.1]",
        );
        check(value!("ä\"\\\n\u{1}\u{7f}/"), "\"ä\\\"\\\\\\n\\u0001\u{7f}/\"");
        check(value!([[], {}, true]), "[[], {}, true]");
    }
}
