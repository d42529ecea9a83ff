//! Git as a child process, on the host, with a repository at the other end that may be anybody's.
//!
//! It reads no settings but ours: neither the user's nor the system's, because those may name programs
//! (filters, helpers, hooks) that a repository's attributes could then call for. Logins come from the
//! address, from `.netrc` in the `HOME` that the caller passes on, or from ssh and its agent; credential
//! helpers of the user's are not asked. With [`GitLogins::Address`], they come from the address and nowhere else.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{ErrorKind as IoErrorKind, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use glasshouse_linux::process::signal_group;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::{Home, write_private};
use crate::image::{self, Stop};
use crate::limits::GIT_TIMEOUT;

/// What is kept of what git says: of a list of names, and of complaints.
const SAID_BYTES_MAX: usize = 1 << 20;
/// How often it is asked whether to go on.
const TICK: Duration = Duration::from_millis(100);
/// Complaints that are passed on.
const REASONS_MAX: usize = 3;
const SIGKILL: i32 = 9;

/// Only these ways lead to a repository. Local ones only if the caller names them, not if a repository does.
const CONFIG: &str = "\
[safe]
\tdirectory = *
[protocol]
\tallow = never
[protocol \"https\"]
\tallow = always
[protocol \"http\"]
\tallow = always
[protocol \"ssh\"]
\tallow = always
[protocol \"git\"]
\tallow = always
[protocol \"file\"]
\tallow = user
[core]
\thooksPath = /dev/null
\tattributesFile = /dev/null
\texcludesFile = /dev/null
\tfsmonitor = false
\tlogAllRefUpdates = false
[uploadpack]
\tallowAnySHA1InWant = true
[gc]
\tauto = 0
[maintenance]
\tauto = false
[fetch]
\trecurseSubmodules = no
[advice]
\tdetachedHead = false
[init]
\tdefaultBranch = main
[http]
\tlowSpeedLimit = 1
\tlowSpeedTime = 60
";

/// And with no login but that of the address: ssh finds the user's keys, and curl his tickets, by his id, whatever
/// the environment says.
const CONFIG_OF_NOBODY: &str = "\
[protocol \"ssh\"]
\tallow = never
[http]
\temptyAuth = false
";
/// What git is given then of what the caller passes on: where programs are, who vouches for servers, and the way there.
const ENV_OF_NOBODY: [&str; 12] = [
    "PATH",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
];
/// A home with nothing in it. Without any, curl would look up the user's, and read his `.netrc`.
const EMPTY_HOME: &str = "nobody";

/// Which logins git may use for a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GitLogins {
    /// Those of the user that this process runs as, by what [`crate::TaskSpec::git_env`] passes on, and that in the address.
    #[default]
    User,
    /// That in the address and no other: for tasks of somebody who is not that user. There is no ssh then, which has
    /// logins of its own only, and of the environment nothing counts but `PATH`, authorities and proxies.
    Address,
}

/// What a run of git said.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) ok: bool,
    pub(super) out: String,
    /// Why it failed, in its words.
    pub(super) why: String,
}

/// Git, in one directory of ours, for one repository.
#[derive(Debug)]
pub(super) struct Git {
    home: Home,
    dir: PathBuf,
    env: Vec<(String, OsString)>,
    logins: GitLogins,
    /// Words that are not passed on to anybody.
    hidden: Vec<String>,
    deadline: Instant,
    stop: Option<Stop>,
}

/// What the caller passes on to git.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) env: &'a [(String, OsString)],
    pub(super) logins: GitLogins,
}

/// A login that was in an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Login {
    /// Whom it is for: the scheme and the host.
    pub(super) host: String,
    /// `NAME:PASSWORD`, or a name alone, as it was written.
    pub(super) words: String,
}

impl Login {
    /// As servers want it.
    fn header(&self) -> String {
        let (name, password) = self.words.split_once(':').unwrap_or((&self.words, ""));
        let words = [&decoded(name)[..], b":", &decoded(password)].concat();
        format!("Authorization: Basic {}", STANDARD.encode(words))
    }

    /// Words that must not be seen.
    fn secrets(&self) -> Vec<String> {
        let header = self.header();
        let password = self.words.split_once(':').map_or("", |(_, password)| password);
        let words = [header.rsplit(' ').next().unwrap_or_default(), &self.words, password];
        // A word of one or two letters would take half of every sentence with it.
        words.into_iter().filter(|word| word.len() > 3).map(str::to_owned).collect()
    }
}

/// A word of an address with its `%xx` read.
fn decoded(word: &str) -> Vec<u8> {
    let mut rest = word.as_bytes();
    let mut out = Vec::new();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                out.push(byte);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

impl Git {
    /// `dir` is a directory of ours below the home.
    pub(super) fn new(
        home: &Home,
        dir: PathBuf,
        Given { env, logins }: Given<'_>,
        login: Option<&Login>,
        stop: Option<Stop>,
    ) -> Result<Git> {
        let config = dir.join("config");
        let mut env = env.to_vec();
        match logins {
            GitLogins::User => write_private(&config, CONFIG)?,
            GitLogins::Address => {
                write_private(&config, &[CONFIG, CONFIG_OF_NOBODY].concat())?;
                env.retain(|(key, _)| ENV_OF_NOBODY.contains(&key.as_str()));
                let empty = dir.join(EMPTY_HOME);
                std::fs::create_dir(&empty).context("make an empty home for git")?;
                env.push(("HOME".to_owned(), empty.into()));
            }
        }
        let batch = env.iter().all(|(key, _)| key != "GIT_SSH_COMMAND");
        let mut set = |key: &str, value: OsString| env.push((key.to_owned(), value));
        if batch {
            set("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=30".into());
        }
        for (key, value) in [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_ATTR_NOSYSTEM", "1"),
            ("GIT_TEMPLATE_DIR", ""),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("GIT_NO_LAZY_FETCH", "1"),
            ("GIT_COMMITTER_NAME", "glasshouse"),
            ("GIT_COMMITTER_EMAIL", "glasshouse@localhost"),
            ("LC_ALL", "C"),
        ] {
            set(key, value.into());
        }
        set("GIT_CONFIG_GLOBAL", config.into());
        // What lies above our directory is not looked at, even if the home is in a repository.
        set("GIT_CEILING_DIRECTORIES", home.path("incoming").into());
        if let Some(login) = login {
            // By the environment: others can read what programs are called with, and the disk keeps what it
            // is given.
            set("GIT_CONFIG_COUNT", "1".into());
            set("GIT_CONFIG_KEY_0", format!("http.{}.extraHeader", login.host).into());
            set("GIT_CONFIG_VALUE_0", login.header().into());
        }
        let hidden = login.map(Login::secrets).unwrap_or_default();
        let deadline = Instant::now() + GIT_TIMEOUT;
        Ok(Git { home: home.clone(), dir, env, logins, hidden, deadline, stop })
    }

    /// Runs git in a directory below ours, to its end.
    pub(super) fn run(&self, below: &str, args: &[&str]) -> Result<Said> {
        let mut command = Command::new("git");
        command.args(args).current_dir(self.dir.join(below)).env_clear();
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that its helpers can be ended with it.
        command.process_group(0);
        let mut child = command.spawn().map_err(|e| match e.kind() {
            IoErrorKind::NotFound => Error::new(
                ErrorKind::Unsupported,
                "cannot fetch a repository: there is no `git` on this host; install Debian's package git",
            ),
            _ => Error::io("start git", e),
        })?;
        let out = listen(child.stdout.take(), true);
        let err = listen(child.stderr.take(), false);
        let waited = self.wait(&out).and_then(|out| Ok((out, self.wait(&err)?)));
        if waited.is_err() {
            // It may have ended in this moment; its number is ours until we have waited for it.
            let _ = i32::try_from(child.id()).map(|group| signal_group(group, SIGKILL));
        }
        let status = child.wait().context("wait for git")?;
        let (out, err) = waited?;
        let out = String::from_utf8_lossy(&out).into_owned();
        let why = self.reason(&String::from_utf8_lossy(&err), status);
        Ok(Said { ok: status.success(), out, why })
    }

    /// The same, and it has to succeed; if it does not, `what` could not be done.
    pub(super) fn must(&self, below: &str, args: &[&str], what: &str) -> Result<String> {
        let said = self.run(below, args)?;
        if !said.ok {
            return Err(Error::new(ErrorKind::Failed, format!("cannot {what}: {}", said.why)));
        }
        Ok(said.out)
    }

    /// Waits for the end of what it says, as long as there is time, room, and nobody who stops us.
    fn wait(&self, said: &Receiver<Vec<u8>>) -> Result<Vec<u8>> {
        loop {
            match said.recv_timeout(TICK) {
                Ok(bytes) => return Ok(bytes),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Failed, "cannot hear what git says"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            check_stop(self.stop.as_ref())?;
            if Instant::now() > self.deadline {
                let message = format!(
                    "cannot fetch the repository: git was not done after {} minutes",
                    GIT_TIMEOUT.as_secs() / 60
                );
                return Err(Error::new(ErrorKind::Limit, message));
            }
            if image::room(&self.home)? == 0 {
                let message = "cannot fetch the repository: the host's disk is full";
                return Err(Error::new(ErrorKind::DiskFull, message));
            }
        }
    }

    /// Its complaints in one line, with nothing in them that is nobody's business.
    fn reason(&self, text: &str, status: ExitStatus) -> String {
        if text.contains("terminal prompts disabled") {
            let why = match (self.hidden.is_empty(), self.logins) {
                (true, GitLogins::User) => {
                    "it wants a login; write one into the URL or into ~/.netrc, or use ssh"
                }
                (true, GitLogins::Address) => "it wants a login; write one into the URL",
                (false, _) => "it does not take the login that is in the URL",
            };
            return why.to_owned();
        }
        let mut text = text.to_owned();
        for word in &self.hidden {
            text = text.replace(word, "…");
        }
        let complaint = |line: &&str| {
            ["fatal: ", "error: ", "ERROR: ", "remote: ", "ssh: "].iter().any(|mark| line.starts_with(mark))
        };
        let mut reasons: Vec<&str> = Vec::new();
        for line in text.lines().map(str::trim).filter(complaint) {
            let line = line.strip_prefix("fatal: ").or(line.strip_prefix("error: ")).unwrap_or(line);
            if reasons.len() < REASONS_MAX && !reasons.contains(&line) {
                reasons.push(line);
            }
        }
        if reasons.is_empty() {
            reasons.extend(text.lines().map(str::trim).rfind(|line| !line.is_empty()));
        }
        match reasons.is_empty() {
            true => format!("git ended with {status}"),
            false => reasons.join("; "),
        }
    }

    /// Where it works.
    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.dir.join(below)
    }
}

/// An error if somebody wants us to stop.
pub(super) fn check_stop(stop: Option<&Stop>) -> Result<()> {
    match stop.is_some_and(Stop::is_said) {
        true => Err(Error::new(ErrorKind::Failed, "stopped")),
        false => Ok(()),
    }
}

/// Reads all that comes, keeps the head or the tail of it, and tells it at its end.
fn listen(pipe: Option<impl Read + Send + 'static>, head: bool) -> Receiver<Vec<u8>> {
    let (answer, said) = sync_channel(1);
    let _ = std::thread::Builder::new().name("glasshouse-git".into()).spawn(move || {
        let mut kept: VecDeque<u8> = VecDeque::new();
        let mut piece = [0; 8192];
        if let Some(mut pipe) = pipe {
            loop {
                match pipe.read(&mut piece) {
                    Err(e) if e.kind() == IoErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => break,
                    Ok(n) => keep(&mut kept, &piece[..n], head),
                }
            }
        }
        let _ = answer.send(kept.into());
    });
    said
}

fn keep(kept: &mut VecDeque<u8>, piece: &[u8], head: bool) {
    match head {
        true => kept.extend(&piece[..piece.len().min(SAID_BYTES_MAX - kept.len())]),
        false => {
            kept.extend(piece);
            kept.drain(..kept.len().saturating_sub(SAID_BYTES_MAX));
        }
    }
}

/// Whether a path is there, and a file.
pub(super) fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_read_as_addresses_write_it() {
        let check = |words: &str, plain: &str| {
            let login = Login { host: "https://h/".into(), words: words.into() };
            assert_eq!(login.header(), format!("Authorization: Basic {}", STANDARD.encode(plain)));
        };
        check("me:pw", "me:pw");
        check("token", "token:");
        check("a%40b:p%3A%2f%", "a@b:p:/%");
        check("%zz%4", "%zz%4:");
    }

    #[test]
    fn without_the_users_logins_git_has_an_empty_home_and_nothing_that_leads_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path().join("home")).unwrap();
        let theirs =
            ["PATH", "HOME", "SSH_AUTH_SOCK", "GIT_SSH_COMMAND", "KRB5CCNAME", "https_proxy", "USER"];
        let env: Vec<_> = theirs.map(|name| (name.to_owned(), OsString::from("/theirs"))).into();
        let given = Given { env: &env, logins: GitLogins::Address };
        let git = Git::new(&home, dir.path().to_owned(), given, None, None).unwrap();
        let of_theirs = git.env.iter().filter(|(_, value)| value == "/theirs").map(|(name, _)| name.as_str());
        assert_eq!(of_theirs.collect::<Vec<_>>(), ["PATH", "https_proxy"]);
        let own: Vec<_> = git.env.iter().filter(|(name, _)| name == "HOME").collect();
        assert_eq!(own.len(), 1);
        assert_eq!(std::fs::read_dir(&own[0].1).unwrap().count(), 0);
        let said = Command::new("git")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(git.env.iter().filter(|(name, _)| name.starts_with("GIT_")).cloned())
            .args(["ls-remote", "ssh://nosuch.invalid/it"])
            .output();
        if let Ok(said) = said {
            assert!(String::from_utf8_lossy(&said.stderr).contains("'ssh' not allowed"), "{said:?}");
        }
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        for head in [true, false] {
            let mut kept = VecDeque::new();
            keep(&mut kept, &vec![1; SAID_BYTES_MAX - 1], head);
            keep(&mut kept, &[2, 3], head);
            assert_eq!((kept.len(), kept.back()), (SAID_BYTES_MAX, Some(if head { &2 } else { &3 })));
        }
    }
}
