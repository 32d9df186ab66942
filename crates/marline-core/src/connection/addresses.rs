//! Addresses of both sides, and their advertisement: ADD_ADDR, its echo, REMOVE_ADDR (RFC 8684 section 3.4).
//!
//! An announcement is repeated until its echo arrives. An announced address is accepted only with a valid HMAC; an
//! invalid one is ignored, as the RFC requires. Withdrawals need no echo: they are sent on two segments, because
//! the peer also detects the loss by itself.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::Arc;

use marline_policy::{AddressId, LocalAddress, RemoteAddress, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::mptcp::{AddAddr, MptcpOption, RemoveAddr};

use super::keys::Keys;
use crate::on_demand::{OnDemand, UnusedState};
use crate::tables::Context;
use crate::{ConnectionConfig, FourTuple};

/// Ids of peer addresses that were learned from a source other than the peer. They never appear on the wire. They are
/// at the end of the range, because peers start counting at its beginning. An address announced with such an id
/// replaces the entry.
const LEARNED_IDS: core::ops::RangeInclusive<u8> = 240..=255;
/// Limit on queued signals. Beyond it the oldest are dropped.
const MAX_SIGNALS: usize = 64;
/// Number of unanswered announcements of an address after which repetition stops.
const MAX_ANNOUNCEMENTS: u32 = 8;
/// Minimum time to wait for an echo, before backoff.
const MIN_RETRY_PAUSE: Duration = Duration::from_millis(200);

/// An option to be sent, on one subflow or on any.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    pub(super) on: Option<SubflowId>,
    pub(super) option: MptcpOption,
}

#[derive(Copy, Clone, Debug)]
struct Announcement {
    id: AddressId,
    option: AddAddr,
    repeat_at: Instant,
    count: u32,
}

/// Pending announcements and signals.
#[derive(Debug, Default)]
struct PendingMessages {
    announcements: Vec<Announcement>,
    signals: VecDeque<Signal>,
}

impl UnusedState for PendingMessages {
    const UNUSED: &'static Self =
        &PendingMessages { announcements: Vec::new(), signals: VecDeque::new() };
}

/// Known addresses and pending messages about them.
#[derive(Debug)]
pub(super) struct Addresses {
    config: Arc<ConnectionConfig>,
    /// Local addresses, if they differ from the configured ones.
    own: Option<Box<[LocalAddress]>>,
    /// Local address of the initial subflow. Its id is 0 on the wire, regardless of the configured id.
    initial: AddressId,
    remote: Box<[RemoteAddress]>,
    pending: OnDemand<PendingMessages>,
}

impl Addresses {
    pub(super) fn new(config: Arc<ConnectionConfig>, path: FourTuple) -> Self {
        let local = &config.local_addresses;
        // One address may have several entries that differ in their remote address.
        let fits = |l: &&LocalAddress| l.address.ip() == path.local.ip();
        let leads = |l: &&LocalAddress| fits(l) && l.remote == Some(path.remote);
        let known = local.iter().find(leads).or_else(|| local.iter().find(fits)).map(|l| l.id);
        let initial = known.unwrap_or(AddressId(0));
        let there = local.iter().find(|l| Some(l.id) == known);
        let address = there.map_or(path.remote, |local| local.remote_for(path.remote));
        let mut addresses = Addresses {
            config,
            own: None,
            initial,
            remote: Box::new([RemoteAddress { id: AddressId(0), address }]),
            pending: OnDemand::new(),
        };
        if known.is_none() {
            addresses.add_local(LocalAddress::new(initial, SocketAddr::new(path.local.ip(), 0)));
        }
        addresses
    }

    pub(super) fn local(&self) -> &[LocalAddress] {
        self.own.as_deref().unwrap_or(&self.config.local_addresses)
    }

    /// Mutable entry of a local address, for this connection only.
    fn local_mut(&mut self, id: AddressId) -> Option<&mut LocalAddress> {
        let at = self.local().iter().position(|l| l.id == id)?;
        let configured = &self.config.local_addresses;
        let own = self.own.get_or_insert_with(|| configured.as_slice().into());
        own.get_mut(at)
    }

    fn add_local(&mut self, new: LocalAddress) {
        let all = self.local().iter().copied().chain([new]);
        self.own = Some(all.collect());
    }

    pub(super) fn remote(&self) -> &[RemoteAddress] {
        &self.remote
    }

    pub(super) fn initial_local(&self) -> LocalAddress {
        let Some(local) = self.find_local(self.initial) else {
            unreachable!("the initial address is added first and never removed");
        };
        local
    }

    /// Sets the addresses of the initial subflow.
    pub(super) fn set_initial(&mut self, id: AddressId, remote: SocketAddr) {
        self.initial = id;
        let remote = self.find_local(id).map_or(remote, |local| local.remote_for(remote));
        if let Some(first) = self.remote.iter_mut().find(|r| r.id == AddressId(0)) {
            first.address = remote;
        }
    }

    /// Address pairs on which an initial subflow may be tried.
    pub(super) fn first_pairs(&self) -> impl Iterator<Item = (LocalAddress, SocketAddr)> {
        let usual = self.find_remote(AddressId(0));
        let up = self.local().iter().filter(|local| local.up && local.subflow);
        up.filter_map(move |local| {
            let remote = local.remote.or(usual)?;
            Some((*local, local.destination_for(remote)?))
        })
    }

    /// Address pairs for joins: like [`Self::first_pairs`], but an address that cannot reach the initial remote address
    /// uses another known one, such as that of the other address family.
    pub(super) fn join_pairs(&self) -> impl Iterator<Item = JoinAddresses> {
        let up = self.local().iter().filter(|local| local.up && local.subflow);
        up.filter_map(|local| {
            let remote = match local.remote {
                Some(pinned) => local.destination_for(pinned),
                None => self.remote.iter().find_map(|known| local.destination_for(known.address)),
            };
            Some(JoinAddresses { local: *local, remote: remote? })
        })
    }

    pub(super) fn find_local(&self, id: AddressId) -> Option<LocalAddress> {
        self.local().iter().find(|l| l.id == id).copied()
    }

    pub(super) fn find_remote(&self, id: AddressId) -> Option<SocketAddr> {
        self.remote.iter().find(|r| r.id == id).map(|r| r.address)
    }

    /// Id by which the peer knows a remote address; an unknown address counts as the initial one.
    pub(super) fn remote_id(&self, address: SocketAddr) -> AddressId {
        self.remote.iter().find(|r| r.address == address).map_or(AddressId(0), |r| r.id)
    }

    /// Entry of the local address at which a join arrived.
    pub(super) fn local_for(&self, address: SocketAddr) -> LocalAddress {
        let known = self.local().iter().find(|l| l.address.ip() == address.ip());
        known.copied().unwrap_or_else(|| self.initial_local())
    }

    /// Id of a local address on the wire. The address with the configured id 0 gets the id that the initial
    /// subflow's address does not need.
    pub(super) fn wire_id(&self, id: AddressId) -> u8 {
        match id {
            id if id == self.initial => 0,
            AddressId(0) => self.initial.0,
            AddressId(id) => id,
        }
    }

    /// Inserts or replaces an entry; returns the previous one.
    pub(super) fn set_local(&mut self, new: LocalAddress) -> Option<LocalAddress> {
        if let Some(known) = self.local_mut(new.id) {
            return Some(core::mem::replace(known, new));
        }
        if self.local().len() < usize::from(u8::MAX) {
            self.add_local(new);
        }
        None
    }

    pub(super) fn set_backup(&mut self, id: AddressId, backup: bool) {
        if let Some(local) = self.local_mut(id) {
            local.backup = backup;
        }
    }

    /// Queues an option for sending.
    pub(super) fn signal(&mut self, signal: Signal) {
        let signals = &mut self.pending.signals;
        if signals.len() >= MAX_SIGNALS {
            signals.pop_front();
        }
        signals.push_back(signal);
    }

    pub(super) fn next_signal(&mut self, usable: impl Fn(SubflowId) -> bool) -> Option<Signal> {
        let ready = |s: &Signal| s.on.is_none_or(&usable);
        let unsaid = self.pending.if_used()?;
        let index = unsaid.signals.iter().position(ready)?;
        let signal = unsaid.signals.remove(index);
        self.release_if_idle();
        signal
    }

    /// Releases memory once nothing is pending.
    fn release_if_idle(&mut self) {
        if self.pending.signals.is_empty() && self.pending.announcements.is_empty() {
            self.pending.retire();
        }
    }

    /// Drops messages for a subflow that is gone.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        if let Some(unsaid) = self.pending.if_used() {
            unsaid.signals.retain(|signal| signal.on != Some(id));
        }
        self.release_if_idle();
    }

    pub(super) fn has_signals(&self) -> bool {
        !self.pending.signals.is_empty()
    }

    /// True if MP_FAIL is queued. A FIN must not be sent before it, because the subflow sends no options after its
    /// FIN.
    pub(super) fn has_pending_mp_fail(&self) -> bool {
        self.pending.signals.iter().any(|signal| matches!(signal.option, MptcpOption::Fail(_)))
    }

    /// Drops all pending messages: plain TCP sends none about addresses.
    pub(super) fn drop_messages(&mut self) {
        self.pending.retire();
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.pending.announcements.iter().map(|a| a.repeat_at).min()
    }

    /// Announces one of our addresses until the peer echoes it. `rto` is the timeout of the slowest subflow. `false`
    /// if there is no such address.
    pub(super) fn announce(
        &mut self,
        now: Instant,
        id: AddressId,
        keys: &Keys,
        rto: Duration,
    ) -> bool {
        let Some(local) = self.find_local(id) else { return false };
        let advertised = self.config.advertised.iter().find(|(a, _)| *a == id);
        let address = advertised.map_or(local.address, |(_, address)| *address);
        let initial_port = self.initial_local().address.port();
        let port = Some(address.port()).filter(|port| *port != 0 && *port != initial_port);
        let address_id = self.wire_id(id);
        let hmac = keys.address_hmac(address_id, address.ip(), port);
        let option = AddAddr { address_id, address: address.ip(), port, hmac };
        let announcements = &mut self.pending.announcements;
        announcements.retain(|a| a.id != id);
        let again_at = now + rto.max(MIN_RETRY_PAUSE) * 2;
        announcements.push(Announcement { id, option, repeat_at: again_at, count: 1 });
        self.signal(Signal { on: None, option: MptcpOption::AddAddr(option) });
        true
    }

    /// Repeats announcements without an echo; returns their number.
    pub(super) fn repeat_announcements(&mut self, now: Instant, rto: Duration) -> u64 {
        let base = rto.max(MIN_RETRY_PAUSE);
        let mut due = Vec::new();
        self.pending.announcements.retain_mut(|a| {
            if a.repeat_at > now {
                return true;
            }
            a.count += 1;
            a.repeat_at = now + base * (1 << a.count.min(6));
            due.push(a.option);
            a.count <= MAX_ANNOUNCEMENTS
        });
        for option in &due {
            self.signal(Signal { on: None, option: MptcpOption::AddAddr(*option) });
        }
        due.len() as u64
    }

    /// Withdraws one of our addresses.
    pub(super) fn withdraw(&mut self, id: AddressId) {
        self.pending.announcements.retain(|a| a.id != id);
        let mut ids = [0; 37];
        ids[0] = self.wire_id(id);
        let option = MptcpOption::RemoveAddr(RemoveAddr { ids, len: 1 });
        self.signal(Signal { on: None, option });
        self.signal(Signal { on: None, option });
    }

    /// Cancels the withdrawal of an address that is back. Otherwise it would close its new subflows.
    pub(super) fn keep(&mut self, id: AddressId) {
        let wire = self.wire_id(id);
        if let Some(unsaid) = self.pending.if_used() {
            unsaid.signals.retain(|signal| match signal.option {
                MptcpOption::RemoveAddr(remove) => remove.ids[0] != wire,
                _ => true,
            });
        }
        self.release_if_idle();
    }

    /// Handles the echo of an announcement: an equal option without its HMAC. Any other option is not an echo.
    pub(super) fn on_echo(&mut self, add: &AddAddr) {
        let echo = |a: &Announcement| AddAddr { hmac: None, ..a.option };
        if let Some(unsaid) = self.pending.if_used() {
            unsaid.announcements.retain(|a| echo(a) != *add);
        }
        self.release_if_idle();
    }

    /// Handles an address that the peer announced with a valid HMAC, on a subflow to `port`. Returns the entry if it is
    /// new and there is room for it. For the initial subflow's address, returns the entry with id 0.
    pub(super) fn on_announced(
        &mut self,
        on: SubflowId,
        port: u16,
        add: &AddAddr,
        limit: usize,
    ) -> Option<RemoteAddress> {
        let echo = MptcpOption::AddAddr(AddAddr { hmac: None, ..*add });
        self.signal(Signal { on: Some(on), option: echo });
        let address = SocketAddr::new(add.address, add.port.unwrap_or(port));
        let new = RemoteAddress { id: AddressId(add.address_id), address };
        let same = |r: &RemoteAddress| r.id == new.id || r.address == new.address;
        match self.remote.iter().position(same) {
            Some(known) if self.remote[known] == new => return None,
            Some(known) if self.remote[known].id == AddressId(0) => {
                return Some(self.remote[known]).filter(|initial| initial.address == address);
            }
            Some(known) => self.remote[known] = new,
            None if self.remote.len() < limit => {
                self.remote = self.remote.iter().copied().chain([new]).collect();
            }
            None => return None,
        }
        Some(new)
    }

    /// Adds an address of the peer that another source reported. `None` if it is known, or there is no room.
    pub(super) fn add_learned_address(
        &mut self,
        address: SocketAddr,
        limit: usize,
    ) -> Option<RemoteAddress> {
        if self.remote.len() >= limit || self.remote.iter().any(|r| r.address == address) {
            return None;
        }
        let is_free = |id: &u8| self.remote.iter().all(|r| r.id.0 != *id);
        let id = LEARNED_IDS.rev().find(is_free)?;
        let new = RemoteAddress { id: AddressId(id), address };
        self.remote = self.remote.iter().copied().chain([new]).collect();
        Some(new)
    }

    /// Handles a refused join: a learned address belongs to another server and is removed.
    pub(super) fn on_refused(&mut self, id: AddressId) {
        if LEARNED_IDS.contains(&id.0) {
            self.on_withdrawn(id);
        }
    }

    /// Handles the withdrawal of an address by the peer. Id 0 is the initial subflow's: its entry stays, because
    /// the peer may return to it.
    pub(super) fn on_withdrawn(&mut self, id: AddressId) {
        let stays = |r: &RemoteAddress| r.id != id || id == AddressId(0);
        if !self.remote.iter().all(stays) {
            self.remote = self.remote.iter().copied().filter(stays).collect();
        }
    }
}

/// Two addresses between which a subflow is to be opened.
#[derive(Copy, Clone, Debug)]
pub(super) struct JoinAddresses {
    pub(super) local: LocalAddress,
    pub(super) remote: SocketAddr,
}

impl JoinAddresses {
    /// A free four-tuple between the two addresses; `None` if no port is free.
    pub(super) fn free_path(&self, cx: &mut Context<'_>) -> Option<FourTuple> {
        let JoinAddresses { local: LocalAddress { address: mut from, .. }, remote } = *self;
        if from.port() == 0 || cx.flows.has_tuple(&FourTuple { local: from, remote }) {
            from.set_port(cx.flows.free_port(cx.rng, from, remote)?);
        }
        Some(FourTuple { local: from, remote })
    }
}
