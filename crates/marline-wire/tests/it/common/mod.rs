//! Proptest strategies for headers and options that can be encoded.

use std::net::IpAddr;

use marline_wire::mptcp::{
    AddAddr, CapableData, DataAck, Dss, ExperimentalMessage, Extensions, FastJoinForm, MpCapable,
    MpCapableForm, MpExperimental, MpFail, MpFastclose, MpJoin, MpPrio, MpRepair, MpTcpRst,
    MptcpOption, RemoveAddr, WireDsn, WireMapping,
};
use marline_wire::{SackBlock, SeqNum, TcpFlags, TcpHeader, TcpOptions, Timestamps};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

pub(crate) fn header() -> impl Strategy<Value = TcpHeader> {
    (any::<[u16; 4]>(), any::<[u32; 2]>(), 0u16..0x1000).prop_map(|(words, [seq, ack], flags)| {
        let [src_port, dst_port, window, urgent] = words;
        TcpHeader {
            src_port,
            dst_port,
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags: TcpFlags(flags),
            window,
            urgent,
        }
    })
}

fn capable_form() -> impl Strategy<Value = MpCapableForm> {
    let data = (any::<u16>(), of(any::<u16>()))
        .prop_map(|(length, checksum)| CapableData { length, checksum });
    prop_oneof![
        Just(MpCapableForm::Syn),
        any::<u64>().prop_map(|listener_key| MpCapableForm::SynAck { listener_key }),
        (any::<[u64; 2]>(), of(data)).prop_map(|([initiator_key, listener_key], data)| {
            MpCapableForm::Ack { initiator_key, listener_key, data }
        }),
    ]
}

fn capable() -> impl Strategy<Value = MpCapable> {
    (0u8..16, any::<[bool; 4]>(), capable_form()).prop_map(|(version, [a, b, c, h], form)| {
        MpCapable {
            version,
            checksum_required: a,
            extensibility: b,
            deny_join_id0: c,
            hmac_sha256: h,
            form,
        }
    })
}

fn join() -> impl Strategy<Value = MpJoin> {
    prop_oneof![
        (any::<bool>(), any::<u8>(), any::<[u32; 2]>()).prop_map(
            |(backup, address_id, [token, nonce])| MpJoin::Syn { backup, address_id, token, nonce }
        ),
        (any::<bool>(), any::<u8>(), any::<u64>(), any::<u32>()).prop_map(
            |(backup, address_id, hmac, nonce)| MpJoin::SynAck { backup, address_id, hmac, nonce }
        ),
        any::<[u8; 20]>().prop_map(|hmac| MpJoin::Ack { hmac }),
    ]
}

/// Any message between Marline peers.
pub(crate) fn message() -> impl Strategy<Value = ExperimentalMessage> {
    let form = || prop_oneof![Just(FastJoinForm::In), Just(FastJoinForm::Out)];
    prop_oneof![
        (any::<[u16; 3]>(), any::<[u32; 2]>(), any::<u8>(), any::<Option<u16>>()).prop_map(
            |([ssn, length, span], [dsn, data_ack], row, checksum)| {
                let repair = MpRepair { ssn, length, dsn, span, row, data_ack, checksum };
                ExperimentalMessage::Repair(repair)
            }
        ),
        any::<u16>().prop_map(|bits| ExperimentalMessage::Hello(Extensions(bits))),
        Just(ExperimentalMessage::Idle),
        Just(ExperimentalMessage::RtoRequest),
        any::<u32>().prop_map(|rto_us| ExperimentalMessage::RtoInfo { rto_us }),
        (form(), any::<bool>(), any::<u8>(), any::<[u32; 2]>(), any::<u64>()).prop_map(
            |(form, backup, address_id, [token, point], hmac)| ExperimentalMessage::FastJoinSyn {
                form,
                backup,
                address_id,
                token,
                point,
                hmac,
            }
        ),
        (form(), any::<bool>(), any::<u64>(), any::<u32>()).prop_map(
            |(form, backup, hmac, point)| ExperimentalMessage::FastJoinSynAck {
                form,
                backup,
                hmac,
                point,
            }
        ),
    ]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

/// Any MPTCP option except DSS.
pub(crate) fn mptcp_option() -> impl Strategy<Value = MptcpOption> {
    let add_addr = (any::<u8>(), address(), of(any::<u16>()), of(any::<u64>()))
        .prop_map(|(address_id, address, port, hmac)| AddAddr { address_id, address, port, hmac });
    let remove_addr =
        vec(any::<u8>(), 1..=37).prop_map(|ids| RemoveAddr::new(&ids).expect("1 to 37 ids"));
    let experimental = (0u8..16, vec(any::<u8>(), 0..=37))
        .prop_map(|(flags, bytes)| MpExperimental::new(flags, &bytes).expect("at most 37 bytes"));
    prop_oneof![
        capable().prop_map(MptcpOption::Capable),
        join().prop_map(MptcpOption::Join),
        add_addr.prop_map(MptcpOption::AddAddr),
        remove_addr.prop_map(MptcpOption::RemoveAddr),
        any::<bool>().prop_map(|backup| MptcpOption::Prio(MpPrio { backup })),
        any::<u64>().prop_map(|dsn| MptcpOption::Fail(MpFail { dsn })),
        any::<u64>().prop_map(|receiver_key| MptcpOption::Fastclose(MpFastclose { receiver_key })),
        (any::<bool>(), any::<u8>())
            .prop_map(|(transient, reason)| MptcpOption::TcpRst(MpTcpRst { transient, reason })),
        experimental.prop_map(MptcpOption::Experimental),
        message().prop_map(|message| MptcpOption::Experimental(message.option())),
    ]
}

pub(crate) fn dss() -> impl Strategy<Value = Dss> {
    let ack =
        prop_oneof![any::<u32>().prop_map(DataAck::Short), any::<u64>().prop_map(DataAck::Long)];
    let dsn =
        prop_oneof![any::<u32>().prop_map(WireDsn::Short), any::<u64>().prop_map(WireDsn::Long)];
    let mapping = (dsn, any::<u32>(), any::<u16>(), of(any::<u16>()))
        .prop_map(|(dsn, ssn, length, checksum)| WireMapping { dsn, ssn, length, checksum });
    (of(ack), of(mapping), any::<bool>()).prop_map(|(data_ack, mapping, data_fin)| Dss {
        data_ack,
        mapping,
        data_fin,
    })
}

/// Options in any combination, including those that do not fit a header; at most one of each MPTCP subtype.
pub(crate) fn options() -> impl Strategy<Value = TcpOptions> {
    let timestamps = any::<[u32; 2]>().prop_map(|[value, echo]| Timestamps { value, echo });
    let rare = |p| proptest::option::weighted(p, any::<u16>());
    (
        (rare(0.2), rare(0.2), proptest::bool::weighted(0.2), of(timestamps)),
        vec(any::<[u32; 2]>(), 0..=4),
        of(dss()),
        vec(mptcp_option(), 0..3),
    )
        .prop_map(|((mss, shift, sack_permitted, timestamps), blocks, dss, others)| {
            let window_scale = shift.map(|s| s as u8);
            let mut options = TcpOptions {
                mss,
                window_scale,
                sack_permitted,
                timestamps,
                dss,
                ..TcpOptions::default()
            };
            for [left, right] in blocks {
                options.sack.push(SackBlock { left: SeqNum(left), right: SeqNum(right) });
            }
            for other in others {
                let kind = std::mem::discriminant(&other);
                if options.mptcp.iter().all(|o| std::mem::discriminant(&o) != kind) {
                    options.mptcp.push(other);
                }
            }
            options
        })
}
