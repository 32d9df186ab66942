//! Table of a client's paths: current local addresses, sockets, and the state known to the core.

mod change;
mod entry;
mod identity;
mod status;

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use marline_io::{
    Contact, Interfaces, LocalEnd, LocalSpec, ObservedPath, PathSpec, Prefix64, Shard,
};
use marline_policy::{AddressId, LocalAddress};

pub use change::PathChange;
use entry::Entry;
use identity::Identities;
pub(crate) use status::Evidence;
pub use status::PathStatus;

use crate::BindError;
use crate::carrier::TunPath;
use crate::error::UnknownPath;
use crate::health;

/// Restriction of a path that was not set by hand, for example by a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathRestriction {
    /// No restriction.
    #[default]
    None,
    /// Traffic is treated as charged, regardless of other settings.
    Metered,
    /// The path is not used, as if disabled by hand, for this reason.
    Unusable(String),
}

/// Path and server for an attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: String,
    pub(crate) end: LocalEnd,
    pub(crate) remote: SocketAddr,
    /// The path is used only if others do not work.
    pub(crate) reserve: bool,
}

/// Maximum number of remembered automatic paths that were changed by hand and whose interface is gone.
const MAX_VANISHED_PATHS: usize = 16;

/// Address of a path, for which the core has an address id. Two paths may share an address but use different servers.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    address: IpAddr,
    server: Option<SocketAddr>,
}

/// All paths of a client.
#[derive(Debug)]
pub(crate) struct PathTable {
    /// True if the paths were found automatically.
    automatic: bool,
    /// True if the paths do not depend on the machine's interfaces.
    fixed: bool,
    /// Mark of the paths' packets for routing rules; 0 for none.
    mark: u32,
    entries: Vec<Entry>,
    /// NAT64 prefixes by interface index.
    prefixes: BTreeMap<u32, Prefix64>,
    ids: BTreeMap<Key, AddressId>,
    last_logged: BTreeMap<Key, LocalAddress>,
    identities: Identities,
    /// Paths as last shown to observers, by number.
    shown: Vec<PathSpec>,
    sockets: BTreeMap<IpAddr, u32>,
}

impl PathTable {
    pub(crate) fn new(specs: &[PathSpec]) -> Self {
        PathTable {
            automatic: specs.is_empty(),
            fixed: false,
            mark: 0,
            entries: specs.iter().cloned().map(Entry::new).collect(),
            prefixes: BTreeMap::new(),
            ids: BTreeMap::new(),
            last_logged: BTreeMap::new(),
            identities: Identities::default(),
            shown: Vec::new(),
            sockets: BTreeMap::new(),
        }
    }

    /// Creates the paths behind TUN interfaces: those in `specs`, or all if it is empty.
    pub(crate) fn from_tuns(tuns: &[TunPath], specs: &[PathSpec]) -> Self {
        let all = || {
            let spec = |tun: &TunPath| PathSpec::new(LocalSpec::Interface(tun.interface.clone()));
            tuns.iter().map(spec).collect::<Vec<_>>()
        };
        let mut table = PathTable::new(&if specs.is_empty() { all() } else { specs.to_vec() });
        for entry in &mut table.entries {
            let named = |tun: &&TunPath| match &entry.spec.local {
                LocalSpec::Address(address) => tun.address == *address,
                LocalSpec::Interface(name) => tun.interface == *name,
            };
            let end = |tun: &TunPath| LocalEnd::from_tun(&tun.interface, tun.address);
            entry.set_ends(tuns.iter().filter(named).map(end).collect());
            if entry.ends.is_empty() {
                entry.error =
                    Some(format!("no TUN interface `{}` is configured", entry.spec.local));
            }
        }
        table.fixed = true;
        table
    }

    /// Updates the paths to the machine's current state: opens and closes sockets and updates the core.
    pub(crate) fn update(&mut self, shard: &Shard, interfaces: &Interfaces) {
        self.resolve(interfaces);
        self.apply_to_core(shard);
    }

    /// Checks that every configured path was opened or can be used once it appears.
    pub(crate) fn check(&self) -> Result<(), BindError> {
        for entry in self.entries.iter().filter(|entry| !entry.absent) {
            if let Some(reason) = &entry.error {
                let (path, reason) = (entry.spec.to_string(), reason.clone());
                return Err(BindError::NoSuchPath { path, reason });
            }
        }
        Ok(())
    }

    /// Sets the mark of all paths' packets for routing rules.
    pub(crate) const fn with_mark(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// Looks up the current addresses and interfaces of the paths.
    pub(crate) fn resolve(&mut self, interfaces: &Interfaces) {
        if self.fixed {
            return;
        }
        self.find(interfaces);
        for end in self.entries.iter_mut().flat_map(|entry| &mut entry.ends) {
            end.mark = self.mark;
        }
    }

    fn find(&mut self, interfaces: &Interfaces) {
        if self.automatic {
            let found = PathSpec::defaults(interfaces);
            for entry in &mut self.entries {
                entry.ends.clear();
                entry.error = Some(missing_path_reason(entry, interfaces).to_owned());
            }
            for (spec, ends) in found {
                let known = self.entries.iter().position(|entry| entry.spec == spec);
                let at = known.unwrap_or_else(|| {
                    self.entries.push(Entry::new(spec));
                    self.entries.len() - 1
                });
                self.entries[at].set_ends(ends);
            }
            self.drop_vanished_paths(interfaces);
            return;
        }
        for entry in &mut self.entries {
            let found = entry.spec.resolve(interfaces).map_err(|error| error.to_string());
            let down = |end: &LocalEnd| {
                interfaces.find_by_name(&end.interface.0).is_none_or(|i| !i.up && !i.loopback)
            };
            entry.set_lookup_result(found.and_then(|ends| match ends.iter().all(down) {
                true => Err("the interface is down".to_owned()),
                false => Ok(ends),
            }));
        }
    }

    /// Drops paths whose interfaces are gone, because a tethered phone returns with another name. The latest paths that
    /// were changed by hand are kept, so that the change still applies if the interface returns.
    fn drop_vanished_paths(&mut self, interfaces: &Interfaces) {
        let is_gone = |entry: &Entry| match &entry.spec.local {
            LocalSpec::Interface(name) => interfaces.find_by_name(name).is_none(),
            LocalSpec::Address(_) => false,
        };
        let kept = self.entries.iter().filter(|entry| is_gone(entry) && entry.is_changed()).count();
        let mut too_many = kept.saturating_sub(MAX_VANISHED_PATHS);
        self.entries.retain(|entry| {
            let stays = !is_gone(entry) || entry.is_changed() && too_many == 0;
            too_many -= usize::from(too_many > 0 && is_gone(entry) && entry.is_changed());
            stays
        });
    }

    /// Returns the problems with configured paths; empty if paths are found automatically or no problem is known.
    pub(crate) fn unusable_reason(&self) -> Vec<String> {
        let named = self.entries.iter().filter(|_| !self.automatic);
        named.filter_map(Entry::unusable_reason).collect()
    }

    fn apply_to_core(&mut self, shard: &Shard) {
        let mut wanted: BTreeMap<Key, LocalAddress> = BTreeMap::new();
        self.identities.assign(self.entries.iter_mut().flat_map(|entry| &mut entry.ends));
        for at in 0..self.entries.len() {
            for end in self.entries[at].ends.clone() {
                if let Err(error) = self.ensure_socket(shard, &end) {
                    self.entries[at].error = Some(format!("cannot open a socket: {error}"));
                    continue;
                }
                let entry = &self.entries[at];
                let key = Key { address: end.address, server: entry.spec.remote };
                let (backup, up, cost) = (entry.backup, entry.may_be_used(), entry.cost());
                let (nat64, link) = (entry.nat64(&self.prefixes), entry.link(&end));
                let Some(id) = self.id(key) else { continue };
                let plain = local_address(id, key, backup, up);
                wanted.insert(key, LocalAddress { cost, nat64, link, ..plain });
            }
        }
        let gone: Vec<_> =
            self.last_logged.iter().filter(|(key, _)| !wanted.contains_key(key)).collect();
        let mut changes: Vec<LocalAddress> = Vec::new();
        changes.extend(gone.into_iter().map(|(_, old)| LocalAddress { up: false, ..*old }));
        let changed = wanted.iter().filter(|(key, new)| self.last_logged.get(key) != Some(new));
        changes.extend(changed.map(|(_, new)| *new));
        if !changes.is_empty() {
            shard.with_endpoint(|endpoint, now| {
                for change in changes {
                    endpoint.set_local_address(now, None, change);
                }
            });
        }
        for (number, entry) in self.entries.iter().enumerate() {
            let addresses: Vec<IpAddr> = entry.ends.iter().map(|end| end.address).collect();
            let (spec, interface) = (&entry.spec, entry.interface());
            shard.show_path(&ObservedPath { number, spec, interface, addresses: &addresses });
        }
        // Observers identify paths by number: removed numbers are reported without addresses.
        for (number, spec) in self.shown.iter().enumerate().skip(self.entries.len()) {
            shard.show_path(&ObservedPath { number, spec, interface: None, addresses: &[] });
        }
        self.shown = self.entries.iter().map(|entry| entry.spec.clone()).collect();
        let unused: Vec<IpAddr> = self
            .sockets
            .keys()
            .copied()
            .filter(|ip| !wanted.keys().any(|key| key.address == *ip))
            .collect();
        for ip in unused {
            self.sockets.remove(&ip);
            shard.close_socket(ip);
        }
        self.last_logged = wanted;
    }

    /// Ensures that a socket for this address on this interface exists; replaces it if the interface has changed.
    fn ensure_socket(&mut self, shard: &Shard, end: &LocalEnd) -> std::io::Result<()> {
        match self.sockets.get(&end.address) {
            Some(index) if *index == end.interface.1 => return Ok(()),
            Some(_) => shard.close_socket(end.address),
            None => {}
        }
        shard.open_socket(end.socket_options())?;
        self.sockets.insert(end.address, end.interface.1);
        Ok(())
    }

    /// Returns an address id. Ids change as rarely as possible, because there are only 255.
    fn id(&mut self, key: Key) -> Option<AddressId> {
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        let used = |ids: &BTreeMap<Key, AddressId>, id: u8| ids.values().any(|used| used.0 == id);
        let free = (1..=u8::MAX).find(|id| !used(&self.ids, *id));
        let id = free.or_else(|| {
            let (&old, &id) =
                self.ids.iter().find(|(key, _)| !self.last_logged.contains_key(key))?;
            self.ids.remove(&old);
            Some(id.0)
        })?;
        self.ids.insert(key, AddressId(id));
        Some(AddressId(id))
    }

    /// Returns the local addresses for new connections.
    pub(crate) fn local_addresses(&self) -> Vec<LocalAddress> {
        self.last_logged.values().copied().collect()
    }

    /// Returns the candidates for the attempts to connect to `servers`, in this order: the last winner; other servers
    /// on the winner's path; all paths and servers in turn, so that neither a failed path nor a failed server delays
    /// all others; backup paths last.
    pub(crate) fn candidates(
        &self,
        servers: &[SocketAddr],
        winner: Option<(IpAddr, SocketAddr)>,
    ) -> Vec<Candidate> {
        let servers = order_servers(servers, &self.prefixes_in_use());
        let mut found = Vec::new();
        let usable = self.entries.iter().filter(|entry| entry.may_be_used());
        for (turn, entry) in usable.enumerate() {
            let pinned = entry.spec.remote.as_ref();
            let remotes = pinned.map_or(&servers[..], std::slice::from_ref);
            let nat64 = entry.nat64(&self.prefixes);
            let pairs = remotes.iter().flat_map(|remote| {
                let remote = nat64.map_or(*remote, |prefix| prefix.translate(*remote));
                let fits = move |end: &&LocalEnd| end.address.is_ipv4() == remote.is_ipv4();
                entry.ends.iter().filter(fits).map(move |end| (end, remote))
            });
            for (nth, (end, remote)) in pairs.enumerate() {
                let path = entry.display_name();
                let reserve = entry.is_reserve();
                let candidate = Candidate { path, end: end.clone(), remote, reserve };
                let won = winner == Some((end.address, remote));
                let works = winner.is_some_and(|(local, _)| local == end.address);
                // The paths take turns, so that a failed path costs one delay regardless of the number of addresses.
                let rank = (!won, reserve, !works, turn + nth, nth);
                found.push((rank, candidate));
            }
        }
        // The sort is stable: equal candidates keep the order of the paths.
        found.sort_by_key(|(rank, _)| *rank);
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns the first server address whose family differs from that of the address in use.
    pub(crate) fn other_family_server(
        &self,
        servers: &[SocketAddr],
        reached: SocketAddr,
    ) -> Option<SocketAddr> {
        let prefixes = self.prefixes_in_use();
        let reached = *order_servers(&[reached], &prefixes).first()?;
        let servers = order_servers(servers, &prefixes);
        servers.into_iter().find(|server| server.is_ipv4() != reached.is_ipv4())
    }

    /// Returns the local ends of the paths that may currently be used.
    pub(crate) fn usable_local_ends(&self) -> Vec<LocalEnd> {
        let usable = self.entries.iter().filter(|entry| entry.is_up());
        usable.flat_map(|entry| &entry.ends).filter(|end| !end.behind_tun).cloned().collect()
    }

    fn prefixes_in_use(&self) -> Vec<Prefix64> {
        self.entries.iter().filter_map(|entry| entry.nat64(&self.prefixes)).collect()
    }

    /// Returns the ends of IPv6-only networks without a configured prefix, one per interface.
    pub(crate) fn nat64_lookup_ends(&self) -> Vec<LocalEnd> {
        let unknown = |entry: &&Entry| entry.has_only_ipv6() && entry.spec.nat64.is_none();
        let mut ends: Vec<LocalEnd> = Vec::new();
        for end in self.entries.iter().filter(unknown).filter_map(|entry| entry.ends.first()) {
            if !ends.iter().any(|known| known.interface.1 == end.interface.1) {
                ends.push(end.clone());
            }
        }
        ends
    }

    /// Sets the NAT64 prefix of the network behind an interface. Returns true if it has changed.
    pub(crate) fn set_prefix(
        &mut self,
        shard: &Shard,
        interface: u32,
        prefix: Option<Prefix64>,
    ) -> bool {
        let before = match prefix {
            Some(prefix) => self.prefixes.insert(interface, prefix),
            None => self.prefixes.remove(&interface),
        };
        if before != prefix {
            self.apply_to_core(shard);
        }
        before != prefix
    }

    /// Returns the paths that are up, each with its name and contacts.
    pub(crate) fn known_contacts<'a>(
        &self,
        contacts: &'a [Contact],
    ) -> Vec<health::NamedContacts<'a>> {
        let up = self.entries.iter().filter(|entry| entry.is_up());
        up.map(|entry| (entry.display_name(), entry.contacts(contacts))).collect()
    }

    /// Changes a path by hand. `name` is its index, interface, address, or configured text.
    pub(crate) fn change(
        &mut self,
        shard: &Shard,
        name: &str,
        change: PathChange,
    ) -> Result<(), UnknownPath> {
        let at = self.position(name)?;
        let entry = &mut self.entries[at];
        match change {
            PathChange::Up => entry.is_disabled = false,
            PathChange::Down => entry.is_disabled = true,
            PathChange::Backup => entry.backup = true,
            PathChange::Primary => entry.backup = false,
            PathChange::Metered => entry.metered = true,
            PathChange::Unmetered => (entry.metered, entry.limited) = (false, Some(false)),
            PathChange::Limited => (entry.metered, entry.limited) = (false, Some(true)),
            PathChange::Fading => entry.fading = true,
            PathChange::Steady => entry.fading = false,
        }
        self.apply_to_core(shard);
        Ok(())
    }

    /// Records whether the system's network manager considers the path metered. For `name`, see
    /// [`change`](Self::change).
    pub(crate) fn report_limited(
        &mut self,
        shard: &Shard,
        name: &str,
        limited: bool,
    ) -> Result<(), UnknownPath> {
        let at = self.position(name)?;
        let entry = &mut self.entries[at];
        if std::mem::replace(&mut entry.reported_limited, limited) != limited {
            self.apply_to_core(shard);
        }
        Ok(())
    }

    /// Restricts a path. For `name`, see [`change`](Self::change).
    pub(crate) fn restrict(
        &mut self,
        shard: &Shard,
        name: &str,
        restriction: PathRestriction,
    ) -> Result<(), UnknownPath> {
        let at = self.position(name)?;
        self.entries[at].restriction = restriction;
        self.apply_to_core(shard);
        Ok(())
    }

    /// Takes over the paths of `other`, whose addresses have been looked up. Remaining addresses keep their ids and
    /// sockets.
    pub(crate) fn replace(&mut self, shard: &Shard, other: PathTable) {
        let old = std::mem::replace(&mut self.entries, other.entries);
        self.automatic = other.automatic;
        for entry in &mut self.entries {
            let same = |other: &&Entry| {
                other.spec.local == entry.spec.local && other.spec.remote == entry.spec.remote
            };
            if let Some(before) = old.iter().find(same) {
                entry.inherit_changes(before);
            }
        }
        self.apply_to_core(shard);
    }

    fn position(&self, name: &str) -> Result<usize, UnknownPath> {
        let index = name.parse::<usize>().ok();
        let names = |(at, entry): (usize, &Entry)| {
            index == Some(at)
                || entry.spec.to_string() == name
                || entry.spec.local.to_string() == name
                || entry.spec.name.as_deref() == Some(name)
                || entry.ends.iter().any(|end| {
                    end.interface.0 == name && !end.loopback || end.address.to_string() == name
                })
        };
        self.entries.iter().enumerate().position(names).ok_or_else(|| {
            let reason = format!("no such path (available: {})", self.entries.len());
            UnknownPath::new(name, reason)
        })
    }
}

/// Returns the reason why an interface that was a path no longer is one.
fn missing_path_reason(entry: &Entry, interfaces: &Interfaces) -> &'static str {
    let interface = match &entry.spec.local {
        LocalSpec::Interface(name) => interfaces.find_by_name(name),
        LocalSpec::Address(_) => None,
    };
    match interface {
        Some(interface) if interface.tunnel && interface.default_addresses().next().is_some() => {
            "a tunnel over another path"
        }
        Some(interface) if interfaces.uses_shared_network(interface) => {
            "it shares the link of another path"
        }
        _ => "no default route",
    }
}

/// Returns the addresses in the order of attempts, without those synthesized with one of these prefixes: such addresses
/// from a DNS64 resolver are valid only in its own network.
fn order_servers(servers: &[SocketAddr], prefixes: &[Prefix64]) -> Vec<SocketAddr> {
    let mut plain: Vec<SocketAddr> = Vec::with_capacity(servers.len());
    for server in servers {
        let mut back = prefixes.iter().map(|prefix| prefix.translate_back(*server));
        let server = back.find(SocketAddr::is_ipv4).unwrap_or(*server);
        if !plain.contains(&server) {
            plain.push(server);
        }
    }
    interleave_families(&plain)
}

/// Orders the servers as in RFC 8305 section 4: the families alternate, beginning with that of the first server.
fn interleave_families(servers: &[SocketAddr]) -> Vec<SocketAddr> {
    let first = servers.first().is_some_and(SocketAddr::is_ipv4);
    let (some, others): (Vec<_>, Vec<_>) =
        servers.iter().copied().partition(|server| server.is_ipv4() == first);
    let (mut some, mut others) = (some.into_iter(), others.into_iter());
    let mut mixed = Vec::with_capacity(servers.len());
    while mixed.len() < servers.len() {
        mixed.extend(some.next());
        mixed.extend(others.next());
    }
    mixed
}

fn local_address(id: AddressId, key: Key, backup: bool, up: bool) -> LocalAddress {
    let (address, remote) = (SocketAddr::new(key.address, 0), key.server);
    LocalAddress { remote, backup, up, ..LocalAddress::new(id, address) }
}

#[cfg(test)]
mod tests;
