//! STUN binding (RFC 8489), both ends, by which applications learn the address at which others reach them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const MAGIC: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const REQUEST: [u8; 2] = [0, 1];
const SUCCESS: [u8; 2] = [1, 1];
const XOR_MAPPED_ADDRESS: [u8; 2] = [0, 0x20];
const HEADER_BYTES: usize = 20;

/// Returns a binding request.
pub(crate) fn request(transaction: [u8; 12]) -> Vec<u8> {
    [&REQUEST[..], &[0, 0], &MAGIC, &transaction].concat()
}

/// Returns a server's answer to a request from `from`, or `None` if it is not a binding request.
pub(crate) fn answer(request: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
    let header = request.get(..HEADER_BYTES)?;
    if header[..2] != REQUEST || header[4..8] != MAGIC {
        return None;
    }
    let key = &header[4..];
    let (family, ip) = match from.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let mut value = vec![0, family];
    value.extend(xored(&from.port().to_be_bytes(), key));
    value.extend(xored(&ip, key));
    let mut answer = SUCCESS.to_vec();
    answer.extend([0, value.len() as u8 + 4]);
    answer.extend(key);
    answer.extend(XOR_MAPPED_ADDRESS);
    answer.extend([0, value.len() as u8]);
    answer.extend(value);
    Some(answer)
}

/// Returns the address in the answer to `transaction`.
pub(crate) fn mapped(answer: &[u8], transaction: [u8; 12]) -> Option<SocketAddr> {
    let (header, attributes) = answer.split_at_checked(HEADER_BYTES)?;
    if header[..2] != SUCCESS || header[4..8] != MAGIC || header[8..] != transaction {
        return None;
    }
    let (attribute, value) = attributes.split_at_checked(4)?;
    if attribute[..2] != XOR_MAPPED_ADDRESS {
        return None;
    }
    let (family, rest) = value.split_at_checked(2)?;
    let (port, ip) = rest.split_at_checked(2)?;
    let ip = xored(ip, &header[4..]);
    let ip = match family[1] {
        1 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(ip).ok()?)),
        2 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(ip).ok()?)),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(xored(port, &MAGIC).try_into().ok()?)))
}

fn xored(bytes: &[u8], key: &[u8]) -> Vec<u8> {
    bytes.iter().zip(key).map(|(byte, key)| byte ^ key).collect()
}
