//! `file_edit`: a piece of text is replaced, or a patch is applied. All of it, or nothing.

use memchr::memmem::Finder;
use serde_json::json;

use super::info::ToolInfo;
use super::patch::{self, FilePatch};
use super::result::ToolResult;
use super::schema::Params;
use crate::error::{ErrorKind, Result};
use crate::sandbox::Sandbox;

/// The largest file that is edited, before and after.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The largest patch.
const PATCH_BYTES_MAX: usize = 4 << 20;
/// Places that an answer names.
const PLACES_SHOWN: usize = 5;

pub(super) fn info() -> ToolInfo {
    ToolInfo::ours(
        "file_edit",
        "Edit files of the box. Either replace `old` by `new` in the file `path`, where `old` has to occur \
         exactly as given and exactly once, unless `all` is true; or apply a unified diff given as `patch`, \
         all of it or nothing.",
        &[],
        json!({
            "path": {
                "type": "string", "minLength": 1,
                "description": "Which file; relative to the working directory of the box. A patch names \
                                its files itself, unless this is given",
            },
            "old": { "type": "string", "description": "The text to be replaced, with its white space" },
            "new": { "type": "string", "description": "The text in its place; empty removes it" },
            "all": { "type": "boolean", "default": false, "description": "Replace every occurrence" },
            "patch": {
                "type": "string", "minLength": 1,
                "description": "A unified diff, in place of old and new",
            },
        }),
    )
}

pub(super) async fn run(sandbox: &Sandbox, params: &Params) -> Result<ToolResult> {
    let done = match (params.given("patch"), params.given("path"), params.given("old"), params.given("new")) {
        (Some(text), path, None, None) => apply(sandbox, path, text).await?,
        (None, Some(path), Some(old), Some(new)) => {
            replace(sandbox, path, Replace { old, new, all: params.flag("all") }).await?
        }
        (Some(_), ..) => Err(Refused::call("`patch` stands alone, without `old` and `new`")),
        (None, None, ..) => Err(Refused::call("the parameter `path` is missing (which file to edit)")),
        (None, _, None, _) => Err(Refused::call("the parameter `old` is missing; or give a `patch`")),
        (None, _, _, None) => Err(Refused::call("the parameter `new` is missing (\"\" removes the text)")),
    };
    Ok(match done {
        Ok(said) => ToolResult::done(said),
        Err(Refused { code, why }) => ToolResult::failed(code, format!("file_edit: {why}")),
    })
}

/// Why nothing was changed.
struct Refused {
    code: i32,
    why: String,
}

impl Refused {
    fn call(why: &str) -> Refused {
        Refused { code: super::BAD_CALL, why: why.into() }
    }

    fn text(why: String) -> Refused {
        Refused { code: 1, why }
    }
}

type Done = std::result::Result<String, Refused>;

#[derive(Clone, Copy)]
struct Replace<'a> {
    old: &'a str,
    new: &'a str,
    all: bool,
}

async fn replace(sandbox: &Sandbox, path: &str, edit: Replace<'_>) -> Result<Done> {
    let before = match read(sandbox, path).await? {
        Ok(Some(before)) => before,
        Ok(None) => return Ok(Err(Refused::text(format!("{path} is not there; `file_write` makes files")))),
        Err(refused) => return Ok(Err(refused)),
    };
    match replaced(&before, edit) {
        Ok((after, count)) => {
            sandbox.write_file(path, &after, None).await?;
            let places = if count == 1 { "1 place".to_owned() } else { format!("{count} places") };
            Ok(Ok(format!("replaced {places} in {path}\n")))
        }
        Err(why) => Ok(Err(Refused::text(format!("{path}: {why}")))),
    }
}

/// The text after an edit, and how often it was changed.
fn replaced(before: &[u8], edit: Replace<'_>) -> std::result::Result<(Vec<u8>, usize), String> {
    let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
    if old.is_empty() {
        return Err("`old` is empty; `file_write` writes whole files".into());
    }
    if old == new {
        return Err("`old` and `new` are the same; nothing would change".into());
    }
    let finder = Finder::new(old);
    let count = finder.find_iter(before).count();
    match count {
        0 => return Err(absent(before, edit.old)),
        1 => {}
        _ if edit.all => {}
        count => {
            let lines = finder.find_iter(before).take(PLACES_SHOWN).map(|at| line_of(before, at).to_string());
            let lines = lines.collect::<Vec<_>>().join(", ");
            let more = if count > PLACES_SHOWN { ", …" } else { "" };
            return Err(format!(
                "`old` occurs {count} times, on lines {lines}{more}; give more of the text around the one \
                 that is meant, or say `all`"
            ));
        }
    }
    // A short text that stands everywhere, and a long one in its place, would make a file without end.
    let size = (before.len() - count * old.len()) as u64 + count as u64 * new.len() as u64;
    if size > FILE_BYTES_MAX {
        return Err(format!("it would have {size} bytes then, more than {FILE_BYTES_MAX}"));
    }
    let mut after = Vec::with_capacity(size as usize);
    let mut from = 0;
    for at in finder.find_iter(before) {
        after.extend_from_slice(&before[from..at]);
        after.extend_from_slice(new);
        from = at + old.len();
    }
    after.extend_from_slice(&before[from..]);
    Ok((after, count))
}

fn line_of(text: &[u8], at: usize) -> usize {
    text[..at].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// Why a text is not there, as far as that can be told.
fn absent(text: &[u8], old: &str) -> String {
    let crlf = old.replace('\n', "\r\n");
    if crlf != old && memchr::memmem::find(text, crlf.as_bytes()).is_some() {
        return "`old` occurs 0 times; the lines of this file end with \\r\\n".into();
    }
    let first = old.trim().lines().next().unwrap_or_default().trim();
    let same = |line: &[u8]| !first.is_empty() && String::from_utf8_lossy(line).trim() == first;
    match text.split(|&byte| byte == b'\n').position(same) {
        Some(line) => format!(
            "`old` occurs 0 times; its first line is there on line {}, but with other white space or \
             followed by other lines",
            line + 1
        ),
        None => "`old` occurs 0 times".into(),
    }
}

/// A file's bytes; `None` if there is none.
async fn read(sandbox: &Sandbox, path: &str) -> Result<std::result::Result<Option<Vec<u8>>, Refused>> {
    match sandbox.read_file(path, 0, Some(FILE_BYTES_MAX + 1)).await {
        Ok(bytes) if bytes.len() as u64 > FILE_BYTES_MAX => {
            let why = format!("{path} is larger than {FILE_BYTES_MAX} bytes, which is too much to edit");
            Ok(Err(Refused::text(why)))
        }
        Ok(bytes) => Ok(Ok(Some(bytes))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Ok(None)),
        Err(e) => Err(e),
    }
}

/// A file as a patch wants it.
struct Change {
    path: String,
    /// None: it goes.
    after: Option<Vec<u8>>,
    mode: Option<u32>,
}

async fn apply(sandbox: &Sandbox, path: Option<&str>, text: &str) -> Result<Done> {
    if text.len() > PATCH_BYTES_MAX {
        return Ok(Err(Refused::text(format!("the patch is larger than {PATCH_BYTES_MAX} bytes"))));
    }
    let patches = match patch::parse(text, path) {
        Ok(patches) => patches,
        Err(why) => return Ok(Err(Refused::text(format!("the patch cannot be read: {why}")))),
    };
    // First everything is worked out, then everything is written: a patch that does not fit changes nothing.
    let mut changes: Vec<Change> = Vec::new();
    for patch in &patches {
        match change(sandbox, patch, &changes).await? {
            Ok(made) => changes.extend(made),
            Err(refused) => return Ok(Err(refused)),
        }
    }
    let mut said = String::new();
    for Change { path, after, mode } in &changes {
        match after {
            Some(bytes) => {
                sandbox.write_file(path, bytes, *mode).await?;
                said.push_str(&format!("patched {path}\n"));
            }
            None => {
                sandbox.remove_file(path, false).await?;
                said.push_str(&format!("removed {path}\n"));
            }
        }
    }
    Ok(Ok(said))
}

/// What a patch makes of one file, given what is to be done before it.
async fn change(
    sandbox: &Sandbox,
    patch: &FilePatch,
    before: &[Change],
) -> Result<std::result::Result<Vec<Change>, Refused>> {
    let mut changes = Vec::new();
    let text = match &patch.old {
        None => {
            let new = patch.new.as_deref().unwrap_or_default();
            if !matches!(read(sandbox, new).await?, Ok(None)) {
                let why = format!("{new} is to be made by the patch, and is there already");
                return Ok(Err(Refused::text(why)));
            }
            Vec::new()
        }
        Some(old) => {
            if before.iter().any(|change| change.path == *old) {
                return Ok(Err(Refused::text(format!("the patch changes {old} twice"))));
            }
            match read(sandbox, old).await? {
                Ok(Some(text)) => text,
                Ok(None) => return Ok(Err(Refused::text(format!("{old} is not there")))),
                Err(refused) => return Ok(Err(refused)),
            }
        }
    };
    let after = match patch.apply(&text) {
        Ok(after) => after,
        Err(why) => {
            let name = patch.old.as_ref().or(patch.new.as_ref()).map_or("", String::as_str);
            let why = format!("the patch does not fit {name}: {why}; nothing was changed");
            return Ok(Err(Refused::text(why)));
        }
    };
    if let Some(new) = &patch.new {
        changes.push(Change { path: new.clone(), after: Some(after), mode: patch.mode });
    }
    if let Some(old) = &patch.old
        && patch.new.as_ref() != Some(old)
    {
        changes.push(Change { path: old.clone(), after: None, mode: None });
    }
    Ok(Ok(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit<'a>(old: &'a str, new: &'a str, all: bool) -> Replace<'a> {
        Replace { old, new, all }
    }

    #[test]
    fn one_place_is_replaced_and_several_only_when_all_are_meant() {
        let text = b"a b\na c\n";
        assert_eq!(replaced(text, edit("a b", "x", false)), Ok((b"x\na c\n".to_vec(), 1)));
        assert_eq!(replaced(text, edit("a", "", true)), Ok((b" b\n c\n".to_vec(), 2)));
        let why = replaced(text, edit("a", "x", false)).unwrap_err();
        assert!(why.contains("2 times, on lines 1, 2;"), "{why}");
        assert_eq!(replaced(b"aaa", edit("aa", "b", true)), Ok((b"ba".to_vec(), 1)));
        assert_eq!(replaced(b"\xff old", edit("old", "new", false)), Ok((b"\xff new".to_vec(), 1)));
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        let why = |text: &[u8], old| replaced(text, edit(old, "n", false)).unwrap_err();
        assert!(why(b"x\r\ny\r\n", "x\ny").contains("\\r\\n"));
        assert!(why(b"a\n\tif x:\n", "    if x:\n").contains("on line 2"));
        assert!(why(b"abc", "zzz").ends_with("0 times"));
        assert!(why(b"abc", "").contains("empty"));
        assert!(replaced(b"abc", edit("a", "a", false)).unwrap_err().contains("same"));
    }

    #[test]
    fn a_file_does_not_grow_without_end() {
        let (text, long) = (vec![b'a'; 1 << 20], "b".repeat(1 << 20));
        let why = replaced(&text, edit("a", &long, true)).unwrap_err();
        assert!(why.contains("1099511627776 bytes"), "{why}");
    }
}
