//! Where boxes are kept. Only here is the environment asked.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The directory named by the option, by `$GLASSHOUSE_HOME`, or the one that is usual for who we are.
pub(crate) fn home(option: Option<&Path>) -> Result<PathBuf> {
    let root = rustix::process::geteuid().is_root();
    let home = choose(option, root, |name| std::env::var_os(name))
        .context("cannot tell where to keep boxes: set GLASSHOUSE_HOME or HOME, or give --home")?;
    std::path::absolute(&home).with_context(|| format!("cannot make an absolute path of {}", home.display()))
}

fn choose(option: Option<&Path>, root: bool, var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| var(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(option) = option {
        return Some(option.to_owned());
    }
    if let Some(home) = path("GLASSHOUSE_HOME") {
        return Some(home);
    }
    if root {
        return Some("/var/lib/glasshouse".into());
    }
    // The specification says that a relative path there is to be ignored.
    let data = path("XDG_DATA_HOME").filter(|path| path.is_absolute());
    let data = data
        .or_else(|| path("HOME").filter(|path| path.is_absolute()).map(|home| home.join(".local/share")))?;
    Some(data.join("glasshouse"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(option: Option<&str>, root: bool, vars: &[(&str, &str)], expected: Option<&str>) {
        let var = |name: &str| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        assert_eq!(choose(option.map(Path::new), root, var), expected.map(PathBuf::from));
    }

    #[test]
    fn the_stronger_word_wins() {
        let all = [("GLASSHOUSE_HOME", "/g"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")];
        check(Some("here"), false, &all, Some("here"));
        check(None, true, &all, Some("/g"));
        check(None, true, &all[1..], Some("/var/lib/glasshouse"));
        check(None, false, &all[1..], Some("/x/glasshouse"));
        check(None, false, &all[2..], Some("/h/.local/share/glasshouse"));
        check(None, false, &[], None);
    }

    #[test]
    fn empty_and_relative_words_are_no_words() {
        let vars = [("GLASSHOUSE_HOME", ""), ("XDG_DATA_HOME", "x"), ("HOME", "/h")];
        check(None, false, &vars, Some("/h/.local/share/glasshouse"));
    }
}
