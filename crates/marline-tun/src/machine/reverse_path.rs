//! Reverse path filter (RFC 3704): strict, it drops what servers answer to Marline's own packets.
//!
//! The strict filter (`net.ipv4.conf.*.rp_filter` = 1) takes a packet only from the interface that its source would
//! be answered through. To our server that is now the tunnel's, for the filter knows no marks. The loose one asks
//! only that there be a way back, and is what most distributions set. The larger of an interface's value and that of
//! `all` counts.

use std::fs;
use std::path::Path;

const CONF: &str = "/proc/sys/net/ipv4/conf";
const STRICT: u8 = 1;
const LOOSE: u8 = 2;

/// The value of `all` before it was changed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct ReversePath(u8);

impl ReversePath {
    /// Loosens the filter if it is strict anywhere, and returns what it was.
    pub(super) fn loosen() -> Option<ReversePath> {
        let before = value("all")?;
        let strict_somewhere = fs::read_dir(CONF).ok()?.flatten().any(|interface| {
            let name = interface.file_name();
            name.to_str().and_then(value) == Some(STRICT)
        });
        if !strict_somewhere || before >= LOOSE {
            return None;
        }
        match set(LOOSE) {
            Ok(()) => {
                tracing::info!(
                    "the reverse path filter is loose (net.ipv4.conf.all.rp_filter) meanwhile"
                );
                Some(ReversePath(before))
            }
            Err(error) => {
                tracing::warn!(
                    "the reverse path filter is strict and cannot be changed ({error}): answers of the server \
                     may be dropped; sysctl net.ipv4.conf.all.rp_filter=2"
                );
                None
            }
        }
    }

    /// Sets it as it was.
    pub(super) fn restore(self) {
        if let Err(error) = set(self.0) {
            tracing::warn!("net.ipv4.conf.all.rp_filter stays {LOOSE}: {error}");
        }
    }

    /// One more than the value, as 0 says that there is none.
    pub(super) const fn to_byte(self) -> u8 {
        self.0 + 1
    }

    pub(super) const fn from_byte(byte: u8) -> Option<ReversePath> {
        match byte {
            before @ 1..=LOOSE => Some(ReversePath(before - 1)),
            _ => None,
        }
    }
}

fn value(interface: &str) -> Option<u8> {
    fs::read_to_string(Path::new(CONF).join(interface).join("rp_filter")).ok()?.trim().parse().ok()
}

fn set(value: u8) -> std::io::Result<()> {
    fs::write(Path::new(CONF).join("all/rp_filter"), value.to_string())
}
