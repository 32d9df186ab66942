//! Times after which a tunnel gives something up.

use std::time::Duration;

/// Timeouts of a tunnel.
#[derive(Copy, Clone, Debug)]
pub struct Patience {
    /// For the stream below TLS.
    pub connect: Duration,
    /// For TLS and the server's Welcome.
    pub handshake: Duration,
    /// For the server's answer to an opening with a session, after which a second connection is tried beside.
    pub hedge: Duration,
    /// For a warm connection's `Working`; it costs one round trip and no work.
    pub warm: Duration,
    /// For the target; the server gives up before.
    pub target: Duration,
    /// For an overloaded server, over all attempts together.
    pub busy: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            connect: Duration::from_secs(30),
            handshake: Duration::from_secs(20),
            hedge: Duration::from_secs(2),
            warm: Duration::from_secs(3),
            target: Duration::from_secs(45),
            busy: Duration::from_secs(30),
        }
    }
}
