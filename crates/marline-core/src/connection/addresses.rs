//! Addresses of both sides, and telling each other of them: ADD_ADDR, its echo, REMOVE_ADDR
//! (RFC 8684 section 3.4).
//!
//! An announcement is repeated until its echo comes. An announced address is believed only with the
//! right HMAC; a wrong one is ignored, as the RFC asks. Withdrawals need no echo: they are sent on
//! two segments, since the peer also notices by itself.

use core::net::SocketAddr;
use std::collections::VecDeque;

use marline_policy::{AddressId, LocalAddress, PathEvent, RemoteAddress, SubflowId};
use marline_time::{Duration, Instant};
use marline_wire::TcpSegment;
use marline_wire::mptcp::{AddAddr, MpJoin, MptcpOption, RemoveAddr};

use super::Connection;
use super::join::{is_same, reason};
use crate::tables::Context;
use crate::{CloseReason, ConnectionConfig, FourTuple, MonitorKind};

/// Signals that may wait at once: beyond, the oldest go.
const MAX_SIGNALS: usize = 64;
/// Announcements without echo after which we stop repeating.
const MAX_ANNOUNCEMENTS: u32 = 8;

/// An option that wants to be sent, on one subflow or on any.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Signal {
    pub(super) on: Option<SubflowId>,
    pub(super) option: MptcpOption,
}

#[derive(Copy, Clone, Debug)]
struct Announcement {
    id: AddressId,
    option: AddAddr,
    again_at: Instant,
    count: u32,
}

/// What is known of addresses, and what is to be said of them.
#[derive(Debug)]
pub(super) struct Addresses {
    local: Vec<LocalAddress>,
    /// Address of the initial subflow: its id is 0 on the wire, whatever the configuration calls it.
    initial: AddressId,
    remote: Vec<RemoteAddress>,
    advertised: Vec<(AddressId, SocketAddr)>,
    announcements: Vec<Announcement>,
    signals: VecDeque<Signal>,
}

impl Addresses {
    pub(super) fn new(config: &ConnectionConfig, path: FourTuple) -> Self {
        let mut local = config.local_addresses.clone();
        // One address may stand for several paths that differ in where they lead.
        let fits = |l: &&LocalAddress| l.address.ip() == path.local.ip();
        let leads = |l: &&LocalAddress| fits(l) && l.remote == Some(path.remote);
        let known = local.iter().find(leads).or_else(|| local.iter().find(fits)).map(|l| l.id);
        let initial = known.unwrap_or(AddressId(0));
        if known.is_none() {
            local.push(LocalAddress {
                id: initial,
                address: SocketAddr::new(path.local.ip(), 0),
                remote: None,
                backup: false,
                signal: false,
                subflow: true,
                up: true,
            });
        }
        Addresses {
            local,
            initial,
            remote: vec![RemoteAddress { id: AddressId(0), address: path.remote }],
            advertised: config.advertised.clone(),
            announcements: Vec::new(),
            signals: VecDeque::new(),
        }
    }

    pub(super) fn local(&self) -> &[LocalAddress] {
        &self.local
    }

    pub(super) fn remote(&self) -> &[RemoteAddress] {
        &self.remote
    }

    pub(super) fn initial_local(&self) -> LocalAddress {
        let Some(local) = self.find_local(self.initial) else {
            unreachable!("the initial address is put in at the start and never taken out");
        };
        local
    }

    pub(super) fn find_local(&self, id: AddressId) -> Option<LocalAddress> {
        self.local.iter().find(|l| l.id == id).copied()
    }

    pub(super) fn find_remote(&self, id: AddressId) -> Option<SocketAddr> {
        self.remote.iter().find(|r| r.id == id).map(|r| r.address)
    }

    /// The id by which the peer knows a remote address; unknown ones count as the initial.
    pub(super) fn remote_id(&self, address: SocketAddr) -> AddressId {
        self.remote.iter().find(|r| r.address == address).map_or(AddressId(0), |r| r.id)
    }

    /// The entry for the address a join came to.
    pub(super) fn local_for(&self, address: SocketAddr) -> LocalAddress {
        let known = self.local.iter().find(|l| l.address.ip() == address.ip());
        known.copied().unwrap_or_else(|| self.initial_local())
    }

    /// The id on the wire of a local address.
    pub(super) fn wire_id(&self, id: AddressId) -> u8 {
        if id == self.initial { 0 } else { id.0 }
    }

    /// Puts in or replaces; returns what was there.
    pub(super) fn set_local(&mut self, new: LocalAddress) -> Option<LocalAddress> {
        let known = self.local.iter().position(|l| l.id == new.id);
        if let Some(slot) = known {
            return Some(core::mem::replace(&mut self.local[slot], new));
        }
        if self.local.len() < usize::from(u8::MAX) {
            self.local.push(new);
        }
        None
    }

    pub(super) fn set_backup(&mut self, id: AddressId, backup: bool) {
        if let Some(local) = self.local.iter_mut().find(|l| l.id == id) {
            local.backup = backup;
        }
    }

    /// Queues an option for sending.
    pub(super) fn signal(&mut self, signal: Signal) {
        if self.signals.len() >= MAX_SIGNALS {
            self.signals.pop_front();
        }
        self.signals.push_back(signal);
    }

    pub(super) fn next_signal(&mut self, usable: impl Fn(SubflowId) -> bool) -> Option<Signal> {
        let ready = |s: &Signal| s.on.is_none_or(&usable);
        let index = self.signals.iter().position(ready)?;
        self.signals.remove(index)
    }

    /// The subflow is gone, and with it what was to be said on it.
    pub(super) fn forget_subflow(&mut self, id: SubflowId) {
        self.signals.retain(|signal| signal.on != Some(id));
    }

    pub(super) fn has_signals(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Whether MP_FAIL waits. Nothing may overtake it: a FIN that did would leave a subflow on which nothing
    /// is signalled any more.
    pub(super) fn owes_mp_fail(&self) -> bool {
        self.signals.iter().any(|signal| matches!(signal.option, MptcpOption::Fail(_)))
    }

    /// Plain TCP says nothing of addresses.
    pub(super) fn fall_silent(&mut self) {
        self.signals.clear();
        self.announcements.clear();
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.announcements.iter().map(|a| a.again_at).min()
    }
}

impl Connection {
    /// ADD_ADDR for one of our addresses, repeated until echoed.
    pub(super) fn announce_address(&mut self, cx: &mut Context<'_>, id: AddressId) {
        let now = cx.now;
        if !self.session.is_multipath() {
            return;
        }
        let Some(local) = self.addresses.find_local(id) else { return };
        let advertised = self.addresses.advertised.iter().find(|(a, _)| *a == id);
        let address = advertised.map_or(local.address, |(_, address)| *address);
        let initial_port = self.addresses.initial_local().address.port();
        let port = Some(address.port()).filter(|port| *port != 0 && *port != initial_port);
        let wire_id = self.addresses.wire_id(id);
        let hmac = self.session.keys().address_hmac(wire_id, address.ip(), port);
        let (address_id, address) = (wire_id, address.ip());
        let option = AddAddr { address_id, address, port, hmac };
        self.addresses.announcements.retain(|a| a.id != id);
        let again_at = now + self.largest_rto().max(Duration::from_millis(200)) * 2;
        self.addresses.announcements.push(Announcement { id, option, again_at, count: 1 });
        cx.out.counters.add_addr_tx += 1;
        self.addresses.signal(Signal { on: None, option: MptcpOption::AddAddr(option) });
    }

    /// Repeats announcements whose echo did not come.
    pub(super) fn repeat_announcements(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let base = self.largest_rto().max(Duration::from_millis(200));
        let mut due = Vec::new();
        self.addresses.announcements.retain_mut(|a| {
            if a.again_at > now {
                return true;
            }
            a.count += 1;
            a.again_at = now + base * (1 << a.count.min(6));
            due.push(a.option);
            a.count <= MAX_ANNOUNCEMENTS
        });
        for option in due {
            cx.out.counters.add_addr_tx += 1;
            self.addresses.signal(Signal { on: None, option: MptcpOption::AddAddr(option) });
        }
    }

    /// REMOVE_ADDR for one of our addresses.
    pub(super) fn withdraw_address(&mut self, cx: &mut Context<'_>, id: AddressId) {
        self.addresses.announcements.retain(|a| a.id != id);
        let mut ids = [0; 37];
        ids[0] = self.addresses.wire_id(id);
        let option = MptcpOption::RemoveAddr(RemoveAddr { ids, len: 1 });
        cx.out.counters.rm_addr_tx += 1;
        self.addresses.signal(Signal { on: None, option });
        self.addresses.signal(Signal { on: None, option });
    }

    /// The address is back: a withdrawal that did not get out would take its new subflows down.
    pub(super) fn keep_address(&mut self, id: AddressId) {
        let wire = self.addresses.wire_id(id);
        self.addresses.signals.retain(|signal| match signal.option {
            MptcpOption::RemoveAddr(remove) => remove.ids[0] != wire,
            _ => true,
        });
    }

    /// Address, priority and failure options of an acceptable segment.
    pub(super) fn on_mptcp_options(
        &mut self,
        cx: &mut Context<'_>,
        id: SubflowId,
        segment: &TcpSegment<'_>,
    ) {
        let now = cx.now;
        for option in segment.options.mptcp.iter() {
            match option {
                MptcpOption::AddAddr(add) if add.hmac.is_none() => {
                    cx.out.counters.echo_add_rx += 1;
                    // An echo is the announcement without its HMAC: what differs otherwise is none.
                    let echo = |a: &Announcement| AddAddr { hmac: None, ..a.option };
                    self.addresses.announcements.retain(|a| echo(a) != add);
                }
                MptcpOption::AddAddr(add) => self.on_add_addr(cx, id, add),
                MptcpOption::RemoveAddr(remove) => self.on_remove_addr(cx, id, &remove),
                MptcpOption::Prio(prio) => {
                    cx.out.counters.mp_prio_rx += 1;
                    if let Some(leg) = self.leg_mut(id) {
                        leg.backup_there = prio.backup;
                    }
                    let backup = prio.backup;
                    cx.out.monitor(now, self.id, MonitorKind::SubflowPriority { id, backup });
                    self.path_event(cx, PathEvent::Priority { id, backup });
                }
                MptcpOption::Fail(fail) => self.on_mp_fail(cx, id, fail),
                MptcpOption::Join(MpJoin::Ack { .. }) => self.on_third_ack_again(id),
                MptcpOption::Experimental(option) => self.on_experimental(cx, id, &option),
                _ => {}
            }
        }
    }

    fn on_add_addr(&mut self, cx: &mut Context<'_>, on: SubflowId, add: AddAddr) {
        let now = cx.now;
        cx.out.counters.add_addr_rx += 1;
        if !self.session.keys().proves_address(&add) {
            return;
        }
        // Who made this has both keys: nothing shows better that the peer speaks MPTCP.
        self.confirm(cx);
        let echo = MptcpOption::AddAddr(AddAddr { hmac: None, ..add });
        self.addresses.signal(Signal { on: Some(on), option: echo });
        let same = self.leg(on).map_or(0, |leg| leg.key.path.remote.port());
        let address = SocketAddr::new(add.address, add.port.unwrap_or(same));
        let new = RemoteAddress { id: AddressId(add.address_id), address };
        let limit = cx.config.limits.remote_addresses;
        let remote = &mut self.addresses.remote;
        match remote.iter().position(|r| is_same(r, &new)) {
            Some(known) if remote[known] == new || remote[known].id == AddressId(0) => return,
            Some(known) => remote[known] = new,
            None if remote.len() < limit => remote.push(new),
            None => return,
        }
        cx.out.monitor(now, self.id, MonitorKind::Announced { id: new.id, address });
        self.path_event(cx, PathEvent::Announced(new.id));
    }

    /// The subflow that brought the option is alive whatever it says: an address may have come back
    /// before the word of its going got out. RFC 8684 section 3.4.2 asks to close only paths that are
    /// not in use.
    fn on_remove_addr(&mut self, cx: &mut Context<'_>, on: SubflowId, remove: &RemoveAddr) {
        let now = cx.now;
        for id in remove.ids.iter().take(usize::from(remove.len)).map(|id| AddressId(*id)) {
            cx.out.counters.rm_addr_rx += 1;
            // Id 0 is the initial subflow's address: its entry stays, for the peer may return there.
            self.addresses.remote.retain(|r| r.id != id || id == AddressId(0));
            for leg in self.leg_ids() {
                let theirs = self.leg(leg).is_some_and(|l| l.remote_id == id && l.was_joined());
                if theirs && leg != on && self.legs_count() > 1 {
                    // RFC 8684 section 3.4.2: a RST, if it gets through, clears boxes on the way.
                    self.reset_leg(cx, leg, reason::UNSPECIFIED, CloseReason::PeerReset);
                }
            }
            cx.out.monitor(now, self.id, MonitorKind::Removed(id));
            self.path_event(cx, PathEvent::Removed(id));
        }
    }
}
