//! Tests of links that drop large packets, with and without the router's message to the sender.

use crate::cases::oracle::stream;
use crate::cases::{connection, link};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Instant, SeedTree};

const FAST: &str = "rate=20M,delay=10ms";
const BYTES: u64 = 2_000_000;

/// Results of a download.
#[derive(Debug)]
struct Outcome {
    /// Time at which all data had been read; `None`: never.
    done: Option<Instant>,
    /// Payload bytes of a full segment of the server's, by subflow.
    mss: Vec<u32>,
    /// Packets dropped by the first path's links: to the client, from the client.
    refused: (u64, u64),
    digest: u64,
}

/// Downloads over links of these descriptions. At a given time the first link changes.
fn download(links: &[&str], change: Option<(Instant, &str)>) -> Outcome {
    let links = links.iter().map(|text| link(text)).collect();
    let config = PathsConfig::new(links, connection("min-rtt"));
    let mut paths = Paths::new(&config, SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(BYTES), 1, 2))));
    paths.connect(0, Box::new(Bulk::new(Amount::Nothing, 2, 1))).expect("a connection");
    if let Some((at, text)) = change {
        let (up, down, to) = (paths.up[0], paths.down[0], link(text));
        paths.world.run_at(at, move |world| {
            world.set_link(up, to.up);
            world.set_link(down, to.down);
        });
    }
    let mut mss = Vec::new();
    while paths.world.now() < Instant::from_secs(60) {
        let next = paths.world.now() + marline_time::Duration::from_millis(100);
        paths.world.run_until(next);
        let host = paths.world.node(paths.server);
        let info = host.connections().next().and_then(|(id, _)| host.endpoint().info(id));
        let now: Vec<u32> = info
            .map(|info| info.subflows.iter().map(|subflow| subflow.mss).collect())
            .unwrap_or_default();
        if !now.is_empty() {
            mss = now;
        }
        if paths.client_report(0).is_some_and(|client| client.read == BYTES) {
            break;
        }
    }
    let (server, client) = (paths.server_report(0), paths.client_report(0));
    let (server, client) = (server.expect("accepted"), client.expect("connected"));
    stream::prefix(server, client).expect("the bytes that were written");
    let refused = |link| paths.world.link(link).stats().dropped_mtu;
    Outcome {
        done: client.arrived.filter(|_| client.read == BYTES).map(|(_, last)| last),
        mss,
        refused: (refused(paths.down[0]), refused(paths.up[0])),
        digest: paths.world.digest(),
    }
}

/// Maximum payload of a packet of 1,280 bytes: without headers and timestamps.
const FITS: u32 = 1_280 - 20 - 20;

#[test]
fn a_path_of_1280_bytes_gets_fitting_segments_with_or_without_icmp() {
    let wide = download(&[FAST], None);
    let told = download(&[&format!("{FAST},mtu=1280B")], None);
    let hole = download(&[&format!("{FAST},mtu=1280B:silent")], None);
    println!("wide {wide:?}\nnotified {told:?}\nblack hole {hole:?}");
    assert!(wide.mss[0] > FITS && wide.refused == (0, 0), "{wide:?}");
    for narrow in [&told, &hole] {
        assert!(narrow.done.is_some() && narrow.mss[0] <= FITS, "{narrow:?}");
        assert!(narrow.refused.0 > 0, "a larger size is tried: {narrow:?}");
        assert_ne!(narrow.digest, wide.digest, "a smaller MTU has an effect");
    }
    // A notified sender does not try the same size again.
    assert!(told.refused.0 < hole.refused.0, "{told:?} {hole:?}");
    assert_ne!(told.digest, hole.digest, "the message has an effect");
}

#[test]
fn each_direction_has_its_own() {
    let up = download(&[&format!("{FAST},up.mtu=1280B")], None);
    assert!(up.done.is_some() && up.mss[0] > FITS && up.refused.0 == 0, "{up:?}");
    let down = download(&[&format!("{FAST},down.mtu=1280B")], None);
    assert!(down.done.is_some() && down.mss[0] <= FITS && down.refused.0 > 0, "{down:?}");
}

#[test]
fn an_mtu_black_hole_is_survived_and_icmp_shortens_it() {
    let at = Instant::from_millis(300);
    let [told, hole] = ["", ":silent"]
        .map(|silent| download(&[FAST], Some((at, &format!("{FAST},mtu=1280B{silent}")))));
    println!("notified {told:?}\nblack hole {hole:?}");
    for narrow in [&told, &hole] {
        assert!(narrow.refused.0 > 1 && narrow.mss[0] <= FITS, "{narrow:?}");
    }
    let (told, hole) = (told.done.expect("told"), hole.done.expect("hole"));
    assert!(told < hole && told < Instant::from_millis(1_500), "{told:?} {hole:?}");
    assert!(hole < Instant::from_secs(8), "{hole:?}");
}

#[test]
fn small_mtus_work_with_icmp_and_otherwise_data_moves_to_another_path() {
    let told = download(&[&format!("{FAST},mtu=600B")], None);
    assert!(told.done.is_some() && told.mss[0] <= 560, "{told:?}");
    let beside = download(&[&format!("{FAST},mtu=600B:silent"), "rate=10M,delay=30ms"], None);
    assert!(beside.done.is_some() && beside.refused.0 > 0, "{beside:?}");
}

/// Links without router messages on which full segments of the base size are lost.
const NARROW: &str = "rate=20M,delay=10ms,mtu=1200B:silent";

#[test]
fn streams_survive_silent_mtus_below_the_base_size() {
    for (links, at_most_s) in [(&[NARROW][..], 5), (&[NARROW, NARROW], 4), (&[NARROW, FAST], 4)] {
        let narrow = download(links, None);
        println!("{links:?}: {narrow:?}");
        let done = narrow.done.unwrap_or_else(|| panic!("{links:?} stalls: {narrow:?}"));
        assert!(done < Instant::from_secs(at_most_s), "{links:?}: {narrow:?}");
        assert!(
            narrow.mss[0] <= 1_160 && narrow.mss[0] > 1_080,
            "the size is searched: {narrow:?}"
        );
    }
}
