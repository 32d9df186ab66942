//! Tests of the memory of networks that drop SYNs with MP_CAPABLE: only the first connection pays.

use marline_core::{ConnectionConfig, ConnectionId, FallbackReason};
use marline_sim::{Amount, Bulk, Paths, PathsConfig, UDP_CAPABILITIES};
use marline_time::{Duration, Instant, SeedTree};

use super::world::{config, link};

/// Opens a connection, which sends its first SYN now.
fn begin(paths: &mut Paths, over: usize) -> (usize, ConnectionId) {
    let index = paths.world.node(paths.client).connections().count();
    let id = paths.connect(over, Box::new(Bulk::new(Amount::Bytes(1), 11, 22)));
    (index, id.expect("a connection"))
}

/// Silences the first path, starting after this time and for this long.
fn outage(paths: &mut Paths, after: Duration, span: Duration) {
    let start = paths.world.now() + after;
    paths.schedule_path_change(start, 0, false);
    paths.schedule_path_change(start + span, 0, true);
}

/// Reason why a connection is plain TCP just before the server's byte is read.
fn fallback_of(paths: &mut Paths, index: usize, id: ConnectionId) -> Option<FallbackReason> {
    let mut seen = None;
    run_while(paths, Duration::from_secs(60), |paths| {
        let waits = paths.client_report(index).is_some_and(|report| report.read == 0);
        if waits {
            seen = fallback(paths, id);
        }
        waits
    });
    seen
}

/// Reason why a connection is plain TCP, if it is.
fn fallback(paths: &Paths, id: ConnectionId) -> Option<FallbackReason> {
    paths.world.node(paths.client).endpoint().info(id).expect("it lives").fallback
}

/// Advances in milliseconds while the condition holds, which must end within the time.
fn run_while(paths: &mut Paths, most: Duration, mut holds: impl FnMut(&Paths) -> bool) {
    let start = paths.world.now();
    while holds(paths) {
        let next = paths.world.now() + Duration::from_millis(1);
        assert!(next.since(start) < most, "it hangs");
        paths.world.run_until(next);
    }
}

/// Waits for data on the opened connection.
fn settle(paths: &mut Paths) {
    let end = paths.world.now() + Duration::from_secs(1);
    paths.world.run_until(end);
}

/// Opens a connection. Returns the time this took, and the reason of a fallback to plain TCP, if any.
fn open(paths: &mut Paths, over: usize) -> (Duration, Option<FallbackReason>) {
    let start = paths.world.now();
    let (index, id) = begin(paths, over);
    let opened = |paths: &Paths| paths.client_report(index).and_then(|report| report.opened_at);
    run_while(paths, Duration::from_secs(30), |paths| opened(paths).is_none());
    (paths.world.now().since(start), fallback(paths, id))
}

fn paths(boxes: &[&str]) -> Paths {
    paths_of(config(true, false), boxes)
}

fn paths_of(client: ConnectionConfig, boxes: &[&str]) -> Paths {
    let links = boxes.iter().map(|boxes| link(boxes)).collect();
    listening(&PathsConfig::new(links, client))
}

fn listening(config: &PathsConfig) -> Paths {
    let mut paths = Paths::new(config, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(1), 22, 11))));
    paths
}

const QUICK: Duration = Duration::from_millis(50);
/// Time of three SYNs with the option, a second apart.
const SLOW: Duration = Duration::from_secs(3);

#[test]
fn a_known_blocked_network_costs_no_wait_and_others_are_unaffected() {
    let mut client = config(true, false);
    client.connection_attempt_delay = None;
    let mut paths = paths_of(client, &["up.block=mptcp:syn", ""]);
    let (took, why) = open(&mut paths, 0);
    assert!(took > SLOW && why == Some(FallbackReason::SynRetries), "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK && why == Some(FallbackReason::KnownNetwork), "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 1);
    assert!(took < QUICK && why.is_none(), "{took:?} {why:?}");
}

#[test]
fn a_blocked_network_is_forgotten_after_an_hour_and_then_later() {
    let mut paths = paths(&["up.block=mptcp:syn"]);
    open(&mut paths, 0);
    paths.world.run_until(Instant::from_secs(3_590));
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::KnownNetwork));
    paths.world.run_until(Instant::from_secs(3_700));
    assert_eq!(
        open(&mut paths, 0).1,
        Some(FallbackReason::SynRetries),
        "the option is tried again"
    );
    paths.world.run_until(Instant::from_secs(10_000));
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::KnownNetwork));
    // The middlebox is gone: the next attempt succeeds, and the network is no longer remembered.
    let (up, down) = (paths.up[0], paths.down[0]);
    let free = link("");
    paths.world.set_link(up, free.up);
    paths.world.set_link(down, free.down);
    paths.world.run_until(Instant::from_secs(11_000));
    assert_eq!(open(&mut paths, 0).1, None);
}

#[test]
fn an_address_that_comes_back_is_another_network() {
    let mut paths = paths(&["up.block=mptcp:syn"]);
    open(&mut paths, 0);
    let now = paths.world.now();
    paths.schedule_address_change(now + Duration::from_secs(1), 0, false);
    paths.schedule_address_change(now + Duration::from_secs(2), 0, true);
    paths.world.run_until(now + Duration::from_secs(3));
    let (took, why) = open(&mut paths, 0);
    assert!(took > SLOW && why == Some(FallbackReason::SynRetries), "{took:?} {why:?}");
}

/// Losses are not mistaken for a middlebox: three SYNs are lost, and the fourth would have been answered with the
/// option, too.
#[test]
fn a_syn_ack_with_the_option_clears_the_network() {
    let mut paths = paths(&["up.drop=1+2+3"]);
    assert_eq!(open(&mut paths, 0).1, Some(FallbackReason::SynRetries));
    let now = paths.world.now();
    paths.schedule_address_change(now + Duration::from_secs(1), 0, false);
    paths.schedule_address_change(now + Duration::from_secs(2), 0, true);
    paths.world.run_until(now + Duration::from_secs(3));
    assert_eq!(open(&mut paths, 0).1, None);
    assert_eq!(open(&mut paths, 0).1, None);
}

/// After three unanswered SYNs (six where the option passed before), SYNs have no option, and such a SYN gets the
/// first answer. A connection that waits longer is plain TCP; later ones are not affected.
#[test]
fn an_outage_is_not_held_against_a_network_that_let_the_option_pass() {
    const OVER: Duration = Duration::from_millis(500);
    let why = |paths: &mut Paths, known: bool, seconds: u64| {
        if known {
            assert_eq!(open(paths, 0).1, None);
            settle(paths);
        }
        let span = Duration::from_secs(seconds) - OVER;
        outage(paths, Duration::ZERO, span);
        let (took, why) = open(paths, 0);
        assert!(took > span && took < span + OVER + QUICK, "{took:?} of {span:?}");
        assert_eq!(open(paths, 0).1.is_some(), why.is_some() && !known);
        why
    };
    let cases = [(false, 2, false), (false, 3, true), (true, 5, false), (true, 7, true)];
    for (known, seconds, plain) in cases {
        let expected = plain.then_some(FallbackReason::SynRetries);
        assert_eq!(why(&mut paths(&[""]), known, seconds), expected, "{known}, {seconds} s");
    }
}

/// The path dies during the handshake, for longer than it takes to try plain TCP.
#[test]
fn first_data_in_an_outage_keeps_its_options_where_they_passed_before() {
    for known in [false, true] {
        let mut paths = paths(&[""]);
        if known {
            assert_eq!(open(&mut paths, 0).1, None);
            settle(&mut paths);
        }
        let (index, id) = begin(&mut paths, 0);
        outage(&mut paths, Duration::from_millis(45), Duration::from_secs(25));
        let plain = fallback_of(&mut paths, index, id);
        let given_up = (!known).then_some(FallbackReason::OptionsUnanswered);
        assert_eq!(plain, given_up, "known: {known}");
    }
}

/// Middleboxes cannot see the options of segments in datagrams, so an outage is not mistaken for one.
#[test]
fn over_udp_silence_never_leads_to_plain_tcp() {
    let mut over_udp = PathsConfig::new(vec![link("")], config(true, false));
    over_udp.capabilities = UDP_CAPABILITIES;
    over_udp.carrier_overhead = 17;
    for down_from in [Duration::ZERO, Duration::from_millis(45)] {
        let mut paths = listening(&over_udp);
        let (index, id) = begin(&mut paths, 0);
        outage(&mut paths, down_from, Duration::from_secs(25));
        assert_eq!(fallback_of(&mut paths, index, id), None, "down from {down_from:?}");
    }
}

/// Allowed time: a delay, and a round trip of the other path.
const OVER_THE_OTHER: Duration = Duration::from_millis(300);

#[test]
fn another_path_spares_the_wait_and_the_fallback() {
    for boxes in ["up.block=mptcp:syn", "down.block=mptcp:synack"] {
        let mut paths = paths(&[boxes, ""]);
        for _ in 0..2 {
            let (took, why) = open(&mut paths, 0);
            assert!(took < OVER_THE_OTHER && why.is_none(), "{boxes}: {took:?} {why:?}");
        }
    }
}

#[test]
fn a_server_of_plain_tcp_costs_the_second_path_one_round_trip_once() {
    let mut paths = paths(&["strip=mptcp", "strip=mptcp"]);
    let stripped = Some(FallbackReason::SynAckWithoutOption);
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK * 2 && took > QUICK && why == stripped, "{took:?} {why:?}");
    let (took, why) = open(&mut paths, 0);
    assert!(took < QUICK && why == stripped, "{took:?} {why:?}");
}
