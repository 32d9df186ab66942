//! Handles of a running client and a running server for the control socket.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use marline::advanced::SharedEventObserver;
use marline::algos::PolicyError;
use marline::datagrams::LaneCounters;
use marline::monitor::{ConnectionId, ConnectionInfo, Counters, MonitorEvent};
use marline::paths::{AddressPairInfo, PathEvent, PathHealth, PathStatus};
use marline::{Client, Server};
use marline_proxy::client::current::Current;
use marline_proxy::client::dialer::Dialer;
use marline_proxy::client::open_targets::{self, OpenTargets};
use marline_proxy::client::tunnel::Tunnel;
use marline_proxy::client::udp_tunnel::UdpTunnel;
use marline_proxy::udp::UdpCounts;
use tokio::sync::broadcast;

use super::numbers::ConnectionNumbers;
use super::protocol::{AddressPair, Connection, OpenTarget, Path, PathChange, Trouble};
use super::{Handle, views};
use crate::config::policies::Mode;
use crate::memory;
use crate::path_quotas::PathQuotas;
use crate::reload::{PendingReload, ReloadSender};
use crate::service_counts::ServiceCounts;
use crate::succession::{PendingUpgrade, UpgradeSender};

/// Mode of new connections, if it was set. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentMode(Arc<Mutex<Option<Mode>>>);

impl CurrentMode {
    pub(super) fn get(&self) -> Option<Mode> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, mode: Mode) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(mode);
    }
}

/// Labels for display: numbers of connections, and the mode. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    pub(super) numbers: ConnectionNumbers,
    pub(super) mode: CurrentMode,
}

/// Handle of a client.
#[derive(Clone)]
pub struct ClientHandle {
    /// The client.
    pub client: Client,
    /// UDP tunnel of its applications.
    pub udp: Arc<UdpTunnel>,
    /// Quotas of its paths.
    pub quotas: PathQuotas,
    /// Current tunnel through a server, once there is one.
    pub way: Arc<OnceLock<Arc<Current<Tunnel<Dialer>>>>>,
    /// Sender of reload requests; `None` if reloads are not supported.
    pub reloads: Option<ReloadSender>,
    /// Targets of its applications' streams.
    pub targets: OpenTargets,
    /// Connection numbers and mode of the server.
    pub labels: Labels,
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHandle").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Handle of a server, or of a front for a service.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    /// The listener.
    pub listener: Server,
    /// `server` or `serve`.
    pub role: &'static str,
    /// The proxy, if this is a server.
    pub proxy: Option<Arc<marline_proxy::server::Server>>,
    /// Sender of upgrade requests.
    pub upgrades: UpgradeSender,
    /// Sender of reload requests.
    pub reloads: ReloadSender,
    /// Connection numbers and mode of the server.
    pub labels: Labels,
}

impl ServerHandle {
    /// Creates the handle of a server if there is a `proxy`, or else of a front.
    #[must_use]
    pub fn new(
        listener: Server,
        proxy: Option<Arc<marline_proxy::server::Server>>,
        upgrades: UpgradeSender,
        reloads: ReloadSender,
    ) -> ServerHandle {
        let role = if proxy.is_some() { "server" } else { "serve" };
        let labels = Labels::default();
        ServerHandle { listener, role, proxy, upgrades, reloads, labels }
    }
}

impl Handle for ClientHandle {
    fn role(&self) -> &'static str {
        "client"
    }

    fn labels(&self) -> Option<&Labels> {
        Some(&self.labels)
    }

    fn targets(&self) -> Option<Vec<OpenTarget>> {
        let shown = |open: open_targets::OpenTarget| OpenTarget {
            target: open.target.to_string(),
            connection: open.connection.map(|id| self.labels.numbers.number_of(id)),
            age_s: open.age.as_secs(),
            to_target: open.to_target,
            from_target: open.from_target,
        };
        Some(self.targets.list().into_iter().map(shown).collect())
    }

    fn connections(&self) -> Vec<Connection> {
        number_connections(&self.client.connections(), &self.labels.numbers)
    }

    fn paths(&self) -> Vec<Path> {
        let paths = self.client.paths();
        let shown = paths.iter().enumerate().map(|(number, path)| {
            let quota = self.quotas.quota_use(number).as_ref().map(views::quota);
            Path { quota, ..Path::from(path) }
        });
        shown.collect()
    }

    fn address_pairs(&self) -> Option<Vec<AddressPair>> {
        let (table, paths) = (self.client.path_health_monitor()?.table(), self.client.paths());
        let named = |info: &AddressPairInfo| {
            let here = |path: &&PathStatus| path.addresses.contains(&info.address_pair.local);
            let interface_name = paths.iter().find(here).and_then(|path| path.interface.clone());
            AddressPair { interface_name, ..AddressPair::from(info) }
        };
        Some(table.iter().map(named).collect())
    }

    fn datagrams(&self) -> Option<(LaneCounters, UdpCounts)> {
        Some((self.client.lane_counters(), self.udp.counts()))
    }

    fn repairs(&self) -> (u64, u64) {
        let (counters, _) = self.client.counters();
        (counters.repair_tx, counters.repaired_bytes)
    }

    fn service(&self) -> ServiceCounts {
        let (core, carrier) = self.client.counters();
        let delivery = self.client.delivery_delays();
        let ledger_failures = self.quotas.ledger_failures();
        let carrier = vec![carrier];
        ServiceCounts {
            core,
            carrier,
            delivery,
            ledger_failures,
            memory: Some(memory::budget().usage()),
            ..ServiceCounts::default()
        }
    }

    fn reload(&self) -> Option<PendingReload> {
        self.reloads.as_ref().map(ReloadSender::request)
    }

    fn last_trouble(&self) -> Option<Trouble> {
        self.way.get()?.now().last_trouble().as_ref().map(Trouble::from)
    }

    fn events(&self) -> broadcast::Receiver<MonitorEvent> {
        self.client.monitor()
    }

    fn decisions(&self) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(self.client.decisions())
    }

    fn traffic(&self, connection: u64) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(self.client.traffic(self.labels.numbers.holder(connection)?))
    }

    fn path_events(&self) -> Option<broadcast::Receiver<PathEvent>> {
        Some(self.client.path_events())
    }

    fn capture(&self, dir: Option<&std::path::Path>, secrets: bool) -> std::io::Result<()> {
        self.client.capture(dir, secrets)
    }

    fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.client.observe_events(observer);
    }

    fn set_scheduler(&self, connection: Option<u64>, name: &str) -> Result<u64, String> {
        change_each(&self.client.connections(), connection, &self.labels.numbers, |id| {
            self.client.set_scheduler(id, name)
        })
    }

    fn set_path(&self, path: &str, change: PathChange) -> Result<(), String> {
        self.client.set_path(path, change).map_err(|error| error.to_string())
    }
}

impl Handle for ServerHandle {
    fn role(&self) -> &'static str {
        self.role
    }

    fn labels(&self) -> Option<&Labels> {
        Some(&self.labels)
    }

    fn connections(&self) -> Vec<Connection> {
        number_connections(&self.listener.connections(), &self.labels.numbers)
    }

    fn paths(&self) -> Vec<Path> {
        let listens = |address: &std::net::SocketAddr| Path {
            name: address.to_string(),
            local: Some(address.to_string()),
            up: true,
            // A listening path counts as usable. Only clients know whether they reach it.
            health: PathHealth::Usable,
            ..Path::default()
        };
        self.listener.local_addrs().iter().map(listens).collect()
    }

    fn address_pairs(&self) -> Option<Vec<AddressPair>> {
        Some(self.listener.path_health_monitor()?.table().iter().map(AddressPair::from).collect())
    }

    fn datagrams(&self) -> Option<(LaneCounters, UdpCounts)> {
        let proxy = self.proxy.as_ref()?;
        Some((self.listener.lane_counters(), proxy.udp_counts()))
    }

    fn repairs(&self) -> (u64, u64) {
        let all = self.listener.counters();
        let sum = |of: fn(&Counters) -> u64| all.iter().map(|(counters, _)| of(counters)).sum();
        (sum(|c| c.repair_tx), sum(|c| c.repaired_bytes))
    }

    fn service(&self) -> ServiceCounts {
        let mut service =
            ServiceCounts { delivery: self.listener.delivery_delays(), ..ServiceCounts::default() };
        service.memory = Some(memory::budget().usage());
        for (core, carrier) in self.listener.counters() {
            service.core += core;
            service.carrier.push(carrier);
        }
        if let Some(proxy) = &self.proxy {
            service.refusals = proxy.refusals().collect();
            service.clients = proxy.clients();
            service.ledger_failures = proxy.ledger_failures();
        }
        service
    }

    fn events(&self) -> broadcast::Receiver<MonitorEvent> {
        self.listener.monitor()
    }

    fn decisions(&self) -> Option<broadcast::Receiver<MonitorEvent>> {
        Some(self.listener.decisions())
    }

    fn traffic(&self, connection: u64) -> Option<broadcast::Receiver<MonitorEvent>> {
        self.listener.traffic(self.labels.numbers.holder(connection)?)
    }

    fn capture(&self, dir: Option<&std::path::Path>, secrets: bool) -> std::io::Result<()> {
        self.listener.capture(dir, secrets)
    }

    fn observe_events(&self, observer: Option<&SharedEventObserver>) {
        self.listener.observe_events(observer);
    }

    fn set_scheduler(&self, connection: Option<u64>, name: &str) -> Result<u64, String> {
        change_each(&self.listener.connections(), connection, &self.labels.numbers, |id| {
            self.listener.set_scheduler(id, name)
        })
    }

    fn reload(&self) -> Option<PendingReload> {
        Some(self.reloads.request())
    }

    fn upgrade(&self, program: Option<String>, patience_s: Option<u64>) -> Option<PendingUpgrade> {
        Some(self.upgrades.request(program, patience_s))
    }

    fn set_path(&self, _path: &str, _change: PathChange) -> Result<(), String> {
        Err("a server has no paths to change: change them on the client".to_owned())
    }
}

/// Returns the connections with their numbers for display.
fn number_connections(all: &[ConnectionInfo], numbers: &ConnectionNumbers) -> Vec<Connection> {
    let ids: Vec<ConnectionId> = all.iter().map(|info| info.id).collect();
    let numbers = numbers.numbers_of(&ids);
    let shown = |(info, number)| Connection { connection: number, ..Connection::from(info) };
    all.iter().zip(numbers).map(shown).collect()
}

/// Applies `change` to the connection with this number, or to all.
fn change_each(
    all: &[ConnectionInfo],
    wanted: Option<u64>,
    numbers: &ConnectionNumbers,
    change: impl Fn(ConnectionId) -> Result<(), PolicyError>,
) -> Result<u64, String> {
    let mut changed = 0;
    let is_wanted = |id: ConnectionId| wanted.is_none_or(|number| numbers.number_of(id) == number);
    for info in all.iter().filter(|info| is_wanted(info.id)) {
        change(info.id).map_err(|error| error.to_string())?;
        changed += 1;
    }
    match wanted {
        Some(number) if changed == 0 => Err(format!("no connection {number}")),
        _ => Ok(changed),
    }
}
