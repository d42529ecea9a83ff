//! What listens inside the box, as the kernel tells.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use glasshouse_protocol::Port;
use glasshouse_protocol::limits::PORTS_MAX;

/// What is read of the kernel's list, which has a line for each connection as well.
const LIST_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How the kernel writes that a socket listens.
const LISTENS: &str = "0A";

/// The TCP ports that something listens on.
pub(crate) fn listening() -> io::Result<Vec<Port>> {
    let mut ports = BTreeSet::new();
    for path in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let file = match std::fs::File::open(path) {
            // A kernel without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let mut text = String::new();
        file.take(LIST_BYTES_MAX).read_to_string(&mut text)?;
        ports.extend(text.lines().skip(1).filter_map(port));
    }
    Ok(ports.into_iter().take(PORTS_MAX).collect())
}

/// `  0: 0100007F:1F90 00000000:0000 0A …`
fn port(line: &str) -> Option<Port> {
    let mut words = line.split_ascii_whitespace();
    let (address, port) = words.nth(1)?.split_once(':')?;
    let state = words.nth(1)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let address = address_of(address)?.to_string();
    (state == LISTENS).then_some(Port { port, address })
}

/// Words of four bytes, each in the machine's order.
fn address_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let found = |line: &str| port(line).map(|port| (port.port, port.address));
        let tcp =
            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1";
        assert_eq!(found(tcp), Some((8080, "127.0.0.1".into())));
        let tcp6 = "   1: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0";
        assert_eq!(found(tcp6), Some((80, "::1".into())));
        let connected = "   0: 0100007F:1F90 0100007F:8001 01 00000000:00000000 00:00000000 00000000 0 0 1";
        assert_eq!(found(connected), None);
        for broken in ["", "0:", "0: x:y z 0A", "0: 01:1F90 0:0 0A", "0: 0100007F:FFFFF 0:0 0A"] {
            assert_eq!(found(broken), None, "{broken:?}");
        }
    }
}
