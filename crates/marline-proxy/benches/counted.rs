//! Instructions of the proxy's relay, counted by valgrind: `cargo xtask bench`.
//!
//! The name of a case ends with the divisor of its count. The setup, including the TLS handshake, and the check of
//! the output in the teardown are not counted.
#![allow(missing_docs, reason = "the macros of the harness make public items of the cases")]

#[path = "../../marline-core/benches/counted/harness.rs"]
mod harness;

use std::future::pending;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use gungraun::prelude::*;
use marline_proxy::channel::Channel;
use marline_proxy::relay::{Traffic, relay};
use marline_proxy::tls::{ServerKey, connector, server_name};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

/// Bytes that a relay reads ahead: two full TLS records.
const BLOCK_BYTES: usize = 32 << 10;
const BLOCKS: usize = 8;
/// Capacity of a pipe for all blocks with their TLS overhead.
const PIPE_BYTES: usize = 2 * BLOCKS * BLOCK_BYTES;

type Running = Pin<Box<dyn Future<Output = io::Result<Channel<DuplexStream>>>>>;

/// application <pipe> relay <TLS over a pipe> far end
struct Tunnel {
    application: DuplexStream,
    relay: Running,
    far: Channel<DuplexStream>,
    traffic: Arc<Traffic>,
}

fn tunnel() -> Tunnel {
    let key = ServerKey::generate().expect("random bytes");
    let (near, far) = duplex(PIPE_BYTES);
    let connect = connector(key.pin()).expect("TLS 1.3").connect(server_name(), near);
    let accept = key.acceptor().expect("a usable key").accept(far);
    let (mut connect, mut accept) = (pin!(connect), pin!(accept));
    let (mut near, mut far) = (None, None);
    while near.is_none() || far.is_none() {
        take(&mut near, poll(connect.as_mut()));
        take(&mut far, poll(accept.as_mut()));
    }
    let near = Channel::tls(near.expect("the handshake has finished").expect("a handshake"));
    let far = Channel::tls(far.expect("the handshake has finished").expect("a handshake"));
    let (application, local) = duplex(PIPE_BYTES);
    let traffic = Arc::new(Traffic::default());
    let counted = Arc::clone(&traffic);
    let relay: Running = Box::pin(async move { relay(local, near, &counted, pending()).await });
    let mut tunnel = Tunnel { application, relay, far, traffic };
    // Everything that is created at first use is created here.
    for _ in 0..2 {
        fill(&mut tunnel.application);
        run(&mut tunnel);
        read_all_blocks(&mut tunnel.far);
        fill(&mut tunnel.far);
        run(&mut tunnel);
        read_all_blocks(&mut tunnel.application);
    }
    tunnel
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn take<T>(slot: &mut Option<T>, polled: Poll<T>) {
    if let Poll::Ready(value) = polled {
        *slot = Some(value);
    }
}

/// True if the relay has requested another turn.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the relay until it has nothing to do.
fn run(tunnel: &mut Tunnel) {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    loop {
        let polled = tunnel.relay.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "the relay ended");
        if !woken.0.swap(false, Ordering::Relaxed) {
            return;
        }
    }
}

/// Writes all blocks.
fn fill(stream: &mut (impl AsyncWrite + Unpin)) {
    let mut cx = Context::from_waker(Waker::noop());
    let bytes = vec![0x5a; BLOCKS * BLOCK_BYTES];
    let mut written = 0;
    while written < bytes.len() {
        match Pin::new(&mut *stream).poll_write(&mut cx, &bytes[written..]) {
            Poll::Ready(Ok(count)) => written += count,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(Pin::new(stream).poll_flush(&mut cx), Poll::Ready(Ok(()))));
}

/// Reads all blocks.
fn read_all_blocks(stream: &mut (impl AsyncRead + Unpin)) {
    let mut cx = Context::from_waker(Waker::noop());
    let mut bytes = vec![0; BLOCKS * BLOCK_BYTES];
    let mut free = ReadBuf::new(&mut bytes);
    while free.remaining() > 0 {
        let polled = Pin::new(&mut *stream).poll_read(&mut cx, &mut free);
        assert!(matches!(polled, Poll::Ready(Ok(()))), "{polled:?}");
    }
    assert!(bytes.iter().all(|byte| *byte == 0x5a));
}

fn from_application() -> Tunnel {
    let mut tunnel = tunnel();
    fill(&mut tunnel.application);
    tunnel
}

fn from_far_end() -> Tunnel {
    let mut tunnel = tunnel();
    fill(&mut tunnel.far);
    tunnel
}

fn at_far_end(mut tunnel: Tunnel) {
    read_all_blocks(&mut tunnel.far);
    assert_eq!(tunnel.traffic.counts().1, (3 * BLOCKS * BLOCK_BYTES) as u64);
}

fn at_application(mut tunnel: Tunnel) {
    read_all_blocks(&mut tunnel.application);
    assert_eq!(tunnel.traffic.counts().0, (3 * BLOCKS * BLOCK_BYTES) as u64);
}

#[library_benchmark]
#[bench::encrypt_8_blocks(setup = from_application, teardown = at_far_end)]
#[bench::decrypt_8_blocks(setup = from_far_end, teardown = at_application)]
fn relay_tls(mut tunnel: Tunnel) -> Tunnel {
    run(&mut tunnel);
    tunnel
}

library_benchmark_group!(name = paths, benchmarks = [relay_tls]);

main!(config = harness::config(), library_benchmark_groups = paths);
