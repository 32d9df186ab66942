//! Scenes: endpoints, the paths between them, the applications on them, and the faults that may happen.

use std::sync::Arc;

use marline_core::{ConnectionConfig, EndpointConfig};
use marline_policy::{AddressId, LocalAddress};
use std::net::SocketAddr;
use std::time::Duration;

use crate::fixtures::flow_capabilities;
use crate::{config, endpoint_config, with_known_mtu};

/// Condition for the next step of an application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The connection is established.
    Connected,
    /// This many bytes have been read.
    Received(usize),
    /// The peer's stream has ended.
    End,
    /// A join is established. After a minute the application continues without one.
    Joined,
}

/// Action of an application.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes this many bytes.
    Write(usize),
    /// Ends the stream.
    Shutdown,
    /// Aborts the connection.
    Abort,
}

/// A step of an application.
pub type Step = (Trigger, Action);

/// Kinds of faults that are tried in addition to loss, copies and delay of packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// One or all packets of a path lose their MPTCP options, or packets with such options are lost.
    pub strips: bool,
    /// The client loses an address.
    pub lost_addresses: bool,
}

impl Faults {
    /// All kinds of faults.
    pub const ALL: Faults = Faults { strips: true, lost_addresses: true };
    /// Only loss, copies and delay of packets.
    pub const DELIVERY: Faults = Faults { strips: false, lost_addresses: false };
}

/// Order in which packets arrive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Packets of one path and direction arrive as they were sent, unless a fault holds one back. Packets of different
    /// paths and directions arrive in every order.
    Sent,
    /// All packets arrive in every order.
    Any,
}

/// Maximum number of paths of a scene.
pub(super) const MAX_PATHS: usize = 2;

/// Two endpoints, the paths between them, and the steps of their applications.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Name.
    pub name: &'static str,
    /// Number of paths: 1 or 2.
    pub paths: usize,
    /// The client's endpoint.
    pub client_endpoint: EndpointConfig,
    /// The server's endpoint.
    pub server_endpoint: EndpointConfig,
    /// The client's connection.
    pub client: Arc<ConnectionConfig>,
    /// Steps of the client's application.
    pub client_steps: Vec<Step>,
    /// Steps of the server's application.
    pub server_steps: Vec<Step>,
    /// Kinds of faults that are tried.
    pub faults: Faults,
    /// Order in which packets arrive.
    pub order: Order,
}

/// Interval of keepalives on an idle connection, so that no end waits for a peer without a connection.
const KEEPALIVE: Duration = Duration::from_secs(300);

impl Scene {
    /// A scene with one segment in each direction, after which both ends close. The client has one address per
    /// path. With `flow_ids` the carrier is like UDP, where options cannot be stripped.
    #[must_use]
    pub fn new(name: &'static str, paths: usize, flow_ids: bool) -> Scene {
        Scene::with(name, paths, flow_ids, |_| {})
    }

    /// Like [`new`](Self::new), with a change to the configuration of both connections.
    #[must_use]
    pub fn with(
        name: &'static str,
        paths: usize,
        flow_ids: bool,
        change: impl Fn(&mut ConnectionConfig),
    ) -> Scene {
        let mut both = config();
        both.keepalive = Some(KEEPALIVE);
        change(&mut both);
        let mut client = both.clone();
        if paths > 1 {
            client.local_addresses = (0..paths).map(client_address).collect();
        }
        let on_carrier = |accept| {
            let mut endpoint = with_known_mtu(endpoint_config(accept));
            endpoint.monitor = true;
            if flow_ids {
                endpoint.capabilities = flow_capabilities();
                endpoint.capabilities.base_segment = endpoint.capabilities.max_segment;
            }
            endpoint
        };
        Scene {
            name,
            paths,
            client_endpoint: on_carrier(None),
            server_endpoint: on_carrier(Some(both)),
            client: Arc::new(client),
            client_steps: vec![
                (Trigger::Connected, Action::Write(300)),
                (Trigger::Received(200), Action::Shutdown),
            ],
            server_steps: vec![
                (Trigger::Received(300), Action::Write(200)),
                (Trigger::Received(300), Action::Shutdown),
            ],
            faults: if flow_ids { Faults { strips: false, ..Faults::ALL } } else { Faults::ALL },
            order: Order::Sent,
        }
    }

    /// Replaces the steps of the applications.
    #[must_use]
    pub fn with_steps(mut self, client: &[Step], server: &[Step]) -> Scene {
        (self.client_steps, self.server_steps) = (client.to_vec(), server.to_vec());
        self
    }

    /// Sets the order in which packets arrive.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Scene {
        self.order = order;
        self
    }

    /// Replaces the kinds of faults.
    #[must_use]
    pub fn under(mut self, faults: Faults) -> Scene {
        self.faults = faults;
        self
    }
}

/// Address on which the server listens.
pub(super) fn server_address() -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 1], 443))
}

/// The client's address on a path.
pub(super) fn client_address(path: usize) -> LocalAddress {
    LocalAddress {
        link: path as u32 + 1,
        ..LocalAddress::new(
            AddressId(path as u8 + 1),
            SocketAddr::from(([10, path as u8, 0, 1], 0)),
        )
    }
}
