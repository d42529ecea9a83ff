//! Queries and bodies, read leniently in form and strictly in content.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::fault::{Answer, Fault};

/// The words of a query, in order; a name may come more than once, and `+` is a space.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Query {
        Query(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// The first value of a name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A number, if the name is there.
    pub(crate) fn number(&self, name: &str) -> Answer<Option<u64>> {
        let wrong = |text| Fault::invalid(format!("{name} has to be a number, and is {text:?}"));
        self.get(name).map(|text| text.parse().map_err(|_| wrong(text))).transpose()
    }
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Query> {
        Ok(Query::parse(parts.uri.query().unwrap_or_default()))
    }
}

/// A body of JSON. Fields that are not known are let through: newer callers send more.
#[derive(Debug)]
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Answer<Body<T>> {
        let bytes = Bytes::from_request(request, state).await?;
        read(&bytes).map(Body)
    }
}

/// A body of JSON, or nothing at all.
#[derive(Debug)]
pub(crate) struct MaybeBody<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeBody<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, state: &S) -> Answer<MaybeBody<T>> {
        let bytes = Bytes::from_request(request, state).await?;
        if bytes.is_empty() { Ok(MaybeBody(T::default())) } else { read(&bytes).map(MaybeBody) }
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Answer<T> {
    serde_json::from_slice(bytes)
        .map_err(|e| Fault::invalid(format!("the body is not what it has to be: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plus_is_a_space_and_names_repeat() {
        let query = Query::parse("path=/x+y&path=%2Fa%2Bb&n=7&bad=x");
        assert_eq!(query.all("path").collect::<Vec<_>>(), ["/x y", "/a+b"]);
        assert_eq!(query.get("path"), Some("/x y"));
        assert_eq!(query.number("n").unwrap(), Some(7));
        assert_eq!(query.number("none").unwrap(), None);
        assert!(query.number("bad").is_err());
    }
}
