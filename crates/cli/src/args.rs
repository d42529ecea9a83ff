//! Options that several commands share, and how they become what the library asks for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueHint};
use glasshouse_sandbox::{
    ContextSpec, ErrorKind, ExecSpec, Image, Level, Limits, Program, Recording, Rlimit, RlimitKind,
    RuntimeKind, Sandbox, SandboxSpec, Sandboxes, Settings, Tongue, Volume, Warm,
};
use glasshouse_trace::SecretPattern;

use crate::{duration, home, session, size, terminal};

/// More CPUs than Linux knows.
const CPUS_MAX: f64 = 8192.0;
/// The least share of a CPU that the kernel can hand out in its usual period of 100 ms.
const CPUS_MIN: f64 = 0.01;
/// The kernel's own bound (PID_MAX_LIMIT).
const PIDS_MAX: u64 = 4 * 1024 * 1024;

/// Directories below which boxes may be given some, separated by colons.
const VOLUMES_VARIABLE: &str = "GLASSHOUSE_VOLUMES";

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Where boxes are kept [default: $GLASSHOUSE_HOME; else /var/lib/glasshouse for root, for others their
    /// data directory]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Global options")]
    #[arg(value_hint = ValueHint::DirPath)]
    home: Option<PathBuf>,
    /// Print the result as JSON, on one line
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// The houses that were opened, for what is still done in them when the command is over.
    #[arg(skip)]
    opened: Arc<Mutex<Vec<Sandboxes>>>,
}

impl Global {
    /// Opens the home of the boxes.
    pub(crate) fn open(&self) -> Result<Sandboxes> {
        let house = Sandboxes::open_with(Settings { home: self.home()? }, crate::engine::settings())?;
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).push(house.clone());
        let below = std::env::var_os(VOLUMES_VARIABLE).unwrap_or_default();
        house.allow_volumes(std::env::split_paths(&below).filter(|p| !p.as_os_str().is_empty()).collect())?;
        Ok(house)
    }

    /// Waits for what is done beside what the command waited for. What a reset threw away would stay on the disk otherwise:
    /// whoever ends first takes the threads along that remove it.
    pub(crate) async fn settle(&self) {
        let opened = std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner));
        for house in opened {
            house.settle().await;
        }
    }

    /// Where boxes are kept.
    pub(crate) fn home(&self) -> Result<PathBuf> {
        home::home(self.home.as_deref())
    }

    /// Connects to a box.
    pub(crate) async fn connect(&self, name: &str) -> Result<Sandbox> {
        self.open()?.get(name).await.map_err(unknown_box)
    }

    /// The same for output that is seen as it comes.
    pub(crate) fn without_json(&self) -> Global {
        Global { json: false, ..self.clone() }
    }

    /// Says words that are no error.
    pub(crate) fn say(&self, sentence: &str) {
        if !self.quiet {
            crate::output::say(sentence);
        }
    }
}

/// The error of a lookup, with where to look.
pub(crate) fn unknown_box(error: glasshouse_sandbox::Error) -> anyhow::Error {
    let text = error.to_string();
    match error.kind() {
        // Some say themselves where to look.
        ErrorKind::NotFound if !text.contains("`glass ") => {
            anyhow::Error::msg(format!("{text}; `glass list` shows the boxes"))
        }
        _ => error.into(),
    }
}

/// What a box is to be: options of `create` and `run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct BoxOptions {
    /// What the box is made from: `host` (this machine's programs, read-only), `dir:PATH` (a root), NAME (an
    /// image that is here), `oci://NAME` (pulled if it is not), `oci-archive:PATH`, `docker-archive:PATH`,
    /// `docker-daemon:NAME` (an image of the Docker engine, with `--runtime docker`) or `snapshot:ID`
    /// [default: host]
    #[arg(long, value_name = "IMAGE", help_heading = "Box")]
    image: Option<Image>,
    /// What runs it: this kernel, a Docker engine on this machine (`DOCKER_HOST`); `process` has no isolation at all
    #[arg(long, value_name = "RUNTIME", default_value = "native", value_parser = runtime())]
    #[arg(help_heading = "Box")]
    runtime: RuntimeKind,
    /// The engine's runtime for its container, like `runsc`, with --runtime docker [default: what
    /// `GLASSHOUSE_DOCKER_RUNTIME` says, or the engine's own]
    #[arg(long, value_name = "NAME", help_heading = "Box")]
    engine_runtime: Option<String>,
    /// How strongly it must be isolated at least, or nothing is created [default: full]
    #[arg(long, value_name = "LEVEL", value_parser = level(), help_heading = "Box")]
    min_level: Option<Level>,
    /// A name to call it by, beside its id
    #[arg(long, value_name = "NAME", help_heading = "Box")]
    name: Option<String>,
    /// A label, to be found in lists (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, help_heading = "Box")]
    label: Vec<(String, String)>,
    /// The root cannot be written; /tmp is memory
    #[arg(long, help_heading = "Box")]
    read_only: bool,
    /// A directory of this machine that the box may use, if it is below one that `GLASSHOUSE_VOLUMES` names
    /// (like `/srv/data:/home/me/work`); no part of snapshots, digests and diffs, and shared by forks (repeatable)
    #[arg(long, value_name = "HOST:PATH[:ro]", help_heading = "Box")]
    volume: Vec<Volume>,
    /// What is put on record of each step: `commands` (what ran, what it wrote, how it ended), `steps` (and a
    /// digest of the files, and which of them changed) or `snapshots` (and a snapshot, for `glass jump`)
    /// [default: commands; with --deterministic, steps; of a snapshot, as its box was]
    #[arg(long, value_name = "WHAT", value_parser = recording(), help_heading = "Box")]
    record: Option<Recording>,
    /// What is never put on record: a regular expression, or its group `(?P<secret>…)`; beside the values of
    /// variables and the shapes of well-known tokens (repeatable)
    #[arg(long, value_name = "REGEX", value_parser = redact, help_heading = "Box")]
    redact: Vec<String>,
    /// Two runs of the same commands give the same bytes: clock, random numbers, pids, addresses and more are
    /// fixed; `glass info` lists what is not. For replay, never for secrets. A box of a snapshot of such a box is one,
    /// too, unless `--deterministic=false` is said
    #[arg(long, value_name = "YES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide_possible_values = true, help_heading = "Box")]
    deterministic: Option<bool>,
    /// Memory of the whole box, like 512m or 1.5g
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    memory: Option<u64>,
    /// CPUs, like 0.5 or 2
    #[arg(long, value_name = "COUNT", value_parser = cpus)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    cpu: Option<f64>,
    /// Processes and threads
    #[arg(long, value_name = "COUNT", value_parser = pids)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    pids: Option<u64>,
    /// What the box may add to its root, like 1g
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    disk: Option<u64>,
    /// What is kept of each command's output, head and tail; the rest is counted
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    output: Option<u64>,
    /// Life of the box, like 2h; it ends with nobody watching
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    ttl: Option<Duration>,
}

impl BoxOptions {
    /// What it is made from, if somebody said so.
    pub(crate) fn image(&self) -> Result<Option<Image>> {
        Ok(match &self.image {
            Some(Image::Directory(path)) => Some(Image::Directory(std::path::absolute(path)?)),
            Some(Image::OciArchive(path)) => Some(Image::OciArchive(std::path::absolute(path)?)),
            Some(Image::DockerArchive(path)) => Some(Image::DockerArchive(std::path::absolute(path)?)),
            image => image.clone(),
        })
    }

    /// Volumes, by whole paths.
    fn volumes(&self) -> Result<Vec<Volume>> {
        let whole = |volume: &Volume| {
            let host = std::path::absolute(&volume.host)?;
            Ok(Volume::new(host, volume.path.clone(), volume.read_only))
        };
        self.volume.iter().map(whole).collect()
    }

    /// What is put on record, if somebody said so.
    pub(crate) fn recording(&self) -> Option<Recording> {
        self.record
    }

    /// The box that these options describe.
    pub(crate) fn spec(&self) -> Result<SandboxSpec> {
        Ok(SandboxSpec {
            image: self.image()?.unwrap_or_default(),
            runtime: self.runtime,
            min_level: self.min_level,
            engine_runtime: self.engine_runtime.clone(),
            limits: Limits {
                memory_bytes: self.memory,
                cpus: self.cpu,
                pids: self.pids,
                disk_bytes: self.disk,
                output_bytes: self.output,
                timeout: None,
                ttl: self.ttl,
            },
            name: self.name.clone(),
            labels: self.label.iter().cloned().collect::<BTreeMap<_, _>>(),
            read_only: self.read_only,
            recording: self.record,
            deterministic: self.deterministic,
            redact: self.redact.clone(),
            volumes: self.volumes()?,
            ..SandboxSpec::default()
        })
    }
}

/// Where and as whom commands run: options of `create`, `run`, `exec` and `shell`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Surroundings {
    /// An environment variable; without a value, it takes ours (repeatable)
    #[arg(long, value_name = "KEY[=VALUE]", value_parser = variable, help_heading = "Command")]
    pub(crate) env: Vec<(String, Option<String>)>,
    /// Working directory inside the box
    #[arg(long, value_name = "PATH", help_heading = "Command")]
    pub(crate) cwd: Option<String>,
    /// User inside the box: a name, a number, or USER:GROUP
    #[arg(long, value_name = "USER", help_heading = "Command")]
    pub(crate) user: Option<String>,
}

impl Surroundings {
    /// Whether nothing was said.
    pub(crate) fn is_empty(&self) -> bool {
        self.env.is_empty() && self.cwd.is_none() && self.user.is_none()
    }

    /// The variables with their values. One that we do not have ourselves is left out, as by other tools.
    pub(crate) fn variables(&self) -> Result<Vec<(String, String)>> {
        let mut variables = Vec::new();
        for (key, value) in &self.env {
            let value = match value {
                Some(value) => Some(value.clone()),
                None => match std::env::var(key) {
                    Ok(value) => Some(value),
                    Err(std::env::VarError::NotPresent) => None,
                    Err(_) => bail!("cannot pass on the variable {key}: its value is not UTF-8"),
                },
            };
            variables.extend(value.map(|value| (key.clone(), value)));
        }
        Ok(variables)
    }
}

/// What to run, and how: options of `run` and `exec`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommandOptions {
    #[command(flatten)]
    surroundings: Surroundings,
    /// Feed our stdin to the command; without it, its stdin is empty
    #[arg(short, long, help_heading = "Command")]
    interactive: bool,
    /// Run it in a terminal; if ours is one, its keys go there
    #[arg(short, long, help_heading = "Command")]
    tty: bool,
    /// Take the words as one line for the shell of the box
    #[arg(long, help_heading = "Command")]
    shell: bool,
    /// Let escape sequences of the box reach our terminal
    #[arg(long, help_heading = "Command")]
    raw: bool,
    /// Wall time after which the command and all it started are killed, like 30s
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL when the time is up
    #[arg(long, value_name = "TIME", value_parser = duration::parse_or_zero)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    grace: Option<Duration>,
    /// CPU time of each process, in seconds
    #[arg(long, value_name = "SECONDS", value_parser = duration::parse_seconds)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    cpu_time: Option<u64>,
    /// Kill the command when it has written more than this
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    #[arg(allow_hyphen_values = true, help_heading = "Limits")]
    output_max: Option<u64>,
}

impl CommandOptions {
    /// The command of these words, as these options describe it.
    pub(crate) fn spec(&self, part: session::Part, command: &[String]) -> Result<ExecSpec> {
        let program = match self.shell {
            true => Program::Shell(command.join(" ")),
            false => Program::Argv(command.to_vec()),
        };
        let cpu = self.cpu_time.map(|value| Rlimit { kind: RlimitKind::CpuSeconds, value });
        let mut spec = ExecSpec {
            program,
            timeout_ms: self.timeout.map(milliseconds),
            grace_ms: self.grace.map(milliseconds),
            rlimits: cpu.into_iter().collect(),
            output_bytes_max: self.output_max,
            ..ExecSpec::default()
        };
        surround(&mut spec, &self.surroundings, part)?;
        Ok(spec)
    }

    /// The context that code of these options runs in, and the run itself but for its program.
    pub(crate) fn code(&self, tongue: Tongue) -> Result<(ContextSpec, ExecSpec)> {
        if self.cpu_time.is_some() {
            bail!("--cpu-time is for commands; --timeout bounds code");
        }
        let context = ContextSpec {
            language: tongue.language,
            interpreter: tongue.interpreter,
            cwd: self.surroundings.cwd.clone(),
            env: self.surroundings.variables()?,
            user: self.surroundings.user.clone(),
            ..ContextSpec::default()
        };
        let spec = ExecSpec {
            stdin: self.interactive,
            timeout_ms: self.timeout.map(milliseconds),
            grace_ms: self.grace.map(milliseconds),
            output_bytes_max: self.output_max,
            ..ExecSpec::default()
        };
        Ok((context, spec))
    }

    /// Whom it runs as.
    pub(crate) fn user(&self) -> Option<&str> {
        self.surroundings.user.as_deref()
    }

    /// How the user takes part in it.
    pub(crate) fn part(&self) -> session::Part {
        use std::io::IsTerminal as _;
        // A terminal without keys would be a trap: nothing typed, not even Ctrl-C, would go anywhere.
        let stdin = self.interactive || self.tty && std::io::stdin().is_terminal();
        session::Part { stdin, tty: self.tty, raw: self.raw, ..session::Part::default() }
    }
}

/// An interpreter that is kept warm.
#[derive(Debug, Clone, Args)]
pub(crate) struct Warming {
    /// Fork it from an interpreter that the box keeps warm for that: a new context then takes a few milliseconds
    /// (Python; others start as ever, and it is said why)
    #[arg(long)]
    warm: bool,
    /// The same, with these modules loaded ahead, like numpy,pandas
    #[arg(long = "import", value_name = "MODULE", value_delimiter = ',')]
    imports: Vec<String>,
}

impl Warming {
    /// What is to be kept warm, if anything is.
    pub(crate) fn warm(&self) -> Option<Warm> {
        (self.warm || !self.imports.is_empty()).then(|| Warm { imports: self.imports.clone() })
    }
}

/// Puts the surroundings and the terminal into a command.
pub(crate) fn surround(spec: &mut ExecSpec, surroundings: &Surroundings, part: session::Part) -> Result<()> {
    spec.stdin = part.stdin;
    if part.tty {
        spec.tty = Some(terminal::size().unwrap_or(session::TTY_SIZE));
        // A terminal is as our own one; whoever gives another name means it.
        let ours = std::env::var("TERM").ok().filter(|term| !term.is_empty());
        spec.env.extend(ours.map(|term| ("TERM".to_owned(), term)));
    }
    spec.env.extend(surroundings.variables()?);
    spec.cwd.clone_from(&surroundings.cwd);
    spec.user.clone_from(&surroundings.user);
    Ok(())
}

/// For the wire.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn runtime() -> impl clap::builder::TypedValueParser<Value = RuntimeKind> {
    PossibleValuesParser::new(RuntimeKind::ALL.map(RuntimeKind::name))
        .try_map(|text| text.parse::<RuntimeKind>())
}

fn recording() -> impl clap::builder::TypedValueParser<Value = Recording> {
    PossibleValuesParser::new(Recording::ALL.map(Recording::name)).try_map(|text| text.parse::<Recording>())
}

fn level() -> impl clap::builder::TypedValueParser<Value = Level> {
    PossibleValuesParser::new(["vm", "gvisor", "full", "reduced", "none"])
        .try_map(|text| text.parse::<Level>())
}

fn cpus(text: &str) -> Result<f64, String> {
    let cpus: f64 = text.parse().map_err(|_| "CPUs are counted like 0.5 or 2")?;
    match cpus {
        _ if cpus.is_nan() => Err("CPUs are counted like 0.5 or 2".to_owned()),
        _ if cpus <= 0.0 => Err("a count of CPUs must be more than zero".to_owned()),
        _ if cpus < CPUS_MIN => Err(format!("the kernel cannot hand out less than {CPUS_MIN} of a CPU")),
        _ if cpus > CPUS_MAX => Err("no machine has that many CPUs".to_owned()),
        cpus => Ok(cpus),
    }
}

fn pids(text: &str) -> Result<u64, String> {
    match text.parse::<i128>() {
        Ok(0) => Err("a box needs at least one process".to_owned()),
        Ok(..0) => Err("a count of processes cannot be negative".to_owned()),
        Ok(pids) => u64::try_from(pids)
            .ok()
            .filter(|&pids| pids <= PIDS_MAX)
            .ok_or_else(|| format!("the kernel has no more than {PIDS_MAX} processes")),
        Err(_) => Err("processes are counted in whole numbers, like 100".to_owned()),
    }
}

fn redact(text: &str) -> Result<String, String> {
    SecretPattern::parse(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a label is written KEY=VALUE".to_owned()),
    }
}

fn variable(text: &str) -> Result<(String, Option<String>), String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (text, None),
    };
    match key.is_empty() || text.contains('\0') {
        true => Err("a variable is written KEY=VALUE, or KEY to pass on ours".to_owned()),
        false => Ok((key.to_owned(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_cpus_make_sense() {
        assert_eq!([cpus("0.5"), cpus("2"), cpus("1.0")], [Ok(0.5), Ok(2.0), Ok(1.0)]);
        for text in ["0", "-1", "nan", "inf", "1e9", "0.001", "", "two", "-0"] {
            assert!(cpus(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn counts_of_processes_make_sense() {
        assert_eq!([pids("1"), pids("4194304")], [Ok(1), Ok(4194304)]);
        for text in ["0", "-1", "1.5", "4194305", "99999999999999999999999999999999999999999", "", "many"] {
            assert!(pids(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn labels_and_variables_have_keys() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(variable("A="), Ok(("A".to_owned(), Some(String::new()))));
        assert_eq!(variable("A"), Ok(("A".to_owned(), None)));
        assert!(
            label("a").is_err() && label("=b").is_err() && variable("=b").is_err() && variable("").is_err()
        );
    }
}
