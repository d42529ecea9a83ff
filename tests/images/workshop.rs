//! Images made by umoci and skopeo from trees: Debian's own programs with a shell, and one without any.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glasshouse_tests::{House, is_root};

/// Programs of the Debian image, taken from this machine with all that they need.
const PROGRAMS: [&str; 8] = ["dash", "cat", "id", "env", "ls", "pwd", "touch", "stat"];

/// Runs a tool to its end.
pub(crate) fn tool(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("the tool can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program} {args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A place where images are made: a directory of the OCI's layout.
pub(crate) struct Workshop {
    dir: PathBuf,
}

impl Workshop {
    pub(crate) fn new(house: &House) -> Workshop {
        let dir = house.path().join("workshop");
        std::fs::create_dir(&dir).expect("the house is ours");
        tool("umoci", &["init", "--layout", &path(&dir.join("layout"))]);
        Workshop { dir }
    }

    pub(crate) fn layout(&self) -> PathBuf {
        self.dir.join("layout")
    }

    pub(crate) fn image(&self, tag: &str) -> String {
        format!("{}:{tag}", self.layout().display())
    }

    /// A new image without layers.
    pub(crate) fn new_image(&self, tag: &str) {
        tool("umoci", &["new", "--image", &self.image(tag)]);
    }

    /// Adds a layer that holds a tree.
    pub(crate) fn add(&self, tag: &str, tree: &Path, at: &str) {
        let mut args = vec!["insert", "--image"];
        let (image, tree) = (self.image(tag), path(tree));
        args.push(&image);
        if !is_root() {
            args.push("--rootless");
        }
        args.extend([&*tree, at]);
        tool("umoci", &args);
    }

    /// Adds a layer that deletes something.
    pub(crate) fn delete(&self, tag: &str, what: &str) {
        tool("umoci", &["insert", "--image", &self.image(tag), "--whiteout", what]);
    }

    pub(crate) fn configure(&self, tag: &str, args: &[&str]) {
        tool("umoci", &[&["config", "--image", &self.image(tag)], args].concat());
    }

    /// A scratch directory for a tree.
    pub(crate) fn tree(&self, name: &str) -> PathBuf {
        let tree = self.dir.join(name);
        std::fs::create_dir_all(&tree).expect("the workshop is ours");
        tree
    }

    /// Debian, small: its shell and some programs, users, two layers more, one deletion.
    pub(crate) fn debian(&self, tag: &str) {
        self.new_image(tag);
        self.add(tag, debian_tree(), "/");
        let more = self.tree("more");
        std::fs::write(more.join("second"), "of the second layer\n").expect("it is ours");
        self.add(tag, &more, "/srv/data");
        self.delete(tag, "/etc/deleted");
        self.configure(tag, &["--config.env", "GREETING=good day", "--config.workingdir", "/srv/app"]);
        self.configure(
            tag,
            &["--config.user", "app", "--config.entrypoint", "/bin/cat", "--config.cmd", "/etc/os-release"],
        );
        self.configure(tag, &["--config.label", "maker=workshop"]);
    }

    /// One static program, and nothing else.
    pub(crate) fn distroless(&self, tag: &str) {
        self.new_image(tag);
        let tree = self.tree("distroless");
        std::fs::copy(static_program(), tree.join("hello")).expect("it is ours");
        self.add(tag, &tree, "/");
        self.configure(tag, &["--config.entrypoint", "/hello", "--config.user", "65532:65532"]);
    }
}

pub(crate) fn path(path: &Path) -> String {
    path.to_str().expect("our paths are UTF-8").to_owned()
}

/// A root of this machine's Debian: merged /usr, a shell, some programs and what they need.
fn debian_tree() -> &'static Path {
    static TREE: OnceLock<PathBuf> = OnceLock::new();
    TREE.get_or_init(|| {
        let dir = place("debian");
        let root = dir.as_path();
        for part in ["usr/bin", "usr/lib", "usr/lib64", "etc", "home/app", "tmp", "root"] {
            std::fs::create_dir_all(root.join(part)).expect("it is ours");
        }
        for part in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{part}"), root.join(part)).expect("it is ours");
        }
        for program in PROGRAMS {
            let from = ["/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
            let from = from.iter().find(|path| path.exists()).expect("Debian has it");
            take(root, from);
            for word in tool("ldd", &[&path(from)]).split_whitespace().filter(|word| word.starts_with('/')) {
                take(root, Path::new(word));
            }
        }
        symlink("dash", root.join("usr/bin/sh")).expect("it is ours");
        std::fs::copy("/etc/os-release", root.join("etc/os-release")).expect("every system has one");
        std::fs::write(root.join("etc/deleted"), "").expect("it is ours");
        let users = "root:x:0:0:root:/root:/bin/sh\napp:x:1234:1234:app:/home/app:/bin/sh\n";
        std::fs::write(root.join("etc/passwd"), users).expect("it is ours");
        std::fs::write(root.join("etc/group"), "root:x:0:\napp:x:1234:\n").expect("it is ours");
        if is_root() {
            std::os::unix::fs::chown(root.join("home/app"), Some(1234), Some(1234)).expect("we are root");
        }
        dir
    })
}

/// A directory for what is made once and used by all tests of a run. The next run makes it anew.
fn place(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("the build directory is ours");
    dir
}

/// Copies a file of the host to the same place below the root.
fn take(root: &Path, from: &Path) {
    let to = root.join(from.strip_prefix("/").expect("it is absolute"));
    std::fs::create_dir_all(to.parent().expect("it is below the root")).expect("it is ours");
    if !to.exists() {
        std::fs::copy(from, to).expect("everybody may read programs");
    }
}

/// A program that needs nothing, and says who and where it is.
pub(crate) fn static_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let dir = place("hello");
        let source = dir.join("hello.c");
        let text = "#include <stdio.h>\n#include <unistd.h>\nint main(void) {\n  char at[4096];\n  \
                    printf(\"hello from %u:%u at %s\\n\", geteuid(), getegid(), getcwd(at, sizeof at));\n  return 0;\n}\n";
        std::fs::write(&source, text).expect("it is ours");
        let program = dir.join("hello");
        tool("cc", &["-static", "-Os", "-o", &path(&program), &path(&source)]);
        program
    })
}
