//! The shape of every format, as JSON Schemas that are printed, and checked before a value is taken apart.
//!
//! The checker knows the words of JSON Schema that our schemas use and no others; a test keeps it so. It tells
//! every problem, not only the first, each with its place.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::formats::Format;
use super::json::{self, Part};
use super::problem::Problems;

/// The JSON Schema of a format: as it stands in `crates/trace/schema`.
pub fn schema(format: Format) -> &'static str {
    match format {
        Format::Glasshouse => include_str!("../../schema/trajectory-v1.json"),
        Format::KnowlyrA => include_str!("../../schema/knowlyr-a.json"),
        Format::KnowlyrB => include_str!("../../schema/knowlyr-b.json"),
        Format::KnowlyrC => include_str!("../../schema/knowlyr-c.json"),
        Format::KnowlyrD => include_str!("../../schema/knowlyr-d.json"),
        Format::KnowlyrE => include_str!("../../schema/knowlyr-e.json"),
        Format::SweAgent => include_str!("../../schema/swe-agent.json"),
        Format::OpenHands => include_str!("../../schema/openhands.json"),
        Format::Atif => include_str!("../../schema/atif.json"),
    }
}

/// A schema, ready to check values with.
pub(crate) struct Checker {
    root: &'static Value,
}

/// Every schema, read once.
static ROOTS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    // Our own files; a test reads each of them.
    let read = |format: &Format| json::parse(schema(*format).as_bytes()).unwrap_or(Value::Bool(true));
    Format::ALL.iter().map(read).collect()
});

impl Checker {
    /// For this format.
    pub(crate) fn new(format: Format) -> Self {
        let place = Format::ALL.iter().position(|other| *other == format).unwrap_or_default();
        Checker { root: &ROOTS[place] }
    }

    /// Tells everything that is wrong with this value.
    pub(crate) fn check(&self, value: &Value, problems: &mut Problems) {
        self.value(self.root, value, &mut Vec::new(), problems);
    }

    /// For one item of a list that is the document: an event of a log.
    pub(crate) fn check_item(&self, value: &Value, index: usize, problems: &mut Problems) {
        if let Some(schema) = self.root.get("items") {
            self.value(schema, value, &mut vec![Part::Index(index)], problems);
        }
    }

    fn value(&self, schema: &Value, value: &Value, at: &mut Vec<Part>, problems: &mut Problems) {
        let Value::Object(schema) = schema else { return };
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            let pointer = name.trim_start_matches('#');
            if let Some(schema) = self.root.pointer(pointer) {
                self.value(schema, value, at, problems);
            }
            return;
        }
        if let Some(Value::Array(branches)) = schema.get("anyOf") {
            self.any(branches, value, at, problems);
        }
        if let Some(expected) = schema.get("type")
            && !is_a(expected, value)
        {
            problems.error(at, format!("expected {}, found {}", types(expected), kind(value)));
            return;
        }
        one_of(schema, value, at, problems);
        in_range(schema, value, at, problems);
        match value {
            Value::Array(list) => self.list(schema, list, at, problems),
            Value::Object(object) => self.object(schema, object, at, problems),
            _ => {}
        }
    }

    /// The branch that fits best tells what is wrong, if one has the right type at all.
    fn any(&self, branches: &[Value], value: &Value, at: &mut Vec<Part>, problems: &mut Problems) {
        let mut best: Option<Problems> = None;
        for branch in branches {
            let mut found = Problems::default();
            self.value(branch, value, at, &mut found);
            if found.found.is_empty() {
                return;
            }
            if self.fits(branch, value)
                && best.as_ref().is_none_or(|best| found.found.len() < best.found.len())
            {
                best = Some(found);
            }
        }
        if let Some(best) = best {
            best.found.iter().for_each(|(place, problem)| problems.error(place, problem.what.clone()));
            return;
        }
        let names: Vec<String> = branches.iter().map(|branch| self.title(branch)).collect();
        problems.error(at, format!("expected {}, found {}", names.join(" or "), kind(value)));
    }

    /// Whether a value has the type that a schema wants, whatever else is wrong with it.
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(name) => {
                let schema = self.root.pointer(name.trim_start_matches('#'));
                schema.is_some_and(|schema| self.fits(schema, value))
            }
            None => schema.get("type").is_some_and(|expected| is_a(expected, value)),
        }
    }

    fn title(&self, schema: &Value) -> String {
        if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
            return self
                .root
                .pointer(name.trim_start_matches('#'))
                .map_or_else(|| name.to_owned(), |schema| self.title(schema));
        }
        match (schema.get("title").and_then(Value::as_str), schema.get("type")) {
            (Some(title), _) => title.to_owned(),
            (None, Some(expected)) => types(expected),
            (None, None) => "another shape".to_owned(),
        }
    }

    fn list(&self, schema: &Map<String, Value>, list: &[Value], at: &mut Vec<Part>, problems: &mut Problems) {
        let bound = |name: &str| schema.get(name).and_then(Value::as_u64);
        if bound("minItems").is_some_and(|least| (list.len() as u64) < least) {
            problems.error(at, format!("too few entries: {}", list.len()));
        }
        if let Some(most) = bound("maxItems").filter(|&most| list.len() as u64 > most) {
            problems.error(at, format!("{} entries, and no more than {most} are read", list.len()));
            return;
        }
        let Some(items) = schema.get("items") else { return };
        for (index, value) in list.iter().enumerate() {
            at.push(Part::Index(index));
            self.value(items, value, at, problems);
            at.pop();
        }
    }

    fn object(
        &self,
        schema: &Map<String, Value>,
        object: &Map<String, Value>,
        at: &mut Vec<Part>,
        problems: &mut Problems,
    ) {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str).filter(|name| !object.contains_key(*name)) {
            problems.error(at, format!("{name:?} is missing"));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (key, value) in object {
            match properties.and_then(|properties| properties.get(key)) {
                Some(schema) => {
                    at.push(Part::Key(key.clone()));
                    self.value(schema, value, at, problems);
                    at.pop();
                }
                None if closed => problems.error(at, format!("{key:?} does not belong here")),
                None => {}
            }
        }
    }
}

fn one_of(schema: &Map<String, Value>, value: &Value, at: &[Part], problems: &mut Problems) {
    if let Some(expected) = schema.get("const").filter(|expected| *expected != value) {
        problems.error(at, format!("expected {expected}"));
    }
    if let Some(Value::Array(allowed)) = schema.get("enum")
        && !allowed.contains(value)
    {
        let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
        problems.error(at, format!("expected one of {}", allowed.join(", ")));
    }
}

fn in_range(schema: &Map<String, Value>, value: &Value, at: &[Part], problems: &mut Problems) {
    let Value::Number(number) = value else { return };
    let least = schema.get("minimum").and_then(Value::as_f64);
    let most = schema.get("maximum").and_then(Value::as_f64);
    let value = number.as_f64().unwrap_or(f64::NAN);
    if least.is_some_and(|least| value < least) || most.is_some_and(|most| value > most) {
        let bound = |bound: Option<f64>| bound.map_or("any".to_owned(), |bound| bound.to_string());
        problems.error(at, format!("{number} is out of range: from {} to {}", bound(least), bound(most)));
    }
}

/// Whether a value is of a type, or of one of them.
fn is_a(expected: &Value, value: &Value) -> bool {
    match expected {
        Value::Array(types) => types.iter().any(|expected| is_a(expected, value)),
        Value::String(name) => match name.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            _ => true,
        },
        _ => true,
    }
}

/// The types of a schema in words.
fn types(expected: &Value) -> String {
    match expected {
        Value::Array(types) => {
            let named: Vec<String> = types.iter().filter(|name| *name != "null").map(self::types).collect();
            named.join(" or ")
        }
        Value::String(name) => match name.as_str() {
            "object" => "an object".to_owned(),
            "array" => "a list".to_owned(),
            "integer" => "a whole number".to_owned(),
            "boolean" => "true or false".to_owned(),
            "null" => "null".to_owned(),
            name => format!("a {name}"),
        },
        _ => "anything".to_owned(),
    }
}

/// What a value is, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a fraction or a number too large",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Every word that stands where a schema says something about values.
    fn words(schema: &Value, found: &mut Vec<String>) {
        let Value::Object(object) = schema else { return };
        for (word, value) in object {
            found.push(word.clone());
            match (word.as_str(), value) {
                ("properties" | "$defs", Value::Object(named)) => {
                    named.values().for_each(|schema| words(schema, found));
                }
                ("anyOf", Value::Array(branches)) => branches.iter().for_each(|schema| words(schema, found)),
                ("items", schema) => words(schema, found),
                _ => {}
            }
        }
    }

    #[test]
    fn the_checker_knows_every_word_that_the_schemas_use() {
        let known = [
            "$schema",
            "$id",
            "$ref",
            "$defs",
            "title",
            "description",
            "type",
            "required",
            "properties",
            "items",
            "additionalProperties",
            "enum",
            "const",
            "anyOf",
            "minimum",
            "maximum",
            "minItems",
            "maxItems",
        ];
        for format in Format::ALL {
            let mut found = Vec::new();
            words(&json::parse(schema(format).as_bytes()).unwrap(), &mut found);
            assert!(found.len() > 5);
            for word in found {
                assert!(known.contains(&word.as_str()), "{}: {word}", format.name());
            }
        }
    }

    fn problems(format: Format, value: Value) -> Vec<String> {
        let mut problems = Problems::default();
        Checker::new(format).check(&value, &mut problems);
        problems.found.iter().map(|(_, problem)| problem.to_string()).collect()
    }

    #[test]
    fn every_problem_is_told_with_its_place() {
        let value = json!({
            "format": "glasshouse-trajectory", "version": 1, "agent": 7,
            "steps": [
                {"tool": "exec", "params": [], "time_ms": -1},
                {"observed": {"output": 3, "exit_code": 1.5, "state": {"changes": [{"path": "/x"}]}}},
            ],
        });
        let expected = [
            "agent: expected a string, found a number",
            "step 1, steps[0].params: expected an object, found a list",
            "step 1, steps[0].time_ms: -1 is out of range: from 0 to 18446744073709552000",
            "step 2, steps[1]: \"tool\" is missing",
            "step 2, steps[1].observed.exit_code: expected a whole number, found a fraction or a number too large",
            "step 2, steps[1].observed.output: expected text or null, found a number",
            "step 2, steps[1].observed.state: \"digest\" is missing",
            "step 2, steps[1].observed.state.changes[0]: \"change\" is missing",
        ];
        let mut found = problems(Format::Glasshouse, value);
        found.sort();
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn another_version_is_refused() {
        let found = problems(Format::Glasshouse, json!({"format": "x", "version": 2, "steps": []}));
        assert_eq!(
            found,
            ["format: expected \"glasshouse-trajectory\"", "version: 2 is out of range: from 1 to 1"]
        );
    }
}
