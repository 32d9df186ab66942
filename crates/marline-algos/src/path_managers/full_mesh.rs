//! Full-mesh path manager, the default: a subflow from every local address to every remote one.
//!
//! *Problem.* Use every path, follow address changes, and never give up on a path.
//!
//! *How.* `mesh.rs` handles pairs, retries and announcements. Subflows from an address flagged `backup` are opened with
//! the backup flag; all others are regular.
//!
//! *Source.* RFC 8684 section 3.4 leaves the choice to the implementation. The flags, and the rule that a pinned or
//! denied address is excluded, follow the `fullmesh` manager of the Linux kernel.
//!
//! *Differences from Linux.* Retries continue while the addresses exist. There is no distinction between endpoints used
//! for the mesh and others (a pin restricts one).

use core::net::SocketAddr;

use marline_policy::{PathAction, PathContext, PathEvent, PathManager};
use marline_time::Instant;

use super::mesh::Mesh;

/// Path manager that keeps one subflow per address pair.
#[derive(Clone, Debug, Default)]
pub struct FullMesh {
    mesh: Mesh,
}

impl PathManager for FullMesh {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        if event.is_about_health() {
            self.mesh.record_event(event, cx);
            return;
        }
        self.mesh.record_event(event, cx);
        self.mesh.update(cx, |local| local.backup);
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
        self.mesh.update(cx, |local| local.backup);
    }
}

#[cfg(test)]
mod tests;
