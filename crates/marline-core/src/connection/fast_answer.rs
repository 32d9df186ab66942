//! The answering side of Fast JOIN (`fast_join.rs`): which SYNs are believed, and what follows.
//!
//! docs/adr/0014 argues each check. In short: everything a SYN says is covered by its HMAC; it counts
//! once, from whatever address; it is about now; and nobody is sent data before he showed that he is
//! where he says.

use marline_policy::{Dsn, ReinjectionCause, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{
    DataAck, ExperimentalMessage, Extensions, FastJoinForm, MpJoin, MptcpOption, WireDsn,
};
use marline_wire::{TcpFlags, TcpSegment};

use super::Connection;
use super::fast_join::fast_join_token;
use super::join::{mp_join, reason};
use super::leg::{FastAccepted, Joined, Membership};
use super::open::Accepted;
use crate::FourTuple;
use crate::tables::Context;

/// Wrong HMACs that a connection bears, and how long one of them is held against it.
const MAX_FAILURES: u32 = 8;
const FORGIVE_AFTER: Duration = Duration::from_secs(10);
/// Accepted SYNs that a connection remembers as long as they are fresh.
const MAX_REMEMBERED: usize = 32;

/// What the answerer remembers, so that nobody plays a SYN twice, or tries for long.
#[derive(Debug, Default)]
pub(super) struct ReplayGuard {
    /// HMACs of accepted SYNs, with the point that each speaks of.
    seen: Vec<(FastJoinForm, u64, Dsn)>,
    /// Where they are counted: which numbers were here.
    counted: Counted,
    /// Fast JOINs that we opened.
    opened: u64,
    failures: u32,
    forgive_at: Option<Instant>,
}

/// The numbers of the peer's Fast JOINs that were accepted: the highest, and which of those below it, as IPsec does
/// (RFC 4303 section 3.4.3). So what must be remembered does not grow with what was accepted.
#[derive(Copy, Clone, Debug, Default)]
struct Counted {
    highest: u64,
    /// The highest is bit 0, the one before it bit 1.
    seen: u128,
}

impl Counted {
    /// The number with this low byte that is nearest to what comes next.
    const fn unwrap(self, low: u8) -> u64 {
        const HALF: u64 = 128;
        let from = self.highest.saturating_sub(HALF - 1);
        from + (low.wrapping_sub(from as u8)) as u64
    }

    /// Takes note of a number. `false`: it was here, or is too old to tell.
    const fn admit(&mut self, number: u64) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = if ahead < 128 { self.seen << ahead | 1 } else { 1 };
            self.highest = number;
            return true;
        }
        let behind = self.highest - number;
        if number == 0 || behind >= 128 || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

impl ReplayGuard {
    /// Whether another HMAC is looked at.
    fn has_patience(&mut self, now: Instant) -> bool {
        while let Some(at) = self.forgive_at.filter(|at| *at <= now && self.failures > 0) {
            self.failures -= 1;
            self.forgive_at = Some(at + FORGIVE_AFTER);
        }
        self.failures < MAX_FAILURES
    }

    fn failed(&mut self, now: Instant) {
        if self.failures == 0 {
            self.forgive_at = Some(now + FORGIVE_AFTER);
        }
        self.failures += 1;
    }

    /// The number of the Fast JOIN that we open now.
    pub(super) const fn count_opened(&mut self) -> u64 {
        self.opened += 1;
        self.opened
    }

    /// Takes note of an accepted SYN. `false`: it was here before, or more are fresh than are
    /// remembered, so that this one could come again unnoticed.
    fn admit(
        &mut self,
        syn: (FastJoinForm, u64, Dsn),
        is_stale: impl Fn(FastJoinForm, Dsn) -> bool,
    ) -> bool {
        self.seen.retain(|(form, _, point)| !is_stale(*form, *point));
        let known = self.seen.iter().any(|(form, hmac, _)| (*form, *hmac) == (syn.0, syn.1));
        if known || self.seen.len() >= MAX_REMEMBERED {
            return false;
        }
        self.seen.push(syn);
        true
    }
}

/// What a SYN says, with all 64 bits.
struct Said {
    form: FastJoinForm,
    backup: bool,
    address_id: u8,
    hmac: u64,
    /// Its number, where they are counted.
    count: Option<u64>,
    /// Position in the stream: of the data, or of the DATA_ACK.
    at: Dsn,
}

impl Connection {
    /// Answers a SYN with a Fast JOIN. The error is the reason for its RST.
    pub(super) fn accept_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        path: FourTuple,
        syn: &Accepted<'_>,
    ) -> Result<(), u8> {
        let now = cx.now;
        if !self.session.agreed_on(Extensions::FAST_JOIN)
            || !self.has_room_for_join(cx)
            || !self.replay_guard.has_patience(now)
        {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let said = self.read_fast_syn(cx, syn)?;
        if self.is_stale(said.form, said.at) {
            cx.out.counters.fast_join_stale += 1;
            return Err(reason::PROHIBITED);
        }
        let mut guard = core::mem::take(&mut self.replay_guard);
        let fresh = match said.count {
            Some(number) => guard.counted.admit(number),
            None => {
                guard.admit((said.form, said.hmac, said.at), |form, at| self.is_stale(form, at))
            }
        };
        self.replay_guard = guard;
        if !fresh {
            cx.out.counters.fast_join_replayed += 1;
            return Err(reason::PROHIBITED);
        }
        if !self.path_manager_accepts(cx, path) {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        }
        let fast = FastAccepted { form: said.form, hmac: said.hmac, ordinary: false };
        let nonce = cx.rng.next_u32();
        let joined = Joined { nonce, peer_nonce: 0, verified: true, fast: Some(fast) };
        let leg = self.add_joined(cx, path, syn, (joined, said.address_id));
        let Some(id) = leg else {
            cx.out.counters.fast_join_refused += 1;
            return Err(reason::PROHIBITED);
        };
        if let Some(leg) = self.leg_mut(id) {
            leg.backup_there = said.backup;
        }
        match said.form {
            FastJoinForm::Out => self.take_syn_data(cx, id, said.at, syn.segment.payload),
            FastJoinForm::In => self.advance_una(cx, said.at, 0),
        }
        Ok(())
    }

    /// Checks what the SYN says against its HMAC.
    fn read_fast_syn(&mut self, cx: &mut Context<'_>, syn: &Accepted<'_>) -> Result<Said, u8> {
        let now = cx.now;
        let mut messages = syn.segment.options.mptcp.experimental();
        let found = messages.find(|m| matches!(m, ExperimentalMessage::FastJoinSyn { .. }));
        let Some(message) = found else {
            return Err(reason::MPTCP_ERROR);
        };
        let ExperimentalMessage::FastJoinSyn { form, backup, address_id, point, hmac, .. } =
            message
        else {
            return Err(reason::MPTCP_ERROR);
        };
        let payload = syn.segment.payload;
        if payload.is_empty() && form == FastJoinForm::Out {
            // A box dropped what the SYN is about.
            cx.out.counters.fast_join_empty += 1;
            return Err(reason::MIDDLEBOX);
        }
        let at = match form {
            FastJoinForm::Out => {
                self.session.unwrap_dsn(WireDsn::Short(point), self.receiver.next())
            }
            FastJoinForm::In => self.session.unwrap_ack(DataAck::Short(point), self.acked()),
        };
        let counted = self.session.agreed_on(Extensions::COUNTED_JOIN);
        let count = counted.then(|| self.replay_guard.counted.unwrap((hmac >> 56) as u8));
        let keys = self.session.keys();
        let proven = at.filter(|at| {
            let full = match form {
                FastJoinForm::Out => keys.remote_wire(*at),
                FastJoinForm::In => keys.local_wire(*at),
            };
            keys.proves_fast_syn(hmac, &message, full, payload, count)
        });
        let Some(at) = proven else {
            cx.out.counters.fast_join_bad_hmac += 1;
            self.replay_guard.failed(now);
            return Err(reason::MPTCP_ERROR);
        };
        Ok(Said { form, backup, address_id, hmac, count, at })
    }

    /// Older than anything that an honest SYN could still be about: one receive window behind. The
    /// configured bounds count, since a window that grows must not make old things fresh again.
    fn is_stale(&self, form: FastJoinForm, at: Dsn) -> bool {
        match form {
            FastJoinForm::Out => at.plus(self.config.receive_buffer) < self.receiver.next(),
            FastJoinForm::In => {
                let beyond = at > self.sent_end();
                beyond || at.plus(self.config.send_buffer) < self.acked()
            }
        }
    }

    /// Data of a SYN: into the stream if it lies in the window, else the peer sends it again.
    fn take_syn_data(&mut self, cx: &mut Context<'_>, id: SubflowId, at: Dsn, payload: &[u8]) {
        let len = payload.len() as u64;
        let edge = self.receiver.next().plus(self.receiver.window());
        if at.plus(len) > edge || self.closing.released {
            cx.out.counters.fast_join_data_ignored += 1;
            return;
        }
        let duplicate = self.receiver.take_syn_data(id, at, payload);
        cx.out.counters.duplicate_data += u64::from(duplicate > 0);
        if let Some(leg) = self.leg_mut(id) {
            leg.tcp.take_syn_payload(len);
            leg.tcp.stats_mut().bytes_duplicate += duplicate;
        }
        self.tell_readable(cx);
    }

    /// The option of the SYN/ACK that answers a Fast JOIN.
    pub(super) fn fast_syn_ack_option(
        &self,
        id: SubflowId,
        fast: FastAccepted,
    ) -> Option<MptcpOption> {
        let point = match fast.form {
            FastJoinForm::Out => self.session.keys().remote_wire(self.receiver.data_ack()),
            FastJoinForm::In => self.session.keys().local_wire(self.sender.sent()),
        };
        let backup = self.leg(id)?.backup_here;
        let form = fast.form;
        let head =
            ExperimentalMessage::FastJoinSynAck { form, backup, hmac: 0, point: point as u32 };
        let hmac = self.session.keys().fast_ack_hmac(&head, point, fast.hmac)?;
        Some(MptcpOption::Experimental(head.with_hmac(hmac).option()))
    }

    /// A segment on a Fast JOIN of the peer whose handshake is not through. Its opener may have gone
    /// over to an ordinary join, with the same ports, because our answer did not get through. It gets the
    /// answer to the SYN that it sent last; by its third ACK it says which of the two it has. `false`:
    /// the segment must not reach TCP.
    pub(super) fn admit_half_open_fast_join(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) -> bool {
        let keys = *self.session.keys();
        let Some(leg) = self.leg_mut(id) else { return false };
        let first = marline_policy::Ssn(1);
        let (seq, flags) = (segment.header.seq, segment.header.flags);
        let in_turn =
            seq == leg.tcp.peer_to_wire(first) && segment.header.ack == leg.tcp.to_wire(first);
        let again = seq == leg.tcp.peer_to_wire(marline_policy::Ssn(0));
        let Membership::Joined(joined) = &mut leg.membership else { return true };
        let Some(fast) = &mut joined.fast else { return true };
        match mp_join(segment) {
            Some(MpJoin::Syn { nonce, .. }) if again && flags.contains(TcpFlags::SYN) => {
                fast.ordinary = true;
                joined.peer_nonce = nonce;
                leg.tcp.acknowledge_syn_alone(true);
                true
            }
            Some(MpJoin::Ack { hmac }) if fast.ordinary && in_turn => {
                if !keys.proves_third_ack(&hmac, joined.nonce, joined.peer_nonce) {
                    cx.out.counters.mp_join_bad_hmac += 1;
                    return false;
                }
                joined.fast = None;
                leg.tcp.forget_syn_payload();
                self.receiver.forget_syn_data(id);
                true
            }
            _ => {
                if fast_join_token(segment).is_some() && again {
                    fast.ordinary = false;
                    leg.tcp.acknowledge_syn_alone(false);
                }
                true
            }
        }
    }

    /// The third ACK shows that the peer is where its SYN came from. It opened this subflow because
    /// the others fail it: they are suspected until they are heard again, and what they hold goes
    /// out here.
    pub(super) fn follow_fast_join(&mut self, cx: &mut Context<'_>, new: SubflowId) {
        for id in self.leg_ids().filter(|id| *id != new) {
            let Some(leg) = self.leg_mut(id).filter(|leg| leg.is_usable()) else { continue };
            leg.tcp.suspect();
            self.suspect(cx, id, ReinjectionCause::UnansweredProbe);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_counts_once_however_many_came_and_in_whatever_order() {
        let mut counted = Counted::default();
        assert!(!counted.admit(0));
        for number in 1..1_000_u64 {
            let number = if number % 2 == 0 { number - 1 } else { number + 1 };
            assert_eq!(counted.unwrap(number as u8), number);
            assert!(counted.admit(number) && !counted.admit(number), "{number}");
        }
        // Up to 128 may be lost on the way, and what is older than the window is not known to be new.
        assert_eq!((counted.highest, counted.unwrap(0x68)), (1_000, 1_128));
        assert!(counted.admit(1_128) && counted.admit(1_001) && !counted.admit(1_000));
    }
}
