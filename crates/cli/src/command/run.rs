//! `glass run`: a fresh box for one command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueHint};
use glasshouse_sandbox::{Code, ExecSpec, Image, Language, Program, Sandbox, SandboxSpec, Sandboxes, Tongue};
use serde_json::Value;

use super::create::{Made, make, remove};
use super::exec::Foreground;
use super::image::{Fetched, fetch, own_command, something};
use super::left::Left;
use crate::args::{BoxOptions, CommandOptions, Global};
use crate::session::{Part, signal_code};
use crate::signals::Signals;
use crate::words::Limited;
use crate::{code, output};

/// Run a command in a fresh box, and remove the box
#[derive(Debug, Args)]
#[command(override_usage = "glass run [OPTIONS] [-- CMD...]")]
#[command(after_help = "\
The exit code is the program's own; 125 says that we failed, 124 that its time was up, 137 that
it was killed or out of memory. Without CMD, an image runs what it was made to run (its entrypoint
and cmd); with CMD, that alone is run.

Examples:
  glass run -- python3 -c 'print(1)'
  glass run --memory 256m --timeout 10s -- ./untrusted
  glass run --image dir:/srv/alpine -it -- sh
  glass run --image oci://debian:12 -- cat /etc/os-release
  glass run --lang python --json plot.py      code, what it tells beside its output, and the files that it left behind
  glass run --lang python --files out plot.py      out has the files that it left behind
  echo data | glass run -i --shell -- 'sort | uniq -c'")]
pub(crate) struct Run {
    #[command(flatten)]
    the_box: BoxOptions,
    #[command(flatten)]
    options: CommandOptions,
    /// Run code of this language in place of a command: python, javascript (js), typescript (ts), bash, or jupyter:NAME for
    /// a kernel; then CMD is the file that it is in, or `-` for our stdin
    #[arg(long, value_name = "LANG", value_parser = code::tongue, help_heading = "Command")]
    #[arg(conflicts_with_all = ["tty", "shell"])]
    lang: Option<Tongue>,
    /// Copy the files that the code left behind to DIR, which must not be there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Command", requires = "lang")]
    files: Option<PathBuf>,
    /// The program and its arguments [default: what the image runs by itself]
    #[arg(required_unless_present_any = ["image", "lang"], trailing_var_arg = true, value_name = "CMD")]
    #[arg(value_hint = ValueHint::CommandWithArguments)]
    command: Vec<String>,
}

impl Run {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        // The box dies with us, even if we are killed.
        let mut spec = SandboxSpec { owner: Some(std::process::id()), ..self.the_box.spec()? };
        // Without root a box has one user: then it has to be this one.
        spec.user = self.options.user().map(str::to_owned);
        let part = self.options.part();
        // From here on a signal must not end us before the box is removed.
        let mut signals = Signals::of(part)?;
        let house = global.open()?;
        let fetched = match fetch(global, &house, &mut spec.image, &mut signals).await? {
            Some(Fetched::Stopped(signal)) => return Ok(signal_code(signal)),
            Some(Fetched::Image(info)) => Some(info),
            None => None,
        };
        if let Some(tongue) = self.lang.clone() {
            return self.code(global, &house, spec, tongue, &mut signals).await;
        }
        let command = match (self.command.is_empty(), &spec.image) {
            (true, Image::Engine(name)) => something(name, house.engine_command(name).await?)?,
            (true, _) => own_command(fetched.as_deref())?,
            (false, _) => self.command,
        };
        let exec = self.options.spec(part, &command)?;
        let sandbox = match make(&house, spec, &mut signals).await? {
            Made::Box(sandbox) => sandbox,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        let foreground = Foreground { global, sandbox: &sandbox, part, limited: Limited::Here };
        let code = foreground.run(exec, &mut signals).await;
        let removed = remove(&sandbox, &mut signals).await;
        let code = code?;
        removed.map(|()| code)
    }

    /// Runs code in place of a command, with all that tells of it.
    async fn code(
        self,
        global: &Global,
        house: &Sandboxes,
        spec: SandboxSpec,
        tongue: Tongue,
        signals: &mut Signals,
    ) -> Result<i32> {
        let file = match self.command.as_slice() {
            [] => None,
            [file] => Some(Path::new(file)),
            [_, more, ..] if more.starts_with('-') => {
                bail!("{more} stands behind the file; options come before it")
            }
            [_, more, ..] => bail!("code is in one file, and {more:?} is one more"),
        };
        let part = self.options.part();
        if part.stdin && file.is_none_or(|file| file == Path::new("-")) {
            bail!("our stdin cannot be both the code and what it reads");
        }
        if let Some(dir) = self.files.as_deref().filter(|dir| dir.symlink_metadata().is_ok()) {
            bail!("{} is there already: files are copied to a new directory", dir.display());
        }
        let text = code::read(file)?;
        let language = tongue.language;
        // What a kernel's code comes to is for the kernel to tell, as R does of every line.
        let part = Part { program: language != Language::Jupyter, ..part };
        let (context, exec) = self.options.code(tongue)?;
        let sandbox = match make(house, spec, signals).await? {
            Made::Box(sandbox) => sandbox,
            Made::Stopped(signal) => return Ok(signal_code(signal)),
        };
        let run = async {
            let context = sandbox.create_context(context).await?;
            let code = Code { context: context.id.clone(), language, code: text, whole: true };
            let program = Program::Code(code);
            let foreground = Foreground { global, sandbox: &sandbox, part, limited: Limited::Here };
            let leave = async |told: &mut Value| match global.json || self.files.is_some() {
                true => leave(global, house, (&sandbox, &context.id), self.files.as_deref(), told).await,
                false => Ok(()),
            };
            foreground.run_and(ExecSpec { program, ..exec }, signals, leave).await
        };
        let code = run.await;
        let removed = remove(&sandbox, signals).await;
        let code = code?;
        removed.map(|()| code)
    }
}

/// Tells and copies the files that code left behind.
async fn leave(
    global: &Global,
    house: &Sandboxes,
    (sandbox, context): (&Sandbox, &str),
    into: Option<&Path>,
    told: &mut Value,
) -> Result<()> {
    let left = Left::find(house, sandbox, context, into).await;
    let Some(left) = left.context("cannot tell the files that the code left behind")? else {
        return Ok(());
    };
    if let Some(sentence) = into.and_then(|into| left.copied_in_words(into)) {
        global.say(&sentence);
    }
    match global.json {
        true => left.put_into(told),
        false => left.missed_in_words().iter().for_each(|sentence| output::say(sentence)),
    }
    Ok(())
}
