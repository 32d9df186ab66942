//! Check of native TCP over loopback against this machine's kernel.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use marline::advanced::RawSockets;
use marline::{Carrier, Server};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Finding;
use crate::native::explain_open_error;

/// Time limit for a connection over loopback, which normally takes microseconds.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Time without an answer that counts as silence.
const SILENCE: Duration = Duration::from_millis(300);

const RAW: &str = "raw sockets";
const GUARD: &str = "guard";
const PLAIN: &str = "native TCP";
const MULTIPATH: &str = "native MPTCP";

pub(super) async fn examine() -> Vec<Finding> {
    let sockets = match RawSockets::open() {
        Ok(sockets) => sockets,
        Err(error) => {
            let why = format!("{:#}", explain_open_error(error, "a raw socket"));
            return vec![Finding::fails(RAW, why)];
        }
    };
    let mut findings =
        vec![Finding::passed(RAW, "available for serve, --direct and --carrier raw")];
    let Ok(guard) = tokio::task::spawn_blocking(move || guard(&sockets)).await else {
        return findings;
    };
    findings.push(guard);
    findings.extend(connections().await);
    findings
}

/// Checks that the kernel does not answer a SYN to a guarded port.
fn guard(sockets: &RawSockets) -> Finding {
    let reserved = match sockets.reserve((Ipv4Addr::LOCALHOST, 0).into()) {
        Ok(reserved) => reserved,
        Err(error) => return Finding::fails(GUARD, format!("cannot reserve a port: {error}")),
    };
    let answer = std::net::TcpStream::connect_timeout(&reserved, SILENCE);
    match answer.map_err(|error| error.kind()) {
        Err(io::ErrorKind::TimedOut) => {
            Finding::passed(GUARD, "the kernel does not answer on guarded ports")
        }
        Err(kind) => {
            Finding::fails(GUARD, format!("the kernel answered on a guarded port: {kind}"))
        }
        Ok(_) => Finding::fails(GUARD, "the kernel accepted a connection to a guarded port"),
    }
}

async fn connections() -> Vec<Finding> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = match Server::builder().carrier(Carrier::Raw).listen(listen).bind().await {
        Ok(listener) => listener,
        Err(error) => {
            let text = format!("{:#}", anyhow::Error::new(error));
            return vec![Finding::fails(PLAIN, text)];
        }
    };
    if let Err(error) = exchange_greeting(&listener, Protocol::TCP).await {
        let text = format!(
            "a connection over loopback fails ({error}): does a firewall rule drop input on loopback? \
             (nft list ruleset; docs/operate/deploy.md section 6)"
        );
        return vec![Finding::fails(PLAIN, text)];
    }
    let plain = Finding::passed(PLAIN, "works with the kernel's TCP over loopback");
    let multipath = match exchange_greeting(&listener, Protocol::MPTCP).await {
        Ok(true) => Finding::passed(MULTIPATH, "works with the kernel's Multipath TCP"),
        Ok(false) => Finding::note(
            MULTIPATH,
            "the kernel supports it but used plain TCP, as will this machine's programs",
        ),
        Err(error) => Finding::note(
            MULTIPATH,
            format!("not supported by this kernel ({error}); Marline does not need it"),
        ),
    };
    vec![plain, multipath]
}

/// Exchanges some bytes with the kernel over a connection. Returns true if it was Multipath TCP.
async fn exchange_greeting(listener: &Server, protocol: Protocol) -> io::Result<bool> {
    let address = listener.local_addrs()[0];
    let kernel = tokio::task::spawn_blocking(move || kernel_side(address, protocol));
    let ours = async {
        let (mut stream, _) = listener.accept().await.ok_or(io::ErrorKind::NotConnected)?;
        let mut asked = [0; 4];
        stream.read_exact(&mut asked).await?;
        stream.write_all(b"pong").await?;
        let multipath = stream.fallback().is_none();
        stream.shutdown().await?;
        io::Result::Ok(multipath)
    };
    tokio::select! {
        greeted = timeout(TIMEOUT, ours) => greeted.map_err(|_| io::ErrorKind::TimedOut)?,
        // The kernel's side failed before the connection was made.
        failed = failure(kernel) => Err(failed),
    }
}

/// Resolves if the kernel's side fails.
async fn failure(kernel: tokio::task::JoinHandle<io::Result<()>>) -> io::Error {
    match kernel.await {
        Ok(Ok(())) => std::future::pending().await,
        Ok(Err(error)) => error,
        Err(error) => io::Error::other(error),
    }
}

fn kernel_side(address: SocketAddr, protocol: Protocol) -> io::Result<()> {
    let mut socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
    socket.connect_timeout(&address.into(), TIMEOUT)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.write_all(b"ping")?;
    let mut answer = [0; 4];
    socket.read_exact(&mut answer)
}
