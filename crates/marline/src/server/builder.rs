//! Configuration of a server.

use core::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::succession::{Estate, NativePart};
use marline_io::{RawSockets, ResetSeed};
use marline_policy::Role;

use super::Server;
use crate::builder::{Builder, OwnSettings};
use crate::{BindError, Carrier, multimob};

/// Shards that may share a port: the flow id's top byte tells them apart.
const MAX_SHARDS: usize = 128;

/// An address by which a server can be reached besides those it listens on, or by which it is to be
/// announced (ADD_ADDR, RFC 8684 section 3.4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// One of this machine's; port 0 stands for that of the first listening address.
    pub address: SocketAddr,
    /// Announce it to clients (ADD_ADDR).
    pub signal: bool,
    /// Subflows to it carry data only if nothing else can.
    pub backup: bool,
    /// Announce this address instead, by which a translator lets clients reach it.
    pub advertised: Option<SocketAddr>,
}

impl ServerAddress {
    /// An address that is announced as it is.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        ServerAddress { address, signal: true, backup: false, advertised: None }
    }
}

/// Own addresses of a server that others share a balancer with.
const MAX_OWN: usize = 8;

/// What a [`Server`] runs with. Made by [`Server::builder`].
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let server = marline::Server::builder().listen("[::]:4500".parse()?).bind().await?;
/// # Ok(())
/// # }
/// ```
pub type ServerBuilder = Builder<ServerSettings>;

/// What only a [`Server`] is configured with.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) addresses: Vec<ServerAddress>,
    /// Where it is itself reached, if what it listens on is behind a balancer.
    pub(super) advertised: Vec<SocketAddr>,
    pub(super) shards: usize,
    pub(super) backlog: usize,
    pub(super) reset_seed: Option<ResetSeed>,
    /// Number among the processes that share the addresses.
    pub(super) generation: u8,
    /// What it was given by the process whose place it takes, until it is used; clones share it.
    inherited: Arc<Mutex<Option<Estate>>>,
}

impl OwnSettings for ServerSettings {
    const ROLE: Role = Role::Server;
}

impl Default for ServerSettings {
    fn default() -> Self {
        ServerSettings {
            listen: Vec::new(),
            addresses: Vec::new(),
            advertised: Vec::new(),
            shards: 1,
            backlog: 1_024,
            reset_seed: None,
            generation: 0,
            inherited: Arc::default(),
        }
    }
}

impl ServerBuilder {
    /// Adds an address to listen on (UDP or TCP, as the carrier has it); port 0 lets the system choose
    /// one. `[::]` stands for all addresses of both families, or of IPv6 alone where an IPv4 address is
    /// added with the same port.
    pub fn listen(&mut self, address: SocketAddr) -> &mut Self {
        self.own.listen.push(address);
        self
    }

    /// Adds an address to announce to clients, in the order of their address ids from 1 on. Native
    /// carriers also listen on it. At most 254.
    pub fn announce(&mut self, address: ServerAddress) -> &mut Self {
        self.own.addresses.push(address);
        self
    }

    /// Adds the address, port included, at which clients reach this very server, whereas the one they know leads to
    /// several: to members of a fleet, among which a balancer chooses by outer addresses. Clients then join by this one
    /// only (flag C of MP_CAPABLE and ADD_ADDR, RFC 8684 sections 3.1 and 3.4.1), and those of this library leave the
    /// balancer's. It is not listened on for its sake: it must lead to an address that is. At most 8, and one for each
    /// family that clients have.
    pub fn advertise(&mut self, address: SocketAddr) -> &mut Self {
        self.own.advertised.push(address);
        self
    }

    /// Where it is itself reached, as far as that was said.
    #[must_use]
    pub fn advertised(&self) -> &[SocketAddr] {
        &self.own.advertised
    }

    /// Endpoints that share the ports, each with a thread's worth of work: a power of two, at most 128.
    /// Raw sockets that were opened before must be [for as many](RawSockets::open_for). Default: 1.
    pub fn shards(&mut self, shards: usize) -> &mut Self {
        self.own.shards = shards;
        self
    }

    /// How many endpoints share the ports.
    #[must_use]
    pub const fn get_shards(&self) -> usize {
        self.own.shards
    }

    /// Connections that may wait for [`Server::accept`]; more are refused. Default: 1,024.
    pub fn backlog(&mut self, backlog: usize) -> &mut Self {
        self.own.backlog = backlog;
        self
    }

    /// UDP carrier: a seed that outlives the process lets a server that was killed and started again
    /// tell its clients, as soon as they send, that their connections are gone. Without one, they find
    /// out by their timers.
    pub fn reset_seed(&mut self, seed: ResetSeed) -> &mut Self {
        self.own.reset_seed = Some(seed);
        self
    }

    /// Takes the ports of all addresses on raw sockets that are open already, and uses these as the
    /// carrier: for a process that drops its privileges before it starts threads. Ports that the system
    /// was to choose are chosen.
    ///
    /// # Errors
    /// [`BindError::Bind`]: a port is taken, an address is not this machine's, or a privilege is
    /// missing.
    pub fn reserve(&mut self, sockets: Arc<RawSockets>) -> Result<&mut Self, BindError> {
        self.own.listen = on_both_families(&self.own.listen);
        for address in &mut self.own.listen {
            let reserved = sockets.reserve(*address);
            *address = reserved.map_err(|source| BindError::Bind { address: *address, source })?;
        }
        let port = self.own.listen.first().map_or(0, SocketAddr::port);
        for further in &mut self.own.addresses {
            if further.address.port() == 0 {
                further.address.set_port(port);
            }
            let address = further.address;
            if !self.own.listen.iter().any(|listen| covers(*listen, address)) {
                let reserved = sockets.reserve(address);
                reserved.map_err(|source| BindError::Bind { address, source })?;
            }
        }
        if let Some(address) = sockets.left_over() {
            return Err(BindError::Config(format!(
                "an upgrade takes over the addresses: the running process has {address}, which is not in the \
                 configuration, and needs a restart"
            )));
        }
        self.carrier = Carrier::Opened(sockets);
        Ok(self)
    }

    /// The raw sockets of the process whose place it takes, to be [reserved](Self::reserve) from; `None`: it has none.
    ///
    /// # Errors
    /// What it was given are none.
    pub fn inherited_raw(&self) -> Result<Option<Arc<RawSockets>>, BindError> {
        let mut estate = self.lock_inherited();
        estate.as_mut().map_or(Ok(None), inherited_raw)
    }

    /// Whether it takes the place of another process.
    #[must_use]
    pub fn is_successor(&self) -> bool {
        self.lock_inherited().is_some()
    }

    /// Takes the place of another process: [`bind`](Self::bind) then takes the sockets that it was given, and nothing
    /// is received before [`Server::begin`].
    ///
    /// Gives what the program itself had handed over ([`Estate::further`]).
    pub fn inherit(&mut self, mut estate: Estate) -> Vec<(String, OwnedFd)> {
        let is_own = |(name, _): &(String, OwnedFd)| RawSockets::takes(name);
        let (own, further) = std::mem::take(&mut estate.further).into_iter().partition(is_own);
        estate.further = own;
        self.own.reset_seed = Some(estate.seed);
        self.own.generation = estate.generation;
        *self.lock_inherited() = Some(estate);
        further
    }

    /// What it was given, if it has not been used.
    pub(super) fn take_inherited(&self) -> Option<Estate> {
        self.lock_inherited().take()
    }

    fn lock_inherited(&self) -> MutexGuard<'_, Option<Estate>> {
        self.own.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses to listen on so far.
    #[must_use]
    pub fn listen_addrs(&self) -> &[SocketAddr] {
        &self.own.listen
    }

    /// The addresses to announce so far.
    #[must_use]
    pub fn announced(&self) -> &[ServerAddress] {
        &self.own.addresses
    }

    /// Opens the listening sockets. The builder can be used again. Needs a tokio runtime with I/O and
    /// time.
    ///
    /// # Errors
    /// An address cannot be bound, or the configuration contradicts itself.
    pub async fn bind(&self) -> Result<Server, BindError> {
        let wrong = |what: &str| Err(BindError::Config(what.to_owned()));
        if !self.own.shards.is_power_of_two() || self.own.shards > MAX_SHARDS {
            let shards = self.own.shards;
            return wrong(&format!(
                "shards must be a power of two up to {MAX_SHARDS}, not {shards}"
            ));
        }
        if self.own.listen.is_empty() {
            return wrong("no address to listen on");
        }
        if self.own.advertised.len() > MAX_OWN {
            let count = self.own.advertised.len();
            return wrong(&format!("{count} own addresses to advertise; at most {MAX_OWN}"));
        }
        let aims = |at: &SocketAddr| {
            at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast()
        };
        if let Some(aimless) = self.own.advertised.iter().find(|at| !aims(at)) {
            return wrong(&format!("{aimless} cannot be advertised: not a port of one machine"));
        }
        let mut config = self.clone();
        config.own.listen = on_both_families(&config.own.listen);
        multimob::allow_following(config.transport.as_core_mut());
        Server::open(config)
    }
}

/// The parts of a native carrier that a predecessor left, as a carrier: raw sockets with its guards. What is not
/// taken by them stays in the estate.
fn inherited_raw(estate: &mut Estate) -> Result<Option<Arc<RawSockets>>, BindError> {
    let is_raw = |part: &(NativePart, SocketAddr, OwnedFd)| part.0 != NativePart::Tun;
    let raw: Vec<_> = estate.native.extract_if(.., |part| is_raw(part)).collect();
    let opened = RawSockets::inherit(raw, std::mem::take(&mut estate.further));
    let opened =
        opened.map_err(|error| BindError::io("take the predecessor's raw sockets", error))?;
    Ok(opened.map(Arc::new))
}

/// Whether a socket that listens on `listen` is reached at `address`.
fn covers(listen: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = listen.ip().is_unspecified() && listen.is_ipv4() == address.is_ipv4();
    listen.port() == address.port() && (everywhere || listen.ip() == address.ip())
}

/// Spells out what `[::]` stands for: behind each `[::]:PORT`, `0.0.0.0:PORT` is put, unless an IPv4
/// address is listed with that port. A second time changes nothing.
fn on_both_families(listen: &[SocketAddr]) -> Vec<SocketAddr> {
    let has_ipv4 = |port| listen.iter().any(|at| at.is_ipv4() && at.port() == port);
    let missing = |at: &SocketAddr| {
        let everywhere = at.is_ipv6() && at.ip().is_unspecified();
        let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        (everywhere && !has_ipv4(at.port())).then_some(ipv4)
    };
    listen.iter().flat_map(|at| [Some(*at), missing(at)]).flatten().collect()
}

/// `0.0.0.0:0` behind `[::]:PORT` means that port.
pub(super) fn same_port(address: SocketAddr, before: Option<SocketAddr>) -> SocketAddr {
    let everywhere = |at: &SocketAddr| at.ip().is_unspecified();
    match before.filter(|at| at.is_ipv6() && everywhere(at)) {
        Some(ipv6) if address.is_ipv4() && everywhere(&address) && address.port() == 0 => {
            SocketAddr::new(address.ip(), ipv6.port())
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everywhere_is_both_families_unless_one_is_listed() {
        let spelled = |addresses: &[&str]| {
            let listen: Vec<_> = addresses.iter().map(|at| at.parse().unwrap()).collect();
            let once = on_both_families(&listen);
            assert_eq!(on_both_families(&once), once);
            once.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(spelled(&["[::]:7"]), "[::]:7 0.0.0.0:7");
        assert_eq!(spelled(&["[::]:7", "0.0.0.0:7"]), "[::]:7 0.0.0.0:7");
        assert_eq!(
            spelled(&["192.0.2.1:7", "[::]:7", "[::]:8"]),
            "192.0.2.1:7 [::]:7 [::]:8 0.0.0.0:8"
        );
        assert_eq!(spelled(&["[::1]:7", "0.0.0.0:8"]), "[::1]:7 0.0.0.0:8");
        let [v6, v4] = ["[::]:9", "0.0.0.0:0"].map(|at| at.parse().unwrap());
        assert_eq!(same_port(v4, Some(v6)).port(), 9);
        assert_eq!(same_port(v4, None).port(), 0);
    }
}
