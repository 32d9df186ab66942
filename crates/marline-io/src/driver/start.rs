//! Start of a shard: creates its carrier and endpoint and spawns its task.

use std::io;
use std::sync::Arc;

use marline_core::{Endpoint, EndpointConfig};
use tokio::sync::mpsc;

use super::busy_poll::BusyPoll;
use super::carrier::Carrier;
use super::lanes::Lanes;
use super::link_flows::Rerouting;
use super::observers::ContactBook;
use super::observers::Observers;
use super::path_owners::PathOwners;
use super::sending::FrameBatch;
use super::sending::Gathered;
use super::shard::{Shard, ShardConfig, ShardHandle};
use super::state::{CarrierKind, Spare, State, transmit_buffer};
use super::streams::Slots;
use super::task;
use super::turns::Turns;
use crate::carrier::{CarrierConfig, UdpCarrier};
use crate::links::Routes;
use crate::native::NativeCarrier;
use crate::random::{ResetSeed, SecretRng};

/// Maximum number of queued datagrams from other shards.
const HANDOVER_CAPACITY: usize = 1_024;

impl Shard {
    /// Starts a shard: its task runs on the current tokio runtime, which needs I/O and time.
    ///
    /// # Errors
    /// Randomness or a timer is not available.
    pub fn start(config: ShardConfig) -> io::Result<Arc<ShardHandle>> {
        let mut rng = SecretRng::from_os()?;
        let carrier = carrier_of(&config, &mut rng);
        let headroom = carrier.headroom();
        let opens = config.accept.is_none();
        let routes = match config.carrier {
            CarrierKind::Udp { udp, .. } if opens => Routes::new(udp),
            _ => Routes::default(),
        };
        let endpoint = Endpoint::new(
            EndpointConfig {
                capabilities: carrier.capabilities(),
                limits: config.limits,
                shard: config.shard,
                accept: config.accept,
                monitor: config.monitor.is_some() || config.events.is_some(),
            },
            Box::new(rng),
        );
        let mut captures = config.capture;
        if let (Carrier::Native(_), Some(captures)) = (&carrier, &mut captures) {
            captures.set_native();
        }
        let contacts = ContactBook::new(opens);
        let mut state = State {
            endpoint,
            pauses: 0,
            carrier,
            sockets: Vec::new(),
            slots: Slots::default(),
            lanes: Lanes::new(config.shard, SecretRng::from_os()?),
            index: config.shard.index,
            links: Arc::clone(&config.links),
            rerouting: Rerouting::new(routes),
            owners: PathOwners::default(),
            frames: FrameBatch::default(),
            gathered: Gathered::default(),
            out: transmit_buffer(headroom, false),
            spare: Spare::new(headroom),
            scratch: Vec::new(),
            stall_retry_at: None,
            armed: None,
            observers: Observers { captures, log: config.tap, contacts, others: config.observers },
            driver: None,
            turns: Turns::new(),
            busy_poll: BusyPoll::new(config.busy_poll),
            receiving: true,
            sockets_changed: true,
            stopped: false,
            queue: config.queue,
            requests: None,
            sink: None,
            monitor: config.monitor,
            decisions: None,
            events: config.events,
            traffic: None,
        };
        state.update_traffic_filter();
        let (inbox, handed_over) = mpsc::channel(HANDOVER_CAPACITY);
        let handle = ShardHandle::new(state, (config.carrier, config.shard.index), inbox)?;
        tokio::spawn(task::run(Arc::clone(&handle.shard), handed_over));
        Ok(handle)
    }
}

/// Creates the carrier of a shard, without sockets.
fn carrier_of(config: &ShardConfig, rng: &mut SecretRng) -> Carrier {
    match config.carrier {
        CarrierKind::Udp { keepalive, .. } => {
            Carrier::Udp(Box::new(UdpCarrier::new(CarrierConfig {
                shard: config.shard,
                accept: config.accept.is_some(),
                max_flows: config.limits.connections.saturating_mul(2),
                keepalive,
                secret: rng.key(),
                reset_seed: config.reset_seed.map_or_else(|| rng.key(), ResetSeed::into_bytes),
            })))
        }
        CarrierKind::Raw => Carrier::Native(Box::new(NativeCarrier::raw(config.shard))),
        CarrierKind::Tun => {
            Carrier::Native(Box::new(NativeCarrier::tun(config.accept.is_some(), config.shard)))
        }
        CarrierKind::Gateway => Carrier::Native(Box::new(NativeCarrier::gateway())),
    }
}
