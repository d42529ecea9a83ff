//! A file that a command was told to write: whole, or not at all.
//!
//! It is written beside its place, and moved there when it is whole: whoever looks sees what was there before, or all
//! of the new one. What is no file (a device, a pipe, `/dev/stdout`) has no such place and is written as it is; nothing
//! is ever put in its stead, and it is never removed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A file that is being written. Dropped before it is finished, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct OutFile {
    out: File,
    path: PathBuf,
    /// Where it is written, and where it goes from there.
    moved: Option<(PathBuf, PathBuf)>,
}

impl OutFile {
    pub(crate) fn create(path: &Path) -> Result<OutFile> {
        OutFile::open(path).with_context(|| unwritable(path))
    }

    fn open(path: &Path) -> io::Result<OutFile> {
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            let out = File::options().write(true).open(path)?;
            return Ok(OutFile { out, path: path.to_owned(), moved: None });
        }
        // A link stays one, and what it leads to is replaced.
        let place = match found {
            Some(_) => fs::canonicalize(path)?,
            None => path.to_owned(),
        };
        let mut part = place.clone().into_os_string();
        part.push(format!(".{}.part", std::process::id()));
        let part = PathBuf::from(part);
        let out = File::create_new(&part)?;
        let file = OutFile { out, path: path.to_owned(), moved: Some((part, place)) };
        if let Some(found) = found {
            file.out.set_permissions(found.permissions())?;
        }
        Ok(file)
    }

    /// The same file, for somebody who wants one of his own.
    pub(crate) fn writer(&self) -> Result<File> {
        self.out.try_clone().with_context(|| unwritable(&self.path))
    }

    /// It is whole.
    pub(crate) fn finish(mut self) -> Result<()> {
        let path = self.path.clone();
        let done = match self.moved.take() {
            None => Ok(()),
            Some((part, place)) => fs::rename(&part, &place).inspect_err(|_| remove(&part)),
        };
        done.with_context(|| unwritable(&path))
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if let Some((part, _)) = &self.moved {
            remove(part);
        }
    }
}

/// What a failure to write a file is about.
pub(crate) fn unwritable(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

fn remove(part: &Path) {
    // Whoever removed it before us wanted the same.
    let _ = fs::remove_file(part);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_there_stays_until_the_new_one_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let mut half = OutFile::create(&path).unwrap();
        half.write_all(b"ha").unwrap();
        drop(half);
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(dir.path())),
            ("old".to_owned(), vec!["f".to_owned()])
        );
        let mut whole = OutFile::create(&path).unwrap();
        whole.write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names(dir.path())),
            ("new".to_owned(), vec!["f".to_owned()])
        );
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, link) = (dir.path().join("f"), dir.path().join("l"));
        fs::write(&path, "old").unwrap();
        symlink("f", &link).unwrap();
        let mut whole = OutFile::create(&link).unwrap();
        whole.write_all(b"new").unwrap();
        whole.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn what_is_no_file_is_written_and_stays_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _kept = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(OutFile::create(&path).is_err());
        assert!(OutFile::create(dir.path()).is_err());
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket());
        let mut out = OutFile::create(Path::new("/dev/null")).unwrap();
        out.write_all(b"gone").unwrap();
        assert!(out.moved.is_none());
        out.finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
