//! Benchmark of parsing, emitting and checksumming the segments of a bulk transfer.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use marline_wire::mptcp::{DataAck, Dss, MpCapable, MpCapableForm, MptcpOption};
use marline_wire::mptcp::{WireDsn, WireMapping};
use marline_wire::{
    Checksum, SackBlock, SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps,
    verify_tcp_checksum,
};

fn header() -> TcpHeader {
    TcpHeader {
        src_port: 40_000,
        dst_port: 443,
        seq: SeqNum(1_000_000),
        ack: SeqNum(2_000_000),
        flags: TcpFlags::ACK,
        window: 1024,
        urgent: 0,
    }
}

fn data_options() -> TcpOptions {
    TcpOptions {
        timestamps: Some(Timestamps { value: 123, echo: 456 }),
        dss: Some(Dss {
            data_ack: Some(DataAck::Short(77)),
            mapping: Some(WireMapping {
                dsn: WireDsn::Long(1 << 40),
                ssn: 5,
                length: 1400,
                checksum: None,
            }),
            data_fin: false,
        }),
        ..TcpOptions::default()
    }
}

fn ack_options() -> TcpOptions {
    let mut options = TcpOptions {
        timestamps: Some(Timestamps { value: 123, echo: 456 }),
        dss: Some(Dss { data_ack: Some(DataAck::Short(77)), ..Dss::default() }),
        ..TcpOptions::default()
    };
    options.sack.push(SackBlock { left: SeqNum(10), right: SeqNum(20) });
    options
}

fn syn_options() -> TcpOptions {
    let mut options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 123, echo: 0 }),
        ..TcpOptions::default()
    };
    options.mptcp.push(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form: MpCapableForm::Syn,
    }));
    options
}

fn codec(c: &mut Criterion) {
    for (name, options, payload) in
        [("data", data_options(), 1400), ("ack", ack_options(), 0), ("syn", syn_options(), 0)]
    {
        let mut bytes = vec![0x5a; 60 + payload];
        let len = header().emit(&options, &mut bytes).expect("fits");
        bytes.truncate(len + payload);
        c.bench_function(&format!("parse {name}"), |b| {
            b.iter(|| {
                let segment = TcpSegment::parse(black_box(&bytes)).expect("parses");
                black_box((segment.header.seq, segment.options.dss, segment.payload.len()))
            });
        });
        let (header, mut out) = (header(), [0; 60]);
        c.bench_function(&format!("emit {name}"), |b| {
            b.iter(|| black_box(&header).emit(black_box(&options), black_box(&mut out)));
        });
    }
}

fn checksum(c: &mut Criterion) {
    let src = vec![0x5a; 1400];
    let mut dst = vec![0; 1400];
    let mut group = c.benchmark_group("checksum");
    group.throughput(Throughput::Bytes(src.len() as u64));
    group.bench_function("sum 1400", |b| b.iter(|| Checksum::of(black_box(&src)).sum16()));
    group.bench_function("copy and sum 1400", |b| {
        b.iter(|| {
            let mut sum = Checksum::new();
            sum.copy_and_add(black_box(&mut dst), black_box(&src));
            sum.sum16()
        });
    });
    group.bench_function("copy alone 1400", |b| {
        b.iter(|| black_box(&mut dst).copy_from_slice(black_box(&src)));
    });
    let ends = (IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST));
    group.bench_function("verify segment 1400", |b| {
        b.iter(|| verify_tcp_checksum(Some(black_box(ends)), black_box(&src)));
    });
    let large = vec![0x5a; 65_536];
    group.throughput(Throughput::Bytes(large.len() as u64));
    group.bench_function("sum 65536", |b| b.iter(|| Checksum::of(black_box(&large)).sum16()));
    group.finish();
}

criterion_group!(benches, codec, checksum);
criterion_main!(benches);
