//! Tests of bulk transfer over clean and lossy links.

use crate::cases::{bulk, connection, link};
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Duration, Instant, Rate, SeedTree};

const FAST: &str = "rate=50M,delay=10ms,queue=20ms";
const SLOW: &str = "rate=50M,delay=30ms,queue=60ms";

#[test]
fn one_clean_link_is_filled() {
    for text in [FAST, SLOW] {
        let outcome = bulk::run(vec![link(text)], "min-rtt", Duration::from_secs(30), 1);
        let share = outcome.share(&[Rate::from_mbit(50)]);
        println!("{text}: {:.1} % of link goodput", share * 100.0);
        assert!(share >= 0.95, "{text}: {share:.3} {outcome:?}");
    }
}

#[test]
fn two_clean_links_add_up() {
    for texts in [[FAST, SLOW], [SLOW, FAST]] {
        let links = texts.map(link).to_vec();
        let outcome = bulk::run(links, "min-rtt", Duration::from_secs(30), 1);
        let share = outcome.share(&[Rate::from_mbit(50); 2]);
        println!("{texts:?}: {:.1} % of the sum of the links' goodput", share * 100.0);
        assert!(share >= 0.92, "{texts:?}: {share:.3} {outcome:?}");
    }
}

/// In its Reno-friendly region, CUBIC stays close to the response function of RFC 9438 (section 5.1): 1.2 / sqrt(p)
/// segments a round trip give 1.2 / sqrt(0.001) * 1428 B / 20 ms = 21.7 Mbit/s as a lower bound; its cubic region lies
/// above.
#[test]
fn goodput_at_a_thousandth_of_loss_meets_the_response_function() {
    let text = "rate=50M,delay=10ms,queue=20ms,down.loss=0.1%";
    let outcome = bulk::run(vec![link(text)], "min-rtt", Duration::from_secs(30), 1);
    println!("0.1 % loss, 50 Mbit/s, 20 ms: {}", outcome.goodput);
    assert!(outcome.goodput >= Rate::from_bits_per_s(21_700_000), "{outcome:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let links = vec![link("rate=20M,delay=10ms,loss=0.5%,jitter=1ms"), link(SLOW)];
        bulk::run(links, "min-rtt", Duration::from_secs(5), seed).digest
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn both_directions_at_once_end_with_equal_bytes() {
    let links = [FAST, SLOW].map(link).to_vec();
    let config = PathsConfig::new(links, connection("min-rtt"));
    let mut paths = Paths::new(&config, SeedTree::new(1));
    let bytes = Amount::Bytes(5_000_000);
    paths.listen(Box::new(move |_| Box::new(Bulk::new(bytes, 1, 2))));
    paths.connect(0, Box::new(Bulk::new(bytes, 2, 1))).expect("a connection");
    paths.world.run_until(Instant::from_secs(20));
    let (client, server) = (paths.client_report(0).unwrap(), paths.server_report(0).unwrap());
    crate::cases::oracle::stream::complete(client, server).unwrap();
    crate::cases::oracle::stream::complete(server, client).unwrap();
    assert!(client.eof_at < Some(Instant::from_secs(3)), "{:?}", client.eof_at);
}

/// 8 MiB in each direction at the same time over two paths, with unlimited buffers: little longer than one direction
/// alone. Two kernels take 4.7 s over 10 and 10 Mbit/s, 7.25 s over 10 and 3.
#[test]
fn both_directions_at_once_take_little_longer_than_one() {
    let run = |rates: [u32; 2], up: Amount, down: Amount| {
        let links = rates.map(|rate| link(&format!("rate={rate}M,delay=10ms,queue=100ms")));
        let mut connection = connection("min-rtt");
        (connection.send_buffer, connection.receive_buffer) = (16 << 20, 16 << 20);
        let config = PathsConfig::new(links.to_vec(), connection);
        let mut paths = Paths::new(&config, SeedTree::new(1));
        paths.listen(Box::new(move |_| Box::new(Bulk::new(down, 1, 2))));
        paths.connect(0, Box::new(Bulk::new(up, 2, 1))).expect("a connection");
        paths.world.run_until(Instant::from_secs(20));
        let (client, server) = (paths.client_report(0).unwrap(), paths.server_report(0).unwrap());
        client.eof_at.max(server.eof_at).expect("both ended").since(Instant::ZERO)
    };
    let bytes = Amount::Bytes(8 << 20);
    for (rates, kernels) in [([10, 10], 4_700), ([10, 3], 7_250)] {
        let alone = run(rates, bytes, Amount::Nothing);
        let both = run(rates, bytes, bytes);
        println!("{rates:?} Mbit/s: one way {alone:?}, both ways {both:?}");
        assert!(both <= alone.mul_f64(1.08), "{rates:?}: {both:?} against {alone:?}");
        assert!(both <= Duration::from_millis(kernels), "{rates:?}: {both:?}");
    }
}
