//! Full-mesh path manager, the default: a subflow from every local address to every remote one.
//!
//! *Problem.* Use every path, follow address changes, and never give up on a path.
//!
//! *How.* `mesh.rs` handles pairs, retries and announcements. Subflows from an address flagged `backup` are opened with
//! the backup flag; all others are regular.
//!
//! *Radios.* A radio that should sleep is used only when it is worth a wake-up, unless `sleep=off` (`radio_sleep.rs`).
//!
//! *Source.* RFC 8684 section 3.4 leaves the choice to the implementation. The flags, and the rule that a pinned or
//! denied address is excluded, follow the `fullmesh` manager of the Linux kernel.
//!
//! *Differences from Linux.* Retries continue while the addresses exist. There is no distinction between endpoints used
//! for the mesh and others (a pin restricts one).

use core::net::SocketAddr;

use marline_policy::{LocalAddress, PathAction, PathContext, PathEvent, PathManager};
use marline_time::Instant;

use super::mesh::{Mesh, Plan};
use super::radio_sleep::RadioSleep;

/// Path manager that keeps one subflow per address pair.
#[derive(Clone, Debug, Default)]
pub struct FullMesh {
    mesh: Mesh,
    /// Sleep of radios, if there is a choice between paths with and without one, or if it is off.
    radios: Option<Box<RadioSleep>>,
}

impl FullMesh {
    /// Creates a manager that uses a path with a radio like any other.
    #[must_use]
    pub fn with_radios_awake() -> Self {
        FullMesh { radios: Some(Box::new(RadioSleep::off())), ..FullMesh::default() }
    }

    fn update(&mut self, cx: &PathContext<'_>) {
        let is_off = self.radios.as_ref().is_some_and(|radios| radios.is_off());
        if is_off || !self.mesh.is_established() || !RadioSleep::has_choice(cx) {
            self.radios.take_if(|_| !is_off);
            self.mesh.update(cx, |local| local.backup);
            return;
        }
        let radios = self.radios.get_or_insert_default();
        let (closed, opens) = radios.update(cx);
        closed.into_iter().for_each(|action| self.mesh.push(action));
        if opens {
            let with_radio = cx.local.iter().filter(|local| local.cost.has_radio());
            with_radio.for_each(|local| self.mesh.forget_address(local.id));
        }
        let (open, is_urgent) = (radios.is_open(), radios.is_urgent());
        self.mesh.update_where(cx, |local: &LocalAddress| {
            let radio = local.cost.has_radio();
            (open || !radio).then_some(Plan { backup: local.backup, fast: radio && is_urgent })
        });
    }
}

impl PathManager for FullMesh {
    fn on_event(&mut self, event: &PathEvent, cx: &PathContext<'_>) {
        self.mesh.record_event(event, cx);
        match &mut self.radios {
            Some(radios) => radios.record_event(event),
            None if event.is_about_health() => return,
            None => {}
        }
        self.update(cx);
    }

    fn accepts_join(&mut self, _from: SocketAddr, cx: &PathContext<'_>) -> bool {
        cx.paths.len() < cx.max_subflows
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        self.mesh.poll_action()
    }

    fn next_timeout(&self) -> Option<Instant> {
        let radios = self.radios.as_ref().and_then(|radios| radios.next_timeout());
        self.mesh.next_timeout().into_iter().chain(radios).min()
    }

    fn on_timeout(&mut self, cx: &PathContext<'_>) {
        self.update(cx);
    }
}

#[cfg(test)]
mod tests;
