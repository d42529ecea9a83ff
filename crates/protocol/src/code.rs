//! Code contexts: interpreters that live in a box and remember, and what is run in them.
//!
//! A context is a process of the box. A run of code in it is an exec like any other (number, output, deadline, end), but
//! for who does its work: [`crate::Program::Code`]. Beside stdout and stderr it has a third stream, `results`: lines of
//! JSON, each a [`CodeResult`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::KERNEL_NAME_MAX;

/// The languages that a context can be of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Language {
    /// Python 3.6 or later.
    #[default]
    Python,
    /// JavaScript, by Node.js.
    Javascript,
    /// TypeScript, by a Node.js that strips types.
    Typescript,
    /// Bash.
    Bash,
    /// Whatever a kernel of Jupyter's speaks that the image has. Since version 6.
    Jupyter,
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 5] =
        [Language::Python, Language::Javascript, Language::Typescript, Language::Bash, Language::Jupyter];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Javascript => "javascript",
            Language::Typescript => "typescript",
            Language::Bash => "bash",
            Language::Jupyter => "jupyter",
        }
    }
}

impl std::str::FromStr for Language {
    type Err = String;

    fn from_str(name: &str) -> Result<Language, String> {
        match name {
            "python" | "python3" | "py" => Ok(Language::Python),
            "javascript" | "js" | "node" => Ok(Language::Javascript),
            "typescript" | "ts" => Ok(Language::Typescript),
            "bash" | "sh" | "shell" => Ok(Language::Bash),
            "jupyter" | "ipython" => Ok(Language::Jupyter),
            other => Err(format!(
                "no language is called {other:?}; there are python, javascript, typescript, bash, and jupyter:NAME for \
                 the kernels that the box has"
            )),
        }
    }
}

/// What stands before a language, where a kernel is meant that speaks it, whatever that is called. No kernel has such a name.
pub const KERNEL_OF: &str = "language:";

/// What a context is to speak, as people say it in one word: a language, or `jupyter:NAME` for a kernel of that name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tongue {
    /// The language.
    pub language: Language,
    /// What [`ContextSpec::interpreter`] is then, if the word says so.
    pub interpreter: Option<String>,
}

impl Tongue {
    /// The same, but what we have no driver for is spoken by a kernel of that language, if the box has one.
    ///
    /// # Errors
    /// Why the word means nothing.
    pub fn or_kernel(word: &str) -> Result<Tongue, String> {
        match word.parse() {
            Ok(tongue) => Ok(tongue),
            Err(_) if is_kernel_name(word) => Ok(Tongue::kernel_of(word)),
            Err(why) => Err(why),
        }
    }

    /// A kernel that speaks this language, whatever it is called.
    pub fn kernel_of(language: &str) -> Tongue {
        let interpreter = Some(format!("{KERNEL_OF}{}", language.to_ascii_lowercase()));
        Tongue { language: Language::Jupyter, interpreter }
    }

    /// The interpreter of such a context, if another word may name one, too.
    ///
    /// # Errors
    /// If both do.
    pub fn interpreter(&self, other: Option<String>) -> Result<Option<String>, String> {
        match (&self.interpreter, other) {
            (Some(name), Some(other)) => Err(format!("the kernel cannot be both {name:?} and {other:?}")),
            (name, other) => Ok(other.or_else(|| name.clone())),
        }
    }
}

impl std::str::FromStr for Tongue {
    type Err = String;

    fn from_str(word: &str) -> Result<Tongue, String> {
        match word.split_once(':') {
            Some(("jupyter" | "ipython", name)) if is_kernel_name(name) => {
                Ok(Tongue { language: Language::Jupyter, interpreter: Some(name.to_owned()) })
            }
            Some(("jupyter" | "ipython", name)) => Err(format!("{name:?} is no name of a kernel")),
            _ => word.parse::<Language>().map(Tongue::from),
        }
    }
}

impl From<Language> for Tongue {
    fn from(language: Language) -> Tongue {
        Tongue { language, interpreter: None }
    }
}

/// As one could have been said to come to this.
impl std::fmt::Display for Tongue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.language, self.interpreter.as_deref()) {
            (Language::Jupyter, Some(name)) => match name.strip_prefix(KERNEL_OF) {
                Some(spoken) => f.write_str(spoken),
                None => write!(f, "jupyter:{name}"),
            },
            (language, _) => f.write_str(language.name()),
        }
    }
}

/// Whether a kernel can be called this: as Jupyter has it, so that it is the name of a directory and nothing else.
pub fn is_kernel_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    !name.is_empty() && name.len() <= KERNEL_NAME_MAX && !name.starts_with('.') && name.chars().all(plain)
}

/// A context that is to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextSpec {
    /// What it speaks.
    pub language: Language,
    /// What it is called: letters, digits, `-`, `_` and `.`. Without a name it is given one.
    pub id: Option<String>,
    /// The interpreter, if it is not the one that the language usually has: a name in `PATH`, or a path. Of Jupyter, the name of
    /// a kernel, which is `python3` without a word, or [`KERNEL_OF`] and a language.
    pub interpreter: Option<String>,
    /// The working directory that it begins in; without one, the box's.
    pub cwd: Option<String>,
    /// Added to the box's environment, and stronger than it.
    pub env: Vec<(String, String)>,
    /// A name or a number, or `user:group`; without one, the box's user.
    pub user: Option<String>,
    /// Have it forked from an interpreter that is kept warm for that, where this is possible. Since version 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<Warm>,
    /// The program that was carried in (see [`crate::Request::Carry`]) to speak with a kernel of Jupyter's. Since version 6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carried: Option<String>,
}

/// What a warm interpreter has at hand.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warm {
    /// Modules that are loaded already when the code imports them; without any, a few of the language's own that are often
    /// wanted. At most [`crate::limits::IMPORTS_MAX`].
    pub imports: Vec<String>,
}

/// A context of the box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ContextInfo {
    /// What it is called.
    pub id: String,
    /// What it speaks.
    pub language: Language,
    /// The interpreter that was asked for, if one was. Since version 6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
    /// The version of its interpreter, as that tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its interpreter inside the box, while it lives.
    pub pid: Option<u32>,
    /// When that was started, milliseconds since 1970.
    pub started_ms: u64,
    /// Where it stands.
    pub state: ContextState,
    /// How many runs were begun in it since it was made or restarted.
    pub runs: u64,
    /// It was forked from a warm interpreter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// Why it was not, if it should have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold: Option<String>,
}

/// Where a context stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ContextState {
    /// Its interpreter has not said yet that it is there.
    Starting,
    /// It waits for code.
    Idle,
    /// It runs some.
    Busy {
        /// The number of the run.
        exec: u64,
    },
    /// Its interpreter is gone, and with it all that it remembered.
    Lost {
        /// What is known of the reason.
        why: String,
    },
}

/// Code to be run in a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Code {
    /// The context.
    pub context: String,
    /// What it speaks. A context of another language refuses it.
    pub language: Language,
    /// What to run.
    pub code: String,
    /// It is a whole program: it goes on until nothing is left that it waits for, as one that is run from a file does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// One line of the stream `results`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeResult {
    /// The value of the last expression.
    Value(MimeBundle),
    /// What the code had shown, by `display()` or as a figure.
    Display(MimeBundle),
    /// The code failed.
    Error(CodeError),
}

/// One thing in several shapes, by their MIME types. Text is itself, bytes are base64, JSON is text of JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MimeBundle {
    /// The shapes.
    pub data: BTreeMap<String, String>,
    /// What the code said about them, as text of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
}

impl MimeBundle {
    /// Its plain text, which almost everything has.
    pub fn text(&self) -> Option<&str> {
        self.data.get("text/plain").map(String::as_str)
    }
}

/// Why code failed, in the words of its language.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeError {
    /// Of the exception, like `ValueError`.
    pub name: String,
    /// What it says.
    pub value: String,
    /// As the language shows it, a line each.
    pub traceback: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(word: &str, language: Language, interpreter: Option<&str>) {
        let tongue = Tongue { language, interpreter: interpreter.map(str::to_owned) };
        assert_eq!(word.parse(), Ok(tongue), "{word:?}");
    }

    #[test]
    fn a_kernel_is_named_behind_a_colon() {
        check("py", Language::Python, None);
        check("jupyter", Language::Jupyter, None);
        check("jupyter:bash", Language::Jupyter, Some("bash"));
        check("ipython:python3.12", Language::Jupyter, Some("python3.12"));
        for word in
            ["jupyter:", "jupyter:../x", "jupyter:a/b", "jupyter:.", "jupyter:language:go", "python:x", "go"]
        {
            assert!(word.parse::<Tongue>().is_err(), "{word:?}");
        }
    }

    #[test]
    fn what_has_no_driver_is_looked_for_among_kernels() {
        let go = Tongue::or_kernel("Go").expect("any name may be one");
        assert_eq!((go.language, go.interpreter.as_deref()), (Language::Jupyter, Some("language:go")));
        assert_eq!(go.to_string(), "go");
        assert_eq!(Tongue::or_kernel("js").expect("we have that").to_string(), "javascript");
        assert!(Tongue::or_kernel("c++/x").is_err());
        assert_eq!(Tongue::kernel_of("TypeScript").to_string(), "typescript");
    }
}
