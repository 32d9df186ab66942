//! Options shared by all long-running commands, and the layering of flags over files.
//!
//! serde can either flatten a shared struct, or refuse unknown keys and report the place of an error, but not both.
//! Therefore the macro `options!` adds the shared fields to each command's struct, and [`SharedOptions`] holds those
//! fields alone, with the operations on them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use marline::advanced::SharedEventObserver;
use marline::paths::PathHealthMonitor;
use marline::policy::PathHealthConfig;
use marline_qlog::Vantage;

use super::policies::{Mode, PolicyChoice, Side};
use super::{Bytes, DurationValue, StringValue, Tun, ValueOrOff};
use crate::control::ConnectionNumbers;
use crate::log::LogLevel;
use crate::native::{CarrierChoice, CarrierPlan};
use crate::qlog::{self, Bounds, Traces};

/// An optional setting of flags or a file.
pub trait Layer: Sized {
    /// Returns true if the setting was not given.
    fn is_unset(&self) -> bool;

    /// Returns this value, or that of the lower layer if this is unset.
    #[must_use]
    fn with_defaults(self, lower: Self) -> Self {
        if self.is_unset() { lower } else { self }
    }
}

impl<T> Layer for Option<T> {
    fn is_unset(&self) -> bool {
        self.is_none()
    }
}

impl<T> Layer for Vec<T> {
    fn is_unset(&self) -> bool {
        self.is_empty()
    }
}

impl Layer for bool {
    fn is_unset(&self) -> bool {
        !self
    }
}

/// The path health monitor's parameters, or `off`.
pub type PathHealthWord = StringValue<ValueOrOff<PathHealthConfig>>;

/// A command's options: first its own fields, then the shared ones.
macro_rules! options {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$own_meta:meta])* pub $own:ident: $own_type:ty,)*
        }
    ) => {
        $crate::config::shared::options! {
            @whole $(#[$meta])* $name {
                $($(#[$own_meta])* $own: $own_type,)*
            } {
                /// Mode: how the paths are used [default: balanced]
                #[arg(long, value_enum)]
                mode: Option<$crate::config::policies::Mode>,
                /// Scheduler: a name, optionally with parameters and wrappers (`marline policies` lists them)
                /// [default: the mode's]
                #[arg(long, value_name = "SPEC")]
                scheduler: Option<String>,
                /// Congestion control [default: cubic-westwood]
                #[arg(long, value_name = "SPEC")]
                congestion: Option<String>,
                /// Loss recovery [default: rack-tlp]
                #[arg(long, value_name = "SPEC")]
                recovery: Option<String>,
                /// Path health monitor shared by all connections: prompt or multimob, optionally with
                /// parameters (docs/concepts/path-health.md), or off [default: prompt in mode interactive,
                /// otherwise off]
                #[arg(long, value_name = "SPEC")]
                path_health: Option<$crate::config::shared::PathHealthWord>,
                /// Time for which connections without any path are kept [default: 1h]
                #[arg(long, value_name = "TIME")]
                linger: Option<$crate::config::StringValue<$crate::config::DurationValue>>,
                /// Carrier for segments [default: auto, or raw for serve and --direct]
                #[arg(long, value_enum)]
                carrier: Option<$crate::native::CarrierChoice>,
                /// TUN interface for --carrier tun, and the address that Marline uses behind it;
                /// may be repeated
                #[arg(long, value_name = "INTERFACE=ADDRESS")]
                tun: Vec<$crate::config::StringValue<$crate::config::Tun>>,
                /// Memory limit for streams, datagrams and handshakes, for example `300MB`; near it, streams
                /// slow down and new ones wait (docs/operate/memory.md) [default: 75% of the control group's
                /// limit, or 25% of the machine's memory]
                #[arg(long, value_name = "BYTES")]
                memory: Option<$crate::config::StringValue<$crate::config::Bytes>>,
                /// Protect data with DSS checksums (TLS detects damage too, but then ends the
                /// connection)
                #[arg(long)]
                dss_checksum: bool,
                /// Time for open connections to finish after a stop [default: 10s]
                #[arg(long, value_name = "TIME")]
                drain: Option<$crate::config::StringValue<$crate::config::DurationValue>>,
                /// Capture the packets of each path in pcapng files in this directory
                #[arg(long, value_name = "DIR")]
                pcap: Option<std::path::PathBuf>,
                /// Keep MPTCP keys in the captures: anyone who reads them can disrupt the connections
                #[arg(long)]
                pcap_secrets: bool,
                /// Write a trace (qlog) of each connection into this directory, 64 MB each at most, the newest 256
                /// (docs/spec/qlog.md)
                #[arg(long, value_name = "DIR")]
                qlog: Option<std::path::PathBuf>,
                /// Serve Prometheus metrics on this address
                #[arg(long, value_name = "ADDR:PORT")]
                metrics: Option<std::net::SocketAddr>,
                /// Serve the dashboard, a page with paths, gaps and connections, on this address
                /// (docs/operate/dashboard.md)
                #[arg(long, value_name = "ADDR:PORT")]
                dashboard: Option<std::net::SocketAddr>,
                /// File with the dashboard's token; without it, a token is generated and printed unless the
                /// address is loopback
                #[arg(long, value_name = "FILE")]
                dashboard_token_file: Option<std::path::PathBuf>,
                /// Control socket (for `marline monitor`) [default: in the user's runtime
                /// directory]
                #[arg(long, value_name = "FILE")]
                control: Option<std::path::PathBuf>,
                /// Log closed connections: client, duration, bytes (never targets)
                #[arg(long)]
                log_connections: bool,
                /// Log level; overridden by -v and -q [default: info]
                #[arg(long, value_enum, value_name = "LEVEL")]
                log: Option<$crate::log::LogLevel>,
            }
        }
    };
    (
        @whole $(#[$meta:meta])* $name:ident {
            $($(#[$own_meta:meta])* $own:ident: $own_type:ty,)*
        } {
            $($(#[$shared_meta:meta])* $shared:ident: $shared_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct $name {
            $(
                $(#[$own_meta])*
                #[serde(skip_serializing_if = "crate::config::shared::Layer::is_unset")]
                pub $own: $own_type,
            )*
            $(
                $(#[$shared_meta])*
                #[serde(skip_serializing_if = "crate::config::shared::Layer::is_unset")]
                pub $shared: $shared_type,
            )*
        }

        impl $name {
            /// Merges these options with `lower`, field by field.
            fn merge_layers(self, lower: $name) -> $name {
                use $crate::config::shared::Layer;
                $name {
                    $($own: Layer::with_defaults(self.$own, lower.$own),)*
                    $($shared: Layer::with_defaults(self.$shared, lower.$shared),)*
                }
            }

            /// Returns the shared fields alone.
            fn shared(&self) -> $crate::config::shared::SharedOptions {
                $crate::config::shared::SharedOptions { $($shared: self.$shared.clone(),)* }
            }

            /// Sets the shared fields.
            fn set_shared(&mut self, shared: $crate::config::shared::SharedOptions) {
                $(self.$shared = shared.$shared;)*
            }
        }
    };
}
pub(super) use options;

/// The shared fields. They are documented in `options!`.
#[derive(Clone, Debug, Default)]
#[expect(missing_docs, reason = "the macro above documents them for the users of the flags")]
pub struct SharedOptions {
    pub mode: Option<Mode>,
    pub scheduler: Option<String>,
    pub congestion: Option<String>,
    pub recovery: Option<String>,
    pub path_health: Option<PathHealthWord>,
    pub linger: Option<StringValue<DurationValue>>,
    pub carrier: Option<CarrierChoice>,
    pub tun: Vec<StringValue<Tun>>,
    pub memory: Option<StringValue<Bytes>>,
    pub dss_checksum: bool,
    pub drain: Option<StringValue<DurationValue>>,
    pub pcap: Option<PathBuf>,
    pub pcap_secrets: bool,
    pub qlog: Option<PathBuf>,
    pub metrics: Option<SocketAddr>,
    pub dashboard: Option<SocketAddr>,
    pub dashboard_token_file: Option<PathBuf>,
    pub control: Option<PathBuf>,
    pub log_connections: bool,
    pub log: Option<LogLevel>,
}

/// Monitoring and shutdown options of a running program.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Time for running connections to finish when stopped.
    pub drain: Duration,
    /// Address of the Prometheus metrics.
    pub metrics: Option<SocketAddr>,
    /// Address of the dashboard.
    pub dashboard: Option<SocketAddr>,
    /// File with the dashboard's token.
    pub dashboard_token_file: Option<PathBuf>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
    /// True to log each closed connection.
    pub log_connections: bool,
    /// Log level.
    pub log: LogLevel,
    /// Memory budget in bytes; `None` to derive it from the system.
    pub memory: Option<u64>,
    /// Mode of using the paths.
    pub mode: Mode,
    /// Captures and traces.
    pub recording: Recording,
}

/// Recordings of a running program's packets in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Directory of captures.
    pub pcap: Option<PathBuf>,
    /// True to leave keys in the captures.
    pub pcap_secrets: bool,
    /// Directory of traces.
    pub qlog: Option<PathBuf>,
}

impl Recording {
    /// Returns true if `other` has different captures.
    #[must_use]
    pub fn captures_differ(&self, other: &Recording) -> bool {
        let captures = |of: &Recording| of.pcap.clone().map(|dir| (dir, of.pcap_secrets));
        captures(self) != captures(other)
    }

    /// Creates the traces of a program, if enabled, with these connection numbers, and their directory.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn traces(
        &self,
        role: &'static str,
        numbers: ConnectionNumbers,
    ) -> anyhow::Result<Option<SharedEventObserver>> {
        let Some(directory) = &self.qlog else { return Ok(None) };
        let vantage = if role == "client" { Vantage::Client } else { Vantage::Server };
        let traces = Traces::in_dir(directory, role, vantage, numbers, Bounds::default())?;
        Ok(Some(traces.observer()))
    }
}

impl SharedOptions {
    /// Returns the choices for connections.
    #[must_use]
    pub fn choice(&self, path_manager: Option<String>) -> PolicyChoice {
        PolicyChoice {
            mode: self.mode.unwrap_or_default(),
            scheduler: self.scheduler.clone(),
            path_manager,
            congestion: self.congestion.clone(),
            recovery: self.recovery.clone(),
            linger: self.linger.as_ref().map(|word| word.0),
            dss_checksum: self.dss_checksum,
        }
    }

    /// Returns the path health monitor of the program.
    #[must_use]
    pub fn path_health_monitor(&self) -> Option<PathHealthMonitor> {
        let mode = self.mode.unwrap_or_default();
        let config = self.path_health.as_ref().map_or_else(|| mode.path_health(), |word| word.0.0);
        config.map(PathHealthMonitor::new)
    }

    /// Fills in the defaults.
    #[must_use]
    pub fn into_effective(mut self, carrier: CarrierChoice, side: Side) -> SharedOptions {
        self.carrier.get_or_insert(carrier);
        let [scheduler, _, congestion, recovery] = self.choice(None).names(side);
        let mode = *self.mode.get_or_insert_default();
        self.path_health.get_or_insert(StringValue(ValueOrOff(mode.path_health())));
        self.scheduler = Some(scheduler);
        self.congestion = Some(congestion);
        self.recovery = Some(recovery);
        self.linger.get_or_insert(StringValue(super::policies::DEFAULT_LINGER));
        self.drain.get_or_insert(seconds(10));
        self.log.get_or_insert_default();
        self
    }

    /// Returns the carrier of segments. The defaults must be filled in.
    ///
    /// # Errors
    /// TUN interfaces without --carrier tun, or the reverse.
    pub fn carrier(&self) -> anyhow::Result<CarrierPlan> {
        let choice = self.carrier.unwrap_or(CarrierChoice::Auto);
        match (choice, self.tun.is_empty()) {
            (CarrierChoice::Auto, true) => Ok(CarrierPlan::Auto),
            (CarrierChoice::Udp, true) => Ok(CarrierPlan::Udp),
            (CarrierChoice::Tcp, true) => Ok(CarrierPlan::Tcp),
            (CarrierChoice::Raw, true) => Ok(CarrierPlan::Raw),
            (CarrierChoice::Tun, false) => {
                Ok(CarrierPlan::Tun(self.tun.iter().map(|word| word.0.0.clone()).collect()))
            }
            (CarrierChoice::Tun, true) => {
                bail!("--carrier tun needs an interface: --tun INTERFACE=ADDRESS")
            }
            (_, false) => bail!("--tun needs --carrier tun"),
        }
    }

    /// Creates the directory for captures, if captures are enabled.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn capture_dir(&self) -> anyhow::Result<Option<PathBuf>> {
        if let Some(pcap) = &self.pcap {
            std::fs::create_dir_all(pcap)
                .with_context(|| format!("cannot create the directory {}", pcap.display()))?;
        }
        Ok(self.pcap.clone())
    }

    /// Creates the directory for traces, if traces are enabled. Called before privileges are dropped.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub fn make_trace_dir(&self) -> anyhow::Result<()> {
        self.qlog.as_deref().map_or(Ok(()), qlog::make_dir)
    }

    fn recording(&self) -> Recording {
        Recording {
            pcap: self.pcap.clone(),
            pcap_secrets: self.pcap_secrets,
            qlog: self.qlog.clone(),
        }
    }

    /// Returns the monitoring and shutdown options.
    #[must_use]
    pub fn runtime(&self) -> RuntimeOptions {
        RuntimeOptions {
            drain: self.drain.as_ref().map(|word| word.0.0).unwrap_or_default(),
            metrics: self.metrics,
            dashboard: self.dashboard,
            dashboard_token_file: self.dashboard_token_file.clone(),
            control: self.control.clone(),
            log_connections: self.log_connections,
            log: self.log.unwrap_or_default(),
            memory: self.memory.as_ref().map(|word| word.0.0),
            mode: self.mode.unwrap_or_default(),
            recording: self.recording(),
        }
    }
}

/// Default time for connections to continue after an upgrade, in seconds.
pub(super) const UPGRADE_LIMIT_S: u64 = 24 * 3_600;

/// Returns the duration of `--busy-poll`, if a driver supports it.
pub(super) fn busy_poll(given: Option<u32>) -> anyhow::Result<marline::time::Duration> {
    let length = marline::time::Duration::from_micros(given.unwrap_or(0).into());
    let longest = marline::config::MAX_BUSY_POLL;
    if length > longest {
        bail!("--busy-poll must be at most {} microseconds", longest.as_micros());
    }
    Ok(length)
}

/// Returns a time of `count` seconds.
pub(super) fn seconds(count: u64) -> StringValue<DurationValue> {
    StringValue(DurationValue(Duration::from_secs(count)))
}

/// Returns the number of threads that share the ports, if it is valid.
pub(super) fn shards(count: Option<usize>) -> anyhow::Result<usize> {
    let count = count.unwrap_or(1);
    if !count.is_power_of_two() || count > 128 {
        bail!("--shards {count}: must be a power of two up to 128");
    }
    Ok(count)
}

/// Returns the limit on connections, if it is valid.
pub(super) fn connections(count: Option<usize>) -> anyhow::Result<usize> {
    match count.unwrap_or_default() {
        count @ 1..=65_536 => Ok(count),
        count => bail!("--max-connections {count}: must be 1 to 65536"),
    }
}
