//! Taking a foreign object apart: what is understood is taken out, and what is left over is kept.

use serde_json::{Map, Value};

use super::formats::Format;

/// An object from which fields are taken. A value of a type that is not expected stays, and so is kept.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of this value; none if it is no object.
    pub(crate) fn of(value: Value) -> Self {
        match value {
            Value::Object(object) => Fields(object),
            _ => Fields(Map::new()),
        }
    }

    /// Whether there is such a field that is not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Looks at a field without taking it.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Takes a field of any type.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Puts a field back, or another one in.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    fn taken<T>(&mut self, name: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let value = self.0.get(name)?;
        let read = read(value);
        if read.is_some() || value.is_null() {
            self.0.remove(name);
        }
        read
    }

    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        self.taken(name, |value| value.as_str().map(str::to_owned))
    }

    /// A text that says something: many writers put an empty one where they know nothing.
    pub(crate) fn words(&mut self, name: &str) -> Option<String> {
        self.text(name).filter(|text| !text.is_empty())
    }

    pub(crate) fn boolean(&mut self, name: &str) -> Option<bool> {
        self.taken(name, Value::as_bool)
    }

    pub(crate) fn count(&mut self, name: &str) -> Option<u64> {
        self.taken(name, Value::as_u64)
    }

    pub(crate) fn code(&mut self, name: &str) -> Option<i32> {
        self.taken(name, |value| value.as_i64().and_then(|code| i32::try_from(code).ok()))
    }

    pub(crate) fn number(&mut self, name: &str) -> Option<f64> {
        self.taken(name, Value::as_f64)
    }

    pub(crate) fn object(&mut self, name: &str) -> Option<Map<String, Value>> {
        self.taken(name, |value| value.as_object().cloned())
    }

    pub(crate) fn list(&mut self, name: &str) -> Option<Vec<Value>> {
        match self.0.remove(name)? {
            Value::Array(list) => Some(list),
            Value::Null => None,
            other => {
                self.0.insert(name.to_owned(), other);
                None
            }
        }
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is left.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// Keeps what is left over of a foreign object under its format's name.
pub(crate) fn keep(extra: &mut Map<String, Value>, format: Format, rest: Fields) {
    if !rest.is_empty() {
        extra.insert(format.name().to_owned(), Value::Object(rest.rest()));
    }
}

/// What was kept of this format.
pub(crate) fn kept(extra: &Map<String, Value>, format: Format) -> Fields {
    Fields::of(extra.get(format.name()).cloned().unwrap_or_default())
}

/// An object under construction. What is not known is left out.
#[derive(Default)]
pub(crate) struct Object(pub(crate) Map<String, Value>);

impl Object {
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn maybe(mut self, name: &str, value: Option<impl Into<Value>>) -> Self {
        if let Some(value) = value {
            self.0.insert(name.to_owned(), value.into());
        }
        self
    }

    /// With what was kept, where nothing else was said.
    pub(crate) fn and(mut self, kept: Fields) -> Self {
        for (name, value) in kept.rest() {
            self.0.entry(name).or_insert(value);
        }
        self
    }

    /// With this, where nothing else was said.
    pub(crate) fn or(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.entry(name.to_owned()).or_insert_with(|| value.into());
        self
    }

    pub(crate) fn value(self) -> Value {
        Value::Object(self.0)
    }
}
