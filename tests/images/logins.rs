//! Registries that want to know who asks: by name and password, and by tokens from a server of their own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use glasshouse_tests::{House, copy_program};
use serde_json::json;

use crate::registry::Registry;
use crate::workshop::{Workshop, path, tool};
use crate::{each_mode, readable};

/// `me` and `secret`, as base64 and as bcrypt.
const AUTH: &str = "bWU6c2VjcmV0";
const HTPASSWD: &str = "me:$2b$05$0Ro6TppM3.1jf9GMHY8s8.aw2N.qKglwBHvuxvdcZStcRzym5nco6\n";

/// Writes Docker's config file, and pulls with it: exit code and stderr.
fn pull(house: &House, name: &str, config: &serde_json::Value) -> (i32, String) {
    let dir = house.path().join("docker");
    std::fs::create_dir_all(&dir).expect("the house is ours");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("it is ours");
    readable(house, &dir);
    let search = format!("{}:/usr/bin:/bin", dir.display());
    let output =
        house.glass(&["image", "pull", name]).env("DOCKER_CONFIG", &dir).env("PATH", search).output();
    let output = output.expect("the program can be started");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A helper that knows one login, in the directory that is searched.
fn helper(house: &House, name: &str) {
    let dir = house.path().join("docker");
    std::fs::create_dir_all(&dir).expect("the house is ours");
    let program = dir.join(format!("docker-credential-{name}"));
    let text = "#!/bin/sh\n[ \"$1\" = get ] || exit 2\nread -r server\n\
                echo '{\"ServerURL\":\"x\",\"Username\":\"me\",\"Secret\":\"secret\"}'\n";
    std::fs::write(dir.join("text"), text).expect("it is ours");
    copy_program(&dir.join("text"), &program);
}

fn check(house: &House, registry: &Registry) {
    let workshop = Workshop::new(house);
    workshop.distroless("one");
    registry.push(&workshop, "one", "private", &["--dest-creds", "me:secret"]);
    let name = registry.name("private");
    let (code, said) = pull(house, &name, &json!({}));
    assert!(code == 1 && said.contains("wants a login"), "{code} {said}");
    let wrong = json!({"auths": {&registry.address: {"username": "me", "password": "wrong"}}});
    let (code, said) = pull(house, &name, &wrong);
    assert!(code == 1 && said.contains("does not accept our login"), "{code} {said}");
    assert!(!said.contains("wrong\""), "a password is not said: {said}");
    let (code, said) = pull(house, &name, &json!({"auths": {&registry.address: {"auth": AUTH}}}));
    assert_eq!(code, 0, "{said}");
    crate::ok(house, &["image", "remove", &name]);
    helper(house, "known");
    for config in [json!({"credHelpers": {&registry.address: "known"}}), json!({"credsStore": "known"})] {
        let (code, said) = pull(house, &name, &config);
        assert_eq!(code, 0, "{config}: {said}");
        crate::ok(house, &["image", "remove", &name]);
    }
}

#[test]
fn a_name_and_a_password_are_taken_from_dockers_file() {
    each_mode(|house| {
        let file = house.path().join("htpasswd");
        std::fs::write(&file, HTPASSWD).expect("the house is ours");
        let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", file.display());
        check(house, &Registry::with("", &auth));
    });
}

#[test]
fn a_token_is_fetched_from_where_the_registry_says() {
    each_mode(|house| {
        let tokens = Tokens::new(house.path());
        let auth = format!(
            "auth: {{token: {{realm: \"http://{}/token\", service: glass, issuer: test, rootcertbundle: {}}}}}\n",
            tokens.address,
            house.path().join("cert.pem").display()
        );
        check(house, &Registry::with("", &auth));
        let asked = tokens.asked.lock().expect("nobody panics with it").clone();
        assert!(asked.iter().any(|line| line.contains("scope=repository%3Aprivate%3Apull")), "{asked:?}");
    });
}

/// A server of tokens, which signs what it gives as the registry wants it.
struct Tokens {
    address: String,
    /// First lines of requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Tokens {
    fn new(dir: &Path) -> Tokens {
        let (key, cert) = (path(&dir.join("key.pem")), path(&dir.join("cert.pem")));
        let args = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"];
        tool("openssl", &[&args[..], &["-keyout", &key, "-out", &cert]].concat());
        let pem = std::fs::read_to_string(&cert).expect("it was made");
        let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it listens").to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&asked);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let _ = answer(client, &key, &der, &lines);
            }
        });
        Tokens { address, asked }
    }
}

fn answer(
    client: std::net::TcpStream,
    key: &str,
    der: &str,
    lines: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut login = None;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("authorization")
        {
            login = Some(value.trim().to_owned());
        }
    }
    lines.lock().expect("nobody panics with it").push(request.clone());
    let scope =
        request.split(['?', '&', ' ']).find_map(|word| word.strip_prefix("scope=")).unwrap_or_default();
    let scope = scope.replace("%3A", ":").replace("%2C", ",").replace("%2F", "/");
    let body = match login {
        // Whoever is nobody gets a token for nothing.
        None => json!({"token": token(key, der, "", "")}),
        Some(login) if login == format!("Basic {AUTH}") => json!({"token": token(key, der, "me", &scope)}),
        Some(_) => {
            let mut client = reader.into_inner();
            return client.write_all(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    };
    let body = body.to_string();
    let mut client = reader.into_inner();
    write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

/// A token that says what its holder may do, signed.
fn token(key: &str, der: &str, who: &str, scope: &str) -> String {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let access = match scope.split(':').collect::<Vec<_>>()[..] {
        [kind, name, actions] => {
            json!([{"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}])
        }
        _ => json!([]),
    };
    let head = json!({"typ": "JWT", "alg": "RS256", "x5c": [der]});
    let claims = json!({
        "iss": "test", "sub": who, "aud": "glass", "exp": now + 300, "nbf": now - 10, "iat": now, "jti": "1",
        "access": access,
    });
    let signed =
        format!("{}.{}", base64url(head.to_string().as_bytes()), base64url(claims.to_string().as_bytes()));
    let mut sign = Command::new("openssl")
        .args(["dgst", "-sha256", "-sign", key])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("openssl is there");
    sign.stdin.take().expect("it was asked for").write_all(signed.as_bytes()).expect("it reads");
    let mut signature = Vec::new();
    sign.stdout.take().expect("it was asked for").read_to_end(&mut signature).expect("it writes");
    sign.wait().expect("it ends");
    format!("{signed}.{}", base64url(&signature))
}

fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
