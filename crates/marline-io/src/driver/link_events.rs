//! Rerouting of a shard's flows from datagrams to links and back, and handling of link events.

use core::net::SocketAddr;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use marline_core::{Ecn, NetworkError};
use marline_time::{Duration, Instant};
use tokio::net::TcpListener;

use super::carrier::Carrier;
use super::ingress::{self, Origin};
use super::link::{Link, LinkStream};
use super::link_tasks::{self, LinkEvent, LinkOpenError, LinkUsers};
use super::routing::count;
use super::shard::{Shard, ShardHandle};
use super::sockets::{SocketOptions, Watch, canonical_address};
use super::state::State;
use crate::carrier::{FlowEnds, Outer};
use crate::links::{CarrierRates, Failure, FrameDecoder, LeaveReason, Order};
use crate::sys;

/// Pause of a listener that cannot accept because no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Listener for links. Dropping it stops accepting; accepted links continue.
#[derive(Debug)]
pub struct LinkListener {
    /// Local address.
    pub local: SocketAddr,
    copy: OwnedFd,
    _task: Watch,
}

impl LinkListener {
    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// Fails if no file descriptors are left.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.copy.try_clone()
    }
}

/// Shards that share links.
pub(super) type Shards = Arc<[Weak<Shard>]>;

/// Returns the shards that the tasks of a link notify.
pub(super) fn link_users(
    shards: &Shards,
) -> LinkUsers<impl Fn(usize, LinkEvent<'_>) -> bool + Clone + Send + Sync + 'static + use<>> {
    let (count, shards) = (shards.len(), Arc::clone(shards));
    let notify = move |at: usize, event: LinkEvent<'_>| {
        let Some(shard) = shards.get(at).and_then(Weak::upgrade) else { return false };
        match event {
            LinkEvent::Frames(link, frames) => on_link_frames(&shard, link, frames),
            LinkEvent::Room(outer) => on_link_room(&shard, outer),
            LinkEvent::Closed(outer, stalled) => on_link_closed(&shard, outer, stalled),
        }
        true
    };
    LinkUsers { count, notify }
}

/// Accepts links for these shards on a listening socket.
pub(super) fn accept_links(
    shards: &[Arc<ShardHandle>],
    listening: OwnedFd,
) -> io::Result<LinkListener> {
    let copy = listening.try_clone()?;
    let listener = TcpListener::from_std(std::net::TcpListener::from(listening))?;
    let local = listener.local_addr()?;
    let shards: Vec<_> = shards.iter().map(|handle| handle.downgrade()).collect();
    let task = tokio::spawn(accept(listener, local.port(), shards.into()));
    Ok(LinkListener { local, copy, _task: Watch::new(task.abort_handle()) })
}

async fn accept(listener: TcpListener, port: u16, shards: Shards) {
    loop {
        let Some(links) =
            shards.first().and_then(Weak::upgrade).map(|shard| Arc::clone(shard.links()))
        else {
            return;
        };
        match listener.accept().await {
            Ok((stream, remote)) => {
                let Ok(local) = stream.local_addr() else { continue };
                let remote = canonical_address(remote);
                count(&links.counters().accepted);
                sys::link::prepare(&stream);
                match links.insert(LinkStream::Tcp(stream), local.ip(), remote, port, false) {
                    Some(link) => {
                        link_tasks::start(
                            &links,
                            link,
                            link_users(&shards),
                            FrameDecoder::default(),
                            true,
                        );
                    }
                    None => count(&links.counters().refused),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a TCP connection; will retry");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Notifies the core of flows whose carrier has changed and of evicted flows.
pub(super) fn apply_carrier_changes(state: &mut State, now: Instant) {
    while let Carrier::Udp(carrier) = state.carrier()
        && let Some(flow) = carrier.poll_evicted()
    {
        state.endpoint().flow_reset(now, flow);
    }
    while let Carrier::Udp(carrier) = state.carrier()
        && let Some(carried) = carrier.poll_carrier_change()
    {
        let flow = carried.flow;
        if !state.routing().link_carries(flow, carried.link) {
            state.routing().forget_flow(flow);
        }
        let full = state.routing().carry(carried);
        state.endpoint().set_flow_reliable(now, flow, carried.link.is_some());
        if carried.link.is_some() {
            state.endpoint().set_flow_full(now, flow, full);
        }
        if let Some(link) = carried.link.filter(|_| carried.proven) {
            state.routing().mark_proven(flow, link);
        }
    }
}

/// Moves the flows between these addresses to another socket.
fn reroute(state: &mut State, now: Instant, ends: FlowEnds, socket: u16) -> usize {
    let Carrier::Udp(carrier) = state.carrier() else { return 0 };
    let (open, opening) = carrier.reroute(now, ends, socket);
    apply_carrier_changes(state, now);
    for flow in &open {
        state.endpoint().path_moved(now, *flow, false);
    }
    for flow in &opening {
        state.endpoint().repeat_syn(now, *flow);
    }
    open.len() + opening.len()
}

/// Moves the flows between these addresses to a link, which new flows there then also use.
fn move_flows_to_link(state: &mut State, now: Instant, ends: FlowEnds, link: u16) {
    if let Carrier::Udp(carrier) = state.carrier() {
        carrier.prefer(ends, Some(link));
    }
    reroute(state, now, ends, link);
}

fn probe(state: &mut State, ends: FlowEnds) -> Option<u64> {
    let id = state.lanes().draw_id();
    let Carrier::Udp(carrier) = state.carrier() else { return None };
    let socket = carrier.datagram_socket(ends.local)?;
    carrier.probe(Outer { socket, local: ends.local, remote: ends.remote }, id);
    Some(id)
}

fn leave_link(state: &mut State, now: Instant, ends: FlowEnds) {
    let Carrier::Udp(carrier) = state.carrier() else { return };
    carrier.prefer(ends, None);
    let socket = carrier.datagram_socket(ends.local);
    if state.routing().routes().sends_datagrams() {
        let Some(socket) = socket else { return };
        if reroute(state, now, ends, socket) == 0 {
            return;
        }
    }
    // Data waits for the peer on this route: either datagrams are answered, or another link is opened.
    state.routing().routes().sent(now, ends);
}

/// Executes the orders of a client's routes.
pub(super) fn execute_route_orders(shard: &Shard, state: &mut State, now: Instant) {
    apply_carrier_changes(state, now);
    if !state.routing().routes().uses_links() {
        return;
    }
    while let Carrier::Udp(carrier) = state.carrier()
        && let Some(ends) = carrier.poll_quiet()
    {
        // Either the server has nothing to send, or its packets are lost: probe it.
        if state.routing().routes().is_quiet(now, &ends) && probe(state, ends).is_some() {
            state.routing().routes().sent(now, ends);
        }
    }
    while let Some(order) = state.routing().routes().poll_order() {
        match order {
            Order::Open(ends) => open_link(shard, state, now, ends),
            Order::Use(ends, link) => {
                tracing::warn!(
                    local = %ends.local,
                    server = %ends.remote,
                    "no answer over UDP; connections use TCP until UDP is answered"
                );
                move_flows_to_link(state, now, ends, link);
            }
            Order::Compare(ends, link) => {
                tracing::debug!(local = %ends.local, server = %ends.remote, "UDP appears rate-limited; trying TCP");
                move_flows_to_link(state, now, ends, link);
            }
            Order::Keep(ends, CarrierRates { udp_bits_per_s, tcp_bits_per_s }) => {
                tracing::warn!(
                    local = %ends.local,
                    server = %ends.remote,
                    udp_bits_per_s,
                    tcp_bits_per_s,
                    "UDP is rate-limited and slower than TCP; connections use TCP"
                );
            }
            Order::Leave(ends, why) => {
                match why {
                    LeaveReason::DatagramsWork => tracing::info!(
                        local = %ends.local,
                        server = %ends.remote,
                        "UDP is answered again; connections use it"
                    ),
                    LeaveReason::NextComparison => tracing::info!(
                        local = %ends.local,
                        server = %ends.remote,
                        "UDP was slower than TCP; trying UDP again"
                    ),
                    LeaveReason::LinkEnded | LeaveReason::NotFaster => {}
                }
                leave_link(state, now, ends);
            }
            Order::Close(link) => link_tasks::close_later(shard.links(), link),
            Order::Probe(ends) => {
                if let Some(id) = probe(state, ends) {
                    state.routing().routes().probes(ends, id);
                }
            }
        }
    }
}

fn open_link(shard: &Shard, state: &mut State, now: Instant, ends: FlowEnds) {
    let Carrier::Udp(carrier) = state.carrier() else { return };
    let socket = carrier.datagram_socket(ends.local);
    let options = socket.and_then(|index| state.sockets().udp_options(index));
    match (options, shard.handle()) {
        (Some(options), Some(handle)) => {
            let shard = handle.downgrade();
            let stalled = state.routing().routes().take_stall(now, &ends);
            tokio::spawn(open(shard, options, ends, stalled));
        }
        _ => drop(state.routing().routes().on_link_failure(now, ends, Failure::Answered)),
    }
}

fn on_link_opened(shard: &Shard, ends: FlowEnds, link: u16) {
    // The answers may already be in the sockets.
    shard.catch_up();
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    state.routing().forget_failure(&ends);
    state.routing().routes().on_link_opened(now, ends, link);
    shard.serve(&mut state, now);
}

fn on_link_not_opened(shard: &Shard, ends: FlowEnds, why: &LinkOpenError) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let mut refused = state.routing().routes().take_held_error(&ends);
    if !state.routing().routes().sends_datagrams() && why.is_refusal() {
        // Without datagrams, this reset is the server's refusal, like an ICMP error for datagrams.
        state.observers().contacts().refused(now, ends.local, ends.remote);
        refused = true;
    }
    if state.routing().routes().on_link_failure(now, ends, why.kind()) {
        tracing::warn!(local = %ends.local, server = %ends.remote, "no answer over UDP; {why}");
    }
    state.routing().record_failure(ends, why.to_string());
    let flows = match state.carrier() {
        Carrier::Udp(carrier) => carrier.flows_between(ends),
        Carrier::Native(_) => Vec::new(),
    };
    // ICMP errors for the datagrams were withheld until now. They count after this refusal.
    for flow in flows.iter().filter(|_| refused) {
        state.endpoint().flow_error(now, *flow, NetworkError::Unreachable);
    }
    if !state.routing().routes().sends_datagrams()
        && let Carrier::Udp(carrier) = state.carrier()
        && !carrier.flows_between(ends).is_empty()
    {
        // These flows cannot send without a link, so the request is repeated.
        state.routing().routes().sent(now, ends);
    }
    shard.serve(&mut state, now);
}

/// Handles the end of a link. `stalled` means that the peer stopped acknowledging data.
fn on_link_closed(shard: &Shard, outer: &Outer, stalled: bool) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    let ends = FlowEnds::new(outer.local, outer.remote);
    if stalled {
        state.routing().routes().on_stalled(now, ends, outer.socket);
    }
    state.routing().routes().on_link_closed(now, ends, outer.socket);
    // The next link may reuse the index, and it has room.
    state.routing().on_link_ended(outer);
    let cut_off = match state.carrier() {
        Carrier::Udp(carrier) => carrier.flows_at(outer),
        Carrier::Native(_) => Vec::new(),
    };
    // A client moves its flows to another carrier; a server waits for this.
    let waits = !state.routing().routes().uses_links();
    for flow in cut_off {
        state.endpoint().set_flow_full(now, flow, true);
        if waits {
            state.endpoint().flow_error(now, flow, NetworkError::Unreachable);
        }
    }
    shard.serve(&mut state, now);
}

fn on_link_room(shard: &Shard, outer: &Outer) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    for flow in state.routing().set_full(outer.socket, false) {
        state.endpoint().set_flow_full(now, flow, false);
    }
    shard.serve(&mut state, now);
}

/// Gives frames of a link to the carrier and the core.
fn on_link_frames(shard: &Shard, link: &Link, frames: &[&[u8]]) {
    let mut state = shard.lock();
    let now = shard.now(&mut state);
    if state.wakeups().is_stopped() {
        link.close();
        return;
    }
    let origin = Origin { outer: *link.outer(), local_port: link.port(), ecn: Ecn::NotEct };
    ingress::on_frames(shard, &mut state, now, &origin, frames.iter().copied());
    shard.finish_foreign_access(&mut state, now);
}

/// Opens a link for a client's shard. `stalled` means that the previous link has just stalled.
async fn open(shard: Weak<Shard>, options: SocketOptions, ends: FlowEnds, stalled: bool) {
    let opened = link_tasks::open(&options, ends.remote, stalled).await;
    let Some(shard) = shard.upgrade() else { return };
    let port = options.local.port();
    let link = opened.and_then(|stream| {
        let full = || LinkOpenError::Io(io::Error::other("too many TCP connections are open"));
        let stream = LinkStream::Tcp(stream);
        shard.links().insert(stream, ends.local, ends.remote, port, true).ok_or_else(full)
    });
    match link {
        Ok(link) => {
            on_link_opened(&shard, ends, link.outer().socket);
            // From now on the link may end, which notifies the shard.
            let shards: Shards = [Arc::downgrade(&shard)].into();
            link_tasks::start(
                shard.links(),
                link,
                link_users(&shards),
                FrameDecoder::after_preamble(),
                false,
            );
        }
        Err(why) => on_link_not_opened(&shard, ends, &why),
    }
}
