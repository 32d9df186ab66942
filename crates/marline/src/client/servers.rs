//! Addresses of a client's servers: name resolution over every path, and additional addresses for connections.

use core::net::{IpAddr, SocketAddr};

use marline_io::{LocalEnd, lookup_over};
use tokio::task::JoinSet;

use super::{Client, lock};

impl Client {
    /// Resolves a host name over all paths in parallel, each with the resolvers of its own network, and returns the
    /// first answer with an address. The operating system's resolution might be waiting for a failed network. Takes at
    /// most three seconds. The result is empty if no path's resolvers have an answer.
    pub async fn resolve(&self, host: &str) -> Vec<IpAddr> {
        let mut asking: JoinSet<_> = lock(&self.inner.paths)
            .usable_local_ends()
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

    /// Adds `new` addresses of the server at these `old` addresses, for example after its name has changed. Connections
    /// to this server open subflows to the new addresses, and move there if the server has taken their state along.
    /// Returns the number of these connections.
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
