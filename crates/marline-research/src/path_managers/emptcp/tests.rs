//! Tests of eMPTCP: which subflows it opens, suspends and resumes at which rates.

use marline_policy::{AddressId, Health, RemoteAddress, SubflowPath};
use marline_testkit::views::{UNREACHABLE, view};

use super::*;

/// Client on WiFi that also has a cellular address.
struct Client {
    manager: Emptcp,
    now: Instant,
    local: [LocalAddress; 2],
    views: Vec<SubflowView>,
    paths: Vec<SubflowPath>,
    role: Role,
}

fn local(id: u8, address: &str, backup: bool) -> LocalAddress {
    LocalAddress {
        backup,
        ..LocalAddress::new(AddressId(id), address.parse().expect("an address"))
    }
}

impl Client {
    fn new() -> Self {
        let mut client = Client {
            manager: Emptcp::default(),
            now: Instant::from_secs(1),
            local: [local(1, "10.1.0.1:0", false), local(2, "10.2.0.1:0", true)],
            views: Vec::new(),
            paths: Vec::new(),
            role: Role::Client,
        };
        client.add(0);
        client.event(&PathEvent::Established);
        client
    }

    /// Establishes the subflow from this address.
    fn add(&mut self, n: usize) {
        let (id, start) = (SubflowId(n as u8), self.local[n]);
        let remote = "10.9.0.1:443".parse().expect("an address");
        let remote_id = AddressId(0);
        let (local, local_id) = (start.address, start.id);
        self.paths.push(SubflowPath { id, local, remote, local_id, remote_id, established: true });
        self.views.push(SubflowView { local_id, ..view(n as u8, 40) });
    }

    fn with(&mut self, ask: impl FnOnce(&mut Emptcp, &PathContext<'_>)) -> Vec<PathAction> {
        let address = "10.9.0.1:443".parse().expect("an address");
        let cx = PathContext {
            now: self.now,
            role: self.role,
            local: &self.local,
            remote: &[RemoteAddress { id: AddressId(0), address }],
            deny_join_id0: false,
            paths: &self.paths,
            subflows: &self.views,
            max_subflows: 8,
            has_unacked_data: false,
            followed: true,
        };
        ask(&mut self.manager, &cx);
        let actions: Vec<_> = core::iter::from_fn(|| self.manager.poll_action()).collect();
        for action in &actions {
            if let PathAction::SetBackup { id, backup } = *action {
                self.views.iter_mut().filter(|v| v.id == id).for_each(|v| v.backup = backup);
            }
        }
        actions
    }

    fn event(&mut self, event: &PathEvent) -> Vec<PathAction> {
        self.with(|manager, cx| manager.on_event(event, cx))
    }

    /// Lets time pass with these rates in bytes per second on each subflow. Returns the requested actions.
    fn advance(&mut self, ms: u64, rates: [u64; 2]) -> Vec<PathAction> {
        let mut asked = Vec::new();
        for _ in 0..ms / 10 {
            self.now += Duration::from_millis(10);
            for (view, rate) in self.views.iter_mut().zip(rates) {
                let bytes = if view.backup { 0 } else { rate / 100 };
                view.bytes_received = view.bytes_received.wrapping_add(bytes as u32);
            }
            if self.manager.next_timeout().is_some_and(|at| at <= self.now) {
                asked.extend(self.with(|manager, cx| manager.on_timeout(cx)));
            }
        }
        asked
    }
}

const JOIN: PathAction = PathAction::OpenSubflow {
    local: AddressId(2),
    remote: AddressId(0),
    backup: false,
    fast: false,
};

const fn set_backup(id: u8, backup: bool) -> PathAction {
    PathAction::SetBackup { id: SubflowId(id), backup }
}

#[test]
fn nothing_is_opened_over_fast_wifi_however_much_there_is() {
    let mut client = Client::new();
    assert_eq!(client.advance(60_000, [2_500_000, 0]), []);
    // A short transfer over slow WiFi does not count, and four of them do not add up to a long one.
    let mut client = Client::new();
    for _ in 0..4 {
        assert_eq!(client.advance(2_900, [60_000, 0]), []);
        assert_eq!(client.advance(1_000, [0, 0]), []);
    }
}

#[test]
fn slow_wifi_gets_help_once_a_wake_up_pays() {
    let mut client = Client::new();
    // At 1 Mbit/s, a bit costs 0.08 uJ less over cellular alone, including the margin; a wake-up of 12.6 J pays off
    // after 19.7 MB.
    assert_eq!(client.advance(150_000, [125_000, 0]), []);
    assert_eq!(client.advance(10_000, [125_000, 0]).first(), Some(&JOIN));
    assert!(!client.views[0].backup, "the other subflow is not yet established");
    client.add(1);
    let asked = client.event(&PathEvent::SubflowUp(SubflowId(1)));
    assert_eq!(asked, [set_backup(0, true)], "cellular alone is cheapest");
}

#[test]
fn a_rate_that_rises_suspends_cellular_and_one_that_falls_resumes_it() {
    let mut client = Client::new();
    client.views[0].bytes_received = u32::MAX - 1_000;
    let asked = client.advance(60_000, [320_000, 0]);
    assert_eq!(asked, [], "2.6 Mbit/s: the gain is within the margin for 19 MB");
    let asked = client.advance(4_000, [100_000, 0]);
    assert_eq!(asked.first(), Some(&JOIN));
    client.add(1);
    client.event(&PathEvent::SubflowUp(SubflowId(1)));
    client.advance(4_000, [100_000, 600_000]);
    assert_eq!([0, 1].map(|n| client.views[n].backup), [true, false], "cellular alone");
    // After ten seconds, WiFi is tried again, and is now fast.
    let asked = client.advance(16_000, [2_500_000, 600_000]);
    assert_eq!(asked, [set_backup(0, false), set_backup(1, true)]);
    // WiFi is slow again, and the radio was recently awake.
    let asked = client.advance(8_000, [50_000, 600_000]);
    assert!(asked.contains(&set_backup(1, false)), "{asked:?}");
    // The transfer has ended.
    let asked = client.advance(3_000, [0, 0]);
    assert!(asked.contains(&set_backup(1, true)), "{asked:?}");
    assert!(!client.views[0].backup);
}

#[test]
fn wifi_that_fails_has_cellular_immediately() {
    let mut client = Client::new();
    client.views[0].health = UNREACHABLE;
    assert_eq!(client.event(&PathEvent::Unreachable(SubflowId(0))), [JOIN]);
    client.add(1);
    client.event(&PathEvent::SubflowUp(SubflowId(1)));
    client.views[0].health = Health::Usable;
    client.event(&PathEvent::Reachable(SubflowId(0)));
    assert_eq!(client.advance(3_000, [0, 0]), [set_backup(1, true)]);
}

#[test]
fn a_server_and_a_client_of_one_kind_keep_a_mesh_and_no_timer() {
    let mut client = Client::new();
    client.role = Role::Server;
    assert_eq!(client.event(&PathEvent::SubflowUp(SubflowId(0))), []);
    assert_eq!(client.manager.next_timeout(), None);
    let mut client = Client::new();
    client.local[1].backup = false;
    assert_eq!(client.event(&PathEvent::LocalUp(AddressId(2))), [JOIN]);
    assert!(client.manager.check_at.is_none());
}

#[test]
fn an_idle_connection_is_looked_at_once_a_second() {
    let mut client = Client::new();
    client.advance(1_000, [100_000, 0]);
    client.advance(20_000, [0, 0]);
    let at = client.manager.next_timeout().expect("a timer");
    assert!(at - client.now > Duration::ZERO && at - client.now <= MAX_SAMPLE_INTERVAL);
}
