//! Tests of repair by coding in real time: over the UDP carrier with a lossy path, over native TCP, and to a kernel
//! that does not support it.

use std::time::Duration;

use super::support::machines::on_two_machines;
use super::support::*;
use marline::monitor::Extensions;
use marline::{Carrier, Client, ClientBuilder, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BURST: usize = 8_000;
const BURSTS: usize = 200;

fn coded(config: &mut ClientBuilder) {
    config.scheduler("coded").expect("built in").transport_mut().extensions(Extensions::REPAIR);
}

/// Sends bursts with pauses, so that each burst has an end.
async fn send_bursts(writer: &mut (impl AsyncWriteExt + Unpin), data: &[u8]) {
    for burst in data.chunks(BURST) {
        writer.write_all(burst).await.unwrap();
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
}

/// Sends bursts to an echo server and compares the answer.
async fn echoed(client: &Client, mut stream: Stream) {
    stream.write_all(b"!").await.unwrap();
    let mut first = [0; 1];
    within(stream.read_exact(&mut first)).await.unwrap();
    wait_for_subflows(&stream, 2).await;
    let data = bytes(BURST * BURSTS, 3);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut got = vec![0; data.len()];
    let receiving = async { within(reader.read_exact(&mut got)).await.unwrap() };
    tokio::join!(send_bursts(&mut writer, &data), receiving);
    assert!(got == data);
    drop(reader.unsplit(writer));
    assert!(client.drained(Duration::from_secs(10)).await);
}

#[tokio::test]
async fn lost_segments_are_recovered_by_repairs_over_udp() {
    let listener = server(1).await;
    let address = listener.local_addr();
    let (one, two) = (Relay::to(address).await, Relay::to(address).await);
    let paths = [format!("127.0.0.1={}", one.address), format!("127.0.0.2={}", two.address)];
    let client = client_with(&[&paths[0], &paths[1]], coded).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    far.write_all(b"!").await.unwrap();
    let mut first = [0; 1];
    within(near.read_exact(&mut first)).await.unwrap();
    wait_for_subflows(&near, 2).await;
    one.lose_every(10);
    two.lose_every(13);
    let data = bytes(BURST * BURSTS, 2);
    let sending = async {
        send_bursts(&mut near, &data).await;
        near.shutdown().await.unwrap();
    };
    let ((), got) = within(async { tokio::join!(sending, receive(&mut far)) }).await;
    assert!(got == data);
    let (sent, received) = (client.counters().0, listener.counters()[0].0);
    println!("{} repairs, {} bytes recovered", sent.repair_tx, received.repaired_bytes);
    assert!(sent.repair_tx >= BURSTS as u64, "{sent:?}");
    assert!(received.repaired_bytes >= 10 * 1_000, "{received:?}");
    assert_eq!((received.dss_not_matching, received.mp_rst_tx), (0, 0), "{received:?}");
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(work);
}

async fn raw_client() -> Client {
    let native = |config: &mut ClientBuilder| {
        coded(config);
        config.carrier(Carrier::Raw);
    };
    client_with(&["near1", "near2"], native).await
}

#[test]
fn repairs_are_bytes_of_a_subflow_in_native_tcp() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        let server = far.serve_marline("10.1.0.2:7000");
        run(async {
            let client = raw_client().await;
            let stream = within(client.connect(server)).await.unwrap();
            echoed(&client, stream).await;
            let counters = client.counters().0;
            assert!(counters.repair_tx >= BURSTS as u64 / 2, "{counters:?}");
            assert_eq!((counters.mp_rst_rx, counters.dss_not_matching), (0, 0), "{counters:?}");
        });
    });
}

#[test]
fn a_kernel_gets_copies_and_never_a_repair() {
    on_two_machines(|mut far| {
        far.cable(1);
        far.cable(2);
        let server = far.serve("10.1.0.2:7000", true);
        run(async {
            let client = raw_client().await;
            let stream = within(client.connect(server)).await.unwrap();
            assert_eq!(stream.fallback(), None);
            echoed(&client, stream).await;
            let counters = client.counters().0;
            assert!(counters.hello_tx > 0 && counters.hello_rx == 0, "{counters:?}");
            assert_eq!((counters.repair_tx, counters.mp_rst_rx), (0, 0), "{counters:?}");
        });
        assert_eq!(far.counter("MPTcpExtMPJoinAckRx"), 1);
        assert_eq!(far.counter("TcpOutRsts"), 0);
        assert!(far.counter("MPTcpExtDuplicateData") > 0, "copies of the ends of bursts");
    });
}
