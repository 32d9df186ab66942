//! Client configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use marline::advanced::{ConnectionConfig, FastOpen};
use marline::config::{LoneKeepalive, ReceiveTimer};
use marline::datagrams::LaneConfig;
use marline::monitor::Extensions;
use marline::paths::PathSpec;
use marline::policy::SignalThresholds;
use marline_proxy::client::dialer::NameLookup;
use marline_proxy::deadlines::DeadlineRule;
use marline_proxy::invite::Invite;
use marline_proxy::private_file;

use super::policies::{PolicyChoice, Side, registry};
use super::shared::{RuntimeOptions, busy_poll, connections, options, seconds};
use super::up::UpOptions;
use super::{
    DurationValue, Forward, InviteWord, PathQuota, PortDeadline, Resolver, StringValue, ValueOrOff,
    resolve_relative,
};
use crate::invite_places::{FoundInvite, LastInvite};
use crate::native::{CarrierChoice, CarrierPlan};
use crate::state_file;

/// Default limit on concurrent application connections.
const CONNECTIONS: usize = 16_384;

options! {
    /// Flags of `marline client`, and keys of its file.
    pub struct ClientOptions {
        /// Invite of the server (visible to other users of this machine: prefer --invite-file)
        #[arg(long, value_name = "INVITE")]
        pub invite: Option<StringValue<InviteWord>>,
        /// File with the invite, mode 0600 [default: the one that `marline join` stored]
        #[arg(long, value_name = "FILE", conflicts_with = "invite")]
        pub invite_file: Option<PathBuf>,
        /// Connect directly to targets, without a server; they may be any Multipath TCP or TCP
        /// servers
        #[arg(long, conflicts_with_all = ["invite", "invite_file"])]
        pub direct: bool,
        /// Target port for TCP Fast Open (with --direct): the first bytes of forwarded and redirected
        /// connections go with the SYN, once the target has sent a cookie; they may arrive twice
        /// (docs/operate/deploy.md); may be repeated [default: off]
        #[arg(long, value_name = "PORT")]
        pub fast_open: Vec<u16>,
        /// Path: INTERFACE or ADDRESS, optionally with `=ADDRESS:PORT` of the server for this path, and with
        /// `,backup`, `,metered`, `,limited`, `,unmetered` or `,radio=lte`; may be repeated [default: every
        /// interface with a default route]
        #[arg(long, value_name = "LOCAL")]
        pub path: Vec<StringValue<PathSpec>>,
        /// Monthly quota of a path for both directions, for example `lte=10GB`, optionally with `,soft=80%`
        /// (share at which the path becomes metered) and `,day=15` (first day of the month, UTC); may be repeated
        /// (docs/operate/quotas.md)
        #[arg(long, value_name = "PATH=BYTES")]
        pub path_quota: Vec<StringValue<PathQuota>>,
        /// Listening address for applications that use SOCKS5, SOCKS4 or an HTTP proxy (PAC file: /proxy.pac)
        /// [default: 127.0.0.1:1080 unless -L, -R, -U or --transparent is given]
        #[arg(long, value_name = "ADDR:PORT")]
        pub socks5: Vec<SocketAddr>,
        /// Forward connections from a local port to one target, like ssh's -L
        #[arg(short = 'L', long, value_name = "[ADDR:]PORT:HOST:PORT")]
        pub local_forward: Vec<StringValue<Forward>>,
        /// Forward connections from a port of the server to a target on this client's side, like ssh's -R;
        /// the server must allow it (--allow-remote)
        #[arg(short = 'R', long, value_name = "[ADDR:]PORT:HOST:PORT")]
        pub remote_forward: Vec<StringValue<Forward>>,
        /// Port for redirected (REDIRECT or TPROXY) connections (docs/operate/router.md)
        #[arg(long, value_name = "PORT")]
        pub transparent: Option<u16>,
        /// Forward datagrams from a local UDP port to one target, which the server resolves
        #[arg(short = 'U', long, value_name = "[ADDR:]PORT:HOST:PORT")]
        pub udp_forward: Vec<StringValue<Forward>>,
        /// Also accept applications on other machines: anyone who can reach the port can use the
        /// proxy
        #[arg(long)]
        pub share: bool,
        /// Path manager [default: the mode's]
        #[arg(long, value_name = "SPEC")]
        pub path_manager: Option<String>,
        /// Policy that chooses paths for datagrams (`marline policies` lists them)
        /// [default: the mode's]
        #[arg(long, value_name = "SPEC")]
        pub datagram_policy: Option<String>,
        /// Deadline for data of connections to these target ports, 1ms to 10s, for example `22=80ms` or
        /// `5900-5910=50ms`: data that would miss it is copied to a second path; may be repeated
        /// (docs/operate/deadlines.md)
        #[arg(long, value_name = "PORT=TIME")]
        pub deadline: Vec<StringValue<PortDeadline>>,
        /// Number of connections to the server that are opened in advance, 0 to 32 [default: 2]
        #[arg(long, value_name = "N")]
        pub warm: Option<usize>,
        /// Maximum number of simultaneous application connections; at the limit, further ones are refused after 3 s
        /// [default: 16384]
        #[arg(long, value_name = "N")]
        pub max_connections: Option<usize>,
        /// DNS resolver for `marline run` and `marline up`, as the server reaches it [default: the server's
        /// own]
        #[arg(long, value_name = "ADDR[:PORT]")]
        pub dns: Option<StringValue<Resolver>>,
        /// Interval of UDP keepalives that preserve a path's NAT mapping, 1s to 20s [default: 15s]
        #[arg(long, value_name = "TIME")]
        pub keepalive: Option<StringValue<DurationValue>>,
        /// Microseconds to poll sockets after each exchange before sleeping, 0 to 10000: lowers latency
        /// slightly and keeps a processor busy [default: 0]
        #[arg(long, value_name = "US")]
        pub busy_poll: Option<u32>,
        /// Timer that detects a silent download path while another path is unused: probing or multimob,
        /// optionally with parameters (docs/spec/experimental.md), or off [default: the mode's]
        #[arg(long, value_name = "SPEC")]
        pub receive_timer: Option<StringValue<ValueOrOff<ReceiveTimer>>>,
        /// Keepalives on the only path of an idle connection while another path is unused:
        /// idle=10s,interval=1s,count=2, or off [default: these values in mode interactive, otherwise off]
        #[arg(long, value_name = "SPEC")]
        pub lone_keepalive: Option<StringValue<ValueOrOff<LoneKeepalive>>>,
        /// Read the WiFi signal once a second, and avoid a path whose signal fades: on, or
        /// fading=-80,steady=-74 (dBm; docs/concepts/path-health.md), or off [default: off]
        #[arg(long, value_name = "SPEC", allow_hyphen_values = true)]
        pub wifi_signal: Option<StringValue<ValueOrOff<SignalThresholds>>>,
        /// File with the usage of paths, for --path-quota [default: in systemd's or the user's state
        /// directory]
        #[arg(long, value_name = "FILE")]
        pub state_file: Option<PathBuf>,
        /// Which traffic of the machine `marline up` takes (a table of the file; flags of `marline up`)
        #[arg(skip)]
        pub up: UpOptions,
        /// The invite that was read last
        #[arg(skip)]
        #[serde(skip)]
        pub last_invite: LastInvite,
    }
}

/// Route of a client to targets.
#[derive(Clone, Debug)]
pub enum Route {
    /// Direct connections.
    Direct,
    /// Connections through this server.
    Through(Invite),
}

/// Complete configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Route to targets.
    pub route: Route,
    /// Carrier of segments.
    pub carrier: CarrierPlan,
    /// Builder of the multipath side, before its carrier is opened.
    pub network: marline::ClientBuilder,
    /// Lookup of the server's name.
    pub names: NameLookup,
    /// Text form of the connection settings. A different text means different settings.
    pub behavior: String,
    /// True if the configuration sets a scheduler, path manager or datagram policy instead of the mode's.
    pub has_custom_policies: bool,
    /// Paths; if empty, every interface with a default route.
    pub paths: Vec<PathSpec>,
    /// Quotas of paths.
    pub path_quotas: Vec<PathQuota>,
    /// Thresholds of a fading WiFi signal; `None` if the signal is not read.
    pub wifi_signal: Option<SignalThresholds>,
    /// File with the paths' usage.
    pub state_file: PathBuf,
    /// SOCKS5 ports.
    pub socks5: Vec<SocketAddr>,
    /// Forwards.
    pub forwards: Vec<Forward>,
    /// Remote forwards, by the server's address.
    pub remote_forwards: Vec<Forward>,
    /// Port for redirected connections.
    pub transparent: Option<u16>,
    /// Forwards of UDP ports.
    pub udp_forwards: Vec<Forward>,
    /// Settings of lanes for datagrams; `None` if the carrier does not support lanes.
    pub datagrams: Option<LaneConfig>,
    /// Latency requirements of applications.
    pub deadlines: Vec<DeadlineRule>,
    /// Number of warm connections.
    pub warm: usize,
    /// Limit on application connections.
    pub max_connections: usize,
    /// Resolver for programs behind an interface; `None` for the server's.
    pub dns: Option<SocketAddr>,
    /// Monitoring and shutdown options.
    pub runtime: RuntimeOptions,
}

impl ClientOptions {
    /// Merges file and flags.
    ///
    /// # Errors
    /// Errors in the file, with their location.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<ClientOptions> {
        let Some(file) = file else { return Ok(self) };
        let mut lower: ClientOptions = super::load(file)?;
        for path in [
            &mut lower.invite_file,
            &mut lower.pcap,
            &mut lower.qlog,
            &mut lower.control,
            &mut lower.state_file,
            &mut lower.dashboard_token_file,
        ] {
            *path = path.take().map(|path| resolve_relative(file, &path));
        }
        if lower.invite.is_some() {
            private_file::check_mode(file).context("the file contains the invite")?;
        }
        Ok(self.with_defaults(lower))
    }

    /// Returns these options, with those of `lower` for unset ones.
    #[must_use]
    pub fn with_defaults(self, mut lower: ClientOptions) -> ClientOptions {
        // Either option for the invite overrides both in `lower`.
        if self.invite.is_some() || self.invite_file.is_some() {
            (lower.invite, lower.invite_file, lower.direct) = (None, None, false);
            lower.fast_open = Vec::new();
        }
        if self.direct {
            (lower.invite, lower.invite_file) = (None, None);
        }
        self.merge_layers(lower)
    }

    /// Returns these options with the defaults filled in.
    #[must_use]
    pub fn into_effective(mut self) -> ClientOptions {
        let forwards =
            self.local_forward.len() + self.remote_forward.len() + self.udp_forward.len();
        if self.socks5.is_empty() && forwards == 0 && self.transparent.is_none() {
            self.socks5 = vec![SocketAddr::from(([127, 0, 0, 1], 1080))];
        }
        let native = if self.direct { CarrierChoice::Raw } else { CarrierChoice::Auto };
        let shared = self.shared().into_effective(native, Side::Client);
        let [_, path_manager, ..] = self.choice().names(Side::Client);
        self.path_manager = Some(path_manager);
        self.set_shared(shared);
        let datagram_policy = self.choice().mode.datagram_policy();
        self.datagram_policy.get_or_insert_with(|| datagram_policy.to_owned());
        self.warm.get_or_insert(2);
        self.max_connections.get_or_insert(CONNECTIONS);
        self.keepalive.get_or_insert(seconds(15));
        self.busy_poll.get_or_insert(0);
        self
    }

    /// Rejects options that only `marline client` supports, on the command line of another command.
    ///
    /// # Errors
    /// Names the flag that was given.
    pub fn refuse_ports(&self) -> anyhow::Result<()> {
        for (given, flag) in [
            (!self.socks5.is_empty(), "--socks5"),
            (!self.local_forward.is_empty(), "-L"),
            (!self.remote_forward.is_empty(), "-R"),
            (!self.udp_forward.is_empty(), "-U"),
            (self.transparent.is_some(), "--transparent"),
            (self.share, "--share"),
            (!self.fast_open.is_empty(), "--fast-open"),
        ] {
            if given {
                bail!("{flag} applies only to `marline client`");
            }
        }
        Ok(())
    }

    /// Returns these options without those that only `marline client` has. In a file those are allowed, because
    /// `marline client` reads the same file.
    #[must_use]
    pub fn without_ports(self) -> ClientOptions {
        ClientOptions {
            socks5: Vec::new(),
            local_forward: Vec::new(),
            remote_forward: Vec::new(),
            udp_forward: Vec::new(),
            transparent: None,
            fast_open: Vec::new(),
            ..self
        }
    }

    fn choice(&self) -> PolicyChoice {
        self.shared().choice(self.path_manager.clone())
    }

    /// Reads the invite from its source.
    ///
    /// # Errors
    /// There is no invite, or it is invalid.
    pub fn read_invite(&self) -> anyhow::Result<Invite> {
        if let Some(StringValue(InviteWord(invite))) = &self.invite {
            return Ok(invite.clone());
        }
        let Some(file) = &self.invite_file else {
            return self.last_invite.find_stored();
        };
        self.last_invite.read_or_reuse(|| {
            private_file::check_mode(file)?;
            let shown = file.display();
            let text = std::fs::read_to_string(file);
            let text = text.with_context(|| format!("cannot read {shown}"))?;
            let invite =
                text.parse().with_context(|| format!("cannot parse the invite in {shown}"))?;
            Ok(FoundInvite { invite, path: file.clone() })
        })
    }

    fn route(&self) -> anyhow::Result<Route> {
        if !self.direct {
            return self.read_invite().map(Route::Through);
        }
        if self.invite.is_some() || self.invite_file.is_some() {
            bail!("`direct` uses no server: remove the invite or `direct`");
        }
        if self.carrier.is_some_and(CarrierChoice::is_framed) {
            bail!("--direct needs --carrier raw, as targets do not run Marline");
        }
        Ok(Route::Direct)
    }

    /// Returns the complete configuration.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn plan(self) -> anyhow::Result<ClientPlan> {
        let route = self.route()?;
        let chosen = [&self.scheduler, &self.path_manager, &self.datagram_policy];
        let has_custom_policies = chosen.into_iter().any(Option::is_some);
        let options = self.into_effective();
        let words =
            |list: &[StringValue<Forward>]| list.iter().map(|word| word.0.clone()).collect();
        let forwards: Vec<Forward> = words(&options.local_forward);
        if options.direct && !options.remote_forward.is_empty() {
            bail!("-R needs a server, and --direct uses none");
        }
        if !options.direct && !options.fast_open.is_empty() {
            bail!(
                "--fast-open needs --direct: through a server, connections do not wait for a handshake with \
                 the target"
            );
        }
        let udp_forwards: Vec<Forward> = words(&options.udp_forward);
        let datagrams = options.datagrams()?;
        if datagrams.is_none() && !udp_forwards.is_empty() {
            bail!("-U needs a server and --carrier auto, udp or tcp");
        }
        let forwarded = forwards.iter().chain(&udp_forwards).map(|forward| &forward.listen);
        for address in options.socks5.iter().chain(forwarded) {
            if !address.ip().is_loopback() && !options.share {
                bail!("{address} is open to other machines: add --share if that is intended");
            }
        }
        let warm = options.warm.unwrap_or_default();
        if warm > 32 {
            bail!("--warm {warm}: must be at most 32");
        }
        let path_quotas: Vec<PathQuota> =
            options.path_quota.iter().map(|word| word.0.clone()).collect();
        let twice =
            |at: usize| path_quotas[at + 1..].iter().any(|q| q.path == path_quotas[at].path);
        if let Some(at) = (0..path_quotas.len()).find(|at| twice(*at)) {
            bail!("--path-quota: given twice for the path {}", path_quotas[at].path);
        }
        Ok(ClientPlan {
            route,
            carrier: options.shared().carrier()?,
            network: options.network()?,
            names: NameLookup::default(),
            behavior: format!(
                "{:?} {} {:?} {:?}",
                options.choice(),
                options.wifi_signal().is_some(),
                options.receive_timer,
                options.lone_keepalive
            ),
            has_custom_policies,
            paths: options.path.iter().map(|word| word.0.clone()).collect(),
            path_quotas,
            wifi_signal: options.wifi_signal(),
            state_file: options.state_file.clone().unwrap_or_else(state_file::client_state_file),
            socks5: options.socks5.clone(),
            forwards,
            remote_forwards: words(&options.remote_forward),
            transparent: options.transparent,
            udp_forwards,
            datagrams,
            deadlines: PortDeadline::rules(&options.deadline)?,
            warm,
            max_connections: connections(options.max_connections)?,
            dns: options.dns.as_ref().map(|word| word.0.0),
            runtime: options.shared().runtime(),
        })
    }

    fn datagrams(&self) -> anyhow::Result<Option<LaneConfig>> {
        let lane = self.choice().lane(&registry(), self.datagram_policy.as_deref())?;
        let carried = !self.direct && self.carrier.is_some_and(CarrierChoice::is_framed);
        Ok(carried.then_some(lane))
    }

    fn wifi_signal(&self) -> Option<SignalThresholds> {
        self.wifi_signal.as_ref().and_then(|StringValue(ValueOrOff(thresholds))| *thresholds)
    }

    /// Adds the settings for silent paths and radio signals to those of the mode.
    fn add_watch_settings(&self, mut connection: ConnectionConfig) -> ConnectionConfig {
        if let Some(StringValue(ValueOrOff(timer))) = self.receive_timer {
            connection.receive_timer = timer;
            if timer.is_some() {
                let help = Extensions::IDLE.union(Extensions::RTO);
                connection.extensions = connection.extensions.union(help);
            }
        }
        if let Some(StringValue(ValueOrOff(keepalive))) = self.lone_keepalive {
            connection.lone_keepalive = keepalive;
        }
        if self.wifi_signal().is_some() {
            // The extension reports a fading path to the server.
            connection.extensions = connection.extensions.union(Extensions::PATH_COST);
        }
        connection
    }

    fn network(&self) -> anyhow::Result<marline::ClientBuilder> {
        let registry = registry();
        let connection = self.choice().connection(&registry, Side::Client)?;
        let mut connection = self.add_watch_settings(connection);
        // Through a server, each connection starts with data from the client: TLS, or a session's request.
        connection.speaks_first = !self.direct;
        if !self.fast_open.is_empty() {
            let ports = self.fast_open.clone();
            connection.fast_open =
                Some(FastOpen { ports, with_multipath: false, ..FastOpen::default() });
        }
        let mut client = marline::Client::builder();
        client
            .registry(registry)
            .transport(connection)
            .paths(self.path.iter().map(|word| word.0.clone()))
            .capture_secrets(self.pcap_secrets)
            .monitor(true)
            .path_health_monitor(self.shared().path_health_monitor());
        if let Some(dir) = self.shared().capture_dir()? {
            client.capture_dir(dir);
        }
        self.shared().make_trace_dir()?;
        if let Some(StringValue(DurationValue(keepalive))) = self.keepalive {
            let longest = marline::config::MAX_KEEPALIVE_INTERVAL;
            let keepalive = marline::time::Duration::from_millis(keepalive.as_millis() as u64);
            if keepalive > longest || keepalive < marline::time::Duration::from_secs(1) {
                bail!("--keepalive must be 1s to 20s: NATs may drop UDP mappings after 30s");
            }
            client.udp_keepalive(keepalive);
        }
        client.busy_poll(busy_poll(self.busy_poll)?);
        Ok(client)
    }
}
