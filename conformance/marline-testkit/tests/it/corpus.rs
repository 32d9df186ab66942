//! Seeds for the fuzz targets: one of every kind of segment and a few scripts. They are checked
//! here and written to `fuzz/corpus` only on demand (`MARLINE_WRITE_CORPUS=1`).

use std::fs;
use std::path::Path;

use marline_testkit::{Seg, hostile};
use marline_time::{Rng, SeedTree};
use marline_wire::mptcp::{
    AddAddr, CapableData, ExperimentalMessage, Extensions, FastJoinForm, MpCapable, MpCapableForm,
    MpExperimental, MpFail, MpFastclose, MpJoin, MpPrio, MpTcpRst, MptcpOption, RemoveAddr,
};
use marline_wire::{PROTOCOL_TCP, SeqNum, TcpSegment, emit_ip};

fn mptcp_options() -> Vec<MptcpOption> {
    let capable = |form| {
        MptcpOption::Capable(MpCapable {
            version: 1,
            checksum_required: true,
            extensibility: false,
            deny_join_id0: false,
            hmac_sha256: true,
            form,
        })
    };
    let ack = |data| capable(MpCapableForm::Ack { initiator_key: 1, listener_key: 2, data });
    let (backup, address_id, nonce) = (true, 1, 4);
    let message = |message: ExperimentalMessage| MptcpOption::Experimental(message.option());
    let addr = |address: [u8; 16], port, hmac| {
        MptcpOption::AddAddr(AddAddr { address_id, address: address.into(), port, hmac })
    };
    let v4 = MptcpOption::AddAddr(AddAddr {
        address_id,
        address: [10, 0, 0, 1].into(),
        port: Some(80),
        hmac: Some(7),
    });
    vec![
        capable(MpCapableForm::Syn),
        capable(MpCapableForm::SynAck { listener_key: 2 }),
        ack(None),
        ack(Some(CapableData { length: 4, checksum: None })),
        ack(Some(CapableData { length: 4, checksum: Some(5) })),
        MptcpOption::Join(MpJoin::Syn { backup, address_id, token: 3, nonce }),
        MptcpOption::Join(MpJoin::SynAck { backup, address_id, hmac: 6, nonce }),
        MptcpOption::Join(MpJoin::Ack { hmac: [7; 20] }),
        v4,
        addr([1; 16], None, None),
        addr([2; 16], Some(443), Some(8)),
        MptcpOption::RemoveAddr(RemoveAddr::new(&[1, 2, 3]).expect("ids")),
        MptcpOption::Prio(MpPrio { backup }),
        MptcpOption::Fail(MpFail { dsn: 9 }),
        MptcpOption::Fastclose(MpFastclose { receiver_key: 10 }),
        MptcpOption::TcpRst(MpTcpRst { transient: true, reason: 1 }),
        MptcpOption::Experimental(MpExperimental::new(2, &[1, 2, 3]).expect("fits")),
        message(ExperimentalMessage::Hello(Extensions::ALL)),
        message(ExperimentalMessage::Idle),
        message(ExperimentalMessage::RtoInfo { rto_us: 200_000 }),
        message(ExperimentalMessage::FastJoinSyn {
            form: FastJoinForm::Out,
            backup,
            address_id,
            token: 3,
            point: 5,
            hmac: 6,
        }),
        message(ExperimentalMessage::FastJoinSynAck {
            form: FastJoinForm::In,
            backup,
            hmac: 6,
            point: 5,
        }),
    ]
}

fn segments() -> Vec<Vec<u8>> {
    let mut segs: Vec<Seg> =
        mptcp_options().into_iter().map(|option| Seg::ack().mptcp(option)).collect();
    segs.push(Seg::syn().mss(1_400).sack_permitted().window_scale(7).timestamps(1, 0));
    segs.push(Seg::ack().timestamps(1, 2).data_ack(3).mapping(4, 5, 4).payload(b"data"));
    segs.push(Seg::ack().timestamps(1, 2).data_ack(3).mapping(4, 0, 1).data_fin());
    segs.push(Seg::ack().timestamps(1, 2).sack(SeqNum(10), SeqNum(20)).data_ack(3));
    segs.push(Seg::fin());
    segs.push(Seg::rst());
    segs.iter().map(|seg| seg.bytes(None)).collect()
}

fn scripts() -> Vec<Vec<u8>> {
    let mut rng = SeedTree::new(11).stream("scripts");
    let connected = [0, 0, 1, 3, 60, 3, 60];
    let tails: [&[u8]; 6] = [
        // Both ends open the second path urgently, because the first is dead.
        &[0, 16, 0, 13, 0xc3, 3, 60, 0x82, 13, 0xd2, 0x80, 9, 0, 4, 30, 2, 13, 0xc1, 4, 40],
        &[0, 0, 99, 3, 50, 2, 0x82, 0x80, 1, 0, 3, 50, 2],
        &[0, 16, 0, 5, 5, 3, 200, 6, 7, 8, 0, 20, 1, 4, 20],
        &[0, 1, 0, 3, 50, 10, 1, 3, 0, 99, 10, 2, 16, 0, 0, 9, 4, 5],
        &[13, 9, 4, 10, 13, 1, 4, 10, 12, 2, 0x8c, 2, 4, 50],
        &[12, 0, 3, 40],
    ];
    let mut scripts: Vec<Vec<u8>> =
        tails.iter().map(|tail| [&connected[..], tail].concat()).collect();
    scripts.push((0..300).map(|_| rng.next_u32() as u8).collect());
    scripts
}

fn http_heads() -> Vec<Vec<u8>> {
    let heads = [
        "CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a.example:80/b?c HTTP/1.1\r\nHost: a\r\nConnection: x, keep-alive\r\nX: y\r\n\r\n",
        "POST http://a.example/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET",
        "POST http://[::1]:81 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
        "GET /proxy.pac HTTP/1.0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nKeep-Alive: 5\r\nConnection: x\r\nX: y\r\n\r\nabc",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
        "HTTP/1.1 404 \r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    ];
    heads.map(|head| head.as_bytes().to_vec()).into()
}

/// Every kind of segment in an IPv4 packet.
fn packets() -> Vec<Vec<u8>> {
    segments().into_iter().map(|segment| packet(PROTOCOL_TCP, &segment)).collect()
}

fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let ends = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let mut packet = vec![0; 20];
    emit_ip(ends.0, ends.1, protocol, 0, payload.len(), &mut packet).expect("fits");
    packet.extend(payload);
    packet
}

/// Packets preceded by their lengths and a choice of the application's action.
fn tun_packets() -> Vec<Vec<u8>> {
    let udp = [&[1, 2, 3, 4, 0, 12, 0, 0][..], b"abcd"].concat();
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let others = [packet(17, &udp), packet(1, &echo)];
    let mut scripts: Vec<Vec<u8>> = Vec::new();
    for choice in 0..4 {
        let all = packets().into_iter().chain(others.clone());
        scripts.push(all.flat_map(|p| [vec![p.len() as u8, choice], p].concat()).collect());
    }
    scripts
}

/// The seeds of each target, by its name.
fn corpus() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let options = segments().into_iter().map(|segment| [&[0; 7], &segment[20..]].concat());
    vec![
        ("parse_segment", segments()),
        ("roundtrip_options", options.collect()),
        ("ip_packet", packets()),
        ("endpoint_bytes", scripts()),
        ("http_head", http_heads()),
        ("tun_packet", tun_packets()),
    ]
}

#[test]
fn fuzz_targets_accept_their_corpus_seeds() {
    for segment in segments() {
        let parsed = TcpSegment::parse(&segment).expect("a segment");
        assert!(!parsed.options.mptcp.malformed);
    }
    for script in scripts() {
        let outcome = hostile::run(&script);
        assert!(outcome.segments > 0, "{script:?}");
    }
    if std::env::var_os("MARLINE_WRITE_CORPUS").is_none() {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the checkout");
    for (target, seeds) in corpus() {
        let dir = root.join("fuzz/corpus").join(target);
        fs::create_dir_all(&dir).expect("a writable checkout");
        for (i, seed) in seeds.iter().enumerate() {
            fs::write(dir.join(format!("seed-{i:02}")), seed).expect("a writable checkout");
        }
    }
}
