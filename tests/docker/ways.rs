//! The ways to an engine: by TCP, by TLS, and to one that does not see our files.

use std::path::Path;
use std::process::Command;

use glasshouse_sandbox::{
    EngineSettings, EngineTls, ErrorKind, Image, SandboxSpec, Sandboxes, Settings, SnapshotOptions,
};
use glasshouse_tests::engine::{Manner, PrivateEngine};
use glasshouse_tests::{House, Mode};

use crate::far::small;
use crate::stage::{open, perform, spec, stdout_of};

/// Makes a box there, has it do something, and goes back to a snapshot.
pub(crate) async fn works(house: &Sandboxes) {
    works_with(house, &spec()).await;
}

async fn works_with(house: &Sandboxes, spec: &SandboxSpec) {
    let sandbox = house.create(spec.clone()).await.unwrap();
    stdout_of(&sandbox, "echo one > a").await;
    let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
    stdout_of(&sandbox, "rm a").await;
    sandbox.restore(&snapshot.id).await.unwrap();
    assert_eq!(stdout_of(&sandbox, "cat a").await, "one\n");
    sandbox.destroy().await.unwrap();
}

#[test]
fn an_engine_of_this_machine_by_tcp_is_as_good_as_by_its_socket() {
    perform(async |stage| {
        let dir = stage.place();
        let manner = Manner { tcp: true, args: vec!["--tls=false".into()], ..Manner::default() };
        let engine = PrivateEngine::start_as(&dir, &manner).unwrap();
        works(&open(&stage.dir.path().join("other"), &engine.tcp())).await;
        engine.end();
    });
}

fn openssl(dir: &Path, args: &str) {
    let done = Command::new("openssl").args(args.split(' ')).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "{args}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A signer, and what it has signed: `NAME-cert.pem` and `NAME-key.pem` of the engine and of us.
fn certificates(dir: &Path) {
    openssl(dir, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=signer -keyout ca-key.pem -out ca.pem");
    for (name, extension) in
        [("engine", "subjectAltName=IP:127.0.0.1"), ("our", "extendedKeyUsage=clientAuth")]
    {
        std::fs::write(dir.join("extension"), extension).unwrap();
        openssl(
            dir,
            &format!("req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}-key.pem -out request"),
        );
        let sign =
            "x509 -req -in request -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile extension";
        openssl(dir, &format!("{sign} -out {name}-cert.pem"));
    }
}

#[test]
fn an_engine_by_tls_has_to_show_who_it_is_and_so_have_we() {
    perform(async |stage| {
        let dir = stage.place();
        let (ours, strangers) = (stage.dir.path().join("tls"), stage.dir.path().join("strangers"));
        for dir in [&ours, &strangers] {
            std::fs::create_dir(dir).unwrap();
            certificates(dir);
        }
        let file = |name: &str| ours.join(name).display().to_string();
        let args = vec![
            "--tlsverify".to_owned(),
            format!("--tlscacert={}", file("ca.pem")),
            format!("--tlscert={}", file("engine-cert.pem")),
            format!("--tlskey={}", file("engine-key.pem")),
        ];
        // One of the homes it does not see.
        let hidden = stage.dir.path().join("hidden");
        std::fs::create_dir(&hidden).unwrap();
        let mounts = Some(format!("mount -t tmpfs none {}", hidden.display()));
        let engine = PrivateEngine::start_as(&dir, &Manner { tcp: true, args, mounts }).unwrap();
        let house = |name: &str, signer: &Path, us: &Path| {
            let tls = EngineTls {
                ca: signer.join("ca.pem"),
                cert: us.join("our-cert.pem"),
                key: us.join("our-key.pem"),
            };
            let settings =
                EngineSettings { host: Some(engine.tcp()), tls: Some(tls), ..EngineSettings::default() };
            Sandboxes::open_with(Settings { home: stage.dir.path().join(name) }, settings).unwrap()
        };
        works(&house("good", &ours, &ours)).await;
        let image = Image::Directory(small(stage.dir.path()));
        works_with(&house("hidden", &ours, &ours), &SandboxSpec { image, ..spec() }).await;
        // The program is told as Docker's is.
        let told = stage.dir.path().join("told");
        std::fs::create_dir(&told).unwrap();
        for (from, to) in [("ca.pem", "ca.pem"), ("our-cert.pem", "cert.pem"), ("our-key.pem", "key.pem")] {
            std::fs::copy(ours.join(from), told.join(to)).unwrap();
        }
        let mut program = House::new(Mode::Root);
        program.engine = Some(engine.tcp());
        let mut run = program.glass(&["run", "--runtime", "docker", "--", "echo", "by TLS"]);
        let run = run.env("DOCKER_TLS_VERIFY", "1").env("DOCKER_CERT_PATH", &told).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), "by TLS\n", "{run:?}");
        assert_eq!(
            program.run(&["run", "--runtime", "docker", "--", "true"]).0,
            125,
            "without TLS it is refused"
        );
        for (name, signer, us, kind) in [
            ("not-the-engine", &strangers, &ours, ErrorKind::Unreachable),
            ("not-us", &ours, &strangers, ErrorKind::Unreachable),
            ("no-files", &stage.dir.path().join("nowhere"), &ours, ErrorKind::Invalid),
        ] {
            let error = house(name, signer, us).create(spec()).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
        }
        engine.end();
    });
}

#[test]
fn a_way_to_an_engine_that_we_do_not_know_is_refused() {
    perform(async |stage| {
        for (name, host) in [("ssh", "ssh://somebody@somewhere"), ("pipe", "npipe:////./pipe/engine")] {
            let error = open(&stage.dir.path().join(name), host).create(spec()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(host), "{error}");
        }
    });
}
