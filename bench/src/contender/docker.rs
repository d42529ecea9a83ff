//! Docker, where an engine answers: an image made on the spot from the host's /usr, so that nothing is pulled.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::TRUE;
use super::oci;
use super::process::{CommandLine, find};
use crate::stage::Stage;

/// An engine with an image and a running container of ours. Both are removed with it.
pub(crate) struct Engine {
    docker: PathBuf,
    image: String,
    container: String,
    /// What every container needs beside the image.
    mounts: Vec<String>,
}

impl Engine {
    /// An engine, or why there is none.
    pub(super) fn find(stage: &Stage) -> Result<Engine, String> {
        Engine::at(&stage.path().join("docker"))
    }

    /// An engine whose container has a tree in it.
    pub(crate) fn with_tree(root: &Path, tree: &Path) -> Result<Engine, String> {
        let engine = Engine::at(root)?;
        let mut from = tree.as_os_str().to_owned();
        from.push("/.");
        let copied = Command::new(&engine.docker)
            .arg("cp")
            .arg(from)
            .arg(format!("{}:/tree", engine.container))
            .stdin(Stdio::null())
            .output()
            .map_err(|e| e.to_string())?;
        match copied.status.success() {
            true => Ok(engine),
            false => Err(format!("cannot copy the tree into a container: {}", said(&copied))),
        }
    }

    /// How long it takes to keep the state of the container.
    pub(crate) fn commit(&self) -> Result<std::time::Duration> {
        let image = format!("{}-kept", self.image);
        let line = CommandLine::new(&[&self.docker]).args(&["commit", &self.container, &image]);
        let took = self.told_where(line).time()?;
        let removed = self.docker(&["rmi", "--force", &image], Stdio::null())?;
        ensure!(removed.status.success(), "cannot remove an image: {}", said(&removed));
        Ok(took)
    }

    /// How long it takes to keep the state of the container and to run a command in another one with it.
    pub(crate) fn fork(&self) -> Result<std::time::Duration> {
        let image = format!("{}-fork", self.image);
        let commit = CommandLine::new(&[&self.docker]).args(&["commit", &self.container, &image]);
        let run = CommandLine::new(&[&self.docker]).args(&["run", "--rm", "--network", "none"]);
        let run = run.args(&self.mounts).args(&[&image]).args(&TRUE);
        let took = self.told_where(commit).time()? + self.told_where(run).time()?;
        let removed = self.docker(&["rmi", "--force", &image], Stdio::null())?;
        ensure!(removed.status.success(), "cannot remove an image: {}", said(&removed));
        Ok(took)
    }

    /// The image that everything is made from.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// An engine with its image in this directory, or why there is none.
    pub(crate) fn at(root: &Path) -> Result<Engine, String> {
        let docker = find("docker")?;
        let info = Command::new(&docker)
            .args(["info", "--format", "{{.ServerVersion}}"])
            .stdin(Stdio::null())
            .output();
        let info = info.map_err(|e| e.to_string())?;
        if !info.status.success() || info.stdout.trim_ascii().is_empty() {
            return Err("no engine answers `docker info`".into());
        }
        let name = format!("glass-bench-{}", std::process::id());
        let mut engine = Engine { docker, image: name.clone(), container: name, mounts: Vec::new() };
        engine.prepare(root).map_err(|error| format!("{error:#}"))?;
        Ok(engine)
    }

    fn prepare(&mut self, root: &Path) -> Result<()> {
        if oci::fill(root)?.is_some() {
            self.mounts = ["--volume", "/usr:/usr:ro"].map(String::from).to_vec();
        }
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--directory").arg(root).arg(".").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut tar = tar.spawn().context("cannot start tar")?;
        let archive = tar.stdout.take().context("tar has no output")?;
        let import = self.docker(&["import", "-", &self.image], Stdio::from(archive))?;
        ensure!(
            tar.wait()?.success() && import.status.success(),
            "cannot import an image: {}",
            said(&import)
        );
        let mut start = vec!["run", "--detach", "--rm", "--network", "none", "--name", &self.container];
        start.extend(self.mounts.iter().map(String::as_str));
        start.extend([&self.image, "/bin/sleep", "infinity"]);
        let start = self.docker(&start, Stdio::null())?;
        ensure!(start.status.success(), "cannot start a container: {}", said(&start));
        Ok(())
    }

    fn docker(&self, args: &[&str], stdin: Stdio) -> Result<Output> {
        Command::new(&self.docker).args(args).stdin(stdin).output().context("cannot run docker")
    }

    pub(crate) fn run(&self) -> CommandLine {
        let line = CommandLine::new(&[&self.docker]).args(&["run", "--rm", "--network", "none"]);
        self.told_where(line.args(&self.mounts).args(&[&self.image]).args(&TRUE))
    }

    pub(crate) fn exec(&self) -> CommandLine {
        self.told_where(CommandLine::new(&[&self.docker]).args(&["exec", &self.container]).args(&TRUE))
    }

    /// The engine that we found is the one that is measured.
    fn told_where(&self, line: CommandLine) -> CommandLine {
        let known = ["DOCKER_HOST", "DOCKER_CONTEXT", "HOME"];
        known.into_iter().fold(line, |line, key| match std::env::var_os(key) {
            Some(value) => line.env(key, value),
            None => line,
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What cannot be removed was never there, or the engine is gone.
        let _ = self.docker(&["rm", "--force", &self.container], Stdio::null());
        let _ = self.docker(&["rmi", "--force", &self.image], Stdio::null());
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}
