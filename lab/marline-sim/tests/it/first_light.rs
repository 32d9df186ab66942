//! Smoke test: the first transfer over two paths.

use crate::cases::link;
use marline_algos::default_policies;
use marline_core::ConnectionConfig;
use marline_sim::{Amount, Bulk, Paths, PathsConfig};
use marline_time::{Instant, SeedTree};

#[test]
fn bytes_arrive_over_two_paths_in_both_directions() {
    let config = ConnectionConfig::new(default_policies());
    let links =
        vec![link("rate=50M,delay=10ms,queue=20ms"), link("rate=50M,delay=30ms,queue=60ms")];
    let mut paths = Paths::new(&PathsConfig::new(links, config), SeedTree::new(1));
    paths.listen(Box::new(|_| Box::new(Bulk::new(Amount::Bytes(20_000_000), 2, 1))));
    paths.connect(0, Box::new(Bulk::new(Amount::Bytes(20_000_000), 1, 2))).expect("a connection");
    paths.world.run_until(Instant::from_secs(20));
    let (client, server) = (paths.client_report(0).unwrap(), paths.server_report(0).unwrap());
    println!("{client:?}\n{server:?}");
    assert_eq!((client.read, server.read), (20_000_000, 20_000_000));
    assert_eq!((client.wrong_at, server.wrong_at), (None, None));
}
