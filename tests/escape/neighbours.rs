//! The network, the host's sockets and shared memory, and other boxes. (6.1: 52, 130; 6.4: 121 to 123.)

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::Command;

use glasshouse_tests::{Mode, ORDINARY, is_root};

use crate::attacker::{Attacker, PROBE, answers, probe};

#[test]
fn cannot_reach_anybody_over_the_network() {
    // Reachable from here, by the very address.
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = tcp.local_addr().expect("it is bound").port();
    let udp = UdpSocket::bind(("127.0.0.1", port)).expect("the same port is free for UDP");
    udp.set_nonblocking(true).expect("a socket can be made not to wait");
    std::net::TcpStream::connect(("127.0.0.1", port)).expect("the listener listens");
    let port = port.to_string();
    let mut targets: Vec<(String, &str, &str)> = [
        // The box's own loopback device: nobody listens there.
        ("127.0.0.1", "ECONNREFUSED"),
        ("127.8.8.8", "ECONNREFUSED"),
        ("0.0.0.0", "ECONNREFUSED"),
        ("::1", "ECONNREFUSED"),
        ("::ffff:127.0.0.1", "ECONNREFUSED"),
        ("1.1.1.1", "ENETUNREACH"),
        ("169.254.169.254", "ENETUNREACH"),
        ("10.0.0.1", "ENETUNREACH"),
        ("172.17.0.1", "ENETUNREACH"),
        ("192.168.0.1", "ENETUNREACH"),
        ("224.0.0.1", "ENETUNREACH"),
        ("255.255.255.255", "ENETUNREACH"),
        ("::ffff:169.254.169.254", "ENETUNREACH"),
        ("2606:4700:4700::1111", "ENETUNREACH"),
        ("fd00::1", "ENETUNREACH"),
    ]
    .map(|(host, answer)| (host.to_owned(), port.as_str(), answer))
    .to_vec();
    let own =
        UdpSocket::bind("0.0.0.0:0").and_then(|s| s.connect("1.1.1.1:53").and_then(|()| s.local_addr()));
    match own {
        Ok(address) => targets.push((address.ip().to_string(), "22", "ENETUNREACH")),
        Err(e) => eprintln!("cannot be shown here: the host's own address (it has none: {e})"),
    }
    for attacker in Attacker::everywhere() {
        let words: Vec<&str> = targets.iter().flat_map(|(host, port, _)| [host.as_str(), port]).collect();
        let answers = answers(&attacker.probe(&[&["network"], &words[..]].concat()).text());
        for (host, port, expected) in &targets {
            assert_eq!(answers[&format!("tcp {host} {port}")], *expected, "{}: {host}", attacker.name());
            // A datagram to one's own loopback is sent, and read by nobody.
            let answer = answers[&format!("udp {host} {port}")].as_str();
            let loopback = *expected == "ECONNREFUSED";
            let refused = answer == *expected || answer == "EACCES" && host == "255.255.255.255";
            assert!(refused || loopback && answer == "ok", "{}: udp {host}: {answer}", attacker.name());
        }
        let mut buffer = [0; 16];
        let heard = udp.recv(&mut buffer);
        assert_eq!(heard.expect_err("nothing must arrive").kind(), std::io::ErrorKind::WouldBlock);
        let facts = attacker.probe(&["facts"]).text();
        let interfaces: Vec<&str> =
            facts.lines().filter_map(|line| line.strip_prefix("interface ")).collect();
        assert_eq!(interfaces, ["lo"], "{}", attacker.name());
        let routes =
            attacker.sh("tail -n +2 /proc/net/route; grep -v ' lo$' /proc/net/ipv6_route; true").text();
        assert_eq!(routes, "", "{}", attacker.name());
    }
    tcp.set_nonblocking(true).expect("a socket can be made not to wait");
    tcp.accept().expect("our own connection is there");
    assert!(tcp.accept().is_err(), "somebody else came");
}

#[test]
fn cannot_reach_unix_sockets_of_the_host() {
    for attacker in Attacker::everywhere() {
        let name = format!("glass-escape-{}", attacker.id);
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let _listener = UnixListener::bind_addr(&address).expect("the name is free");
        UnixStream::connect_addr(&address).expect("the listener listens");
        // Attackers of one mode share a house.
        let path = attacker.house.path().join(format!("listener-{}", attacker.id));
        let _at_path = UnixListener::bind(&path).expect("the scratch directory can be written");
        let path = path.to_string_lossy();
        let own = attacker.house.home().join("boxes").join(&attacker.id).join("sock");
        let own = own.to_string_lossy();
        let hidden = format!("@{name}");
        let text = attacker.probe(&["network", &hidden, &path, &own, "/run/docker.sock"]).text();
        let answers = answers(&text);
        assert_eq!(answers[&format!("unix @{name}")], "ECONNREFUSED", "{}", attacker.name());
        for path in [&path, &own, "/run/docker.sock"] {
            assert_eq!(answers[&format!("unix {path}")], "ENOENT", "{}", attacker.name());
        }
        assert!(!attacker.exec(&[], &["cat", "/proc/net/unix"]).text().contains("glass"));
    }
}

/// A segment of shared memory of the host's that goes when the test does.
struct Segment {
    id: String,
}

fn on_host(mode: Mode, probe: &std::path::Path, words: &[&str]) -> String {
    let dir = glasshouse_tests::scratch();
    let there = dir.path().join("probe");
    glasshouse_tests::place_program(probe, &there);
    let mut command = Command::new(there);
    if mode == Mode::Rootless && is_root() {
        use std::os::unix::process::CommandExt;
        command.uid(ORDINARY).gid(ORDINARY);
    }
    let output = command.arg("act").args(words).output().expect("the probe can be run");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(probe) = probe() {
            on_host(Mode::Root, probe, &["shm-remove", &self.id]);
        }
    }
}

#[test]
fn cannot_see_shared_memory_of_the_host_or_of_another_box() {
    let Some(program) = probe() else { return };
    let host = Segment { id: on_host(Mode::Root, program, &["shm-make"]) };
    assert!(host.id.parse::<u32>().is_ok(), "{}", host.id);
    assert_eq!(on_host(Mode::Root, program, &["shm-find", &host.id]), "found by key");
    let file = tempfile::Builder::new()
        .prefix("glass-escape-")
        .tempfile_in("/dev/shm")
        .expect("/dev/shm can be written");
    for attacker in Attacker::everywhere() {
        assert_eq!(attacker.probe(&["act", "shm-find", &host.id]).out, "nothing\n", "{}", attacker.name());
        assert_eq!(attacker.exec(&[], &["ls", "-A", "/dev/shm"]).text(), "");
        // Another box of the same house makes one, under the same key.
        let other = attacker.neighbour();
        let made = other.probe(&["act", "shm-make"]).text();
        assert_eq!(other.probe(&["act", "shm-find", made.trim()]).out, "found by key\n");
        other.sh("echo x > /dev/shm/x; echo x > /tmp/x").text();
        assert_eq!(attacker.probe(&["act", "shm-find", made.trim()]).out, "nothing\n", "{}", attacker.name());
        assert_eq!(attacker.exec(&[], &["ls", "-A", "/dev/shm"]).text(), "");
        assert_eq!(attacker.exec(&[], &["ls", "-A", "/tmp"]).text(), "probe\n");
    }
    drop(file);
}

#[test]
fn cannot_see_kill_or_talk_to_another_box() {
    for attacker in Attacker::everywhere() {
        let other = attacker.neighbour();
        other.exec(&["--background"], &[PROBE, "act", "listen", "@other"]).text();
        // The neighbour itself reaches it, as soon as it listens.
        let wait = ["until /tmp/probe network @other | grep -q ok; do :; done"];
        let reached = || other.exec(&["--timeout", "30s", "--shell"], &wait).text();
        reached();
        let text = attacker.probe(&["network", "@other"]).text();
        assert_eq!(text, "unix @other: ECONNREFUSED\n", "{}", attacker.name());
        attacker.probe(&["act", "kill-all"]);
        attacker.assert_alive();
        reached();
        assert!(
            attacker.probe(&["facts"]).text().lines().filter(|line| line.starts_with("process ")).count()
                <= 2
        );
    }
}

#[test]
fn killing_everything_inside_leaves_the_box_alive() {
    for attacker in Attacker::everywhere() {
        let sleeper = attacker.exec(&["--background"], &["sleep", "600"]).text();
        attacker.probe(&["act", "kill-all"]);
        attacker.assert_alive();
        let text = attacker.glass(&["attach", &attacker.id, sleeper.trim(), "--json"]);
        assert!(text.out.contains("\"signal\":9"), "{}: {text:?}", attacker.name());
    }
}

#[test]
fn what_one_box_writes_no_other_sees_and_the_host_neither() {
    let before = std::fs::read("/etc/passwd").expect("everybody may read it");
    for attacker in Attacker::everywhere() {
        attacker.sh(
            "echo evil::0:0::/:/bin/sh >> /etc/passwd; echo evil > /etc/ld.so.preload; touch /evil; true",
        );
        let other = attacker.neighbour();
        let text = other.exec(&[], &["cat", "/etc/passwd"]).text();
        assert!(!text.contains("evil"), "{}: {text}", attacker.name());
        for path in ["/evil", "/etc/ld.so.preload"] {
            assert_ne!(other.exec(&[], &["test", "-e", path]).code, 0, "{path}");
            assert!(!std::path::Path::new(path).exists(), "{path}");
        }
        assert_eq!(std::fs::read("/etc/passwd").expect("everybody may read it"), before);
    }
}
