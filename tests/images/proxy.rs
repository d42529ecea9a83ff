//! Something between the program and the registry that counts, and can hold its breath.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Counts bytes on their way from the registry, and stops them when there have been enough.
pub(crate) struct Proxy {
    pub(crate) address: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    stop_at: Option<u64>,
    cut_at: Option<u64>,
    connections: usize,
}

impl Proxy {
    pub(crate) fn new(registry: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = listener.local_addr().expect("it listens").to_string();
        let state = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let (registry, shared) = (registry.to_owned(), Arc::clone(&state));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&registry) else { continue };
                lock(&shared).connections += 1;
                relay(client, server, &shared);
            }
        });
        Proxy { address, state }
    }

    pub(crate) fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// From now on, lets so many bytes pass and no more.
    pub(crate) fn stop_after(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.stop_at = Some(state.bytes + bytes);
    }

    /// Breaks the connection off after so many bytes, once.
    pub(crate) fn cut_after(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.cut_at = Some(state.bytes + bytes);
    }

    /// Lets everything pass, and counts from nothing.
    pub(crate) fn go_on(&self) {
        let mut state = lock(&self.state);
        (state.stop_at, state.bytes, state.connections) = (None, 0, 0);
        self.state.1.notify_all();
    }

    /// Bytes that have passed.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.state).bytes
    }

    /// Whether it holds its breath.
    pub(crate) fn is_stopped(&self) -> bool {
        let state = lock(&self.state);
        state.stop_at.is_some_and(|at| state.bytes >= at)
    }

    /// Connections that were made.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.state).connections
    }
}

fn lock(state: &Arc<(Mutex<State>, Condvar)>) -> std::sync::MutexGuard<'_, State> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn relay(client: TcpStream, server: TcpStream, state: &Arc<(Mutex<State>, Condvar)>) {
    let (mut asking, mut asked) = (client.try_clone().expect("a copy"), server.try_clone().expect("a copy"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut asking, &mut asked);
        let _ = asked.shutdown(Shutdown::Write);
    });
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        let (mut client, mut server) = (client, server);
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = server.read(&mut buffer) {
            let mut held = lock(&state);
            while held.stop_at.is_some_and(|at| held.bytes >= at) {
                held = state.1.wait(held).unwrap_or_else(PoisonError::into_inner);
            }
            held.bytes += n as u64;
            let passed = held.bytes;
            let cut = held.cut_at.take_if(|at| passed >= *at).is_some();
            drop(held);
            if cut || client.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
}
