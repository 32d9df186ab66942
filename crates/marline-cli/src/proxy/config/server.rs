//! The server's configuration.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use marline_algos::Registry;
use serde::{Deserialize, Serialize};

use super::client::seconds;
use super::policies::{Choice, DEFAULT_LINGER, Mode};
use super::{Span, Word, beside, over_list, over_option};
use crate::proxy::rules::{Cidr, Rules};
use crate::proxy::server::ServerLimits;
use crate::proxy::target::Target;

/// Flags of `marline server`, and keys of its file.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ServerOptions {
    /// Answer clients on this UDP address; again for more
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<SocketAddr>,
    /// Where clients reach it, for invites; again for more [default: the listening address]
    #[arg(long, value_name = "HOST:PORT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub public: Vec<Word<Target>>,
    /// The server's key [default: beside the configuration]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Its clients [default: beside the configuration]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials_file: Option<PathBuf>,
    /// Let clients reach these addresses although they are not public
    #[arg(long, value_name = "CIDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Word<Cidr>>,
    /// Never let clients reach these
    #[arg(long, value_name = "CIDR")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Word<Cidr>>,
    /// What the paths are for [default: interactive]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The scheduler, instead of the mode's
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Congestion control [default: cubic]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Keep connections without any path this long [default: 1h]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linger: Option<Word<Span>>,
    /// Protect data with DSS checksums as well
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dss_checksum: bool,
    /// Share the port among this many threads: 1, 2, 4 .. 128 [default: 1]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<usize>,
    /// Connections of one client at the same time [default: 4096]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Time for running connections to finish when stopped [default: 5s]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Word<Span>>,
    /// Write what goes over each address into pcapng files in this directory
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PathBuf>,
    /// Leave MPTCP keys in them: who reads one can disturb the connection
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pcap_secrets: bool,
    /// Serve Prometheus metrics here
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// The control socket (for `marline monitor`) [default: in the user's runtime directory]
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<PathBuf>,
}

/// What a server runs with.
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// The multipath side.
    pub network: marline::ServerConfig,
    /// The key's file.
    pub key_file: PathBuf,
    /// The clients' file.
    pub credentials_file: PathBuf,
    /// Destinations.
    pub rules: Rules,
    /// Bounds.
    pub limits: ServerLimits,
    /// Patience when stopped.
    pub drain: std::time::Duration,
    /// Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Control socket.
    pub control: Option<PathBuf>,
}

impl ServerOptions {
    /// The options of a file.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn from_file(file: &Path) -> anyhow::Result<ServerOptions> {
        let mut options: ServerOptions = super::load(file)?;
        for path in [
            &mut options.key_file,
            &mut options.credentials_file,
            &mut options.pcap,
            &mut options.control,
        ] {
            *path = path.take().map(|path| beside(file, &path));
        }
        Ok(options)
    }

    /// These options above `lower`.
    #[must_use]
    pub fn over(self, lower: ServerOptions) -> ServerOptions {
        ServerOptions {
            listen: over_list(self.listen, lower.listen),
            public: over_list(self.public, lower.public),
            key_file: over_option(self.key_file, lower.key_file),
            credentials_file: over_option(self.credentials_file, lower.credentials_file),
            allow: over_list(self.allow, lower.allow),
            deny: over_list(self.deny, lower.deny),
            mode: over_option(self.mode, lower.mode),
            scheduler: over_option(self.scheduler, lower.scheduler),
            congestion: over_option(self.congestion, lower.congestion),
            linger: over_option(self.linger, lower.linger),
            dss_checksum: self.dss_checksum || lower.dss_checksum,
            shards: over_option(self.shards, lower.shards),
            max_connections: over_option(self.max_connections, lower.max_connections),
            drain: over_option(self.drain, lower.drain),
            pcap: over_option(self.pcap, lower.pcap),
            pcap_secrets: self.pcap_secrets || lower.pcap_secrets,
            metrics: over_option(self.metrics, lower.metrics),
            control: over_option(self.control, lower.control),
        }
    }

    /// These options with the defaults filled in; `file` is where they come from.
    #[must_use]
    pub fn effective(mut self, file: &Path) -> ServerOptions {
        let (scheduler, _, congestion) = self.choice().names();
        self.mode.get_or_insert_default();
        self.scheduler = Some(scheduler);
        self.congestion = Some(congestion);
        self.linger.get_or_insert(Word(DEFAULT_LINGER));
        self.shards.get_or_insert(1);
        self.max_connections.get_or_insert(ServerLimits::default().per_client);
        self.drain.get_or_insert(seconds(5));
        self.key_file.get_or_insert_with(|| file.with_extension("key"));
        self.credentials_file.get_or_insert_with(|| file.with_extension("clients"));
        self
    }

    fn choice(&self) -> Choice {
        Choice {
            mode: self.mode.unwrap_or_default(),
            scheduler: self.scheduler.clone(),
            // A server opens no subflows of its own: its clients are behind NATs.
            path_manager: None,
            congestion: self.congestion.clone(),
            linger: self.linger.as_ref().map(|word| word.0),
            dss_checksum: self.dss_checksum,
        }
    }

    /// What invites name: `public`, or the listening addresses if clients can use them.
    ///
    /// # Errors
    /// A listening address that means nothing to a client, and no public name.
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
                ip if ip.is_unspecified() => "stands for every address of this machine",
                ip if is_private(ip) => "is private: clients elsewhere cannot reach it",
                _ => continue,
            };
            bail!("{address} {why}; say where clients reach the server: --public HOST:PORT");
        }
        Ok(self.listen.iter().copied().map(Target::from).collect())
    }

    /// What to run with.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn plan(self, file: &Path) -> anyhow::Result<ServerPlan> {
        let options = self.effective(file);
        if options.listen.is_empty() {
            bail!("no address to listen on: give --listen ADDR:PORT, or `listen` in the file");
        }
        let max_connections = options.max_connections.unwrap_or_default();
        if !(1..=65_536).contains(&max_connections) {
            bail!("--max-connections {max_connections}: 1 to 65536");
        }
        Ok(ServerPlan {
            network: options.network()?,
            rules: options.rules(),
            limits: ServerLimits { per_client: max_connections, ..ServerLimits::default() },
            drain: options.drain.map(|word| word.0.0).unwrap_or_default(),
            metrics: options.metrics,
            control: options.control,
            key_file: options.key_file.unwrap_or_default(),
            credentials_file: options.credentials_file.unwrap_or_default(),
        })
    }

    fn rules(&self) -> Rules {
        let blocks = |list: &[Word<Cidr>]| list.iter().map(|word| word.0).collect();
        Rules { allow: blocks(&self.allow), deny: blocks(&self.deny) }
    }

    fn network(&self) -> anyhow::Result<marline::ServerConfig> {
        let connection = self.choice().connection(&Registry::default())?;
        let mut config = marline::ServerConfig::new(self.listen.clone(), connection);
        let shards = self.shards.unwrap_or(1);
        if !shards.is_power_of_two() || shards > 128 {
            bail!("--shards {shards}: a power of two up to 128");
        }
        config.shards = shards;
        if let Some(pcap) = &self.pcap {
            std::fs::create_dir_all(pcap)
                .with_context(|| format!("cannot make the directory {}", pcap.display()))?;
        }
        config.capture_dir = self.pcap.clone();
        config.capture_secrets = self.pcap_secrets;
        config.monitor = true;
        Ok(config)
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
