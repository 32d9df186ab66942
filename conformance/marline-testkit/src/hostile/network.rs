//! Actions of the network between the endpoints: loss, duplication, delay, corruption and forgery.

use std::time::Duration;

use marline_core::{ChecksumScope, Event, FourTuple};

use super::trick::Manipulation;
use super::{Run, Script, address, index};
use crate::{InFlightSegment, Seg, SegmentOutcome, Side, fixtures};

/// One-way delay of the network.
const DELAY: Duration = Duration::from_millis(10);

/// Checks that a segment sent by an endpoint is well-formed and fits its carrier, regardless of the network.
fn check_egress(flight: &InFlightSegment, scope: ChecksumScope) {
    let path = flight.meta.path;
    let addresses = match scope {
        ChecksumScope::WithAddresses => Some((path.remote.ip(), path.local.ip())),
        ChecksumScope::WithoutAddresses => None,
    };
    assert!(
        marline_wire::verify_tcp_checksum(addresses, &flight.bytes),
        "an endpoint sent a wrong checksum"
    );
    let most = usize::from(fixtures::flow_capabilities().max_segment);
    assert!(
        flight.bytes.len() <= most,
        "an endpoint sent a segment of {} bytes",
        flight.bytes.len()
    );
    match Seg::parse(&flight.bytes) {
        Ok(seg) => {
            assert!(seg.options.fits_header() && !seg.options.mptcp.malformed, "{:?}", seg.options);
        }
        Err(error) => panic!("an endpoint sent a broken segment: {error}"),
    }
}

impl Run {
    /// Forges a segment from an earlier one, with other numbers, flags or options.
    pub(super) fn forge(&mut self, script: &mut Script<'_>) {
        let Some(mut flight) = self.pick(script.byte()) else { return };
        let Ok(mut seg) = Seg::parse(&flight.bytes) else { return };
        let what = script.byte();
        let by = u32::from(script.word());
        if what & 1 != 0 {
            seg.header.seq = seg.header.seq.add(by.wrapping_sub(0x8000));
        }
        if what & 2 != 0 {
            seg.header.ack = seg.header.ack.add(by.wrapping_sub(0x8000));
        }
        if what & 4 != 0 {
            seg.header.flags.0 ^= u16::from(script.byte());
        }
        if what & 8 != 0 {
            seg.header.window = script.word();
        }
        if what & 16 != 0 {
            seg.payload = vec![0xf0; usize::from(script.byte()) * 4];
        }
        if what & 32 != 0
            && let Some(mapping) = seg.options.dss.as_mut().and_then(|dss| dss.mapping.as_mut())
        {
            mapping.ssn = mapping.ssn.wrapping_add(by).wrapping_sub(0x8000);
            mapping.length = mapping.length.wrapping_add(script.word());
        }
        if what & 64 != 0 {
            seg.options.dss = None;
        }
        if what & 128 != 0
            && let Some(other) = self.pick(script.byte())
            && let Ok(other) = Seg::parse(&other.bytes)
        {
            seg.options = other.options;
        }
        if seg.options.fits_header() {
            flight.bytes = seg.bytes(None);
            self.launch_forged(flight);
        }
    }

    /// Sends random bytes, the first twenty of which may copy an earlier header.
    pub(super) fn inject_noise(&mut self, side: Side, script: &mut Script<'_>) {
        let len = usize::from(script.byte() % 64);
        let mut bytes: Vec<u8> = (0..len).map(|_| script.byte()).collect();
        let Some(mut flight) = self.pick(script.byte()) else { return };
        if len & 1 == 0 {
            bytes.splice(..0, flight.bytes.iter().copied().take(20));
        }
        flight.bytes = bytes;
        if len & 2 == 0 {
            let (local, remote) = (address(side, 0, 80), address(side.other(), 1, 4_000));
            flight.meta.path = FourTuple { local, remote };
            flight.to = side;
        }
        self.launch_forged(flight);
    }

    fn launch_forged(&mut self, mut flight: InFlightSegment) {
        self.pair.repair(&mut flight);
        self.outcome.forged += 1;
        self.pair.launch(flight, Duration::from_millis(1));
    }

    fn pick(&self, which: u8) -> Option<InFlightSegment> {
        self.seen.get(usize::from(which).checked_rem(self.seen.len())?).cloned()
    }

    pub(super) fn gather(&mut self) {
        let Run { pair, manipulations, seen, outcome, .. } = self;
        let scope = pair.scope();
        let mut forged = Vec::new();
        let mut judge = |flight: &mut InFlightSegment| {
            check_egress(flight, scope);
            outcome.segments += 1;
            if seen.len() == 16 {
                seen.remove(0);
            }
            seen.push(flight.clone());
            match manipulations.pop() {
                None => SegmentOutcome::Arrive(DELAY),
                Some(Manipulation::Drop) => SegmentOutcome::Drop,
                Some(Manipulation::Repeat(after)) => SegmentOutcome::Twice(DELAY, DELAY + after),
                Some(Manipulation::Late(by)) => SegmentOutcome::Arrive(DELAY + by),
                Some(Manipulation::Corrupt { at, with }) => {
                    // The checksum always detects a single changed byte.
                    let at = usize::from(at) % flight.bytes.len();
                    flight.bytes[at] ^= with.max(1);
                    SegmentOutcome::Arrive(DELAY)
                }
                Some(Manipulation::Forge { at, with }) => {
                    let at = usize::from(at) % flight.bytes.len();
                    flight.bytes[at] ^= with;
                    forged.push(flight.clone());
                    SegmentOutcome::Drop
                }
            }
        };
        let events = pair.gather(&mut judge);
        for flight in forged {
            self.launch_forged(flight);
        }
        for (side, event) in events {
            self.record_event(side, &event);
        }
    }

    fn record_event(&mut self, side: Side, event: &Event) {
        match event {
            Event::Incoming(id) => {
                self.outcome.connected += 1;
                // Later connections come from forged SYNs and have no application.
                let app = &mut self.apps[index(side)];
                app.id = app.id.or(Some(*id));
            }
            Event::Connected { .. } => self.outcome.connected += 1,
            _ => {}
        }
    }
}
