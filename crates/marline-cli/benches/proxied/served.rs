//! Bulk transfers between the kernel's Multipath TCP and an application behind `marline serve`, compared with the
//! kernel at both ends without a front: over a wire between two network namespaces (veth, offloads on), and over
//! loopback.
//!
//! Rates mean little if client, front and application share two processors. The relevant metric is how much data one
//! processor can serve.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use marline_emulator::netns;
use marline_testkit::need;
use socket2::{Domain, Protocol, Socket, Type};

use crate::ROUNDS;
use crate::relay::{Bulk, Direction, transfer};
use crate::spread::Spread;
use crate::support::Running;

/// Environment variable of a run that has a namespace of its own.
const INSIDE: &str = "MARLINE_BENCH_SERVED";
/// Addresses of the server and of the client on the wire.
const WIRE: [&str; 2] = ["10.94.0.1", "10.94.0.2"];

fn socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    socket.expect("Multipath TCP of the kernel")
}

/// Returns a Multipath TCP connection of the kernel.
fn connected(address: SocketAddr) -> TcpStream {
    let socket = socket();
    socket.connect(&address.into()).expect("a connection");
    socket.into()
}

fn listening(address: IpAddr) -> TcpListener {
    let socket = socket();
    socket.bind(&SocketAddr::new(address, 0).into()).expect("a port");
    socket.listen(16).expect("the socket listens");
    socket.into()
}

fn run(words: &str) {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    assert!(command.args(words).status().expect("the program runs").success(), "{command:?}");
}

/// The process at the other end of the wire. Dropping this ends the process.
struct Peer(Child);

impl Peer {
    /// Creates a namespace, and a wire from this one to it.
    fn make() -> Peer {
        run("ip link set lo up");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "echo here; exec sleep infinity"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("unshare");
        let mut said = [0; 5];
        let out = child.stdout.as_mut().expect("its output");
        std::io::Read::read_exact(out, &mut said).expect("the namespace's process is ready");
        let id = child.id();
        run(&format!("ip link add wire type veth peer name wire netns {id}"));
        run(&format!("ip addr add {}/24 dev wire", WIRE[0]));
        run("ip link set wire up");
        let on = format!("nsenter --net --target {id} ip");
        run(&format!("{on} addr add {}/24 dev wire", WIRE[1]));
        run(&format!("{on} link set wire up"));
        Peer(child)
    }

    fn connected(&self, address: SocketAddr) -> TcpStream {
        let place = format!("/proc/{}/ns/net", self.0.id());
        netns::run_in(&place, || Ok(connected(address))).expect("the namespace")
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `served`, or `served=FLAGS` with further flags of `serve` (`served=--no-offload`).
pub(crate) fn measure(flags: &str) {
    if !need::root() {
        return;
    }
    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new("unshare");
        command.arg("--net").arg(program).arg(format!("served={flags}")).env(INSIDE, "1");
        assert!(command.status().expect("unshare").success(), "the measurement failed");
        return;
    }
    let peer = Peer::make();
    let wire = |address| peer.connected(address);
    measure_over("wire", WIRE[0].parse().expect("an address"), flags, &wire);
    measure_over("loopback", Ipv4Addr::LOCALHOST.into(), flags, &connected);
}

fn measure_over(
    place: &str,
    local: IpAddr,
    flags: &str,
    connect: &dyn Fn(SocketAddr) -> TcpStream,
) {
    let dir = tempfile::tempdir().expect("a folder");
    let (bulk, kernels) = (Bulk::start(), Bulk::on(listening(local)));
    let (listen, to) = (format!("{local}:0"), bulk.address.to_string());
    let args = ["serve", "--listen", &listen, "--to", &to];
    let args: Vec<&str> = args.into_iter().chain(flags.split_whitespace()).collect();
    let mut serve = Running::start(dir.path(), &args);
    let ours = serve.address_after("listening on ");
    for direction in [Direction::Down, Direction::Up] {
        let [mut rate, mut per_core, mut kernel] = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            let (gbit, cpu) = transfer(&bulk, connect(ours), &[serve.id()], direction);
            rate.push(gbit);
            per_core.push(8.0 / cpu);
            kernel.push(transfer(&kernels, connect(kernels.address), &[], direction).0);
        }
        let carried = Spread::of(per_core);
        println!(
            "bulk through serve {flags}, {place}, {direction:?}: Gbit/s {}, {carried} per processor; \
             the kernel alone {}",
            Spread::of(rate),
            Spread::of(kernel)
        );
        let name = format!("{direction:?}").to_lowercase();
        let place = if place == "wire" { "" } else { "loopback-" };
        println!("figure serve-{place}{name}-gbit-per-core {:.2}", carried.median);
    }
}
