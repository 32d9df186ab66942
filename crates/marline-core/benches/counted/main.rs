//! Instructions of the core's hot paths, counted by valgrind: `cargo xtask bench`.
//!
//! A case's name ends with the divisor of its count: `one_88_segments` processes 88 segments. Setup and teardown,
//! which checks the result, are not counted. Nothing here is random: time is virtual, and seeds are constants.
#![allow(missing_docs, reason = "the macros of the harness turn the cases into public items")]

mod harness;
#[path = "../streams/mod.rs"]
#[expect(dead_code, reason = "other benches use the rest")]
mod streams;

use std::hint::black_box;

use gungraun::prelude::*;
use marline_algos::Registry;
use marline_policy::{Scheduler, SubflowView};
use marline_testkit::views::{Stream, full, view};
use marline_wire::mptcp::{DataAck, Dss, WireDsn, WireMapping};
use marline_wire::{SackBlock, SeqNum, TcpFlags, TcpHeader, TcpOptions, TcpSegment, Timestamps};
use streams::{AUTO, BY_TURNS, Captured, MIN_RTT, ONE, Pair, PlainTcp, Setting};

/// Two batches, and about as much as the application writes at a time in the other benches.
const SEGMENTS: usize = 88;
const CALLS: usize = 100;
/// Bytes transferred before the measurement, so that windows and buffers reach their final size.
const WARM_UP_BYTES: u64 = 8_000_000;

fn warm(setting: Setting) -> Pair {
    let mut pair = Pair::connect(1, setting);
    pair.transfer(WARM_UP_BYTES, |_, _| ());
    pair
}

/// A pair whose data is written but not sent.
fn written(setting: Setting) -> Pair {
    let mut pair = warm(setting);
    pair.write_segments(SEGMENTS);
    pair
}

/// A pair and the number of segments that it has sent.
struct Sent {
    _pair: Pair,
    segments: usize,
}

fn all_sent(sent: Sent) {
    assert_eq!(sent.segments, SEGMENTS);
}

#[library_benchmark(teardown = all_sent)]
#[bench::one_88_segments(args = (ONE), setup = written)]
#[bench::by_turns_88_segments(args = (BY_TURNS), setup = written)]
fn segment_out(mut pair: Pair) -> Sent {
    let segments = pair.send_to_nowhere(SEGMENTS);
    Sent { _pair: pair, segments }
}

/// A pair and segments in flight.
struct OnTheWay {
    pair: Pair,
    segments: Captured,
}

/// A pair whose data is in flight.
fn sent(setting: Setting) -> OnTheWay {
    let mut pair = written(setting);
    let data = pair.capture_data(SEGMENTS);
    assert_eq!(data.segments(), SEGMENTS);
    OnTheWay { pair, segments: data }
}

fn all_received(state: OnTheWay) {
    let bytes = state.segments.payload_bytes();
    assert_eq!(state.pair.readable_and_unacknowledged(), (bytes, bytes));
}

#[library_benchmark(teardown = all_received)]
#[bench::one_88_segments(args = (ONE), setup = sent)]
#[bench::by_turns_88_segments(args = (BY_TURNS), setup = sent)]
fn segment_in(mut state: OnTheWay) -> OnTheWay {
    state.pair.server_takes(&state.segments);
    state
}

/// ACKs in flight, one per two segments.
fn acknowledged(setting: Setting) -> OnTheWay {
    let OnTheWay { mut pair, segments: data } = sent(setting);
    let acks = pair.capture_acks(&data);
    // In a turn with an odd number of segments, the last one is acknowledged later.
    assert!(acks.segments().abs_diff(SEGMENTS / 2) <= 1, "{}", acks.segments());
    OnTheWay { pair, segments: acks }
}

fn all_acknowledged(state: OnTheWay) {
    assert_eq!(state.pair.readable_and_unacknowledged().1, 0);
}

#[library_benchmark(teardown = all_acknowledged)]
#[bench::one_44_acks(args = (ONE), setup = acknowledged)]
#[bench::by_turns_44_acks(args = (BY_TURNS), setup = acknowledged)]
fn ack_in(mut state: OnTheWay) -> OnTheWay {
    state.pair.client_takes(&state.segments);
    state
}

// A whole transfer: write, segments out and in, read, ACKs out and in.
#[library_benchmark]
#[bench::one_1_megabyte(args = (ONE), setup = warm)]
#[bench::by_turns_1_megabyte(args = (BY_TURNS), setup = warm)]
#[bench::min_rtt_1_megabyte(args = (MIN_RTT), setup = warm)]
#[bench::auto_1_megabyte(args = (AUTO), setup = warm)]
fn transfer(mut pair: Pair) -> Pair {
    pair.transfer(1_000_000, |_, _| ());
    pair
}

fn warm_smoltcp() -> PlainTcp {
    let mut pair = PlainTcp::connect();
    pair.transfer(WARM_UP_BYTES, |_, _| ());
    pair
}

// The same transfer over smoltcp's TCP.
#[library_benchmark]
#[bench::smoltcp_1_megabyte(setup = warm_smoltcp)]
fn transfer_beside(mut pair: PlainTcp) -> PlainTcp {
    pair.transfer(1_000_000, |_, _| ());
    pair
}

/// A scheduler, and subflows of which all but the last are full.
struct Choice {
    scheduler: Box<dyn Scheduler>,
    subflows: Vec<SubflowView>,
    stream: Stream,
    /// Number of decisions to send data.
    chosen: usize,
}

fn choice(name: &str, subflows: u8) -> Choice {
    let scheduler = Registry::default().scheduler(name).expect("a built-in scheduler");
    let mut views: Vec<SubflowView> =
        (0..subflows).map(|id| full(view(id, 10 + 5 * u64::from(id)))).collect();
    let last = subflows - 1;
    views[usize::from(last)] = view(last, 10 + 5 * u64::from(last));
    let stream = Stream::new(10_000_000);
    Choice { scheduler: scheduler.build(), subflows: views, stream, chosen: 0 }
}

fn all_chosen(choice: Choice) {
    assert_eq!(choice.chosen, CALLS, "{:?}", choice.scheduler);
}

#[library_benchmark(teardown = all_chosen)]
#[bench::min_rtt_of_2_100_decisions(args = ("min-rtt", 2), setup = choice)]
#[bench::min_rtt_of_8_100_decisions(args = ("min-rtt", 8), setup = choice)]
#[bench::auto_of_2_100_decisions(args = ("auto", 2), setup = choice)]
#[bench::auto_of_8_100_decisions(args = ("auto", 8), setup = choice)]
fn schedule(mut choice: Choice) -> Choice {
    let mut chosen = 0;
    for _ in 0..CALLS {
        let context = choice.stream.context(black_box(&choice.subflows));
        let decision = choice.scheduler.next_send(&context);
        chosen += usize::from(black_box(decision).data().is_some());
    }
    choice.chosen = chosen;
    choice
}

/// A segment, as fields and as bytes.
struct OnWire {
    header: TcpHeader,
    options: TcpOptions,
    bytes: Vec<u8>,
}

/// A segment of a bulk transfer.
fn data() -> OnWire {
    let mapping = WireMapping { dsn: WireDsn::Short(77), ssn: 5, length: 1428, checksum: None };
    let dss = Dss { data_ack: Some(DataAck::Short(77)), mapping: Some(mapping), ..Dss::default() };
    on_wire(TcpOptions { dss: Some(dss), ..TcpOptions::default() }, 1428)
}

/// An ACK while data is missing.
fn ack() -> OnWire {
    let dss = Dss { data_ack: Some(DataAck::Short(77)), ..Dss::default() };
    let mut options = TcpOptions { dss: Some(dss), ..TcpOptions::default() };
    options.sack.push(SackBlock { left: SeqNum(10), right: SeqNum(20) });
    on_wire(options, 0)
}

fn on_wire(options: TcpOptions, payload: usize) -> OnWire {
    let options = TcpOptions { timestamps: Some(Timestamps { value: 123, echo: 456 }), ..options };
    let header = TcpHeader {
        src_port: 40_000,
        dst_port: 443,
        seq: SeqNum(1_000_000),
        ack: SeqNum(2_000_000),
        flags: TcpFlags::ACK,
        window: 1024,
        urgent: 0,
    };
    let mut bytes = vec![0x5a; 60 + payload];
    let length = header.emit(&options, &mut bytes).expect("the packet fits");
    bytes.truncate(length + payload);
    OnWire { header, options, bytes }
}

#[library_benchmark]
#[bench::data_100_calls(setup = data)]
#[bench::ack_100_calls(setup = ack)]
fn parse(segment: OnWire) -> OnWire {
    for _ in 0..CALLS {
        let parsed = TcpSegment::parse(black_box(&segment.bytes)).expect("it is well-formed");
        black_box(&parsed);
    }
    segment
}

#[library_benchmark]
#[bench::data_100_calls(setup = data)]
#[bench::ack_100_calls(setup = ack)]
fn emit(segment: OnWire) -> OnWire {
    let mut out = [0; 60];
    for _ in 0..CALLS {
        let length =
            black_box(&segment.header).emit(black_box(&segment.options), black_box(&mut out));
        black_box(length.expect("the packet fits"));
    }
    segment
}

library_benchmark_group!(
    name = paths,
    benchmarks =
        [segment_out, segment_in, ack_in, transfer, transfer_beside, schedule, parse, emit]
);

main!(config = harness::config(), library_benchmark_groups = paths);
