//! Tests of attacks by an observer of all datagrams, and of openings during a flood.

use super::*;

fn here() -> Outer {
    outer(1, 9, 7000)
}

/// Client and server with a flow between them, and all datagrams that were exchanged.
pub(super) struct Pair {
    pub(super) client: UdpCarrier,
    pub(super) server: UdpCarrier,
    pub(super) now: Instant,
    seen: Vec<Vec<u8>>,
}

fn client_path() -> FourTuple {
    FourTuple { local: SocketAddr::new(ip(2), 4242), remote: SocketAddr::new(ip(1), 443) }
}

/// Server address as seen by a client.
pub(super) fn at_client() -> Outer {
    outer(2, 1, 443)
}

fn sent(framed: Option<FramedBatch>, segment: &[u8]) -> Vec<u8> {
    let Some(FramedBatch::Handshake { header, .. }) = framed else {
        panic!("a handshake goes out")
    };
    [header.as_bytes(), segment].concat()
}

fn first_syn(client: &mut UdpCarrier, now: Instant) -> Vec<u8> {
    first_syn_of(client, now, CLIENT_FLOW)
}

fn first_syn_of(client: &mut UdpCarrier, now: Instant, flow: u64) -> Vec<u8> {
    let mut bytes = vec![0; SHORT_HEADER + 44];
    let framed = client.frame(now, &batch(client_path(), flow, 0, true, &bytes), &mut bytes);
    sent(framed, &segment(0x02, 44))
}

fn syn_ack(server: &mut UdpCarrier, now: Instant) -> Vec<u8> {
    let mut bytes = vec![0; SHORT_HEADER + 60];
    let out = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, true, &bytes);
    sent(server.frame(now, &out, &mut bytes), &segment(0x12, 60))
}

/// Data of the client from its current address.
fn client_sends(client: &mut UdpCarrier, now: Instant) -> Vec<u8> {
    let mut bytes = vec![0; SHORT_HEADER];
    bytes.extend(segment(0x10, 20));
    let out = batch(client_path(), CLIENT_FLOW, SERVER_FLOW, false, &bytes);
    assert!(client.frame(now, &out, &mut bytes).is_some());
    bytes
}

fn current_destination(server: &mut UdpCarrier, now: Instant) -> Outer {
    let mut bytes = vec![0; 200];
    let out = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, false, &bytes);
    match server.frame(now, &out, &mut bytes) {
        Some(FramedBatch::Ready(to)) => to,
        other => panic!("{other:?}"),
    }
}

impl Pair {
    pub(super) fn connected() -> Pair {
        Pair::between(carrier(false, ALONE), carrier(true, ALONE))
    }

    fn between(mut client: UdpCarrier, mut server: UdpCarrier) -> Pair {
        let now = Instant::from_secs(1);
        let syn = first_syn(&mut client, now);
        let got = server.receive(now, &datagram(here(), &syn));
        assert!(matches!(got, ReceivedDatagram::Segment(meta, _) if meta.peer_flow == CLIENT_FLOW));
        let answer = syn_ack(&mut server, now);
        let got = client.receive(now, &datagram(at_client(), &answer));
        assert!(matches!(got, ReceivedDatagram::Segment(meta, _) if meta.peer_flow == SERVER_FLOW));
        let third = client_sends(&mut client, now);
        let got = server.receive(now, &datagram(here(), &third));
        assert!(matches!(got, ReceivedDatagram::Segment(meta, _) if meta.flow == SERVER_FLOW));
        Pair { client, server, now, seen: vec![syn, answer, third] }
    }

    /// Makes the client's datagrams come from address `at`, and returns the server's challenge to that address.
    fn challenged_at(&mut self, at: Outer) -> Vec<u8> {
        let data = client_sends(&mut self.client, self.now);
        self.server.receive(self.now, &datagram(at, &data));
        let (to, challenge) = self.server.poll_control().expect("a challenge");
        assert_eq!(to, at);
        self.seen.extend([data, challenge.as_bytes().to_vec()]);
        challenge.as_bytes().to_vec()
    }
}

#[test]
fn a_moving_client_is_followed_and_the_core_notified() {
    let mut pair = Pair::connected();
    let now = pair.now;
    for (moved, other_host) in [(outer(1, 9, 7001), false), (outer(1, 8, 7001), true)] {
        let challenge = pair.challenged_at(moved);
        pair.client.receive(now, &datagram(at_client(), &challenge));
        let (_, response) = pair.client.poll_control().expect("a response");
        let got = pair.server.receive(now, &datagram(moved, response.as_bytes()));
        assert!(
            matches!(got, ReceivedDatagram::Moved { flow: SERVER_FLOW, new_host } if new_host == other_host)
        );
        assert_eq!(current_destination(&mut pair.server, now), moved);
    }
    assert_eq!(pair.server.counters().bad_responses, 0);
    assert_eq!(pair.server.counters().agreements, 1);
}

#[test]
fn a_new_address_gets_only_challenges_until_it_answers() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let moved = outer(1, 8, 9000);
    let bytes = data(SERVER_FLOW, 20);
    let (mut received, mut sent) = (0, 0);
    let mut challenge = None;
    for ms in 0..200 {
        let at = now + Duration::from_millis(ms);
        let got = pair.server.receive(at, &datagram(moved, &bytes));
        assert!(matches!(got, ReceivedDatagram::Segment(meta, _) if meta.path == server_path()));
        received += bytes.len();
        while let Some((to, frame)) = pair.server.poll_control() {
            assert_eq!(to, moved);
            sent += frame.as_bytes().len();
            challenge = Some(frame);
        }
        assert_eq!(current_destination(&mut pair.server, at), here());
    }
    assert!(sent <= 3 * received, "{sent} of {received}");
    assert_eq!(pair.server.counters().challenges, 20, "one per 10 ms");

    let challenge = challenge.expect("a challenge was sent");
    pair.client.receive(now, &datagram(at_client(), challenge.as_bytes()));
    let (_, response) = pair.client.poll_control().expect("a response");
    // From another address, the answer is invalid.
    pair.server.receive(now, &datagram(outer(1, 7, 9000), response.as_bytes()));
    assert_eq!((pair.server.counters().bad_responses, pair.server.counters().moves), (1, 0));
    pair.server.receive(now, &datagram(moved, response.as_bytes()));
    assert_eq!(pair.server.counters().moves, 1);
    assert_eq!(current_destination(&mut pair.server, now), moved);
    // A response is valid for one move: replayed after the flow has moved on, it is invalid.
    pair.server.receive(now, &datagram(moved, response.as_bytes()));
    assert_eq!((pair.server.counters().bad_responses, pair.server.counters().moves), (1, 1));
    let next = outer(1, 6, 6000);
    let challenge = pair.challenged_at(next);
    pair.client.receive(now, &datagram(at_client(), &challenge));
    let (_, answer) = pair.client.poll_control().expect("a response");
    pair.server.receive(now, &datagram(next, answer.as_bytes()));
    pair.server.receive(now, &datagram(moved, response.as_bytes()));
    assert_eq!((pair.server.counters().bad_responses, pair.server.counters().moves), (2, 2));
}

#[test]
fn an_observer_of_everything_cannot_steal_a_flow() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let thief = outer(1, 66, 6666);
    // The attacker sends with the id that it has seen, and gets the challenge.
    let keepalive = ControlFrame::keepalive(SERVER_FLOW);
    pair.server.receive(now, &datagram(thief, keepalive.as_bytes()));
    let (_, challenge) = pair.server.poll_control().expect("a challenge");
    let Some(Frame::Challenge { nonce, .. }) = Frame::parse(challenge.as_bytes()) else {
        panic!("a challenge");
    };
    // It tries the nonce itself, and everything that it can compute from the observed datagrams with its own key
    // pair.
    let mut own = Keyring::new([66; 32], [66; 32]);
    let mut tries = vec![nonce];
    for seen in &pair.seen {
        if let Some(Frame::Handshake { more, .. }) = Frame::parse(seen) {
            tries.push(more.introduction.commitment);
            let mut bond = own.bind_flow(now, Some(more.introduction));
            tries.extend(own.response(&mut bond, SERVER_FLOW, CLIENT_FLOW, &nonce));
        }
    }
    assert_eq!(tries.len(), 5);
    for proof in &tries {
        let forged = ControlFrame::response(SERVER_FLOW, proof);
        let got = pair.server.receive(now, &datagram(thief, forged.as_bytes()));
        assert!(matches!(got, ReceivedDatagram::Nothing));
    }
    assert_eq!(pair.server.counters().bad_responses, 5);
    // It sends the challenge to the true peer, which answers only the server.
    let got = pair.client.receive(now, &datagram(outer(2, 66, 6666), challenge.as_bytes()));
    assert!(matches!(got, ReceivedDatagram::Nothing));
    assert!(pair.client.poll_control().is_none());
    // It makes the true peer move, and uses what it sees then.
    let moved = outer(1, 8, 9000);
    let true_challenge = pair.challenged_at(moved);
    pair.client.receive(now, &datagram(at_client(), &true_challenge));
    let (_, response) = pair.client.poll_control().expect("a response");
    pair.server.receive(now, &datagram(thief, response.as_bytes()));
    assert_eq!(current_destination(&mut pair.server, now), here());
    pair.server.receive(now, &datagram(moved, response.as_bytes()));
    assert_eq!(current_destination(&mut pair.server, now), moved);
    pair.server.receive(now, &datagram(thief, response.as_bytes()));
    assert_eq!(current_destination(&mut pair.server, now), moved);
}

#[test]
fn only_a_restarted_server_can_prove_a_reset() {
    let mut pair = Pair::connected();
    let now = pair.now;
    // Killed and restarted: everything is new except the seed.
    let mut restarted = UdpCarrier::new(CarrierConfig {
        secret: [77; 32],
        ..CarrierConfig { reset_seed: [5; 32], ..carrier(true, ALONE).config }
    });
    restarted.set_socket(0, Some(SocketAddr::new(ip(1), 443)));
    let mut other =
        UdpCarrier::new(CarrierConfig { reset_seed: [99; 32], ..carrier(true, ALONE).config });
    let data = client_sends(&mut pair.client, now);
    let keepalive = ControlFrame::keepalive(SERVER_FLOW);
    for asked in [&data[..], keepalive.as_bytes()] {
        let mut answers = Vec::new();
        for server in [&mut other, &mut restarted] {
            let got = server.receive(now, &datagram(here(), asked));
            assert!(matches!(got, ReceivedDatagram::Nothing));
            let (to, reset) = server.poll_control().expect("a reset");
            assert_eq!(to, here());
            assert!(reset.as_bytes().len() <= asked.len());
            answers.push(reset);
        }
        // The observer has the id and the commitment, and the tokens of others.
        let guesses = pair.seen.iter().filter_map(|seen| match Frame::parse(seen)? {
            Frame::Handshake { more, .. } => Some(more.introduction.commitment),
            _ => None,
        });
        let mut forged: Vec<_> =
            guesses.map(|guess| ControlFrame::reset(SERVER_FLOW, &guess)).collect();
        forged.push(answers[0]);
        for reset in forged {
            let got = pair.client.receive(now, &datagram(at_client(), reset.as_bytes()));
            assert!(matches!(got, ReceivedDatagram::Nothing));
        }
        let got = pair.client.receive(now, &datagram(at_client(), answers[1].as_bytes()));
        assert!(matches!(got, ReceivedDatagram::Reset(CLIENT_FLOW)));
    }
    assert_eq!(pair.client.counters().bad_resets, 6);
}

#[test]
fn icmp_errors_must_quote_an_id_of_that_address() {
    let mut pair = Pair::connected();
    let now = pair.now;
    let there = SocketAddr::new(ip(1), 443);
    let data = client_sends(&mut pair.client, now);
    let quoted = |bytes: &[u8]| bytes[..17].to_vec();
    let found = pair.client.find_quoted_flow(there, &quoted(&data));
    assert_eq!(found, Some((CLIENT_FLOW, client_path())));
    assert_eq!(pair.client.find_quoted_flow(SocketAddr::new(ip(7), 443), &quoted(&data)), None);
    let mut guessed = quoted(&data);
    guessed[8] ^= 1;
    assert_eq!(pair.client.find_quoted_flow(there, &guessed), None);
    assert_eq!(pair.client.find_quoted_flow(there, &[0; 17]), None, "nothing was quoted");
    // For a SYN, the client's own id is quoted; the server identifies its clients by outer address.
    let mut opening = carrier(false, ALONE);
    let syn = first_syn(&mut opening, now);
    assert!(opening.find_quoted_flow(there, &quoted(&syn)).is_some());
    let mut out = vec![0; 200];
    let sending = batch(server_path(), SERVER_FLOW, CLIENT_FLOW, false, &out);
    pair.server.frame(now, &sending, &mut out);
    let found = pair.server.find_quoted_flow(here().remote, &quoted(&out));
    assert_eq!(found, Some((SERVER_FLOW, server_path())));
}

#[test]
fn resets_are_limited_per_second() {
    let mut server = carrier(true, ALONE);
    let mut sent = [0; 3];
    for ms in 0..3_000u64 {
        let now = Instant::from_secs(10) + Duration::from_millis(ms);
        for n in 1..6 {
            let bytes = ControlFrame::keepalive(ms * 10 + n);
            server.receive(now, &datagram(here(), bytes.as_bytes()));
            while server.poll_control().is_some() {
                sent[(ms / 1_000) as usize] += 1;
            }
        }
    }
    assert_eq!(sent, [RESETS_PER_S; 3]);
}

#[test]
fn future_versions_are_answered_with_the_supported_one() {
    let now = Instant::from_secs(1);
    let mut server = carrier(true, ALONE);
    let mut newer = syn(CLIENT_FLOW, 44);
    newer[0] = 0x31;
    server.receive(now, &datagram(here(), &newer));
    let (_, told) = server.poll_control().expect("the list");
    assert_eq!(told, ControlFrame::versions(CLIENT_FLOW));
    assert!(told.as_bytes().len() <= newer.len());
}

#[test]
fn a_loaded_server_sends_retries_and_keeps_no_state() {
    let now = Instant::from_secs(1);
    let (mut client, mut server) = (carrier(false, ALONE), carrier(true, ALONE));
    let requires_cookie = |bytes| Datagram { requires_cookie: true, ..datagram(here(), bytes) };
    let syn = first_syn(&mut client, now);
    assert!(matches!(server.receive(now, &requires_cookie(&syn)), ReceivedDatagram::Nothing));
    assert_eq!(server.table_sizes(), (0, 0));
    let (_, retry) = server.poll_control().expect("a cookie");
    assert!(retry.as_bytes().len() <= syn.len());
    let thief = client.receive(now, &datagram(outer(2, 66, 443), retry.as_bytes()));
    assert!(matches!(thief, ReceivedDatagram::Nothing));
    let got = client.receive(now, &datagram(at_client(), retry.as_bytes()));
    assert!(matches!(got, ReceivedDatagram::Repeat(CLIENT_FLOW)));
    let again = client.receive(now, &datagram(at_client(), retry.as_bytes()));
    assert!(matches!(again, ReceivedDatagram::Nothing), "once");
    let second = first_syn(&mut client, now);
    assert!(matches!(
        server.receive(now, &requires_cookie(&second)),
        ReceivedDatagram::Segment(..)
    ));
    // The next flow from the same address sends the cookie from its first packet.
    let next = first_syn_of(&mut client, now, CLIENT_FLOW + 1);
    assert!(matches!(server.receive(now, &requires_cookie(&next)), ReceivedDatagram::Segment(..)));
    // The cookie is not valid from another address.
    let elsewhere = Datagram { outer: outer(1, 9, 7001), ..requires_cookie(&second) };
    let mut fresh = carrier(true, ALONE);
    assert!(matches!(fresh.receive(now, &elsewhere), ReceivedDatagram::Nothing));
}

#[test]
fn an_evicted_syn_still_counts_for_its_flow() {
    let now = Instant::from_secs(1);
    let mut server = half_open(now);
    while answer(&mut server, now, 60).is_some() {}
    for n in 0..PENDING_CAPACITY as u64 {
        server.receive(now, &datagram(outer(1, 9, 1), &syn(0x5000 + n, 44)));
    }
    assert!(!server.pending.contains(CLIENT_FLOW, ip(9)));
    server.receive(now, &datagram(here(), &syn(CLIENT_FLOW, 44)));
    assert!(answer(&mut server, now, 60).is_some(), "the client is there, and gets its answer");
}

#[test]
fn tables_shrink_after_a_flood() {
    let now = Instant::from_secs(1);
    let mut client = carrier(false, ALONE);
    client.config.max_flows = 20_000;
    let mut bytes = vec![0; SHORT_HEADER + 40];
    for n in 1..=10_000u64 {
        client.frame(now, &batch(client_path(), n, 0, true, &bytes), &mut bytes);
    }
    assert!(client.flows.capacity() >= 10_000);
    for n in 1..=9_990 {
        client.forget(n);
    }
    assert_eq!(client.table_sizes().0, 10);
    assert!(client.flows.capacity() <= 2 * flow::SMALL_TABLE, "{}", client.flows.capacity());
    for n in 9_991..=10_000 {
        client.forget(n);
    }
    assert_eq!(client.alarms.capacity(), 0);
}

#[test]
fn ten_thousand_idle_flows_are_all_kept_open() {
    let start = Instant::from_secs(1);
    let mut client = carrier(false, ALONE);
    client.config.max_flows = 20_000;
    let mut bytes = vec![0; SHORT_HEADER + 40];
    for n in 1..=10_000u64 {
        client.frame(start, &batch(client_path(), n, 0, true, &bytes), &mut bytes);
        client.frame(start, &batch(client_path(), n, 1 << 40 | n, false, &bytes), &mut bytes);
    }
    let mut last = std::collections::BTreeMap::new();
    let end = start + Duration::from_secs(61);
    while let Some(now) = client.next_timeout().filter(|at| *at < end) {
        client.on_timeout(now);
        while let Some((_, frame)) = client.poll_control() {
            let Some(Frame::Keepalive { flow }) = Frame::parse(frame.as_bytes()) else {
                panic!("a keepalive");
            };
            let before = last.insert(flow, now).unwrap_or(start);
            assert!(now.since(before) <= Duration::from_secs(20), "{:?}", now.since(before));
        }
    }
    assert_eq!(last.len(), 10_000);
    assert!(last.values().all(|at| end.since(*at) <= Duration::from_secs(20)));
}
