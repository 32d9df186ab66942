//! Interfaces of this machine from getifaddrs(3), without routes, so paths must be configured. Changes are found by
//! polling.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;

use crate::edge::interface::Interface;

/// Interval of polling.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Lists all interfaces, by index.
///
/// # Errors
/// Fails if the interfaces cannot be listed.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let mut first: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the pointer refers to a live variable, to which the call writes the head of the list.
    if unsafe { libc::getifaddrs(&raw mut first) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut list: BTreeMap<u32, Interface> = BTreeMap::new();
    let mut next = first;
    // SAFETY: each entry is null or lives until `freeifaddrs`.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        add(&mut list, entry);
    }
    // SAFETY: the list came from `getifaddrs` and is no longer used.
    unsafe { libc::freeifaddrs(first) };
    Ok(list.into_values().collect())
}

/// Adds one entry: an interface with one of its addresses.
fn add(list: &mut BTreeMap<u32, Interface>, entry: &libc::ifaddrs) {
    // SAFETY: the name is a string that lives as long as the entry.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: as above.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let flags = entry.ifa_flags as libc::c_int;
    let has = |wanted: libc::c_int| flags & wanted == wanted;
    let interface = list.entry(index).or_default();
    interface.index = index;
    interface.name = name.to_string_lossy().into_owned();
    interface.up = has(libc::IFF_UP | libc::IFF_RUNNING);
    interface.loopback = has(libc::IFF_LOOPBACK);
    interface.tunnel = has(libc::IFF_POINTOPOINT);
    interface.addresses.extend(address(entry).filter(|ip| interface.loopback || is_usable(*ip)));
}

fn address(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: null, or an address that lives as long as the entry.
    let family = unsafe { entry.ifa_addr.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: the family identifies the type; the struct is plain data.
            let v4 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

const fn is_usable(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    }
}

/// Changes to interfaces and addresses.
#[derive(Debug)]
pub(crate) struct Changes {
    known: Vec<Interface>,
}

impl Changes {
    /// Takes a first snapshot.
    ///
    /// # Errors
    /// Fails if the interfaces cannot be listed.
    pub(crate) fn watch() -> io::Result<Self> {
        Ok(Changes { known: list()? })
    }

    /// Waits for a change.
    ///
    /// # Errors
    /// Fails if the interfaces cannot be listed.
    pub(crate) async fn wait_until_settled(&mut self) -> io::Result<()> {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = list()?;
            if now != self.known {
                self.known = now;
                return Ok(());
            }
        }
    }
}
