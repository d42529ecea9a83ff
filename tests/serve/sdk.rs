//! The real clients of OpenSandbox, as they are on PyPI and npm, against a real server. What it does is in `tests/serve/sdk/`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use glasshouse_tests::{House, Mode, glass, skip, trees};
use serde_json::json;

use crate::stage::Server;

/// The release whose protocol we speak, the official client of MCP, and all that they need.
const PACKAGES: &str = include_str!("sdk/requirements.txt");

/// Runs a script with the SDK at hand. It says itself what it expects.
fn check(script: &str, server: &Server, more: &[(&str, &str)]) {
    run(
        script,
        &[&[("OPEN_SANDBOX_DOMAIN", server.address.as_str()), ("NO_PROXY", "127.0.0.1")], more].concat(),
    );
}

fn run(script: &str, vars: &[(&str, &str)]) {
    let Some(python) = python() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/sdk").join(script);
    let output = Command::new(python).arg(&script).envs(vars.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{}\n{}{}",
        script.display(),
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// A Python that has the SDK, below the target directory. Made once; it takes a while.
fn python() -> Option<&'static PathBuf> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PYTHON.get_or_init(install) {
        Ok(python) => Some(python),
        Err(why) => {
            skip("serve", why);
            None
        }
    }
}

/// Something below the target directory.
fn below_target(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    test.ancestors().nth(3).expect("target/<profile>/deps").join(name)
}

/// Runs a program that has to succeed. What it says if it does not.
fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {said}")) }
}

/// The SDK for JavaScript, below the target directory. Made once.
fn node_clients() -> Option<&'static PathBuf> {
    static CLIENTS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match CLIENTS.get_or_init(install_node) {
        Ok(clients) => Some(clients),
        Err(why) => {
            skip("serve", why);
            None
        }
    }
}

fn install_node() -> Result<PathBuf, String> {
    let (dir, lock) = (below_target("node-clients"), include_str!("sdk/package-lock.json"));
    let complete = dir.join("complete");
    if std::fs::read_to_string(&complete).is_ok_and(|there| there == lock) {
        return Ok(dir);
    }
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    for (name, text) in [("package.json", include_str!("sdk/package.json")), ("package-lock.json", lock)] {
        std::fs::write(dir.join(name), text).map_err(|e| e.to_string())?;
    }
    let quiet = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
    succeed(Command::new("npm").args(quiet).current_dir(&dir))?;
    std::fs::write(&complete, lock).map_err(|e| e.to_string())?;
    Ok(dir)
}

fn install() -> Result<PathBuf, String> {
    let dir = below_target("python-clients");
    let (python, complete) = (dir.join("bin/python"), dir.join("complete"));
    // The mark is written last, and names what is there.
    if std::fs::read_to_string(&complete).is_ok_and(|there| there == PACKAGES) {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(&dir);
    let run = |program: &Path, args: &[&str]| succeed(Command::new(program).args(args));
    let path = dir.to_str().ok_or("the target directory has no name that is UTF-8")?;
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/sdk/requirements.txt");
    let packages = packages.to_str().ok_or("the tests have no name that is UTF-8")?;
    // The system's Python: test.sh has installed what this needs for that one.
    run(Path::new("/usr/bin/python3"), &["-m", "venv", path])?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"];
    run(&python, &[pip.as_slice(), &["--only-binary", ":all:", "-r", packages]].concat())?;
    std::fs::write(&complete, PACKAGES).map_err(|e| e.to_string())?;
    Ok(python)
}

#[test]
fn the_example_of_the_readme_runs() {
    let server = Server::new();
    check("readme.py", &server, &[]);
    // What upstream's own tests name.
    check("readme.py", &server, &[("ENTRYPOINT", "/opt/code-interpreter/code-interpreter.sh")]);
}

#[test]
fn the_sdk_does_all_that_it_can() {
    check("tour.py", &Server::new(), &[]);
}

/// Has an image of busybox, and nothing but two accounts beside it.
fn import_bare(house: &House) -> Result<(), String> {
    let dir = glasshouse_tests::scratch();
    let (dir, tree) = (dir.path(), dir.path().join("tree"));
    let failed = |e: std::io::Error| e.to_string();
    for made in ["tree", "tree/etc", "tree/tmp"] {
        std::fs::create_dir(dir.join(made)).map_err(failed)?;
    }
    trees::busybox(&tree)?;
    let accounts = [
        ("passwd", "root:x:0:0::/root:/bin/sh\nworker:x:1000:1000::/tmp:/bin/sh\n"),
        ("group", "root:x:0:\nworkers:x:1000:\n"),
    ];
    for (name, text) in accounts {
        std::fs::write(tree.join("etc").join(name), text).map_err(failed)?;
    }
    let run = |args: &[&str]| succeed(Command::new("tar").current_dir(dir).args(args));
    succeed(Command::new("chmod").args(["1777", "tree/tmp"]).current_dir(dir))?;
    run(&["-C", "tree", "--owner=0", "--group=0", "-cf", "layer.tar", "."])?;
    let sum = Command::new("sha256sum").arg(dir.join("layer.tar")).output().map_err(failed)?.stdout;
    let sum = String::from_utf8_lossy(&sum[..64]).into_owned();
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({ "architecture": arch, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] } });
    let manifest = json!([{ "Config": "config.json", "RepoTags": ["bare:latest"], "Layers": ["layer.tar"] }]);
    for (name, value) in [("config.json", config), ("manifest.json", manifest)] {
        std::fs::write(dir.join(name), value.to_string()).map_err(failed)?;
    }
    run(&["-cf", "image.tar", "manifest.json", "config.json", "layer.tar"])?;
    succeed(Command::new("chmod").args(["-R", "a+rX"]).arg(dir))?;
    let archive = dir.join("image.tar");
    let archive = archive.to_str().ok_or("a scratch directory has a plain name")?;
    let (code, _, stderr) = house.run(&["image", "import", archive, "--name", "bare"]);
    if code == 0 { Ok(()) } else { Err(stderr) }
}

#[test]
fn the_sdk_works_on_a_small_image_without_bash() {
    let server = Server::new();
    if let Err(why) = import_bare(&server.house) {
        return skip("serve", &why);
    }
    for proxy in ["", "1"] {
        check("bare.py", &server, &[("IMAGE", "bare"), ("THROUGH_PROXY", proxy)]);
    }
}

#[test]
fn the_sdk_does_the_same_through_the_servers_proxy() {
    check("tour.py", &Server::new(), &[("THROUGH_PROXY", "1")]);
}

#[test]
fn the_code_interpreter_of_the_sdk_does_all_that_it_can() {
    let server = Server::new();
    for proxy in ["", "1"] {
        check("code.py", &server, &[("THROUGH_PROXY", proxy)]);
    }
}

#[test]
fn the_sdk_shows_its_key() {
    let key = "a-key-that-nobody-guesses";
    let server = Server::with_key(key);
    for proxy in ["", "1"] {
        check("readme.py", &server, &[("OPEN_SANDBOX_API_KEY", key), ("THROUGH_PROXY", proxy)]);
    }
}

#[test]
fn the_sdk_for_javascript_does_all_that_it_can() {
    let Some(clients) = node_clients() else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("serve/sdk/tour.mjs");
    let key = "a-key-that-nobody-guesses";
    let (open, closed) = (Server::new(), Server::with_key(key));
    for (server, key, proxy) in [(&open, "", ""), (&closed, key, "1")] {
        let mut command = Command::new("node");
        command.arg(&script).env("NODE_CLIENTS", clients).env("OPEN_SANDBOX_DOMAIN", &server.address);
        command.env("OPEN_SANDBOX_API_KEY", key).env("THROUGH_PROXY", proxy).env("NO_PROXY", "127.0.0.1");
        succeed(&mut command).unwrap();
    }
}

#[test]
fn the_command_line_of_opensandbox_works() {
    check("osb.py", &Server::new(), &[]);
}

#[test]
fn the_command_line_of_opensandbox_works_with_a_key_through_the_servers_proxy() {
    let key = "a-key-that-nobody-guesses";
    check("osb.py", &Server::with_key(key), &[("OPEN_SANDBOX_API_KEY", key), ("THROUGH_PROXY", "1")]);
}

#[test]
fn the_mcp_server_of_opensandbox_works() {
    let server = Server::new();
    for proxy in ["", "1"] {
        check("bridge.py", &server, &[("THROUGH_PROXY", proxy)]);
    }
}

#[test]
fn the_official_client_of_mcp_uses_the_tools() {
    let house = House::new(Mode::all()[0]);
    let (home, glass) = (house.home(), glass());
    run("tools.py", &[("GLASSHOUSE_HOME", home.to_str().unwrap()), ("GLASS", glass.to_str().unwrap())]);
    let (_, listed, _) = house.run(&["list", "--json"]);
    assert_eq!(listed.trim(), "[]", "boxes end with the session");
}

#[test]
fn the_official_client_of_mcp_uses_them_over_http() {
    let server = Server::new();
    let url = format!("http://{}/mcp", server.address);
    run("tools.py", &[("MCP_URL", url.as_str()), ("NO_PROXY", "127.0.0.1")]);
}
