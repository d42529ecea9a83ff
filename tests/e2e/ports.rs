//! Ports of a box, from this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use glasshouse_linux::process::signal_pid;
use glasshouse_tests::House;

use crate::{create, each_mode, json};

/// Answers every request with a few words.
const HTTP: &str = r#"use IO::Socket::INET; $SIG{PIPE} = "IGNORE";
    my $s = IO::Socket::INET->new(Listen => 64, LocalAddr => "127.0.0.1", LocalPort => 0) or die $!;
    while (my $c = $s->accept) { while (<$c>) { last if /^\r?$/ } print $c "HTTP/1.0 200 OK\r\n\r\nhello"; close $c }"#;

/// A box with a server, and the server's port.
fn serving(house: &House) -> (String, String) {
    let id = create(house, &[]);
    let (code, _, stderr) = house.run(&["exec", &id, "--background", "--", "perl", "-e", HTTP]);
    assert_eq!(code, 0, "{stderr}");
    loop {
        let listed = json(&house.run(&["port", &id, "--json"]).1);
        if let Some(port) = listed[0]["port"].as_u64() {
            assert_eq!(listed[0]["address"], "127.0.0.1");
            return (id, port.to_string());
        }
    }
}

/// `glass port`, and the first line that it says.
fn forward(house: &House, args: &[&str]) -> (Child, String) {
    let mut command = house.glass(&[&["port"], args].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it says something");
    (child, line.trim_end().to_owned())
}

fn get(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn a_port_of_a_box_is_reached_until_somebody_interrupts() {
    each_mode(|house| {
        let (id, port) = serving(house);
        let (mut child, address) = forward(house, &[&id, &port]);
        assert!(address.starts_with("127.0.0.1:"), "{address:?}");
        for _ in 0..3 {
            assert_eq!(get(&address).unwrap(), "HTTP/1.0 200 OK\r\n\r\nhello");
        }
        signal_pid(child.id() as i32, 2).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        get(&address).unwrap_err();
    });
}

#[test]
fn a_port_of_a_box_ends_with_the_box() {
    each_mode(|house| {
        let (id, port) = serving(house);
        let (mut child, said) = forward(house, &[&id, &port, "--json", "--listen", "127.0.0.1:0"]);
        let said = json(&said);
        assert_eq!((said["id"].as_str(), said["port"].as_u64()), (Some(id.as_str()), port.parse().ok()));
        assert!(get(said["listen"].as_str().unwrap()).unwrap().ends_with("hello"));
        assert_eq!(house.run(&["kill", &id]).0, 0);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let mut errors = String::new();
        child.stderr.unwrap().read_to_string(&mut errors).unwrap();
        assert!(errors.contains("the box has ended"), "{errors}");
    });
}

#[test]
fn a_port_that_nobody_listens_on_is_named() {
    each_mode(|house| {
        let id = create(house, &[]);
        assert_eq!(house.run(&["port", &id, "--json"]).1, "[]\n");
        assert!(house.run(&["port", &id]).2.contains("nothing in the box listens"));
        let (mut child, address) = forward(house, &[&id, "7"]);
        assert!(get(&address).is_err(), "a part of nothing is not taken for the whole");
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("nothing listens on port 7"), "{line}");
        signal_pid(child.id() as i32, 15).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(143));
    });
}
