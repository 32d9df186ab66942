//! Strangers: floods of SYNs and joins, spoofed sources, noise.

mod support;

use std::time::Duration;

use marline_wire::mptcp::{MpCapable, MpCapableForm, MpJoin, MptcpOption};
use marline_wire::{SeqNum, TcpFlags, TcpHeader, TcpOptions, fill_tcp_checksum};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;

/// A first SYN in a HANDSHAKE frame, as docs/spec/udp-carrier.md section 3 has it.
fn syn(flow: u64, port: u16, option: MptcpOption) -> Vec<u8> {
    let header = TcpHeader {
        src_port: port,
        dst_port: 443,
        seq: SeqNum(flow as u32),
        flags: TcpFlags::SYN,
        window: 65_535,
        ..TcpHeader::default()
    };
    let mut options = TcpOptions { mss: Some(1400), sack_permitted: true, ..TcpOptions::default() };
    assert!(options.mptcp.push(option));
    let mut segment = vec![0; 60];
    let len = header.emit(&options, &mut segment).unwrap();
    segment.truncate(len);
    fill_tcp_checksum(None, &mut segment);
    let mut frame = vec![0x11];
    frame.extend([0; 8]);
    frame.extend(flow.to_be_bytes());
    frame.extend(segment);
    frame
}

fn capable() -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Syn,
    })
}

fn join(token: u32) -> MptcpOption {
    MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 1, token, nonce: 7 })
}

#[tokio::test]
async fn a_spoofed_source_gets_at_most_three_times_what_was_sent_in_its_name() {
    let listener = server(1).await;
    let victim = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut sent = 0;
    for flow in 1..=20u64 {
        let frame = syn(flow << 40 | 77, 9_000 + flow as u16, capable());
        sent += frame.len();
        victim.send_to(&frame, listener.local_addrs()[0]).await.unwrap();
    }
    // The victim never answers: the server's SYN/ACKs are repeated by timers of a second.
    let mut received = 0;
    let mut answers = 0;
    let mut buf = [0; 2_048];
    let listening = async {
        loop {
            received += victim.recv_from(&mut buf).await.unwrap().0;
            answers += 1;
        }
    };
    let _ = tokio::time::timeout(Duration::from_millis(4_000), listening).await;
    assert!(answers >= 20, "the server answers SYNs: {answers}");
    assert!(received <= 3 * sent, "{received} bytes for {sent}");
    assert!(listener.counters()[0].1.withheld > 0, "repetitions were held back");
}

#[tokio::test]
async fn floods_leave_memory_bounded_and_connections_unharmed() {
    const SYN_QUEUE: usize = 64;
    let listener = server_with(1, |c| c.limits = small_limits(|l| l.syn_queue = SYN_QUEUE)).await;
    let address = listener.local_addrs()[0];
    let client = client(&["127.0.0.1", "127.0.0.2"]).await;
    let (mut near, mut far) = pair(&client, &listener).await;
    wait_for_subflows(&near, 2).await;
    let data = bytes(4 << 20, 11);
    let flood = async {
        let stranger = UdpSocket::bind("127.0.0.3:0").await.unwrap();
        let mut noise = bytes(400, 12);
        for n in 0..20_000u64 {
            let option = if n % 2 == 0 { capable() } else { join(n as u32) };
            let frame = syn(n << 32 | 5, n as u16, option);
            stranger.send_to(&frame, address).await.unwrap();
            noise[0] = 0x10 | (n as u8 & 7);
            noise[1..9].copy_from_slice(&n.to_be_bytes());
            stranger.send_to(&noise[..(n % 400) as usize], address).await.unwrap();
            if n % 64 == 0 {
                tokio::task::yield_now().await;
                assert!(listener.connections().len() <= SYN_QUEUE + 1);
            }
        }
    };
    let sending = async {
        near.write_all(&data).await.unwrap();
        near.shutdown().await.unwrap();
    };
    let ((), (), got) = within(async { tokio::join!(flood, sending, receive(&mut far)) }).await;
    assert!(got == data);
    let (core, carrier) = listener.counters()[0];
    assert!(core.mp_capable_syn_rx > 1_000 && core.mp_join_no_token > 1_000, "{core:?}");
    assert!(carrier.malformed > 1_000, "{carrier:?}");
    // And new ones are welcome.
    let (mut near, mut far) = pair(&client, &listener).await;
    near.write_all(b"!").await.unwrap();
    assert_eq!(within(far.read_u8()).await.unwrap(), b'!');
}
