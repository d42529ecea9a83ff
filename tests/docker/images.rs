//! Images of any kind: the guest needs nothing of what is in them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use glasshouse_sandbox::{
    Credentials, ErrorKind, Exit, Image, PullOptions, PullPhase, PullProgress, Sandbox, SandboxSpec,
    SnapshotOptions,
};
use glasshouse_tests::{House, Mode};

use crate::stage::{argv, perform, run, spec, stdout_of};

/// A static program of this machine.
const BUSYBOX: &str = "/usr/bin/busybox";
/// The name `me` and the password `secret`, as Docker's config file and as a registry has them.
const AUTH: &str = "bWU6c2VjcmV0";
const HTPASSWD: &str = "me:$2b$05$0Ro6TppM3.1jf9GMHY8s8.aw2N.qKglwBHvuxvdcZStcRzym5nco6\n";

/// A tree with nothing in it but one static program.
fn bare(dir: &Path) -> std::path::PathBuf {
    let tree = dir.join("bare");
    std::fs::create_dir(&tree).unwrap();
    std::fs::copy(BUSYBOX, tree.join("busybox")).unwrap();
    tree
}

#[test]
fn an_image_with_one_program_and_no_shell_runs_it() {
    perform(async |stage| {
        stage.engine.import(&bare(stage.dir.path()), "glass-test/bare:1");
        let sandbox = stage.of_image("glass-test/bare:1").await;
        let output = run(&sandbox, argv(&["/busybox", "echo", "hello"])).await;
        assert_eq!((output.report.exit, output.stdout.bytes), (Exit::Code { code: 0 }, b"hello\n".to_vec()));
        sandbox.write_file("/a/b", b"text", None).await.unwrap();
        assert_eq!(sandbox.read_file("/a/b", 0, None).await.unwrap(), b"text");
    });
}

#[test]
fn the_images_environment_and_directory_are_the_commands_and_its_health_check_is_not() {
    perform(async |stage| {
        stage.engine.import(&bare(stage.dir.path()), "glass-test/base:1");
        let made = stage.engine.docker(&["create", "--entrypoint", "/busybox", "glass-test/base:1"]);
        let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let changes = [
            "ENV COLOUR=blue",
            "ENV LD_PRELOAD=/nowhere.so",
            "WORKDIR /srv",
            "USER 1234:1234",
            "ENTRYPOINT [\"/nowhere\"]",
            "HEALTHCHECK --interval=1s CMD [\"/nowhere\"]",
        ];
        let mut args = vec!["commit"];
        changes.iter().for_each(|change| args.extend(["-c", change]));
        args.extend([id.as_str(), "glass-test/configured:1"]);
        let committed = stage.engine.docker(&args);
        assert!(committed.status.success(), "{committed:?}");
        stage.engine.docker(&["rm", &id]);
        let sandbox = stage.of_image("glass-test/configured:1").await;
        assert_eq!((sandbox.info().user.as_str(), sandbox.info().cwd.as_str()), ("1234:1234", "/srv"));
        let output =
            run(&sandbox, argv(&["/busybox", "sh", "-c", "echo $COLOUR; /busybox id -u; /busybox pwd"]))
                .await;
        assert_eq!(String::from_utf8(output.stdout.bytes).unwrap(), "blue\n1234\n/srv\n");
        let health = stage.engine.docker(&[
            "inspect",
            "-f",
            "{{json .Config.Healthcheck.Test}}",
            &stage.containers()[0],
        ]);
        assert_eq!(String::from_utf8(health.stdout).unwrap().trim(), r#"["NONE"]"#);
    });
}

#[test]
fn what_is_written_to_a_volume_of_the_image_is_part_of_the_state_and_goes_with_the_box() {
    perform(async |stage| {
        let tree = bare(stage.dir.path());
        std::fs::create_dir(tree.join("data")).unwrap();
        std::fs::write(tree.join("data/given"), "by the image").unwrap();
        stage.engine.import(&tree, "glass-test/plain:1");
        let made = stage.engine.docker(&["create", "glass-test/plain:1", "/none"]);
        let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let changes = ["-c", r#"VOLUME ["/data", "/new"]"#, "-c", "ENV COLOUR=blue"];
        let words = [&["commit"][..], &changes, &[&id, "glass-test/volumes:1"]].concat();
        assert!(stage.engine.docker(&words).status.success());
        stage.engine.docker(&["rm", &id]);
        let sandbox = stage.of_image("glass-test/volumes:1").await;
        let read = async |of: &Sandbox, path: &str| of.read_file(path, 0, None).await.unwrap();
        assert_eq!(read(&sandbox, "/data/given").await, b"by the image");
        for path in ["/data/x", "/new/x"] {
            sandbox.write_file(path, b"one", None).await.unwrap();
        }
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        sandbox.write_file("/data/x", b"two", None).await.unwrap();
        let fork = sandbox.fork(1).await.unwrap().remove(0);
        assert_eq!(read(&fork, "/data/x").await, b"two");
        sandbox.restore(&snapshot.id).await.unwrap();
        for path in ["/data/x", "/new/x"] {
            assert_eq!(read(&sandbox, path).await, b"one", "{path}");
        }
        let colour = run(&sandbox, argv(&["/busybox", "sh", "-c", "echo $COLOUR"])).await;
        assert_eq!(colour.stdout.bytes, b"blue\n");
        let mounts = ["inspect", "-f", r#"{{range .Mounts}}{{.Type}} {{end}}"#, &stage.containers()[0]];
        let mounts = String::from_utf8(stage.engine.docker(&mounts).stdout).unwrap();
        assert!(!mounts.contains("volume"), "{mounts}");
        for one in [fork, sandbox] {
            one.destroy().await.unwrap();
        }
    });
}

#[test]
fn an_image_of_the_engine_runs_what_it_was_made_to_run() {
    perform(async |stage| {
        stage.engine.import(&bare(stage.dir.path()), "glass-test/silent:1");
        let made = stage.engine.docker(&["create", "glass-test/silent:1", "/none"]);
        let id = String::from_utf8(made.stdout).unwrap().trim().to_owned();
        let (entry, words) = (r#"ENTRYPOINT ["/busybox", "echo"]"#, r#"CMD ["by", "itself"]"#);
        let committed = stage.engine.docker(&["commit", "-c", entry, "-c", words, &id, "glass-test/talks:1"]);
        assert!(committed.status.success(), "{committed:?}");
        stage.engine.docker(&["rm", &id]);
        let mut house = House::new(Mode::Root);
        house.engine = Some(stage.engine.host.clone());
        let run = |image: &str, words: &[&str]| {
            let image = format!("docker-daemon:{image}");
            house.run(&[&["run", "--runtime", "docker", "--image", &image], words].concat())
        };
        assert_eq!(run("glass-test/talks:1", &[]).1, "by itself\n");
        assert_eq!(run("glass-test/talks:1", &["--", "/busybox", "echo", "told"]).1, "told\n");
        let (code, _, stderr) = run("glass-test/silent:1", &[]);
        assert_eq!(code, 125);
        assert!(stderr.contains("glass-test/silent:1 has no command of its own"), "{stderr}");
    });
}

#[test]
fn an_image_that_nobody_has_is_not_found() {
    perform(async |stage| {
        let image = Image::Engine("127.0.0.1:1/nobody/has:this".into());
        let error = stage.house.create(SandboxSpec { image, ..spec() }).await.unwrap_err();
        assert!(error.to_string().contains("127.0.0.1:1/nobody/has:this"), "{error}");
        let registry = Registry::new(stage.dir.path());
        let image = Image::Engine(format!("{}/nobody/has:this", registry.address));
        let error = stage.house.create(SandboxSpec { image, ..spec() }).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(stage.house.list().await.unwrap(), []);
    });
}

#[test]
fn an_image_of_an_engine_is_only_for_boxes_there() {
    perform(async |stage| {
        let native = SandboxSpec { image: Image::Engine("x".into()), ..SandboxSpec::default() };
        let error = stage.house.create(native).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("oci://x"), "it says what would do: {error}");
    });
}

/// A registry that ends with the value.
pub(crate) struct Registry {
    child: Child,
    pub(crate) address: String,
}

impl Registry {
    pub(crate) fn new(dir: &Path) -> Registry {
        Registry::with(dir, "")
    }

    /// One that wants the name `me` and the password `secret`.
    fn with_login(dir: &Path) -> Registry {
        let file = dir.join("htpasswd");
        std::fs::write(&file, HTPASSWD).unwrap();
        Registry::with(dir, &format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", file.display()))
    }

    fn with(dir: &Path, auth: &str) -> Registry {
        let config = dir.join("config.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"127.0.0.1:0\"}}\n{auth}",
            dir.join("store").display()
        );
        std::fs::write(&config, text).unwrap();
        let mut child = Command::new("docker-registry")
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a registry is installed");
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the registry ended");
            if let Some((_, rest)) = line.split_once("listening on ") {
                break rest.chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
            }
        };
        // A pipe that nobody reads would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Registry { child, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_engine_pulls_what_it_does_not_have() {
    perform(async |stage| {
        let registry = Registry::new(stage.dir.path());
        let name = format!("{}/team/tool:1", registry.address);
        stage.engine.import(&bare(stage.dir.path()), &name);
        for args in [["push", &name], ["rmi", &name]] {
            let done = stage.engine.docker(&args);
            assert!(done.status.success(), "{done:?}");
        }
        let sandbox = stage.of_image(&name).await;
        let output = run(&sandbox, argv(&["/busybox", "echo", "pulled"])).await;
        assert_eq!(output.stdout.bytes, b"pulled\n");
        assert!(
            sandbox.info().chain.last().unwrap().starts_with("engine:sha256:"),
            "{:?}",
            sandbox.info().chain
        );
        stage.house.destroy(sandbox.id()).await.unwrap();
        stage.engine.docker(&["rmi", &name]);
    });
}

#[test]
fn the_engine_pulls_with_our_login_and_tells_how_it_goes() {
    perform(async |stage| {
        let registry = Registry::with_login(stage.dir.path());
        let name = format!("{}/team/private:1", registry.address);
        let tree = bare(stage.dir.path());
        // No layer that the engine has from elsewhere.
        std::fs::write(tree.join("name"), &name).unwrap();
        stage.engine.import(&tree, &name);
        // Docker's own file, as `docker login` writes it.
        let login = stage.dir.path().join("login");
        std::fs::create_dir(&login).unwrap();
        let auths = format!(r#"{{"auths": {{"{}": {{"auth": "{AUTH}"}}}}}}"#, registry.address);
        std::fs::write(login.join("config.json"), auths).unwrap();
        let config = login.to_str().unwrap();
        for args in [&["--config", config, "push", &name][..], &["rmi", &name]] {
            let done = stage.engine.docker(args);
            assert!(done.status.success(), "{done:?}");
        }
        let error = stage.house.pull_engine_image(&name, PullOptions::default()).await.unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
        let steps = Arc::new(Mutex::new(Vec::new()));
        let heard = steps.clone();
        let (user, password) = ("me".into(), "secret".into());
        let options = PullOptions {
            credentials: Some(Credentials::Password { user, password }),
            platform: Some("linux/amd64".into()),
            progress: Some(Arc::new(move |step: PullProgress| heard.lock().unwrap().push(step.phase))),
            ..PullOptions::default()
        };
        let pulled = stage.house.pull_engine_image(&name, options).await.unwrap();
        assert!(pulled.digests.iter().any(|digest| digest.contains("/team/private@sha256:")), "{pulled:?}");
        assert_eq!(pulled.platform, "linux/amd64");
        assert_eq!(stage.house.engine_image(&name).await.unwrap(), Some(pulled));
        assert_eq!(steps.lock().unwrap().last(), Some(&PullPhase::Done));
        stage.engine.docker(&["rmi", &name]);

        // The program finds the login by itself.
        let mut house = House::new(Mode::Root);
        house.engine = Some(stage.engine.host.clone());
        let image = format!("docker-daemon:{name}");
        let told = |args: &[&str]| {
            let output = house.glass(args).env("DOCKER_CONFIG", config).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let run = ["run", "--runtime", "docker", "--image", &image, "--", "/busybox", "echo", "in"];
        assert_eq!(told(&run), "in\n");
        assert_eq!(told(&["image", "pull", &image]), format!("{image}\n"));
        stage.engine.docker(&["rmi", "-f", &name]);
    });
}

#[test]
fn a_directory_of_the_host_is_an_image_too() {
    perform(async |stage| {
        let tree = bare(stage.dir.path());
        std::fs::write(tree.join("note"), "one").unwrap();
        let of = || SandboxSpec { image: Image::Directory(tree.clone()), ..spec() };
        let note = async |sandbox: &Sandbox| sandbox.read_file("/note", 0, None).await.unwrap();
        let first = stage.create(of()).await;
        assert_eq!(note(&first).await, b"one");
        first.write_file("/note", b"box", None).await.unwrap();
        assert_eq!(std::fs::read(tree.join("note")).unwrap(), b"one", "it is never written");
        // Another content is another image.
        std::fs::write(tree.join("note"), "two").unwrap();
        assert_eq!(note(&stage.create(of()).await).await, b"two");
    });
}

#[test]
fn the_hosts_own_programs_run_in_a_container() {
    perform(async |stage| {
        let sandbox = stage.sandbox().await;
        assert_eq!(stdout_of(&sandbox, "id -un; pwd; perl -e 'print 6 * 7'").await, "user\n/workspace\n42");
    });
}
