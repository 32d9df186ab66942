//! Bulk transfers between the kernel's Multipath TCP and an application behind `marline serve`, beside a stream proxy of
//! nginx that speaks the kernel's Multipath TCP (mptcpize).
//!
//! Rates say little where client, proxy and application share two processors; what counts is how much a processor
//! carries that does nothing but serve.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use marline_testkit::need;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ROUNDS;
use crate::beside::front;
use crate::relay::{Bulk, Direction, transfer};
use crate::spread::{Spread, ratios};
use crate::support::{Running, free_address};

/// Linux' number of Multipath TCP as a protocol of sockets.
const IPPROTO_MPTCP: i32 = 262;

/// A connection by the kernel's Multipath TCP.
fn connected(address: SocketAddr) -> TcpStream {
    let protocol = Some(Protocol::from(IPPROTO_MPTCP));
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, protocol);
    let socket = socket.expect("Multipath TCP of the kernel");
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

/// A program that starts nginx so that its sockets speak Multipath TCP.
pub(crate) fn multipath(nginx: &Path, mptcpize: &Path, dir: &Path) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let script = dir.join("nginx-by-mptcpize");
    let text = format!("#!/bin/sh\nexec {} run {} \"$@\"\n", mptcpize.display(), nginx.display());
    std::fs::write(&script, text).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("its owner may run it");
    script
}

pub(crate) fn measure() {
    let programs = (need::program("nginx"), need::program("mptcpize"));
    let (Some(nginx), Some(mptcpize)) = programs else { return };
    if !need::root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let bulk = Bulk::start();
    let program = multipath(&nginx, &mptcpize, dir.path());
    let Some((proxy, anchor)) = front(&program, dir.path(), "served", bulk.address) else { return };
    let (listen, to) = (free_address().to_string(), bulk.address.to_string());
    let mut serve = Running::start(dir.path(), &["serve", "--listen", &listen, "--to", &to]);
    let ours = serve.address_after("listening on ");
    for direction in [Direction::Down, Direction::Up] {
        let [mut rate, mut per_core, mut anchor_rate, mut anchor_per_core] =
            [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            let (gbit, cpu) = transfer(&bulk, connected(ours), &[serve.id()], direction);
            rate.push(gbit);
            per_core.push(8.0 / cpu);
            let (gbit, cpu) = transfer(&bulk, connected(anchor), &[proxy.id()], direction);
            anchor_rate.push(gbit);
            anchor_per_core.push(8.0 / cpu);
        }
        let ratio = ratios(&per_core, &anchor_per_core);
        let carried = Spread::of(per_core);
        println!(
            "bulk through serve, {direction:?}: Gbit/s {}, nginx {}",
            Spread::of(rate),
            Spread::of(anchor_rate)
        );
        println!(
            "    per processor {carried}, nginx {}, ratio {ratio}",
            Spread::of(anchor_per_core)
        );
        let name = format!("{direction:?}").to_lowercase();
        println!("figure serve-{name}-gbit-per-core {:.2}", carried.median);
    }
}
