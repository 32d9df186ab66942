//! Server configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use marline::datagrams::LaneConfig;
use marline_proxy::deadlines::DeadlineRule;
use marline_proxy::quota::PerClient;
use marline_proxy::remote_rules::RemoteRule;
use marline_proxy::rules::{Cidr, Rules};
use marline_proxy::server::allowances::ClientAllowances;
use marline_proxy::server::{ServerLimits, UdpFiltering};
use marline_proxy::target::Target;
use serde::{Deserialize, Serialize};

use super::policies::{Side, registry};
use super::shared::{
    RuntimeOptions, UPGRADE_LIMIT_S, busy_poll, connections, options, seconds, shards,
};
use super::{
    ClientQuota, DurationValue, PortDeadline, SessionLimit, StringValue, resolve_relative,
};
use crate::native::{CarrierChoice, CarrierPlan};

options! {
    /// Flags of `marline server`, and keys of its file.
    pub struct ServerOptions {
        /// Listening address for clients (UDP and TCP; see --carrier), `[::]:7777` for all;
        /// may be repeated
        #[arg(long, value_name = "ADDR:PORT")]
        pub listen: Vec<SocketAddr>,
        /// Public address for invites; may be repeated [default: the listening address]
        #[arg(long, value_name = "HOST:PORT")]
        pub public: Vec<StringValue<Target>>,
        /// Address of this server behind a load balancer, where clients open further subflows; may be
        /// repeated, one for each family
        #[arg(long, value_name = "ADDR:PORT")]
        pub advertise: Vec<SocketAddr>,
        /// Key file of the server [default: next to the configuration file]
        #[arg(long, value_name = "FILE")]
        pub key_file: Option<PathBuf>,
        /// Credentials file with the server's clients [default: next to the configuration file]
        #[arg(long, value_name = "FILE")]
        pub credentials_file: Option<PathBuf>,
        /// Allow clients to reach these non-public addresses
        #[arg(long, value_name = "CIDR")]
        pub allow: Vec<StringValue<Cidr>>,
        /// Never allow clients to reach these addresses
        #[arg(long, value_name = "CIDR")]
        pub deny: Vec<StringValue<Cidr>>,
        /// Allow remote forwards (-R) of all clients, or of CLIENT, at this address and these ports [default:
        /// none]
        #[arg(long, value_name = "[CLIENT@]ADDR:PORT[-PORT]")]
        pub allow_remote: Vec<StringValue<RemoteRule>>,
        /// Policy that chooses paths for datagrams to clients (`marline policies` lists them) [default: the mode's]
        #[arg(long, value_name = "SPEC")]
        pub datagram_policy: Option<String>,
        /// Peers that may send to clients' UDP ports: `address` (only addresses that the application has sent
        /// to) or `any` (all public addresses, for applications that wait for calls) [default: address]
        #[arg(long, value_name = "PEERS")]
        pub udp_filter: Option<UdpFilter>,
        /// Deadline for data to clients from these target ports, 1ms to 10s, for example `22=80ms` or
        /// `5900-5910=50ms`: data that would miss it is copied to a second path; may be repeated
        /// (docs/operate/deadlines.md)
        #[arg(long, value_name = "PORT=TIME")]
        pub deadline: Vec<StringValue<PortDeadline>>,
        /// Number of threads that share the port, a power of two up to 128 [default: 1]
        #[arg(long, value_name = "N")]
        pub shards: Option<usize>,
        /// Microseconds to poll sockets after each exchange before sleeping, 0 to 10000: lowers latency
        /// slightly and keeps a processor busy [default: 0]
        #[arg(long, value_name = "US")]
        pub busy_poll: Option<u32>,
        /// Time that connections may stay in the old process after an upgrade [default: 24h]
        #[arg(long, value_name = "TIME")]
        pub upgrade_limit: Option<StringValue<DurationValue>>,
        /// Maximum number of simultaneous connections of one client [default: 16384]
        #[arg(long, value_name = "N")]
        pub max_connections: Option<usize>,
        /// Maximum number of sessions (running programs) of each client, or of CLIENT; may be repeated
        /// [default: unlimited]
        #[arg(long, value_name = "[CLIENT@]N")]
        pub max_sessions: Vec<StringValue<SessionLimit>>,
        /// Monthly quota of each client, or of CLIENT, for both directions, for example `50GB`, optionally
        /// with `,soft=80%` (share at which the log warns) and `,day=15` (first day of the month, UTC); may be
        /// repeated (docs/operate/quotas.md)
        #[arg(long, value_name = "[CLIENT@]BYTES")]
        pub quota: Vec<StringValue<ClientQuota>>,
        /// File with the usage of clients [default: next to the configuration file]
        #[arg(long, value_name = "FILE")]
        pub state_file: Option<PathBuf>,
    }
}

/// Filtering of datagrams, as configured.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UdpFilter {
    /// Address-dependent.
    Address,
    /// Endpoint-independent.
    Any,
}

impl From<UdpFilter> for UdpFiltering {
    fn from(chosen: UdpFilter) -> UdpFiltering {
        match chosen {
            UdpFilter::Address => UdpFiltering::AddressDependent,
            UdpFilter::Any => UdpFiltering::EndpointIndependent,
        }
    }
}

/// Complete configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// Carrier of segments.
    pub carrier: CarrierPlan,
    /// Builder of the multipath side, before its carrier is opened.
    pub network: marline::ServerBuilder,
    /// Ports that the server binds, or may have to bind, while it runs.
    pub ports: Vec<u16>,
    /// Number of threads that share the port, each with its own driver.
    pub shards: usize,
    /// File with the key.
    pub key_file: PathBuf,
    /// File with the credentials.
    pub credentials_file: PathBuf,
    /// Rules for destinations.
    pub rules: Rules,
    /// Rules for remote forwards.
    pub remote_rules: Vec<RemoteRule>,
    /// Settings of lanes for datagrams.
    pub datagrams: LaneConfig,
    /// Filtering of datagrams from peers without a flow.
    pub udp_filtering: UdpFiltering,
    /// Latency requirements of applications.
    pub deadlines: Vec<DeadlineRule>,
    /// Limits.
    pub limits: ServerLimits,
    /// Quotas and session limits of clients.
    pub allowances: ClientAllowances,
    /// File with the clients' usage.
    pub state_file: PathBuf,
    /// Time for connections to continue after an upgrade.
    pub upgrade_limit: Duration,
    /// Monitoring and shutdown options.
    pub runtime: RuntimeOptions,
}

impl ServerOptions {
    /// Creates the options of a file.
    ///
    /// # Errors
    /// Errors in the file, with their location.
    pub fn from_file(file: &Path) -> anyhow::Result<ServerOptions> {
        let mut options: ServerOptions = super::load(file)?;
        for path in [
            &mut options.key_file,
            &mut options.credentials_file,
            &mut options.state_file,
            &mut options.pcap,
            &mut options.qlog,
            &mut options.control,
            &mut options.dashboard_token_file,
        ] {
            *path = path.take().map(|path| resolve_relative(file, &path));
        }
        Ok(options)
    }

    /// Returns these options, with those of `lower` for unset ones.
    #[must_use]
    pub fn with_defaults(self, lower: ServerOptions) -> ServerOptions {
        self.merge_layers(lower)
    }

    /// Returns these options with the defaults filled in. `file` is the configuration file.
    #[must_use]
    pub fn into_effective(mut self, file: &Path) -> ServerOptions {
        let shared = self.shared().into_effective(CarrierChoice::Auto, Side::Server);
        self.set_shared(shared);
        let datagram_policy = self.shared().choice(None).mode.datagram_policy();
        self.datagram_policy.get_or_insert_with(|| datagram_policy.to_owned());
        self.shards.get_or_insert(1);
        self.busy_poll.get_or_insert(0);
        self.upgrade_limit.get_or_insert(seconds(UPGRADE_LIMIT_S));
        self.max_connections.get_or_insert(ServerLimits::default().per_client);
        self.key_file.get_or_insert_with(|| file.with_extension("key"));
        self.credentials_file.get_or_insert_with(|| file.with_extension("clients"));
        self.state_file.get_or_insert_with(|| file.with_extension("state"));
        self
    }

    /// Returns the addresses for invites: `public`, or the listening addresses if clients can use them.
    ///
    /// # Errors
    /// A listening address is not usable by clients, and there is no public address.
    pub fn public_names(&self) -> anyhow::Result<Vec<Target>> {
        if !self.public.is_empty() {
            return Ok(self.public.iter().map(|word| word.0.clone()).collect());
        }
        if self.listen.is_empty() {
            bail!("no address to listen on: give --listen ADDR:PORT");
        }
        for address in &self.listen {
            let why = match address.ip().to_canonical() {
                _ if address.port() == 0 => "has no fixed port",
                ip if ip.is_unspecified() => "is a wildcard address",
                ip if is_private(ip) => "is private: clients in other networks cannot reach it",
                _ => continue,
            };
            bail!("{address} {why}; give the address that clients use: --public HOST:PORT");
        }
        Ok(self.listen.iter().copied().map(Target::from).collect())
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn plan(self, file: &Path) -> anyhow::Result<ServerPlan> {
        let options = self.into_effective(file);
        if options.listen.is_empty() {
            bail!("no address to listen on: give --listen ADDR:PORT, or `listen` in the file");
        }
        let per_client = connections(options.max_connections)?;
        let runtime = options.shared().runtime();
        let shown = [runtime.metrics, runtime.dashboard].into_iter().flatten();
        let bound = options.listen.iter().copied().chain(shown).map(|address| address.port());
        let remote = options.allow_remote.iter().map(|word| word.0.first_port());
        let ports = bound.chain(remote).collect();
        Ok(ServerPlan {
            ports,
            carrier: options.shared().carrier()?,
            network: options.network()?,
            rules: options.rules(),
            remote_rules: options.allow_remote.iter().map(|word| word.0.clone()).collect(),
            datagrams: options
                .shared()
                .choice(None)
                .lane(&registry(), options.datagram_policy.as_deref())?,
            udp_filtering: options.udp_filter.map(UdpFiltering::from).unwrap_or_default(),
            deadlines: PortDeadline::rules(&options.deadline)?,
            limits: ServerLimits { per_client, ..ServerLimits::default() },
            allowances: options.allowances()?,
            state_file: options.state_file.clone().unwrap_or_default(),
            upgrade_limit: options.upgrade_limit.as_ref().map(|word| word.0.0).unwrap_or_default(),
            runtime,
            shards: options.shards.unwrap_or(1),
            key_file: options.key_file.unwrap_or_default(),
            credentials_file: options.credentials_file.unwrap_or_default(),
        })
    }

    fn allowances(&self) -> anyhow::Result<ClientAllowances> {
        let quotas: Vec<ClientQuota> = self.quota.iter().map(|word| word.0.clone()).collect();
        let sessions: Vec<SessionLimit> =
            self.max_sessions.iter().map(|word| word.0.clone()).collect();
        for (flag, twice) in [
            ("--quota", PerClient::duplicate_client(&quotas)),
            ("--max-sessions", PerClient::duplicate_client(&sessions)),
        ] {
            if let Some(client) = twice {
                bail!("{flag}: given twice for the client {client}");
            }
        }
        if let Some(none) = sessions.iter().find(|limit| limit.value == 0) {
            bail!(
                "--max-sessions {none}: must be at least 1; `marline server credential revoke` removes a client"
            );
        }
        Ok(ClientAllowances { quotas, sessions })
    }

    fn rules(&self) -> Rules {
        let blocks = |list: &[StringValue<Cidr>]| list.iter().map(|word| word.0).collect();
        Rules { allow: blocks(&self.allow), deny: blocks(&self.deny) }
    }

    fn network(&self) -> anyhow::Result<marline::ServerBuilder> {
        // A server opens no subflows of its own, because its clients are behind NATs.
        let registry = registry();
        let connection = self.shared().choice(None).connection(&registry, Side::Server)?;
        let mut server = marline::Server::builder();
        server.registry(registry).transport(connection).monitor(true);
        for address in &self.listen {
            server.listen(*address);
        }
        for address in &self.advertise {
            server.advertise(*address);
        }
        server
            .shards(shards(self.shards)?)
            .busy_poll(busy_poll(self.busy_poll)?)
            .capture_secrets(self.pcap_secrets)
            .path_health_monitor(self.shared().path_health_monitor());
        if let Some(dir) = self.shared().capture_dir()? {
            server.capture_dir(dir);
        }
        self.shared().make_trace_dir()?;
        Ok(server)
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let carrier_grade = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_private() || v4.is_link_local() || carrier_grade
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
