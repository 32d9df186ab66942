//! Tests of MP_IDLE and of the exchange of the retransmission timeout: the marks and answers of a
//! server, and their use by a client (docs/spec/experimental.md).

mod marking;
mod timeouts;
mod waiting;

use std::time::Duration;

use crate::two_hosts::{second_unused, served};
use marline_core::{
    ConnectionConfig, EndpointConfig, Event, Extensions, MonitorKind, ReceiveTimer,
};
use marline_policy::UnreachableCause;
use marline_testkit::fixtures::calling;
use marline_testkit::{Peer, Script, Seg, config, endpoint_config};
use marline_wire::mptcp::{DataAck, ExperimentalMessage, MptcpOption, WireDsn};

const BOTH: Extensions = Extensions::IDLE.union(Extensions::RTO);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn option(message: ExperimentalMessage) -> MptcpOption {
    MptcpOption::Experimental(message.option())
}

fn messages(seg: &Seg) -> Vec<ExperimentalMessage> {
    seg.options.mptcp.experimental().collect()
}

/// A server and a scripted client that agreed on these extensions.
fn server_with(config: ConnectionConfig, extensions: Extensions) -> (Script, Peer) {
    let (mut script, mut peer) = served(config, 7, 1);
    let hello = option(ExperimentalMessage::Hello(extensions));
    let seg = Seg::ack().data_ack(peer.expected_dsn).mptcp(hello);
    peer.send(&mut script, seg);
    script.advance(ms(50));
    let answered = peer.receive_all(&mut script);
    let answer = ExperimentalMessage::Hello(extensions);
    assert!(answered.iter().any(|s| messages(&s.seg).contains(&answer)), "{answered:#?}");
    (script, peer)
}

/// A client with a second address that stays unused, and a scripted server that agreed on these extensions.
fn client(extensions: Extensions) -> (Script, Peer) {
    let (mut script, mut peer) = asking_client();
    agree(&mut script, &mut peer, extensions);
    (script, peer)
}

/// A client with a second address that stays unused, whose HELLO the scripted server received.
fn asking_client() -> (Script, Peer) {
    let mut config = second_unused(config());
    config.receive_timer = Some(ReceiveTimer::multimob());
    config.extensions = BOTH;
    let endpoint = EndpointConfig { monitor: true, ..endpoint_config(None) };
    let (mut script, mut peer, _) = calling(endpoint, config);
    peer.acknowledge(&mut script);
    let sent = peer.receive_all(&mut script);
    let hello = ExperimentalMessage::Hello(BOTH);
    assert!(sent.iter().any(|s| messages(&s.seg).contains(&hello)), "{sent:#?}");
    (script, peer)
}

fn agree(script: &mut Script, peer: &mut Peer, extensions: Extensions) {
    let answer = Seg::ack().data_ack(peer.expected_dsn);
    peer.send(script, answer.mptcp(option(ExperimentalMessage::Hello(extensions))));
    script.advance(ms(10));
    peer.receive_all(script);
    script.take_events();
}

/// Data with a mapping of 32-bit numbers, which leave room for a mark next to timestamps.
fn mapped(peer: &Peer, payload: &[u8]) -> Seg {
    let mut seg = peer.mapped(payload);
    let dss = seg.options.dss.as_mut().expect("a DSS");
    dss.data_ack = Some(DataAck::Short(peer.expected_dsn as u32));
    let mapping = dss.mapping.as_mut().expect("a mapping");
    mapping.dsn = WireDsn::Short(peer.next_dsn as u32);
    seg
}

fn send(script: &mut Script, peer: &mut Peer, payload: &[u8], marked: bool) {
    let mut seg = mapped(peer, payload);
    if marked {
        seg = seg.mptcp(option(ExperimentalMessage::Idle));
    }
    peer.next_dsn = peer.next_dsn.wrapping_add(payload.len() as u64);
    peer.send(script, seg);
}

/// Milliseconds from now until the receive timer's verdict, within a minute.
fn judged_after(script: &mut Script) -> Option<u64> {
    let start = script.now();
    script.advance(ms(60_000));
    let mut silent = script.take_events().into_iter().filter_map(|event| match event {
        Event::Monitor(event) => match event.kind {
            MonitorKind::SubflowSilent { cause, .. } => Some((event.at, cause)),
            _ => None,
        },
        _ => None,
    });
    let first = silent.next();
    assert_eq!(silent.next(), None, "one silence, one verdict");
    let (at, cause) = first?;
    assert_eq!(cause, UnreachableCause::ReceiveTimer);
    Some(at.since(start).as_millis() as u64)
}
