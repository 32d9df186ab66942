//! Configuration of `marline serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use marline::advanced::FastOpen;
use marline_proxy::serve::{Backend, FrontLimits, HeaderVersion};
use serde::{Deserialize, Serialize};

use super::policies::{Side, registry};
use super::shared::{RuntimeOptions, UPGRADE_LIMIT_S, connections, options, seconds, shards};
use super::{DurationValue, SignalAddress, StringValue, resolve_relative};
use crate::native::{CarrierChoice, CarrierPlan};

options! {
    /// Flags of `marline serve`, and keys of its file.
    pub struct ServeOptions {
        /// Listening address; may be repeated (`[::]:443`: every IPv4 and IPv6 address)
        #[arg(long, value_name = "ADDR:PORT")]
        pub listen: Vec<SocketAddr>,
        /// Service that receives the connections: HOST:PORT or unix:PATH
        #[arg(long, value_name = "SERVICE")]
        pub to: Option<StringValue<Backend>>,
        /// Also announce this address to clients; `=PUBLIC` announces another one instead (behind
        /// NAT), `,backup` makes it a backup; may be repeated
        #[arg(long, value_name = "ADDR[:PORT]")]
        pub signal: Vec<StringValue<SignalAddress>>,
        /// Address of this server behind a load balancer, where clients open further subflows; may be
        /// repeated, one for each family
        #[arg(long, value_name = "ADDR:PORT")]
        pub advertise: Vec<SocketAddr>,
        /// Port of --listen that accepts data with the SYN (TCP Fast Open); may be repeated. The service may
        /// receive such data twice
        #[arg(long, value_name = "PORT")]
        pub fast_open: Vec<u16>,
        /// Number of threads that share the ports, a power of two up to 128 [default: 1]
        #[arg(long, value_name = "N")]
        pub shards: Option<usize>,
        /// Send each packet separately, without segmentation offload to the kernel or the network card
        #[arg(long)]
        pub no_offload: bool,
        /// Send the client's address to the service in a PROXY protocol header
        #[arg(long, value_enum, value_name = "VERSION")]
        pub proxy_protocol: Option<ProxyProtocol>,
        /// Maximum number of simultaneous connections; further ones are reset [default: 4096]
        #[arg(long, value_name = "N")]
        pub max_connections: Option<usize>,
        /// Maximum number of connections from one source: an IPv4 address or IPv6 /64 [default:
        /// 256]
        #[arg(long, value_name = "N")]
        pub max_per_source: Option<usize>,
        /// End connections that have been idle for this long [default: never]
        #[arg(long, value_name = "TIME")]
        pub idle_timeout: Option<StringValue<DurationValue>>,
        /// Time limit for connecting to the service [default: 10s]
        #[arg(long, value_name = "TIME")]
        pub connect_timeout: Option<StringValue<DurationValue>>,
        /// Time that connections may stay in the old process after an upgrade [default: 24h]
        #[arg(long, value_name = "TIME")]
        pub upgrade_limit: Option<StringValue<DurationValue>>,
        /// Interval of keepalives to idle clients [default: 2m]
        #[arg(long, value_name = "TIME")]
        pub keepalive: Option<StringValue<DurationValue>>,
    }
}

/// PROXY protocol version, as configured.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyProtocol {
    /// Text.
    V1,
    /// Binary.
    V2,
}

impl From<ProxyProtocol> for HeaderVersion {
    fn from(chosen: ProxyProtocol) -> HeaderVersion {
        match chosen {
            ProxyProtocol::V1 => HeaderVersion::V1,
            ProxyProtocol::V2 => HeaderVersion::V2,
        }
    }
}

/// Complete configuration of a front.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// Builder of the multipath side, before its carrier is opened.
    pub network: marline::ServerBuilder,
    /// Carrier of segments.
    pub carrier: CarrierPlan,
    /// True to send each segment separately.
    pub no_offload: bool,
    /// Number of threads that share the ports, each with its own driver.
    pub shards: usize,
    /// Service that receives the connections.
    pub backend: Backend,
    /// PROXY protocol header sent to the service.
    pub header: Option<HeaderVersion>,
    /// Limits.
    pub limits: FrontLimits,
    /// Time for connections to continue after an upgrade.
    pub upgrade_limit: Duration,
    /// Monitoring and shutdown options.
    pub runtime: RuntimeOptions,
}

impl ServeOptions {
    /// Merges file and flags.
    ///
    /// # Errors
    /// Errors in the file, with their location.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<ServeOptions> {
        let Some(file) = file else { return Ok(self) };
        let mut lower: ServeOptions = super::load(file)?;
        let here = |path: &mut Option<PathBuf>| {
            *path = path.take().map(|path| resolve_relative(file, &path))
        };
        here(&mut lower.pcap);
        here(&mut lower.qlog);
        here(&mut lower.control);
        here(&mut lower.dashboard_token_file);
        Ok(self.merge_layers(lower))
    }

    /// Returns these options with the defaults filled in.
    #[must_use]
    pub fn into_effective(mut self) -> ServeOptions {
        let shared = self.shared().into_effective(CarrierChoice::Raw, Side::Server);
        self.set_shared(shared);
        let limits = FrontLimits::default();
        self.shards.get_or_insert(1);
        self.max_connections.get_or_insert(limits.total);
        self.max_per_source.get_or_insert(limits.per_source);
        self.connect_timeout.get_or_insert(StringValue(DurationValue(limits.connect)));
        self.keepalive.get_or_insert(seconds(120));
        self.upgrade_limit.get_or_insert(seconds(UPGRADE_LIMIT_S));
        self
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn plan(self) -> anyhow::Result<ServePlan> {
        let options = self.into_effective();
        if options.listen.is_empty() {
            bail!("no address to listen on: give --listen ADDR:PORT");
        }
        let Some(StringValue(backend)) = options.to.clone() else {
            bail!("no service: give --to HOST:PORT or --to unix:PATH");
        };
        let total = connections(options.max_connections)?;
        let per_source = options.max_per_source.unwrap_or_default();
        if !(1..=65_536).contains(&per_source) {
            bail!("--max-per-source {per_source}: must be 1 to 65536");
        }
        let time = |word: &Option<StringValue<DurationValue>>| word.as_ref().map(|word| word.0.0);
        if time(&options.idle_timeout).is_some_and(|idle| idle < Duration::from_secs(1)) {
            bail!("--idle-timeout must be at least 1s");
        }
        if time(&options.connect_timeout).is_some_and(|connect| connect.is_zero()) {
            bail!("--connect-timeout must be longer than 0s");
        }
        let shared = options.shared();
        let limits = FrontLimits {
            total,
            per_source,
            idle: time(&options.idle_timeout),
            connect: time(&options.connect_timeout).unwrap_or_default(),
        };
        Ok(ServePlan {
            network: options.network()?,
            carrier: shared.carrier()?,
            no_offload: options.no_offload,
            shards: options.shards.unwrap_or(1),
            backend,
            header: options.proxy_protocol.map(HeaderVersion::from),
            limits,
            upgrade_limit: time(&options.upgrade_limit).unwrap_or_default(),
            runtime: shared.runtime(),
        })
    }

    fn listens_on(&self, port: u16) -> bool {
        self.listen.iter().any(|address| address.port() == port)
    }

    fn network(&self) -> anyhow::Result<marline::ServerBuilder> {
        let shared = self.shared();
        // A server opens no subflows of its own, because its clients are behind NATs.
        let registry = registry();
        let mut connection = shared.choice(None).connection(&registry, Side::Server)?;
        if let Some(StringValue(DurationValue(keepalive))) = self.keepalive {
            if keepalive < Duration::from_secs(1) {
                bail!("--keepalive must be at least 1s");
            }
            let keepalive = marline::time::Duration::from_millis(keepalive.as_millis() as u64);
            connection.keepalive = Some(keepalive);
        }
        if let Some(port) = self.fast_open.iter().find(|port| !self.listens_on(**port)) {
            bail!("--fast-open {port}: no --listen has this port");
        }
        if !self.fast_open.is_empty() {
            let ports = self.fast_open.clone();
            connection.fast_open = Some(FastOpen { ports, ..FastOpen::default() });
        }
        let mut server = marline::Server::builder();
        server.registry(registry).transport(connection).monitor(true);
        for address in &self.listen {
            server.listen(*address);
        }
        for word in &self.signal {
            server.announce(word.0.0);
        }
        for address in &self.advertise {
            server.advertise(*address);
        }
        server
            .shards(shards(self.shards)?)
            .capture_secrets(self.pcap_secrets)
            .path_health_monitor(self.shared().path_health_monitor());
        if let Some(dir) = shared.capture_dir()? {
            server.capture_dir(dir);
        }
        shared.make_trace_dir()?;
        Ok(server)
    }
}
