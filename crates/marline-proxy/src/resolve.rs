//! Name resolution, with the addresses in the order in which they are tried (RFC 8305).

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use crate::message::{ErrorCode, Failure};
use crate::target::{Host, Target};

/// A name that does not resolve within this time has no address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest number of addresses tried for one name.
const MAX_ADDRESSES: usize = 8;

/// The addresses of a target with alternating families, starting with the resolver's first address.
///
/// # Errors
/// The target has no address, or the resolver failed.
pub async fn resolve(target: &Target) -> Result<Vec<SocketAddr>, Failure> {
    let name = match &target.host {
        Host::V4(address) => return Ok(vec![(*address, target.port).into()]),
        Host::V6(address) => return Ok(vec![(*address, target.port).into()]),
        Host::Name(name) => name,
    };
    let unreachable = |why: String| {
        Failure::new(ErrorCode::DestinationUnreachable, format!("{name} does not resolve: {why}"))
    };
    match timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), target.port))).await {
        Err(_) => Err(unreachable("no answer".into())),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Ok(Ok(addresses)) => Ok(alternate(addresses)),
    }
}

/// The first address of the first family, the first of the other, the second of the first ...
fn alternate(addresses: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let addresses: Vec<SocketAddr> = addresses.collect();
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.into_iter().partition(|a| a.is_ipv6() == first_is_v6);
    first.reverse();
    second.reverse();
    let mut out = Vec::new();
    while out.len() < MAX_ADDRESSES && !(first.is_empty() && second.is_empty()) {
        out.extend(first.pop());
        out.extend(second.pop());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_alternate() {
        let addresses = ["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1"].map(|a| a.parse().unwrap());
        let order: Vec<String> =
            alternate(addresses.into_iter()).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["[::1]:1", "1.0.0.1:1", "[::2]:1", "[::3]:1"]);
    }
}
