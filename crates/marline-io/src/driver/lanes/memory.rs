//! Memory of lanes, which is charged to the account of their connection.

use marline_core::{MemoryAccount, MemoryKind};

use super::{Entry, Lanes};

/// Step in which the charge follows the memory in use, in bytes: an active lane seldom touches its account.
const STEP: u64 = 16 << 10;
/// Minimum limit of a queue, in bytes, even if little memory is free.
const FLOOR: u64 = 16 << 10;

impl Lanes {
    /// Charges the memory of a lane to this account, which also limits it.
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
    /// Updates the charge.
    pub(super) fn charge_held(&mut self) {
        if let Some(charge) = &mut self.charge {
            charge.follow(self.lane.held_bytes() as u64, STEP);
        }
    }
}
