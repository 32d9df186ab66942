//! TCP services of this machine that somebody on another one is connected to.
//!
//! Answers go where routing leads, and that is the tunnel now: whoever came in by ssh from beyond the local network
//! would lose the connection by which he has just taken the machine to the tunnel.

use std::collections::{BTreeMap, BTreeSet};

/// States of `/proc/net/tcp`.
const ESTABLISHED: &str = "01";
const LISTENING: &str = "0A";

/// Their ports.
pub(super) fn in_use() -> BTreeSet<u16> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let texts = tables.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    ports(&texts.collect::<String>())
}

/// The ports that are listened at and connected from elsewhere, by the text of the tables.
fn ports(tables: &str) -> BTreeSet<u16> {
    let mut connected: BTreeMap<u16, bool> = BTreeMap::new();
    let mut listening = BTreeSet::new();
    for line in tables.lines() {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(remote), Some(state)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(port) = port(local) else { continue };
        match state {
            LISTENING => {
                listening.insert(port);
            }
            ESTABLISHED => *connected.entry(port).or_default() |= !is_loopback(remote),
            _ => {}
        }
    }
    listening.retain(|port| connected.get(port) == Some(&true));
    listening
}

fn port(end: &str) -> Option<u16> {
    u16::from_str_radix(end.rsplit_once(':')?.1, 16).ok()
}

/// The address is in the machine's byte order, word by word.
fn is_loopback(end: &str) -> bool {
    let Some((address, _)) = end.rsplit_once(':') else { return false };
    let last = address.get(address.len().saturating_sub(8)..).unwrap_or_default();
    let Ok(word) = u32::from_str_radix(last, 16) else { return false };
    let bytes = word.to_ne_bytes();
    let zeros = |text: &str| text.bytes().all(|digit| digit == b'0');
    match address.len() {
        8 => bytes[0] == 127,
        32 if zeros(&address[..16]) && zeros(&address[16..24]) => bytes == [0, 0, 0, 1],
        // IPv4 in IPv6.
        32 if zeros(&address[..16]) => bytes[0] == 127,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_with_a_connection_from_elsewhere_are_found() {
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
            line(&any, 22, &any, LISTENING),
            line(&hex([192, 0, 2, 1]), 22, &hex([203, 0, 113, 9]), ESTABLISHED),
            // Of this machine alone.
            line(&any, 631, &any, LISTENING),
            line(&hex([127, 0, 0, 1]), 631, &hex([127, 0, 0, 1]), ESTABLISHED),
            line(&mapped([127, 0, 0, 1]), 631, &mapped([127, 0, 0, 1]), ESTABLISHED),
            // Nobody is there.
            line(&any, 80, &any, LISTENING),
            // Nobody listens: it went out.
            line(&hex([192, 0, 2, 1]), 40_000, &hex([203, 0, 113, 9]), ESTABLISHED),
            // By IPv6.
            line(&"0".repeat(32), 443, &"0".repeat(32), LISTENING),
            line(&mapped([192, 0, 2, 1]), 443, &mapped([203, 0, 113, 9]), ESTABLISHED),
            "cut sho".to_owned(),
        ];
        assert_eq!(ports(&text.concat()), BTreeSet::from([22, 443]));
    }
}
