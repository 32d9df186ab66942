//! Scenario: two hosts and the paths between them, in one TOML file.
//!
//! ```toml
//! seed = 7
//!
//! [[path]]
//! name = "wifi"
//! link = "rate=20M,delay=10ms,queue=80ms"    # the language of `marline-lab link`
//! client = ["10.0.1.2/24", "fd00:1::2/64"]
//! server = ["10.0.1.1/24", "fd00:1::1/64"]
//!
//! [client.mptcp]
//! endpoints = [{ address = "10.0.2.2", path = "lte", flags = ["subflow", "backup"] }]
//!
//! [[event]]
//! at = "7.5s"
//! path = "wifi"
//! command = "down"
//! ```
//!
//! The first path has the default route; each address leaves by the interface it is on.

mod path_text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
pub use ipnet::IpNet;
use marline_link::radio::RadioKind;
use marline_link::{DuplexSpec, Mtu, RadioSpec, RadioUse};
use serde::{Deserialize, Serialize};

use crate::emulation::script::{self, Order};

/// Paths of one scenario.
const MAX_PATHS: usize = 16;
/// Bytes of an interface's name the kernel takes, without its end.
const MAX_NAME: usize = 15;
/// Smallest packet size every IPv4 host must take, and the largest there is.
const MTU_RANGE: std::ops::RangeInclusive<u32> = Mtu::RANGE;

/// Which host.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// Who connects.
    Client,
    /// Who is connected to.
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Client => "client",
            Side::Server => "server",
        })
    }
}

/// Hosts and paths.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Seed of everything random on the links.
    #[serde(default = "one")]
    pub seed: u64,
    /// The paths, the first with the default route.
    #[serde(rename = "path")]
    pub paths: Vec<Path>,
    /// The client's kernel.
    #[serde(default)]
    pub client: Host,
    /// The server's kernel.
    #[serde(default)]
    pub server: Host,
    /// What happens by itself.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

const fn one() -> u64 {
    1
}

/// A link with its addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// Name of the path and of the interfaces at both ends.
    pub name: String,
    /// The link in the language of `marline-lab link`; none: a wire.
    #[serde(default)]
    pub link: String,
    /// The client's addresses, with the length of their prefix.
    #[serde(default)]
    pub client: Vec<IpNet>,
    /// The server's.
    #[serde(default)]
    pub server: Vec<IpNet>,
    /// Largest packet of the interfaces at both ends, bytes of IP packet, 576 to 65,535; none: 1,500.
    pub mtu: Option<u32>,
}

/// What the kernel of a host is told.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its Multipath TCP.
    #[serde(default)]
    pub mptcp: Mptcp,
    /// Settings of its namespace by name, over those the lab makes.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
}

/// The kernel's Multipath TCP.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mptcp {
    /// Use it at all.
    pub enabled: bool,
    /// DSS checksums.
    pub checksum: bool,
    /// Additional subflows per connection, at most 8.
    pub subflows: u8,
    /// Announced addresses to connect to, at most 8.
    pub add_addr_accepted: u8,
    /// `ip mptcp endpoint`s.
    pub endpoints: Vec<Endpoint>,
}

impl Default for Mptcp {
    fn default() -> Self {
        let endpoints = Vec::new();
        Mptcp { enabled: true, checksum: false, subflows: 8, add_addr_accepted: 8, endpoints }
    }
}

/// An `ip mptcp endpoint`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// The local address.
    pub address: IpAddr,
    /// The path whose interface it is bound to.
    pub path: Option<String>,
    /// The port to announce.
    pub port: Option<u16>,
    /// Its address id.
    pub id: Option<u8>,
    /// What it is for.
    pub flags: Vec<EndpointFlag>,
}

/// What an endpoint is for, in the kernel's words.
#[derive(Copy, Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EndpointFlag {
    /// Announced by ADD_ADDR.
    Signal,
    /// Subflows start here.
    Subflow,
    /// Those are backups.
    Backup,
    /// Subflows from here to every address of the peer.
    Fullmesh,
}

impl EndpointFlag {
    /// The word `ip mptcp` knows.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            EndpointFlag::Signal => "signal",
            EndpointFlag::Subflow => "subflow",
            EndpointFlag::Backup => "backup",
            EndpointFlag::Fullmesh => "fullmesh",
        }
    }
}

/// Something that happens at a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, after the start: `7.5s`.
    pub at: String,
    /// To which path.
    pub path: String,
    /// What: `down`, `up uplink`, `set rate=1M`.
    pub command: String,
}

impl Event {
    /// Its time and what it says.
    ///
    /// # Errors
    /// One of them cannot be understood.
    pub fn parse(&self) -> anyhow::Result<(Duration, Order)> {
        script::at(&format!("{} {}", self.at, self.command))
    }
}

impl Path {
    /// The link's description. Where it says nothing of a radio, and its preset's or the path's name
    /// lets one suppose which it is, the energy of that one is counted; nothing waits for it. Packets
    /// larger than `mtu` are none of this link's, and their senders are told.
    ///
    /// # Errors
    /// It cannot be understood.
    pub fn spec(&self) -> anyhow::Result<DuplexSpec> {
        let parsed: Result<DuplexSpec, _> = self.link.parse();
        let mut spec = parsed.with_context(|| format!("path `{}`", self.name))?;
        if let Some(bytes) = self.mtu {
            let interface = Mtu { bytes, silent: false };
            for direction in [&mut spec.up, &mut spec.down] {
                let mtu = direction.mtu.map_or(interface, |link| link.smaller(interface));
                direction.mtu = Some(mtu);
            }
        }
        let said = self.link.split(',').any(|item| item.trim_start().starts_with("radio"));
        if !said && let Some(kind) = self.guessed_radio() {
            let radio = Some(RadioSpec { kind, wakes: RadioUse::Meter });
            (spec.up.radio, spec.down.radio) = (radio, radio);
        }
        Ok(spec)
    }

    /// The radio that the preset at the beginning of the description, or the path's name, speaks of.
    fn guessed_radio(&self) -> Option<RadioKind> {
        let preset = match self.link.split(',').next().unwrap_or_default().trim() {
            "walkout" => Some(RadioKind::Wifi),
            other => other.parse().ok(),
        };
        preset.or_else(|| RadioKind::guess(&self.name))
    }

    /// The addresses of one side.
    #[must_use]
    pub fn addresses(&self, side: Side) -> &[IpNet] {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}

impl Scenario {
    /// Reads a scenario and checks it.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn from_file(file: &FilePath) -> anyhow::Result<Scenario> {
        let named = || format!("scenario {}", file.display());
        let text = std::fs::read_to_string(file).with_context(named)?;
        Scenario::from_toml(&text).with_context(named)
    }

    /// The same from its text.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn from_toml(text: &str) -> anyhow::Result<Scenario> {
        let scenario: Scenario = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// One side's kernel.
    #[must_use]
    pub const fn host(&self, side: Side) -> &Host {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// The number of the path of this name.
    ///
    /// # Errors
    /// There is none; the names there are.
    pub fn path_number(&self, name: &str) -> anyhow::Result<usize> {
        path_number(&self.paths, name)
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// What is wrong, by the name of the path or host.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.paths.is_empty(), "there must be at least one [[path]]");
        ensure!(self.paths.len() <= MAX_PATHS, "more than {MAX_PATHS} paths");
        let mut seen = BTreeSet::new();
        for path in &self.paths {
            check_name(&path.name)?;
            ensure!(seen.insert(&path.name), "two paths are called `{}`", path.name);
            path.spec()?;
            for side in [Side::Client, Side::Server] {
                let some = !path.addresses(side).is_empty();
                ensure!(some, "path `{}`: the {side} has no address", path.name);
            }
            if let Some(mtu) = path.mtu {
                let fits = MTU_RANGE.contains(&mtu);
                ensure!(fits, "path `{}`: mtu {mtu} is not in {MTU_RANGE:?}", path.name);
            }
        }
        for side in [Side::Client, Side::Server] {
            self.check_host(side).with_context(|| format!("[{side}]"))?;
        }
        for event in &self.events {
            self.path_number(&event.path)?;
            event.parse()?;
        }
        Ok(())
    }

    fn check_host(&self, side: Side) -> anyhow::Result<()> {
        self.host(side).sysctl.keys().try_for_each(|key| check_sysctl(key))?;
        let mptcp = &self.host(side).mptcp;
        // The kernel's MPTCP_PM_ADDR_MAX.
        const MOST: u8 = 8;
        for (name, value) in
            [("subflows", mptcp.subflows), ("add_addr_accepted", mptcp.add_addr_accepted)]
        {
            ensure!(value <= MOST, "{name} = {value}: the kernel takes at most {MOST}");
        }
        for endpoint in &mptcp.endpoints {
            let address = endpoint.address;
            let mine = self.paths.iter().flat_map(|path| path.addresses(side));
            let known = mine.clone().any(|net| net.addr() == address);
            ensure!(known, "endpoint {address}: no path has this address");
            if let Some(path) = &endpoint.path {
                self.path_number(path)?;
            }
            if endpoint.port.is_some() && !endpoint.flags.contains(&EndpointFlag::Signal) {
                bail!("endpoint {address}: only one that signals has a port");
            }
        }
        Ok(())
    }
}

/// The number of the path of this name.
pub(crate) fn path_number(paths: &[Path], name: &str) -> anyhow::Result<usize> {
    let found = paths.iter().position(|path| path.name == name);
    found.with_context(|| {
        let names: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
        format!("no path is called `{name}`; there are {}", names.join(", "))
    })
}

/// A host is a network namespace, and that has settings of its own below `net.` alone: any other would
/// be the whole machine's, from a file that may be somebody else's.
fn check_sysctl(key: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let own = key.starts_with("net.") && key.chars().all(plain);
    ensure!(own, "sysctl `{key}`: a host's own begin with `net.`, such as net.ipv4.tcp_timestamps");
    Ok(())
}

/// What a path's name may have: an interface is called like that.
const fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

/// A path's name made of any text: what a name may have of it, cut off where a name ends. May be empty.
#[must_use]
pub fn name_from(text: &str) -> String {
    text.chars().filter(|letter| is_plain(*letter)).take(MAX_NAME).collect()
}

pub(crate) fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME;
    let plain = name.chars().all(is_plain);
    ensure!(fits && plain && name != "lo", "`{name}` cannot be the name of an interface");
    Ok(())
}

#[cfg(test)]
mod tests;
