//! Compact four-tuples: IPv4 ones, the most frequent, take 12 bytes instead of 64.

use core::hash::{Hash, Hasher};
use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::FourTuple;

/// An IPv4 four-tuple.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Tuple {
    local: u32,
    remote: u32,
    local_port: u16,
    remote_port: u16,
}

impl Ipv4Tuple {
    /// Compact form of an IPv4 path; `None` for IPv6.
    pub(crate) const fn from_path(path: &FourTuple) -> Option<Self> {
        let (SocketAddr::V4(local), SocketAddr::V4(remote)) = (path.local, path.remote) else {
            return None;
        };
        Some(Ipv4Tuple {
            local: local.ip().to_bits(),
            remote: remote.ip().to_bits(),
            local_port: local.port(),
            remote_port: remote.port(),
        })
    }

    const fn path(self) -> FourTuple {
        const fn end(ip: u32, port: u16) -> SocketAddr {
            SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::from_bits(ip), port))
        }
        FourTuple {
            local: end(self.local, self.local_port),
            remote: end(self.remote, self.remote_port),
        }
    }
}

impl Hash for Ipv4Tuple {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.local) << 32 | u64::from(self.remote));
        state.write_u32(u32::from(self.local_port) << 16 | u32::from(self.remote_port));
    }
}

/// A four-tuple for long-term storage.
#[derive(Clone, Debug)]
pub(crate) enum CompactPath {
    Ipv4(Ipv4Tuple),
    Other(Box<FourTuple>),
}

impl From<FourTuple> for CompactPath {
    fn from(path: FourTuple) -> Self {
        Ipv4Tuple::from_path(&path)
            .map_or_else(|| CompactPath::Other(Box::new(path)), CompactPath::Ipv4)
    }
}

impl CompactPath {
    /// Original four-tuple.
    pub(crate) fn path(&self) -> FourTuple {
        match self {
            CompactPath::Ipv4(tuple) => tuple.path(),
            CompactPath::Other(path) => **path,
        }
    }

    /// Local and remote address.
    pub(crate) fn ips(&self) -> (IpAddr, IpAddr) {
        match self {
            CompactPath::Ipv4(Ipv4Tuple { local, remote, .. }) => {
                (Ipv4Addr::from_bits(*local).into(), Ipv4Addr::from_bits(*remote).into())
            }
            CompactPath::Other(path) => (path.local.ip(), path.remote.ip()),
        }
    }

    /// Local and remote port.
    pub(crate) fn ports(&self) -> (u16, u16) {
        match self {
            CompactPath::Ipv4(tuple) => (tuple.local_port, tuple.remote_port),
            CompactPath::Other(path) => (path.local.port(), path.remote.port()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_paths_convert_back_unchanged() {
        for (local, remote) in [
            ("192.0.2.1:40000", "198.51.100.1:443"),
            ("[2001:db8::1%7]:40000", "[2001:db8::2]:443"),
            ("[::ffff:192.0.2.1]:1", "192.0.2.2:65535"),
        ] {
            let path = FourTuple { local: local.parse().unwrap(), remote: remote.parse().unwrap() };
            let compact = CompactPath::from(path);
            assert_eq!(compact.path(), path);
            assert_eq!(compact.ips(), (path.local.ip(), path.remote.ip()));
            assert_eq!(compact.ports(), (path.local.port(), path.remote.port()));
        }
        assert_eq!(size_of::<CompactPath>(), 16);
    }
}
