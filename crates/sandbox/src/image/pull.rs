//! Pulling an image: its documents, then its layers side by side, then from the lowest to the uppermost into their places.
//!
//! ```text
//!  manifest ─▶ config ─▶ layers not here yet ─┬▶ download ─┐
//!                                             ├▶ download ─┼▶ checked ─▶ unpacked, in order ─▶ record
//!                                             └▶ download ─┘
//! ```
//! What was downloaded of a layer stays in `incoming/blobs` until the image is here: a pull that was broken off is
//! continued where it stopped.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use glasshouse_linux::rustix::fs::FlockOperation;
use glasshouse_linux::{descriptor, rustix};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use super::assembly::{Assembly, Blob, stopped};
use super::manifest::{self, Config, Descriptor, Document, Manifest, Platform, digest_of, digest_text};
use super::reference::Reference;
use super::registry::{Credentials, Registry, Trouble};
use super::store::{ImageInfo, Incoming, find_layer, image, layer_name};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::snapshot::layers;
use crate::threads::blocking;

/// Layers that are downloaded at the same time, as by other tools.
const DOWNLOADS: usize = 4;
/// Pieces of a layer that wait to be written.
const PIECES: usize = 16;
/// Indexes that lead to each other before one leads to an image.
const INDEXES_MAX: usize = 3;
/// How often it is looked whether somebody else is done with the same layer.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How a pull is to be done.
#[derive(Clone, Default)]
pub struct PullOptions {
    /// Who we are to the registry.
    pub credentials: Option<Credentials>,
    /// Talk to the registry without TLS. Those on this machine are talked to like that anyway.
    pub insecure: bool,
    /// `linux/arm64`; without a word, for this machine.
    pub platform: Option<String>,
    /// Hears how it goes on. It is called often, and from several threads.
    pub progress: Option<Arc<dyn Fn(PullProgress) + Send + Sync>>,
    /// Ends it.
    pub stop: Option<Stop>,
}

impl std::fmt::Debug for PullOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = (&self.credentials, self.insecure, &self.platform);
        f.debug_tuple("PullOptions").field(&shown).finish()
    }
}

/// How a layer goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullProgress {
    /// Its digest.
    pub layer: String,
    /// Where it stands.
    pub phase: PullPhase,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
}

/// Where a layer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPhase {
    /// It waits for its turn.
    Waiting,
    /// It is being downloaded.
    Downloading,
    /// It is whole, and waits for those below it.
    Downloaded,
    /// It is being unpacked.
    Unpacking,
    /// It is unpacked.
    Done,
    /// It was here already.
    Here,
}

/// A word to somebody who is at work, that the work is to end. Copies are the same word.
#[derive(Debug, Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Default for Stop {
    fn default() -> Stop {
        Stop(Arc::new(watch::Sender::new(false)))
    }
}

impl Stop {
    /// Says it.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_said(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn said(&self) {
        // The sender is ours: it cannot be gone.
        let _ = self.0.subscribe().wait_for(|said| *said).await;
    }
}

/// Pulls an image. If it fails or is stopped, nothing is left of it but what a later pull continues with.
pub(super) async fn pull(home: &Home, name: &str, options: PullOptions) -> Result<ImageInfo> {
    let reference: Reference = name.parse()?;
    let platform = Platform::parse(options.platform.as_deref())?;
    let registry = Registry::new(&reference, options.credentials.clone(), options.insecure)?;
    let (alive, mut ended) = mpsc::channel(1);
    let stop = options.stop.clone();
    let pull = Pull {
        home: home.clone(),
        reference,
        registry: Arc::new(registry),
        progress: options.progress,
        stop: Halt::default(),
        alive,
    };
    let said = async {
        match &stop {
            Some(stop) => stop.said().await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = pull.run(&platform) => result,
        () = said => Err(stopped()),
    };
    drop(pull);
    // Whoever unpacks hears of it at his next piece, and cleans up.
    while ended.recv().await.is_some() {}
    result
}

/// Threads that work for a future learn that it is gone.
#[derive(Default)]
pub(super) struct Halt(Arc<AtomicBool>);

impl Halt {
    /// What such a thread looks at.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for Halt {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Pull {
    home: Home,
    reference: Reference,
    registry: Arc<Registry>,
    progress: Option<Arc<dyn Fn(PullProgress) + Send + Sync>>,
    stop: Halt,
    alive: mpsc::Sender<()>,
}

/// A task that ends when nobody waits for it any more.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pull {
    async fn run(&self, platform: &Platform) -> Result<ImageInfo> {
        let (home, alive) = (self.home.clone(), self.alive.clone());
        let (store, incoming) = blocking(move || {
            let store = home.store_shared()?;
            Ok((store, Arc::new(Incoming::new(&home, Some(alive))?)))
        })
        .await?;
        let (manifest, digest, config) = self.documents(platform).await?;
        let mut assembly = Assembly::new(&self.home, Arc::clone(&incoming), self.stop.flag());
        let mut downloads = self.start_downloads(&manifest, &config)?;
        for (layer, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            // Somebody else may be quicker with the same layer, so it is looked for before and after.
            let mut part = None;
            if let Some(mut download) = downloads.remove(&layer.digest) {
                part = match (&mut download.0).await {
                    Ok(part) => part?,
                    Err(_) => return Err(Error::new(ErrorKind::Failed, "a download was broken off")),
                };
            }
            if assembly.reuse(diff_id)? {
                self.tell(layer, PullPhase::Here, layer.size);
                continue;
            }
            // Its content may be here, but not on top of these layers; or it is the same as an earlier one.
            let part = match part {
                Some(part) => part,
                None => Download::new(self, layer, None).fetch().await?,
            };
            assembly = self.unpack(assembly, layer, diff_id, part).await?;
        }
        let before = image(&self.home, &self.reference.to_string()).ok();
        let (reference, home) = (self.reference.clone(), self.home.clone());
        let info = blocking(move || assembly.finish(&reference, &digest, config)).await?;
        for layer in &manifest.layers {
            // One that stays is removed when it is old.
            let _ = fs::remove_file(part_path(&self.home, layer));
        }
        drop((incoming, store));
        if before.is_some() {
            // The same name stood for something else.
            blocking(move || layers::sweep(&home)).await?;
        }
        Ok(info)
    }

    /// The image's manifest, its digest, and its configuration.
    async fn documents(&self, platform: &Platform) -> Result<(Manifest, String, Config)> {
        let mut wanted = self.reference.wanted().to_owned();
        for _ in 0..INDEXES_MAX {
            let bytes = self.registry.manifest(&wanted).await?;
            let context = |e: Error| Error::new(e.kind(), format!("cannot pull {}: {e}", self.reference));
            match manifest::document(&bytes, platform).map_err(context)? {
                Document::Index(inner) => wanted = inner.digest,
                Document::Manifest(manifest) => {
                    let config = self.registry.config(&manifest.config).await?;
                    let config = manifest::config(&config).map_err(context)?;
                    platform.check(&config).map_err(context)?;
                    if config.diff_ids.len() != manifest.layers.len() {
                        let message = format!(
                            "cannot pull {}: its manifest has {} layers, its configuration {}",
                            self.reference,
                            manifest.layers.len(),
                            config.diff_ids.len()
                        );
                        return Err(Error::new(ErrorKind::Invalid, message));
                    }
                    return Ok((manifest, digest_of(&bytes), config));
                }
            }
        }
        let message =
            format!("cannot pull {}: more than {INDEXES_MAX} indexes lead to each other", self.reference);
        Err(Error::new(ErrorKind::Limit, message))
    }

    /// Starts the download of every layer that is not here under its own name.
    fn start_downloads(
        &self,
        manifest: &Manifest,
        config: &Config,
    ) -> Result<HashMap<String, Task<Result<Option<Part>>>>> {
        let room = Arc::new(Semaphore::new(DOWNLOADS));
        let mut downloads = HashMap::new();
        let mut claimed = 0u64;
        for (n, layer) in manifest.layers.iter().enumerate() {
            let chain = manifest::chain_id(&config.diff_ids[..=n]);
            let here = find_layer(&self.home, &chain, &config.diff_ids[n])?.is_some();
            if here || downloads.contains_key(&layer.digest) {
                continue;
            }
            claimed = claimed.saturating_add(layer.size);
            super::check_room(&self.home, claimed)?;
            self.tell(layer, PullPhase::Waiting, 0);
            let ids = Some((chain, config.diff_ids[n].clone()));
            let (download, room) = (Download::new(self, layer, ids), Arc::clone(&room));
            let task = tokio::spawn(async move {
                let _turn = room.acquire().await;
                download.run().await
            });
            downloads.insert(layer.digest.clone(), Task(task));
        }
        Ok(downloads)
    }

    async fn unpack(
        &self,
        mut assembly: Assembly,
        layer: &Descriptor,
        diff_id: &str,
        mut part: Part,
    ) -> Result<Assembly> {
        let (diff_id, told) =
            (diff_id.to_owned(), Teller { layer: layer.clone(), progress: self.progress.clone() });
        blocking(move || {
            // By its descriptor: somebody who has the image by now may have removed the name.
            part.file.seek(SeekFrom::Start(0)).context("read a download")?;
            let stream = &part.file;
            let heard = |done: u64| told.tell(PullPhase::Unpacking, done);
            // The bytes have been checked, but what is read now is read again from a file.
            let digest = Some(told.layer.digest.clone());
            assembly.unpack(Blob { stream, digest }, Some(&diff_id), &heard)?;
            told.tell(PullPhase::Done, told.layer.size);
            Ok(assembly)
        })
        .await
    }

    fn tell(&self, layer: &Descriptor, phase: PullPhase, done: u64) {
        Teller { layer: layer.clone(), progress: self.progress.clone() }.tell(phase, done);
    }
}

/// Says how a layer goes on.
#[derive(Clone)]
struct Teller {
    layer: Descriptor,
    progress: Option<Arc<dyn Fn(PullProgress) + Send + Sync>>,
}

impl Teller {
    fn tell(&self, phase: PullPhase, done: u64) {
        if let Some(progress) = &self.progress {
            progress(PullProgress { layer: self.layer.digest.clone(), phase, done, total: self.layer.size });
        }
    }
}

/// Where a layer is downloaded to.
fn part_path(home: &Home, layer: &Descriptor) -> PathBuf {
    home.path("incoming").join("blobs").join(format!("{}.part", layer_name(&layer.digest)))
}

/// The download of one layer.
struct Download {
    home: Home,
    registry: Arc<Registry>,
    teller: Teller,
    /// By which the layer is known in the store: its chain, and its content.
    ids: Option<(String, String)>,
}

/// What is here of a layer, as it was sent. Locked as long as it is not whole.
struct Part {
    path: PathBuf,
    file: File,
}

/// What a download does to its file.
enum Piece {
    Bytes(Vec<u8>),
    /// From the start again.
    Restart,
}

impl Download {
    fn new(pull: &Pull, layer: &Descriptor, ids: Option<(String, String)>) -> Download {
        let teller = Teller { layer: layer.clone(), progress: pull.progress.clone() };
        Download { home: pull.home.clone(), registry: Arc::clone(&pull.registry), teller, ids }
    }

    /// Nothing, if the layer is here meanwhile.
    async fn run(&self) -> Result<Option<Part>> {
        let part = self.open(false).await?;
        if let Some((chain, content)) = &self.ids
            && find_layer(&self.home, chain, content)?.is_some()
        {
            part.remove();
            return Ok(None);
        }
        self.whole(part).await.map(Some)
    }

    async fn fetch(&self) -> Result<Part> {
        self.whole(self.open(false).await?).await
    }

    /// Downloads what is missing of it, and checks it.
    async fn whole(&self, mut part: Part) -> Result<Part> {
        let layer = &self.teller.layer;
        let mut fresh = false;
        loop {
            let (filled, found) = self.fill(part).await?;
            if found == layer.digest {
                // It is whole and stays so: whoever wants the same layer need not wait for us, nor we for him.
                rustix::fs::flock(&filled.file, FlockOperation::Unlock).context("unlock a download")?;
                self.teller.tell(PullPhase::Downloaded, layer.size);
                return Ok(filled);
            }
            // Not to be continued by anybody.
            filled.remove();
            drop(filled);
            if fresh {
                let message = format!(
                    "cannot pull a layer: the registry sent something with the digest {found} for {}; it is damaged, \
                     or somebody changed it",
                    layer.digest
                );
                return Err(Error::new(ErrorKind::Invalid, message));
            }
            // What was here before may have been damaged: once more, all of it from there.
            fresh = true;
            part = self.open(fresh).await?;
        }
    }

    /// Opens what is here of it, and waits if somebody else is downloading it.
    async fn open(&self, fresh: bool) -> Result<Part> {
        let path = part_path(&self.home, &self.teller.layer);
        loop {
            let (at, size) = (path.clone(), self.teller.layer.size);
            let opened = blocking(move || {
                let context = format!("open {}", at.display());
                let file = File::options().create(true).truncate(false).read(true).write(true).open(&at);
                let file = file.context(&context)?;
                let ours = descriptor::try_lock(file.as_fd()).context(&context)?;
                let meta = file.metadata().context(&context)?;
                // Whoever had it before us may have removed it when he was done.
                if !ours || meta.nlink() == 0 {
                    return Ok(None);
                }
                if fresh || meta.len() > size {
                    file.set_len(0).context(&context)?;
                }
                Ok(Some(Part { path: at, file }))
            })
            .await?;
            match opened {
                Some(part) => return Ok(part),
                None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Downloads what is missing. The digest of the whole.
    async fn fill(&self, part: Part) -> Result<(Part, String)> {
        let size = self.teller.layer.size;
        let have = part.file.metadata().context("look at a download")?.len();
        let (pieces, receiver) = mpsc::channel(PIECES);
        let writer = tokio::spawn(blocking(move || write(part, receiver)));
        let mut writer = Task(writer);
        let mut done = have;
        let mut tries = 1;
        while done < size {
            let before = done;
            match self.receive(&pieces, &mut done).await {
                Ok(()) => {}
                Err(trouble) if trouble.tries > 1 => {
                    // What made progress may go on for ever; what makes none may not.
                    tries = if done > before { 1 } else { tries + 1 };
                    if tries > trouble.tries {
                        return Err(trouble.error);
                    }
                    trouble.pause(tries - 1).await;
                }
                // Whoever writes knows better why it cannot be written.
                Err(_) if pieces.is_closed() => break,
                Err(trouble) => return Err(trouble.error),
            }
        }
        drop(pieces);
        match (&mut writer.0).await {
            Ok(written) => written,
            Err(_) => Err(Error::new(ErrorKind::Failed, "a download was broken off")),
        }
    }

    /// Takes what the registry sends, as far as that goes.
    async fn receive(
        &self,
        pieces: &mpsc::Sender<Piece>,
        done: &mut u64,
    ) -> std::result::Result<(), Trouble> {
        let layer = &self.teller.layer;
        let full = |_| Trouble::for_good(Error::new(ErrorKind::Failed, "a download cannot be written"));
        let (mut response, continued) = self.registry.blob(layer, *done).await?;
        if !continued {
            *done = 0;
            pieces.send(Piece::Restart).await.map_err(full)?;
        }
        while let Some(piece) = response.chunk().await.map_err(|e| self.registry.broken(&e))? {
            if *done + piece.len() as u64 > layer.size {
                let message = format!(
                    "cannot pull a layer: the registry sends more than the {} bytes that it promised for {}",
                    layer.size, layer.digest
                );
                return Err(Trouble::for_good(Error::new(ErrorKind::Invalid, message)));
            }
            *done += piece.len() as u64;
            pieces.send(Piece::Bytes(piece.to_vec())).await.map_err(full)?;
            self.teller.tell(PullPhase::Downloading, *done);
        }
        if *done < layer.size {
            let message = format!("the registry sent {} of {} bytes of {}", *done, layer.size, layer.digest);
            return Err(Trouble::broken_off(Error::new(ErrorKind::Failed, message)));
        }
        Ok(())
    }
}

/// Writes what comes to the file, behind what is in it. The digest of the whole.
fn write(mut part: Part, mut pieces: mpsc::Receiver<Piece>) -> Result<(Part, String)> {
    let context = format!("write {}", part.path.display());
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    part.file.seek(SeekFrom::Start(0)).context(&context)?;
    loop {
        match part.file.read(&mut buffer).context(&context)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    while let Some(piece) = pieces.blocking_recv() {
        match piece {
            Piece::Bytes(bytes) => {
                hash.update(&bytes);
                part.file.write_all(&bytes).context(&context)?;
            }
            Piece::Restart => {
                hash = Sha256::new();
                part.file.set_len(0).context(&context)?;
                part.file.seek(SeekFrom::Start(0)).context(&context)?;
            }
        }
    }
    Ok((part, digest_text(&hash.finalize())))
}

impl Part {
    /// Nobody needs it any more.
    fn remove(&self) {
        // One that stays is removed when it is old.
        let _ = fs::remove_file(&self.path);
    }
}
