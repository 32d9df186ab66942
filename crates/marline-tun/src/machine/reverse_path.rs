//! Reverse path filter (RFC 3704), which in strict mode drops a server's replies to Marline's own packets.
//!
//! The strict filter (`net.ipv4.conf.*.rp_filter` = 1) accepts a packet only from the interface to which a reply to its
//! source would be routed. For our server that is now the tunnel's interface, because the filter ignores marks. The
//! loose filter requires only that a route to the source exists, and most distributions use it. The larger of the
//! interface's value and the value of `all` applies.

use std::fs;
use std::path::Path;

use super::records;

const CONF: &str = "/proc/sys/net/ipv4/conf";
const STRICT: u8 = 1;
const LOOSE_MODE: u8 = 2;
/// File with the value of `all` before the change.
const RECORD_NAME: &str = "rp_filter";

/// Loosens the filter if it is strict on any interface. The previous value is recorded so that it can be restored.
pub(super) fn loosen_filter() {
    let Some(before) = value("all") else { return };
    let strict = |interface: &str| value(interface) == Some(STRICT);
    let strict_somewhere = fs::read_dir(CONF).is_ok_and(|interfaces| {
        interfaces.flatten().any(|interface| interface.file_name().to_str().is_some_and(strict))
    });
    if !strict_somewhere || before >= LOOSE_MODE {
        return;
    }
    let recorded = records::file(RECORD_NAME).and_then(|path| fs::write(path, before.to_string()));
    if let Err(error) = recorded {
        tracing::warn!("net.ipv4.conf.all.rp_filter will not be restored to {before}: {error}");
    }
    match set(LOOSE_MODE) {
        Ok(()) => tracing::info!(
            "reverse path filter set to loose (net.ipv4.conf.all.rp_filter) until `marline up` ends"
        ),
        Err(error) => tracing::warn!(
            "the reverse path filter is strict and cannot be changed ({error}): answers from the server may \
             be dropped; run sysctl -w net.ipv4.conf.all.rp_filter=2"
        ),
    }
}

/// Restores the recorded value if it was changed.
pub(super) fn restore() {
    let Ok(record) = records::file(RECORD_NAME) else { return };
    let Ok(before) = fs::read_to_string(&record) else { return };
    let Some(before) = before.trim().parse().ok().filter(|before| *before < LOOSE_MODE) else {
        return;
    };
    match set(before) {
        Ok(()) => drop(fs::remove_file(record)),
        Err(error) => tracing::warn!(
            "cannot restore net.ipv4.conf.all.rp_filter; it remains {LOOSE_MODE}: {error}"
        ),
    }
}

fn value(interface: &str) -> Option<u8> {
    fs::read_to_string(Path::new(CONF).join(interface).join("rp_filter")).ok()?.trim().parse().ok()
}

fn set(value: u8) -> std::io::Result<()> {
    fs::write(Path::new(CONF).join("all/rp_filter"), value.to_string())
}
