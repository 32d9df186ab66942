//! Bulk transfers between the kernel's Multipath TCP and an application behind `marline serve`, beside the kernel's at
//! both ends and nothing between.
//!
//! Rates say little where client, front and application share two processors; what counts is how much a processor
//! carries that does nothing but serve.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use marline_testkit::need;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ROUNDS;
use crate::relay::{Bulk, Direction, transfer};
use crate::spread::Spread;
use crate::support::{Running, free_address};

fn socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    socket.expect("Multipath TCP of the kernel")
}

/// A connection by the kernel's Multipath TCP.
fn connected(address: SocketAddr) -> TcpStream {
    let socket = socket();
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

fn listening() -> TcpListener {
    let socket = socket();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a port");
    socket.listen(16).expect("it listens");
    socket.into()
}

pub(crate) fn measure() {
    if !need::root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (bulk, kernels) = (Bulk::start(), Bulk::on(listening()));
    let (listen, to) = (free_address().to_string(), bulk.address.to_string());
    let mut serve = Running::start(dir.path(), &["serve", "--listen", &listen, "--to", &to]);
    let ours = serve.address_after("listening on ");
    for direction in [Direction::Down, Direction::Up] {
        let [mut rate, mut per_core, mut kernel] = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            let (gbit, cpu) = transfer(&bulk, connected(ours), &[serve.id()], direction);
            rate.push(gbit);
            per_core.push(8.0 / cpu);
            kernel.push(transfer(&kernels, connected(kernels.address), &[], direction).0);
        }
        let carried = Spread::of(per_core);
        println!(
            "bulk through serve, {direction:?}: Gbit/s {}, {carried} per processor; the kernel alone {}",
            Spread::of(rate),
            Spread::of(kernel)
        );
        let name = format!("{direction:?}").to_lowercase();
        println!("figure serve-{name}-gbit-per-core {:.2}", carried.median);
    }
}
