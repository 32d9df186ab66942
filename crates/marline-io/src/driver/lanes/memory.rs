//! Memory of lanes: each is charged to the account of its connection.

use marline_core::{MemoryAccount, MemoryKind};

use super::{Entry, Lanes};

/// What is charged follows what is held in steps of so many bytes, so that a lane in use seldom touches its account.
const STEP: u64 = 16 << 10;
/// A queue may hold so much however little is free.
const FLOOR: u64 = 16 << 10;

impl Lanes {
    /// This account is charged for what a lane holds, and bounds it.
    pub(in super::super) fn charge_to(&mut self, id: u64, account: &MemoryAccount) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let charged = entry.charge.as_ref().map(|charge| charge.account());
        if charged.is_none_or(|charged| !charged.is_same(account)) {
            entry.charge = Some(account.charge(MemoryKind::Datagram, 0));
            entry.charge_held();
        }
        let most = account.allowance().max(FLOOR);
        entry.lane.limit_memory(usize::try_from(most).unwrap_or(usize::MAX));
    }
}

impl Entry {
    /// Charges what it holds now.
    pub(super) fn charge_held(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.follow(self.lane.held_bytes() as u64, STEP);
        }
    }
}
