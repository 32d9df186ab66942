//! Unit tests of two subflows connected back to back in virtual time.

mod attacks;
mod closing;
mod doubles;
mod handshake;
mod lost_entries;
mod pair;
mod path;
mod random;
mod receiver;
mod recovery;
mod transfer;

use marline_policy::Ssn;
use marline_wire::SeqNum;

use super::Subflow;

impl Subflow {
    /// Position of a sequence number of the peer, nearest to RCV.NXT.
    fn position_of(&self, seq: SeqNum) -> Option<Ssn> {
        seq.unwrap_near(self.irs, self.rx.nxt.0).map(Ssn)
    }

    /// Advances both positions, as if this much had been sent and received.
    fn skip(&mut self, sent: u64, received: u64) {
        assert!(self.tx.board.is_empty() && self.rx.queue.is_empty());
        for position in [&mut self.tx.una, &mut self.tx.nxt, &mut self.tx.recovery_point] {
            *position = position.plus(sent);
        }
        let rx = &mut self.rx;
        let positions = [&mut rx.nxt, &mut rx.delivered_to, &mut rx.edge, &mut rx.window_seen_at];
        for position in positions {
            *position = position.plus(received);
        }
        self.timestamps.on_ack_sent(self.rx.nxt);
    }
}

#[test]
fn an_idle_subflow_is_small() {
    let size = core::mem::size_of::<Subflow>();
    println!("a subflow has {size} bytes besides its policies");
    assert!(size < 2_048, "{size}");
}
