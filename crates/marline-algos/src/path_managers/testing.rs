//! Simulated connection for unit tests of path managers: addresses, paths, and a clock.

use core::net::SocketAddr;

use marline_policy::{
    AddressId, LocalAddress, PathAction, PathContext, PathEvent, PathManager, RemoteAddress, Role,
    SubflowId, SubflowPath, SubflowView,
};
use marline_testkit::views::view;
use marline_time::{Duration, Instant};

pub(super) fn addr(text: &str) -> SocketAddr {
    text.parse().expect("a socket address")
}

/// Builds a local address with the `subflow` flag.
pub(super) fn local(id: u8, address: &str) -> LocalAddress {
    LocalAddress::new(AddressId(id), addr(address))
}

pub(super) fn open(local: u8, remote: u8, backup: bool) -> PathAction {
    PathAction::OpenSubflow {
        local: AddressId(local),
        remote: AddressId(remote),
        backup,
        fast: false,
    }
}

/// Environment of a path manager. Actions are only collected; the tests decide their outcome.
pub(super) struct Harness<M> {
    pub(super) manager: M,
    pub(super) now: Instant,
    pub(super) role: Role,
    pub(super) local: Vec<LocalAddress>,
    pub(super) remote: Vec<RemoteAddress>,
    pub(super) paths: Vec<SubflowPath>,
    pub(super) views: Vec<SubflowView>,
    pub(super) deny_join_id0: bool,
    pub(super) max_subflows: usize,
    pub(super) has_unacked_data: bool,
    pub(super) followed: bool,
}

impl<M: PathManager + Default> Harness<M> {
    /// Creates a client whose initial subflow from `from` to the server 10.0.0.1:443 is established.
    pub(super) fn client(local: &[LocalAddress], from: &str) -> Self {
        let server = addr("10.0.0.1:443");
        let mut harness = Harness {
            manager: M::default(),
            now: Instant::from_secs(1),
            role: Role::Client,
            local: local.to_vec(),
            remote: vec![RemoteAddress { id: AddressId(0), address: server }],
            paths: Vec::new(),
            views: Vec::new(),
            deny_join_id0: false,
            max_subflows: 8,
            has_unacked_data: false,
            followed: true,
        };
        harness.add_path(0, AddressId(0), addr(from), AddressId(0), server);
        harness
    }

    pub(super) fn add_path(
        &mut self,
        id: u8,
        local_id: AddressId,
        local: SocketAddr,
        remote_id: AddressId,
        remote: SocketAddr,
    ) {
        let id = SubflowId(id);
        self.paths.push(SubflowPath { id, local, remote, local_id, remote_id, established: true });
        self.views.push(SubflowView { local_id, remote_id, ..view(id.0, 50) });
    }

    fn with_context<T>(&mut self, ask: impl FnOnce(&mut M, &PathContext<'_>) -> T) -> T {
        let cx = PathContext {
            now: self.now,
            role: self.role,
            local: &self.local,
            remote: &self.remote,
            deny_join_id0: self.deny_join_id0,
            paths: &self.paths,
            subflows: &self.views,
            max_subflows: self.max_subflows,
            has_unacked_data: self.has_unacked_data,
            followed: self.followed,
        };
        ask(&mut self.manager, &cx)
    }

    pub(super) fn actions(&mut self) -> Vec<PathAction> {
        core::iter::from_fn(|| self.manager.poll_action()).collect()
    }

    pub(super) fn event(&mut self, event: PathEvent) -> Vec<PathAction> {
        self.with_context(|manager, cx| manager.on_event(&event, cx));
        self.actions()
    }

    /// Reports that the requested subflow is established in slot `id`.
    pub(super) fn report_established(&mut self, id: u8, action: PathAction) -> Vec<PathAction> {
        let PathAction::OpenSubflow { local, remote, backup, .. } = action else {
            panic!("{action:?} opens nothing")
        };
        let from = self.local.iter().find(|l| l.id == local).expect("a known local address");
        let known = self.remote.iter().find(|r| r.id == remote).map(|r| r.address);
        let to = from.remote.or(known).and_then(|remote| from.destination_for(remote));
        let (address, to) = (from.address, to.expect("a known remote address"));
        self.add_path(id, local, address, remote, to);
        self.views.last_mut().expect("just added").backup = backup;
        self.event(PathEvent::SubflowUp(SubflowId(id)))
    }

    /// Reports that the subflow in slot `id` is gone.
    pub(super) fn down(&mut self, id: u8) -> Vec<PathAction> {
        let index = self.paths.iter().position(|p| p.id.0 == id).expect("it was there");
        let path = self.paths.remove(index);
        self.views.retain(|v| v.id.0 != id);
        let (local, remote) = (path.local_id, path.remote_id);
        self.event(PathEvent::SubflowDown { id: path.id, local, remote, was_established: true })
    }

    /// Reports that a join from `local` to `remote` failed.
    pub(super) fn failed(&mut self, local: u8, remote: u8) -> Vec<PathAction> {
        self.event(PathEvent::SubflowDown {
            id: SubflowId(9),
            local: AddressId(local),
            remote: AddressId(remote),
            was_established: false,
        })
    }

    /// Advances to the manager's next timeout. Returns the time waited and the requested actions.
    pub(super) fn fire_timeout(&mut self) -> (Duration, Vec<PathAction>) {
        let at = self.manager.next_timeout().expect("a timer runs");
        let slept = at - self.now;
        self.now = at;
        self.with_context(|manager, cx| manager.on_timeout(cx));
        (slept, self.actions())
    }

    pub(super) fn accepts_join(&mut self) -> bool {
        self.with_context(|manager, cx| manager.accepts_join(addr("192.0.2.9:1"), cx))
    }
}
