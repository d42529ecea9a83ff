//! `file_edit`: a piece of text is replaced, or a patch is applied. All of it, or nothing.

use glasshouse_protocol::file::FileStat;
use memchr::memmem::Finder;
use serde_json::json;

use super::info::ToolInfo;
use super::patch::{self, FilePatch};
use super::result::ToolResult;
use super::schema::Params;
use crate::error::{Error, ErrorKind, Result};
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
    /// None: it is made.
    before: Option<Vec<u8>>,
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
    let mut undo = Vec::new();
    for change in &changes {
        let Err(e) = carry_out(sandbox, change, &mut undo).await else { continue };
        let path = &change.path;
        return match put_back(sandbox, undo).await {
            Ok(()) => {
                Err(Error::new(e.kind(), format!("file_edit: {path} cannot be patched: {e}; nothing was changed")))
            }
            Err(left) => {
                let message = format!("file_edit: {path} cannot be patched: {e}; and not all is as before: {left}");
                Err(Error::new(e.kind(), message))
            }
        };
    }
    let said = changes.iter().map(|change| match change.after {
        Some(_) => format!("patched {}\n", change.path),
        None => format!("removed {}\n", change.path),
    });
    Ok(Ok(said.collect()))
}

/// How one thing that was done is undone.
enum Undo<'a> {
    /// A file or a directory that was made.
    Remove(String),
    /// A file that was changed or removed.
    Write { path: &'a str, bytes: &'a [u8], stat: FileStat },
}

/// Does one thing that a patch wants; what undoes it is noted before.
async fn carry_out<'a>(sandbox: &Sandbox, change: &'a Change, undo: &mut Vec<Undo<'a>>) -> Result<()> {
    let Change { path, before, after, mode } = change;
    match before {
        Some(bytes) => undo.push(Undo::Write { path, bytes, stat: sandbox.stat(path, true).await? }),
        None => {
            for dir in missing_above(sandbox, path).await? {
                undo.push(Undo::Remove(dir));
            }
            undo.push(Undo::Remove(path.clone()));
        }
    }
    match after {
        Some(bytes) => sandbox.write_file(path, bytes, *mode).await,
        None => sandbox.remove_file(path, false).await,
    }
}

/// The directories that a file's writing would make, the uppermost first.
async fn missing_above(sandbox: &Sandbox, path: &str) -> Result<Vec<String>> {
    let mut missing = Vec::new();
    for (at, _) in path.match_indices('/').filter(|(at, _)| *at > 0).collect::<Vec<_>>().into_iter().rev() {
        match sandbox.stat(&path[..at], true).await {
            Err(e) if e.kind() == ErrorKind::NotFound => missing.push(path[..at].to_owned()),
            found => {
                found?;
                break;
            }
        }
    }
    missing.reverse();
    Ok(missing)
}

/// Undoes what was done, the last first. What could not be undone is told.
async fn put_back(sandbox: &Sandbox, undo: Vec<Undo<'_>>) -> std::result::Result<(), String> {
    let mut left = Vec::new();
    for undo in undo.into_iter().rev() {
        let (path, undone) = match undo {
            Undo::Remove(path) => match sandbox.remove_file(&path, false).await {
                // It never came so far.
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                removed => (path, removed),
            },
            Undo::Write { path, bytes, stat } => {
                let mut undone = sandbox.write_file(path, bytes, Some(stat.mode)).await;
                if undone.is_ok() && sandbox.stat(path, true).await.is_ok_and(|now| (now.uid, now.gid) != (stat.uid, stat.gid)) {
                    undone = sandbox.chown(path, Some(stat.uid), Some(stat.gid)).await;
                }
                // Last: a write takes set-id bits away, and another owner too.
                if undone.is_ok() && stat.mode & 0o6000 != 0 {
                    undone = sandbox.chmod(path, stat.mode).await;
                }
                (path.to_owned(), undone)
            }
        };
        if let Err(e) = undone {
            left.push(format!("{path}: {e}"));
        }
    }
    if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
}

/// What a patch makes of one file, given what is to be done before it.
async fn change(
    sandbox: &Sandbox,
    patch: &FilePatch,
    earlier: &[Change],
) -> Result<std::result::Result<Vec<Change>, Refused>> {
    let FilePatch { old, new, .. } = patch;
    for path in [old, new].into_iter().flatten() {
        if earlier.iter().any(|change| is_same(&change.path, path)) {
            return Ok(Err(Refused::text(format!("the patch changes {path} twice; nothing was changed"))));
        }
    }
    let stays = matches!((old, new), (Some(old), Some(new)) if is_same(old, new));
    if let Some(new) = new
        && !stays
        && !matches!(read(sandbox, new).await?, Ok(None))
    {
        let why = format!("{new} is to be made by the patch, and is there already; nothing was changed");
        return Ok(Err(Refused::text(why)));
    }
    let text = match old {
        None => None,
        Some(old) => match read(sandbox, old).await? {
            Ok(Some(text)) => Some(text),
            Ok(None) => return Ok(Err(Refused::text(format!("{old} is not there; nothing was changed")))),
            Err(refused) => return Ok(Err(refused)),
        },
    };
    let after = match patch.apply(text.as_deref().unwrap_or_default()) {
        Ok(after) => after,
        Err(why) => {
            let name = old.as_ref().or(new.as_ref()).map_or("", String::as_str);
            let why = format!("the patch does not fit {name}: {why}; nothing was changed");
            return Ok(Err(Refused::text(why)));
        }
    };
    if let (Some(old), None) = (old, new)
        && !after.is_empty()
    {
        let why = format!("the patch removes {old}, which holds more than it says; nothing was changed");
        return Ok(Err(Refused::text(why)));
    }
    let mode = patch.mode;
    Ok(Ok(match (old, new) {
        (Some(old), Some(_)) if stays => {
            vec![Change { path: old.clone(), before: text, after: Some(after), mode }]
        }
        (old, new) => {
            let made =
                new.iter().map(|new| Change { path: new.clone(), before: None, after: Some(after.clone()), mode });
            let gone =
                old.iter().map(|old| Change { path: old.clone(), before: text.clone(), after: None, mode: None });
            made.chain(gone).collect()
        }
    }))
}

/// Whether two names are spellings of one path.
fn is_same(one: &str, other: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        path.split('/').filter(|part| !part.is_empty() && *part != ".").map(str::to_owned).collect()
    };
    one.starts_with('/') == other.starts_with('/') && parts(one) == parts(other)
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
