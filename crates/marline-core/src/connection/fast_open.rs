//! Fast Open of a connection (RFC 7413, RFC 8684 appendix B): what its first SYN is, or how the peer's is answered.
//!
//! ```text
//! client                                      server
//!   SYN      option (request)            ->
//!                                        <-   SYN/ACK  option (cookie)            remembered, see `fast_open_memory`
//!   ...
//!   SYN      option (cookie), data       ->                                       the application has the data
//!                                        <-   SYN/ACK  acknowledges SYN and data
//!                                        <-   data                                before the third ACK: plain TCP only
//!   ACK                                  ->
//! ```
//! A SYN that is repeated has neither option nor data. Data that is not acknowledged by the SYN/ACK goes again at once.
//!
//! *Multipath TCP.* What went with the SYN lies before both sequence spaces of a mapping: the byte behind it has
//! DSN IDSN + 1 and SSN 1 (docs/spec, cap-12 and cap-13). Inside, positions count from the SYN as ever; [`Session`]
//! shifts what stands on the wire.
//!
//! *One SYN.* A connection whose SYN carried data is not raced over other paths: each of those SYNs would open a
//! connection of its own at the server, and the data might be carried out twice (docs/decisions/opening.md).
//!
//! [`Session`]: super::session::Session

use marline_wire::FastOpenOption;

use crate::on_demand::Unused;

/// What Fast Open makes of a SYN that came in.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct FastOpenVerdict {
    /// Its data is taken, and answered before the third ACK.
    pub(crate) opens: bool,
    /// The cookie to send with the SYN/ACK.
    pub(crate) answer: Option<FastOpenOption>,
}

/// Fast Open of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct FastOpening {
    /// Client: the first SYN was built, with Fast Open or without.
    planned: bool,
    /// Of our SYN or SYN/ACK.
    option: Option<FastOpenOption>,
    /// Client: bytes that went with the SYN.
    carried: u64,
    /// Server: the application has the connection although the third ACK has not come.
    early: bool,
}

impl Unused for FastOpening {
    const UNUSED: &'static Self =
        &FastOpening { planned: false, option: None, carried: 0, early: false };
}

impl FastOpening {
    /// Client: the first SYN is what it is. `option` and bytes of data go with it.
    pub(super) const fn plan(&mut self, option: Option<FastOpenOption>, carried: u64) {
        (self.planned, self.option, self.carried) = (true, option, carried);
    }

    /// Client: it is too late for Fast Open.
    pub(super) const fn is_planned(&self) -> bool {
        self.planned
    }

    /// Client: the SYN had Fast Open in it.
    pub(super) const fn was_tried(&self) -> bool {
        self.option.is_some() || self.carried > 0
    }

    /// The option of our first SYN, or of our SYN/ACK.
    pub(super) const fn option(&self) -> Option<FastOpenOption> {
        self.option
    }

    /// Client: bytes that went with the SYN.
    pub(super) const fn carried(&self) -> u64 {
        self.carried
    }

    /// Server: how the SYN is answered.
    pub(super) const fn answer(&mut self, verdict: FastOpenVerdict) {
        (self.option, self.early) = (verdict.answer, verdict.opens);
    }

    /// Server: the application has the connection since the SYN.
    pub(super) const fn is_early(&self) -> bool {
        self.early
    }
}
