//! Configuration of a server.

use core::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use marline_io::succession::{HandoverState, NativePart};
use marline_io::{RawSockets, ResetSeed};
use marline_policy::Role;

use super::Server;
use crate::builder::{Builder, OwnSettings};
use crate::{BindError, Carrier, multimob};

/// Maximum number of shards on a port, which the top byte of a flow id can identify.
const MAX_SHARDS: usize = 128;

/// Additional address of a server, or an address to announce (ADD_ADDR, RFC 8684 section 3.4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerAddress {
    /// Address of this machine; port 0 stands for the port of the first listening address.
    pub address: SocketAddr,
    /// True to announce it to clients (ADD_ADDR).
    pub signal: bool,
    /// True if subflows to it carry data only if no other subflow can.
    pub backup: bool,
    /// Address to announce instead, at which clients reach it through a NAT.
    pub advertised: Option<SocketAddr>,
}

impl ServerAddress {
    /// Creates an address that is announced unchanged.
    #[must_use]
    pub const fn new(address: SocketAddr) -> Self {
        ServerAddress { address, signal: true, backup: false, advertised: None }
    }
}

/// Maximum number of own addresses of a server behind a load balancer.
const MAX_OWN_ADDRESSES: usize = 8;

/// Configuration of a [`Server`], created by [`Server::builder`].
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let server = marline::Server::builder().listen("[::]:4500".parse()?).bind().await?;
/// # Ok(())
/// # }
/// ```
pub type ServerBuilder = Builder<ServerSettings>;

/// Settings that only a [`Server`] has.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub(super) listen: Vec<SocketAddr>,
    pub(super) addresses: Vec<ServerAddress>,
    /// Addresses that lead to exactly this server behind a load balancer.
    pub(super) advertised: Vec<SocketAddr>,
    pub(super) shards: usize,
    pub(super) backlog: usize,
    pub(super) reset_seed: Option<ResetSeed>,
    /// Generation among the processes that share the addresses.
    pub(super) generation: u8,
    /// State from the predecessor, until used; clones share it.
    inherited: Arc<Mutex<Option<HandoverState>>>,
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
    /// Adds an address to listen on (UDP or TCP, depending on the carrier). With port 0, the kernel chooses a port.
    /// `[::]` stands for all addresses of both families, or only of IPv6 if an IPv4 address is added with the same
    /// port.
    pub fn listen(&mut self, address: SocketAddr) -> &mut Self {
        self.own.listen.push(address);
        self
    }

    /// Adds an address to announce to clients, at most 254. The address ids start at 1, in this order. Native carriers
    /// also listen on the address.
    pub fn announce(&mut self, address: ServerAddress) -> &mut Self {
        self.own.addresses.push(address);
        self
    }

    /// Adds the address, including the port, that leads clients to exactly this server. This is for members of a fleet
    /// behind a load balancer that chooses by outer addresses. Clients then join only at this address (flag C of
    /// MP_CAPABLE and ADD_ADDR, RFC 8684 sections 3.1 and 3.4.1), and clients of this library leave the load balancer's
    /// address. The server does not listen on it: it must lead to an address on which the server listens. At most 8;
    /// add one for each family that clients use.
    pub fn advertise(&mut self, address: SocketAddr) -> &mut Self {
        self.own.advertised.push(address);
        self
    }

    /// Returns the addresses that lead to exactly this server, if configured.
    #[must_use]
    pub fn advertised(&self) -> &[SocketAddr] {
        &self.own.advertised
    }

    /// Sets the number of endpoints that share the ports. Each is served by one thread. Must be a power of two, at
    /// most 128. Raw sockets that were opened earlier must be [for the same number](RawSockets::open_for). Default: 1.
    pub fn shards(&mut self, shards: usize) -> &mut Self {
        self.own.shards = shards;
        self
    }

    /// Returns the number of endpoints that share the ports.
    #[must_use]
    pub const fn get_shards(&self) -> usize {
        self.own.shards
    }

    /// Sets the maximum number of connections that wait for [`Server::accept`]; more are refused. Default: 1,024.
    pub fn backlog(&mut self, backlog: usize) -> &mut Self {
        self.own.backlog = backlog;
        self
    }

    /// UDP carrier: sets a seed that outlives the process. After a crash and restart, the server can then reset the
    /// lost connections of its clients as soon as they send. Without a seed, clients depend on their timers.
    pub fn reset_seed(&mut self, seed: ResetSeed) -> &mut Self {
        self.own.reset_seed = Some(seed);
        self
    }

    /// Reserves the ports of all addresses on raw sockets that are already open, and uses these as the carrier, for a
    /// process that drops its privileges before it starts threads. Each port 0 is replaced by the chosen port.
    ///
    /// # Errors
    /// [`BindError::Bind`]: a port is in use, an address does not belong to this machine, or a privilege is missing.
    pub fn reserve(&mut self, sockets: Arc<RawSockets>) -> Result<&mut Self, BindError> {
        self.own.listen = expand_wildcards(&self.own.listen);
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
        if let Some(address) = sockets.unreserved_address() {
            return Err(BindError::Config(format!(
                "upgrade refused: removing the address {address} needs a restart"
            )));
        }
        self.carrier = Carrier::Opened(sockets);
        Ok(self)
    }

    /// Returns the raw sockets of the predecessor, for [`reserve`](Self::reserve); `None` if it has none.
    ///
    /// # Errors
    /// The state does not contain valid raw sockets.
    pub fn inherited_raw_sockets(&self) -> Result<Option<Arc<RawSockets>>, BindError> {
        let mut handover = self.lock_inherited();
        handover.as_mut().map_or(Ok(None), inherited_raw_sockets)
    }

    /// Returns true if this server succeeds another process.
    #[must_use]
    pub fn is_successor(&self) -> bool {
        self.lock_inherited().is_some()
    }

    /// Makes this server the successor of another process: [`bind`](Self::bind) uses the inherited sockets, and the
    /// server receives nothing before [`Server::start_receiving`].
    ///
    /// Returns the additional descriptors that the predecessor program has handed over ([`HandoverState::further`]).
    pub fn inherit(&mut self, mut handover: HandoverState) -> Vec<(String, OwnedFd)> {
        let is_own = |(name, _): &(String, OwnedFd)| RawSockets::accepts_name(name);
        let (own, further) = std::mem::take(&mut handover.further).into_iter().partition(is_own);
        handover.further = own;
        self.own.reset_seed = Some(handover.seed);
        self.own.generation = handover.generation;
        *self.lock_inherited() = Some(handover);
        further
    }

    /// Takes the received state, if it has not yet been used.
    pub(super) fn take_inherited(&self) -> Option<HandoverState> {
        self.lock_inherited().take()
    }

    fn lock_inherited(&self) -> MutexGuard<'_, Option<HandoverState>> {
        self.own.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current listening addresses.
    #[must_use]
    pub fn listen_addrs(&self) -> &[SocketAddr] {
        &self.own.listen
    }

    /// Returns the current addresses to announce.
    #[must_use]
    pub fn announced(&self) -> &[ServerAddress] {
        &self.own.addresses
    }

    /// Opens the listening sockets. The builder can be used again. Needs a tokio runtime with I/O and
    /// time.
    ///
    /// # Errors
    /// An address cannot be bound, or the configuration is contradictory.
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
        if self.own.advertised.len() > MAX_OWN_ADDRESSES {
            let count = self.own.advertised.len();
            return wrong(&format!(
                "too many addresses to advertise: {count} (maximum: {MAX_OWN_ADDRESSES})"
            ));
        }
        let is_valid = |at: &SocketAddr| {
            at.port() != 0 && !at.ip().is_unspecified() && !at.ip().is_multicast()
        };
        if let Some(invalid) = self.own.advertised.iter().find(|at| !is_valid(at)) {
            return wrong(&format!(
                "{invalid} cannot be advertised: expected a unicast address and a port"
            ));
        }
        let mut config = self.clone();
        config.own.listen = expand_wildcards(&config.own.listen);
        multimob::allow_following(config.transport.as_core_mut());
        Server::open(config)
    }
}

/// Creates a carrier from a predecessor's native parts: raw sockets with their guards. Other parts remain in the
/// state.
fn inherited_raw_sockets(
    handover: &mut HandoverState,
) -> Result<Option<Arc<RawSockets>>, BindError> {
    let is_raw = |part: &(NativePart, SocketAddr, OwnedFd)| part.0 != NativePart::Tun;
    let raw: Vec<_> = handover.native.extract_if(.., |part| is_raw(part)).collect();
    let opened = RawSockets::inherit(raw, std::mem::take(&mut handover.further));
    let opened =
        opened.map_err(|error| BindError::io("take the predecessor's raw sockets", error))?;
    Ok(opened.map(Arc::new))
}

/// Returns true if a socket that listens on `listen` receives packets to `address`.
fn covers(listen: SocketAddr, address: SocketAddr) -> bool {
    let everywhere = listen.ip().is_unspecified() && listen.is_ipv4() == address.is_ipv4();
    listen.port() == address.port() && (everywhere || listen.ip() == address.ip())
}

/// Expands `[::]`: `0.0.0.0:PORT` is inserted after each `[::]:PORT`, unless an IPv4 address is listed with that port.
/// The function is idempotent.
fn expand_wildcards(listen: &[SocketAddr]) -> Vec<SocketAddr> {
    let has_ipv4 = |port| listen.iter().any(|at| at.is_ipv4() && at.port() == port);
    let missing = |at: &SocketAddr| {
        let everywhere = at.is_ipv6() && at.ip().is_unspecified();
        let ipv4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port());
        (everywhere && !has_ipv4(at.port())).then_some(ipv4)
    };
    listen.iter().flat_map(|at| [Some(*at), missing(at)]).flatten().collect()
}

/// Returns the address, with port 0 of `0.0.0.0:0` after `[::]:PORT` replaced by that port.
pub(super) fn with_previous_port(address: SocketAddr, before: Option<SocketAddr>) -> SocketAddr {
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
    fn a_wildcard_address_listens_on_both_families() {
        let spelled = |addresses: &[&str]| {
            let listen: Vec<_> = addresses.iter().map(|at| at.parse().unwrap()).collect();
            let once = expand_wildcards(&listen);
            assert_eq!(expand_wildcards(&once), once);
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
        assert_eq!(with_previous_port(v4, Some(v6)).port(), 9);
        assert_eq!(with_previous_port(v4, None).port(), 0);
    }
}
