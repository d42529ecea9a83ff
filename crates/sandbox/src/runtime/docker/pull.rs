//! Having the engine fetch an image: who we are to its registry goes along, and how it goes on comes back.

use bollard::auth::DockerCredentials;
use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::CreateImageOptionsBuilder;
use futures_util::StreamExt;

use super::Docker;
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Credentials, PullOptions, PullPhase, PullProgress, Reference};

/// An image that an engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineImage {
    /// What the engine calls it: `sha256:…`.
    pub id: String,
    /// The digests by which registries know it, `NAME@sha256:…`; none of one that was made here.
    pub digests: Vec<String>,
    /// The machine that it is for, like `linux/amd64`.
    pub platform: String,
}

impl EngineImage {
    fn of(found: ImageInspect) -> EngineImage {
        let (os, machine) = (found.os.unwrap_or_default(), found.architecture.unwrap_or_default());
        EngineImage {
            id: found.id.unwrap_or_default(),
            digests: found.repo_digests.unwrap_or_default(),
            platform: format!("{os}/{machine}"),
        }
    }
}

impl Docker {
    /// An image of the engine, if it has one of that name.
    pub(crate) fn image(&self, name: &str) -> Result<Option<EngineImage>> {
        Ok(self.look_for(name)?.map(EngineImage::of))
    }

    /// Has the engine fetch an image, also if it has one of that name.
    pub(crate) fn pull(&self, name: &str, options: PullOptions) -> Result<EngineImage> {
        self.fetch(name, options).map(EngineImage::of)
    }

    pub(super) fn fetch(&self, name: &str, options: PullOptions) -> Result<ImageInspect> {
        let reference: Reference = name.parse()?;
        let asked = CreateImageOptionsBuilder::new().from_image(&reference.to_string());
        let asked = match &options.platform {
            Some(platform) => asked.platform(platform),
            None => asked,
        }
        .build();
        let credentials = options.credentials.map(in_its_words);
        let stop = options.stop.unwrap_or_default();
        let whole = self.engine.ask(&format!("have the engine pull {name}"), async |docker| {
            let mut lines = docker.create_image(Some(asked), None, credentials);
            loop {
                tokio::select! {
                    line = lines.next() => match line.transpose()? {
                        Some(line) => {
                            if let (Some(tell), Some(step)) = (&options.progress, step(line)) {
                                tell(step);
                            }
                        }
                        None => return Ok(true),
                    },
                    // The engine ends what nobody waits for.
                    () = stop.said() => return Ok(false),
                }
            }
        })?;
        if !whole {
            return Err(Error::new(ErrorKind::Failed, format!("the pull of {name} was stopped")));
        }
        let gone = || Error::new(ErrorKind::NotFound, format!("the engine has no image {name}"));
        self.look_for(name)?.ok_or_else(gone)
    }

    pub(super) fn look_for(&self, name: &str) -> Result<Option<ImageInspect>> {
        self.engine.ask_known("look for the image", async |docker| docker.inspect_image(name).await)
    }
}

fn in_its_words(credentials: Credentials) -> DockerCredentials {
    match credentials {
        Credentials::Password { user, password } => DockerCredentials {
            username: Some(user),
            password: Some(password),
            ..DockerCredentials::default()
        },
        Credentials::IdentityToken(token) => {
            DockerCredentials { identitytoken: Some(token), ..DockerCredentials::default() }
        }
    }
}

/// How a layer goes on, if that is what a line is about.
fn step(line: CreateImageInfo) -> Option<PullProgress> {
    let phase = match line.status.as_deref()? {
        "Pulling fs layer" | "Waiting" => PullPhase::Waiting,
        "Downloading" => PullPhase::Downloading,
        "Verifying Checksum" | "Download complete" => PullPhase::Downloaded,
        "Extracting" => PullPhase::Unpacking,
        "Pull complete" => PullPhase::Done,
        "Already exists" => PullPhase::Here,
        _ => return None,
    };
    let bytes = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
    let detail = line.progress_detail.unwrap_or_default();
    Some(PullProgress { layer: line.id?, phase, done: bytes(detail.current), total: bytes(detail.total) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_layers_are_understood_and_others_are_not_taken_for_them() {
        let line = |text: &str| step(serde_json::from_str(text).unwrap());
        let of = |phase, done, total| Some(PullProgress { layer: "5f70bf18a086".into(), phase, done, total });
        let told =
            r#"{"status":"Downloading","progressDetail":{"current":7,"total":90},"id":"5f70bf18a086"}"#;
        assert_eq!(line(told), of(PullPhase::Downloading, 7, 90));
        let told = r#"{"status":"Pull complete","progressDetail":{},"id":"5f70bf18a086"}"#;
        assert_eq!(line(told), of(PullPhase::Done, 0, 0));
        assert_eq!(line(r#"{"status":"Pulling from library/debian","id":"12"}"#), None);
        assert_eq!(line(r#"{"status":"Status: Downloaded newer image for debian:12"}"#), None);
        assert_eq!(line(r#"{"status":"Downloading","progressDetail":{"current":-1}}"#), None);
    }
}
