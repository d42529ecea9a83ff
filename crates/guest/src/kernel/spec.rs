//! Kernelspecs: which kernels the box has, and how each is started. They are looked for where `jupyter_client` looks, in its
//! order: what the environment names, the user's own, those beside the programs in `PATH` (a virtual environment has its own),
//! the system's. The first of a name is the one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use glasshouse_protocol::{KERNEL_OF, is_kernel_name};
use jupyter_protocol::JupyterKernelspec;

/// The longest kernel.json that is read.
const SPEC_BYTES_MAX: u64 = 1 << 20;
/// Kernels that are looked at in one directory.
const KERNELS_MAX: usize = 1000;
/// Names that a refusal lists.
const NAMES_TOLD_MAX: usize = 20;
/// The directories of the system.
const SYSTEM: [&str; 2] = ["/usr/local/share/jupyter", "/usr/share/jupyter"];

/// What the environment has under a name.
pub(crate) type Variable = fn(&str) -> Option<OsString>;

/// Where kernelspecs may be, and programs.
#[derive(Debug)]
pub(crate) struct Places {
    data: Vec<PathBuf>,
    path: Vec<PathBuf>,
    variable: Variable,
}

/// How a kernel is told to stop what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptMode {
    Signal,
    Message,
}

/// A kernel that the box has.
#[derive(Debug)]
pub(crate) struct Kernelspec {
    pub(crate) name: String,
    dir: PathBuf,
    spec: JupyterKernelspec,
}

impl Places {
    /// Those that variables of the environment come to.
    pub(crate) fn new(variable: Variable) -> Places {
        let paths = |name: &str| -> Vec<PathBuf> {
            variable(name).map(|value| std::env::split_paths(&value).collect()).unwrap_or_default()
        };
        let path = paths("PATH");
        let home = variable("HOME").map(PathBuf::from);
        let share = variable("XDG_DATA_HOME").map(PathBuf::from);
        let share = share.or_else(|| home.map(|home| home.join(".local/share")));
        let own = variable("JUPYTER_DATA_DIR").map(PathBuf::from);
        let own = own.or_else(|| share.map(|share| share.join("jupyter")));
        let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).map(PathBuf::from);
        let beside = path.iter().filter(|dir| dir.ends_with("bin")).filter_map(|dir| dir.parent());
        let prefixes = prefixes.chain(beside.map(Path::to_owned)).map(|dir| dir.join("share/jupyter"));
        let all =
            paths("JUPYTER_PATH").into_iter().chain(own).chain(prefixes).chain(SYSTEM.map(PathBuf::from));
        let mut data: Vec<PathBuf> = Vec::new();
        for dir in all.filter(|dir| dir.is_absolute()) {
            if !data.contains(&dir) {
                data.push(dir);
            }
        }
        Places { data, path, variable }
    }

    /// The kernel of a name, in whatever case, or one that speaks a language.
    pub(crate) fn find(&self, wanted: &str) -> Result<Kernelspec, String> {
        let spoken = wanted.strip_prefix(KERNEL_OF);
        if !is_kernel_name(spoken.unwrap_or(wanted)) {
            return Err(format!("{wanted:?} is no name of a kernel"));
        }
        let mut kernels = self.kernels();
        let found = match spoken {
            None => kernels.remove(&wanted.to_ascii_lowercase()).map(Kernelspec::read).transpose()?,
            Some(language) => {
                // One that cannot be read may be anything, so it is not this.
                let mut read = kernels
                    .values()
                    .filter_map(|(name, dir)| Kernelspec::read((name.clone(), dir.clone())).ok());
                read.find(|kernel| kernel.spec.language.eq_ignore_ascii_case(language))
            }
        };
        found.ok_or_else(|| {
            let what = match spoken {
                None => format!("is called {wanted:?}"),
                Some(language) => format!("speaks {language:?}"),
            };
            let names: Vec<&str> =
                kernels.values().take(NAMES_TOLD_MAX).map(|(name, _)| name.as_str()).collect();
            match names.as_slice() {
                [] => format!("no kernel {what}: the box has none of Jupyter's at all"),
                names => format!("no kernel of the box {what}; it has {}", names.join(", ")),
            }
        })
    }

    /// All that there are, by their names in small letters: how they are called, and where they are.
    fn kernels(&self) -> BTreeMap<String, (String, PathBuf)> {
        let mut kernels = BTreeMap::new();
        for dir in self.data.iter().map(|dir| dir.join("kernels")) {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().take(KERNELS_MAX) {
                let Ok(name) = entry.file_name().into_string() else { continue };
                if is_kernel_name(&name) && entry.path().join("kernel.json").is_file() {
                    kernels.entry(name.to_ascii_lowercase()).or_insert((name, entry.path()));
                }
            }
        }
        kernels
    }

    /// The program that a kernelspec means. `python` is the one that it was installed beside, where there is one, as
    /// `jupyter_client` takes its own; where `PATH` has none of that name, it is `python3`.
    fn program(&self, kernel: &Kernelspec, name: &str) -> PathBuf {
        let in_path = |name: &str| self.path.iter().map(|dir| dir.join(name)).find(|file| file.is_file());
        if name.contains('/') || !name.starts_with("python") {
            return PathBuf::from(name);
        }
        // PREFIX/share/jupyter/kernels/NAME
        let prefix = kernel
            .dir
            .ancestors()
            .nth(4)
            .filter(|_| kernel.dir.iter().nth_back(3).is_some_and(|dir| dir == "share"));
        let beside = prefix.map(|prefix| prefix.join("bin").join(name)).filter(|file| file.is_file());
        let found = beside.or_else(|| in_path(name)).or_else(|| in_path("python3"));
        found.unwrap_or_else(|| PathBuf::from(name))
    }

    /// What is added to a kernel's environment.
    pub(crate) fn env(&self, kernel: &Kernelspec) -> Vec<(String, String)> {
        kernel.env(self.variable)
    }

    /// The command that starts a kernel with a connection file. An error: why there is none.
    pub(crate) fn command(&self, kernel: &Kernelspec, connection: &str) -> Result<Vec<OsString>, String> {
        let [program, words @ ..] = kernel.spec.argv.as_slice() else {
            return Err(format!("the kernelspec {} says no program", kernel.name));
        };
        let dir = kernel.dir.to_string_lossy();
        let word = |word: &String| {
            OsString::from(word.replace("{connection_file}", connection).replace("{resource_dir}", &dir))
        };
        let program = word(program);
        let program = self.program(kernel, &program.to_string_lossy());
        Ok([program.into_os_string()].into_iter().chain(words.iter().map(word)).collect())
    }
}

impl Kernelspec {
    fn read((name, dir): (String, PathBuf)) -> Result<Kernelspec, String> {
        let cannot = |why: String| format!("the kernelspec {name} cannot be read: {why}");
        let mut text = Vec::new();
        std::fs::File::open(dir.join("kernel.json"))
            .and_then(|file| file.take(SPEC_BYTES_MAX + 1).read_to_end(&mut text))
            .map_err(|e| cannot(e.to_string()))?;
        if text.len() as u64 > SPEC_BYTES_MAX {
            return Err(cannot(format!("it is longer than {SPEC_BYTES_MAX} bytes")));
        }
        let spec = serde_json::from_slice(&text).map_err(|e| cannot(e.to_string()))?;
        Ok(Kernelspec { name, dir, spec })
    }

    /// What is added to the kernel's environment. `${NAME}` in a value is what the environment has.
    fn env(&self, variable: Variable) -> Vec<(String, String)> {
        let Some(env) = &self.spec.env else { return Vec::new() };
        let filled = |text: &str| {
            let mut filled = String::new();
            let mut rest = text;
            while let Some((before, after)) = rest.split_once("${") {
                let Some((name, behind)) = after.split_once('}') else { break };
                filled.push_str(before);
                match variable(name) {
                    Some(value) => filled.push_str(&value.to_string_lossy()),
                    None => filled.push_str(&rest[before.len()..rest.len() - behind.len()]),
                }
                rest = behind;
            }
            filled + rest
        };
        env.iter().map(|(name, value)| (name.clone(), filled(value))).collect()
    }

    pub(crate) fn interrupt_mode(&self) -> InterruptMode {
        match self.spec.interrupt_mode.as_deref() {
            Some("message") => InterruptMode::Message,
            _ => InterruptMode::Signal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(dir: &Path) -> Places {
        Places { data: vec![dir.to_owned()], path: Vec::new(), variable: |_| None }
    }

    /// A directory with two kernels.
    fn two_kernels() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a scratch directory");
        for (name, language) in [("Python3", "python"), ("gophernotes", "go")] {
            let kernel = dir.path().join("kernels").join(name);
            std::fs::create_dir_all(&kernel).expect("a directory");
            let argv = r#"["run", "{resource_dir}/x", "-f", "{connection_file}"]"#;
            let env = r#"{"A": "${HOME}/b ${NONE} ${", "C": "d"}"#;
            let text = format!(
                r#"{{"argv": {argv}, "display_name": "x", "language": "{language}", "interrupt_mode": "message", "env": {env}}}"#
            );
            std::fs::write(kernel.join("kernel.json"), text).expect("a file");
        }
        dir
    }

    #[test]
    fn a_kernel_is_found_by_its_name_in_any_case_or_by_its_language() {
        let dir = two_kernels();
        let places = places(dir.path());
        for (wanted, name) in [("python3", "Python3"), ("PYTHON3", "Python3"), ("language:Go", "gophernotes")]
        {
            assert_eq!(places.find(wanted).expect("it is there").name, name, "{wanted}");
        }
        let refused = |wanted: &str| places.find(wanted).expect_err("it is not there");
        assert_eq!(refused("ir"), r#"no kernel of the box is called "ir"; it has gophernotes, Python3"#);
        assert_eq!(refused("language:r"), r#"no kernel of the box speaks "r"; it has gophernotes, Python3"#);
        for wanted in ["../kernels/Python3", "", "a/b", "..", "language:../x"] {
            assert!(refused(wanted).ends_with("is no name of a kernel"), "{wanted}");
        }
    }

    #[test]
    fn a_command_is_filled_in() {
        let dir = two_kernels();
        let places = places(dir.path());
        let kernel = places.find("python3").expect("it is there");
        let command = places.command(&kernel, "/c.json").expect("it has a command");
        let resource = format!("{}/kernels/Python3/x", dir.path().display());
        assert_eq!(command, ["run", &resource, "-f", "/c.json"].map(OsString::from));
        assert_eq!(kernel.interrupt_mode(), InterruptMode::Message);
        let mut env = kernel.env(|name| (name == "HOME").then(|| "/h".into()));
        env.sort();
        assert_eq!(env, [("A".into(), "/h/b ${NONE} ${".into()), ("C".into(), "d".to_owned())]);
    }

    #[test]
    fn places_are_in_jupyters_order() {
        let variable = |name: &str| {
            Some(OsString::from(match name {
                "PATH" => "/venv/bin:/usr/bin:relative/bin:/usr/bin",
                "HOME" => "/root",
                "JUPYTER_PATH" => "/first:",
                _ => return None,
            }))
        };
        let expected = [
            "/first",
            "/root/.local/share/jupyter",
            "/venv/share/jupyter",
            "/usr/share/jupyter",
            "/usr/local/share/jupyter",
        ];
        assert_eq!(Places::new(variable).data, expected.map(PathBuf::from));
    }
}
