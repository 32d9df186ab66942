//! Textual form of Multipath TCP segments.

use std::net::SocketAddr;

use marline_wire::mptcp::{
    AddAddr, DataAck, Dss, MpCapable, MpCapableForm, MpJoin, MptcpOption, WireDsn, WireMapping,
};
use marline_wire::{SeqNum, TcpFlags};

use super::{Subflows, address_hmac, sum};
use crate::{Peer, Seg, SentSegment, keys};

impl Subflows {
    pub(super) fn words(&mut self, sent: &SentSegment) -> String {
        let on = self.find_subflow(sent);
        self.learn(on, &sent.seg);
        let seg = &sent.seg;
        if seg.header.flags.contains(TcpFlags::SYN) {
            self.peers[on].irs = seg.header.seq;
        }
        let mut words = vec![format!("{}: {}", char::from(b'a' + on as u8), self.tcp(on, seg))];
        if let Some(dss) = seg.options.dss {
            words.extend(self.dss_text(on, seg, &dss));
        }
        words.extend(seg.options.mptcp.iter().map(|option| self.option_text(on, seg, &option)));
        self.record_received(on, sent);
        words.retain(|words| !words.is_empty());
        words.join(" ")
    }

    /// Records that the peer received this segment. Stream data counts as received on all subflows.
    fn record_received(&mut self, on: usize, sent: &SentSegment) {
        let peer = &mut self.peers[on];
        let in_order = peer.expected == sent.seg.header.seq;
        peer.record_received(sent);
        let capable = sent.seg.options.mptcp.capable().map(|capable| capable.form);
        if let Some(MpCapableForm::Ack { data: Some(data), .. }) = capable
            && in_order
        {
            peer.expected_dsn = peer.expected_dsn.wrapping_add(u64::from(data.length));
        }
        let first = keys::idsn(self.peers[0].their_key);
        let ends = self.peers.iter().filter(|peer| peer.their_key != 0).map(|p| p.expected_dsn);
        let Some(expected) = ends.max_by_key(|dsn| dsn.wrapping_sub(first)) else { return };
        self.peers.iter_mut().for_each(|peer| peer.expected_dsn = expected);
    }

    /// Index of a segment's subflow. A subflow that the endpoint opens gets the next letter.
    fn find_subflow(&mut self, sent: &SentSegment) -> usize {
        let same = |peer: &Peer| {
            let (mine, theirs) = (peer.path, sent.path);
            (mine.local.ip(), mine.remote) == (theirs.local.ip(), theirs.remote)
                && (mine.local.port() == theirs.local.port() || mine.local.port() == 0)
        };
        if let Some(known) = self.peers.iter().position(same) {
            return known;
        }
        let new = self.add_path();
        self.peers[new].path = sent.path;
        new
    }

    /// Records keys and nonces from a handshake.
    fn learn(&mut self, on: usize, seg: &Seg) {
        let told = match seg.options.mptcp.capable().map(|capable| capable.form) {
            Some(MpCapableForm::SynAck { listener_key }) => Some(listener_key),
            Some(MpCapableForm::Ack { initiator_key, .. }) => Some(initiator_key),
            _ => None,
        };
        let known = self.peers[on].their_key;
        if let Some(key) = told.filter(|_| known == 0) {
            self.peers[on].their_key = key;
            self.peers[on].expected_dsn = keys::idsn(key).wrapping_add(1);
        }
        if let Some(MpJoin::Syn { nonce, .. } | MpJoin::SynAck { nonce, .. }) =
            seg.options.mptcp.join()
        {
            self.nonces[on].1 = nonce;
        }
    }

    fn tcp(&self, on: usize, seg: &Seg) -> String {
        let peer = &self.peers[on];
        let flags = seg.header.flags;
        if flags.contains(TcpFlags::SYN) {
            return if flags.contains(TcpFlags::ACK) { "S ack" } else { "S" }.to_owned();
        }
        let at = seg.header.seq.offset_from(peer.irs);
        if flags.contains(TcpFlags::RST) {
            // A RST outside of any connection has the number 0.
            let at = if seg.header.seq == SeqNum(0) { 0 } else { at };
            return format!("R {at}");
        }
        let end = at + seg.payload.len() as u32;
        let mut words = match (seg.payload.is_empty(), flags.contains(TcpFlags::FIN)) {
            (true, false) => format!("ack {}", seg.header.ack.offset_from(peer.iss)),
            (true, true) => format!("{at} F"),
            (false, false) => format!("{at}:{end}"),
            (false, true) => format!("{at}:{end} F"),
        };
        if flags.contains(TcpFlags::PSH) {
            words.push_str(" P");
        }
        words
    }

    fn option_text(&self, on: usize, seg: &Seg, option: &MptcpOption) -> String {
        let peer = &self.peers[on];
        match option {
            MptcpOption::Capable(option) => self.capable_text(on, seg, option),
            MptcpOption::Join(join) => self.join_text(on, join),
            MptcpOption::AddAddr(add) => {
                let AddAddr { address_id, address, port, hmac } = *add;
                let to =
                    port.map_or(address.to_string(), |p| SocketAddr::new(address, p).to_string());
                let Some(hmac) = hmac else { return format!("echo {address_id} {to}") };
                let right = address_hmac(peer.their_key, peer.key, add);
                format!("add {address_id} {to}{}", doubt(hmac == right))
            }
            MptcpOption::RemoveAddr(remove) => {
                let ids: Vec<String> = remove.as_slice().iter().map(u8::to_string).collect();
                format!("remove {}", ids.join(" "))
            }
            MptcpOption::Prio(prio) => if prio.backup { "prio B" } else { "prio" }.to_owned(),
            MptcpOption::Fail(fail) => {
                format!("fail {}", fail.dsn.wrapping_sub(keys::idsn(peer.key)))
            }
            MptcpOption::Fastclose(close) => {
                format!("fastclose{}", doubt(close.receiver_key == peer.key))
            }
            MptcpOption::TcpRst(why) => {
                format!("reset {}{}", why.reason, if why.transient { " T" } else { "" })
            }
            MptcpOption::Experimental(_) => "experimental".to_owned(),
        }
    }

    fn capable_text(&self, on: usize, seg: &Seg, option: &MpCapable) -> String {
        let peer = &self.peers[on];
        let mut words = "capable".to_owned();
        match option.form {
            MpCapableForm::Syn => {}
            MpCapableForm::SynAck { listener_key } => {
                words.push_str(&format!(" key{}", doubt(listener_key == peer.their_key)));
            }
            MpCapableForm::Ack { initiator_key, listener_key, data } => {
                let pair = (initiator_key, listener_key);
                let right = pair == (peer.their_key, peer.key);
                words.push_str(&format!(" keys{}", doubt(right)));
                if let Some(data) = data {
                    words.push_str(&format!("+{}", data.length));
                    let dsn = keys::idsn(peer.their_key).wrapping_add(1);
                    let right = sum(dsn, 1, data.length, &seg.payload);
                    words.push_str(&checksum_text(data.checksum, right));
                }
            }
        }
        let unusual = [
            (option.version != 1, " v?"),
            (option.checksum_required, " A"),
            (option.extensibility, " B"),
            (option.deny_join_id0, " C"),
            (!option.hmac_sha256, " H?"),
        ];
        unusual.iter().filter(|(is, _)| *is).for_each(|(_, flag)| words.push_str(flag));
        words
    }

    fn join_text(&self, on: usize, join: &MpJoin) -> String {
        let Peer { key, their_key, .. } = self.peers[on];
        let (ours, theirs) = self.nonces[on];
        let right = keys::join_hmac(their_key, key, theirs, ours);
        let flag = |backup: bool| if backup { " B" } else { "" };
        match *join {
            MpJoin::Syn { backup, address_id, token, .. } => {
                let right = token == keys::token(key);
                format!("join{} {address_id}{}", doubt(right), flag(backup))
            }
            MpJoin::SynAck { backup, address_id, hmac, .. } => {
                let right = hmac == keys::left64(right);
                format!("join {address_id}{} hmac{}", flag(backup), doubt(right))
            }
            MpJoin::Ack { hmac } => format!("join hmac{}", doubt(hmac == right[..20])),
        }
    }

    fn dss_text(&self, on: usize, seg: &Seg, dss: &Dss) -> Vec<String> {
        let peer = &self.peers[on];
        let (ours, theirs) = (keys::idsn(peer.key), keys::idsn(peer.their_key));
        let mut words = Vec::new();
        match dss.data_ack {
            Some(DataAck::Short(low)) => {
                words.push(format!("dack {}", low.wrapping_sub(ours as u32)));
            }
            Some(DataAck::Long(ack)) => words.push(format!("dack8 {}", ack.wrapping_sub(ours))),
            None => {}
        }
        if let Some(WireMapping { dsn, ssn, length, checksum }) = dss.mapping {
            let (name, at) = match dsn {
                WireDsn::Short(low) => ("dsn", u64::from(low.wrapping_sub(theirs as u32))),
                WireDsn::Long(dsn) => ("dsn8", dsn.wrapping_sub(theirs)),
            };
            let len = if length == 0 { "inf".to_owned() } else { length.to_string() };
            let stands_at = seg.header.seq.offset_from(peer.irs);
            let place = if ssn == stands_at { String::new() } else { format!("@{ssn}") };
            let full = theirs.wrapping_add(at);
            let whole = length == 0 || usize::from(length) == seg.payload.len() || dss.data_fin;
            let sum = match checksum {
                Some(0) if length == 0 => " sum 0".to_owned(),
                _ if whole => checksum_text(checksum, sum(full, ssn, length, &seg.payload)),
                _ => checksum.map_or(String::new(), |_| " sum of more".to_owned()),
            };
            words.push(format!("{name} {at}+{len}{place}{sum}"));
        }
        if dss.data_fin {
            words.push("dfin".to_owned());
        }
        words
    }
}

fn checksum_text(checksum: Option<u16>, right: u16) -> String {
    checksum.map_or(String::new(), |told| format!(" sum{}", doubt(told == right)))
}

const fn doubt(right: bool) -> &'static str {
    if right { "" } else { "?" }
}
