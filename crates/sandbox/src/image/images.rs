//! What the library offers of images.

use std::path::Path;
use std::pin::pin;

use super::import::Called;
use super::pull::{self, Halt, PullOptions, Stop};
use super::store::{self, ImageInfo};
use super::{Reference, commit, import};
use crate::error::{ErrorKind, Result};
use crate::runtime::docker::EngineImage;
use crate::sandboxes::Sandboxes;
use crate::snapshot::records;
use crate::spec::Image;
use crate::threads::blocking;

impl Sandboxes {
    /// Pulls an image from its registry. Layers that are here are not fetched again; if it fails or is stopped, what was
    /// downloaded is kept for the next try.
    pub async fn pull_image(&self, reference: &str, options: PullOptions) -> Result<ImageInfo> {
        pull::pull(self.home(), reference, options).await
    }

    /// Takes an image from an archive (of the OCI's layout, or by `docker save`), or from a directory: one of the OCI's
    /// layout, or one that holds a root. Without a name it gets its own, or the file's, unless another image has that.
    pub async fn import_image(&self, path: &Path, name: Option<&str>) -> Result<ImageInfo> {
        self.import_image_until(&Stop::default(), path, name).await
    }

    /// The same, until it is stopped; then nothing is left of it.
    pub async fn import_image_until(
        &self,
        stop: &Stop,
        path: &Path,
        name: Option<&str>,
    ) -> Result<ImageInfo> {
        let called = match name {
            Some(name) => Called::Given(name.parse()?),
            None => Called::Itself,
        };
        self.import_called(stop, path, called).await
    }

    /// Takes an image from an archive that somebody wants boxes of, until it is stopped. It is called by its digest: what the
    /// archive calls itself is not believed, so that no image that is here is another one afterwards.
    pub async fn archive_image_until(&self, stop: &Stop, path: &Path) -> Result<ImageInfo> {
        self.import_called(stop, path, Called::ByDigest).await
    }

    async fn import_called(&self, stop: &Stop, path: &Path, called: Called) -> Result<ImageInfo> {
        let (home, path) = (self.home().clone(), path.to_owned());
        let halt = Halt::default();
        let halted = halt.flag();
        let mut work = pin!(blocking(move || import::import(&home, &path, called, halted)));
        tokio::select! {
            done = &mut work => done,
            () = stop.said() => {
                drop(halt);
                work.await
            }
        }
    }

    /// Makes an image of a snapshot. Nothing is copied, and the image stays when the snapshot is removed.
    pub async fn commit(&self, snapshot: &str, name: &str) -> Result<ImageInfo> {
        let (home, snapshot, name) = (self.home().clone(), snapshot.to_owned(), name.to_owned());
        blocking(move || commit::commit(&home, &records::find(&home, &snapshot)?, &name)).await
    }

    /// The images that are here, by name.
    pub async fn images(&self) -> Result<Vec<ImageInfo>> {
        store::images(self.home())
    }

    /// One image that is here.
    pub async fn image(&self, name: &str) -> Result<ImageInfo> {
        store::image(self.home(), name)
    }

    /// An image that the Docker engine has, by its name there.
    pub async fn engine_image(&self, name: &str) -> Result<Option<EngineImage>> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || house.containers().image(&name)).await
    }

    /// Has the Docker engine pull an image, with the login that we have for its registry. Whether it talks to that without TLS
    /// is the engine's own setting.
    pub async fn pull_engine_image(&self, name: &str, options: PullOptions) -> Result<EngineImage> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || house.containers().pull(&name, options)).await
    }

    /// What an image of the engine runs when nobody says what, by its name there. The engine fetches it if need be.
    pub async fn engine_command(&self, name: &str) -> Result<Vec<String>> {
        let (house, name) = (self.clone(), name.to_owned());
        blocking(move || house.containers().own_command(&name)).await
    }

    /// Forgets an image, and removes those of its layers that nobody needs.
    pub async fn remove_image(&self, name: &str) -> Result<ImageInfo> {
        let (home, name) = (self.home().clone(), name.to_owned());
        blocking(move || store::remove(&home, &name)).await
    }

    /// Fetches an image that has to be fetched first. What it is then.
    pub(crate) async fn have_image(&self, image: &Image) -> Result<Image> {
        match image {
            Image::Remote(name) => {
                match self.image(name).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {
                        self.pull_image(name, PullOptions::default()).await?;
                    }
                    known => drop(known?),
                }
                Ok(Image::Stored(name.parse::<Reference>()?.to_string()))
            }
            Image::OciArchive(path) | Image::DockerArchive(path) => {
                Ok(Image::Stored(self.archive_image_until(&Stop::default(), path).await?.name))
            }
            other => Ok(other.clone()),
        }
    }
}
