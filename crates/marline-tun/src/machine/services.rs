//! TCP connections that other machines have opened to services of this one.
//!
//! Replies follow the routing, which now leads to the tunnel: an ssh session from beyond the local network would lose
//! the very connection that enabled the tunnel. So the replies of such a connection, and no other traffic from its
//! port, leave directly until it ends.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use super::routing::InboundConnection;

/// Maximum number of such connections. For more, use `--reachable` with the service.
const MAX_CONNECTIONS: usize = 256;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING_STATE: &str = "0A";
/// States in which either end still sends: established, and the two ends of a shutdown.
const OPEN_STATES: [&str; 5] = ["01", "04", "05", "08", "09"];

/// Returns the currently open inbound connections.
pub(super) fn inbound() -> Vec<InboundConnection> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let texts = tables.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    connections(&texts.collect::<String>()).into_iter().collect()
}

/// Returns the currently open inbound connections, up to the maximum.
pub(super) fn open_inbound() -> Vec<InboundConnection> {
    let mut found = inbound();
    if found.len() > MAX_CONNECTIONS {
        tracing::warn!(
            "{} connections from other machines: the first {MAX_CONNECTIONS} continue outside the tunnel; use \
             --reachable to keep a service reachable",
            found.len()
        );
        found.truncate(MAX_CONNECTIONS);
    }
    found
}

/// Returns the connections on listening ports, from the text of the tables.
fn connections(tables: &str) -> BTreeSet<InboundConnection> {
    let mut connected = BTreeSet::new();
    let mut listening = BTreeSet::new();
    for line in tables.lines() {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(remote), Some(state)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (Some((_, port)), Some((peer, _))) = (end(local), end(remote)) else { continue };
        if state == LISTENING_STATE {
            listening.insert(port);
        } else if OPEN_STATES.contains(&state) && !peer.is_loopback() {
            connected.insert(InboundConnection { port, peer });
        }
    }
    connected.retain(|connection| listening.contains(&connection.port));
    connected
}

/// Parses an address, whose words are in the machine's byte order, and a port.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inbound_connections_to_listening_ports_are_found() {
        const ESTABLISHED: &str = "01";
        let hex = |v4: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(v4));
        let mapped = |v4: [u8; 4]| {
            format!("0000000000000000{:08X}{}", u32::from_ne_bytes([0, 0, 255, 255]), hex(v4))
        };
        let any = "0".repeat(8);
        let line = |local: &str, port: u16, remote: &str, state: &str| {
            format!(
                "   0: {local}:{port:04X} {remote}:C000 {state} 00000000:00000000 00:0 0 0 0 1\n"
            )
        };
        let text = [
            "  sl  local_address rem_address   st tx_queue rx_queue\n".to_owned(),
            line(&any, 22, &any, LISTENING_STATE),
            line(&hex([192, 0, 2, 1]), 22, &hex([203, 0, 113, 9]), ESTABLISHED),
            // Local to this machine.
            line(&any, 631, &any, LISTENING_STATE),
            line(&hex([127, 0, 0, 1]), 631, &hex([127, 0, 0, 1]), ESTABLISHED),
            line(&mapped([127, 0, 0, 1]), 631, &mapped([127, 0, 0, 1]), ESTABLISHED),
            // Closed.
            line(&any, 80, &any, LISTENING_STATE),
            line(&hex([192, 0, 2, 1]), 80, &hex([203, 0, 113, 9]), "06"),
            // No listener on the port, so it is outgoing.
            line(&hex([192, 0, 2, 1]), 40_000, &hex([203, 0, 113, 9]), ESTABLISHED),
            // IPv6.
            line(&"0".repeat(32), 443, &"0".repeat(32), LISTENING_STATE),
            line(&mapped([192, 0, 2, 1]), 443, &mapped([203, 0, 113, 8]), ESTABLISHED),
            "cut sho".to_owned(),
        ];
        let found: Vec<String> = connections(&text.concat())
            .iter()
            .map(|InboundConnection { port, peer }| format!("{port} {peer}"))
            .collect();
        assert_eq!(found, ["22 203.0.113.9", "443 203.0.113.8"]);
    }
}
