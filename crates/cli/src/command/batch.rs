//! `glass batch`: many pieces of code, each in a box that begins anew, and what each came to.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueHint};
use glasshouse_sandbox::{
    Code, ContextSpec, ExecOutput, ExecSpec, Language, Program, SandboxSpec, Sandboxes, Shot, Shots,
    ShotsSpec, Tongue, Warm,
};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::image::{Fetched, fetch};
use super::left::Left;
use crate::args::{BoxOptions, CommandOptions, Global};
use crate::escape::plain;
use crate::session::{Part, signal_code};
use crate::signals::{Signals, Told};
use crate::{code, output, progress, table, terminal, words};

/// Codes from here on mean that a signal ended us.
const SIGNALLED: i32 = 128;

/// Run many pieces of code, each in a box that begins anew, and tell what each came to and left behind
#[derive(Debug, Args)]
#[command(after_help = "\
There are as many boxes as run at once; each is reset after each piece of code, so that nothing of it is left. Python is
forked from an interpreter that each box keeps warm, with the modules loaded that --import names.

With --json, a line for each as it ends: all that `glass run --lang --json` tells, and `file` and `left`,
the files that it left behind. One that cannot be run, or whose files cannot be told, has `error`, and the others go on.
The exit code is 0 if all of them ended with 0, else 1.

Examples:
  glass batch --lang python solutions/*.py
  glass batch --lang python -j 8 --timeout 10s --memory 256m --json solutions/*.py > results.jsonl
  glass batch --lang python --import numpy,pandas solutions/*.py
  glass batch --lang bash --files out tasks/*.sh      out/NAME has what each left behind")]
pub(crate) struct Batch {
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    options: CommandOptions,
    /// The language: python, javascript (js), typescript (ts), bash, or jupyter:NAME for a kernel
    #[arg(long, value_name = "LANG", value_parser = code::tongue, help_heading = "Command")]
    #[arg(conflicts_with_all = ["tty", "shell", "interactive"])]
    lang: Tongue,
    /// Modules that are loaded ahead, like numpy,pandas (Python)
    #[arg(long = "import", value_name = "MODULE", value_delimiter = ',', help_heading = "Command")]
    imports: Vec<String>,
    /// How many run at once [default: as many as there are processors]
    #[arg(short, long, value_name = "N", value_parser = jobs, help_heading = "Command")]
    jobs: Option<NonZeroUsize>,
    /// Copy what each left behind to DIR/NAME, which must not be there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Command")]
    files: Option<PathBuf>,
    /// The files that the code is in
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    code: Vec<PathBuf>,
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "it is a number, 1 or more".to_owned())
}

/// What all of them have in common.
#[derive(Clone)]
struct Common {
    house: Sandboxes,
    shots: Shots,
    exec: ExecSpec,
    /// Whether there was a box for any of them.
    had_box: Arc<AtomicBool>,
}

/// One piece of code.
struct Piece {
    file: PathBuf,
    /// The code, or why the file has none that could be run.
    text: Result<String>,
    /// Where what it leaves behind goes.
    into: Option<PathBuf>,
}

/// What one came to.
struct Came {
    file: PathBuf,
    /// Or why it did not run.
    ran: Result<Ran>,
}

/// A piece of code that ran.
struct Ran {
    output: ExecOutput,
    /// None if the runtime cannot tell. An error is one of this piece and no other.
    left: Result<Option<Left>>,
}

impl Came {
    fn is_fine(&self) -> bool {
        matches!(&self.ran, Ok(Ran { output, left: Ok(_) }) if output.report.exit.success())
    }
}

impl Batch {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        let (context, exec) = self.options.code(self.lang.clone())?;
        if self.lang.language != Language::Python && !self.imports.is_empty() {
            bail!("--import is for Python: nothing else is kept warm");
        }
        let warm = (self.lang.language == Language::Python).then(|| Warm { imports: self.imports.clone() });
        let context = ContextSpec { warm, ..context };
        // Boxes die with us, even if we are killed.
        let mut spec = SandboxSpec { owner: Some(std::process::id()), ..self.the_box.spec()? };
        spec.user = self.options.user().map(str::to_owned);
        if spec.name.is_some() {
            bail!("there are as many boxes as files: they cannot have one name");
        }
        // All of them are looked at before any of them runs.
        let waiting = self.pieces()?;
        let mut signals = Signals::of(Part::default())?;
        let house = global.open()?;
        if let Some(Fetched::Stopped(signal)) = fetch(global, &house, &mut spec.image, &mut signals).await? {
            return Ok(signal_code(signal));
        }
        let jobs =
            self.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZeroUsize::get);
        let boxes = jobs.min(waiting.len());
        let shots = house.shots(ShotsSpec { sandbox: spec, context, boxes });
        let common = Common { house, shots, exec, had_box: Arc::default() };
        let code = all(global, &common, waiting, jobs, &mut signals).await?;
        if code < SIGNALLED {
            common.shots.close().await?;
        }
        Ok(code)
    }

    fn pieces(&self) -> Result<VecDeque<Piece>> {
        let mut pieces = VecDeque::new();
        let mut places = std::collections::BTreeSet::new();
        for file in &self.code {
            let text = code::read(Some(file));
            let into = match &self.files {
                Some(dir) => Some(dir.join(file.file_name().context("a file has a name")?)),
                None => None,
            };
            if let Some(into) = &into
                && (into.symlink_metadata().is_ok() || !places.insert(into.clone()))
            {
                bail!("{} is there already, or two files would go there", into.display());
            }
            pieces.push_back(Piece { file: file.clone(), text, into });
        }
        Ok(pieces)
    }
}

/// Runs all of them, so many at a time.
async fn all(
    global: &Global,
    common: &Common,
    mut waiting: VecDeque<Piece>,
    jobs: usize,
    signals: &mut Signals,
) -> Result<i32> {
    let (count, mut rows, mut remarks, mut failed) = (waiting.len(), Vec::new(), Vec::new(), 0);
    let bar = progress::steps(global.quiet);
    let mut running = JoinSet::new();
    loop {
        while running.len() < jobs
            && let Some(piece) = waiting.pop_front()
        {
            running.spawn(one(common.clone(), piece));
        }
        let ended = tokio::select! {
            ended = running.join_next() => ended,
            told = signals.next() => match told {
                Told::End(signal) => {
                    // Boxes go with us.
                    return Ok(signal_code(signal));
                }
                _ => continue,
            },
        };
        let Some(ended) = ended else { break };
        let came = ended.context("a piece of code was lost sight of")??;
        failed += usize::from(!came.is_fine());
        bar(count - waiting.len() - running.len(), count, &came.file.to_string_lossy());
        if global.json {
            output::print_json(&told(&came))?;
        } else {
            rows.push((row(&came), came.is_fine()));
            remarks.extend(remarked(&came));
        }
    }
    if !global.json {
        rows.sort_by(|(a, _), (b, _)| a.cmp(b));
        tell(&rows)?;
        remarks.iter().for_each(|remark| output::say(remark));
        let fine = count - failed;
        global.say(&format!(
            "{fine} of {} ended with 0",
            words::count(count, "piece of code", "pieces of code")
        ));
    }
    Ok(i32::from(failed > 0))
}

/// Runs one in a box that has just begun. What goes wrong with it is its own affair; an error is one of all of them.
async fn one(common: Common, piece: Piece) -> Result<Came> {
    let Piece { file, text, into } = piece;
    let text = match text {
        Ok(text) => text,
        Err(e) => return Ok(Came { file, ran: Err(e) }),
    };
    let shot = match common.shots.take().await {
        Ok(shot) => shot,
        // Where there is no box for the first one, as with an image that is missing, there is none for the others.
        Err(e) if !common.had_box.load(Ordering::Relaxed) => {
            return Err(e).with_context(|| format!("cannot run {}", file.display()));
        }
        Err(e) => return Ok(Came { file, ran: Err(e.into()) }),
    };
    common.had_box.store(true, Ordering::Relaxed);
    let ran = run_in(&shot, &common, text, into.as_deref()).await;
    // A box that anything is wrong with is not used again.
    if matches!(ran, Ok(Ran { left: Ok(_), .. })) {
        shot.done();
    }
    Ok(Came { file, ran })
}

async fn run_in(shot: &Shot, common: &Common, text: String, into: Option<&Path>) -> Result<Ran> {
    let (sandbox, context) = (shot.sandbox()?, shot.context()?);
    let code = Code { context: context.id.clone(), language: context.language, code: text, whole: true };
    let exec = ExecSpec { program: Program::Code(code), ..common.exec.clone() };
    let output = sandbox.exec(exec).await?.collect().await;
    let left = Left::find(&common.house, sandbox, &context.id, into).await;
    Ok(Ran { output, left: left.context("cannot tell the files that it left behind") })
}

fn told(came: &Came) -> Value {
    let mut value = match &came.ran {
        Ok(ran) => output::exec_json(&ran.output),
        Err(e) => json!({ "error": output::sentence(e) }),
    };
    match &came.ran {
        Ok(Ran { left: Ok(Some(left)), .. }) => left.put_into(&mut value),
        Ok(Ran { left: Err(e), .. }) => value["error"] = output::sentence(e).into(),
        _ => {}
    }
    value["file"] = came.file.to_string_lossy().into();
    value
}

fn row(came: &Came) -> Vec<String> {
    let mut row = vec![plain(&came.file.to_string_lossy()).into_owned()];
    match &came.ran {
        Ok(Ran { output, left }) => row.extend([
            words::exit(&output.report.exit),
            words::span(std::time::Duration::from_micros(output.report.wall_us)),
            words::size(output.report.peak_memory_bytes),
            left.as_ref()
                .map_or("not known".to_owned(), |left| left.as_ref().map_or(String::new(), Left::in_words)),
        ]),
        Err(_) => row.extend(["not run", "", "", ""].map(str::to_owned)),
    }
    row
}

/// What a row has no room for.
fn remarked(came: &Came) -> Vec<String> {
    let file = came.file.display();
    match &came.ran {
        Ok(Ran { left: Ok(left), .. }) => {
            let missed = left.iter().flat_map(Left::missed_in_words);
            missed.map(|sentence| format!("{file}: {sentence}")).collect()
        }
        Ok(Ran { left: Err(e), .. }) => vec![format!("{file}: {}", output::sentence(e))],
        Err(e) => vec![format!("cannot run {file}: {}", output::sentence(e))],
    }
}

fn tell(rows: &[(Vec<String>, bool)]) -> Result<()> {
    let cells: Vec<Vec<String>> = rows.iter().map(|(row, _)| row.clone()).collect();
    let mut lines =
        table::lines(&["FILE", "END", "TIME", "MEMORY", "LEFT BEHIND"], &cells, terminal::width());
    lines[0] = lines[0].bold().to_string();
    for (line, (_, fine)) in lines[1..].iter_mut().zip(rows) {
        if !fine {
            *line = line.red().to_string();
        }
    }
    output::print(lines)
}
