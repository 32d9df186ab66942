//! Addresses of a client's servers: names are resolved over every path, and connections learn of further addresses.

use core::net::{IpAddr, SocketAddr};

use marline_io::{LocalEnd, lookup_over};
use tokio::task::JoinSet;

use super::{Client, lock};

impl Client {
    /// Resolves a host's name over all paths at once, each by the resolvers of its own network, and gives the first
    /// answer with an address. The system's own resolution may be waiting for a network that is dead. Takes three
    /// seconds at most; empty: no path's resolvers have an answer.
    pub async fn resolve(&self, host: &str) -> Vec<IpAddr> {
        let mut asking: JoinSet<_> = lock(&self.inner.paths)
            .ends_in_use()
            .into_iter()
            .map(|end: LocalEnd| {
                let host = host.to_owned();
                async move { lookup_over(&end, &host).await }
            })
            .collect();
        while let Some(answer) = asking.join_next().await {
            match answer {
                Ok(Ok(found)) if !found.is_empty() => return found,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::debug!(host, "lookup over a path failed: {error}"),
                Err(error) => tracing::debug!(host, "lookup over a path failed: {error}"),
            }
        }
        Vec::new()
    }

    /// The server at these `old` addresses is reached at the `new` ones, as its name says by now: connections to it
    /// open subflows there and move if the server has taken them along. Gives how many connections there are.
    pub fn add_server_addresses(&self, old: &[SocketAddr], new: &[SocketAddr]) -> usize {
        self.inner.shard.with_endpoint(|endpoint, now| {
            let connections = endpoint.connections_to(old);
            for id in &connections {
                for address in new {
                    endpoint.add_remote_address(now, *id, *address);
                }
            }
            connections.len()
        })
    }
}
