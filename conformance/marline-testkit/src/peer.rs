//! Scripted peer of one subflow, which tracks its numbers and keys.

use std::time::Duration;

use marline_core::FourTuple;
use marline_wire::mptcp::{MpCapable, MpCapableForm, MpJoin, MptcpOption, WireMapping};
use marline_wire::{SeqNum, TcpFlags};

use crate::{Expect, Script, Seg, SentSegment, keys};

/// Time within which a peer must answer a handshake.
const RTT: Duration = Duration::from_millis(10);

/// One subflow's sequence numbers, as seen by the scripted peer.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The subflow's ends; local is the endpoint under test.
    pub path: FourTuple,
    /// Our key.
    pub key: u64,
    /// The endpoint's key, once known.
    pub their_key: u64,
    /// Our initial sequence number.
    pub iss: SeqNum,
    /// The endpoint's initial sequence number.
    pub irs: SeqNum,
    /// The next sequence number we send.
    pub next: SeqNum,
    /// The next sequence number we expect.
    pub expected: SeqNum,
    /// The next data sequence number we send.
    pub next_dsn: u64,
    /// The next data sequence number we expect.
    pub expected_dsn: u64,
    /// The last mapping received from the endpoint.
    pub last_mapping: Option<WireMapping>,
    /// Our flow id and the endpoint's. Zeros on carriers without flow ids.
    pub flows: (u64, u64),
    /// Our timestamp clock and the last timestamp received, if timestamps are used.
    pub timestamps: Option<(u32, u32)>,
}

/// MP_CAPABLE of version 1 with HMAC-SHA256 and no checksums.
#[must_use]
pub const fn capable(form: MpCapableForm) -> MptcpOption {
    MptcpOption::Capable(MpCapable {
        version: 1,
        checksum_required: false,
        extensibility: false,
        deny_join_id0: false,
        hmac_sha256: true,
        form,
    })
}

impl Peer {
    /// Creates a peer at the remote end of `path` that has not sent anything yet.
    #[must_use]
    pub fn new(path: FourTuple, key: u64) -> Self {
        let iss = SeqNum(0xffff_f000);
        Peer {
            path,
            key,
            their_key: 0,
            iss,
            irs: SeqNum(0),
            next: iss,
            expected: SeqNum(0),
            next_dsn: keys::idsn(key).wrapping_add(1),
            expected_dsn: 0,
            last_mapping: None,
            flows: (0, 0),
            timestamps: None,
        }
    }

    /// Sends `seg` as the next one on this subflow. Fills in sequence number, acknowledgment and timestamps.
    pub fn send(&mut self, script: &mut Script, seg: Seg) {
        let mut seg = seg.at(self.next);
        if !seg.header.flags.contains(TcpFlags::SYN) || seg.header.flags.contains(TcpFlags::ACK) {
            seg = seg.acking(self.expected);
        }
        if let Some((value, echo)) = self.timestamps {
            seg = seg.timestamps(value, echo);
        }
        self.next = seg.end();
        self.inject(script, seg);
    }

    /// Sends `seg` unchanged with the addresses of this subflow. A SYN carries our flow id.
    pub fn inject(&self, script: &mut Script, seg: Seg) {
        let (ours, theirs) = self.flows;
        let told = if seg.header.flags.contains(TcpFlags::SYN) { ours } else { 0 };
        script.inject_to(self.path, theirs, told, seg);
    }

    /// A segment with the next numbers, for a test to modify and [`inject`](Self::inject). The peer's state does not
    /// change.
    #[must_use]
    pub fn stamp(&self, seg: Seg) -> Seg {
        let seg = seg.at(self.next).acking(self.expected);
        match self.timestamps {
            Some((value, echo)) => seg.timestamps(value, echo),
            None => seg,
        }
    }

    /// The next segment of this subflow with `bytes` and their mapping.
    #[must_use]
    pub fn mapped(&self, bytes: &[u8]) -> Seg {
        let ssn = self.next.offset_from(self.iss);
        Seg::ack()
            .data_ack(self.expected_dsn)
            .mapping(self.next_dsn, ssn, bytes.len() as u16)
            .payload(bytes)
    }

    /// Takes all segments sent on this subflow from the script and processes them. Drops segments of other subflows.
    pub fn receive_all(&mut self, script: &mut Script) -> Vec<SentSegment> {
        let mut sent = script.take_sent();
        sent.retain(|s| s.path == self.path);
        for one in &sent {
            self.record_received(one);
        }
        sent
    }

    /// Sends data with its mapping and a DATA_ACK.
    pub fn send_data(&mut self, script: &mut Script, bytes: &[u8]) {
        let seg = self.mapped(bytes);
        self.next_dsn = self.next_dsn.wrapping_add(bytes.len() as u64);
        self.send(script, seg);
    }

    /// Sends an ACK for all received data, with a DATA_ACK.
    pub fn acknowledge(&mut self, script: &mut Script) {
        let seg = Seg::ack().data_ack(self.expected_dsn);
        self.send(script, seg);
    }

    /// Processes an in-order segment from the endpoint.
    pub fn record_received(&mut self, sent: &SentSegment) {
        let seg = &sent.seg;
        if seg.header.flags.contains(TcpFlags::SYN) {
            self.irs = seg.header.seq;
            self.expected = seg.header.seq;
            self.flows.1 = sent.flows.0;
        }
        if let (Some(ours), Some(theirs)) = (self.timestamps.as_mut(), seg.options.timestamps) {
            ours.1 = theirs.value;
        }
        if seg.header.seq != self.expected {
            return;
        }
        self.expected = seg.end();
        let dss = seg.options.dss.unwrap_or_default();
        self.last_mapping = dss.mapping.or(self.last_mapping);
        // One mapping may cover several segments. The first one carries it.
        let Some(mapping) = self.last_mapping else { return };
        let at = seg.header.seq.0.wrapping_sub(self.irs.0).wrapping_sub(mapping.ssn);
        let lone_fin = mapping.ssn == 0;
        let covers = lone_fin || at < u32::from(mapping.length);
        let at = if lone_fin { 0 } else { u64::from(at) };
        let near = self.expected_dsn.wrapping_sub(at);
        if covers && mapping.dsn.unwrap_near(near) == Some(near) {
            let fin = u64::from(dss.data_fin);
            self.expected_dsn = self.expected_dsn.wrapping_add(seg.payload.len() as u64 + fin);
        }
    }

    /// Takes the endpoint's SYN from the script. It must offer Multipath TCP.
    ///
    /// # Panics
    /// If nothing or something else was sent.
    #[track_caller]
    pub fn take_syn(&mut self, script: &mut Script) -> SentSegment {
        let offers = Expect::any()
            .flags(TcpFlags::SYN)
            .mptcp("MP_CAPABLE without key", |o| {
                matches!(o, MptcpOption::Capable(c) if c.form == MpCapableForm::Syn && c.version == 1)
            });
        let sent = script.expect(&offers);
        self.path = sent.path;
        if sent.seg.options.timestamps.is_some() {
            self.timestamps = Some((1, 0));
        }
        self.record_received(&sent);
        sent
    }

    /// The SYN/ACK with our key.
    #[must_use]
    pub fn syn_ack(&self) -> Seg {
        let form = MpCapableForm::SynAck { listener_key: self.key };
        Seg::syn_ack().mss(1_400).sack_permitted().window_scale(7).mptcp(capable(form))
    }

    /// Acts as the listener of a connection that the endpoint opens: SYN, SYN/ACK, third ACK.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[track_caller]
    pub fn accept(&mut self, script: &mut Script) {
        self.take_syn(script);
        script.advance(RTT);
        let answer = self.syn_ack();
        self.send(script, answer);
        let ours = self.key;
        let keys = Expect::any().pure_ack().acking(self.next).mptcp("both keys", move |o| {
            matches!(o, MptcpOption::Capable(MpCapable {
                form: MpCapableForm::Ack { listener_key, data: None, .. }, ..
            }) if *listener_key == ours)
        });
        let third = script.expect(&keys);
        if let Some(MpCapableForm::Ack { initiator_key, .. }) =
            third.seg.options.mptcp.capable().map(|c| c.form)
        {
            self.learn_key(initiator_key);
        }
        self.record_received(&third);
    }

    /// A SYN that offers Multipath TCP.
    #[must_use]
    pub fn capable_syn(&self) -> Seg {
        let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
        syn.mptcp(capable(MpCapableForm::Syn))
    }

    /// Connects to a listening endpoint: SYN, SYN/ACK, third ACK.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[track_caller]
    pub fn connect(&mut self, script: &mut Script) {
        self.timestamps = Some((1, 0));
        let syn = self.capable_syn();
        self.send(script, syn);
        let with_key = Expect::any()
            .flags(TcpFlags::SYN.with(TcpFlags::ACK))
            .acking(self.next)
            .mptcp("MP_CAPABLE with a key", |o| {
                matches!(
                    o,
                    MptcpOption::Capable(MpCapable { form: MpCapableForm::SynAck { .. }, .. })
                )
            });
        let sent = script.expect(&with_key);
        if let Some(MpCapableForm::SynAck { listener_key }) =
            sent.seg.options.mptcp.capable().map(|c| c.form)
        {
            self.learn_key(listener_key);
        }
        self.record_received(&sent);
        script.advance(RTT);
        let (initiator_key, listener_key) = (self.key, self.their_key);
        let form = MpCapableForm::Ack { initiator_key, listener_key, data: None };
        self.send(script, Seg::ack().mptcp(capable(form)));
    }

    /// A SYN that joins the connection of `first` over this path.
    #[must_use]
    pub fn join_syn(&self, first: &Peer, nonce: u32, address_id: u8) -> Seg {
        let token = keys::token(first.their_key);
        let join = MpJoin::Syn { backup: false, address_id, token, nonce };
        let syn = Seg::syn().mss(1_400).sack_permitted().window_scale(7);
        syn.mptcp(MptcpOption::Join(join))
    }

    /// Joins the connection of `first` over this path: SYN, SYN/ACK with a correct HMAC, third ACK.
    ///
    /// # Panics
    /// If the endpoint behaves unexpectedly.
    #[track_caller]
    pub fn join(&mut self, script: &mut Script, first: &Peer, address_id: u8) {
        let nonce = 0x1234_5678;
        self.timestamps = Some((1, 0));
        let syn = self.join_syn(first, nonce, address_id);
        self.send(script, syn);
        let sent = script.expect(&Expect::any().flags(TcpFlags::SYN.with(TcpFlags::ACK)));
        let Some(MpJoin::SynAck { hmac, nonce: theirs, .. }) = sent.seg.options.mptcp.join() else {
            panic!("a SYN/ACK without MP_JOIN: {:#?}", sent.seg);
        };
        let right = keys::join_hmac(first.their_key, first.key, theirs, nonce);
        assert_eq!(hmac, keys::left64(right), "the endpoint's HMAC");
        self.record_received(&sent);
        script.advance(RTT);
        let ours = keys::join_hmac(first.key, first.their_key, nonce, theirs);
        let mut truncated = [0; 20];
        truncated.copy_from_slice(&ours[..20]);
        let ack = MptcpOption::Join(MpJoin::Ack { hmac: truncated });
        self.send(script, Seg::ack().mptcp(ack));
        (self.key, self.their_key) = (first.key, first.their_key);
        (self.next_dsn, self.expected_dsn) = (first.next_dsn, first.expected_dsn);
    }

    fn learn_key(&mut self, key: u64) {
        self.their_key = key;
        self.expected_dsn = keys::idsn(key).wrapping_add(1);
    }
}
