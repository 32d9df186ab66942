//! The client's configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use marline::PathSpec;
use marline_algos::Registry;
use serde::{Deserialize, Serialize};

use super::policies::{Choice, Mode};
use super::{Forward, InviteWord, Span, Word, beside, over_list, over_option};
use crate::proxy::invite::Invite;
use crate::proxy::private_file;

/// Flags of `marline client`, and keys of its file.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ClientOptions {
    /// The invite (other users of this machine can see arguments: prefer --invite-file)
    #[arg(long, value_name = "WORD")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invite: Option<Word<InviteWord>>,
    /// A file with the invite, mode 0600
    #[arg(long, value_name = "FILE", conflicts_with = "invite")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invite_file: Option<PathBuf>,
    /// A path: INTERFACE or ADDRESS, `=ADDRESS:PORT` of the server on it, `,backup`; again for more
    /// [default: every interface with a default route]
    #[arg(long, value_name = "LOCAL")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<Word<PathSpec>>,
    /// Accept applications here [default: 127.0.0.1:1080 if there is no -L]
    #[arg(long, value_name = "ADDR:PORT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub socks5: Vec<SocketAddr>,
    /// Carry connections to a local port to one target, as ssh's -L
    #[arg(short = 'L', long, value_name = "[ADDR:]PORT:HOST:PORT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub local_forward: Vec<Word<Forward>>,
    /// Accept applications of other machines too: everyone who reaches the port can use the proxy
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
    /// What the paths are for [default: interactive]
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The scheduler, instead of the mode's
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The path manager, instead of the mode's
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_manager: Option<String>,
    /// Congestion control [default: cubic]
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Keep connections without any path this long [default: 1h]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linger: Option<Word<Span>>,
    /// Protect data with DSS checksums as well (TLS notices damage anyway, but ends the connection)
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dss_checksum: bool,
    /// Connections that wait ready, 0 to 32 [default: 2]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<usize>,
    /// Applications' connections at the same time [default: 1024]
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<usize>,
    /// Keep a path's UDP mapping alive this often, at most 20s [default: 15s]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Word<Span>>,
    /// Time for running connections to finish when stopped [default: 5s]
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Word<Span>>,
    /// Write what goes over each path into pcapng files in this directory
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

/// What a client runs with.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The way to the server.
    pub invite: Invite,
    /// The multipath side.
    pub network: marline::ClientConfig,
    /// SOCKS5 ports.
    pub socks5: Vec<SocketAddr>,
    /// Forwards.
    pub forwards: Vec<Forward>,
    /// Connections that wait ready.
    pub warm: usize,
    /// Bound on applications' connections.
    pub max_connections: usize,
    /// Patience when stopped.
    pub drain: std::time::Duration,
    /// Prometheus.
    pub metrics: Option<SocketAddr>,
    /// Control socket.
    pub control: Option<PathBuf>,
}

impl ClientOptions {
    /// File and flags together.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub fn with_file(self, file: Option<&Path>) -> anyhow::Result<ClientOptions> {
        let Some(file) = file else { return Ok(self) };
        let mut lower: ClientOptions = super::load(file)?;
        for path in [&mut lower.invite_file, &mut lower.pcap, &mut lower.control] {
            *path = path.take().map(|path| beside(file, &path));
        }
        if lower.invite.is_some() {
            private_file::check_mode(file).context("the file holds the invite")?;
        }
        Ok(self.over(lower))
    }

    /// These options above `lower`.
    #[must_use]
    pub fn over(self, lower: ClientOptions) -> ClientOptions {
        // Either way of giving the invite replaces both.
        let has_invite = self.invite.is_some() || self.invite_file.is_some();
        let (invite, invite_file) = match has_invite {
            true => (self.invite, self.invite_file),
            false => (lower.invite, lower.invite_file),
        };
        ClientOptions {
            invite,
            invite_file,
            path: over_list(self.path, lower.path),
            socks5: over_list(self.socks5, lower.socks5),
            local_forward: over_list(self.local_forward, lower.local_forward),
            share: self.share || lower.share,
            mode: over_option(self.mode, lower.mode),
            scheduler: over_option(self.scheduler, lower.scheduler),
            path_manager: over_option(self.path_manager, lower.path_manager),
            congestion: over_option(self.congestion, lower.congestion),
            linger: over_option(self.linger, lower.linger),
            dss_checksum: self.dss_checksum || lower.dss_checksum,
            warm: over_option(self.warm, lower.warm),
            max_connections: over_option(self.max_connections, lower.max_connections),
            keepalive: over_option(self.keepalive, lower.keepalive),
            drain: over_option(self.drain, lower.drain),
            pcap: over_option(self.pcap, lower.pcap),
            pcap_secrets: self.pcap_secrets || lower.pcap_secrets,
            metrics: over_option(self.metrics, lower.metrics),
            control: over_option(self.control, lower.control),
        }
    }

    /// These options with the defaults filled in.
    #[must_use]
    pub fn effective(mut self) -> ClientOptions {
        if self.socks5.is_empty() && self.local_forward.is_empty() {
            self.socks5 = vec![SocketAddr::from(([127, 0, 0, 1], 1080))];
        }
        let (scheduler, path_manager, congestion) = self.choice().names();
        self.mode.get_or_insert_default();
        self.scheduler = Some(scheduler);
        self.path_manager = Some(path_manager);
        self.congestion = Some(congestion);
        self.linger.get_or_insert(Word(super::policies::DEFAULT_LINGER));
        self.warm.get_or_insert(2);
        self.max_connections.get_or_insert(1_024);
        self.keepalive.get_or_insert(seconds(15));
        self.drain.get_or_insert(seconds(5));
        self
    }

    fn choice(&self) -> Choice {
        Choice {
            mode: self.mode.unwrap_or_default(),
            scheduler: self.scheduler.clone(),
            path_manager: self.path_manager.clone(),
            congestion: self.congestion.clone(),
            linger: self.linger.as_ref().map(|word| word.0),
            dss_checksum: self.dss_checksum,
        }
    }

    /// The invite, wherever it is.
    ///
    /// # Errors
    /// There is none, or it is wrong.
    pub fn read_invite(&self) -> anyhow::Result<Invite> {
        if let Some(Word(InviteWord(invite))) = &self.invite {
            return Ok(invite.clone());
        }
        let Some(file) = &self.invite_file else {
            bail!("no invite: give --invite-file FILE (the server's `--init` prints the word)");
        };
        private_file::check_mode(file)?;
        let shown = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
        text.parse().with_context(|| format!("in {shown}"))
    }

    /// What to run with.
    ///
    /// # Errors
    /// What does not fit together.
    pub fn plan(self) -> anyhow::Result<ClientPlan> {
        let invite = self.read_invite()?;
        let options = self.effective();
        let forwards: Vec<Forward> = options.local_forward.iter().map(|w| w.0.clone()).collect();
        let listening = options.socks5.iter().chain(forwards.iter().map(|f| &f.listen));
        for address in listening {
            if !address.ip().is_loopback() && !options.share {
                bail!("{address} is open to other machines: add --share if that is meant");
            }
        }
        let warm = options.warm.unwrap_or_default();
        if warm > 32 {
            bail!("--warm {warm}: at most 32");
        }
        let max_connections = options.max_connections.unwrap_or_default();
        if !(1..=65_536).contains(&max_connections) {
            bail!("--max-connections {max_connections}: 1 to 65536");
        }
        Ok(ClientPlan {
            invite,
            network: options.network()?,
            socks5: options.socks5,
            forwards,
            warm,
            max_connections,
            drain: options.drain.map(|word| word.0.0).unwrap_or_default(),
            metrics: options.metrics,
            control: options.control,
        })
    }

    fn network(&self) -> anyhow::Result<marline::ClientConfig> {
        let connection = self.choice().connection(&Registry::default())?;
        let mut config = marline::ClientConfig::new(connection);
        config.paths = self.path.iter().map(|word| word.0.clone()).collect();
        if let Some(pcap) = &self.pcap {
            std::fs::create_dir_all(pcap)
                .with_context(|| format!("cannot make the directory {}", pcap.display()))?;
        }
        config.capture_dir = self.pcap.clone();
        config.capture_secrets = self.pcap_secrets;
        config.monitor = true;
        if let Some(Word(Span(keepalive))) = self.keepalive {
            let longest = marline::LONGEST_KEEPALIVE;
            let keepalive = marline::Duration::from_millis(keepalive.as_millis() as u64);
            if keepalive > longest || keepalive < marline::Duration::from_secs(1) {
                bail!("--keepalive must be 1s to 20s: NATs forget UDP mappings after 30s");
            }
            config.keepalive = keepalive;
        }
        Ok(config)
    }
}

/// A word for so many seconds.
pub(super) fn seconds(count: u64) -> Word<Span> {
    Word(Span(std::time::Duration::from_secs(count)))
}
