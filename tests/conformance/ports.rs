//! TCP ports of a box, reached without any network.

use std::io::ErrorKind as IoKind;

use glasshouse_sandbox::{ErrorKind, Exit, RuntimeKind, Sandbox, Tunnel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::follow::Follow;
use crate::stage::{Stage, on_every_runtime, perl, settle, within};

on_every_runtime![
    what_is_sent_comes_back_whole,
    the_caller_may_end_first,
    the_box_may_end_first,
    who_does_not_read_stops_who_writes,
    what_waits_for_the_caller_does_not_stop_what_he_sends,
    fifty_connections_at_once,
    connections_have_a_bound,
    a_port_that_nobody_listens_on_is_refused,
    a_port_of_ipv6_is_reached,
    a_connection_that_is_broken_off_is_told,
    a_box_that_is_removed_ends_its_connections,
    a_box_that_is_paused_ends_its_connections,
    what_listens_is_listed,
    ports_of_the_host_are_out_of_reach,
];

/// Listens on any port of 127.0.0.1 that is free, and says which.
const LISTEN: &str = r#"use IO::Socket::INET; $| = 1; $SIG{CHLD} = "IGNORE"; $SIG{PIPE} = "IGNORE";
    my $s = IO::Socket::INET->new(Listen => 256, LocalAddr => "127.0.0.1", LocalPort => 0) or die $!;
    print $s->sockport, "\n";
    sub out { my ($c, $b) = @_; my $o = 0; while ($o < length $b) { $o += syswrite($c, $b, 65536, $o) // return 0 } 1 }
"#;
/// Sends back what comes, to everybody.
const ECHO: &str = r#"while (my $c = $s->accept) {
    next if fork; close $s; while (sysread($c, my $b, 65536)) { out($c, $b) } exit }"#;

/// A server in the box, and its port.
struct Server {
    follow: Follow,
    port: u16,
}

impl Server {
    async fn start(sandbox: &Sandbox, script: &str) -> Server {
        let mut follow = Follow::start(sandbox, perl(&format!("{LISTEN}{script}"))).await;
        let line = follow.line().await;
        Server { port: line.parse().unwrap_or_else(|_| panic!("{line:?} is no port")), follow }
    }

    async fn stop(mut self) {
        self.follow.exec.input().kill().await.unwrap();
        self.follow.end().await;
    }
}

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| ((n * 31 + n / 251 + seed) % 256) as u8).collect()
}

/// Sends and reads at the same time, to the end of both.
async fn exchange(tunnel: Tunnel, sent: &[u8]) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(tunnel);
    let mut came = Vec::new();
    let (written, read) = within("an exchange", async {
        tokio::join!(
            async {
                write.write_all(sent).await?;
                write.shutdown().await
            },
            read.read_to_end(&mut came)
        )
    })
    .await;
    written.unwrap();
    read.unwrap();
    came
}

async fn what_is_sent_comes_back_whole(sandbox: &Sandbox) {
    let server = Server::start(sandbox, ECHO).await;
    let sent = pattern(16 << 20, 0);
    let came = exchange(sandbox.dial(server.port).await.unwrap(), &sent).await;
    assert!(came == sent, "{} bytes of {}", came.len(), sent.len());
    server.stop().await;
}

async fn the_caller_may_end_first(sandbox: &Sandbox) {
    let count = r#"my $c = $s->accept; my $n = 0; while (my $l = sysread($c, my $b, 65536)) { $n += $l }
        out($c, "$n bytes"); close $c;"#;
    let mut server = Server::start(sandbox, count).await;
    let came = exchange(sandbox.dial(server.port).await.unwrap(), &pattern(100_000, 1)).await;
    assert_eq!(came, b"100000 bytes");
    assert_eq!(server.follow.end().await.exit, Exit::Code { code: 0 });
}

async fn the_box_may_end_first(sandbox: &Sandbox) {
    let count = r#"my $c = $s->accept; out($c, "hello"); shutdown($c, 1);
        my $n = 0; while (my $l = sysread($c, my $b, 65536)) { $n += $l } print "$n bytes\n";"#;
    let mut server = Server::start(sandbox, count).await;
    let mut tunnel = sandbox.dial(server.port).await.unwrap();
    let mut came = Vec::new();
    within("its end", tunnel.read_to_end(&mut came)).await.unwrap();
    assert_eq!(came, b"hello");
    // Whoever lets go of it afterwards has sent what he has written.
    within("a write", tunnel.write_all(&pattern(1 << 20, 2))).await.unwrap();
    drop(tunnel);
    assert_eq!(server.follow.line().await, "1048576 bytes");
    server.follow.end().await;
}

async fn who_does_not_read_stops_who_writes(sandbox: &Sandbox) {
    // The first one is read from when the second one says so.
    let late = r#"my $c = $s->accept; my $d = $s->accept; sysread($d, my $go, 1); out($d, "!");
        my $n = 0; while (my $l = sysread($c, my $b, 65536)) { $n += $l } print "$n\n";"#;
    let mut server = Server::start(sandbox, late).await;
    let mut slow = sandbox.dial(server.port).await.unwrap();
    let mut word = sandbox.dial(server.port).await.unwrap();
    // More than all buffers on the way can hold.
    let length = 80 << 20;
    let (finished, mut finish) = tokio::sync::oneshot::channel();
    let writer = tokio::spawn(async move {
        let piece = pattern(1 << 20, 3);
        for _ in 0..length >> 20 {
            slow.write_all(&piece).await.unwrap();
        }
        let _ = finished.send(());
        slow.shutdown().await.unwrap();
        slow
    });
    for _ in 0..20 {
        sandbox.ports().await.unwrap();
    }
    assert!(finish.try_recv().is_err(), "all was taken, and nobody has read it");
    word.write_all(b"g").await.unwrap();
    assert_eq!(server.follow.line().await, length.to_string());
    within("the writer", writer).await.unwrap();
    server.follow.end().await;
}

async fn what_waits_for_the_caller_does_not_stop_what_he_sends(sandbox: &Sandbox) {
    let first_out = r#"my $c = $s->accept; out($c, "x" x 500_000);
        my $n = 0; while (my $l = sysread($c, my $b, 65536)) { $n += $l } out($c, $n);"#;
    let mut server = Server::start(sandbox, first_out).await;
    let mut tunnel = sandbox.dial(server.port).await.unwrap();
    within("a write", tunnel.write_all(&pattern(16 << 20, 4))).await.unwrap();
    tunnel.shutdown().await.unwrap();
    let mut came = Vec::new();
    within("its end", tunnel.read_to_end(&mut came)).await.unwrap();
    assert_eq!(came.len(), 500_000 + "16777216".len());
    assert!(came.ends_with(b"x16777216"));
    server.follow.end().await;
}

async fn fifty_connections_at_once(sandbox: &Sandbox) {
    let server = Server::start(sandbox, ECHO).await;
    let mut exchanges = tokio::task::JoinSet::new();
    for n in 0..50 {
        let (sandbox, port) = (sandbox.clone(), server.port);
        exchanges.spawn(async move {
            let sent = pattern(200_000, n);
            let came = exchange(sandbox.dial(port).await.unwrap(), &sent).await;
            assert!(came == sent, "{n}: {} bytes", came.len());
        });
    }
    let done = within("all of them", exchanges.join_all()).await;
    assert_eq!(done.len(), 50);
    server.stop().await;
}

async fn connections_have_a_bound(sandbox: &Sandbox) {
    let server = Server::start(sandbox, "sleep 1000;").await;
    let mut open = Vec::new();
    for _ in 0..128 {
        open.push(sandbox.dial(server.port).await.unwrap());
    }
    let error = sandbox.dial(server.port).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert!(error.to_string().contains("128"), "{error}");
    open.pop();
    settle("another one has its place", async || sandbox.dial(server.port).await.is_ok()).await;
    drop(open);
    server.stop().await;
}

async fn a_port_that_nobody_listens_on_is_refused(sandbox: &Sandbox) {
    // Bound, so that nobody else takes it, and not listened on.
    let bound = r#"use IO::Socket::INET; $| = 1; my $s = IO::Socket::INET->new(LocalAddr => "127.0.0.1",
        LocalPort => 0, Proto => "tcp") or die $!; print $s->sockport, "\n"; sleep 1000;"#;
    let mut follow = Follow::start(sandbox, perl(bound)).await;
    let port = follow.line().await.parse().unwrap();
    let error = sandbox.dial(port).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    assert_eq!(sandbox.dial(0).await.unwrap_err().kind(), ErrorKind::Invalid);
    follow.exec.input().kill().await.unwrap();
    follow.end().await;
}

async fn a_port_of_ipv6_is_reached(sandbox: &Sandbox) {
    let script = r#"use Socket qw(:all); $| = 1; my ($s, $c); socket($s, PF_INET6, SOCK_STREAM, 0) && bind($s,
        pack_sockaddr_in6(0, inet_pton(AF_INET6, "::1"))) && listen($s, 5) or do { print "none\n"; exit };
        print((unpack_sockaddr_in6(getsockname $s))[0], "\n"); accept($c, $s); syswrite($c, "six");"#;
    let mut follow = Follow::start(sandbox, perl(script)).await;
    let line = follow.line().await;
    if line != "none" {
        let mut tunnel = sandbox.dial(line.parse().unwrap()).await.unwrap();
        let mut came = Vec::new();
        within("its end", tunnel.read_to_end(&mut came)).await.unwrap();
        assert_eq!(came, b"six");
    }
    follow.end().await;
}

/// Reads until it breaks off; how.
async fn breaks_off(tunnel: &mut Tunnel) -> std::io::Error {
    let mut came = Vec::new();
    match within("an end", tunnel.read_to_end(&mut came)).await {
        Ok(_) => panic!("it ended as if it were whole, after {} bytes", came.len()),
        Err(error) => error,
    }
}

async fn a_connection_that_is_broken_off_is_told(sandbox: &Sandbox) {
    let reset = r#"my $c = $s->accept; out($c, "part"); sysread($c, my $b, 1);
        setsockopt($c, SOL_SOCKET, SO_LINGER, pack("ii", 1, 0)); close $c;"#;
    let mut server = Server::start(sandbox, reset).await;
    let mut tunnel = sandbox.dial(server.port).await.unwrap();
    let mut part = [0; 4];
    within("a part", tunnel.read_exact(&mut part)).await.unwrap();
    tunnel.write_all(b"x").await.unwrap();
    assert_eq!(breaks_off(&mut tunnel).await.kind(), IoKind::ConnectionReset);
    server.follow.end().await;
}

/// A connection in the middle of something.
const WITHOUT_END: &str = r#"my $c = $s->accept; while (out($c, "x" x 65536)) {} sleep 1000;"#;

async fn a_box_that_is_removed_ends_its_connections(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let server = Server::start(&sandbox, WITHOUT_END).await;
    let mut tunnel = sandbox.dial(server.port).await.unwrap();
    within("a byte", tunnel.read_u8()).await.unwrap();
    sandbox.destroy().await.unwrap();
    assert_eq!(breaks_off(&mut tunnel).await.kind(), IoKind::ConnectionReset);
    settle("nobody answers", async || {
        sandbox.dial(server.port).await.is_err_and(|e| e.kind() == ErrorKind::Gone)
    })
    .await;
    within("the end of the box", sandbox.ended()).await;
}

async fn a_box_that_is_paused_ends_its_connections(sandbox: &Sandbox) {
    let server = Server::start(sandbox, ECHO).await;
    let mut tunnel = sandbox.dial(server.port).await.unwrap();
    tunnel.write_all(b"x").await.unwrap();
    within("an answer", tunnel.read_u8()).await.unwrap();
    sandbox.pause().await.unwrap();
    let error = breaks_off(&mut tunnel).await;
    assert!(error.to_string().contains("paused"), "{error}");
    assert_eq!(sandbox.dial(server.port).await.unwrap_err().kind(), ErrorKind::Paused);
    sandbox.resume().await.unwrap();
    assert_eq!(exchange(sandbox.dial(server.port).await.unwrap(), b"on").await, b"on");
    server.stop().await;
}

async fn what_listens_is_listed(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let server = Server::start(&sandbox, ECHO).await;
    let listed = sandbox.ports().await.unwrap();
    let found = listed.iter().find(|port| port.port == server.port).unwrap();
    assert_eq!(found.address, "127.0.0.1");
    if stage.runtime != RuntimeKind::Process {
        assert_eq!(listed.len(), 1, "{listed:?}");
    }
    let port = server.port;
    server.stop().await;
    settle("it is not listed any more", async || {
        sandbox.ports().await.unwrap().iter().all(|listed| listed.port != port)
    })
    .await;
}

async fn ports_of_the_host_are_out_of_reach(stage: &Stage) {
    let sandbox = stage.sandbox().await;
    let host = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = sandbox.dial(host.local_addr().unwrap().port()).await;
    match stage.runtime {
        // Without walls, the box's loopback device is the host's.
        RuntimeKind::Process => drop(dialled.unwrap()),
        _ => assert_eq!(dialled.unwrap_err().kind(), ErrorKind::Refused),
    }
}
