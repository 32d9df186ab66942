//! Early repeats: one of two arrives, and neither counts as a loss.

use marline_policy::SubflowId;
use marline_time::Duration;

use super::pair::{Pair, WireEffect, config};
use crate::subflow::SubflowEvent;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Writes 100 bytes, repeats them after 5 ms, and runs for a second. `lost`: which of the two transmissions.
fn message(pair: &mut Pair, lost: Option<usize>) {
    let mut sent = 0;
    pair.set_filter(move |_, packet| {
        if packet.to == 0 || packet.payload.is_empty() {
            return WireEffect::Pass;
        }
        sent += 1;
        if lost == Some(sent - 1) { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.client.written += 100;
    pair.run_for(MS(5));
    pair.client.tcp.request_early_repeat();
    pair.run_for(Duration::from_secs(1));
}

/// Retransmission timeouts, probes, reductions of the window, and retransmitted bytes.
fn trouble(pair: &Pair) -> [u64; 4] {
    let info = pair.client.tcp.info(SubflowId(0), false);
    [info.rtos, info.probes, pair.client.reductions() as u64, info.bytes_retransmitted]
}

#[test]
fn whichever_of_the_two_is_lost_the_message_arrives_without_a_probe_or_a_reduction() {
    for lost in [None, Some(0), Some(1)] {
        let mut pair = Pair::established(config());
        for number in 1..=20 {
            message(&mut pair, lost);
            assert_eq!(pair.server().received, number * 100, "{lost:?}");
        }
        assert_eq!(trouble(&pair), [0, 0, 0, 2_000], "{lost:?}");
        assert!(
            !pair.client.saw(SubflowEvent::ProbeTimeout) && !pair.client.saw(SubflowEvent::Lost)
        );
        // A sample is the time since the original, or since the repeat if only that arrived.
        let rtt = pair.client.tcp.srtt().expect("samples");
        assert!(rtt >= pair.delay * 2 && rtt <= pair.delay * 2 + MS(6), "{lost:?}: {rtt:?}");
    }
}

#[test]
fn if_both_are_lost_the_probe_comes_as_without_a_repeat() {
    let probed_after = |repeat: bool| {
        let mut pair = Pair::established(config());
        message(&mut pair, None);
        let mut sent = 0;
        let lost = if repeat { 2 } else { 1 };
        pair.set_filter(move |_, packet| {
            let data = packet.to == 1 && !packet.payload.is_empty();
            sent += u64::from(data);
            if data && sent <= lost { WireEffect::Drop } else { WireEffect::Pass }
        });
        pair.logging = true;
        let begun = pair.now;
        pair.client.written += 100;
        pair.run_for(MS(5));
        if repeat {
            pair.client.tcp.request_early_repeat();
        }
        pair.run_for(Duration::from_secs(1));
        assert_eq!(pair.server().received, 200);
        let last =
            pair.log.iter().rfind(|(_, packet)| packet.to == 1 && !packet.payload.is_empty());
        last.expect("a probe").0.since(begun)
    };
    assert_eq!(probed_after(true), probed_after(false));
}

#[test]
fn nothing_is_repeated_twice_or_while_a_loss_is_repaired() {
    let mut pair = Pair::established(config());
    pair.client.written = 100;
    pair.run_for(MS(5));
    for _ in 0..3 {
        pair.client.tcp.request_early_repeat();
        pair.run_for(MS(1));
    }
    assert_eq!(trouble(&pair)[3], 100);
    pair.run_for(Duration::from_secs(1));
    assert!(pair.client.tcp.newest_repeatable().is_none(), "nothing is in flight");
    // The first of ten is lost: until it is repaired, nothing is repeated early.
    let mut sent = 0;
    pair.set_filter(move |_, packet| {
        let data = packet.to == 1 && !packet.payload.is_empty();
        sent += u64::from(data);
        if data && sent == 1 { WireEffect::Drop } else { WireEffect::Pass }
    });
    pair.client.written += 14_000;
    let delay = pair.delay;
    pair.run_for(delay * 2 + MS(1));
    pair.client.tcp.request_early_repeat();
    assert!(pair.client.tcp.newest_repeatable().is_none());
    pair.run_for(Duration::from_secs(1));
    assert_eq!(pair.server().received, 14_100);
}
