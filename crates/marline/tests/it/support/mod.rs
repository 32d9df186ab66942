//! Support for the loopback tests: both ends, a relay that can be cut and moved, and test data.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

pub mod machines;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use marline::{Client, ClientBuilder, Server, ServerBuilder, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// Timeout: nothing in these tests takes this long unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub async fn server(shards: usize) -> Server {
    server_with(shards, |_| {}).await
}

pub async fn server_with(shards: usize, change: impl FnOnce(&mut ServerBuilder)) -> Server {
    let mut server = Server::builder();
    server.shards(shards);
    change(&mut server);
    if server.listen_addrs().is_empty() {
        server.listen("127.0.0.1:0".parse().unwrap());
    }
    server.bind().await.unwrap()
}

pub async fn client(paths: &[&str]) -> Client {
    client_with(paths, |_| {}).await
}

pub async fn client_with(paths: &[&str], change: impl FnOnce(&mut ClientBuilder)) -> Client {
    let mut client = Client::builder();
    client.paths(paths.iter().map(|path| path.parse().unwrap()));
    change(&mut client);
    client.bind().await.unwrap()
}

/// Both ends of a new connection.
pub async fn pair(client: &Client, listener: &Server) -> (Stream, Stream) {
    pair_at(client, listener, listener.local_addr()).await
}

pub async fn pair_at(client: &Client, listener: &Server, at: SocketAddr) -> (Stream, Stream) {
    let (near, far) = within(async { tokio::join!(client.connect(at), listener.accept()) }).await;
    (near.unwrap(), far.unwrap().0)
}

/// Fails a test instead of letting it hang.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("timed out")
}

/// Random bytes.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    use marline_time::Rng as _;
    let mut rng = marline_time::PcgRng::new(seed, 1);
    let mut bytes = vec![0; len];
    for word in bytes.chunks_mut(8) {
        let random = rng.next_u64().to_le_bytes();
        word.copy_from_slice(&random[..word.len()]);
    }
    bytes
}

/// Writes everything and ends the stream.
pub async fn send(stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
}

/// Reads to the end.
pub async fn receive(stream: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    all
}

/// Waits until a connection has this many established subflows.
pub async fn wait_for_subflows(stream: &Stream, count: usize) {
    within(async {
        loop {
            let info = stream.info().expect("the connection lives");
            let up = info.subflows.iter();
            let up = up.filter(|s| s.state == marline::monitor::SubflowState::Established).count();
            if up >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Relay between one client socket and a server, like a path or a NAT.
pub struct Relay {
    pub address: SocketAddr,
    cut: Arc<AtomicBool>,
    rebind: Arc<Notify>,
    lose: Arc<AtomicU64>,
    pub to_server: Arc<AtomicU64>,
    pub to_client: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub async fn to(server: SocketAddr) -> Relay {
        let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = near.local_addr().unwrap();
        let cut = Arc::new(AtomicBool::new(false));
        let rebind = Arc::new(Notify::new());
        let lose = Arc::new(AtomicU64::new(0));
        let (to_server, to_client) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let task = tokio::spawn(relay(
            near,
            server,
            Arc::clone(&cut),
            Arc::clone(&rebind),
            Arc::clone(&lose),
            [Arc::clone(&to_server), Arc::clone(&to_client)],
        ));
        Relay { address, cut, rebind, lose, to_server, to_client, task }
    }

    /// Drops everything from now on, silently.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub fn restore(&self) {
        self.cut.store(false, Ordering::Relaxed);
    }

    /// Drops one in `count` of the larger datagrams to the server from now on; 0 for none.
    pub fn lose_every(&self, count: u64) {
        self.lose.store(count, Ordering::Relaxed);
    }

    /// Rebinds like a NAT that lost its table: the server sees the client at a new port from now on.
    pub fn rebind(&self) {
        self.rebind.notify_one();
    }
}

async fn relay(
    near: UdpSocket,
    server: SocketAddr,
    cut: Arc<AtomicBool>,
    rebind: Arc<Notify>,
    lose: Arc<AtomicU64>,
    [to_server, to_client]: [Arc<AtomicU64>; 2],
) {
    let mut far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut client = None;
    let (mut up, mut down) = (vec![0; 65_536], vec![0; 65_536]);
    let mut large = 0;
    loop {
        tokio::select! {
            () = rebind.notified() => far = UdpSocket::bind("127.0.0.1:0").await.unwrap(),
            got = near.recv_from(&mut up) => {
                let Ok((len, from)) = got else { continue };
                client = Some(from);
                large += u64::from(len > 500);
                let every = lose.load(Ordering::Relaxed);
                if every > 0 && len > 500 && large % every == 0 {
                    continue;
                }
                if !cut.load(Ordering::Relaxed) {
                    to_server.fetch_add(len as u64, Ordering::Relaxed);
                    let _ = far.send_to(&up[..len], server).await;
                }
            }
            got = far.recv_from(&mut down) => {
                let (Ok((len, _)), Some(client)) = (got, client) else { continue };
                if !cut.load(Ordering::Relaxed) {
                    to_client.fetch_add(len as u64, Ordering::Relaxed);
                    let _ = near.send_to(&down[..len], client).await;
                }
            }
        }
    }
}
