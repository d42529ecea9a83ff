//! What a tool is called, what it does, and what it wants: also in the words of others.

use serde_json::{Map, Value, json};

/// A tool as it is shown to whoever calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolInfo {
    /// Letters, digits, `_` and `-`.
    pub name: String,
    /// What it does, for a model to read.
    pub description: String,
    /// A JSON Schema of its parameters, which are an object.
    pub parameters: Value,
}

impl ToolInfo {
    /// As an entry of `tools` in a request to OpenAI's chat completions.
    pub fn openai(&self) -> Value {
        json!({
            "type": "function",
            "function": {
                "name": self.name, "description": self.description, "parameters": self.parameters,
            },
        })
    }

    /// As an entry of the answer to MCP's `tools/list`.
    pub fn mcp(&self) -> Value {
        json!({ "name": self.name, "description": self.description, "inputSchema": self.parameters })
    }

    /// As `glass tools --json` shows it.
    pub fn to_json(&self) -> Value {
        json!({ "name": self.name, "description": self.description, "parameters": self.parameters })
    }

    /// A tool of ours: `properties` is an object of JSON Schemas.
    pub(super) fn ours(name: &str, description: &str, required: &[&str], properties: Value) -> ToolInfo {
        let mut schema = Map::new();
        schema.insert("type".into(), json!("object"));
        schema.insert("properties".into(), properties);
        schema.insert("required".into(), json!(required));
        schema.insert("additionalProperties".into(), json!(false));
        ToolInfo { name: name.into(), description: description.into(), parameters: Value::Object(schema) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_carry_the_same_schema() {
        let tool = ToolInfo::ours("look", "Looks.", &["at"], json!({ "at": { "type": "string" } }));
        let (openai, mcp) = (tool.openai(), tool.mcp());
        assert_eq!((&openai["type"], &openai["function"]["name"]), (&json!("function"), &json!("look")));
        assert_eq!(openai["function"]["parameters"], mcp["inputSchema"]);
        assert_eq!(mcp["inputSchema"]["required"], json!(["at"]));
    }
}
