//! systemd-resolved, where it is this machine's resolver: it asks per interface, and has to be told of this one.
//!
//! What it is told belongs to the interface and is forgotten with it. It binds its sockets to the interface that a
//! resolver is of, so rules do not lead its queries to the tunnel; hence this.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// It answers here.
const SOCKET: &str = "/run/systemd/resolve/io.systemd.Resolve";

/// Tells it that all names are asked for at `resolver`, through `interface`. Returns whether it does;
/// `None`: it is not this machine's.
pub(super) fn tell(interface: &str, resolver: IpAddr) -> Option<bool> {
    if !Path::new(SOCKET).exists() || !is_ours() {
        return None;
    }
    let resolver = resolver.to_string();
    for arguments in [
        ["dns", interface, &resolver],
        ["domain", interface, "~."],
        ["default-route", interface, "yes"],
    ] {
        let said = Command::new("resolvectl").args(arguments).output();
        let failed = match said {
            Ok(output) if output.status.success() => continue,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(
            "systemd-resolved does not ask the tunnel's resolver (resolvectl {}: {failed}): programs that use \
             systemd-resolved cannot resolve names, since queries to the network's resolver may not leave \
             around the tunnel",
            arguments.join(" ")
        );
        return Some(false);
    }
    Some(true)
}

/// Whether it serves this network namespace: it is in the first process'.
fn is_ours() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // Who may not look at the first process is not root of this machine.
    namespace("1").is_some_and(|first| namespace("self") == Some(first))
}
