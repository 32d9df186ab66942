//! Backup path manager: one path carries data, the others are opened as backups.
//!
//! *Problem.* The second path costs money or battery, but the connection must survive the loss of the first.
//!
//! *How.* The mesh of `mesh.rs` is kept open, but only subflows from the *primary* local address are regular. It is the
//! first configured address with the `subflow` flag and without the `backup` flag. All others carry the backup flag, so
//! schedulers do not use them until nothing else is usable. If the first handshake was completed on another path,
//! MP_PRIO corrects the priorities afterward. If every address is flagged `backup`, the best of them carries the data.
//!
//! *Source.* RFC 8684 sections 3.2 (B in MP_JOIN) and 3.3.8 (MP_PRIO); Apple's *handover* mode.
//!
//! *Differences.* Apple opens the second subflow when the first becomes weak. Opening it early costs three packets and
//! saves a handshake when the first fails.

use core::net::SocketAddr;

use marline_policy::{
    AddressId, LocalAddress, PathAction, PathContext, PathEvent, PathManager, Role, SubflowSet,
};
use marline_time::Instant;

use super::mesh::{Mesh, starts_at};

/// Path manager that keeps all paths open and uses one.
#[derive(Clone, Debug, Default)]
pub struct Backup {
    mesh: Mesh,
    /// Subflows whose priority change was already requested. The peer may keep its own priority, so a second request
    /// would not help.
    asked: SubflowSet,
}

impl Backup {
    fn update(&mut self, cx: &PathContext<'_>) {
        let primary = primary(cx.local);
        self.mesh.update(cx, |local| Some(local.id) != primary);
        if cx.role != Role::Client || !self.mesh.is_established() {
            return;
        }
        for view in cx.subflows {
            if self.asked.contains(view.id) {
                continue;
            }
            let path = cx.paths.iter().find(|path| path.id == view.id && path.established);
            let local = path.and_then(|path| cx.local.iter().find(|l| starts_at(path, l)));
            let Some(local) = local else { continue };
            let backup = Some(local.id) != primary;
            if view.backup != backup {
                self.asked.insert(view.id);
                self.mesh.push(PathAction::SetBackup { id: view.id, backup });
            }
        }
    }
}

fn primary(local: &[LocalAddress]) -> Option<AddressId> {
    local.iter().find(|local| local.subflow && !local.backup).map(|local| local.id)
}

impl PathManager for Backup {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        if event.is_about_health() {
            self.mesh.record_event(event, cx);
            return;
        }
        match *event {
            PathEvent::SubflowDown { id, .. } => self.asked.remove(id),
            // Another address may have become the primary one.
            PathEvent::LocalUp(_) | PathEvent::LocalDown(_) => self.asked = SubflowSet::EMPTY,
            _ => {}
        }
        self.mesh.record_event(event, cx);
        self.update(cx);
    }

    fn accepts_join(&mut self, _from: SocketAddr, cx: &PathContext<'_>) -> bool {
        cx.paths.len() < cx.max_subflows
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.mesh.poll_action()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.mesh.next_timeout()
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        self.update(cx);
    }
}

#[cfg(test)]
mod tests;
