//! Fast Open of a connection (RFC 7413, RFC 8684 appendix B): content of the first SYN and of its answer.
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
//! A repeated SYN has neither option nor data. Data that the SYN/ACK does not acknowledge is sent again immediately.
//!
//! *Multipath TCP.* Data in the SYN precedes both sequence spaces of a mapping: the byte after it has DSN IDSN + 1
//! and SSN 1 (docs/spec, cap-12 and cap-13). Internally, positions count from the SYN as usual. [`Session`] converts
//! them to wire values.
//!
//! *One SYN.* A connection whose SYN carried data is not tried over several paths at once: each of those SYNs
//! would open a connection of its own at the server, and the data might be processed twice
//! (docs/decisions/opening.md).
//!
//! [`Session`]: super::session::Session

use marline_wire::FastOpenOption;

use crate::on_demand::UnusedState;

/// Fast Open decision about a received SYN.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct FastOpenVerdict {
    /// Data is accepted, and answered before the third ACK.
    pub(crate) opens: bool,
    /// Cookie to send with the SYN/ACK.
    pub(crate) answer: Option<FastOpenOption>,
}

/// Fast Open state of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct FastOpening {
    /// Client: the first SYN was built, with or without Fast Open.
    planned: bool,
    /// Option of our SYN or SYN/ACK.
    option: Option<FastOpenOption>,
    /// Client: bytes of data in the SYN.
    carried: u64,
    /// Server: the connection was passed to the application before the third ACK.
    early: bool,
}

impl UnusedState for FastOpening {
    const UNUSED: &'static Self =
        &FastOpening { planned: false, option: None, carried: 0, early: false };
}

impl FastOpening {
    /// Client: fixes the content of the first SYN: this option and number of data bytes.
    pub(super) const fn plan_syn(&mut self, option: Option<FastOpenOption>, carried: u64) {
        (self.planned, self.option, self.carried) = (true, option, carried);
    }

    /// Client: true if the first SYN is fixed, so that Fast Open is no longer possible.
    pub(super) const fn is_planned(&self) -> bool {
        self.planned
    }

    /// Client: true if the SYN used Fast Open.
    pub(super) const fn was_tried(&self) -> bool {
        self.option.is_some() || self.carried > 0
    }

    /// Option of our first SYN, or of our SYN/ACK.
    pub(super) const fn option(&self) -> Option<FastOpenOption> {
        self.option
    }

    /// Client: bytes of data in the SYN.
    pub(super) const fn carried_bytes(&self) -> u64 {
        self.carried
    }

    /// Server: sets the Fast Open answer to the SYN.
    pub(super) const fn answer(&mut self, verdict: FastOpenVerdict) {
        (self.option, self.early) = (verdict.answer, verdict.opens);
    }

    /// Server: true if the SYN already passed the connection to the application.
    pub(super) const fn is_early(&self) -> bool {
        self.early
    }
}
