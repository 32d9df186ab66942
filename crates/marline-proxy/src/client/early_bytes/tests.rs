use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::EarlyBytes;
use crate::client::leased_connection::Leased;
use crate::client::open::{Open, OpenError};
use crate::client::tunnel::{Connect, Timeouts, Tunnel};
use crate::deadlines::{DeadlineRule, Deadlines};
use crate::server::ServerLimits;
use crate::target::Target;
use crate::testing::{Bench, Bound, Pipe, echo_target};
use crate::transport::Transport;

/// State of one wire, which applies to at most one of the existing connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Wire {
    Whole,
    /// Nothing reaches the server.
    HeldThere,
    /// Nothing reaches the client.
    HeldBack,
    Cut,
}

/// Connects to a bench over controllable wires.
struct Wired {
    bound: Bound,
    wire: watch::Receiver<(usize, Wire)>,
}

impl Connect for Wired {
    type Stream = Pipe;

    async fn connect(&self, own: &[SocketAddr]) -> anyhow::Result<Pipe> {
        let Pipe { inner: far, binding, .. } = self.bound.connect(own).await?;
        let number = self.bound.connects.load(Ordering::Relaxed);
        let (near, inner) = duplex(64 * 1024);
        let wire = self.wire.clone();
        tokio::spawn(async move {
            let ((near_out, near_in), (far_out, far_in)) =
                (tokio::io::split(inner), tokio::io::split(far));
            let mut cut = wire.clone();
            tokio::select! {
                // Held bytes are lost with the wire.
                biased;
                _ = cut.wait_for(|now| *now == (number, Wire::Cut)) => {}
                _ = async { tokio::join!(
                    carry(near_out, far_in, wire.clone(), number, Wire::HeldThere),
                    carry(far_out, near_in, wire, number, Wire::HeldBack),
                ) } => {}
            }
        });
        Ok(Pipe::new(near, binding))
    }
}

/// Carries bytes in one direction of a connection, unless they are held.
async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut wire: watch::Receiver<(usize, Wire)>,
    number: usize,
    held: Wire,
) {
    let mut buffer = [0; 1_024];
    loop {
        let count = from.read(&mut buffer).await.unwrap_or(0);
        let _ = wire.wait_for(|now| *now != (number, held)).await;
        if count == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// A tunnel with one used connection: the second one that it opened.
struct World {
    way: Arc<Tunnel<Wired>>,
    connects: Arc<AtomicUsize>,
    wire: watch::Sender<(usize, Wire)>,
    target: TcpListener,
}

const USED: usize = 2;

impl World {
    async fn new(limits: ServerLimits, deadlines: Deadlines) -> World {
        let (bench, connects) = (Arc::new(Bench::new(limits)), Arc::default());
        let (wire, sees) = watch::channel((0, Wire::Whole));
        let bound = Bound { bench: Arc::clone(&bench), connects: Arc::clone(&connects) };
        let patience = Timeouts { warm: Duration::from_millis(200), ..Timeouts::default() };
        let (pin, token) = (bench.key.pin(), bench.token.clone());
        let wired = Wired { bound, wire: sees };
        let way = Tunnel::with_deadlines(wired, pin, token, patience, deadlines, 0);
        let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let world = World { way: way.unwrap(), connects, wire, target };
        let echo = echo_target().await;
        for _ in 0..USED {
            let mut stream = world.way.open(&echo).await.unwrap();
            stream.shutdown().await.unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
            stream.finish();
        }
        world
    }

    fn say(&self, wire: Wire) {
        self.wire.send_replace((USED, wire));
    }

    fn target(&self) -> Target {
        self.target.local_addr().unwrap().into()
    }

    /// Opens the target for this application. Returns the result, and the number of bytes sent ahead.
    fn open(&self, application: TcpStream) -> Opening {
        let (way, target) = (Arc::clone(&self.way), self.target());
        tokio::spawn(async move {
            let mut ahead = EarlyBytes::new(&application);
            let opened = way.open_behind(&target, Some(&mut ahead)).await;
            let ahead = ahead.finish();
            (opened, ahead, application)
        })
    }

    async fn next_at_target(&self) -> TcpStream {
        let accepted = timeout(Duration::from_secs(5), self.target.accept()).await;
        accepted.expect("a connection arrives").unwrap().0
    }

    async fn nobody_comes(&self) -> bool {
        timeout(Duration::from_millis(50), self.target.accept()).await.is_err()
    }

    fn connects(&self) -> usize {
        self.connects.load(Ordering::Relaxed)
    }
}

type Opening =
    tokio::task::JoinHandle<(Result<Leased<Pipe>, OpenError>, std::io::Result<u64>, TcpStream)>;

/// Both ends of an application's connection, the application's end first.
async fn application() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (theirs, listener.accept().await.unwrap().0)
}

async fn read(stream: &mut (impl AsyncReadExt + Unpin), count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let read = timeout(Duration::from_secs(5), stream.read_exact(&mut bytes)).await;
    read.expect("in time").unwrap();
    bytes
}

#[tokio::test]
async fn early_bytes_reach_the_target_before_its_answer_returns() {
    let world = World::new(ServerLimits::default(), Deadlines::default()).await;
    let (mut theirs, ours) = application().await;
    let said: Vec<u8> = (0..20_000).map(|at| (at % 251) as u8).collect();
    world.say(Wire::HeldBack);
    let opening = world.open(ours);
    theirs.write_all(&said).await.unwrap();
    let mut at_target = world.next_at_target().await;
    assert_eq!(read(&mut at_target, super::MAX_BYTES_AHEAD).await, said[..super::MAX_BYTES_AHEAD]);
    assert!(!opening.is_finished());
    world.say(Wire::Whole);
    let (stream, ahead, mut application) = opening.await.unwrap();
    assert_eq!(ahead.unwrap(), super::MAX_BYTES_AHEAD as u64);
    let rest = read(&mut application, said.len() - super::MAX_BYTES_AHEAD).await;
    let mut stream = stream.unwrap();
    stream.write_all(&rest).await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(read(&mut at_target, rest.len()).await, said[super::MAX_BYTES_AHEAD..]);
    at_target.write_all(b"heard").await.unwrap();
    assert_eq!(read(&mut stream, 5).await, b"heard");
    assert_eq!(world.connects(), USED);
}

#[tokio::test]
async fn an_unstarted_request_is_repeated_with_the_same_bytes() {
    let idle = Duration::from_millis(400);
    let world =
        World::new(ServerLimits { idle, ..ServerLimits::default() }, Deadlines::default()).await;
    let (mut theirs, ours) = application().await;
    world.say(Wire::HeldThere);
    theirs.write_all(b"once").await.unwrap();
    let (stream, ahead, _application) = world.open(ours).await.unwrap();
    assert_eq!((stream.is_ok(), ahead.unwrap(), world.connects()), (true, 4, USED + 1));
    let mut at_target = world.next_at_target().await;
    assert_eq!(read(&mut at_target, 4).await, b"once");
    assert!(world.nobody_comes().await);
    drop(stream);
    assert_eq!(at_target.read(&mut [0]).await.unwrap_or(0), 0, "and no more bytes");
}

#[tokio::test]
async fn possibly_delivered_bytes_are_not_sent_again() {
    let world = World::new(ServerLimits::default(), Deadlines::default()).await;
    let (mut theirs, ours) = application().await;
    world.say(Wire::HeldBack);
    let opening = world.open(ours);
    theirs.write_all(b"once").await.unwrap();
    let mut at_target = world.next_at_target().await;
    assert_eq!(read(&mut at_target, 4).await, b"once");
    // Longer than a request without bytes ahead would wait, because the network may come back.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(!opening.is_finished());
    world.say(Wire::Cut);
    let (stream, ..) = opening.await.unwrap();
    assert!(matches!(stream, Err(OpenError::Server(_))), "{stream:?}");
    assert!(world.nobody_comes().await);
    assert_eq!(world.connects(), USED);
}

#[tokio::test]
async fn an_application_that_is_silent_has_its_request_made_again() {
    for wire in [Wire::HeldBack, Wire::Cut] {
        let world = World::new(ServerLimits::default(), Deadlines::default()).await;
        let (mut theirs, ours) = application().await;
        world.say(wire);
        let (stream, ahead, mut application) = world.open(ours).await.unwrap();
        assert_eq!(
            (stream.is_ok(), ahead.unwrap(), world.connects()),
            (true, 0, USED + 1),
            "{wire:?}"
        );
        theirs.write_all(b"late").await.unwrap();
        assert_eq!(read(&mut application, 4).await, b"late", "it is still there to be read");
    }
}

/// A connection on which nothing was received for long may have failed, and bytes with a deadline need its
/// scheduler.
#[tokio::test]
async fn none_go_ahead_of_a_request_that_is_likely_to_be_repeated_or_has_a_deadline() {
    let within = Duration::from_millis(50);
    for (pause, rules) in [
        (Duration::from_millis(1_100), Vec::new()),
        (Duration::ZERO, vec![DeadlineRule { first: 1, last: u16::MAX, within }]),
    ] {
        let deadlines = Deadlines::default();
        let world = World::new(ServerLimits::default(), deadlines.clone()).await;
        deadlines.change(rules);
        tokio::time::sleep(pause).await;
        let (mut theirs, ours) = application().await;
        theirs.write_all(b"later").await.unwrap();
        let (stream, ahead, mut application) = world.open(ours).await.unwrap();
        assert_eq!((stream.is_ok(), ahead.unwrap(), world.connects()), (true, 0, USED));
        assert_eq!(read(&mut application, 5).await, b"later");
    }
}

#[tokio::test]
async fn an_early_end_is_read_again_and_a_reset_is_reported() {
    let world = World::new(ServerLimits::default(), Deadlines::default()).await;
    let (mut theirs, ours) = application().await;
    theirs.write_all(b"all").await.unwrap();
    theirs.shutdown().await.unwrap();
    world.say(Wire::HeldBack);
    let opening = world.open(ours);
    assert_eq!(read(&mut world.next_at_target().await, 3).await, b"all");
    world.say(Wire::Whole);
    let (stream, ahead, mut ours) = opening.await.unwrap();
    assert_eq!((ahead.unwrap(), ours.read(&mut [0]).await.unwrap()), (3, 0));
    let mut stream = stream.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    stream.finish();

    let (theirs, ours) = application().await;
    world.say(Wire::HeldBack);
    let opening = world.open(ours);
    let _at_target = world.next_at_target().await;
    theirs.set_zero_linger().unwrap();
    drop(theirs);
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.say(Wire::Whole);
    let (stream, ahead, _) = opening.await.unwrap();
    assert!(stream.is_ok() && ahead.is_err(), "{ahead:?}");
}
