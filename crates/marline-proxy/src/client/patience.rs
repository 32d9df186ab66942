//! Timeouts of a tunnel.

use std::time::Duration;

/// Timeouts of a tunnel.
#[derive(Copy, Clone, Debug)]
pub struct Timeouts {
    /// Time limit for the stream below TLS.
    pub connect: Duration,
    /// Time limit for TLS and the server's Welcome.
    pub handshake: Duration,
    /// Time for the server's answer to an opening with a session, after which a second connection is tried in
    /// parallel, unless the path is known to be silent before that.
    pub hedge: Duration,
    /// Time limit for `Working` on a warm connection, which needs one round trip and no other work.
    pub warm: Duration,
    /// Time limit for the answer about the target. The server gives up earlier.
    pub target: Duration,
    /// Time limit for an overloaded server, over all attempts together.
    pub overload: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            connect: Duration::from_secs(30),
            handshake: Duration::from_secs(20),
            hedge: Duration::from_secs(2),
            warm: Duration::from_secs(3),
            target: Duration::from_secs(45),
            overload: Duration::from_secs(30),
        }
    }
}
