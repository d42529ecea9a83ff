//! Repositories that the server fetches for its callers, by MCP.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::process::Stdio;

use base64::Engine as _;
use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

use crate::forge::{Forge, Kind, Repo, has_git};
use crate::stage::Server;

/// The login of whoever runs the server, and where git finds it.
const LOGIN: &str = "operator:pass-w0rd-x";

/// A repository that only that login opens, and a server whose user has it.
struct Scene {
    server: Server,
    repo: Repo,
    forge: Forge,
    operator: String,
    red: String,
    blue: String,
}

impl Scene {
    /// `None` without git.
    fn new(settings: &str) -> Option<Scene> {
        if !has_git() {
            return None;
        }
        let house = House::new(Mode::all()[0]);
        let [operator, red, blue] = [
            ["operator", "--operator"].as_slice(),
            &["red", "--tenant", "red"],
            &["blue", "--tenant", "blue"],
        ]
        .map(|args| {
            let (code, key, stderr) = house.run(&[&["key", "add"], args].concat());
            assert_eq!(code, 0, "{stderr}");
            key.trim().to_owned()
        });
        let repo = Repo::new(&house.path().join("it"));
        let forge = Forge::new(&repo, Kind::Smart, Some(LOGIN));
        let user = house.path().join("user");
        std::fs::create_dir(&user).unwrap();
        let (name, password) = LOGIN.split_once(':').unwrap();
        let netrc = format!("machine 127.0.0.1 login {name} password {password}\n");
        std::fs::write(user.join(".netrc"), netrc).unwrap();
        let file = house.path().join("serve.toml");
        std::fs::write(&file, format!("listen = \"127.0.0.1:0\"\n{settings}")).unwrap();
        let mut command = house.glass(&["serve", "--config", file.to_str().unwrap()]);
        let mut child = command.env("HOME", &user).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let server = Server::at(child, url.trim(), house);
        Some(Scene { server, repo, forge, operator, red, blue })
    }

    fn call(&self, key: &str, name: &str, arguments: &Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let accepts = ("accept", "application/json, text/event-stream");
        let headers = [("content-type", "application/json"), accepts, ("open-sandbox-api-key", key)];
        self.server.request("POST", "/mcp", &headers, body.as_bytes()).json()["result"].clone()
    }

    /// Asks for a box with a commit of a repository. Its id, or why not.
    fn create(&self, key: &str, repo: &str, commit: &str) -> Result<String, String> {
        let result = self.call(key, "create_sandbox", &json!({ "repo_url": repo, "base_commit": commit }));
        match result["structuredContent"]["sandbox_id"].as_str() {
            Some(id) => Ok(id.to_owned()),
            None => {
                Err(result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned())
            }
        }
    }

    /// Without any login, and with the one that opens it.
    fn urls(&self) -> (String, String) {
        let bare = self.forge.url("it");
        let open = bare.replace("://", &format!("://{LOGIN}@"));
        (bare, open)
    }
}

#[test]
fn a_tenant_has_no_login_of_whoever_runs_the_server() {
    let Some(scene) = Scene::new("") else { return };
    let (bare, open) = scene.urls();
    let why = scene.create(&scene.red, &bare, "main").unwrap_err();
    assert!(why.contains("it wants a login; write one into the URL"), "{why}");
    // Whoever runs it has his own, and a tenant the one that he brings.
    scene.create(&scene.operator, &bare, "main").unwrap();
    let id = scene.create(&scene.red, &open, "main").unwrap();
    let read =
        scene.call(&scene.red, "shell", &json!({ "sandbox_id": id, "command": "cat file; git config -l" }));
    let output = read["structuredContent"]["output"].as_str().unwrap();
    assert!(output.starts_with("two\n") && !output.contains("pass-w0rd-x"), "{output}");
}

#[test]
fn a_tenant_names_no_path_of_the_server_and_no_ssh() {
    let Some(scene) = Scene::new("") else { return };
    let path = scene.repo.path.clone();
    for repo in [path.as_str(), &format!("file://{path}"), "ssh://git@127.0.0.1/it", "git@127.0.0.1:it"] {
        let why = scene.create(&scene.red, repo, "main").unwrap_err();
        assert!(why.contains("has to be a URL (https, http, git)"), "{repo}: {why}");
    }
    // Nor does a repository of his.
    let commit = scene.repo.add_submodule("sub", "ssh://git@127.0.0.1/sub");
    let why = scene.create(&scene.red, &scene.urls().1, &commit).unwrap_err();
    assert!(why.contains("'ssh' not allowed"), "{why}");
}

#[test]
fn repositories_can_be_switched_off_for_tenants() {
    let settings = "[allowance]\nrepositories = false\n[tenants.blue]\nrepositories = true";
    let Some(scene) = Scene::new(settings) else { return };
    let (bare, open) = scene.urls();
    let why = scene.create(&scene.red, &open, "main").unwrap_err();
    assert!(why.contains("fetches no repositories for its tenants"), "{why}");
    scene.create(&scene.blue, &open, "main").unwrap();
    scene.create(&scene.operator, &bare, "main").unwrap();
}

#[test]
fn an_image_is_pulled_for_a_tenant_without_the_logins_of_whoever_runs_the_server() {
    let Some(scene) = Scene::new("") else { return };
    let registry = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = registry.local_addr().unwrap();
    let docker = scene.server.house.path().join("user/.docker");
    std::fs::create_dir(&docker).unwrap();
    let auth = base64::engine::general_purpose::STANDARD.encode(LOGIN);
    let logins = json!({ "auths": { address.to_string(): { "auth": auth } } });
    std::fs::write(docker.join("config.json"), logins.to_string()).unwrap();
    // It wants a login of everybody, and notes what they say.
    let (hears, heard) = std::sync::mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for stream in registry.incoming().flatten() {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            if hears.try_send(head.join("\n").to_ascii_lowercase()).is_err() {
                return;
            }
            let refusal = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"it\"\r\n\
                           Content-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = (&stream).write_all(refusal.as_bytes());
        }
    });
    let wanted = json!({ "image": { "uri": format!("{address}/private") } }).to_string();
    let headers = [("content-type", "application/json"), ("open-sandbox-api-key", scene.red.as_str())];
    let answer = scene.server.request("POST", "/v1/sandboxes", &headers, wanted.as_bytes());
    answer.assert_error(500, "DOCKER::SANDBOX_IMAGE_PULL_FAILED");
    let heads: Vec<String> = heard.try_iter().collect();
    assert!(!heads.is_empty() && heads.iter().all(|head| !head.contains("authorization")), "{heads:?}");
}

#[test]
fn what_was_set_up_for_one_tenant_is_found_for_him_alone() {
    let Some(scene) = Scene::new("") else { return };
    let ((bare, open), commit) = (scene.urls(), scene.repo.second.clone());
    scene.create(&scene.red, &open, &commit).unwrap();
    // Whoever knows the address and the whole id knows no more than that.
    let why = scene.create(&scene.blue, &bare, &commit).unwrap_err();
    assert!(why.contains("it wants a login"), "{why}");
    // He whom it was set up for needs the repository no more.
    let again = scene.create(&scene.red, &bare, &commit).unwrap();
    let read = scene.call(&scene.red, "shell", &json!({ "sandbox_id": again, "command": "cat file" }));
    assert_eq!(read["structuredContent"]["output"], "two\n");
    // Nor is it found for whoever runs the server, who makes his own.
    scene.create(&scene.operator, &bare, &commit).unwrap();
    let snapshots = |key: &str| {
        let listed =
            scene.server.request("GET", "/v1/snapshots", &[("open-sandbox-api-key", key)], b"").json();
        let ids =
            listed["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let own = snapshots(&scene.red);
    assert_eq!((own.len(), snapshots(&scene.blue).len(), snapshots(&scene.operator).len()), (1, 0, 2));
    let path = format!("/v1/snapshots/{}", own[0]);
    let asked = |method: &str, key: &str| {
        scene.server.request(method, &path, &[("open-sandbox-api-key", key)], b"").status
    };
    assert_eq!((asked("GET", &scene.blue), asked("DELETE", &scene.blue)), (404, 404));
    assert_eq!((asked("GET", &scene.red), asked("DELETE", &scene.red)), (200, 204));
    let why = scene.create(&scene.red, &bare, &commit).unwrap_err();
    assert!(why.contains("it wants a login"), "what was removed is asked for again: {why}");
}

#[test]
fn what_is_set_up_for_a_tenant_is_held_to_his_disk() {
    let Some(scene) = Scene::new("[allowance]\ndisk_bytes = 2000000") else { return };
    let open = scene.urls().1;
    scene.repo.sh("head -c 3000000 /dev/urandom > big");
    let large = scene.repo.commit("large");
    let why = scene.create(&scene.red, &open, &large).unwrap_err();
    assert!(why.contains("cannot put the repository into"), "{why}");
    let kept: Value = serde_json::from_str(&scene.server.house.run(&["snapshots", "--json"]).1).unwrap();
    assert_eq!(kept, json!([]));
    scene.create(&scene.red, &open, &scene.repo.first).unwrap();
}
