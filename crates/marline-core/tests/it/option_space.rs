//! Tests of the 40-byte option space: combinations of options in one segment when everything is enabled.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use marline_core::{ConnectionConfig, Event, Extensions, ReceiveTimer, SubflowState};
use marline_policy::{AddressId, LocalAddress};
use marline_testkit::{Pair, Seg, SegmentOutcome, Side, config, endpoint_config};
use marline_time::{Rng, SeedTree};
use marline_wire::TcpFlags;
use marline_wire::mptcp::{ExperimentalMessage, MptcpOption};

fn ip(net: u16, host: u16) -> IpAddr {
    Ipv6Addr::new(0x2001, 0xdb8, net, 0, 0, 0, 0, host).into()
}

/// Checksums, the extensions, and three IPv6 addresses; those of the server are announced, with their own port.
fn everything_on(host: u16) -> ConnectionConfig {
    let mut config = config();
    config.dss_checksum = true;
    config.ecn = true;
    if host == 2 {
        config.extensions = Extensions::ALL;
        config.receive_timer = Some(ReceiveTimer::with_probes());
    }
    let local = [0u16, 1, 2].map(|net| LocalAddress {
        id: AddressId(net as u8),
        address: SocketAddr::new(ip(net, host), if host == 1 && net > 0 { 8_443 } else { 0 }),
        remote: None,
        nat64: None,
        backup: net == 2,
        signal: host == 1 && net > 0,
        subflow: host != 1,
        up: true,
        cost: marline_policy::PathCost::NONE,
        link: 0,
    });
    config.local_addresses = local.to_vec();
    config
}

/// Names of a segment's options.
fn kinds(seg: &Seg) -> String {
    let options = &seg.options;
    let flags = seg.header.flags;
    let mut words = vec![if flags.contains(TcpFlags::SYN) { "SYN" } else { "-" }];
    words.extend(options.timestamps.map(|_| "TS"));
    words.extend((!options.sack.as_slice().is_empty()).then_some("SACK"));
    words.extend(options.dss.map(|d| if d.mapping.is_some() { "DSS" } else { "DATA_ACK" }));
    words.extend(options.mptcp.iter().map(|option| match option {
        MptcpOption::Capable(_) => "MP_CAPABLE",
        MptcpOption::Join(_) => "MP_JOIN",
        MptcpOption::AddAddr(a) if a.hmac.is_none() => "ADD_ADDR echo",
        MptcpOption::AddAddr(a) if a.port.is_some() => "ADD_ADDR with port",
        MptcpOption::AddAddr(_) => "ADD_ADDR",
        MptcpOption::RemoveAddr(_) => "REMOVE_ADDR",
        MptcpOption::Prio(_) => "MP_PRIO",
        MptcpOption::Fail(_) => "MP_FAIL",
        MptcpOption::Fastclose(_) => "MP_FASTCLOSE",
        MptcpOption::TcpRst(_) => "MP_TCPRST",
        MptcpOption::Experimental(option) => match ExperimentalMessage::parse(&option) {
            Some(ExperimentalMessage::Idle) => "MP_IDLE",
            Some(ExperimentalMessage::Hello(_)) => "HELLO",
            _ => "other",
        },
    }));
    words.join(" ")
}

#[test]
fn nothing_beyond_forty_bytes_leaves_and_nothing_is_lost_for_lack_of_room() {
    let server = endpoint_config(Some(everything_on(1)));
    let mut pair = Pair::new(endpoint_config(None), server, 1);
    let now = pair.now();
    let (from, to) = (SocketAddr::new(ip(0, 2), 0), SocketAddr::new(ip(0, 1), 443));
    let client = pair.endpoint(Side::A).connect(now, everything_on(2), from, to).expect("room");
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut rng = SeedTree::new(1).stream("loss");
    let mut served = None;
    let (mut written, mut read) = (0usize, 0usize);
    let end = pair.now() + Duration::from_secs(20);
    let mut most = 0;
    loop {
        let events = pair.gather(&mut |flight| {
            let seg = Seg::parse(&flight.bytes).expect("a segment");
            assert!(!seg.options.mptcp.malformed, "{:?}", seg.options);
            let header = flight.bytes.len() - seg.payload.len();
            assert!(header <= 60 && seg.options.fits_header());
            most = most.max(flight.bytes.len());
            let len = seen.entry(kinds(&seg)).or_default();
            *len = (*len).max(header - 20);
            match rng.below(50) {
                0 => SegmentOutcome::Drop,
                late => SegmentOutcome::Arrive(Duration::from_millis(10 + late % 7)),
            }
        });
        for (side, event) in events {
            if let (Side::B, Event::Incoming(id)) = (side, event) {
                served = Some(id);
            }
        }
        let now = pair.now();
        written += pair.endpoint(Side::A).write(now, client, &[1; 4_096]).unwrap_or(0);
        if let Some(id) = served {
            let mut out = [0; 8_192];
            read += pair.endpoint(Side::B).read(now, id, &mut out).unwrap_or(0);
            if rng.below(20) == 0 {
                let _ = pair.endpoint(Side::B).write(now, id, &[2; 3_000]);
            }
            let _ = pair.endpoint(Side::A).read(now, client, &mut out);
        }
        if !pair.step(end) {
            break;
        }
    }
    for (kinds, len) in &seen {
        println!("{len:2} bytes: {kinds}");
    }
    println!("largest segment {most} bytes; {read} of {written} bytes read");
    let has = |what: &str| seen.keys().any(|k| k.contains(what));
    for what in [
        "SYN TS MP_JOIN",
        "TS SACK DATA_ACK",
        "TS DSS",
        "ADD_ADDR with port",
        "echo",
        "MP_IDLE",
        "HELLO",
    ] {
        assert!(has(what), "{what}: {:?}", seen.keys());
    }
    // The announcement arrived although there was no room for timestamps next to it: every address of the client is
    // joined with every address of the server, within the limit on slots.
    let info = pair.endpoint(Side::A).info(client).expect("the connection exists");
    let to_announced = |s: &&marline_core::SubflowInfo| s.path.remote.port() == 8_443;
    let joined = info.subflows.iter().filter(to_announced);
    assert!(
        joined.clone().count() >= 2 && joined.clone().all(|s| s.state == SubflowState::Established),
        "{:#?}",
        info.subflows.iter().map(|s| (s.path, s.state)).collect::<Vec<_>>()
    );
    assert!(read > 100_000, "{read}");
}
