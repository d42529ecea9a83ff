//! Which files are looked into.

use std::path::{Path, PathBuf};

use glasshouse_linux::rustix::fs::statfs;
use globset::{GlobBuilder, GlobMatcher};
use ignore::{DirEntry, WalkBuilder};

use crate::Ask;

/// File systems whose files are not on any disk: /proc, /sys, cgroups and the like. They have no end, and some of their
/// files wait for something to happen.
const NOT_FILES: [u32; 13] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x1980_0202, // mqueue
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0x6265_6570, // configfs
    0x4249_4e4d, // binfmt_misc
];

/// A file to be looked into.
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
}

/// Walks over the files, in order of their names.
pub(crate) struct Walk {
    root: PathBuf,
    /// The path is one file: it is looked into whatever is ignored.
    single: Option<PathBuf>,
    entries: Option<ignore::Walk>,
    only: Option<(GlobMatcher, bool)>,
}

impl Walk {
    pub(crate) fn new(ask: &Ask) -> Result<Walk, String> {
        let root = PathBuf::from(&ask.path);
        let meta = std::fs::metadata(&root).map_err(|e| format!("cannot search {}: {e}", ask.path))?;
        if !meta.is_dir() && !meta.is_file() {
            return Err(format!("cannot search {}: it is neither a file nor a directory", ask.path));
        }
        if meta.is_dir() && is_no_disk(&root) {
            return Err(format!("cannot search {}: what is there are no files on a disk", ask.path));
        }
        let respect = !ask.no_ignore;
        let mut builder = WalkBuilder::new(&root);
        builder
            .hidden(false)
            .parents(respect)
            .ignore(respect)
            .git_ignore(respect)
            .git_exclude(respect)
            // What one user of one machine likes to ignore would make the answer another one elsewhere.
            .git_global(false)
            // A tree without its history is ignored in as one with it.
            .require_git(false)
            .follow_links(false)
            .sort_by_file_name(Ord::cmp)
            .filter_entry(move |entry| is_wanted(entry, respect));
        let only = match ask.file_pattern.as_str() {
            "" => None,
            pattern => Some(glob(pattern)?),
        };
        let single = meta.is_file().then(|| root.clone());
        let entries = meta.is_dir().then(|| builder.build());
        Ok(Walk { root, single, entries, only })
    }

    fn is_only(&self, path: &Path) -> bool {
        let Some((glob, whole)) = &self.only else { return true };
        match whole {
            true => glob.is_match(path.strip_prefix(&self.root).unwrap_or(path)),
            false => path.file_name().is_some_and(|name| glob.is_match(name)),
        }
    }
}

/// A pattern with a slash is about the path below where the search starts; one without is about the name.
fn glob(pattern: &str) -> Result<(GlobMatcher, bool), String> {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.map_err(|e| format!("`file_pattern` is no pattern: {e}"))?;
    Ok((glob.compile_matcher(), pattern.contains('/')))
}

impl Iterator for Walk {
    type Item = Result<Candidate, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(path) = self.single.take() {
            return Some(Ok(Candidate { path }));
        }
        loop {
            let entry = match self.entries.as_mut()?.next()? {
                Ok(entry) => entry,
                Err(e) => return Some(Err(e.to_string())),
            };
            if entry.file_type().is_some_and(|kind| kind.is_file()) && self.is_only(entry.path()) {
                return Some(Ok(Candidate { path: entry.into_path() }));
            }
        }
    }
}

fn is_wanted(entry: &DirEntry, respect: bool) -> bool {
    if entry.depth() == 0 {
        return true;
    }
    if respect && entry.file_name() == ".git" {
        return false;
    }
    !(entry.file_type().is_some_and(|kind| kind.is_dir()) && is_no_disk(entry.path()))
}

fn is_no_disk(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| NOT_FILES.contains(&(fs.f_type as u32)))
}
