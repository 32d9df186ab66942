//! Socket options: those that mean something to the core, and those that are only remembered.

use std::collections::BTreeMap;

use libc::c_int;
use marline_core::ConnectionConfig;
use marline_time::Duration;

/// `TCP_MD5SIG`, which Multipath TCP excludes.
pub(crate) const TCP_MD5SIG: c_int = 14;
/// `TCP_NOTSENT_LOWAT`.
pub(crate) const TCP_NOTSENT_LOWAT: c_int = 25;
/// `SOL_MPTCP`.
pub(crate) const SOL_MPTCP: c_int = 284;

/// What was set on a socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketOptions {
    /// Twice what was asked for, as the kernel counts its own bookkeeping in.
    pub(crate) send_buffer: Option<u64>,
    pub(crate) no_delay: bool,
    pub(crate) cork: bool,
    pub(crate) max_segment: Option<u16>,
    pub(crate) user_timeout: Option<Duration>,
    pub(crate) notsent_lowat: u32,
    pub(crate) tos: u8,
    pub(crate) send_timeout: Option<Duration>,
    pub(crate) receive_timeout: Option<Duration>,
    /// `SO_LINGER` with a time of zero: closing resets.
    pub(crate) abort_on_close: bool,
    /// Everything else, as it was set.
    pub(crate) others: BTreeMap<(c_int, c_int), c_int>,
}

impl SocketOptions {
    /// What of it is a connection's configuration.
    pub(crate) fn apply(&self, config: &mut ConnectionConfig) {
        config.nagle = !self.no_delay;
        config.max_segment_size = self.max_segment;
    }
}
