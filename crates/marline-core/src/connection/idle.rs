//! MP_IDLE: the sender's word that nothing follows, so that a receiver can tell the end of a burst from
//! a path that died (docs/spec/experimental.md).
//!
//! *Source.* MultiMob sets a bit of DSS on a segment that is the last of the connection's send queue when
//! it is scheduled. Version 1 of the protocol leaves no such bit, hence an option of its own beside DSS.
//!
//! *What the source leaves open.* The mark belongs to the *mapping*, not to the segment: it says that the
//! stream, as far as it was written, ends where the mapping does. So whoever carries these bytes says it
//! alike, be it the first time, a copy on another subflow, a reinjection, or each part of a mapping that
//! was cut to be repeated; and what is repeated after more was written says it no longer. Nor does what
//! is repeated a second time on a subflow: a box that drops segments with options that it does not know
//! must not keep the bytes. (The first repeat does: a lost tail is common, and a lost mark an alarm.) A burst whose
//! last segment would be full but for the mark's four bytes sends those bytes on in one more segment: a
//! mark that is missing costs the receiver a false alarm, a small segment next to nothing. Only where the
//! 40 bytes of options are used up (64-bit sequence numbers both ways, with timestamps) the mark is left
//! out. Only the server marks: who has no path to open needs no mark.

use marline_policy::{Dsn, SentSegment, SubflowId};
use marline_wire::mptcp::{ExperimentalMessage, MptcpOption};
use marline_wire::{TCP_HEADER_LEN, TcpOptions, TcpSegment};

use super::Connection;
use super::scheduling::Choice;
use crate::tables::Context;

/// How often the same segment goes out with the mark on a subflow.
const MARKED_TRANSMISSIONS: u16 = 2;

/// What a data segment is made of, before its payload is known.
#[derive(Copy, Clone, Debug)]
pub(super) struct Frame {
    /// Bytes of header and options.
    pub(super) overhead: usize,
    /// Payload that fits besides.
    pub(super) room: usize,
    /// It ends what there is to send, and says so.
    pub(super) idle: bool,
}

impl Connection {
    /// Makes room for the mark where the data that was chosen ends what there is to send.
    pub(super) fn frame_with_mark(&self, choice: &Choice, frame: Frame, timestamps: bool) -> Frame {
        let last = choice.range.end == self.sender.written() && self.session.marks_idle();
        if !last || choice.range.len() > frame.room as u64 {
            return frame;
        }
        let Some(marked) = self.marked_overhead(choice.subflow, choice.range.start, timestamps)
        else {
            return frame;
        };
        let room = frame.room.saturating_sub(marked - frame.overhead);
        if choice.range.len() <= room as u64 {
            return Frame { overhead: marked, room, idle: true };
        }
        Frame { room, ..frame }
    }

    /// Bytes of header and options of a data segment with the mark; `None`: no room for it.
    fn marked_overhead(&self, id: SubflowId, dsn: Dsn, timestamps: bool) -> Option<usize> {
        let ssn = self.leg(id)?.tcp.snd_nxt();
        let mut options = self.data_options(id, dsn, ssn, timestamps);
        let fits = options.dss.is_some() && options.mptcp.push(mark()) && options.fits();
        fits.then(|| TCP_HEADER_LEN + options.encoded_len())
    }

    /// Puts the mark beside a mapping.
    pub(super) fn push_mark(&self, cx: &mut Context<'_>, options: &mut TcpOptions) {
        if options.mptcp.push(mark()) {
            cx.out.counters.mp_idle_tx += 1;
        }
    }

    /// Marks a repeated segment if its mapping ends what there is to send, and the mark fits.
    pub(super) fn mark_repeated(
        &self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &SentSegment,
        options: &mut TcpOptions,
    ) {
        let back = segment.start.since(segment.mapping_start);
        let end = Dsn((segment.dsn.0 + u64::from(segment.mapping_len)).saturating_sub(back));
        let persists = segment.transmissions > MARKED_TRANSMISSIONS;
        if persists
            || segment.payload_len() == 0
            || end != self.sender.written()
            || !self.session.marks_idle()
        {
            return;
        }
        let Some(leg) = self.leg(id) else { return };
        let timestamps = leg.tcp.uses_timestamps();
        let overhead = self.marked_overhead(id, segment.dsn, timestamps);
        let size = overhead.map(|overhead| overhead + segment.payload_len() as usize);
        if options.dss.is_some() && size.is_some_and(|size| size <= leg.tcp.settled_segment()) {
            self.push_mark(cx, options);
        }
    }

    /// Whether a segment marks its mapping as the last.
    pub(super) fn is_marked(&self, cx: &mut Context<'_>, segment: &TcpSegment<'_>) -> bool {
        let options = &segment.options.mptcp;
        let marked = !options.is_empty()
            && self.session.peer_marks_idle()
            && options.iter().any(|option| option == mark());
        cx.out.counters.mp_idle_rx += u64::from(marked);
        marked
    }
}

fn mark() -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Idle.option())
}
