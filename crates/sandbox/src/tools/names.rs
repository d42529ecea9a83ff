//! What others call our tools and their parameters, in one table, and what was probably meant by a word nobody knows.

use serde_json::{Map, Value, json};

use crate::files::FILE_STEP;

/// A name that others have for one of our tools.
struct Alias {
    theirs: &'static str,
    ours: &'static str,
    /// Their parameters, where ours are called otherwise, beyond those that hold for the tool by any name.
    params: &'static [(&'static str, &'static str)],
    /// What theirs means without saying so.
    fill: &'static [(&'static str, Fill)],
    /// Their parameters that change nothing in what is done, as long as they say this.
    idle: &'static [(&'static str, Idle)],
    /// It is ours only if they say this.
    when: Option<(&'static str, Option<&'static str>)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Idle {
    Always,
    UnlessYes,
    /// Nothing, or this number.
    Number(i64),
    /// Nothing, or this word.
    Word(&'static str),
}

impl Idle {
    fn is_met(self, said: &Value) -> bool {
        match self {
            Idle::Always => true,
            Idle::UnlessYes => *said == json!(false),
            Idle::Number(number) => said.is_null() || *said == json!(number),
            Idle::Word(word) => said.is_null() || *said == json!(word),
        }
    }
}

/// What OpenHands says beside a command: who looks at it, and that it is one and no keys for the last one.
const BESIDE_A_COMMAND: &[(&str, Idle)] = &[
    ("blocking", Idle::Always),
    ("confirmation_state", Idle::Always),
    ("hidden", Idle::Always),
    ("is_static", Idle::Always),
    ("security_risk", Idle::Always),
    ("summary", Idle::Always),
    ("is_input", Idle::UnlessYes),
    ("reset", Idle::UnlessYes),
];

/// What OpenHands says beside a file: all of it, unless it says otherwise.
const BESIDE_A_FILE: &[(&str, Idle)] = &[
    ("start", Idle::Number(0)),
    ("end", Idle::Number(-1)),
    ("impl_source", Idle::Always),
    ("security_risk", Idle::Always),
    ("view_range", Idle::Word("")),
];

/// What it says beside an edit: what other edits than this one need.
const BESIDE_AN_EDIT: &[(&str, Idle)] = &[
    ("start", Idle::Number(1)),
    ("end", Idle::Number(-1)),
    ("content", Idle::Word("")),
    ("file_text", Idle::Word("")),
    ("insert_line", Idle::Word("")),
    ("impl_source", Idle::Always),
    ("security_risk", Idle::Always),
    ("command", Idle::Word("str_replace")),
];

const BESIDE_A_NEW_FILE: &[(&str, Idle)] = &[
    ("start", Idle::Number(1)),
    ("end", Idle::Number(-1)),
    ("content", Idle::Word("")),
    ("old_str", Idle::Word("")),
    ("new_str", Idle::Word("")),
    ("insert_line", Idle::Word("")),
    ("impl_source", Idle::Always),
    ("security_risk", Idle::Always),
    ("command", Idle::Word("create")),
];

const BESIDE_CODE: &[(&str, Idle)] = &[
    ("confirmation_state", Idle::Always),
    ("hidden", Idle::Always),
    ("include_extra", Idle::Always),
    ("kernel_init_code", Idle::Word("")),
    ("security_risk", Idle::Always),
];

#[derive(Clone, Copy)]
enum Fill {
    Text(&'static str),
    Yes,
}

const fn alias(theirs: &'static str, ours: &'static str) -> Alias {
    Alias { theirs, ours, params: &[], fill: &[], idle: &[], when: None }
}

const ALIASES: &[Alias] = &[
    alias("bash", "shell"),
    Alias { idle: BESIDE_A_COMMAND, ..alias("run", "shell") },
    Alias { idle: BESIDE_A_COMMAND, ..alias("execute_bash", "shell") },
    Alias { idle: BESIDE_A_COMMAND, ..alias("terminal", "shell") },
    alias("read_file", "file_read"),
    alias("open", "file_read"),
    alias("cat", "file_read"),
    alias("write_file", "file_write"),
    Alias { fill: &[("content", Fill::Text(""))], ..alias("create", "file_write") },
    alias("grep", "search"),
    Alias { params: &[("search_term", "pattern"), ("dir", "path")], ..alias("search_dir", "search") },
    Alias { params: &[("search_term", "pattern"), ("file", "path")], ..alias("search_file", "search") },
    Alias {
        params: &[("file_name", "file_pattern"), ("dir", "path")],
        fill: &[("pattern", Fill::Text("")), ("files_only", Fill::Yes)],
        ..alias("find_file", "search")
    },
    alias("edit_file", "file_edit"),
    alias("list_dir", "file_list"),
    alias("ls", "file_list"),
    alias("delete_file", "file_delete"),
    alias("ipython", "python"),
    alias("finish", "submit"),
    Alias { idle: BESIDE_A_FILE, ..alias("read", "file_read") },
    Alias { idle: BESIDE_A_FILE, ..alias("write", "file_write") },
    // Three things by one name: a text for another, a new file, and (in knowlyr's records) a whole one. What a model was
    // asked to work in, lines put between others, and taking an edit back are none of ours.
    Alias {
        idle: BESIDE_AN_EDIT,
        when: Some(("command", Some("str_replace"))),
        ..alias("edit", "file_edit")
    },
    Alias { idle: BESIDE_A_NEW_FILE, when: Some(("command", Some("create"))), ..alias("edit", "file_write") },
    Alias { when: Some(("command", None)), ..alias("edit", "file_write") },
    // It had one interpreter for all calls; ours has a fresh one for each.
    Alias { idle: BESIDE_CODE, ..alias("run_ipython", "python") },
];

/// Names that others have for parameters of our tools, whatever the tool was called.
const PARAMS: &[(&str, &[(&str, &str)])] = &[
    ("shell", &[("cmd", "command"), ("cwd", "work_dir"), ("workdir", "work_dir")]),
    ("file_read", &[("file_path", "path"), ("filename", "path"), ("file", "path")]),
    (
        "file_write",
        &[("file_path", "path"), ("filename", "path"), ("file_text", "content"), ("text", "content")],
    ),
    (
        "file_edit",
        &[
            ("file_path", "path"),
            ("old_str", "old"),
            ("old_string", "old"),
            ("new_str", "new"),
            ("new_string", "new"),
            ("replace_all", "all"),
            ("diff", "patch"),
        ],
    ),
    ("file_list", &[("dir", "path"), ("directory", "path")]),
    ("file_delete", &[("file_path", "path")]),
    (
        "search",
        &[("query", "pattern"), ("regex", "pattern"), ("include", "file_pattern"), ("glob", "file_pattern")],
    ),
    ("git", &[("command", "subcommand")]),
    ("python", &[("script", "code")]),
    ("submit", &[("message", "answer"), ("final_answer", "answer")]),
];

/// The call as ours: the tool's name, and its parameters.
///
/// Names that are in no table, and parameters that are no object, stay as they are. So does a parameter whose own name
/// is given as well: then nobody can know which of the two was meant, and the check of parameters says so.
pub fn canonical(name: &str, params: Value) -> (String, Value) {
    let says = |name: &str| params.get(name).filter(|said| !said.is_null()).map(Value::as_str);
    let fits = |(name, word): (&str, Option<&str>)| says(name) == word.map(Some);
    let alias = ALIASES.iter().find(|alias| alias.theirs == name && alias.when.is_none_or(fits));
    let ours = alias.map_or(name, |alias| alias.ours);
    let Value::Object(mut params) = params else { return (ours.to_owned(), params) };
    for (theirs, idle) in alias.map_or(&[][..], |alias| alias.idle) {
        if params.get(*theirs).is_some_and(|said| idle.is_met(said)) {
            params.remove(*theirs);
        }
    }
    let renames = alias.map_or(&[][..], |alias| alias.params);
    let common = PARAMS.iter().find(|(tool, _)| *tool == ours).map_or(&[][..], |(_, renames)| *renames);
    for (theirs, own) in renames.iter().chain(common) {
        rename(&mut params, theirs, own);
    }
    for (own, fill) in alias.map_or(&[][..], |alias| alias.fill) {
        let value = match fill {
            Fill::Text(text) => json!(text),
            Fill::Yes => json!(true),
        };
        params.entry(*own).or_insert(value);
    }
    (ours.to_owned(), Value::Object(params))
}

fn rename(params: &mut Map<String, Value>, theirs: &str, ours: &str) {
    if !params.contains_key(ours)
        && let Some(value) = params.remove(theirs)
    {
        params.insert(ours.to_owned(), value);
    }
}

/// Steps of a trajectory that are no calls of tools: a plain command, what a caller did to files, and a thought. No tool can
/// have such a name, or nobody could tell its calls from these.
pub(super) const STEPS: [&str; 3] = ["exec", FILE_STEP, "think"];

/// Whether a call by this name does nothing in a box: an agent thinks, or says that it is done.
pub(super) fn is_no_action(name: &str) -> bool {
    matches!(name, "think" | "submit" | "finish")
}

/// Of what is known, what was probably meant; else all that is known.
pub(super) fn hint<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(word, known.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => {
            let all: Vec<String> = known.map(|name| format!("`{name}`")).collect();
            if all.is_empty() { "there is none".to_owned() } else { format!("there is {}", all.join(", ")) }
        }
    }
}

/// The nearest of the words, if one is near.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let candidates = known.map(|name| (distance(&word, name), name));
    let (distance, name) = candidates.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.len() / 4).then_some(name)
}

/// How many letters have to be changed, added, left out or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    /// Nobody means a word of ours with a longer one.
    const LONG: usize = 64;
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(LONG).collect(), b.chars().take(LONG).collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = match (i, j) {
                (0, _) => j,
                (_, 0) => i,
                _ => {
                    let change = usize::from(a[i - 1] != b[j - 1]);
                    let mut least =
                        (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
                    if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                        least = least.min(rows[i - 2][j - 2] + 1);
                    }
                    least
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, params: Value, ours: &str, expected: Value) {
        assert_eq!(canonical(name, params), (ours.to_owned(), expected));
    }

    #[test]
    fn the_names_of_others_become_ours() {
        check("bash", json!({"command": "ls"}), "shell", json!({"command": "ls"}));
        check("read_file", json!({"file_path": "a"}), "file_read", json!({"path": "a"}));
        check("create", json!({"filename": "a"}), "file_write", json!({"path": "a", "content": ""}));
        check(
            "search_file",
            json!({"search_term": "x", "file": "a"}),
            "search",
            json!({"pattern": "x", "path": "a"}),
        );
        let beside =
            json!({"command": "ls", "is_input": false, "reset": false, "hidden": true, "blocking": false});
        check("terminal", beside, "shell", json!({"command": "ls"}));
        let keys = json!({"command": "C-c", "is_input": true});
        check("run", keys.clone(), "shell", keys);
        check(
            "find_file",
            json!({"file_name": "*.rs", "dir": "src"}),
            "search",
            json!({"file_pattern": "*.rs", "path": "src", "pattern": "", "files_only": true}),
        );
    }

    #[test]
    fn actions_of_openhands_become_ours_where_we_have_the_same() {
        let read = json!({"path": "a", "start": 0, "end": -1, "impl_source": "default", "view_range": null});
        check("read", read, "file_read", json!({"path": "a"}));
        let part = json!({"path": "a", "start": 3, "end": -1});
        check("read", part, "file_read", json!({"path": "a", "start": 3}));
        let write = json!({"path": "a", "content": "x", "start": 0, "end": -1});
        check("write", write, "file_write", json!({"path": "a", "content": "x"}));
        let edit = json!({
            "path": "a", "command": "str_replace", "old_str": "x", "new_str": "y", "file_text": null,
            "insert_line": null, "content": "", "start": 1, "end": -1, "impl_source": "oh_aci",
        });
        check("edit", edit, "file_edit", json!({"path": "a", "old": "x", "new": "y"}));
        let new =
            json!({"path": "a", "command": "create", "file_text": "x", "old_str": null, "new_str": null});
        check("edit", new, "file_write", json!({"path": "a", "content": "x"}));
        check(
            "edit",
            json!({"path": "a", "content": "x"}),
            "file_write",
            json!({"path": "a", "content": "x"}),
        );
        for command in ["insert", "undo_edit", "view"] {
            let other = json!({"path": "a", "command": command});
            check("edit", other.clone(), "edit", other);
        }
        let code = json!({"code": "1", "include_extra": true, "kernel_init_code": ""});
        check("run_ipython", code, "python", json!({"code": "1"}));
    }

    #[test]
    fn what_is_ours_or_nobodys_stays() {
        check(
            "shell",
            json!({"command": "ls", "timeout": 3}),
            "shell",
            json!({"command": "ls", "timeout": 3}),
        );
        check("str_replace_editor", json!({"file_path": 1}), "str_replace_editor", json!({"file_path": 1}));
        check("bash", json!("ls"), "shell", json!("ls"));
        check("shell", json!({"cmd": "a", "command": "b"}), "shell", json!({"cmd": "a", "command": "b"}));
    }

    #[test]
    fn every_alias_leads_to_a_tool_and_to_parameters_that_it_has() {
        let tools = crate::tools::built_in();
        let has = |tool: &str, param: &str| {
            let tool = tools.iter().find(|info| info.name == tool).unwrap_or_else(|| panic!("{tool}"));
            assert!(tool.parameters["properties"].get(param).is_some(), "{}.{param}", tool.name);
        };
        for alias in ALIASES {
            assert!(tools.iter().all(|tool| tool.name != alias.theirs), "{} hides a tool", alias.theirs);
            alias.params.iter().for_each(|(_, param)| has(alias.ours, param));
            alias.fill.iter().for_each(|(param, _)| has(alias.ours, param));
        }
        for (tool, renames) in PARAMS {
            renames.iter().for_each(|(_, param)| has(tool, param));
        }
    }

    #[test]
    fn what_is_near_is_suggested_and_what_is_far_is_not() {
        let known = ["path", "content", "create_dirs"];
        let near = |word| nearest(word, known.iter().copied());
        assert_eq!(near("pth"), Some("path"));
        assert_eq!(near("apth"), Some("path"));
        assert_eq!(near("contents"), Some("content"));
        assert_eq!(near("createDirs"), Some("create_dirs"));
        assert_eq!(near("command"), None);
        assert_eq!(hint("zzz", ["a", "b"].into_iter()), "there is `a`, `b`");
        nearest(&"x".repeat(1 << 20), known.iter().copied());
    }
}
