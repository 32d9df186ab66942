//! Listener for NAT64 prefixes that routers advertise (RFC 8781). The kernel passes such options only to current
//! listeners and does not store them.

use std::io;

use marline_wire::{Pref64, router_options};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::message::{self, Message};
use super::netlink::Netlink;
use crate::edge::descriptor::watch;

/// Multicast group of RTM_NEWNDUSEROPT (RTNLGRP_ND_USEROPT, 20), as a mask.
const ND_USEROPT: u32 = 1 << (20 - 1);
/// Buffer size per read: the kernel sends each option separately, with at most 2,040 bytes.
const READ_BYTES: usize = 8 << 10;

/// Listener for prefixes that routers advertise.
#[derive(Debug)]
pub struct Pref64Listener {
    netlink: AsyncFd<Netlink>,
}

impl Pref64Listener {
    /// Starts the listener without privileges. Needs a tokio runtime with I/O.
    ///
    /// # Errors
    /// Fails if Netlink is not available.
    pub fn start() -> io::Result<Self> {
        let netlink = Netlink::open(ND_USEROPT)?;
        Ok(Pref64Listener { netlink: watch(netlink, Interest::READABLE)? })
    }

    /// Waits for the next advertised options. Returns at least one, with the index of the interface on which it
    /// arrived.
    ///
    /// # Errors
    /// Fails if Netlink fails.
    pub async fn next_options(&mut self) -> io::Result<Vec<(u32, Pref64)>> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let mut guard = self.netlink.readable().await?;
            match guard.try_io(|inner| inner.get_ref().read(&mut buffer)) {
                Ok(Ok(len)) => {
                    let prefixes = prefixes(&buffer[..len]);
                    if !prefixes.is_empty() {
                        return Ok(prefixes);
                    }
                }
                // Routers repeat advertisements that were lost here.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

/// Parses the prefixes in a kernel message.
fn prefixes(bytes: &[u8]) -> Vec<(u32, Pref64)> {
    let mut found = Vec::new();
    for (_, message) in message::parse(bytes) {
        if let Message::RouterOptions { index, options } = message {
            let said = router_options(&options).filter_map(Pref64::parse);
            found.extend(said.map(|said| (index, said)));
        }
    }
    found
}
