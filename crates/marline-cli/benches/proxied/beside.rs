//! Peers for comparison with the proxy: two chained relays over QUIC, two chained stream proxies of nginx, and an
//! echo service.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes,
};

use crate::quic;
use crate::silent;
use crate::support::nginx::nginx;
use crate::support::{Beside, listens};
use marline_testkit::free_address;

/// Environment variable with another role of this program: an end of the relay over QUIC, `near ADDRESS` or `far
/// ADDRESS`, or `echo ADDRESS`, or a share of the idle streams, `silent STREAMS CONCURRENT_STREAMS`.
pub(crate) const ROLE: &str = "MARLINE_BENCH_ROLE";

/// Runs in this role until killed, or until the end of the input. Prints the listening address on a line.
pub(crate) fn play(role: &str) {
    let (role, rest) = role.split_once(' ').expect("two words");
    if role == silent::SHARE {
        let (count, at_once) = rest.split_once(' ').expect("two numbers");
        let [count, at_once] = [count, at_once].map(|number| number.parse().expect("a number"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(silent::share(count, at_once));
    }
    let address: SocketAddr = rest.parse().expect("an address");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match role {
            "near" => near(address).await,
            "far" => far(address).await,
            _ => echo(address).await,
        }
    });
}

/// Echoes all data.
async fn echo(at: SocketAddr) {
    let listener = tokio::net::TcpListener::bind(at).await.expect("a port");
    println!("{}", listener.local_addr().expect("a local address"));
    loop {
        let Ok((mut stream, _)) = listener.accept().await else { continue };
        tokio::spawn(async move {
            let _ = stream.set_nodelay(true);
            let mut buffer = [0; 256];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                if stream.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// An echo service in a separate process, which has its own descriptors. Dropping this ends the process.
pub(crate) struct Echo {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Echo {
    pub(crate) fn start() -> Echo {
        let (process, address) = start("echo 127.0.0.1:0");
        Echo { process, address }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Copies in both directions, with buffers of 64 KiB instead of tokio's 8 KiB.
async fn passed<A, B>(a: &mut A, b: &mut B) -> std::io::Result<(u64, u64)>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    copy_bidirectional_with_sizes(a, b, 64 << 10, 64 << 10).await
}

/// From TCP to QUIC: a stream for each connection.
async fn near(far: SocketAddr) {
    let endpoint = quic::client();
    let connection = endpoint.connect(far, "localhost").expect("an address");
    let connection = connection.await.expect("the far end");
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    println!("{}", listener.local_addr().expect("a local address"));
    while let Ok((mut local, _)) = listener.accept().await {
        let connection = connection.clone();
        tokio::spawn(async move {
            let _ = local.set_nodelay(true);
            let (send, receive) = connection.open_bi().await.expect("a stream");
            let _ = passed(&mut local, &mut tokio::io::join(receive, send)).await;
        });
    }
}

/// From QUIC to TCP.
async fn far(target: SocketAddr) {
    let endpoint = quic::server();
    println!("{}", endpoint.local_addr().expect("a local address"));
    while let Some(arriving) = endpoint.accept().await {
        let Ok(connection) = arriving.await else { continue };
        while let Ok((send, receive)) = connection.accept_bi().await {
            tokio::spawn(async move {
                let target = tokio::net::TcpStream::connect(target).await;
                let mut target = target.expect("the target");
                let _ = target.set_nodelay(true);
                let _ = passed(&mut target, &mut tokio::io::join(receive, send)).await;
            });
        }
    }
}

/// Both ends of the relay over QUIC. Dropping this ends both.
pub(crate) struct Quic {
    ends: [Child; 2],
    /// Address for applications.
    pub(crate) address: SocketAddr,
}

impl Quic {
    /// Returns a relay in front of `target`.
    pub(crate) fn to(target: SocketAddr) -> Quic {
        let (far, at) = start(&format!("far {target}"));
        let (near, address) = start(&format!("near {at}"));
        Quic { ends: [near, far], address }
    }

    pub(crate) fn processes(&self) -> Vec<u32> {
        self.ends.iter().map(Child::id).collect()
    }
}

impl Drop for Quic {
    fn drop(&mut self) {
        for end in &mut self.ends {
            let _ = end.kill();
            let _ = end.wait();
        }
    }
}

fn start(role: &str) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let command = command.env(ROLE, role).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a child process");
    let mut line = String::new();
    let output = child.stdout.take().expect("an output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let address = line.trim().parse().unwrap_or_else(|_| panic!("{role}: no address in {line:?}"));
    (child, address)
}

/// Path of the module in Debian.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Returns a stream proxy in front of `target`, and its address for applications. `None` without the module.
pub(crate) fn front(
    program: &Path,
    dir: &Path,
    name: &str,
    target: SocketAddr,
) -> Option<(Beside, SocketAddr)> {
    if !Path::new(STREAM_MODULE).exists() {
        marline_testkit::need::skip("nginx has no stream module (Debian: libnginx-mod-stream)");
        return None;
    }
    let listen = free_address();
    let server = format!("listen {listen} backlog=4096; proxy_pass {target}; tcp_nodelay on;");
    let (module, text) =
        (format!("load_module {STREAM_MODULE};"), format!("stream {{ server {{ {server} }} }}"));
    let beside = nginx(program, dir, name, &module, &text);
    listens(listen);
    Some((beside, listen))
}

/// Two chained proxies.
pub(crate) fn chained(
    program: &Path,
    dir: &Path,
    name: &str,
    target: SocketAddr,
) -> Option<([Beside; 2], SocketAddr)> {
    let (far, at) = front(program, dir, &format!("{name}-far"), target)?;
    let (near, address) = front(program, dir, &format!("{name}-near"), at)?;
    Some(([near, far], address))
}
