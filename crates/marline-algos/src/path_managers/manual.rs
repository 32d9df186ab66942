//! Manual path manager: subflows are opened and closed only on request.
//!
//! *Problem.* An application or experiment wants to decide which subflows exist, as with the kernel's
//! `path_manager=userspace`.
//!
//! *How.* The endpoint's `path_action` opens, closes, announces and changes priorities. This manager itself never
//! opens, reopens or announces an address or a subflow. It accepts the peer's joins while there is room, because
//! refusing them should also be an explicit decision.

use core::net::SocketAddr;

use marline_policy::{PathAction, PathContext, PathEvent, PathManager};

/// Path manager that leaves every decision to external commands.
#[derive(Copy, Clone, Debug, Default)]
pub struct Manual;

impl PathManager for Manual {
    fn on_event(&mut self, _event: &PathEvent, _cx: &PathContext<'_>) {}

    fn accepts_join(&mut self, _from: SocketAddr, cx: &PathContext<'_>) -> bool {
        cx.paths.len() < cx.max_subflows
    }

    fn poll_action(&mut self) -> Option<PathAction> {
        None
    }
}
