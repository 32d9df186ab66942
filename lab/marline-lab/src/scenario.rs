//! Scenario: two hosts and the paths between them, in one TOML file.
//!
//! ```toml
//! seed = 7
//!
//! [[path]]
//! name = "wifi"
//! link = "rate=20M,delay=10ms,queue=80ms"    # the syntax of `marline-lab link` client = ["10.0.1.2/24",
//! "fd00:1::2/64"] server = ["10.0.1.1/24", "fd00:1::1/64"]
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
//! The first path has the default route. Packets leave through the interface that has their source address.

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

use crate::emulation::script::{self, ParsedCommand};

/// Maximum number of paths of a scenario.
const MAX_PATHS: usize = 16;
/// Maximum length in bytes of an interface name in the kernel, without the terminator.
const MAX_NAME_BYTES: usize = 15;
/// Range of the MTU: from the packet size that every IPv4 host must accept to the largest possible one.
const MTU_RANGE: std::ops::RangeInclusive<u32> = Mtu::RANGE;

/// Host of a scenario.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// Host that opens connections.
    Client,
    /// Host that accepts connections.
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
    /// Seed of all random numbers of the links.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// The paths, the first of which has the default route.
    #[serde(rename = "path")]
    pub paths: Vec<Path>,
    /// Kernel settings of the client.
    #[serde(default)]
    pub client: Host,
    /// Kernel settings of the server.
    #[serde(default)]
    pub server: Host,
    /// Timed commands.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

const fn default_seed() -> u64 {
    1
}

/// A link with its addresses.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Path {
    /// Name of the path and of the interfaces at both ends.
    pub name: String,
    /// The link in the syntax of `marline-lab link`. If empty, an ideal link.
    #[serde(default)]
    pub link: String,
    /// The client's addresses, with prefix lengths.
    #[serde(default)]
    pub client: Vec<IpNet>,
    /// The server's addresses, with prefix lengths.
    #[serde(default)]
    pub server: Vec<IpNet>,
    /// Address family, if the addresses are not given. Default IPv4.
    pub family: Option<Family>,
    /// MTU in bytes of the interfaces at both ends, 576 to 65,535. Default 1,500.
    pub mtu: Option<u32>,
    /// Price of a GB in either direction, in any currency.
    pub price: Option<f64>,
}

/// Address family of a path.
#[derive(Copy, Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Kernel settings of a host.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Multipath TCP settings.
    #[serde(default)]
    pub mptcp: Mptcp,
    /// Sysctls of the namespace by name, which override those of the lab.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
}

/// Settings of the kernel's Multipath TCP.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mptcp {
    /// Enables Multipath TCP.
    pub enabled: bool,
    /// Enables DSS checksums.
    pub checksum: bool,
    /// Maximum number of additional subflows per connection, at most 8.
    pub subflows: u8,
    /// Maximum number of announced addresses that the host connects to, at most 8.
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
    /// Address id.
    pub id: Option<u8>,
    /// Flags.
    pub flags: Vec<EndpointFlag>,
}

/// Purpose of an endpoint, with the kernel's names.
#[derive(Copy, Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum EndpointFlag {
    /// Announced with ADD_ADDR.
    Signal,
    /// Source address of subflows.
    Subflow,
    /// Subflows are backups.
    Backup,
    /// Subflows from this address to every address of the peer.
    Fullmesh,
}

impl EndpointFlag {
    /// Name in `ip mptcp`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EndpointFlag::Signal => "signal",
            EndpointFlag::Subflow => "subflow",
            EndpointFlag::Backup => "backup",
            EndpointFlag::Fullmesh => "fullmesh",
        }
    }
}

/// Timed command of a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Time after the start: `7.5s`.
    pub at: String,
    /// Name of the path.
    pub path: String,
    /// Command: `down`, `up uplink`, `set rate=1M`.
    pub command: String,
}

impl Event {
    /// Parses the time and the command.
    ///
    /// # Errors
    /// One of them cannot be parsed.
    pub fn parse(&self) -> anyhow::Result<(Duration, ParsedCommand)> {
        script::parse_scheduled(&format!("{} {}", self.at, self.command))
    }
}

impl Path {
    /// Parses the link's description. If it does not mention a radio, but the name of its preset or of the path
    /// implies one, that radio's energy is counted without delaying packets. The link drops packets larger than `mtu`
    /// and notifies their senders.
    ///
    /// # Errors
    /// The description cannot be parsed.
    pub fn spec(&self) -> anyhow::Result<DuplexSpec> {
        let parsed: Result<DuplexSpec, _> = self.link.parse();
        let mut spec = parsed.with_context(|| format!("path `{}`", self.name))?;
        if let Some(bytes) = self.mtu {
            let interface = Mtu { bytes, silent: false };
            for direction in [&mut spec.up, &mut spec.down] {
                let mtu = direction.mtu.map_or(interface, |link| link.lower_of(interface));
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

    /// The radio implied by the preset at the beginning of the description, or by the path's name.
    fn guessed_radio(&self) -> Option<RadioKind> {
        let preset = match self.link.split(',').next().unwrap_or_default().trim() {
            "walkout" => Some(RadioKind::Wifi),
            other => other.parse().ok(),
        };
        preset.or_else(|| RadioKind::guess(&self.name))
    }

    /// True if the path's connections use IPv6: according to the client's first address, or else to `family`.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        let given = self.client.first().map(|net| net.addr().is_ipv6());
        given.unwrap_or(self.family == Some(Family::Ipv6))
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
    /// The file is invalid; the error lists the mistakes with their positions.
    pub fn from_file(file: &FilePath) -> anyhow::Result<Scenario> {
        let named = || format!("scenario {}", file.display());
        let text = std::fs::read_to_string(file).with_context(named)?;
        Scenario::from_toml(&text).with_context(named)
    }

    /// Reads a scenario from its text and checks it.
    ///
    /// # Errors
    /// The text is invalid; the error lists the mistakes with their positions.
    pub fn from_toml(text: &str) -> anyhow::Result<Scenario> {
        let scenario: Scenario = toml::from_str(text)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Kernel settings of one side.
    #[must_use]
    pub const fn host(&self, side: Side) -> &Host {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// The index of the path with this name.
    ///
    /// # Errors
    /// There is no such path. The error lists the known names.
    pub fn path_number(&self, name: &str) -> anyhow::Result<usize> {
        path_number(&self.paths, name)
    }

    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    /// A constraint is violated. The error names the path or host.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.paths.is_empty(), "no [[path]] found; add at least one");
        ensure!(self.paths.len() <= MAX_PATHS, "more than {MAX_PATHS} paths");
        let mut seen = BTreeSet::new();
        for path in &self.paths {
            check_name(&path.name)?;
            ensure!(seen.insert(&path.name), "two paths are named `{}`", path.name);
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
        const MAX_ADDITIONAL: u8 = 8;
        for (name, value) in
            [("subflows", mptcp.subflows), ("add_addr_accepted", mptcp.add_addr_accepted)]
        {
            ensure!(
                value <= MAX_ADDITIONAL,
                "{name} = {value}: the kernel accepts at most {MAX_ADDITIONAL}"
            );
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
                bail!("endpoint {address}: has a port, but not the flag `signal`");
            }
        }
        Ok(())
    }
}

/// The index of the path with this name.
pub(crate) fn path_number(paths: &[Path], name: &str) -> anyhow::Result<usize> {
    let found = paths.iter().position(|path| path.name == name);
    found.with_context(|| {
        let names: Vec<&str> = paths.iter().map(|path| path.name.as_str()).collect();
        format!("no path is named `{name}`; known: {}", names.join(", "))
    })
}

/// Rejects sysctls outside `net.`. A host is a network namespace, which has separate settings only under `net.`. Any
/// other sysctl would let a possibly untrusted file change the whole machine.
fn check_sysctl(key: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let own = key.starts_with("net.") && key.chars().all(plain);
    ensure!(
        own,
        "sysctl `{key}`: only keys that begin with `net.` belong to a host, such as \
        net.ipv4.tcp_timestamps"
    );
    Ok(())
}

/// Returns true if a path's name, which is also the interface name, may contain this character.
const fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '-' || letter == '_'
}

/// Makes a path name from any text: keeps valid characters up to the maximum length. The result may be empty.
#[must_use]
pub fn path_name_from(text: &str) -> String {
    text.chars().filter(|letter| is_plain(*letter)).take(MAX_NAME_BYTES).collect()
}

pub(crate) fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES;
    let plain = name.chars().all(is_plain);
    ensure!(fits && plain && name != "lo", "`{name}` is not a valid interface name");
    Ok(())
}

#[cfg(test)]
mod tests;
