//! Tests of HELLO: the extensions that two Marline peers agree on beyond RFC 8684, and its compatibility with all
//! other peers.

use std::sync::Arc;
use std::time::Duration;

use crate::two_hosts::{MiddleboxAction, Packet, TwoHosts, bytes};
use marline_core::{ConnectionConfig, Extensions, MonitorKind};
use marline_policy::SchedulerFactory;
use marline_testkit::fixtures::{calling, served};
use marline_testkit::{Seg, SentSegment, Side, config, endpoint_config};
use marline_wire::mptcp::{ExperimentalMessage, MpExperimental, MptcpOption};

const MS: fn(u64) -> Duration = Duration::from_millis;
const FOLLOW: Extensions = Extensions::FOLLOW_CLIENT;

fn scheduler(name: &str) -> Arc<dyn SchedulerFactory> {
    marline_algos::Registry::default().scheduler(name).expect("a scheduler")
}

/// A client that requests these extensions.
fn asking(extensions: Extensions) -> ConnectionConfig {
    ConnectionConfig { extensions, ..config() }
}

/// A server that follows on request.
fn following() -> ConnectionConfig {
    ConnectionConfig { follow_client: Some(scheduler("round-robin")), ..config() }
}

fn hello_of(seg: &Seg) -> Option<Extensions> {
    seg.options.mptcp.experimental().find_map(|message| match message {
        ExperimentalMessage::Hello(features) => Some(features),
        _ => None,
    })
}

fn hello(features: Extensions) -> MptcpOption {
    MptcpOption::Experimental(ExperimentalMessage::Hello(features).option())
}

fn hellos(sent: &[SentSegment]) -> Vec<Extensions> {
    sent.iter().filter_map(|sent| hello_of(&sent.seg)).collect()
}

#[test]
fn peers_agree_on_features_requested_and_allowed() {
    let mut hosts =
        TwoHosts::new(asking(Extensions(0xffff)), following(), |_| MiddleboxAction::Pass, 1);
    hosts.run_ms(1_000);
    for side in [Side::A, Side::B] {
        assert!(hosts.info(side).extensions.contains(FOLLOW), "{side:?}");
        let agreed = hosts.info(side).extensions;
        assert!(hosts.end(side).monitor.contains(&MonitorKind::Agreed(agreed)));
    }
    assert_eq!(hosts.info(Side::B).scheduler, "round-robin");
    assert_eq!(hosts.info(Side::A).extensions, hosts.info(Side::B).extensions);
    // One request, one answer, each on a segment that is valid without it.
    let said = hosts.trace.iter().filter(|(_, seg)| hello_of(seg).is_some());
    assert!(said.clone().all(|(_, seg)| seg.dss().data_ack.is_some()));
    assert_eq!(said.map(|(to, _)| *to).collect::<Vec<_>>(), [Side::B, Side::A]);
    hosts.exchange_and_close(Side::A, &bytes(50_000, 1), &bytes(50_000, 2));
}

#[test]
fn without_requested_features_no_hello_is_sent() {
    let mut hosts = TwoHosts::new(config(), following(), |_| MiddleboxAction::Pass, 1);
    hosts.exchange_and_close(Side::A, &bytes(50_000, 1), &bytes(50_000, 2));
    assert_eq!(hosts.count(|c| c.hello_tx + c.hello_rx), 0);
    let experimental = |o| matches!(o, MptcpOption::Experimental(_));
    assert!(!hosts.trace.iter().any(|(_, seg)| seg.options.mptcp.iter().any(experimental)));
}

#[test]
fn a_server_grants_no_more_than_it_may() {
    let grants = [
        (following(), FOLLOW),
        (config(), Extensions::NONE),
        (ConnectionConfig { allow_extensions: Extensions::NONE, ..following() }, Extensions::NONE),
    ];
    for (server, granted) in grants {
        let mut hosts = TwoHosts::new(asking(FOLLOW), server, |_| MiddleboxAction::Pass, 1);
        hosts.run_ms(1_000);
        assert_eq!(hosts.info(Side::A).extensions, granted);
        assert_eq!(hosts.info(Side::B).extensions, granted);
        // A refusal is also an answer: the client sends no further request.
        hosts.run_ms(60_000);
        assert_eq!(hosts.count(|c| c.hello_tx), 2);
    }
}

#[test]
fn a_lost_hello_is_repeated_and_a_lost_answer_is_given_again() {
    for loser in [Side::A, Side::B] {
        let mut lost = 0;
        let middlebox = move |p: &mut Packet<'_>| {
            let loses = p.to == loser && hello_of(p.seg).is_some() && lost < 2;
            lost += u32::from(loses);
            if loses { MiddleboxAction::Drop } else { MiddleboxAction::Pass }
        };
        let mut hosts = TwoHosts::new(asking(FOLLOW), following(), middlebox, 1);
        hosts.run_ms(10_000);
        for side in [Side::A, Side::B] {
            assert_eq!(hosts.info(side).extensions, FOLLOW, "{loser:?} lost: {side:?}");
        }
        hosts.exchange_and_close(Side::B, &bytes(50_000, 1), &bytes(50_000, 2));
    }
}

#[test]
fn a_peer_that_never_answers_is_asked_five_times_and_used_without() {
    let (mut script, mut peer, id) = calling(endpoint_config(None), asking(FOLLOW));
    // No experimental option before the connection is confirmed.
    script.advance(MS(300));
    assert!(hellos(&script.take_sent()).is_empty());
    peer.acknowledge(&mut script);
    let mut at = Vec::new();
    for _ in 0..600 {
        script.advance(MS(100));
        let sent = script.take_sent();
        at.extend(sent.iter().filter(|s| hello_of(&s.seg).is_some()).map(|s| s.at));
    }
    assert_eq!(at.len(), 5, "{at:?}");
    let pauses: Vec<Duration> = at.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(pauses.windows(2).all(|w| w[1] >= w[0] * 2), "{pauses:?}");
    assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(Extensions::NONE));
    peer.send_data(&mut script, b"hello");
    assert_eq!(script.read_all(id), b"hello");
}

#[test]
fn unsolicited_answers_and_unknown_options_change_nothing() {
    let (mut script, mut peer, id) = calling(endpoint_config(None), config());
    peer.acknowledge(&mut script);
    let strange = [
        hello(Extensions::ALL),
        MptcpOption::Experimental(MpExperimental::new(0, b"XX\x01\xff\xff").expect("fits")),
        MptcpOption::Experimental(MpExperimental::new(0, b"").expect("fits")),
        MptcpOption::Experimental(MpExperimental::new(15, &[0xff; 12]).expect("fits")),
    ];
    for option in strange {
        let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(option);
        peer.send(&mut script, seg);
        assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(Extensions::NONE));
    }
    assert!(hellos(&script.take_sent()).is_empty());
    peer.send_data(&mut script, b"hello");
    assert_eq!(script.read_all(id), b"hello");
}

#[test]
fn hello_answers_are_bounded_and_never_change() {
    let (mut script, mut peer, id) = served(endpoint_config(Some(following())), 1);
    let mut answers = Vec::new();
    for round in 0..40 {
        // Later HELLOs request other extensions. The first one counts.
        let features = if round == 0 { FOLLOW } else { Extensions::NONE };
        let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello(features));
        peer.send(&mut script, seg);
        script.advance(MS(10));
        answers.extend(hellos(&peer.receive_all(&mut script)));
    }
    assert_eq!(answers.len(), 16);
    assert!(answers.iter().all(|features| *features == FOLLOW));
    assert_eq!(script.endpoint.info(id).map(|i| i.extensions), Some(FOLLOW));
}

#[test]
fn a_box_that_strips_hello_leaves_an_ordinary_connection() {
    let middlebox = |p: &mut Packet<'_>| {
        if hello_of(p.seg).is_some() {
            p.seg.options.mptcp = Default::default();
        }
        MiddleboxAction::Pass
    };
    let mut hosts = TwoHosts::new(asking(FOLLOW), following(), middlebox, 1);
    hosts.run_ms(60_000);
    assert_eq!(hosts.info(Side::A).extensions, Extensions::NONE);
    hosts.exchange_and_close(Side::A, &bytes(50_000, 1), &bytes(50_000, 2));
}
