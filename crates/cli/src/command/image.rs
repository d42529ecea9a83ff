//! `glass image`: images that boxes are made from.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::pin::pin;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueHint};
use glasshouse_sandbox::{
    EngineImage, ErrorKind, Image, ImageInfo, PullOptions, Sandboxes, Stop, registry_of,
};
use owo_colors::OwoColorize as _;
use serde_json::{Value, json};

use super::each::{Words, each};
use crate::args::Global;
use crate::session::{Part, signal_code};
use crate::signals::{Signals, Told};
use crate::{login, output, progress, table, terminal, words};

/// Images: pull, import, list, remove, inspect
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  glass image pull debian:12
  glass run --image debian:12 -- cat /etc/os-release
  glass image import ./rootfs.tar --name mine:1
  glass image list")]
pub(crate) struct Images {
    #[command(subcommand)]
    command: What,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
enum What {
    Pull(Pull),
    Import(Import),
    List(List),
    Remove(Remove),
    Inspect(Inspect),
}

/// Pull an image from a registry, and print its whole name alone
#[derive(Debug, Args)]
#[command(after_help = "\
Layers that are here are not fetched again. A pull that was broken off goes on where it stopped.
Logins are taken from Docker's config file and the helpers that it names. docker-daemon:NAME is
pulled by the Docker engine, for boxes with --runtime docker.

Examples:
  glass image pull debian:12
  glass image pull localhost:5000/mine --platform linux/arm64
  glass image pull docker-daemon:debian:12")]
struct Pull {
    /// The image: NAME[:TAG], REGISTRY/NAME[:TAG] or NAME@DIGEST, or docker-daemon: and such a name
    #[arg(value_name = "IMAGE")]
    name: String,
    /// For another kind of machine, like linux/arm64
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<String>,
    /// Talk to the registry without TLS
    #[arg(long)]
    insecure: bool,
}

/// Import an image from an archive or a directory, and print its whole name alone
#[derive(Debug, Args)]
#[command(after_help = "\
An archive is one of the OCI's layout or one by `docker save`; a directory is of the OCI's layout
or holds a root. Without --name, no image that is here is replaced by another.

Examples:
  skopeo copy docker://debian:12 oci-archive:debian.tar && glass image import debian.tar
  glass image import /srv/alpine --name alpine:mine")]
struct Import {
    /// The archive or directory
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    path: PathBuf,
    /// What to call it [default: what the archive says, or the file's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// List the images
#[derive(Debug, Args)]
struct List {}

/// Remove images, and what nobody needs of them
#[derive(Debug, Args)]
struct Remove {
    /// The images
    #[arg(value_name = "IMAGE", required = true)]
    names: Vec<String>,
}

/// Show an image: how it wants its commands to be run, and its layers
#[derive(Debug, Args)]
struct Inspect {
    /// The image
    #[arg(value_name = "IMAGE")]
    name: String,
}

impl Images {
    pub(crate) async fn run(self, global: &Global) -> Result<i32> {
        match self.command {
            What::Pull(command) => command.run(global).await,
            What::Import(command) => command.run(global).await,
            What::List(_) => list(global).await,
            What::Remove(command) => command.run(global).await,
            What::Inspect(command) => command.run(global).await,
        }
    }
}

impl Pull {
    async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let options = PullOptions {
            insecure: self.insecure,
            platform: self.platform.clone(),
            ..PullOptions::default()
        };
        let mut signals = Signals::of(Part::default())?;
        if let Some(name) = self.name.strip_prefix("docker-daemon:") {
            if self.insecure {
                bail!(
                    "whether the engine talks to a registry without TLS is its own setting, `insecure-registries`"
                );
            }
            return match pull_by_engine(global, &house, name, options, &mut signals).await? {
                ControlFlow::Continue(image) => told_of_engine(global, name, &image),
                ControlFlow::Break(signal) => Ok(signal_code(signal)),
            };
        }
        match pull(global, &house, &self.name, options, &mut signals).await? {
            Fetched::Image(info) => told(global, &info),
            Fetched::Stopped(signal) => Ok(signal_code(signal)),
        }
    }
}

impl Import {
    async fn run(self, global: &Global) -> Result<i32> {
        let (house, stop) = (global.open()?, Stop::default());
        let mut signals = Signals::of(Part::default())?;
        let work = house.import_image_until(&stop, &self.path, self.name.as_deref());
        match until_told(work, &stop, &mut signals).await? {
            ControlFlow::Continue(info) => told(global, &info),
            ControlFlow::Break(signal) => Ok(signal_code(signal)),
        }
    }
}

fn told_of_engine(global: &Global, name: &str, image: &EngineImage) -> Result<i32> {
    let whole = format!("docker-daemon:{name}");
    match global.json {
        true => output::print_json(&json!({
            "name": whole, "id": image.id, "digests": image.digests, "platform": image.platform,
        }))?,
        false => output::print([&whole])?,
    }
    Ok(0)
}

/// Says what came, and what did not come along.
fn told(global: &Global, info: &ImageInfo) -> Result<i32> {
    if info.left_out > 0 {
        let left_out = words::count(info.left_out as usize, "device was", "devices were");
        global.say(&format!("{left_out} left out of {}: boxes have their own", info.name));
    }
    match global.json {
        true => output::print_json(&json(info))?,
        false => output::print([&info.name])?,
    }
    Ok(0)
}

async fn list(global: &Global) -> Result<i32> {
    let images = global.open()?.images().await?;
    if global.json {
        output::print_json(&Value::Array(images.iter().map(json).collect()))?;
        return Ok(0);
    }
    if images.is_empty() {
        global.say("there are no images; `glass image pull` fetches one");
        return Ok(0);
    }
    let header = ["IMAGE", "DIGEST", "SIZE", "LAYERS", "AGE"];
    let row = |info: &ImageInfo| {
        vec![
            info.name.clone(),
            progress::short(&info.digest).to_owned(),
            words::size(info.size_bytes),
            info.layers.len().to_string(),
            words::age(info.created_ms),
        ]
    };
    let rows: Vec<Vec<String>> = images.iter().map(row).collect();
    let mut lines = table::lines(&header, &rows, terminal::width());
    lines[0] = lines[0].bold().to_string();
    output::print(lines)?;
    Ok(0)
}

impl Remove {
    async fn run(self, global: &Global) -> Result<i32> {
        let house = global.open()?;
        let words = Words { done: "removed", name: "image" };
        each(global, self.names, words, async |name| match house.remove_image(name).await {
            Ok(info) => Ok(Some(info.name)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("there is no image {name:?}; `glass image list` shows the images")
            }
            Err(error) => Err(error.into()),
        })
        .await
    }
}

impl Inspect {
    async fn run(self, global: &Global) -> Result<i32> {
        let info = global.open()?.image(&self.name).await?;
        match global.json {
            true => output::print_json(&json(&info))?,
            false => output::print(table::wrapped(&facts(&info), terminal::width()))?,
        }
        Ok(0)
    }
}

/// The whole of it, also for lists.
fn json(info: &ImageInfo) -> Value {
    let config = &info.config;
    let env: Vec<String> = config.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    json!({
        "name": info.name,
        "digest": info.digest,
        "size_bytes": info.size_bytes,
        "created_ms": info.created_ms,
        "layers": info.layers,
        "left_out": info.left_out,
        "config": {
            "env": env,
            "entrypoint": config.entrypoint,
            "cmd": config.cmd,
            "user": config.user,
            "workdir": config.workdir,
            "labels": config.labels,
            "architecture": config.architecture,
        },
    })
}

fn facts(info: &ImageInfo) -> Vec<Vec<String>> {
    let config = &info.config;
    let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
    let words = |words: &[String]| words.join(" ");
    let mut rows = vec![
        vec!["image".to_owned(), info.name.clone()],
        vec!["digest".to_owned(), info.digest.clone()],
        vec!["size".to_owned(), words::size(info.size_bytes)],
        vec!["machine".to_owned(), or(&config.architecture, "not told")],
        vec!["user".to_owned(), or(&config.user, "root")],
        vec!["workdir".to_owned(), or(&config.workdir, "/")],
        vec!["entrypoint".to_owned(), words(&config.entrypoint)],
        vec!["cmd".to_owned(), words(&config.cmd)],
    ];
    rows.extend(config.env.iter().map(|(key, value)| vec!["env".to_owned(), format!("{key}={value}")]));
    rows.extend(config.labels.iter().map(|(key, value)| vec!["label".to_owned(), format!("{key}={value}")]));
    rows.extend(info.layers.iter().map(|layer| vec!["layer".to_owned(), layer.clone()]));
    rows
}

/// What became of an image that was wanted.
pub(super) enum Fetched {
    Image(Box<ImageInfo>),
    /// We were told to end by this signal.
    Stopped(i32),
}

impl From<ControlFlow<i32, ImageInfo>> for Fetched {
    fn from(done: ControlFlow<i32, ImageInfo>) -> Fetched {
        match done {
            ControlFlow::Continue(info) => Fetched::Image(Box::new(info)),
            ControlFlow::Break(signal) => Fetched::Stopped(signal),
        }
    }
}

/// Pulls, with lines on the terminal. Whoever ends us leaves nothing half, and what was downloaded for the next time.
async fn pull(
    global: &Global,
    house: &Sandboxes,
    name: &str,
    options: PullOptions,
    signals: &mut Signals,
) -> Result<Fetched> {
    let stop = Stop::default();
    let options = as_us(global, name, options, &stop)?;
    let fetched = until_told(house.pull_image(name, options), &stop, signals).await?;
    if fetched.is_break() {
        global.say("stopped; the next `glass image pull` goes on with what was downloaded");
    }
    Ok(fetched.into())
}

/// With our login and lines, until somebody stops it.
fn as_us(global: &Global, name: &str, options: PullOptions, stop: &Stop) -> Result<PullOptions> {
    Ok(PullOptions {
        credentials: login::credentials(&registry_of(name)?)?,
        progress: progress::lines(global.quiet),
        stop: Some(stop.clone()),
        ..options
    })
}

/// The same of the Docker engine.
async fn pull_by_engine(
    global: &Global,
    house: &Sandboxes,
    name: &str,
    options: PullOptions,
    signals: &mut Signals,
) -> Result<ControlFlow<i32, EngineImage>> {
    let stop = Stop::default();
    let options = as_us(global, name, options, &stop)?;
    until_told(house.pull_engine_image(name, options), &stop, signals).await
}

/// Waits for work on an image, and for it to clean up if we are told to end, by which signal. Whoever tells us twice need not
/// wait.
async fn until_told<T>(
    work: impl Future<Output = glasshouse_sandbox::Result<T>>,
    stop: &Stop,
    signals: &mut Signals,
) -> Result<ControlFlow<i32, T>> {
    let mut work = pin!(work);
    let mut ended_by = None;
    loop {
        tokio::select! {
            done = &mut work => return match (done, ended_by) {
                (Ok(done), _) => Ok(ControlFlow::Continue(done)),
                (Err(_), Some(signal)) => Ok(ControlFlow::Break(signal)),
                (Err(error), None) => Err(error.into()),
            },
            told = signals.next() => if let Told::End(signal) = told {
                if signals.insist() {
                    return Ok(ControlFlow::Break(signal));
                }
                ended_by = Some(signal);
                stop.stop();
            }
        }
    }
}

/// Fetches the image of a box that is to be made, where it has to be fetched first: with our logins and lines.
pub(super) async fn fetch(
    global: &Global,
    house: &Sandboxes,
    image: &mut Image,
    signals: &mut Signals,
) -> Result<Option<Fetched>> {
    let info = match image {
        Image::Host | Image::Directory(_) | Image::Snapshot(_) => return Ok(None),
        Image::Engine(name) => {
            if house.engine_image(name).await?.is_some() {
                return Ok(None);
            }
            let pulled = pull_by_engine(global, house, name, PullOptions::default(), signals).await?;
            return Ok(pulled.break_value().map(Fetched::Stopped));
        }
        Image::Stored(name) => house.image(name).await?,
        Image::Remote(name) => match house.image(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return pull(global, house, name, PullOptions::default(), signals).await.map(Some);
            }
            known => known?,
        },
        Image::OciArchive(path) | Image::DockerArchive(path) => {
            let stop = Stop::default();
            let work = house.archive_image_until(&stop, path);
            let fetched = until_told(work, &stop, signals).await?.into();
            if let Fetched::Image(info) = &fetched {
                *image = Image::Stored(info.name.clone());
            }
            return Ok(Some(fetched));
        }
    };
    Ok(Some(Fetched::Image(Box::new(info))))
}

/// What an image runs when nobody says what.
pub(super) fn own_command(info: Option<&ImageInfo>) -> Result<Vec<String>> {
    let Some(info) = info else {
        bail!("there is nothing to run: this image has no command of its own; say one after `--`")
    };
    something(&info.name, [info.config.entrypoint.clone(), info.config.cmd.clone()].concat())
}

/// A command of an image's own, unless it is none.
pub(super) fn something(image: &str, command: Vec<String>) -> Result<Vec<String>> {
    if command.is_empty() {
        bail!("there is nothing to run: the image {image} has no command of its own; say one after `--`");
    }
    Ok(command)
}
