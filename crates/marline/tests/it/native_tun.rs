//! Tests of Marline as a separate host behind TUN interfaces, routed by the kernel of its machine, against a kernel on
//! another machine, in both roles.

use std::net::{IpAddr, SocketAddr};

use super::support::machines::{Far, near_counter, near_ip, on_two_machines};
use super::support::*;
use marline::config::{ServerAddress, TunPath};
use marline::{Carrier, Server};
use marline_testkit::need;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BYTES: usize = 3_000_000;

/// Creates two interfaces, each with Marline as the host behind it, and routes from there to the far machine.
fn tuns(far: &Far) -> Option<Vec<TunPath>> {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_err() {
        need::skip("/dev/net/tun cannot be opened");
        return None;
    }
    let mut paths = Vec::new();
    for n in 1..=2 {
        far.cable(n);
        near_ip(&format!("tuntap add mode tun name tun{n}"));
        near_ip(&format!("addr add 10.9.{n}.1/24 dev tun{n}"));
        near_ip(&format!("link set tun{n} up"));
        // Each path has its own route, as with policy routing on machines with two networks.
        near_ip(&format!("rule add from 10.9.{n}.2 lookup 10{n}"));
        near_ip(&format!("route add default via 10.{n}.0.2 table 10{n}"));
        far.ip(&format!("route add 10.9.{n}.0/24 via 10.{n}.0.1"));
        let address: IpAddr = format!("10.9.{n}.2").parse().unwrap();
        paths.push(TunPath::new(format!("tun{n}"), address));
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    Some(paths)
}

#[test]
fn a_host_behind_tun_speaks_to_the_kernel_in_both_roles() {
    on_two_machines(|mut far| {
        let Some(paths) = tuns(&far) else { return };
        let server = far.serve("10.1.0.2:7000", true);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let carrier = Carrier::Tun(paths.clone());
            {
                let client = client_with(&[], |config| {
                    config.carrier(carrier.clone());
                    config.transport_mut().time_wait(marline::time::Duration::from_millis(200));
                })
                .await;
                let mut stream = within(client.connect(server)).await.unwrap();
                stream.write_all(b"!").await.unwrap();
                within(stream.read_exact(&mut [0; 1])).await.unwrap();
                wait_for_subflows(&stream, 2).await;
                let sent = bytes(BYTES, 5);
                let (mut reader, mut writer) = tokio::io::split(stream);
                let (written, got) =
                    tokio::join!(send_all(&mut writer, &sent), receive(&mut reader));
                written.unwrap();
                assert!(got == sent, "{} bytes came back", got.len());
                drop(reader.unsplit(writer));
                assert!(client.drained(PATIENCE).await);
            }
            // An interface has one user: it is free again when the client has ended, including TIME-WAIT.
            let listener = within(listen_again(&carrier)).await;
            far.start_client("10.9.1.2:80".parse().unwrap(), BYTES, true);
            let (stream, peer) = within(listener.accept()).await.unwrap();
            assert_eq!((stream.fallback(), stream.peer_addr()), (None, peer));
            let (mut reader, mut writer) = tokio::io::split(stream);
            within(tokio::io::copy(&mut reader, &mut writer)).await.unwrap();
            writer.shutdown().await.unwrap();
            drop(reader.unsplit(writer));
            assert_eq!(tokio::task::block_in_place(|| far.client_result()), "ok");
        });
        assert_eq!(near_counter("TcpOutRsts"), 0);
        assert!(far.counter("MPTcpExtAddAddr") >= 1);
    });
}

async fn send_all(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    writer.write_all(bytes).await?;
    writer.shutdown().await
}

async fn listen_again(carrier: &Carrier) -> Server {
    loop {
        let mut server = Server::builder();
        let second = SocketAddr::new("10.9.2.2".parse().unwrap(), 0);
        server.carrier(carrier.clone()).listen("0.0.0.0:80".parse().unwrap());
        match server.announce(ServerAddress::new(second)).bind().await {
            Ok(listener) => return listener,
            Err(marline::BindError::Io { source, .. })
                if source.kind() == std::io::ErrorKind::ResourceBusy =>
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
