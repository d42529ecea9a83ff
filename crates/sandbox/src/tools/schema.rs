//! Parameters against a JSON Schema: as much of it as parameters of tools use.
//!
//! Of an object: `properties`, `required`, `additionalProperties`. Of a property: `type` (one or several), `enum`,
//! `minimum`, `exclusiveMinimum`, `maximum`, `minLength`, `items.type`, `default`. What else a schema says is for whoever
//! reads it, and is not checked. Unlike the standard, a property that is not named is refused, unless
//! `additionalProperties` allows it: a misspelt parameter must not pass in silence.

use std::time::Duration;

use serde_json::{Map, Value};

use super::names;

/// Checked parameters, with defaults filled in.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(Map<String, Value>);

impl Params {
    /// A text; empty if it was not given and has no default.
    pub(super) fn text(&self, name: &str) -> &str {
        self.given(name).unwrap_or_default()
    }

    /// A text, if it was given.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// A whole number; 0 if there is none.
    pub(super) fn whole(&self, name: &str) -> u64 {
        let value = self.0.get(name);
        value.and_then(|value| value.as_u64().or(value.as_f64().map(|value| value as u64))).unwrap_or(0)
    }

    /// Whether it was said; no if not.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A time in seconds.
    pub(super) fn seconds(&self, name: &str) -> Option<Duration> {
        let seconds = self.0.get(name)?.as_f64()?;
        // More than anybody waits for; a duration cannot hold everything that a number can.
        Duration::try_from_secs_f64(seconds.min(1e9)).ok()
    }

    /// Any value.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// All of them.
    pub(super) fn all(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// Checks parameters and fills in defaults, or says what does not fit.
pub(super) fn complete(schema: &Value, params: &Value) -> Result<Params, String> {
    let given = match params {
        Value::Object(given) => given,
        Value::Null => &Map::new(),
        other => return Err(format!("parameters are a JSON object, not {}", kind(other))),
    };
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let open = matches!(schema.get("additionalProperties"), Some(Value::Bool(true) | Value::Object(_)));
    let mut complete = Map::new();
    for (name, value) in given {
        let Some(property) = properties.get(name) else {
            if open {
                complete.insert(name.clone(), value.clone());
                continue;
            }
            let hint = names::hint(name, properties.keys().map(String::as_str));
            return Err(format!("there is no parameter `{name}`; {hint}"));
        };
        // A caller that has to name every parameter says null for what it leaves out.
        if !value.is_null() || allows(property, "null") {
            check(name, property, value)?;
            complete.insert(name.clone(), value.clone());
        }
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    for name in required.filter_map(Value::as_str) {
        if !complete.contains_key(name) {
            let about = properties.get(name).and_then(|p| p.get("description")).and_then(Value::as_str);
            let about = about.map_or(String::new(), |about| format!(" ({about})"));
            return Err(format!("the parameter `{name}` is missing{about}"));
        }
    }
    for (name, property) in properties {
        if let Some(default) = property.get("default")
            && !complete.contains_key(name)
        {
            complete.insert(name.clone(), default.clone());
        }
    }
    Ok(Params(complete))
}

fn check(name: &str, property: &Value, value: &Value) -> Result<(), String> {
    let types = types(property);
    if !types.is_empty() && !types.iter().any(|wanted| is(value, wanted)) {
        let wanted: Vec<&str> = types.iter().map(|wanted| words(wanted)).collect();
        return Err(format!("the parameter `{name}` is {}, not {}", wanted.join(" or "), kind(value)));
    }
    if let Some(allowed) = property.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        return Err(format!("the parameter `{name}` is one of {}", allowed.join(", ")));
    }
    if let Some(number) = value.as_f64() {
        let bound = |key: &str| property.get(key).and_then(Value::as_f64);
        if let Some(least) = bound("minimum").filter(|least| number < *least) {
            return Err(format!("the parameter `{name}` is at least {least}, not {value}"));
        }
        if let Some(least) = bound("exclusiveMinimum").filter(|least| number <= *least) {
            return Err(format!("the parameter `{name}` is more than {least}, not {value}"));
        }
        if let Some(most) = bound("maximum").filter(|most| number > *most) {
            return Err(format!("the parameter `{name}` is at most {most}, not {value}"));
        }
    }
    if let Some(text) = value.as_str()
        && let Some(least) = property.get("minLength").and_then(Value::as_u64)
    {
        // Characters, as the standard has it, and not bytes.
        match text.chars().count() as u64 {
            length if length >= least => {}
            0 => return Err(format!("the parameter `{name}` is empty")),
            length => {
                return Err(format!("the parameter `{name}` has at least {least} characters, not {length}"));
            }
        }
    }
    if let (Some(items), Some(of)) = (value.as_array(), property.get("items")) {
        let wanted = self::types(of);
        if let Some(bad) = items.iter().find(|item| !wanted.is_empty() && !wanted.iter().any(|w| is(item, w)))
        {
            let wanted: Vec<&str> = wanted.iter().map(|wanted| words(wanted)).collect();
            return Err(format!("the parameter `{name}` holds {}, not {}", wanted.join(" or "), kind(bad)));
        }
    }
    Ok(())
}

fn types(property: &Value) -> Vec<&str> {
    match property.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn allows(property: &Value, wanted: &str) -> bool {
    types(property).contains(&wanted)
}

fn is(value: &Value, wanted: &str) -> bool {
    match wanted {
        "string" => value.is_string(),
        // 5.0 is a whole number, as in the standard: some callers have no other.
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|v| v.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    }
}

fn words(wanted: &str) -> &str {
    match wanted {
        "string" => "a string",
        "integer" => "a whole number",
        "number" => "a number",
        "boolean" => "true or false",
        "array" => "an array",
        "object" => "an object",
        "null" => "null",
        other => other,
    }
}

/// What a value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Which file", "minLength": 1},
                "lines": {"type": "integer", "minimum": 0, "maximum": 10, "default": 3},
                "deep": {"type": "boolean"},
                "timeout": {"type": "number", "exclusiveMinimum": 0},
                "args": {"type": ["string", "array"], "items": {"type": "string"}},
                "how": {"type": "string", "enum": ["a", "b"]},
                "word": {"type": "string", "minLength": 3},
            },
            "required": ["path"],
        })
    }

    fn refused(params: Value, why: &str) {
        let said = complete(&schema(), &params).expect_err(&params.to_string());
        assert!(said.contains(why), "{params}: {said}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        refused(json!({"pth": "a"}), "no parameter `pth`; did you mean `path`?");
        refused(json!({"path": "a", "zzzz": 1}), "no parameter `zzzz`; there is `args`");
        refused(json!({}), "`path` is missing (Which file)");
        refused(json!({"path": null}), "`path` is missing");
        refused(json!({"path": 5}), "`path` is a string, not a number");
        refused(json!({"path": ""}), "`path` is empty");
        refused(json!({"path": "a", "word": ""}), "`word` is empty");
        refused(json!({"path": "a", "word": "ab"}), "`word` has at least 3 characters, not 2");
        refused(json!({"path": "a", "word": "éé"}), "not 2");
        refused(json!({"path": "a", "lines": "5"}), "`lines` is a whole number, not a string");
        refused(json!({"path": "a", "lines": 1.5}), "not a fraction");
        refused(json!({"path": "a", "lines": -1}), "at least 0, not -1");
        refused(json!({"path": "a", "lines": 11}), "at most 10");
        refused(json!({"path": "a", "timeout": 0}), "more than 0");
        refused(json!({"path": "a", "deep": "yes"}), "`deep` is true or false, not a string");
        refused(json!({"path": "a", "args": {}}), "a string or an array, not an object");
        refused(json!({"path": "a", "args": ["a", 1]}), "`args` holds a string, not a number");
        refused(json!({"path": "a", "how": "c"}), "one of \"a\", \"b\"");
        refused(json!(["a"]), "a JSON object, not an array");
        refused(json!("a"), "a JSON object, not a string");
    }

    #[test]
    fn defaults_are_filled_in_and_null_is_nothing() {
        let params = complete(&schema(), &json!({"path": "a", "deep": null, "timeout": 1.5})).unwrap();
        assert_eq!((params.text("path"), params.whole("lines"), params.flag("deep")), ("a", 3, false));
        assert_eq!(params.seconds("timeout"), Some(Duration::from_millis(1500)));
        let params = complete(&schema(), &json!({"path": "a", "lines": 5.0})).unwrap();
        assert_eq!(params.whole("lines"), 5);
    }

    #[test]
    fn a_schema_that_says_nothing_takes_nothing_and_an_open_one_takes_all() {
        assert!(complete(&json!({}), &json!({})).is_ok());
        assert!(complete(&json!({}), &Value::Null).is_ok());
        assert!(complete(&json!({}), &json!({"a": 1})).is_err());
        let open = complete(&json!({"additionalProperties": true}), &json!({"a": 1})).unwrap();
        assert_eq!(open.value("a"), Some(&json!(1)));
    }

    #[test]
    fn no_number_is_too_large_for_a_time() {
        for seconds in [1e300, 1e9, f64::MAX] {
            let params = complete(&schema(), &json!({"path": "a", "timeout": seconds})).unwrap();
            assert!(params.seconds("timeout").is_some());
        }
    }
}
