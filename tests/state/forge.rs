//! Repositories, and servers of them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use base64::Engine as _;
use glasshouse_tests::skip;

/// Whether there is git; without it, nothing of this can be tested.
pub(crate) fn has_git() -> bool {
    let there = Command::new("git").arg("--version").output().is_ok();
    if !there {
        skip("tasks", "git is not installed");
    }
    there
}

/// A repository with three commits of a file, whose ids depend on nothing but their content.
pub(crate) struct Repo {
    pub(crate) path: String,
    pub(crate) first: String,
    pub(crate) middle: String,
    pub(crate) second: String,
}

impl Repo {
    /// `main` is at the second; two tags and a branch are at the first.
    pub(crate) fn new(path: &Path) -> Repo {
        std::fs::create_dir(path).expect("the scratch directory can be written");
        let path = path.to_str().expect("our paths are UTF-8").to_owned();
        let mut repo = Repo { path, first: String::new(), middle: String::new(), second: String::new() };
        repo.sh("git init -q -b main .");
        repo.first = repo.commit("one");
        repo.sh("git tag -a -m annotated v1; git tag light; git branch topic/a");
        repo.middle = repo.commit("middle");
        repo.second = repo.commit("two");
        repo
    }

    /// Runs a line of shell in it.
    #[track_caller]
    pub(crate) fn sh(&self, line: &str) -> String {
        let mut command = Command::new("/bin/sh");
        command.args(["-ec", line]).current_dir(&self.path).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "somebody").env(format!("GIT_{who}_EMAIL"), "some@body");
            command.env(format!("GIT_{who}_DATE"), "2020-01-01T00:00:00Z");
        }
        let output = command.output().expect("a shell can be started");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Commits all that is there, with this content of the file; its id.
    #[track_caller]
    pub(crate) fn commit(&self, content: &str) -> String {
        self.sh(&format!(
            "echo {content} > file; git add -A; git commit -qm {content}; git update-server-info"
        ));
        self.sh("git rev-parse HEAD")
    }

    /// Commits a submodule at the middle commit of a repository like this one.
    #[track_caller]
    pub(crate) fn add_submodule(&self, name: &str, url: &str) -> String {
        std::fs::write(
            Path::new(&self.path).join(".gitmodules"),
            format!("[submodule \"{name}\"]\n\tpath = {name}\n\turl = {url}\n"),
        )
        .expect("the repository can be written");
        let link = format!("160000,{},{name}", self.middle);
        self.sh(&format!("git add .gitmodules; git update-index --add --cacheinfo {link}; mkdir -p {name}"));
        self.sh("git commit -qm sub; git update-server-info");
        self.sh("git rev-parse HEAD")
    }

    /// The commit of the submodule.
    pub(crate) fn submodule(&self) -> String {
        self.sh("git rev-parse HEAD:sub")
    }
}

/// How much a server can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What servers do today.
    Smart,
    /// The protocol before the second version: only what names lead to is given by its id.
    Old,
    /// Files and nothing else: no history can be left out.
    Dumb,
    /// It listens, and never answers.
    Silent,
}

/// A server for the directory that a repository lies in.
pub(crate) struct Forge {
    address: String,
    over: Arc<AtomicBool>,
    /// Whoever asks a silent one, and goes away.
    heard: Receiver<Heard>,
}

/// What a silent server hears.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Question,
    End,
}

impl Forge {
    /// With a login, only whoever has it gets anything.
    pub(crate) fn new(repo: &Repo, kind: Kind, login: Option<&str>) -> Forge {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let root = Path::new(&repo.path).parent().expect("it lies somewhere").to_owned();
        let login =
            login.map(|login| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login)));
        let over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&over);
        let (hears, heard) = sync_channel(16);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (root, login, hears) = (root.clone(), login.clone(), hears.clone());
                if kind == Kind::Silent {
                    std::thread::spawn(move || listen(stream, &hears));
                    continue;
                }
                // Whoever goes away in the middle has seen enough.
                std::thread::spawn(move || answer(stream, &root, kind, login.as_deref()));
            }
        });
        Forge { address, over, heard }
    }

    /// Waits until somebody has asked a silent one.
    pub(crate) fn wait_asked(&self) {
        while self.heard.recv().expect("the server lives") != Heard::Question {}
    }

    /// Waits until he has gone.
    pub(crate) fn wait_left(&self) {
        while self.heard.recv().expect("the server lives") != Heard::End {}
    }

    pub(crate) fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }
}

impl Drop for Forge {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.address);
    }
}

fn listen(mut stream: TcpStream, hears: &SyncSender<Heard>) -> Option<()> {
    let mut bytes = [0; 4096];
    while stream.read(&mut bytes).is_ok_and(|n| n > 0) {
        hears.send(Heard::Question).ok()?;
    }
    hears.send(Heard::End).ok()
}

/// One request, by git's own program for web servers.
fn answer(stream: TcpStream, root: &Path, kind: Kind, login: Option<&str>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((key, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((key.to_ascii_lowercase(), value.to_owned()));
    }
    let header = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let mut stream = stream;
    if login.is_some() && header("authorization") != login {
        let refusal =
            "HTTP/1.0 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"it\"\r\nContent-Length: 0\r\n\r\n";
        return stream.write_all(refusal.as_bytes()).ok();
    }
    let mut body = vec![0; header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    // The directory of a repository with a checkout is the `.git` in it.
    let (name, rest) = path.trim_start_matches('/').split_once('/')?;
    let mut backend = Command::new("git");
    backend.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    backend.env("PATH_INFO", format!("/{name}/.git/{rest}")).env("REQUEST_METHOD", &method);
    backend.env("CONTENT_TYPE", header("content-type").unwrap_or_default());
    backend.env("CONTENT_LENGTH", body.len().to_string());
    backend.env("HTTP_CONTENT_ENCODING", header("content-encoding").unwrap_or_default());
    backend.env("QUERY_STRING", if kind == Kind::Dumb { "" } else { query });
    if let (Kind::Smart, Some(version)) = (kind, header("git-protocol")) {
        backend.env("GIT_PROTOCOL", version);
    }
    let mut backend = backend.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    backend.stdin.take()?.write_all(&body).ok()?;
    let said = backend.wait_with_output().ok()?.stdout;
    let end = said.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&said[..end]).into_owned();
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
    stream.write_all(format!("HTTP/1.0 {status}\r\n").as_bytes()).ok()?;
    stream.write_all(&said).ok()
}
