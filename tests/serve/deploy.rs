//! The service in a container, as `deploy/` has it: beside a Docker engine, on which it makes boxes.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use glasshouse_tests::engine::{TestEngine, engine};
use glasshouse_tests::{House, Mode, glass, skip};
use serde_json::json;

use crate::stage::{Server, texts};

/// The image of the service, made by the script that users have.
const SERVICE: &str = "glass-test/serve:1";
/// What boxes are made of.
const BOXES: &str = "glass-test/serve-boxes:1";

fn build(engine: &TestEngine) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/image.sh");
    let mut command = Command::new(script);
    command.arg(glass()).arg(SERVICE).env("DOCKER_HOST", &engine.host).env("PATH", "/usr/bin:/bin");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// An image with a shell.
fn boxes(engine: &TestEngine, dir: &Path) {
    let tree = dir.join("tree");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    std::fs::copy("/usr/bin/busybox", tree.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "echo"] {
        symlink("busybox", tree.join("bin").join(name)).unwrap();
    }
    engine.import(&tree, BOXES);
}

/// What deploy/compose.yaml says, in words of `docker run`; but for the network, which the tests' engine has none of. Whoever
/// adds something to the file is told to add it here, too.
fn composed() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/compose.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut words = Vec::new();
    for line in lines.skip_while(|line| *line != "glasshouse:").skip(1) {
        let (flag, value) = match line.split_once(": ").unwrap_or((line, "")) {
            ("image", "glasshouse") | ("restart", _) | ("ports", r#"["127.0.0.1:8080:8080"]"#) => continue,
            ("volumes:", "") => continue,
            (
                "- /var/run/docker.sock:/var/run/docker.sock" | "- /var/lib/glasshouse:/var/lib/glasshouse",
                "",
            ) => continue,
            ("pid", value) => ("--pid", value),
            ("cgroup", value) => ("--cgroupns", value),
            ("read_only", "true") => {
                words.push("--read-only".to_owned());
                continue;
            }
            ("tmpfs", value) => ("--tmpfs", value),
            ("security_opt", value) => ("--security-opt", value),
            other => panic!("{other:?} is new in the compose file"),
        };
        words.extend([flag.to_owned(), value.trim_matches(&['[', ']', '"'][..]).to_owned()]);
    }
    assert_eq!(words.len(), 9, "{words:?}");
    words
}

/// The service's container. It goes with the test.
struct Container<'a> {
    engine: &'a TestEngine,
    id: String,
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        self.engine.docker(&["rm", "-f", &self.id]);
    }
}

#[test]
fn the_service_in_a_container_makes_boxes_beside_itself() {
    let engine = match engine() {
        Ok(engine) => engine,
        Err(why) => return skip("docker", why),
    };
    let house = House::new(Mode::Root);
    build(engine);
    boxes(engine, house.path());
    let (home, socket) = (house.home().display().to_string(), engine.host.strip_prefix("unix://").unwrap());
    std::fs::create_dir_all(&home).unwrap();
    // Where the compose file has the machine's engine and the usual directory, it is given those of the test.
    let socket = format!("{socket}:/var/run/docker.sock");
    let volume = format!("{home}:{home}");
    let place = format!("GLASSHOUSE_HOME={home}");
    let own = ["--network", "host", "-v", &socket, "-v", &volume, "-e", &place, SERVICE];
    let command = ["serve", "--config", "/etc/glasshouse/serve.toml", "--listen", "127.0.0.1:0"];
    let words = composed();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let made = engine.docker(&[&["run", "-d"][..], &words, &own, &command].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let container = Container { engine, id: String::from_utf8(made.stdout).unwrap().trim().to_owned() };
    let mut logs = Command::new("/usr/bin/docker")
        .args(["logs", "-f", &container.id])
        .env("DOCKER_HOST", &engine.host)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(logs.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let server = Server::at(logs, line.trim(), house);

    let id = server.create(json!({ "image": { "uri": BOXES }, "timeout": 3600 }));
    let events = server.run(&id, json!({ "command": "echo in a container > /f; cat /f; exit 3" }));
    assert_eq!(texts(&events, "stdout"), ["in a container"], "{events:?}");
    assert_eq!(events.last().unwrap()["error"]["evalue"], "3");
    let answer = server.send("POST", &format!("/v1/sandboxes/{id}/fork"), &json!({}));
    let fork = answer.json()["items"][0]["id"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned();
    assert_eq!(server.lines(&fork, "cat /f"), ["in a container"]);
    for id in [&id, &fork] {
        assert_eq!(server.request("DELETE", &format!("/v1/sandboxes/{id}"), &[], b"").status, 204);
    }
    assert_eq!(server.get("/v1/sandboxes").json()["pagination"]["totalItems"], 0);
    drop(container);
}
