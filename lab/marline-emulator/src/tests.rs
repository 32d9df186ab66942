use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use marline_link::{DuplexConfig, DuplexSpec};
use marline_time::SeedTree;

use crate::{DEFAULT_SPIN, Emulator, LinkCommand, RelayConfig, Side};

/// Maximum wait, reached only if something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

/// Wait after which a packet counts as lost.
const SILENCE: Duration = Duration::from_millis(150);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket
}

fn link(spec: &str) -> DuplexConfig {
    let spec: DuplexSpec = spec.parse().expect("spec");
    spec.resolve(&SeedTree::new(1), &mut |_| None).expect("no traces")
}

fn relay(spec: &str, to: &UdpSocket) -> RelayConfig {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    RelayConfig::new("test", listen, to.local_addr().expect("address"), link(spec))
}

fn start(config: RelayConfig) -> (Emulator, SocketAddr) {
    let emulator = Emulator::start(vec![config], DEFAULT_SPIN).expect("start");
    let address = emulator.local_addr(0).expect("one relay");
    (emulator, address)
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2_048];
    let (length, from) = socket.recv_from(&mut buffer).expect("a datagram");
    (buffer[..length].to_vec(), from)
}

fn assert_silent(socket: &UdpSocket) {
    socket.set_read_timeout(Some(SILENCE)).expect("timeout");
    let got = socket.recv_from(&mut [0; 2_048]);
    let kind = got.expect_err("nothing may arrive").kind();
    assert!(matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut), "{kind}");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
}

#[test]
fn without_loss_everything_passes_in_order_in_both_directions() {
    let (server, client) = (socket(), socket());
    let (emulator, address) = start(relay("rate=100M,delay=2ms,queue=1s", &server));
    // Sizes that fill, end and begin batches.
    let datagram = |n: u32| {
        let size = if n.is_multiple_of(7) { 300 } else { 1_200 };
        let mut bytes = vec![n as u8; size];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        bytes
    };
    let mut back = address;
    for round in 0..20u32 {
        for n in round * 20..round * 20 + 20 {
            client.send_to(&datagram(n), address).expect("send");
        }
        for n in round * 20..round * 20 + 20 {
            let (bytes, from) = receive(&server);
            assert_eq!(bytes, datagram(n));
            back = from;
        }
    }
    for n in 0..20 {
        server.send_to(&datagram(n), back).expect("send");
    }
    for n in 0..20 {
        let (bytes, from) = receive(&client);
        assert_eq!((bytes, from), (datagram(n), address));
    }
    let report = emulator.stop().expect("report").remove(0);
    assert_eq!((report.up.stats.delivered_packets, report.up.stats.dropped()), (400, 0));
    assert_eq!((report.down.stats.delivered_packets, report.flows), (20, 1));
    println!("relay lateness in this test: {}", report.up.late);
}

#[test]
fn a_broken_link_drops_and_a_restored_one_passes() {
    let (server, client) = (socket(), socket());
    let (emulator, address) = start(relay("delay=1ms", &server));
    client.send_to(b"first", address).expect("send");
    let (_, back) = receive(&server);
    emulator.command(0, LinkCommand::Break(Side::Up)).expect("break");
    client.send_to(b"lost", address).expect("send");
    assert_silent(&server);
    server.send_to(b"other direction", back).expect("send");
    assert_eq!(receive(&client).0, b"other direction");
    emulator.command(0, LinkCommand::Restore(Side::Up)).expect("restore");
    client.send_to(b"second", address).expect("send");
    assert_eq!(receive(&server).0, b"second");
    let report = emulator.report().expect("report").remove(0);
    assert_eq!(report.up.stats.dropped_outage, 1);
    emulator.command(1, LinkCommand::Rebind).expect_err("there is one relay");
}

#[test]
fn the_schedule_happens_by_itself() {
    let (server, client) = (socket(), socket());
    let mut config = relay("delay=1ms", &server);
    config.schedule = vec![
        (Duration::from_millis(300), LinkCommand::Restore(Side::Both)),
        (Duration::ZERO, LinkCommand::Break(Side::Both)),
    ];
    let (emulator, address) = start(config);
    // While the link is down, packets are lost; the next one after that passes.
    client.set_read_timeout(Some(Duration::from_millis(1))).expect("timeout");
    let mut sent = 0;
    server.set_read_timeout(Some(Duration::from_millis(20))).expect("timeout");
    let got = loop {
        sent += 1;
        assert!(sent < 2_000, "the link never came up");
        client.send_to(b"hello", address).expect("send");
        if let Ok((length, _)) = server.recv_from(&mut [0; 64]) {
            break length;
        }
    };
    assert_eq!(got, 5);
    let report = emulator.report().expect("report").remove(0);
    assert!(report.up.stats.dropped_outage > 0);
    assert!(report.running >= Duration::from_millis(300));
}

#[test]
fn rebinding_moves_the_port_and_answers_still_come() {
    let (server, client) = (socket(), socket());
    let (emulator, address) = start(relay("delay=1ms", &server));
    client.send_to(b"one", address).expect("send");
    let (_, before) = receive(&server);
    emulator.command(0, LinkCommand::Rebind).expect("rebind");
    client.send_to(b"two", address).expect("send");
    let (_, after) = receive(&server);
    assert_ne!(before, after);
    server.send_to(b"to the old port", before).expect("send");
    assert_silent(&client);
    server.send_to(b"to the new port", after).expect("send");
    assert_eq!(receive(&client).0, b"to the new port");
}

#[test]
fn clients_and_their_answers_are_kept_apart() {
    let (server, clients) = (socket(), [socket(), socket(), socket()]);
    let (emulator, address) = start(relay("delay=1ms", &server));
    let mut seen = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        client.send_to(&[number as u8], address).expect("send");
        let (bytes, from) = receive(&server);
        assert_eq!(bytes, [number as u8]);
        assert!(!seen.contains(&from));
        seen.push(from);
    }
    for (number, from) in seen.iter().enumerate() {
        server.send_to(&[number as u8, 9], from).expect("send");
    }
    for (number, client) in clients.iter().enumerate() {
        assert_eq!(receive(client).0, [number as u8, 9]);
    }
    assert_eq!(emulator.report().expect("report")[0].flows, 3);
}

#[test]
fn settings_change_while_it_runs_and_losses_are_counted_by_cause() {
    let (server, client) = (socket(), socket());
    let (emulator, address) = start(relay("delay=1ms", &server));
    emulator.command(0, LinkCommand::Set(Box::new(link("loss=100%")))).expect("set");
    client.send_to(b"lost", address).expect("send");
    assert_silent(&server);
    // One packet of 1,028 bytes is being sent for 8 s, a second waits, a third does not fit.
    emulator.command(0, LinkCommand::Set(Box::new(link("rate=1k,queue=2100B")))).expect("set");
    for _ in 0..3 {
        client.send_to(&[0; 1_000], address).expect("send");
    }
    assert_silent(&server);
    let stats = emulator.report().expect("report")[0].up.stats;
    assert_eq!((stats.offered_packets, stats.dropped_loss, stats.dropped_queue), (4, 1, 1));
    assert_eq!(stats.queue_max_bytes, 2 * 1_028);
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let (server, taken) = (socket(), socket());
    let mut config = relay("delay=1ms", &server);
    config.listen = taken.local_addr().expect("address");
    let error = Emulator::start(vec![config], DEFAULT_SPIN).expect_err("in use");
    assert!(error.to_string().contains(&taken.local_addr().expect("address").to_string()));
}

#[test]
fn a_sleeping_radio_takes_its_time_and_an_awake_one_does_not() {
    let (server, client) = (socket(), socket());
    let (emulator, address) = start(relay("radio=lte:200ms,delay=1ms", &server));
    let timed = |from: &UdpSocket, to: SocketAddr, at: &UdpSocket| {
        let begun = std::time::Instant::now();
        from.send_to(b"hello", to).expect("send");
        let (_, sender) = receive(at);
        (begun.elapsed(), sender)
    };
    let (woke, relayed) = timed(&client, address, &server);
    assert!(woke >= Duration::from_millis(201), "{woke:?}");
    let (back, _) = timed(&server, relayed, &client);
    assert!(back < Duration::from_millis(150), "{back:?}");
    let radio = emulator.stop().expect("report")[0].radio.expect("a radio");
    assert_eq!((radio.energy.promotions, radio.energy.packets), (1, 2));
    assert!(radio.energy.traffic_j() > 0.2 * 1.21 && radio.energy.traffic_j() < 60.0);
}
