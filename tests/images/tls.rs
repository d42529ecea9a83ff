//! A registry by TLS, under a name that is not known to be of this machine.

use std::net::ToSocketAddrs as _;

use glasshouse_tests::skip;

use crate::registry::Registry;
use crate::workshop::{Workshop, path, tool};
use crate::{each_mode, refused};

#[test]
fn a_registry_is_believed_if_somebody_vouches_for_it() {
    let host = tool("hostname", &[]).trim().to_owned();
    let loopback =
        (host.as_str(), 0).to_socket_addrs().is_ok_and(|mut all| all.all(|a| a.ip().is_loopback()));
    if host == "localhost" || !loopback {
        return skip("tls", "this machine's name does not stand for itself");
    }
    each_mode(|house| {
        let (key, cert) = (house.path().join("tls.key"), house.path().join("tls.crt"));
        let args = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"];
        let names = format!("subjectAltName=DNS:{host}");
        let more = ["-addext", &names, "-addext", "basicConstraints=critical,CA:FALSE"];
        tool("openssl", &[&args[..], &more, &["-keyout", &path(&key), "-out", &path(&cert)]].concat());
        let registry = Registry::with(
            &format!(", tls: {{certificate: {}, key: {}}}", cert.display(), key.display()),
            "",
        );
        let workshop = Workshop::new(house);
        workshop.distroless("one");
        registry.push(&workshop, "one", "it", &[]);
        let (_, port) = registry.address.rsplit_once(':').expect("an address has a port");
        let name = format!("{host}:{port}/it");
        let sentence = refused(house, &["image", "pull", &name]);
        assert!(sentence.contains("certificate"), "{sentence}");
        let trusted = house.glass(&["image", "pull", &name]).env("SSL_CERT_FILE", &cert).output();
        let trusted = trusted.expect("the program can be started");
        assert!(trusted.status.success(), "{}", String::from_utf8_lossy(&trusted.stderr));
        // Without TLS it does not speak.
        refused(house, &["image", "pull", "--insecure", &name]);
    });
}
