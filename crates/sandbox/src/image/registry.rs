//! A registry, by the OCI distribution protocol: documents and parts of blobs, with logins.
//!
//! Nothing that comes from there is believed: documents are bounded and have to have the digest they were asked by, and a
//! login is told to nobody but the registry and the place that it names, never in the clear where the registry
//! itself speaks TLS.

use std::sync::{Mutex, Once};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use super::manifest::{ACCEPTED, DOCUMENT_BYTES_MAX, Descriptor, digest_of};
use super::reference::{DOCKER_HUB, Reference};
use crate::error::{Error, ErrorKind, Result};

/// A registry that does not even answer the telephone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// A registry that falls silent in the middle.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often something is tried that may go better the next time.
const TRIES: u32 = 5;
/// How often a registry is called that does not answer at all: most often its name is wrong.
const CALLS: u32 = 2;
/// The first pause between two tries; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause that a registry can ask for.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Redirections of one request.
const REDIRECTIONS_MAX: usize = 10;
/// An answer to a login, or what is shown of an error.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Who we are to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A name and a password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that a registry gave at a login, to be changed for others.
    IdentityToken(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A secret in a log is none.
        f.write_str("Credentials(…)")
    }
}

/// A failure, and whether it may go better the next time.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: Error,
    /// How often it is worth a try in all.
    pub(super) tries: u32,
    /// The pause that the registry asks for.
    pause: Option<Duration>,
}

impl Trouble {
    pub(super) fn for_good(error: Error) -> Trouble {
        Trouble { error, tries: 1, pause: None }
    }

    /// The other side ended too early.
    pub(super) fn broken_off(error: Error) -> Trouble {
        Trouble { error, tries: TRIES, pause: None }
    }

    /// Waits before the next try.
    pub(super) async fn pause(&self, tries: u32) {
        let pause = self.pause.unwrap_or(PAUSE * 2u32.saturating_pow(tries.saturating_sub(1)));
        tokio::time::sleep(pause.min(PAUSE_MAX)).await;
    }
}

/// The registry of one image.
pub(super) struct Registry {
    client: Client,
    reference: Reference,
    base: Url,
    credentials: Option<Credentials>,
    /// What was got by the last login.
    authorization: Mutex<Option<String>>,
}

impl Registry {
    pub(super) fn new(
        reference: &Reference,
        credentials: Option<Credentials>,
        insecure: bool,
    ) -> Result<Registry> {
        static PROVIDER: Once = Once::new();
        PROVIDER.call_once(|| {
            // Somebody else in this process may have chosen another one, which does as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
        });
        let scheme = if insecure || reference.is_local() { "http" } else { "https" };
        let host =
            if reference.registry == DOCKER_HUB { "registry-1.docker.io" } else { &reference.registry };
        let broken = |e: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Invalid, format!("cannot talk to the registry {host}: {e}"))
        };
        let base =
            Url::parse(&format!("{scheme}://{host}/v2/{}/", reference.repository)).map_err(|e| broken(&e))?;
        let policy = Policy::custom(|attempt| {
            let downgrade = attempt.previous().iter().any(|url| url.scheme() == "https")
                && attempt.url().scheme() != "https";
            if downgrade {
                attempt.error("it leads from TLS to plain HTTP")
            } else if attempt.previous().len() > REDIRECTIONS_MAX {
                attempt.error("it leads in circles")
            } else {
                attempt.follow()
            }
        });
        let client = Client::builder()
            .user_agent(concat!("glasshouse/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(SILENCE_TIMEOUT)
            .redirect(policy)
            // A library reads no environment.
            .no_proxy()
            .build()
            .map_err(|e| broken(&e))?;
        Ok(Registry {
            client,
            reference: reference.clone(),
            base,
            credentials,
            authorization: Mutex::new(None),
        })
    }

    /// An index or a manifest, by tag or digest.
    pub(super) async fn manifest(&self, wanted: &str) -> Result<Vec<u8>> {
        let digest = wanted.starts_with("sha256:").then_some(wanted);
        self.document(&format!("manifests/{wanted}"), digest).await
    }

    /// A configuration.
    pub(super) async fn config(&self, config: &Descriptor) -> Result<Vec<u8>> {
        self.document(&format!("blobs/{}", config.digest), Some(&config.digest)).await
    }

    async fn document(&self, path: &str, digest: Option<&str>) -> Result<Vec<u8>> {
        let mut tries = 1;
        loop {
            let got = match self.get(path, None).await {
                Ok(mut response) => body(&mut response, DOCUMENT_BYTES_MAX).await,
                Err(trouble) => Err(trouble),
            };
            match got {
                Ok(bytes) => {
                    let found = digest_of(&bytes);
                    if let Some(digest) = digest.filter(|digest| *digest != found) {
                        let message = format!(
                            "cannot pull {}: the registry sent something with the digest {found} for {digest}; it is \
                             damaged, or somebody changed it",
                            self.reference
                        );
                        return Err(Error::new(ErrorKind::Invalid, message));
                    }
                    return Ok(bytes);
                }
                Err(trouble) if tries < trouble.tries => trouble.pause(tries).await,
                Err(trouble) => return Err(trouble.error),
            }
            tries += 1;
        }
    }

    /// The rest of a blob. Whether it begins where it was asked to.
    pub(super) async fn blob(
        &self,
        blob: &Descriptor,
        from: u64,
    ) -> std::result::Result<(Response, bool), Trouble> {
        let response =
            self.get(&format!("blobs/{}", blob.digest), Some(from).filter(|from| *from > 0)).await?;
        let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let continued = response.status() == StatusCode::PARTIAL_CONTENT
            && range.is_some_and(|range| range.starts_with(&format!("bytes {from}-")));
        Ok((response, continued || from == 0))
    }

    async fn get(&self, path: &str, from: Option<u64>) -> std::result::Result<Response, Trouble> {
        let url = self.base.join(path).map_err(|e| Trouble::for_good(self.failed(&e.to_string())))?;
        let mut logged_in = false;
        loop {
            let mut request = self.client.get(url.clone()).header(ACCEPT, ACCEPTED);
            if let Some(from) = from {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(authorization) = self.authorization.lock().ok().and_then(|held| held.clone()) {
                request = request.header(AUTHORIZATION, authorization);
            }
            let response = self.send(request).await?;
            match response.status() {
                StatusCode::UNAUTHORIZED if !logged_in => {
                    self.log_in(response.headers()).await?;
                    logged_in = true;
                }
                status if status.is_success() => return Ok(response),
                status => return Err(self.told(status, response).await),
            }
        }
    }

    async fn send(&self, request: RequestBuilder) -> std::result::Result<Response, Trouble> {
        request.send().await.map_err(|e| self.broken(&e))
    }

    /// What broke on the way.
    pub(super) fn broken(&self, error: &reqwest::Error) -> Trouble {
        let mut why = String::new();
        let mut cause: Option<&dyn std::error::Error> = Some(error);
        while let Some(error) = cause {
            // The first one names the address only.
            why = error.to_string();
            cause = error.source();
        }
        let unknown = why.contains("lookup") || why.contains("certificate");
        let hint = match error.is_connect() && !unknown && self.base.scheme() == "https" {
            true => "; a registry without TLS needs --insecure",
            false => "",
        };
        let tries = match () {
            () if error.is_redirect() => 1,
            () if error.is_connect() => CALLS,
            () => TRIES,
        };
        Trouble { error: self.failed(&format!("{why}{hint}")), tries, pause: None }
    }

    fn failed(&self, why: &str) -> Error {
        Error::new(ErrorKind::Failed, format!("cannot pull {}: {why}", self.reference))
    }

    /// A refusal, in words.
    async fn told(&self, status: StatusCode, mut response: Response) -> Trouble {
        let pause = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let pause = pause.map(Duration::from_secs);
        let again = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let tries = if again { TRIES } else { 1 };
        let registry = &self.reference.registry;
        let said = body(&mut response, ANSWER_BYTES_MAX).await.ok();
        let said = said.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let said = said.and_then(|value| Some(value.pointer("/errors/0/message")?.as_str()?.to_owned()));
        let said = said.map(|said| format!(" ({})", said.escape_debug().take(200).collect::<String>()));
        let said = said.unwrap_or_default();
        let (kind, why) = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let whose = match self.credentials {
                    Some(_) => "does not accept our login for it",
                    None => "wants a login for it; `docker login` writes one to Docker's config file",
                };
                (ErrorKind::Denied, format!("the registry {registry} {whose}{said}"))
            }
            StatusCode::NOT_FOUND => {
                (ErrorKind::NotFound, format!("the registry {registry} does not have it{said}"))
            }
            StatusCode::TOO_MANY_REQUESTS => (
                ErrorKind::Limit,
                format!("the registry {registry} has had too many requests from here{said}"),
            ),
            other => (ErrorKind::Failed, format!("the registry {registry} answered {other}{said}")),
        };
        let error = Error::new(kind, format!("cannot pull {}: {why}", self.reference));
        Trouble { error, tries, pause }
    }

    async fn log_in(&self, headers: &HeaderMap) -> std::result::Result<(), Trouble> {
        let mut challenges = Vec::new();
        for value in headers.get_all(WWW_AUTHENTICATE) {
            challenges.extend(value.to_str().ok().and_then(Challenge::parse));
        }
        let bearer = challenges.iter().find(|challenge| challenge.scheme == "bearer");
        let authorization = match (bearer, &self.credentials) {
            (Some(challenge), _) => format!("Bearer {}", self.token(challenge).await?),
            (None, Some(Credentials::Password { user, password }))
                if challenges.iter().any(|challenge| challenge.scheme == "basic") =>
            {
                basic(user, password)
            }
            // The second answer says that it is no use.
            _ => return Ok(()),
        };
        if let Ok(mut held) = self.authorization.lock() {
            *held = Some(authorization);
        }
        Ok(())
    }

    /// A token for this image, from where the registry says that there are some.
    async fn token(&self, challenge: &Challenge) -> std::result::Result<String, Trouble> {
        let wrong = |why: &str| Trouble::for_good(self.failed(&format!("its registry's login {why}")));
        let realm = challenge.value("realm").ok_or_else(|| wrong("names no place"))?;
        let mut url = Url::parse(realm).map_err(|_| wrong("names a place that is no address"))?;
        let clear = url.scheme() == "http" && self.base.scheme() == "http";
        if url.scheme() != "https" && !clear {
            return Err(wrong("is not by TLS"));
        }
        let scope = format!("repository:{}:pull", self.reference.repository);
        let mut words = vec![("scope", challenge.value("scope").unwrap_or(&scope))];
        words.extend(challenge.value("service").map(|service| ("service", service)));
        let request = match &self.credentials {
            Some(Credentials::IdentityToken(token)) => {
                words.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "glasshouse"),
                    ("refresh_token", token),
                ]);
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(&words);
                let form = form.query().unwrap_or_default().to_owned();
                let kind = "application/x-www-form-urlencoded";
                self.client.post(url).header(CONTENT_TYPE, kind).body(form)
            }
            credentials => {
                url.query_pairs_mut().extend_pairs(&words);
                let request = self.client.get(url);
                match credentials {
                    Some(Credentials::Password { user, password }) => {
                        request.header(AUTHORIZATION, basic(user, password))
                    }
                    _ => request,
                }
            }
        };
        let mut response = self.send(request).await?;
        if !response.status().is_success() {
            return Err(self.told(response.status(), response).await);
        }
        let bytes = body(&mut response, ANSWER_BYTES_MAX).await?;
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|_| wrong("gave an answer that is no JSON"))?;
        let token = ["token", "access_token"].iter().find_map(|key| value.get(key)?.as_str());
        // A header of two lines would be two headers.
        let token =
            token.filter(|token| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()));
        token.map(str::to_owned).ok_or_else(|| wrong("gave no token"))
    }
}

/// A login by name and password, as a header.
fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// The whole of a body, if it is no larger than this.
async fn body(response: &mut Response, bytes_max: u64) -> std::result::Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    let broken = |e: reqwest::Error| Trouble {
        error: Error::new(ErrorKind::Failed, format!("the registry's answer broke off: {e}")),
        tries: TRIES,
        pause: None,
    };
    while let Some(piece) = response.chunk().await.map_err(broken)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() as u64 > bytes_max {
            let message = format!("the registry's answer is larger than {bytes_max} bytes");
            return Err(Trouble::for_good(Error::new(ErrorKind::Limit, message)));
        }
    }
    Ok(bytes)
}

/// How a registry wants to be logged in to.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    values: Vec<(String, String)>,
}

impl Challenge {
    /// `Bearer realm="…",service="…"`
    fn parse(text: &str) -> Option<Challenge> {
        let (scheme, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let mut values = Vec::new();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').map_or((after, ""), |(value, rest)| (value.trim(), rest)),
            };
            values.push((key.trim_matches([' ', ',']).to_ascii_lowercase(), value.to_owned()));
            rest = after;
        }
        Some(Challenge { scheme: scheme.to_ascii_lowercase(), values })
    }

    fn value(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_understood_with_its_quotes_and_commas() {
        let text = r#"Bearer realm="https://a/t?x=y",service="s", scope="repository:x:pull,push", n=3"#;
        let challenge = Challenge::parse(text).unwrap();
        assert_eq!(challenge.scheme, "bearer");
        let values = ["realm", "service", "scope", "n", "none"].map(|key| challenge.value(key));
        let expected = [Some("https://a/t?x=y"), Some("s"), Some("repository:x:pull,push"), Some("3"), None];
        assert_eq!(values, expected);
        assert_eq!(Challenge::parse("Basic").unwrap().scheme, "basic");
        assert_eq!(Challenge::parse(r#"Bearer realm="open"#), None);
    }

    #[test]
    fn a_password_is_written_as_the_standard_says() {
        assert_eq!(basic("Aladdin", "open sesame"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(basic("a", "b"), "Basic YTpi");
    }

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Credentials::Password { user: "u".into(), password: "hunter2".into() };
        assert!(
            !format!("{secret:?} {:?}", Credentials::IdentityToken("hunter2".into())).contains("hunter2")
        );
    }
}
