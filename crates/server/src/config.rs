//! The settings of a server, as values.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::dialect::mcp::McpConfig;
use crate::error::{Error, Result};

/// How to serve. The defaults serve this machine alone, without a key.
#[derive(Debug, Clone)]
pub struct Config {
    /// The state directory of the house; the server keeps its own files in `server` below it.
    pub home: PathBuf,
    /// Where connections are taken.
    pub listen: SocketAddr,
    /// What callers have to show. Needed wherever others than this machine can connect.
    pub key: Option<String>,
    /// The host and port that callers are told to find boxes at; without a word, the one that they called.
    pub public_host: Option<String>,
    /// The longest life that a caller may ask for a box.
    pub timeout_max: Duration,
    /// What agents may do.
    pub mcp: McpConfig,
}

impl Config {
    /// The defaults, for this state directory.
    pub fn new(home: PathBuf) -> Config {
        Config {
            home,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            key: None,
            public_host: None,
            timeout_max: Duration::from_secs(24 * 60 * 60),
            mcp: McpConfig::default(),
        }
    }

    /// Refuses what makes no sense or would let strangers in.
    pub fn check(&self) -> Result<()> {
        if self.key.is_none() && !self.listen.ip().is_loopback() {
            return Err(Error::Refused(format!(
                "will not serve {} without a key: whoever can connect could run programs here. Set a key, or listen \
                 on 127.0.0.1",
                self.listen
            )));
        }
        if let Some(key) = &self.key
            && (key.len() < KEY_LENGTH_MIN || !key.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(Error::Refused(format!(
                "cannot use this key: it has to be at least {KEY_LENGTH_MIN} letters, digits or signs, without spaces"
            )));
        }
        Ok(())
    }
}

/// A shorter key could be guessed.
const KEY_LENGTH_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listen: &str, key: Option<&str>, fine: bool) {
        let listen = listen.parse().unwrap();
        let config = Config { listen, key: key.map(str::to_owned), ..Config::new("/x".into()) };
        assert_eq!(config.check().is_ok(), fine, "{listen} {key:?}");
    }

    #[test]
    fn strangers_need_a_key() {
        check("127.0.0.1:8080", None, true);
        check("127.9.9.9:1", None, true);
        check("[::1]:8080", None, true);
        check("0.0.0.0:8080", None, false);
        check("[::]:8080", None, false);
        check("192.0.2.1:8080", None, false);
        check("0.0.0.0:8080", Some("0123456789abcdef"), true);
    }

    #[test]
    fn a_key_is_no_word_that_can_be_guessed_or_cannot_be_sent() {
        check("127.0.0.1:8080", Some("secret"), false);
        check("127.0.0.1:8080", Some(""), false);
        check("127.0.0.1:8080", Some("0123456789 abcdef"), false);
        check("127.0.0.1:8080", Some("0123456789abcdeé"), false);
    }
}
