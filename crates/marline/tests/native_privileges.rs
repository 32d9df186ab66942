//! Tests of raw sockets after the capabilities are dropped: an unprivileged process communicates with the kernel,
//! reserves more ports, and uses an interface that did not exist before the drop.
//!
//! Capabilities belong to threads, so this test has its own `main` instead of the harness.

#[path = "it/support/mod.rs"]
mod support;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use marline::advanced::RawSockets;
use marline::{Carrier, Client, Server, Stream};
use support::machines::{near_counter, on_two_machines, role};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SERVER: &str = "10.1.0.2:7000";
/// Number of connections, more than the ports that are initially reserved.
const CONNECTIONS: usize = 40;

fn main() {
    if let Some("dropped") = role().as_deref() {
        return dropped();
    }
    on_two_machines(|mut far| {
        far.cable(1);
        far.serve(SERVER, true);
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.env(support::machines::ROLE, "dropped").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Dropped::start(&mut child);
        child.hear("connected");
        far.cable(2);
        child.hear("joined");
        far.start_client("10.1.0.1:80".parse().unwrap(), 10_000, true);
        assert_eq!(far.client_result(), "ok", "a privileged port, reserved before");
        child.hear("done");
        assert_eq!(near_counter("TcpOutRsts"), 0);
        drop(child);
        println!("test native_privileges ... ok");
    });
}

struct Dropped(Child, BufReader<std::process::ChildStdout>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Dropped {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Dropped(child, lines)
    }

    fn hear(&mut self, word: &str) {
        let mut line = String::new();
        assert!(self.1.read_line(&mut line).unwrap() > 0, "it ended before it said `{word}`");
        assert_eq!(line.trim(), word);
    }
}

fn say(word: &str) {
    println!("{word}");
    std::io::stdout().flush().unwrap();
}

/// The process without capabilities.
fn dropped() {
    let (for_client, for_server) = (RawSockets::open().unwrap(), RawSockets::open().unwrap());
    for_server.reserve("10.1.0.1:80".parse().unwrap()).unwrap();
    marline::advanced::drop_capabilities().unwrap();
    let error = RawSockets::open().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "they are gone");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::try_join!(tokio::spawn(connect(for_client)), tokio::spawn(serve(for_server)))
            .unwrap();
    });
    say("done");
}

async fn connect(sockets: RawSockets) {
    let carrier = Carrier::Opened(Arc::new(sockets));
    let client = Client::builder().carrier(carrier).bind().await.unwrap();
    let server: SocketAddr = SERVER.parse().unwrap();
    let mut streams: Vec<Stream> = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = within(client.connect(server)).await.unwrap();
        greet(&mut stream).await;
        streams.push(stream);
    }
    say("connected");
    // The second interface appears: all connections join over it.
    for stream in &mut streams {
        wait_for_subflows(stream, 2).await;
        greet(stream).await;
    }
    say("joined");
}

async fn greet(stream: &mut Stream) {
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    within(stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"hello");
}

async fn serve(sockets: RawSockets) {
    let mut server = Server::builder();
    server.carrier(Carrier::Opened(Arc::new(sockets))).listen("10.1.0.1:80".parse().unwrap());
    let listener = server.bind().await.unwrap();
    let (stream, _) = within(listener.accept()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    within(tokio::io::copy(&mut reader, &mut writer)).await.unwrap();
    writer.shutdown().await.unwrap();
    drop(reader.unsplit(writer));
    assert!(listener.drained(PATIENCE).await);
}
