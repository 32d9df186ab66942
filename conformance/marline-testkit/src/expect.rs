//! Expectations on a segment, written like the segments themselves.

use marline_wire::mptcp::MptcpOption;
use marline_wire::{SeqNum, TcpFlags};

use crate::Seg;

type Check = Box<dyn Fn(&Seg) -> bool>;

/// Expectations on one segment. Other properties may have any value.
#[derive(Default)]
pub struct Expect {
    checks: Vec<(String, Check)>,
}

impl core::fmt::Debug for Expect {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.checks.iter().map(|(what, _)| what)).finish()
    }
}

impl Expect {
    /// Any segment.
    #[must_use]
    pub fn any() -> Self {
        Expect::default()
    }

    /// Requires that `check` holds. `what` describes it in a failure message.
    #[must_use]
    pub fn that(mut self, what: &str, check: impl Fn(&Seg) -> bool + 'static) -> Self {
        self.checks.push((what.to_owned(), Box::new(check)));
        self
    }

    /// Requires exactly these flags, except for PSH, on which no receiver relies.
    #[must_use]
    pub fn flags(self, flags: TcpFlags) -> Self {
        let what = format!("flags {:#05x}", flags.0);
        self.that(&what, move |s| {
            s.header.flags.without(TcpFlags::PSH) == flags.without(TcpFlags::PSH)
        })
    }

    /// Requires this sequence number.
    #[must_use]
    pub fn at(self, seq: SeqNum) -> Self {
        self.that(&format!("sequence number {}", seq.0), move |s| s.header.seq == seq)
    }

    /// Requires this acknowledgment number.
    #[must_use]
    pub fn acking(self, ack: SeqNum) -> Self {
        let what = format!("acknowledgment number {}", ack.0);
        self.that(&what, move |s| s.header.flags.contains(TcpFlags::ACK) && s.header.ack == ack)
    }

    /// Requires this payload.
    #[must_use]
    pub fn payload(self, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        self.that(&format!("{} bytes of payload", bytes.len()), move |s| s.payload == bytes)
    }

    /// Requires a pure ACK: no payload and no flag except ACK.
    #[must_use]
    pub fn pure_ack(self) -> Self {
        self.flags(TcpFlags::ACK).payload(b"")
    }

    /// Requires an MPTCP option for which `check` holds.
    #[must_use]
    pub fn mptcp(self, what: &str, check: impl Fn(&MptcpOption) -> bool + 'static) -> Self {
        self.that(what, move |s| s.options.mptcp.iter().any(|o| check(&o)))
    }

    /// Requires that there is no MPTCP option.
    #[must_use]
    pub fn plain_tcp(self) -> Self {
        self.that("no MPTCP option", |s| !s.options.has_mptcp())
    }

    /// Requires this DATA_ACK, in either length.
    #[must_use]
    pub fn data_ack(self, ack: u64) -> Self {
        let what = format!("DATA_ACK {ack}");
        self.that(&what, move |s| {
            s.dss().data_ack.is_some_and(|found| found.unwrap_near(ack) == Some(ack))
        })
    }

    /// Requires a mapping that starts at this data sequence number.
    #[must_use]
    pub fn mapping_at(self, dsn: u64) -> Self {
        let what = format!("a mapping at {dsn}");
        self.that(&what, move |s| {
            s.dss().mapping.is_some_and(|found| found.dsn.unwrap_near(dsn) == Some(dsn))
        })
    }

    /// The first requirement that `segment` does not meet.
    #[must_use]
    pub fn missing(&self, segment: &Seg) -> Option<&str> {
        self.checks.iter().find(|(_, check)| !check(segment)).map(|(what, _)| what.as_str())
    }
}
