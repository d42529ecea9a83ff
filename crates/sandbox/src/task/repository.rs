//! A repository: its address, its names, and a checkout of one commit.

use std::path::PathBuf;

use super::git::{Git, Given, Login, is_file};
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::image::{Incoming, Stop};

/// An address or a name that is longer is none.
const WORD_BYTES_MAX: usize = 4096;
/// The beginning of a commit's id that is enough to look for it.
const SHORT_MIN: usize = 4;
/// Hexadecimal digits of an id, by what makes it: SHA-1 and SHA-256.
const ID_DIGITS: [usize; 2] = [40, 64];
/// The checkout, in the directory that we work in.
const WORK: &str = "work";

/// Where a repository is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Without any login: for git, for the record, and for people.
    pub(super) shown: String,
    pub(super) login: Option<Login>,
}

impl Address {
    /// Reads an address, or the path of a directory of the host.
    pub(super) fn parse(text: &str) -> Result<Address> {
        let invalid = |why: &str| Error::new(ErrorKind::Invalid, format!("{why}; say a URL or a path"));
        check_word(text, "a repository")?;
        if let Some((scheme, rest)) = text.split_once("://") {
            return Address::of_url(scheme, rest);
        }
        // `transport::address` would have git run a program of that name.
        if text.split('/').next().is_some_and(|word| word.contains("::")) {
            return Err(invalid(&format!("{text:?} is no address of a repository")));
        }
        match std::fs::canonicalize(text) {
            Ok(path) => match path.into_os_string().into_string() {
                Ok(shown) => Ok(Address { shown, login: None }),
                Err(_) => Err(invalid("the path of the repository is not UTF-8")),
            },
            // `host:path` is for ssh.
            Err(_) if text.split('/').next().is_some_and(|word| word.contains(':')) => {
                Ok(Address { shown: text.to_owned(), login: None })
            }
            Err(e) => Err(Error::io(format!("read the repository {text}"), e)),
        }
    }

    fn of_url(scheme: &str, rest: &str) -> Result<Address> {
        let scheme = scheme.to_ascii_lowercase();
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (words, host) = match host.rsplit_once('@') {
            Some((words, host)) => (Some(words), host),
            None => (None, host),
        };
        if scheme != "file" && (host.is_empty() || host.starts_with('-')) {
            return invalid(format!("{scheme}://{host}{path} names no host"));
        }
        match scheme.as_str() {
            "http" | "https" => {
                // Nothing after a question mark is part of a repository's name, but it may be part of a
                // secret.
                let path = path.split(['?', '#']).next().unwrap_or_default();
                let login = words
                    .filter(|words| !words.is_empty())
                    .map(|words| Login { host: format!("{scheme}://{host}/"), words: words.to_owned() });
                Ok(Address { shown: format!("{scheme}://{host}{path}"), login })
            }
            "ssh" | "git" | "file" => {
                // The name is part of the address; ssh takes no password from there.
                let name = words.and_then(|words| words.split(':').next()).filter(|name| !name.is_empty());
                let at = name.map(|name| format!("{name}@")).unwrap_or_default();
                Ok(Address { shown: format!("{scheme}://{at}{host}{path}"), login: None })
            }
            _ => invalid(format!(
                "a repository cannot be reached by {scheme:?}; say a URL with https, http, ssh, git or file, \
                 or a path"
            )),
        }
    }
}

/// Refuses what git could take for an option, and what no line should hold.
pub(super) fn check_word(text: &str, what: &str) -> Result<()> {
    let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
    match text {
        "" => invalid(format!("the name of {what} cannot be empty")),
        _ if text.starts_with('-') => invalid(format!("{text:?} cannot be {what}: it begins with `-`")),
        _ if text.chars().any(char::is_control) => {
            invalid(format!("{text:?} cannot be {what}: it holds a control character"))
        }
        _ if text.len() > WORD_BYTES_MAX => invalid(format!("the name of {what} is too long")),
        _ => Ok(()),
    }
}

/// The id that a text is, if it is a whole one.
pub(super) fn whole_id(text: &str) -> Option<String> {
    let hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (hex && ID_DIGITS.contains(&text.len())).then(|| text.to_ascii_lowercase())
}

fn is_short_id(text: &str) -> bool {
    text.len() >= SHORT_MIN && text.len() < ID_DIGITS[1] && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What cannot be the name of a branch or a tag, by git's rules, as far as it would mean something else to
/// git.
fn is_name(text: &str) -> bool {
    !text.contains(['*', '?', '[', '\\', '~', '^', ':', ' ']) && !text.contains("..") && !text.contains("@{")
}

/// A repository that is looked at from a directory of ours. All of it goes when the value does.
#[derive(Debug)]
pub(super) struct Repository {
    git: Git,
    address: Address,
    made: bool,
    _place: Incoming,
}

impl Repository {
    pub(super) fn open(
        home: &Home,
        address: Address,
        given: Given<'_>,
        stop: Option<Stop>,
    ) -> Result<Repository> {
        let place = Incoming::new(home, None)?;
        let git = Git::new(home, place.path(), given, address.login.as_ref(), stop)?;
        Ok(Repository { git, address, made: false, _place: place })
    }

    /// The id of the commit that a branch, a tag, or the beginning of an id stands for.
    pub(super) fn resolve(&mut self, asked: &str) -> Result<String> {
        if let Some(id) = whole_id(asked) {
            return Ok(id);
        }
        if !is_name(asked) {
            let message = format!("{asked:?} is no commit, branch or tag");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let names = match asked {
            "HEAD" => vec!["HEAD".to_owned()],
            _ if asked.starts_with("refs/") => vec![format!("{asked}^{{}}"), asked.to_owned()],
            // As git itself chooses: tags before branches, and what a tag leads to before the tag.
            _ => vec![
                format!("refs/tags/{asked}^{{}}"),
                format!("refs/tags/{asked}"),
                format!("refs/heads/{asked}"),
            ],
        };
        let mut args = vec!["ls-remote", "-q", "--", self.address.shown.as_str(), "HEAD"];
        args.extend(names.iter().map(String::as_str));
        let known = self.git.must("", &args, &self.reading())?;
        let known: Vec<(&str, &str)> = known.lines().filter_map(|line| line.split_once('\t')).collect();
        let found = names.iter().find_map(|name| known.iter().find(|(_, known)| known == name));
        if let Some(id) = found.and_then(|(id, _)| whole_id(id)) {
            return Ok(id);
        }
        if is_short_id(asked) {
            let digits = known.first().map_or(ID_DIGITS[0], |(id, _)| id.len());
            return self.resolve_short(asked, digits);
        }
        Err(self.unknown(asked))
    }

    /// A server knows no beginnings of ids: all of it has to be here.
    fn resolve_short(&mut self, asked: &str, digits: usize) -> Result<String> {
        self.make(digits)?;
        self.fetch_all()?;
        let commit = format!("{asked}^{{commit}}");
        let said = self.git.run(WORK, &["rev-parse", "--verify", "--end-of-options", &commit])?;
        match whole_id(said.out.trim()) {
            Some(id) if said.ok => Ok(id),
            _ if said.why.contains("ambiguous") => {
                let message = format!("{asked:?} stands for more than one commit; write more of the id");
                Err(Error::new(ErrorKind::Invalid, message))
            }
            _ => Err(self.unknown(asked)),
        }
    }

    /// Checks a commit out, with its submodules: without its history where the server allows. Its id, which
    /// is another one if what was named is a tag.
    pub(super) fn check_out(&mut self, id: &str) -> Result<String> {
        self.make(id.len())?;
        let commit = match self.commit_of(id)? {
            Some(commit) => commit,
            None => self.fetch(id)?,
        };
        let what = format!("check out {commit} of {}", self.address.shown);
        self.git.must(WORK, &["checkout", "-q", "--detach", &commit, "--"], &what)?;
        self.fetch_submodules()?;
        // Where it came from is in the settings; how, is nobody's business.
        let _ = std::fs::remove_file(self.git.path(WORK).join(".git/FETCH_HEAD"));
        Ok(commit)
    }

    /// The checkout.
    pub(super) fn tree(&self) -> PathBuf {
        self.git.path(WORK)
    }

    fn make(&mut self, digits: usize) -> Result<()> {
        if self.made {
            return Ok(());
        }
        let format = if digits == ID_DIGITS[1] { "--object-format=sha256" } else { "--object-format=sha1" };
        self.git.must("", &["init", "-q", format, "--", WORK], "make a repository")?;
        let add = ["remote", "add", "--", "origin", self.address.shown.as_str()];
        self.git.must(WORK, &add, &self.reading())?;
        self.made = true;
        Ok(())
    }

    fn fetch(&self, id: &str) -> Result<String> {
        let shallow = ["fetch", "-q", "--depth", "1", "--no-tags", "origin", id];
        if !self.git.run(WORK, &shallow)?.ok {
            // Not every server gives a commit by its id, or without its history. If it was for another
            // reason, the whole will fail for the same.
            self.fetch_all()?;
        }
        self.commit_of(id)?.ok_or_else(|| self.unknown(id))
    }

    fn fetch_all(&self) -> Result<()> {
        let all =
            ["fetch", "-q", "origin", "+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"];
        self.git.must(WORK, &all, &self.reading()).map(drop)
    }

    fn commit_of(&self, id: &str) -> Result<Option<String>> {
        let commit = format!("{id}^{{commit}}");
        let said = self.git.run(WORK, &["rev-parse", "-q", "--verify", "--end-of-options", &commit])?;
        Ok(whole_id(said.out.trim()).filter(|_| said.ok))
    }

    fn fetch_submodules(&self) -> Result<()> {
        if !is_file(&self.tree().join(".gitmodules")) {
            return Ok(());
        }
        let shallow = ["submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1"];
        if self.git.run(WORK, &shallow)?.ok {
            return Ok(());
        }
        let what = format!("fetch the submodules of {}", self.address.shown);
        self.git.must(WORK, &["submodule", "--quiet", "update", "--init", "--recursive"], &what).map(drop)
    }

    fn reading(&self) -> String {
        format!("read the repository {}", self.address.shown)
    }

    fn unknown(&self, asked: &str) -> Error {
        let message = format!("there is no commit, branch or tag {asked:?} in {}", self.address.shown);
        Error::new(ErrorKind::NotFound, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str, login: Option<&str>) {
        let address = Address::parse(text).unwrap();
        assert_eq!(
            (address.shown.as_str(), address.login.as_ref().map(|l| l.words.as_str())),
            (shown, login)
        );
    }

    #[test]
    fn a_login_is_not_part_of_an_address() {
        check("https://host/a/b.git", "https://host/a/b.git", None);
        check("https://me:pw@host:8/a", "https://host:8/a", Some("me:pw"));
        check("HTTPS://token@host/a?x=secret", "https://host/a", Some("token"));
        check("http://a@b:c@host/x@y", "http://host/x@y", Some("a@b:c"));
        check("ssh://git:pw@host/a", "ssh://git@host/a", None);
        check("git@host:a/b", "git@host:a/b", None);
        check("file:///srv/a", "file:///srv/a", None);
        check("/usr/../usr", "/usr", None);
        let login = Address::parse("https://me:pw@host:8/a").unwrap().login.unwrap();
        assert_eq!((login.host.as_str(), login.words.as_str()), ("https://host:8/", "me:pw"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "-x", "--upload-pack=x", "ext::sh -c id", "ext://x", "https://", "ssh://-oProxyCommand=x/y"]
        {
            assert!(Address::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(Address::parse("/no/such/path").unwrap_err().kind(), ErrorKind::NotFound);
        assert!(Address::parse("a\nb").is_err());
    }

    #[test]
    fn ids_are_told_from_names() {
        assert_eq!(whole_id(&"aB".repeat(20)), Some("ab".repeat(20)));
        assert_eq!(whole_id(&"g".repeat(40)), None);
        assert!(is_short_id("abcdef1") && !is_short_id("abc") && !is_short_id("main"));
        assert!(is_name("feature/x-1") && !is_name("HEAD~1") && !is_name("a..b") && !is_name("refs/*"));
    }
}
