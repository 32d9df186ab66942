//! The server's own resolver, which clients may query regardless of the rules for targets.
//!
//! A client's resolver is often one that the server cannot reach, such as a home router. The server's own resolver
//! always works there. Clients request it as [`Target::server_resolver`](crate::target::Target). It is often on the
//! server's loopback or private network, which the rules forbid. The client gets DNS over TCP to exactly that address
//! and port. `--deny` with this address forbids it.

use std::net::{IpAddr, SocketAddr};

use crate::message::{ErrorCode, Failure};
use crate::rules::Rules;
use crate::udp::DNS_PORT;
use marline_io::resolv_conf;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Number of resolvers in a `resolv.conf` that the C library uses (MAXNS).
const MAX_RESOLVERS: usize = 3;

/// Returns the addresses of the resolvers, in order.
///
/// # Errors
/// There are no resolvers, or the rules deny all of them.
pub(super) fn addresses(rules: &Rules) -> Result<Vec<SocketAddr>, Failure> {
    // Without the file, the C library queries this machine.
    let text =
        std::fs::read_to_string(RESOLV_CONF).unwrap_or_else(|_| "nameserver 127.0.0.1".into());
    let mut refusal = None;
    let mut allowed = Vec::new();
    for address in parse_resolvers(&text) {
        match rules.check_denied(address) {
            Ok(()) => allowed.push(SocketAddr::new(address, DNS_PORT)),
            Err(refused) => refusal = refusal.or(Some(refused)),
        }
    }
    match (allowed.is_empty(), refusal) {
        (false, _) => Ok(allowed),
        (true, Some(refused)) => Err(Failure::new(refused.code(), refused.to_string())),
        (true, None) => {
            let text = format!("{RESOLV_CONF} names no usable resolver");
            Err(Failure::new(ErrorCode::DestinationUnreachable, text))
        }
    }
}

/// Returns the resolvers listed in a `resolv.conf`, up to the number that the C library uses.
fn parse_resolvers(text: &str) -> Vec<IpAddr> {
    resolv_conf::addresses(text).take(MAX_RESOLVERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_three_resolvers_are_used_and_comments_are_ignored() {
        let text = "# nameserver 192.0.2.9\nnameserver 127.0.0.53 # stub\nnameserver\t2001:db8::1\n\
                    nameserver fe80::1%eth0\nnameserverx 9\nnameserver 1.1.1.1\nnameserver 1.0.0.1";
        let shown: Vec<String> = parse_resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["127.0.0.53", "2001:db8::1", "1.1.1.1"]);
    }
}
