//! Files of a box. Every path is a path inside, and is resolved there by the guest.

pub(crate) mod tree;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_linux::archive::{self, Bits};
use glasshouse_linux::rustix::fs::ResolveFlags;
use glasshouse_protocol::frame::Kind;
use glasshouse_protocol::limits::DATA_CHUNK_MAX;
use glasshouse_protocol::{Exit, FileKind, FileOp, FileResult, FileStat, ListPage, Reply, Request};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{self, Stream};
use crate::driver::Act;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::exec::ExecInput;
use crate::limits::{COPY_OUT_BYTES, READ_FILE_BYTES, STEP_CONTENT_BYTES};
use crate::sandbox::Sandbox;
use crate::state::steps::Done;
use crate::threads::blocking;

/// What steps are called on record that are operations on files by a caller.
pub(crate) const FILE_STEP: &str = "file";
/// Pieces of a tree that wait between the disk and the guest.
const PIECES: usize = 8;

impl Sandbox {
    /// Reads a file, or a part of it, into memory.
    pub async fn read_file(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let op = FileOp::Read { path: path.into(), offset, length };
        self.download(op, |piece| {
            if (bytes.len() + piece.len()) as u64 > READ_FILE_BYTES {
                let message =
                    format!("{path} is larger than {READ_FILE_BYTES} bytes; read it in parts or copy it out");
                return Err(Error::new(ErrorKind::Limit, message));
            }
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .await?;
        Ok(bytes)
    }

    /// Replaces a file: whole, or not at all. Missing directories above it are made.
    pub async fn write_file(&self, path: &str, bytes: &[u8], mode: Option<u32>) -> Result<()> {
        self.replace_file(path, bytes, mode, true).await
    }

    /// The same; `parents` says whether missing directories are made.
    pub(crate) async fn replace_file(
        &self,
        path: &str,
        bytes: &[u8],
        mode: Option<u32>,
        parents: bool,
    ) -> Result<()> {
        let op = FileOp::Write { path: path.into(), mode, parents };
        let asked = json!({ "op": "write", "path": path, "mode": mode, "parents": parents });
        self.upload("write", path, op, bytes, asked).await
    }

    /// Adds to the end of a file.
    pub async fn append_file(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let asked = json!({ "op": "append", "path": path });
        self.upload("append", path, FileOp::Append { path: path.into() }, bytes, asked).await
    }

    /// One page of a directory, sorted by name, after the name `after`.
    pub async fn list_dir(&self, path: &str, after: Option<&str>, limit: Option<usize>) -> Result<ListPage> {
        let op = FileOp::List { path: path.into(), after: after.map(str::to_owned), limit };
        match self.file(op).await? {
            FileResult::Page(page) => Ok(page),
            other => Err(client::unexpected(&Reply::File(other))),
        }
    }

    /// What a path names; with `follow`, what a link at its end leads to.
    pub async fn stat(&self, path: &str, follow: bool) -> Result<FileStat> {
        match self.file(FileOp::Stat { path: path.into(), follow }).await? {
            FileResult::Stat(stat) => Ok(stat),
            other => Err(client::unexpected(&Reply::File(other))),
        }
    }

    /// Makes a directory; with `parents`, those above it too, and it may be there already.
    pub async fn make_dir(&self, path: &str, parents: bool) -> Result<()> {
        let op = FileOp::Mkdir { path: path.into(), parents, mode: None };
        let asked = json!({ "op": "mkdir", "path": path, "parents": parents });
        self.change("mkdir", path, op, asked).await
    }

    /// Moves a file or a tree.
    pub async fn move_file(&self, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let op = FileOp::Move { from: from.into(), to: to.into(), overwrite };
        let asked = json!({ "op": "move", "from": from, "to": to, "overwrite": overwrite });
        self.change("move", &format!("{from} -> {to}"), op, asked).await
    }

    /// Removes a file, a link or an empty directory; with `recursive`, a whole tree.
    pub async fn remove_file(&self, path: &str, recursive: bool) -> Result<()> {
        let op = FileOp::Remove { path: path.into(), recursive };
        let asked = json!({ "op": "remove", "path": path, "recursive": recursive });
        if !recursive {
            return self.change("remove", path, op, asked).await;
        }
        let result = match self.open(op).await {
            Ok(mut stream) => work_end(&mut stream, |_| Ok(())).await,
            Err(e) => Err(e),
        };
        self.changed("remove", path, None, asked, result).await
    }

    /// Changes permission bits.
    pub async fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        let asked = json!({ "op": "chmod", "path": path, "mode": mode });
        self.change("chmod", path, FileOp::Chmod { path: path.into(), mode }, asked).await
    }

    /// Gives a file to another owner, or another group, or both, by their numbers in the box. Only root of a box that has
    /// several users can.
    pub async fn chown(&self, path: &str, owner: Option<u32>, group: Option<u32>) -> Result<()> {
        let asked = json!({ "op": "chown", "path": path, "owner": owner, "group": group });
        self.change("chown", path, FileOp::Chown { path: path.into(), owner, group }, asked).await
    }

    /// Copies a file or a tree into the box, as `cp -r` would: into `to` if that is a directory, else as `to`.
    pub async fn copy_in(&self, from: &Path, to: &str) -> Result<()> {
        let path = from.to_owned();
        let meta =
            blocking(move || std::fs::metadata(&path).context(format_args!("read {}", path.display())));
        let meta = meta.await?;
        let into_dir = match self.stat(to, true).await {
            Ok(stat) => stat.kind == FileKind::Directory,
            Err(e) if e.kind() == ErrorKind::NotFound => to.ends_with('/'),
            Err(e) => return Err(e),
        };
        let target = if into_dir { join(to, &file_name(from)?) } else { to.to_owned() };
        if meta.is_dir() {
            return self.copy_tree_in(from, &target).await;
        }
        let result = self.file_in(from, &target).await;
        let mut asked = json!({ "op": "copy in", "path": target });
        if self.takes_steps()
            && meta.is_file()
            && meta.len() <= STEP_CONTENT_BYTES as u64
            && let Ok(bytes) = read_whole(from).await
        {
            let mode = meta.permissions().mode() & 0o777;
            asked = json!({ "op": "write", "path": target, "mode": mode, "parents": false });
            put_content(&mut asked, &bytes);
        }
        self.changed("copy in", &target, None, asked, result).await
    }

    /// Copies what is in a directory into one of the box's, which is made if it is missing.
    pub(crate) async fn copy_tree_in(&self, from: &Path, to: &str) -> Result<()> {
        let (path, shown) = (from.to_owned(), from.display().to_string());
        self.tar_in(to, move |out| {
            archive::pack(&path, ResolveFlags::empty(), Bits::Permissions, out)
                .context(format_args!("read {shown}"))
        })
        .await
    }

    /// The same once more, from what is on record of it.
    pub(crate) async fn copy_archive_in(&self, archive: Vec<u8>, to: &str) -> Result<()> {
        self.tar_in(to, move |mut out| {
            out.write_all(&archive).and_then(|()| out.flush()).context("send the tree")
        })
        .await
    }

    /// Copies a file or a tree out of the box, as `cp -r` would. Nothing that the box says can lead outside of `to`.
    pub async fn copy_out(&self, from: &str, to: &Path) -> Result<()> {
        if is_whole_root(Path::new(&self.info().cwd), from) {
            let message = format!(
                "cannot copy all of box {}: its root shows /proc, /sys, /dev and programs of the host, which are no files of \
                 the box; name a directory in it, or take a snapshot and `glass export` that",
                self.id()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let stat = self.stat(from, true).await?;
        let name =
            from.trim_end_matches('/').rsplit('/').next().filter(|name| !matches!(*name, "" | "." | ".."));
        let target = match name {
            Some(name) if to.is_dir() => to.join(name),
            _ => to.to_owned(),
        };
        let result = match stat.kind {
            FileKind::File if stat.size > COPY_OUT_BYTES => {
                let message = format!("{from} is larger than {COPY_OUT_BYTES} bytes; read it in parts");
                Err(Error::new(ErrorKind::Limit, message))
            }
            FileKind::Directory => self.tree_out(from, &target).await,
            _ => self.file_out(from, &target, stat.mode).await,
        };
        self.told("copy out", from, None, result).await
    }

    /// Unpacks the archive that `pack` writes in a directory of the box, and puts that on record.
    async fn tar_in(
        &self,
        to: &str,
        pack: impl FnOnce(PieceWriter) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        // What it held goes on record as far as a step may keep it.
        let mut kept = self.takes_steps().then(Vec::new);
        let result = self.send_tar(to, pack, &mut kept).await;
        let mut asked = json!({ "op": "copy in", "path": to });
        if let Some(tree) = kept.as_deref().and_then(tree::entries_of) {
            asked["tree"] = tree;
        }
        self.changed("copy in", to, None, asked, result).await
    }

    async fn send_tar(
        &self,
        to: &str,
        pack: impl FnOnce(PieceWriter) -> Result<()> + Send + 'static,
        kept: &mut Option<Vec<u8>>,
    ) -> Result<()> {
        let mut stream = self.open(FileOp::TarIn { path: to.into() }).await?;
        let (pieces, mut inbox) = mpsc::channel::<Vec<u8>>(PIECES);
        let packing = blocking(move || pack(PieceWriter { pieces, piece: Vec::new() }));
        let room = ExecInput::first_room();
        let sender = stream.sender();
        let feed = {
            let (room, kept) = (room.clone(), &mut *kept);
            async move {
                while let Some(piece) = inbox.recv().await {
                    keep(kept, &piece);
                    let Ok(permit) = room.acquire_many(piece.len() as u32).await else { break };
                    permit.forget();
                    sender.data(&piece).await?;
                }
                sender.end().await
            }
        };
        let end = async {
            let ended = work_end(&mut stream, |granted| {
                room.add_permits(granted);
                Ok(())
            })
            .await;
            // Nothing more is read inside: whoever waits for room goes on and finds that out.
            room.close();
            ended
        };
        let (packed, fed, ended) = tokio::join!(packing, feed, end);
        if packed.is_err() {
            *kept = None;
        }
        // The guest's word first: it knows why it stopped reading.
        ended?;
        fed?;
        packed
    }

    async fn tree_out(&self, from: &str, to: &Path) -> Result<()> {
        std::fs::create_dir_all(to).context(format_args!("make {}", to.display()))?;
        let dir = std::fs::File::open(to).context(format_args!("open {}", to.display()))?;
        let mut stream = self.open(FileOp::TarOut { path: from.into() }).await?;
        let (pieces, inbox) = mpsc::channel::<Vec<u8>>(PIECES);
        let shown = to.display().to_string();
        let unpacking = blocking(move || {
            let mut reader = PieceReader { pieces: inbox, piece: io::Cursor::new(Vec::new()) };
            let done = archive::unpack_at_most(&mut reader, dir.as_fd(), COPY_OUT_BYTES)
                .context(format_args!("write below {shown}"));
            if done.is_ok() {
                // What comes after the archive's end is padding.
                io::copy(&mut reader, &mut io::sink()).context("read the rest of the archive")?;
            }
            done
        });
        let end = relay_out(&mut stream, pieces);
        let (unpacked, ended) = tokio::join!(unpacking, end);
        unpacked?;
        ended
    }

    async fn file_in(&self, from: &Path, to: &str) -> Result<()> {
        let (path, shown) = (from.to_owned(), from.display().to_string());
        let opened = blocking(move || {
            let open = || -> io::Result<_> {
                let file = std::fs::File::open(&path)?;
                let mode = file.metadata()?.permissions().mode() & 0o777;
                Ok((file, mode))
            };
            open().context(format_args!("read {}", path.display()))
        });
        let (mut file, mode) = opened.await?;
        let op = FileOp::Write { path: to.into(), mode: Some(mode), parents: false };
        let mut upload = Upload::open(self, op).await?;
        let (pieces, mut inbox) = mpsc::channel::<Vec<u8>>(PIECES);
        let reading = blocking(move || read_pieces(&mut file, &pieces).context(format_args!("read {shown}")));
        let sending = async move {
            while let Some(piece) = inbox.recv().await {
                upload.send(&piece).await?;
            }
            Ok::<_, Error>(upload)
        };
        let (read, sent) = tokio::join!(reading, sending);
        // The guest's word first: it knows why it takes no more. What was not read whole is not put in its place.
        let upload = sent?;
        read?;
        upload.finish().await.map(|_| ())
    }

    async fn file_out(&self, from: &str, to: &Path, mode: u32) -> Result<()> {
        let target = to.to_owned();
        let mut incoming = blocking(move || Incoming::create(target, mode)).await?;
        let op = FileOp::Read { path: from.into(), offset: 0, length: None };
        let mut stream = self.open(op).await?;
        let (pieces, mut inbox) = mpsc::channel::<Vec<u8>>(PIECES);
        let writing = blocking(move || {
            while let Some(piece) = inbox.blocking_recv() {
                incoming.write(&piece)?;
            }
            Ok(incoming)
        });
        let (written, ended) = tokio::join!(writing, relay_file(&mut stream, pieces));
        let incoming = written?;
        blocking(move || ended.and_then(|()| incoming.put())).await
    }

    async fn open(&self, file: FileOp) -> Result<Stream> {
        self.driver.line.link().await?.open(&Request::File { file, user: self.user() }).await
    }

    async fn file(&self, file: FileOp) -> Result<FileResult> {
        match self.driver.line.link().await?.call(&Request::File { file, user: self.user() }).await? {
            Reply::File(result) => Ok(result),
            other => Err(client::unexpected(&other)),
        }
    }

    async fn change(&self, verb: &'static str, path: &str, op: FileOp, asked: Value) -> Result<()> {
        let result = self.file(op).await.map(|_| ());
        self.changed(verb, path, None, asked, result).await
    }

    /// Puts an operation on record that changed something: it is a step, unless it is a part of one.
    async fn changed(
        &self,
        op: &'static str,
        path: &str,
        bytes: Option<u64>,
        mut asked: Value,
        result: Result<()>,
    ) -> Result<()> {
        let result = self.told(op, path, bytes, result).await;
        if self.takes_steps() {
            if let Some(user) = self.user() {
                asked["user"] = user.into();
            }
            let error = result.as_ref().err().map(ToString::to_string);
            let exit_code = Some(i32::from(error.is_some()));
            let tool = Some(FILE_STEP.to_owned());
            self.step(Done { tool, params: Some(asked), exit_code, error, ..Done::default() }).await;
        }
        result
    }

    /// Puts an operation on record.
    async fn told(&self, op: &'static str, path: &str, bytes: Option<u64>, result: Result<()>) -> Result<()> {
        let error = result.as_ref().err().map(ToString::to_string);
        self.driver.tell(Act::File { op, path: path.into(), bytes, error }).await;
        result
    }

    async fn upload(
        &self,
        verb: &'static str,
        path: &str,
        op: FileOp,
        bytes: &[u8],
        mut asked: Value,
    ) -> Result<()> {
        let result = async {
            let mut upload = Upload::open(self, op).await?;
            for piece in bytes.chunks(DATA_CHUNK_MAX) {
                upload.send(piece).await?;
            }
            upload.finish().await
        }
        .await;
        let written = result.as_ref().ok().copied();
        if self.takes_steps() && bytes.len() <= STEP_CONTENT_BYTES {
            put_content(&mut asked, bytes);
        }
        self.changed(verb, path, written, asked, result.map(|_| ())).await
    }

    async fn download(&self, op: FileOp, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut stream = self.open(op).await?;
        loop {
            let Some(frame) = stream.next().await else {
                return Err(gone());
            };
            match frame.kind {
                Kind::Data => {
                    take(&frame.body)?;
                    stream.grant(frame.body.len() as u64).await?;
                }
                Kind::Reply => return client::understand(&frame).map(|_| ()),
                _ => {}
            }
        }
    }
}

/// A file on its way out, beside the place that it takes when it is whole. Removed again unless it does.
struct Incoming {
    file: std::fs::File,
    temporary: PathBuf,
    to: PathBuf,
    length: u64,
    put: bool,
}

impl Incoming {
    fn create(to: PathBuf, mode: u32) -> Result<Incoming> {
        use std::os::unix::fs::OpenOptionsExt;
        // What comes takes the place of what is there: a device or a pipe would be gone.
        if std::fs::metadata(&to).is_ok_and(|found| !found.is_file()) {
            let message = format!(
                "{} is no file, and is not replaced by one; `cat` in the box writes to stdout",
                to.display()
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut temporary = to.as_os_str().to_owned();
        temporary.push(OsString::from(format!(".{}~", std::process::id())));
        let temporary = PathBuf::from(temporary);
        let file = std::fs::File::options().write(true).create_new(true).mode(mode & 0o777).open(&temporary);
        let file = file.context(format_args!("write {}", to.display()))?;
        Ok(Incoming { file, temporary, to, length: 0, put: false })
    }

    fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.length += piece.len() as u64;
        archive::write_or_skip(&mut self.file, piece).context(format_args!("write {}", self.to.display()))
    }

    /// It is whole.
    fn put(mut self) -> Result<()> {
        let put = self.file.set_len(self.length).and_then(|()| std::fs::rename(&self.temporary, &self.to));
        self.put = put.is_ok();
        put.context(format_args!("write {}", self.to.display()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Once it is in its place, whoever comes next may have taken the name.
        if !self.put {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

/// Reads a file to its end, or until nobody takes any more of it.
fn read_pieces(file: &mut std::fs::File, pieces: &mpsc::Sender<Vec<u8>>) -> io::Result<()> {
    loop {
        let mut piece = vec![0; DATA_CHUNK_MAX];
        let n = file.read(&mut piece)?;
        piece.truncate(n);
        if n == 0 || pieces.blocking_send(piece).is_err() {
            return Ok(());
        }
    }
}

async fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let path = path.to_owned();
    blocking(move || std::fs::read(&path).context(format_args!("read {}", path.display()))).await
}

/// Keeps another piece of an archive, or nothing of it if it is too large.
fn keep(kept: &mut Option<Vec<u8>>, piece: &[u8]) {
    if let Some(all) = kept {
        match all.len() + piece.len() <= STEP_CONTENT_BYTES {
            true => all.extend_from_slice(piece),
            false => *kept = None,
        }
    }
}

/// What a file is to hold, for the record.
fn put_content(asked: &mut Value, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => asked["content"] = text.into(),
        Err(_) => asked["content_base64"] = STANDARD.encode(bytes).into(),
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Gone, "the box is gone")
}

fn join(dir: &str, name: &str) -> String {
    format!("{}/{name}", dir.trim_end_matches('/'))
}

fn file_name(path: &Path) -> Result<String> {
    let absolute = std::fs::canonicalize(path).context(format_args!("read {}", path.display()))?;
    let name = path.file_name().or(absolute.file_name()).and_then(|name| name.to_str()).map(str::to_owned);
    name.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{} has no name that is UTF-8", path.display()))
    })
}

/// A file, or a program, on its way in.
pub(crate) struct Upload {
    stream: Stream,
    room: u64,
}

impl Upload {
    async fn open(sandbox: &Sandbox, op: FileOp) -> Result<Upload> {
        let mut stream = sandbox.open(op).await?;
        match stream.reply().await? {
            Reply::Ready => Ok(Upload::begun(stream)),
            other => Err(client::unexpected(&other)),
        }
    }

    /// The guest has said that it is ready.
    pub(crate) fn begun(stream: Stream) -> Upload {
        Upload { stream, room: glasshouse_protocol::limits::STDIN_CREDIT }
    }

    pub(crate) async fn send(&mut self, piece: &[u8]) -> Result<()> {
        while self.room < piece.len() as u64 {
            let frame = self.stream.next().await.ok_or_else(gone)?;
            match frame.kind {
                Kind::Credit => self.room = self.room.saturating_add(frame.credit().unwrap_or(0)),
                // The guest says why it takes no more.
                Kind::Reply => {
                    return Err(
                        client::understand(&frame).map_or_else(|e| e, |other| client::unexpected(&other))
                    );
                }
                _ => {}
            }
        }
        self.room -= piece.len() as u64;
        self.stream.sender().data(piece).await
    }

    /// All is sent: what the guest says to it.
    pub(crate) async fn end(mut self) -> Result<Reply> {
        self.stream.sender().end().await?;
        self.stream.reply().await
    }

    async fn finish(self) -> Result<u64> {
        match self.end().await? {
            Reply::File(FileResult::Done { bytes }) => Ok(bytes),
            other => Err(client::unexpected(&other)),
        }
    }
}

/// Waits for the end of work on a tree; `granted` hears of room for more bytes.
async fn work_end(stream: &mut Stream, mut granted: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut message = Vec::new();
    while let Some(frame) = stream.next().await {
        match frame.kind {
            Kind::Credit => granted(frame.credit().unwrap_or(0).min(1 << 20) as usize)?,
            Kind::Stderr => take_message(&mut message, &frame),
            Kind::Reply => {
                if let Reply::Ended { report, .. } = client::understand(&frame)? {
                    return worked(&report.exit, &message);
                }
            }
            _ => {}
        }
    }
    Err(gone())
}

async fn relay_out(stream: &mut Stream, pieces: mpsc::Sender<Vec<u8>>) -> Result<()> {
    let mut message = Vec::new();
    while let Some(frame) = stream.next().await {
        match frame.kind {
            Kind::Stdout => {
                let (_, bytes) = frame.output().map_err(|e| Error::new(ErrorKind::Failed, e.to_string()))?;
                if pieces.send(bytes.to_vec()).await.is_err() {
                    // Whoever unpacks has given up, and says why.
                    return Ok(());
                }
                stream.grant(bytes.len() as u64).await?;
            }
            Kind::Stderr => take_message(&mut message, &frame),
            Kind::Reply => {
                if let Reply::Ended { report, .. } = client::understand(&frame)? {
                    return worked(&report.exit, &message);
                }
            }
            _ => {}
        }
    }
    Err(gone())
}

async fn relay_file(stream: &mut Stream, pieces: mpsc::Sender<Vec<u8>>) -> Result<()> {
    loop {
        let frame = stream.next().await.ok_or_else(gone)?;
        match frame.kind {
            Kind::Data => {
                let length = frame.body.len() as u64;
                if pieces.send(frame.body).await.is_err() {
                    // Whoever writes has given up, and says why.
                    return Ok(());
                }
                stream.grant(length).await?;
            }
            Kind::Reply => return client::understand(&frame).map(|_| ()),
            _ => {}
        }
    }
}

fn take_message(message: &mut Vec<u8>, frame: &glasshouse_protocol::Frame) {
    if let Ok((_, bytes)) = frame.output() {
        message.extend_from_slice(&bytes[..bytes.len().min(4096 - message.len().min(4096))]);
    }
}

fn worked(exit: &Exit, message: &[u8]) -> Result<()> {
    if exit.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(message).into_owned();
    let kind = match () {
        () if message.contains("No such file") => ErrorKind::NotFound,
        () if message.contains("Permission denied") => ErrorKind::Denied,
        () if message.contains("No space left") => ErrorKind::DiskFull,
        () => ErrorKind::Failed,
    };
    let message = if message.is_empty() { exit.to_string() } else { message };
    Err(Error::new(kind, message))
}

/// Writes into a channel, in pieces.
struct PieceWriter {
    pieces: mpsc::Sender<Vec<u8>>,
    piece: Vec<u8>,
}

impl PieceWriter {
    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.piece);
        let closed = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the box takes no more");
        if piece.is_empty() { Ok(()) } else { self.pieces.blocking_send(piece).map_err(closed) }
    }
}

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(DATA_CHUNK_MAX - self.piece.len());
        self.piece.extend_from_slice(&bytes[..n]);
        if self.piece.len() == DATA_CHUNK_MAX {
            self.send()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// Reads from a channel.
struct PieceReader {
    pieces: mpsc::Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.piece.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = io::Cursor::new(piece),
                None => return Ok(0),
            }
        }
    }
}

/// Whether a path in a box is its root, as it is written: links are not followed.
fn is_whole_root(cwd: &Path, path: &str) -> bool {
    let mut depth = 0_usize;
    for part in cwd.join(path).components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::ParentDir => depth = depth.saturating_sub(1),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_known_however_it_is_written() {
        for path in ["/", "//", "/.", "/a/..", "..", "../../.."] {
            assert!(is_whole_root(Path::new("/workspace"), path), "{path}");
        }
        for path in ["/a", ".", "", "a/..", "/a/../b"] {
            assert!(!is_whole_root(Path::new("/workspace"), path), "{path}");
        }
        assert!(is_whole_root(Path::new("/"), "."));
    }
}
