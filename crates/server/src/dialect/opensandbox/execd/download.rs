//! Files on their way out: whole, a range of bytes, or some lines.

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use glasshouse_sandbox::{Error, ErrorKind, FileKind, Sandbox};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files::{absolute, failed};
use super::{Files, bad, fault, missing};
use crate::dialect::opensandbox::Service;
use crate::dialect::opensandbox::fault::{Answer, Fault};
use crate::dialect::opensandbox::model::ErrorResponse;
use crate::dialect::opensandbox::query::Query;
use crate::limits::{READ_PIECE, TEXT_BYTES};

pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new().routes(routes!(download))
}

/// Read a file
///
/// Whole; or a `Range` of bytes; or, with `offset` and `limit`, lines.
#[utoipa::path(get, path = "/files/download", tag = "files", params(
    ("path" = String, Query, description = "Which"),
    ("offset" = Option<u64>, Query, description = "The first line, from 1"),
    ("limit" = Option<u64>, Query, description = "How many lines"),
    ("Range" = Option<String>, Header, description = "`bytes=a-b`, `bytes=a-` or `bytes=-n`"),
), responses(
    (status = 200, description = "The file, or the lines", content_type = "application/octet-stream", body = Vec<u8>),
    (status = 206, description = "The range", content_type = "application/octet-stream", body = Vec<u8>),
    (status = 400, description = "That makes no sense", body = ErrorResponse),
    (status = 404, description = "There is no such file", body = ErrorResponse),
    (status = 416, description = "The file does not have that range", body = ErrorResponse),
))]
async fn download(Files(sandbox): Files, query: Query, headers: HeaderMap) -> Answer<Response> {
    let sandbox = &sandbox;
    let path = query.get("path").filter(|path| !path.is_empty()).ok_or_else(|| missing("path"))?;
    let path = absolute(sandbox, path).await?;
    let stat = sandbox.stat(&path, true).await.map_err(fault)?;
    if stat.kind == FileKind::Directory {
        return Err(bad("INVALID_FILE", format!("{path} is a directory")));
    }
    let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
    let number = |name| query.number(name).map_err(|fault| fault.coded("INVALID_REQUEST_BODY"));
    let (offset, limit) = (number("offset")?, number("limit")?);
    if offset.is_some() || limit.is_some() {
        if asked.is_some() {
            return Err(bad("INVALID_REQUEST_BODY", "ask for lines or for a range of bytes, not for both"));
        }
        if offset == Some(0) || limit == Some(0) {
            return Err(bad("INVALID_REQUEST_BODY", "offset and limit are at least 1"));
        }
        let text = lines(sandbox, &path, offset.unwrap_or(1), limit.unwrap_or(u64::MAX)).await?;
        return Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response());
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let attachment = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, disposition(name)),
        (header::ACCEPT_RANGES, "bytes".to_owned()),
    ];
    let Some(range) = asked.and_then(|asked| range(asked, stat.size)) else {
        if stat.size == 0 {
            // A file that claims to be empty may be one that the kernel makes up while it is read.
            let bytes = sandbox.read_file(&path, 0, Some(READ_PIECE)).await.map_err(fault)?;
            return Ok((attachment, bytes).into_response());
        }
        return Ok((attachment, body(sandbox, path, 0..stat.size).await?).into_response());
    };
    let Ok(range) = range else {
        let message = format!("{path} has {} bytes", stat.size);
        let size = [(header::CONTENT_RANGE, format!("bytes */{}", stat.size))];
        let fault = Fault::new(StatusCode::RANGE_NOT_SATISFIABLE, "INVALID_REQUEST_BODY", message);
        return Ok((size, fault).into_response());
    };
    let of = [(header::CONTENT_RANGE, format!("bytes {}-{}/{}", range.start, range.end - 1, stat.size))];
    let body = body(sandbox, path, range).await?;
    Ok((StatusCode::PARTIAL_CONTENT, attachment, of, body).into_response())
}

/// The bytes that a header asks for; an error if the file has none of them. What is not understood is not there: then the
/// whole file is sent.
fn range(text: &str, size: u64) -> Option<Result<Range<u64>, ()>> {
    let (from, to) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
    let (from, to) = (from.trim(), to.trim());
    let range = match (from.is_empty(), to.is_empty()) {
        (true, true) => return None,
        (true, false) => size.saturating_sub(to.parse().ok()?)..size,
        (false, true) => from.parse().ok()?..size,
        (false, false) => {
            let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
            if to < from {
                return None;
            }
            from..to.saturating_add(1).min(size)
        }
    };
    Some(if range.start < range.end { Ok(range) } else { Err(()) })
}

/// A name for the caller's side; letters that a header cannot have are written by their numbers.
fn disposition(name: &str) -> String {
    let plain: String = name
        .chars()
        .map(|c| match c {
            ' '..='~' if !"\"\\%".contains(c) => c,
            _ => '_',
        })
        .collect();
    let coded: String =
        form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20");
    format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{coded}")
}

/// A part of a file, read as it is taken. The first piece is there: what cannot be read at all is an error and no body.
async fn body(sandbox: &Sandbox, path: String, range: Range<u64>) -> Answer<Response> {
    let length = range.end - range.start;
    let first = piece(sandbox, &path, &range).await.map_err(fault)?;
    let sized = [(header::CONTENT_LENGTH, length.to_string())];
    if first.len() as u64 == length {
        return Ok((sized, first).into_response());
    }
    let left = range.start + first.len() as u64..range.end;
    let (sandbox, mut first) = (sandbox.clone(), Some(first));
    let state = (sandbox, path, left, first.take());
    let pieces = stream::try_unfold(state, |(sandbox, path, left, first)| async move {
        if let Some(first) = first {
            return Ok(Some((first, (sandbox, path, left, None))));
        }
        if left.is_empty() {
            return Ok(None);
        }
        let next = piece(&sandbox, &path, &left).await?;
        let left = left.start + next.len() as u64..left.end;
        Ok::<_, Error>(Some((next, (sandbox, path, left, None))))
    });
    Ok((sized, Body::from_stream(pieces)).into_response())
}

async fn piece(sandbox: &Sandbox, path: &str, left: &Range<u64>) -> Result<Bytes, Error> {
    let length = (left.end - left.start).min(READ_PIECE);
    let bytes = sandbox.read_file(path, left.start, Some(length)).await?;
    if bytes.is_empty() && length > 0 {
        return Err(Error::new(ErrorKind::Failed, format!("{path} became shorter while it was read")));
    }
    Ok(bytes.into())
}

/// Some lines of a file, without the end of the last.
async fn lines(sandbox: &Sandbox, path: &str, first: u64, count: u64) -> Answer<Vec<u8>> {
    let mut cut = Cut { skip: first - 1, left: count, text: Vec::new() };
    let mut at = 0;
    loop {
        let piece = sandbox.read_file(path, at, Some(READ_PIECE)).await.map_err(fault)?;
        at += piece.len() as u64;
        if piece.is_empty() || cut.take(&piece) {
            break;
        }
        if cut.text.len() as u64 > TEXT_BYTES {
            return Err(failed(format!(
                "these lines of {path} have more than {TEXT_BYTES} bytes; ask for fewer"
            )));
        }
    }
    if cut.text.last() == Some(&b'\n') {
        cut.text.pop();
        if cut.text.last() == Some(&b'\r') {
            cut.text.pop();
        }
    }
    Ok(cut.text)
}

/// Some lines, as they come.
struct Cut {
    skip: u64,
    left: u64,
    text: Vec<u8>,
}

impl Cut {
    /// Takes a piece. Whether that is all.
    fn take(&mut self, piece: &[u8]) -> bool {
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let ends = line.last() == Some(&b'\n');
            if self.skip > 0 {
                self.skip -= u64::from(ends);
                continue;
            }
            self.text.extend_from_slice(line);
            self.left -= u64::from(ends);
            if self.left == 0 {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_understood() {
        for (text, expected) in [
            ("bytes=0-9", Some(Ok(0..10))),
            ("bytes=5-", Some(Ok(5..20))),
            ("bytes=-5", Some(Ok(15..20))),
            ("bytes=-50", Some(Ok(0..20))),
            ("bytes=10-99", Some(Ok(10..20))),
            ("bytes=20-", Some(Err(()))),
            ("bytes=30-40", Some(Err(()))),
            ("bytes=-0", Some(Err(()))),
            ("bytes=0-18446744073709551615", Some(Ok(0..20))),
            ("bytes=9-3", None),
            ("bytes=0-1,3-4", None),
            ("lines=1-2", None),
            ("bytes=-", None),
        ] {
            assert_eq!(range(text, 20), expected, "{text}");
        }
    }

    fn check(first: u64, count: u64, expected: &str) {
        for size in [1, 3, 100] {
            let mut cut = Cut { skip: first - 1, left: count, text: Vec::new() };
            for piece in b"line1\nline2\nline3\nlast".chunks(size) {
                if cut.take(piece) {
                    break;
                }
            }
            assert_eq!(String::from_utf8(cut.text).unwrap(), expected, "{first} {count} {size}");
        }
    }

    #[test]
    fn lines_are_cut_out() {
        check(1, 1, "line1\n");
        check(2, 2, "line2\nline3\n");
        check(3, 9, "line3\nlast");
        check(9, 9, "");
    }

    #[test]
    fn names_cannot_break_out_of_their_header() {
        assert_eq!(disposition("a.txt"), "attachment; filename=\"a.txt\"; filename*=UTF-8''a.txt");
        let odd = disposition("a\"\r\n b\u{fc}");
        assert!(odd.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{odd}");
        assert_eq!(odd.matches('"').count(), 2);
    }

    proptest::proptest! {
        #[test]
        fn a_range_that_is_understood_lies_in_the_file(
            text in "(bytes=)?[-0-9,a ]{0,24}", size in proptest::num::u64::ANY,
        ) {
            if let Some(Ok(range)) = range(&text, size) {
                proptest::prop_assert!(range.start < range.end && range.end <= size, "{range:?} of {size}");
            }
        }
    }
}
