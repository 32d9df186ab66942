//! SOCKS version 4 and 4a: CONNECT, as used by `ssh -D`-style clients and `curl --socks4`.
//!
//! ```text
//! client  4, command, port, address, user id, 0            server  0, reply, port, address
//! client  4, command, port, 0.0.0.x, user id, 0, name, 0   (4a: the server resolves the name; x is not 0)
//! ```
//! BIND is rejected. The user id is read and ignored, since it is not verified.

use std::net::Ipv4Addr;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::{CONNECT, Request, SocksError, Version};
use crate::target::{Host, Target};

/// Longest user id and longest name in bytes. The limit of a name is that of DNS.
pub const MAX_TEXT_BYTES: usize = 255;

/// Reply code "request granted".
pub(super) const GRANTED: u8 = 90;
/// Reply code "request rejected or failed". The other two codes concern identd, which is not used.
pub(super) const REJECTED: u8 = 91;

/// Reads the part of a request after its version, and no byte beyond it.
pub(super) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<Request, SocksError> {
    let command = stream.read_u8().await?;
    let port = stream.read_u16().await?;
    let address = Ipv4Addr::from(stream.read_u32().await?);
    read_text(stream, "user id").await?;
    let [a, b, c, last] = address.octets();
    let host = if [a, b, c] == [0; 3] && last != 0 {
        let name = read_text(stream, "host name").await?;
        Host::parse(&String::from_utf8_lossy(&name))
    } else {
        Ok(Host::V4(address))
    };
    // Checked after the whole request has been read: unread data would make closing reset the connection and lose
    // the reply.
    if command != CONNECT {
        return Err(SocksError::Command(Version::Four, command));
    }
    Ok(Request::Connect(Target::new(host?, port)?))
}

/// Reads a text up to its zero byte.
async fn read_text(
    stream: &mut (impl AsyncRead + Unpin),
    of: &'static str,
) -> Result<Vec<u8>, SocksError> {
    let mut text = Vec::new();
    loop {
        match stream.read_u8().await? {
            0 => return Ok(text),
            _ if text.len() == MAX_TEXT_BYTES => return Err(SocksError::TooLong(of)),
            byte => text.push(byte),
        }
    }
}
