//! Explicit Congestion Notification (RFC 3168).
//!
//! ECN is negotiated with ECE and CWR in the SYN and ECE in the SYN/ACK. Then new data is sent as ECT(0), and a
//! received mark (CE) is echoed as ECE on every ACK until the sender sets CWR. The sender reduces once per round
//! trip.

use marline_policy::Ssn;
use marline_wire::TcpFlags;

use crate::Ecn;

/// ECN state of both directions.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct EcnState {
    /// Both sides support ECN.
    pub(super) negotiated: bool,
    /// CE was received, and the sender has not set CWR since then.
    echo: bool,
    /// Our next new data sets CWR.
    must_send_cwr: bool,
    /// An echo counts again once SND.UNA is beyond this position.
    reduced_until: Ssn,
}

impl EcnState {
    /// True if a SYN offers ECN.
    pub(super) const fn offered(flags: TcpFlags) -> bool {
        flags.contains(TcpFlags::ECE.with(TcpFlags::CWR))
    }

    /// True if a SYN/ACK accepts ECN. Both bits set means a peer that reflects reserved bits.
    pub(super) const fn agreed(flags: TcpFlags) -> bool {
        flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
    }

    /// Handles a received segment. Returns true if the state of the echo changed, which requires an immediate ACK.
    pub(super) fn on_received(&mut self, flags: TcpFlags, ecn: Ecn, has_payload: bool) -> bool {
        if !self.negotiated {
            return false;
        }
        let before = self.echo;
        if has_payload && flags.contains(TcpFlags::CWR) {
            self.echo = false;
        }
        if ecn == Ecn::Ce {
            self.echo = true;
        }
        self.echo != before
    }

    /// Handles an ACK up to `una`, with or without ECE. Returns true if the window must be reduced.
    pub(super) fn on_ack(&mut self, flags: TcpFlags, una: Ssn, nxt: Ssn) -> bool {
        if !self.negotiated || !flags.contains(TcpFlags::ECE) || una <= self.reduced_until {
            return false;
        }
        self.reduced_until = nxt;
        self.must_send_cwr = true;
        true
    }

    /// Handles a reduction of the window for another reason. It also responds to the marks of this round trip, and
    /// the receiver must be informed (RFC 3168 section 6.1.2).
    pub(super) fn on_reduction(&mut self, nxt: Ssn) {
        if self.negotiated {
            self.reduced_until = nxt;
            self.must_send_cwr = true;
        }
    }

    /// True if the window was reduced and the data then in flight has not been acknowledged.
    pub(super) fn reduced_this_round(&self, una: Ssn) -> bool {
        una < self.reduced_until
    }

    /// Bits for an ACK.
    pub(super) const fn ack_flags(&self) -> TcpFlags {
        if self.echo { TcpFlags::ECE } else { TcpFlags(0) }
    }

    /// Bits and codepoint for a segment with new data.
    pub(super) fn data_marks(&mut self) -> (TcpFlags, Ecn) {
        if !self.negotiated {
            return (TcpFlags(0), Ecn::NotEct);
        }
        let flags =
            if core::mem::take(&mut self.must_send_cwr) { TcpFlags::CWR } else { TcpFlags(0) };
        (flags, Ecn::Ect0)
    }
}
