//! PROXY protocol header, sent before the first byte, which gives a service the address of its client.
//!
//! Implements section 2 of haproxy's "The PROXY protocol, versions 1 & 2". (A test has nginx read the header.) Version
//! 1 is a line of text, version 2 is binary. nginx, Apache, haproxy, Dovecot, Postfix and many others read both. A
//! service must be configured to expect the header. It must then be reachable only through the front, because any other
//! client could claim an arbitrary address.

use std::net::SocketAddr;

/// Version of the header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum HeaderVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// Start of version 2. No text protocol starts with it.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_COMMAND: u8 = 0x21;
/// Address family and transport.
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

impl HeaderVersion {
    /// Returns the header for a connection from `client` to `server`.
    #[must_use]
    pub fn header(self, client: SocketAddr, server: SocketAddr) -> Vec<u8> {
        match self {
            HeaderVersion::V1 => text(canonical(client), canonical(server)).into_bytes(),
            HeaderVersion::V2 => binary(canonical(client), canonical(server)),
        }
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn text(client: SocketAddr, server: SocketAddr) -> String {
    let family = match (client, server) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => "TCP4",
        (SocketAddr::V6(_), SocketAddr::V6(_)) => "TCP6",
        _ => return "PROXY UNKNOWN\r\n".to_owned(),
    };
    let (client_port, server_port) = (client.port(), server.port());
    format!("PROXY {family} {} {} {client_port} {server_port}\r\n", client.ip(), server.ip())
}

fn binary(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(VERSION_COMMAND);
    let mut addresses = Vec::with_capacity(36);
    header.push(match (client, server) {
        (SocketAddr::V4(client), SocketAddr::V4(server)) => {
            addresses.extend(client.ip().octets());
            addresses.extend(server.ip().octets());
            TCP_OVER_IPV4
        }
        (SocketAddr::V6(client), SocketAddr::V6(server)) => {
            addresses.extend(client.ip().octets());
            addresses.extend(server.ip().octets());
            TCP_OVER_IPV6
        }
        // Unspecified: the receiver uses the addresses of the connection itself.
        _ => {
            header.extend([0, 0, 0]);
            return header;
        }
    });
    addresses.extend(client.port().to_be_bytes());
    addresses.extend(server.port().to_be_bytes());
    header.extend((addresses.len() as u16).to_be_bytes());
    header.extend(addresses);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: HeaderVersion, client: &str, server: &str) -> Vec<u8> {
        version.header(client.parse().unwrap(), server.parse().unwrap())
    }

    #[test]
    fn text_is_one_line() {
        let line = header(HeaderVersion::V1, "192.0.2.7:5000", "198.51.100.1:443");
        assert_eq!(line, b"PROXY TCP4 192.0.2.7 198.51.100.1 5000 443\r\n");
        let line = header(HeaderVersion::V1, "[2001:db8::7]:5000", "[2001:db8::1]:443");
        assert_eq!(line, b"PROXY TCP6 2001:db8::7 2001:db8::1 5000 443\r\n");
        let line = header(HeaderVersion::V1, "[::ffff:192.0.2.7]:5000", "198.51.100.1:443");
        assert!(line.starts_with(b"PROXY TCP4 192.0.2.7 "));
        let line = header(HeaderVersion::V1, "192.0.2.7:5000", "[2001:db8::1]:443");
        assert_eq!(line, b"PROXY UNKNOWN\r\n");
    }

    #[test]
    fn a_binary_header_has_its_stated_length() {
        let v4 = header(HeaderVersion::V2, "192.0.2.7:5000", "198.51.100.1:443");
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        expected.extend([192, 0, 2, 7, 198, 51, 100, 1, 0x13, 0x88, 0x01, 0xbb]);
        assert_eq!(v4, expected);
        let v6 = header(HeaderVersion::V2, "[2001:db8::7]:5000", "[2001:db8::1]:443");
        assert_eq!(&v6[12..16], &[0x21, 0x21, 0, 36]);
        assert_eq!(v6.len(), 16 + 36);
        let mixed = header(HeaderVersion::V2, "192.0.2.7:5000", "[2001:db8::1]:443");
        assert_eq!(&mixed[12..], &[0x21, 0, 0, 0]);
    }
}
