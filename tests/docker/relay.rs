//! Ways to an engine that are cut, or that keep something to themselves.

use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use glasshouse_sandbox::{ErrorKind, Exit, SandboxSpec, SnapshotOptions};

use crate::far::Far;
use crate::stage::{open, perform, shell, stdout_of};

/// A way to an engine that can be cut.
struct Relay {
    socket: PathBuf,
    open: Arc<Mutex<Option<Vec<UnixStream>>>>,
}

impl Relay {
    fn new(socket: PathBuf, engine: PathBuf) -> Relay {
        Relay::with(socket, engine, true)
    }

    /// One that does not say, perhaps, when the engine has closed a stream.
    fn with(socket: PathBuf, engine: PathBuf, tells_ends: bool) -> Relay {
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = open.clone();
        std::thread::spawn(move || {
            for here in listener.incoming() {
                // The engine has ended, and the test with it.
                let (Ok(here), Ok(there)) = (here, UnixStream::connect(&engine)) else { return };
                match shared.lock().unwrap().as_mut() {
                    Some(open) => open.extend([here.try_clone().unwrap(), there.try_clone().unwrap()]),
                    None => return,
                }
                for (mut from, mut to, tells) in
                    [(here.try_clone().unwrap(), there.try_clone().unwrap(), true), (there, here, tells_ends)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        if tells {
                            let _ = to.shutdown(Shutdown::Write);
                        }
                    });
                }
            }
        });
        Relay { socket, open }
    }

    fn host(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Nobody comes through any more.
    fn cut(self) {
        for stream in self.open.lock().unwrap().take().unwrap() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Whoever listens notices that it is over.
        drop(UnixStream::connect(&self.socket));
        std::fs::remove_file(&self.socket).unwrap();
    }
}

#[test]
fn a_way_to_the_engine_that_is_lost_is_no_death_and_boxes_are_found_again() {
    perform(async |stage| {
        let far = Far::new(stage);
        let (socket, engine) = (stage.dir.path().join("relay"), stage.place().join("sock"));
        let relay = Relay::new(socket.clone(), engine.clone());
        let house = open(&far.home, &relay.host());
        let sandbox = house.create(SandboxSpec { owner: None, ..far.spec() }).await.unwrap();
        stdout_of(&sandbox, "echo kept > /a").await;
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        relay.cut();
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::BoxGone { .. }), "nobody can tell more: {end:?}");
        let error = house.get(sandbox.id()).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert_eq!(house.list().await.unwrap().len(), 1, "nobody says that it is dead");
        let _relay = Relay::new(socket, engine);
        let again = house.get(sandbox.id()).await.unwrap();
        assert_eq!(stdout_of(&again, "cat /a").await, "kept\n");
        assert_eq!(stdout_of(&sandbox, "cat /a").await, "kept\n", "whoever held it goes on with it");
        sandbox.destroy().await.unwrap();
        far.end(house).await;
    });
}

/// Engines do so now and then: who learns that a bridge has ended when its container is removed already forgets about it.
#[test]
fn an_engine_that_does_not_tell_when_a_stream_has_ended_holds_nobody_up() {
    perform(async |stage| {
        let far = Far::new(stage);
        let relay = Relay::with(stage.dir.path().join("relay"), stage.place().join("sock"), false);
        let house = open(&far.home, &relay.host());
        let sandbox = house.create(far.spec()).await.unwrap();
        stdout_of(&sandbox, "echo one > /a").await;
        let snapshot = sandbox.snapshot(SnapshotOptions::default()).await.unwrap();
        stdout_of(&sandbox, "rm /a").await;
        sandbox.restore(&snapshot.id).await.unwrap();
        assert_eq!(stdout_of(&sandbox, "cat /a").await, "one\n");
        let exec = sandbox.exec(shell("exec sleep 1000")).await.unwrap();
        let container = far.listed(&["ps"]).remove(0);
        far.engine.docker(&["rm", "-f", &container]);
        let end = exec.collect().await.report.exit;
        assert!(matches!(end, Exit::BoxGone { .. }), "{end:?}");
        assert_eq!(house.list().await.unwrap(), []);
        house.remove_snapshot(&snapshot.id).await.unwrap();
        far.end(house).await;
    });
}
