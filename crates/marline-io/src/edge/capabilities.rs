//! Capabilities of a process.

/// Capabilities that a process keeps, if it has them.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum KeptCapabilities {
    /// No capability.
    Nothing,
    /// Changing the network configuration and packet marks (CAP_NET_ADMIN).
    NetAdmin,
    /// Listening on ports below 1024 (CAP_NET_BIND_SERVICE).
    LowPorts,
    /// Network diagnosis: raw sockets, ports below 1024, and reading firewall rules.
    Diagnosis,
}
