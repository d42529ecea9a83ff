//! What is no message, over HTTP: the library answers that with 415 and bare text, which a client takes for the wrong header.
//!
//! A body that is no JSON is a parse error, and JSON that is no message an invalid request, each with 400 and in the shape of
//! JSON-RPC. A header that does not fit keeps the library's status (406, 415), in the same shape.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest as _, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use rmcp::model::{ErrorCode, ErrorData, JsonRpcError, RequestId};
use serde_json::Value;

/// More than the library ever says of what is wrong.
const SAID_BYTES: usize = 4096;

/// Passes a message on, and puts what is said of one that is none into the protocol's words.
pub(super) async fn answer(request: Request, next: Next) -> Response {
    if request.method() != Method::POST {
        return in_shape(next.run(request).await).await;
    }
    let is_json = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let (parts, body) = request.into_parts();
    // Read by the server's own bound; a copy of it is no copy of the bytes.
    let body = match Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await {
        Ok(body) => body,
        Err(rejection) => return refuse(rejection.status(), None, rejection.body_text()),
    };
    let response = next.run(Request::from_parts(parts, Body::from(body.clone()))).await;
    // Of a body that says to be JSON, this is the library's word for one that it cannot read.
    if is_json && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        return unread(&body);
    }
    in_shape(response).await
}

/// Why a body is no message.
fn unread(body: &[u8]) -> Response {
    let (code, id, message) = match serde_json::from_slice::<Value>(body) {
        Err(_) if body.is_empty() => (ErrorCode::PARSE_ERROR, None, "the body is empty".to_owned()),
        Err(e) => (ErrorCode::PARSE_ERROR, None, format!("the body is no JSON: {e}")),
        Ok(Value::Array(_)) => {
            (ErrorCode::INVALID_REQUEST, None, "send messages one by one: MCP has no batches".to_owned())
        }
        Ok(value) => {
            let id = value.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
            (ErrorCode::INVALID_REQUEST, id, "the body is no message of JSON-RPC 2.0".to_owned())
        }
    };
    error(StatusCode::BAD_REQUEST, code, id, message)
}

/// What the library says in bare text, in the shape of an error.
async fn in_shape(response: Response) -> Response {
    let (status, is_bare) = (response.status(), !response.headers().contains_key(header::CONTENT_TYPE));
    if !(is_bare && status.is_client_error()) {
        return response;
    }
    let kept = response.headers().clone();
    let said = to_bytes(response.into_body(), SAID_BYTES).await.unwrap_or_default();
    let mut told = refuse(status, None, String::from_utf8_lossy(&said).into_owned());
    // Such as which methods there are.
    for (name, value) in &kept {
        if !told.headers().contains_key(name) && name != header::CONTENT_LENGTH {
            told.headers_mut().insert(name, value.clone());
        }
    }
    told
}

fn refuse(status: StatusCode, id: Option<RequestId>, message: String) -> Response {
    error(status, ErrorCode::INVALID_REQUEST, id, message)
}

fn error(status: StatusCode, code: ErrorCode, id: Option<RequestId>, message: String) -> Response {
    // Without an id if it cannot be read, as MCP has it since 2026; JSON-RPC itself would say null.
    (status, Json(JsonRpcError::new(id, ErrorData::new(code, message, None)))).into_response()
}
