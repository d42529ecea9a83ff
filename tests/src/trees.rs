//! Trees of files that images are made of, as others make them: Debian by `debootstrap`, a program that stands alone, and one
//! on musl. What takes long is made once and kept below the target directory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use glasshouse_linux::rustix::fs::{FlockOperation, flock};

/// Beside what is in every Debian: for an image without a shell.
const PACKAGES: &str = "python3-minimal";
/// What a small image goes without.
const LEFT_OUT: [&str; 7] = [
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
];
/// Mirrors are slow now and then, and it is fetched from one.
const TRIES: usize = 3;
/// The program of images that have nothing else.
const TOOL: &str = include_str!("trees/tool.c");

/// A directory below target/, and a lock on it: others wait who want the same.
fn kept(name: &str) -> Result<(PathBuf, File), String> {
    let test = std::env::current_exe().map_err(|e| e.to_string())?;
    let dir = test.ancestors().nth(3).ok_or("a test is at target/<profile>/deps")?.join("trees");
    std::fs::create_dir_all(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).open(dir.join(format!("{name}.lock")));
    let lock = lock.map_err(|e| e.to_string())?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| format!("cannot lock {name}: {e}"))?;
    Ok((dir.join(name), lock))
}

/// Runs a tool to its end.
fn tool(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot start {name}: {e}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last: Vec<&str> = said.lines().rev().take(5).collect();
    Err(format!("{name} failed ({}): {}", output.status, last.join(" / ")))
}

/// Where this machine's own packages come from, and which Debian it is.
fn archive() -> Result<(String, String), String> {
    let release = std::fs::read_to_string("/etc/os-release").map_err(|e| format!("no Debian: {e}"))?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or_default();
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let listed =
        tool(Command::new("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let archive = listed.lines().find_map(|line| line.strip_suffix(&format!(" {name} main")));
    Ok((archive.ok_or("apt names no archive of this Debian")?.to_owned(), name.to_owned()))
}

/// A Debian, as small as debootstrap makes one, with a Python in it.
///
/// # Errors
/// If it cannot be made, why.
pub fn debian() -> Result<PathBuf, String> {
    let (archive, name) = archive()?;
    let (tree, _lock) = kept(&format!("debian-{name}"))?;
    if tree.is_dir() {
        return Ok(tree);
    }
    let part = tree.with_extension("part");
    let mut tries = 1..TRIES;
    loop {
        let _ = std::fs::remove_dir_all(&part);
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", &format!("--include={PACKAGES}"), &name]);
        // A test may run with few words in its environment.
        debootstrap.arg(&part).arg(&archive).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        match tool(&mut debootstrap) {
            Err(_) if tries.next().is_some() => {}
            made => break drop(made?),
        }
    }
    for left_out in LEFT_OUT {
        std::fs::remove_dir_all(part.join(left_out)).map_err(|e| format!("{left_out}: {e}"))?;
    }
    // Whole, or not there.
    std::fs::rename(&part, &tree).map_err(|e| format!("cannot make {}: {e}", tree.display()))?;
    Ok(tree)
}

/// Compiles the program of small images.
fn compile(dir: &Path, compiler: &str, args: &[&str]) -> Result<PathBuf, String> {
    let (source, program) = (dir.join("tool.c"), dir.join("tool"));
    std::fs::write(&source, TOOL).map_err(|e| e.to_string())?;
    tool(Command::new(compiler).args(args).arg("-o").args([&program, &source]))?;
    std::fs::remove_file(&source).map_err(|e| e.to_string())?;
    Ok(program)
}

/// One program that stands alone, as in an image `FROM scratch`. It has to be given an empty directory.
///
/// # Errors
/// If it cannot be made, why.
pub fn scratch(tree: &Path) -> Result<(), String> {
    compile(tree, "cc", &["-static"]).map(drop)
}

/// One program and the loader of musl, which is its C library too.
///
/// # Errors
/// If it cannot be made, why.
pub fn musl(tree: &Path) -> Result<(), String> {
    let program = compile(tree, "musl-gcc", &[])?;
    let loader = format!("lib/ld-musl-{}.so.1", std::env::consts::ARCH);
    let bytes = std::fs::read(program).map_err(|e| e.to_string())?;
    if !bytes.windows(loader.len()).any(|piece| piece == loader.as_bytes()) {
        return Err("musl-gcc has made a program without musl's loader".into());
    }
    std::fs::create_dir(tree.join("lib")).map_err(|e| e.to_string())?;
    std::fs::copy(Path::new("/").join(&loader), tree.join(&loader)).map_err(|e| format!("/{loader}: {e}"))?;
    Ok(())
}

/// Busybox, a shell and all it can be called.
///
/// # Errors
/// If it cannot be made, why.
pub fn busybox(tree: &Path) -> Result<(), String> {
    let bin = tree.join("bin");
    std::fs::create_dir(&bin).map_err(|e| e.to_string())?;
    std::fs::copy("/usr/bin/busybox", bin.join("busybox")).map_err(|e| format!("/usr/bin/busybox: {e}"))?;
    tool(Command::new("chroot").arg(tree).args(["/bin/busybox", "--install", "-s", "/bin"])).map(drop)
}

/// Debian's Python with the libraries that it needs, and nothing else: no shell, no `cat`, no package manager.
///
/// # Errors
/// If it cannot be made, why.
pub fn distroless(tree: &Path) -> Result<(), String> {
    let debian = debian()?;
    let list = ["/usr/bin/ldd", "/usr/bin/python3"];
    let needed = tool(Command::new("chroot").arg(&debian).args(list))?;
    let needed = String::from_utf8_lossy(&needed.stdout).into_owned();
    let library =
        |line: &str| line.split_ascii_whitespace().find(|word| word.starts_with('/')).map(str::to_owned);
    let mut files: Vec<String> = needed.lines().filter_map(library).collect();
    for link in ["lib", "lib64"] {
        symlink(format!("usr/{link}"), tree.join(link)).map_err(|e| e.to_string())?;
    }
    files.extend(["/usr/bin/python3", "/etc/passwd", "/etc/group"].map(str::to_owned));
    for file in files {
        let path = file.trim_start_matches('/');
        // In Debian all of them are in /usr, and links lead there.
        let to = if path.starts_with("lib") { tree.join("usr").join(path) } else { tree.join(path) };
        std::fs::create_dir_all(to.parent().ok_or("a file is in a directory")?).map_err(|e| e.to_string())?;
        std::fs::copy(debian.join(path), &to).map_err(|e| format!("{file}: {e}"))?;
    }
    let modules = std::fs::read_dir(debian.join("usr/lib")).map_err(|e| e.to_string())?.flatten();
    for modules in modules.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3.")) {
        tool(Command::new("cp").arg("-a").arg(modules.path()).arg(tree.join("usr/lib")))?;
    }
    let open = std::fs::Permissions::from_mode(0o1777);
    std::fs::create_dir(tree.join("tmp")).map_err(|e| e.to_string())?;
    std::fs::set_permissions(tree.join("tmp"), open).map_err(|e| e.to_string())
}
