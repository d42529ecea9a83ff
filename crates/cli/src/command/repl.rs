//! `glass repl`: a context of a box, line by line.

use std::borrow::Cow;
use std::io::IsTerminal as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use glasshouse_sandbox::{
    Code, ContextInfo, ContextSpec, ContextState, ExecSpec, Language, Program, Sandbox, Tongue,
};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use super::exec::Foreground;
use crate::args::{Global, Surroundings};
use crate::finished::is_finished;
use crate::session::{End, Part};
use crate::signals::Signals;
use crate::words::Limited;
use crate::{code, output};

/// Lines that are remembered of earlier sessions.
const HISTORY_MAX: usize = 10_000;

/// Talk with a code context of a box, line by line
#[derive(Debug, Args)]
#[command(after_help = "\
Arrow keys edit and recall, Ctrl-R searches. A line that is not finished goes on in the next one; in Python, an empty
line ends a block. What is typed while something runs is its input. Ctrl-C interrupts what runs, Ctrl-D ends its input
or, at the prompt, the session. A context that was made for it goes with it.

Examples:
  glass repl web
  glass repl web --lang js
  glass repl web --context notebook           one that is there, and stays")]
pub(crate) struct Repl {
    /// The box: its id, the beginning of its id, or its name
    #[arg(value_name = "ID")]
    name: String,
    /// What to speak: python, javascript (js), typescript (ts), bash, or jupyter:NAME [default: python]
    #[arg(long, value_name = "LANG", value_parser = code::tongue, conflicts_with = "context")]
    lang: Option<Tongue>,
    /// A context that is there
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// Another interpreter than the language's usual one
    #[arg(long, value_name = "PROGRAM", conflicts_with = "context")]
    interpreter: Option<String>,
    #[command(flatten)]
    surroundings: Surroundings,
}

impl Repl {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        if global.json {
            bail!("`glass repl` is talked to by people; programs use `glass context run --json`");
        }
        let sandbox = global.connect(&self.name).await?;
        let context = match &self.context {
            Some(_) if !self.surroundings.is_empty() => {
                bail!("a context that is there has its directory, user and environment already")
            }
            Some(id) => sandbox.context(id).await?,
            None => {
                let lang = self.lang.clone().unwrap_or_default();
                let spec = ContextSpec {
                    language: lang.language,
                    interpreter: lang.interpreter(self.interpreter.clone()).map_err(anyhow::Error::msg)?,
                    cwd: self.surroundings.cwd.clone(),
                    env: self.surroundings.variables()?,
                    user: self.surroundings.user.clone(),
                    ..ContextSpec::default()
                };
                sandbox.create_context(spec).await?
            }
        };
        let talked = talk(global, &sandbox, &context).await;
        if self.context.is_none() {
            // It may be gone, with its box.
            let _ = sandbox.delete_context(&context.id).await;
        }
        talked.map(|()| 0)
    }
}

async fn talk(global: &Global, sandbox: &Sandbox, context: &ContextInfo) -> Result<()> {
    let language = context.language;
    let version = context.version.as_deref().unwrap_or_default();
    if std::io::stdin().is_terminal() {
        global.say(&format!("{} {version} in box {}; Ctrl-D ends", language.name(), sandbox.id()));
    }
    let history = global.home()?.join(format!("history-{}", language.name()));
    let mut editor = Some(open_editor(language, &history)?);
    loop {
        let Some(mut taken) = editor.take() else { return Ok(()) };
        // The editor waits for keys on a thread of its own.
        let (back, line) = tokio::task::spawn_blocking(move || {
            let line = taken.readline(prompt(language));
            (taken, line)
        })
        .await
        .context("cannot read a line")?;
        let mut back = back;
        let line = match line {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                editor = Some(back);
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(e) => return Err(e).context("cannot read a line"),
        };
        if !line.trim().is_empty() {
            // What cannot be remembered can be typed again.
            let _ = back.add_history_entry(line.as_str());
            let _ = back.append_history(&history);
            let refused = match evaluate(global, sandbox, context, line).await {
                Err(e) if e.is::<glasshouse_sandbox::Error>() => Some(e),
                ended => ended.map(|()| None)?,
            };
            // What one line is refused for, another may not be, as long as the context is there to be asked.
            let now = match (sandbox.context(&context.id).await, refused) {
                (Ok(now), refused) => {
                    refused.iter().for_each(|e| output::say(&output::sentence(e)));
                    now
                }
                (Err(_), Some(e)) => return Err(e),
                (Err(e), None) => return Err(e.into()),
            };
            if let ContextState::Lost { why } = now.state {
                output::say(&format!("the context was lost: {why}; it is started anew"));
                sandbox.restart_context(&context.id).await?;
            }
        }
        editor = Some(back);
    }
    Ok(())
}

async fn evaluate(global: &Global, sandbox: &Sandbox, context: &ContextInfo, line: String) -> Result<()> {
    let code = Code { context: context.id.clone(), language: context.language, code: line, whole: false };
    // Lines of a pipe are code, all of them: nobody could tell which of them code would have asked for.
    let part = Part { talk: std::io::stdin().is_terminal(), ..Part::default() };
    let spec = ExecSpec { program: Program::Code(code), stdin: part.talk, ..ExecSpec::default() };
    // Signals are ours while something runs, and the editor's in between.
    let mut signals = Signals::of(part)?;
    let foreground = Foreground { global, sandbox, part, limited: Limited::Earlier };
    match foreground.end(spec, &mut signals).await? {
        End::Ended(ended) if context.language == Language::Bash => {
            foreground.ended(&ended);
        }
        End::Ended(ended) if !matches!(ended.report.exit, glasshouse_sandbox::Exit::Code { .. }) => {
            foreground.ended(&ended);
        }
        _ => {}
    }
    Ok(())
}

fn prompt(language: Language) -> &'static str {
    match language {
        Language::Python => ">>> ",
        Language::Javascript => "js> ",
        Language::Typescript => "ts> ",
        Language::Bash => "$ ",
        Language::Jupyter => "In: ",
    }
}

fn open_editor(language: Language, history: &Path) -> Result<Editor<Lines, FileHistory>> {
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)
        .and_then(|config| config.history_ignore_dups(true))
        .context("cannot set up the history")?
        .auto_add_history(false)
        .build();
    let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
    editor.set_helper(Some(Lines { language }));
    // There is none before the first session.
    let _ = editor.load_history(history);
    Ok(editor)
}

/// Knows when a piece of code is finished.
struct Lines {
    language: Language,
}

impl Helper for Lines {}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _default: bool) -> Cow<'b, str> {
        Cow::Borrowed(prompt)
    }
}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_finished(self.language, context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}
