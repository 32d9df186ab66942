//! systemd-resolved as this machine's resolver: it uses resolvers per interface and must be configured for ours.
//!
//! This configuration belongs to the interface and disappears with it. It is needed because systemd-resolved binds
//! its sockets to the interface of a resolver, so that rules do not route its queries to the tunnel.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

/// Path of systemd-resolved's socket.
const SOCKET: &str = "/run/systemd/resolve/io.systemd.Resolve";

/// Configures systemd-resolved to send all queries to `resolver` through `interface`. Returns true if that succeeded,
/// or `None` if it is not this machine's resolver.
pub(super) fn configure_resolved(interface: &str, resolver: IpAddr) -> Option<bool> {
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
            "systemd-resolved does not use the tunnel's resolver (resolvectl {}: {failed}): programs that use \
             systemd-resolved cannot resolve names, as queries to the network's resolver must not bypass \
             the tunnel",
            arguments.join(" ")
        );
        return Some(false);
    }
    Some(true)
}

/// Returns true if systemd-resolved serves this network namespace, which is that of process 1.
fn is_ours() -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // A process that may not read the namespace of process 1 is not root on this machine.
    namespace("1").is_some_and(|first| namespace("self") == Some(first))
}
