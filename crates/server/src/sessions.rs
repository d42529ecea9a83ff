//! Sessions of browsers: who has shown a key once need not keep it.
//!
//! A browser that is given a key by its user shows it once, and gets a random word in a cookie that no script can read
//! and that no other site's page makes it send. What the word opens is known here, in memory: a server that is started anew
//! knows no sessions. A session opens what its key opens at that moment, so that it ends with the key.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};

use crate::limits::{SESSION_IDLE, SESSION_LIFE, SESSIONS};
use crate::random;

/// What the cookie is called.
const COOKIE: &str = "glasshouse-session";

/// All sessions that are open.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// By the hash of their words.
    open: Mutex<HashMap<blake3::Hash, Session>>,
}

#[derive(Debug)]
struct Session {
    /// The hash of the key that was shown.
    key: String,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.begun) > SESSION_LIFE || now.duration_since(self.used) > SESSION_IDLE
    }
}

impl Sessions {
    /// Begins a session for a key. The word that opens it.
    pub(crate) fn begin(&self, key: String) -> io::Result<String> {
        let word = format!("{}{}", random::hex()?, random::hex()?);
        let (mut open, now) = (self.locked(), Instant::now());
        open.retain(|_, session| !session.is_over(now));
        if open.len() >= SESSIONS {
            // The one that was not used for longest makes room.
            let oldest = open.iter().min_by_key(|(_, session)| session.used).map(|(word, _)| *word);
            oldest.map(|word| open.remove(&word));
        }
        open.insert(blake3::hash(word.as_bytes()), Session { key, begun: now, used: now });
        Ok(word)
    }

    /// The hash of the key that a session was begun with.
    pub(crate) fn key(&self, word: &str) -> Option<String> {
        let (mut open, now) = (self.locked(), Instant::now());
        let session = open.get_mut(&blake3::hash(word.as_bytes())).filter(|session| !session.is_over(now))?;
        session.used = now;
        Some(session.key.clone())
    }

    /// Ends a session.
    pub(crate) fn end(&self, word: &str) {
        self.locked().remove(&blake3::hash(word.as_bytes()));
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<blake3::Hash, Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The word that a browser shows.
pub(crate) fn shown(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, word)| word).filter(|word| !word.is_empty())
}

/// What makes a browser keep the word; without one, forget it. `secure`: it came over TLS, and is sent over nothing else.
pub(crate) fn cookie(word: Option<&str>, secure: bool) -> String {
    let life = if word.is_some() { SESSION_LIFE } else { Duration::ZERO };
    let secure = if secure { "; Secure" } else { "" };
    let word = word.unwrap_or_default();
    format!("{COOKIE}={word}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", life.as_secs())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_session_is_open_until_it_is_ended() {
        let sessions = Sessions::default();
        let (one, other) = (sessions.begin("a".to_owned()).unwrap(), sessions.begin("b".to_owned()).unwrap());
        assert_eq!((one.len(), one == other), (64, false));
        assert_eq!(sessions.key(&one).as_deref(), Some("a"));
        assert_eq!(sessions.key("b"), None);
        sessions.end(&one);
        assert_eq!((sessions.key(&one), sessions.key(&other).as_deref()), (None, Some("b")));
    }

    #[test]
    fn sessions_are_bounded_in_number_and_in_time() {
        let sessions = Sessions::default();
        let words: Vec<String> = (0..=SESSIONS).map(|n| sessions.begin(n.to_string()).unwrap()).collect();
        assert_eq!(sessions.locked().len(), SESSIONS);
        assert!(sessions.key(&words[SESSIONS]).is_some());
        let now = Instant::now();
        let session = Session { key: String::new(), begun: now, used: now };
        assert!(
            !session.is_over(now + SESSION_IDLE)
                && session.is_over(now + SESSION_IDLE + Duration::from_secs(1))
        );
        let used = Session { used: now + SESSION_LIFE, ..session };
        assert!(used.is_over(now + SESSION_LIFE + Duration::from_secs(1)));
    }

    #[test]
    fn the_word_is_found_among_other_cookies() {
        let check = |line: &str, expected: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_str(line).unwrap());
            assert_eq!(shown(&headers), expected, "{line}");
        };
        check("a=b; glasshouse-session=abc; c=d", Some("abc"));
        check("glasshouse-session=abc", Some("abc"));
        check("xglasshouse-session=abc", None);
        check("glasshouse-session=", None);
        check("", None);
        assert!(
            cookie(Some("abc"), false)
                .starts_with("glasshouse-session=abc; Path=/; HttpOnly; SameSite=Strict; Max-Age=")
        );
        assert!(cookie(None, true).ends_with("Max-Age=0; Secure"));
    }
}
