//! The document that tells of the API: what the routes say of themselves, and what holds for all of them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Says what the document is about.
pub(super) fn describe(document: &mut utoipa::openapi::OpenApi) {
    document.info.title = "Glasshouse".to_owned();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    document.info.description = Some(
        "Boxes for code that is not trusted: OpenSandbox's protocol. All of it also answers without `/v1`."
            .to_owned(),
    );
}

/// Tells of what is passed on whole: to whatever listens in a box, and to MCP, which has a document of its own. Routes that take every
/// method and every path cannot say that of themselves.
pub(super) fn add_open_ended(document: &mut Value, mcp: bool) {
    let port = json!({ "name": "port", "in": "path", "required": true, "schema": { "type": "integer", "minimum": 1, "maximum": 65535 } });
    let about = "HTTP, streams piece by piece, and WebSockets. Keys, tokens and cookies are not passed on.";
    for (path, name, summary) in [
        ("/v1/sandboxes/{id}/proxy/{port}", "port", "Reach what listens on a port of a box"),
        (
            "/v1/sandboxes/{id}/proxy/{port}/{rest}",
            "port_path",
            "Reach a path of what listens on a port of a box",
        ),
        ("/v1/sandboxes/{id}/proxy/44772/proxy/{port}", "execd_port", "The same, as execd passes it on"),
        (
            "/v1/sandboxes/{id}/proxy/44772/proxy/{port}/{rest}",
            "execd_port_path",
            "The same, as execd passes it on",
        ),
    ] {
        for method in ["get", "post", "put", "patch", "delete"] {
            document["paths"][path][method] = json!({
                "tags": ["sandboxes"], "summary": summary, "description": about,
                "operationId": format!("{method}_{name}"), "parameters": [port],
                "responses": { "default": { "description": "What it answers; 502 if nothing listens there" } },
            });
        }
    }
    if mcp {
        document["paths"]["/mcp"]["post"] = json!({
            "tags": ["server"], "summary": "Speak the Model Context Protocol", "operationId": "mcp",
            "description": "Streamable HTTP, without sessions: a JSON-RPC message each, `tools/list` tells what there is.",
            "requestBody": { "required": true, "content": { "application/json": { "schema": { "type": "object" } } } },
            "responses": {
                "200": {
                    "description": "The answer, a JSON-RPC message",
                    "content": { "application/json": { "schema": { "type": "object" } } },
                },
                "202": { "description": "A message that is not answered" },
                "default": { "description": "It is no message of this protocol, or you may not" },
            },
        });
    }
}

/// Says what holds for all: what a path names, the one shape of errors, and a name of its own for each operation.
pub(super) fn complete(document: &mut Value) {
    let header = |name: &str, about: &str| json!({ "type": "apiKey", "in": "header", "name": name, "description": about });
    document["components"]["securitySchemes"] = json!({
        "key": header("OPEN-SANDBOX-API-KEY", "A key of `glass key add` or of `--key-file`"),
        "bearer": { "type": "http", "scheme": "bearer", "description": "The same key" },
        "endpoint": header("OPENSANDBOX-SECURE-ACCESS", "What an endpoint's answer names, for ports of that one box"),
    });
    // On this machine's own address no key is wanted unless there is one: the empty requirement.
    document["security"] = json!([{}, { "key": [] }, { "bearer": [] }, { "endpoint": [] }]);
    let error = |about: &str| {
        let schema = json!({ "$ref": "#/components/schemas/ErrorResponse" });
        json!({ "description": about, "content": { "application/json": { "schema": schema } } })
    };
    let mut names = BTreeSet::new();
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object_mut().into_iter().flatten() {
            if !operation["parameters"].is_array() {
                operation["parameters"] = json!([]);
            }
            for name in path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
                if let Some(known) = operation["parameters"].as_array_mut()
                    && !known.iter().any(|one| one["name"] == name && one["in"] == "path")
                {
                    let kind = if matches!(name, "uid" | "gid") { "integer" } else { "string" };
                    let schema = json!({ "type": kind });
                    known.push(json!({ "name": name, "in": "path", "required": true, "schema": schema }));
                }
            }
            if let Some(answers) = operation["responses"].as_object_mut() {
                answers.entry("default").or_insert_with(|| {
                    error("It was not done: what is wrong with it, or with the box, or that you may not")
                });
            }
            let name = operation["operationId"].as_str().unwrap_or_default().to_owned();
            if !names.insert(name) {
                let own = operation_name(method, path);
                operation["operationId"] = json!(own);
                names.insert(own);
            }
        }
    }
}

/// What an operation is called whose own name others have as well: what is done, and to what.
fn operation_name(method: &str, path: &str) -> String {
    let path = path.replace("/sandboxes/{id}/proxy/", "/");
    let words = path.split('/').filter(|part| !part.is_empty() && !part.starts_with('{') && *part != "v1");
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_").replace('-', "_")
}
