//! Peers of this machine's connections, as listed in `/proc/net`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TABLES: [&str; 4] = ["/proc/net/tcp", "/proc/net/tcp6", "/proc/net/udp", "/proc/net/udp6"];
/// States in which nothing more is sent to the peer: TIME-WAIT, closed, listening.
const ENDED_STATES: [&str; 3] = ["06", "07", "0A"];

/// Returns the peers of all TCP connections and connected UDP sockets.
pub(super) fn peers() -> BTreeSet<IpAddr> {
    let texts = TABLES.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().filter_map(peer).collect::<Vec<_>>()).collect()
}

/// Parses the peer of a line: `N: LOCAL:PORT REMOTE:PORT STATE ...`, with addresses in the machine's byte order,
/// word by word.
fn peer(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace().skip(2);
    let (address, _) = words.next()?.split_once(':')?;
    if ENDED_STATES.contains(&words.next()?) {
        return None;
    }
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let peer: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut octets = [0; 16];
            for (number, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(8 * number)?);
            }
            Ipv6Addr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(peer).filter(|peer| !peer.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_both_families_are_read_and_listeners_have_none() {
        let hex = |octets: &[u8]| -> String {
            let words =
                octets.chunks_exact(4).map(|four| u32::from_ne_bytes(four.try_into().unwrap()));
            words.map(|word| format!("{word:08X}")).collect()
        };
        let line = |remote: &str, state: &str| {
            format!("   3: {remote}:0016 {remote}:C000 {state} 00000000:00000000 00:00000000 0 0")
        };
        let v4: Ipv4Addr = "203.0.113.9".parse().unwrap();
        let v6: Ipv6Addr = "2001:db8::7".parse().unwrap();
        assert_eq!(peer(&line(&hex(&v4.octets()), "01")), Some(v4.into()));
        assert_eq!(peer(&line(&hex(&v6.octets()), "08")), Some(v6.into()));
        assert_eq!(peer(&line(&hex(&v4.to_ipv6_mapped().octets()), "02")), Some(v4.into()));
        for state in ENDED_STATES {
            assert_eq!(peer(&line(&hex(&v4.octets()), state)), None);
        }
        for odd in ["", "cut sho", "  sl  local_address rem_address   st tx_queue", "0: 1:2 3:4 01"]
        {
            assert_eq!(peer(odd), None, "{odd}");
        }
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect("127.77.0.9:9").unwrap();
        assert!(peers().contains(&"127.77.0.9".parse::<IpAddr>().unwrap()));
    }
}
