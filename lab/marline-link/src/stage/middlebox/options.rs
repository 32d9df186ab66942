//! Middleboxes that reject TCP options: they remove the options or drop the segment.
//!
//! Honda et al. ("Is it still possible to extend TCP?", IMC 2011) found both, more often on SYNs than later, and
//! removal more often than drops. Options are removed in the same way as by these middleboxes: the bytes become
//! no-operations, so that no length changes, and the checksum is updated incrementally (RFC 1624), so that a damaged
//! segment stays damaged. Packets that are not TCP, or cannot be parsed as TCP, pass.

use marline_time::Duration;

use crate::stage::tcp::{self, ACK, FLAGS_AT, HEADER, SYN, blank, options_end};
use crate::{MiddleboxConfig, OptionRule, Packet, Segments, TcpOption};

const MPTCP: u8 = 30;

/// Treatment of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PacketOutcome {
    Passes,
    Changed,
    Dropped,
}

/// Applies the rules to a packet that arrives this long after the link's start.
pub(crate) fn apply_rules<P: Packet>(
    config: &MiddleboxConfig,
    age: Duration,
    packet: &mut P,
) -> PacketOutcome {
    if config.strip.is_empty() && config.block.is_empty() && config.mangle.is_empty() {
        return PacketOutcome::Passes;
    }
    let Some(segment) = packet.tcp_mut() else { return PacketOutcome::Passes };
    if find(&config.block, age, segment, HEADER).is_some() {
        return PacketOutcome::Dropped;
    }
    let (mut from, mut disposition) = (HEADER, PacketOutcome::Passes);
    while let Some((start, end)) = find(&config.strip, age, segment, from) {
        blank(segment, start, end);
        (from, disposition) = (end, PacketOutcome::Changed);
    }
    from = HEADER;
    while let Some((start, end)) = find(&config.mangle, age, segment, from) {
        mangle(segment, start, end);
        (from, disposition) = (end, PacketOutcome::Changed);
    }
    disposition
}

/// Inverts all bits of an option except kind, length and, for Multipath TCP, the subtype. Updates the checksum.
fn mangle(segment: &mut [u8], start: usize, end: usize) {
    let first = start + if segment[start] == MPTCP { 3 } else { 2 };
    let mut turned = segment[first.min(end)..end].to_vec();
    turned.iter_mut().for_each(|byte| *byte = !*byte);
    tcp::change(segment, first.min(end), &turned);
}

/// Adds `change` to byte number `pick` of the payload (modulo its length) and updates the checksum. Returns false if
/// there is no TCP payload.
pub(crate) fn rewrite_payload<P: Packet>(packet: &mut P, pick: u64, change: u8) -> bool {
    let Some(segment) = packet.tcp_mut() else { return false };
    let Some(payload) = options_end(segment).filter(|end| *end < segment.len()) else {
        return false;
    };
    let at = payload + (pick % (segment.len() - payload) as u64) as usize;
    let changed = segment[at].wrapping_add(change);
    tcp::change(segment, at, &[changed]);
    true
}

/// The first option after an offset that matches one of the rules.
fn find(
    rules: &[OptionRule],
    age: Duration,
    segment: &[u8],
    from: usize,
) -> Option<(usize, usize)> {
    tcp::find_option(segment, from, |option| {
        rules.iter().any(|rule| rule.from <= age && rule.matches_rule(segment[FLAGS_AT], option))
    })
}

impl OptionRule {
    fn matches_rule(&self, flags: u8, option: &[u8]) -> bool {
        self.segments.contain(flags) && self.option.matches(option)
    }
}

impl Segments {
    const fn contain(self, flags: u8) -> bool {
        let (syn, ack) = (flags & SYN != 0, flags & ACK != 0);
        match self {
            Segments::All => true,
            Segments::Syn => syn && !ack,
            Segments::SynAck => syn && ack,
            Segments::Rest => !syn,
        }
    }
}

impl TcpOption {
    /// Returns true if these bytes (kind, length, contents) match the option.
    fn matches(self, option: &[u8]) -> bool {
        match self {
            TcpOption::Kind(kind) => option[0] == kind,
            TcpOption::Mptcp(subtype) => {
                option[0] == MPTCP && option.get(2).is_some_and(|byte| byte >> 4 == subtype)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::tcp::{CHECKSUM_AT, checksum, update_checksum};

    #[derive(Clone, Debug)]
    struct Segment(Vec<u8>);

    impl Packet for Segment {
        fn wire_len(&self) -> usize {
            self.0.len()
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }

        fn tcp_mut(&mut self) -> Option<&mut [u8]> {
            Some(&mut self.0)
        }
    }

    /// A segment with a valid checksum (without the addresses, which do not change).
    fn segment(flags: u8, options: &[u8]) -> Segment {
        assert_eq!(options.len() % 4, 0);
        let mut bytes = vec![0x12; HEADER];
        bytes[12] = ((HEADER + options.len()) as u8 / 4) << 4;
        bytes[FLAGS_AT] = flags;
        bytes.extend_from_slice(options);
        bytes.extend_from_slice(b"payload!");
        bytes[CHECKSUM_AT..CHECKSUM_AT + 2].fill(0);
        let checksum = !checksum(&bytes);
        bytes[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&checksum.to_be_bytes());
        Segment(bytes)
    }

    fn config(strip: &str, block: &str) -> MiddleboxConfig {
        let rules = |text| OptionRule::parse_list(text).expect("rules");
        MiddleboxConfig { strip: rules(strip), block: rules(block), ..MiddleboxConfig::default() }
    }

    /// MSS, a no-operation that moves the rest to an odd offset, MP_CAPABLE of 12 bytes, start of the timestamps.
    const OPTIONS: [u8; 24] =
        [2, 4, 5, 180, 1, 30, 12, 0x01, 9, 8, 7, 6, 5, 4, 3, 2, 1, 4, 2, 1, 30, 4, 0x20, 0x85];

    #[test]
    fn a_removed_option_keeps_the_checksum_valid() {
        let mut syn = segment(SYN, &OPTIONS);
        assert_eq!(
            apply_rules(&config("mp_capable:syn", "none"), Duration::ZERO, &mut syn),
            PacketOutcome::Changed
        );
        let mut expected = OPTIONS;
        expected[5..17].fill(1);
        assert_eq!(syn.0[HEADER..HEADER + 24], expected);
        assert_eq!(checksum(&syn.0), 0xffff);
        // A rule for the kind also removes the other option of this kind.
        assert_eq!(
            apply_rules(&config("mptcp", "none"), Duration::ZERO, &mut syn),
            PacketOutcome::Changed
        );
        assert_eq!(syn.0[HEADER + 20..HEADER + 24], [1; 4]);
        assert_eq!(checksum(&syn.0), 0xffff);
        assert_eq!(
            apply_rules(&config("mptcp", "none"), Duration::ZERO, &mut syn),
            PacketOutcome::Passes
        );
    }

    #[test]
    fn a_mangled_option_keeps_kind_subtype_and_a_valid_checksum() {
        let mangle = OptionRule::parse_list("mp_capable:syn+timestamps").unwrap();
        let config = MiddleboxConfig { mangle, ..MiddleboxConfig::default() };
        let mut syn = segment(SYN, &OPTIONS);
        assert_eq!(apply_rules(&config, Duration::ZERO, &mut syn), PacketOutcome::Changed);
        let mut expected = OPTIONS;
        expected[8..17].iter_mut().for_each(|byte| *byte = !*byte);
        assert_eq!(syn.0[HEADER..HEADER + 24], expected);
        assert_eq!(checksum(&syn.0), 0xffff);
    }

    #[test]
    fn rules_depend_on_flags() {
        for (rule, meant) in
            [("mptcp:syn", SYN), ("mptcp:synack", SYN | ACK), ("mptcp:rest", ACK | 8)]
        {
            for flags in [SYN, SYN | ACK, ACK | 8, ACK, 4] {
                let hit = flags == meant || (rule == "mptcp:rest" && flags & SYN == 0);
                let mut packet = segment(flags, &OPTIONS);
                let expected = if hit { PacketOutcome::Changed } else { PacketOutcome::Passes };
                assert_eq!(
                    apply_rules(&config(rule, "none"), Duration::ZERO, &mut packet),
                    expected,
                    "{rule} {flags}"
                );
                let expected = if hit { PacketOutcome::Dropped } else { PacketOutcome::Passes };
                let mut packet = segment(flags, &OPTIONS);
                assert_eq!(
                    apply_rules(&config("none", rule), Duration::ZERO, &mut packet),
                    expected,
                    "{rule} {flags}"
                );
            }
        }
    }

    #[test]
    fn a_rewritten_payload_has_a_valid_checksum() {
        for odd in [false, true] {
            for pick in 0..20 {
                let mut packet = segment(ACK, &[1; 4]);
                if odd {
                    // Without its last byte, as if it had been sent that way.
                    let last = packet.0.pop().expect("a byte");
                    update_checksum(&mut packet.0, u16::from_be_bytes([0, last]), 0);
                }
                assert_eq!(checksum(&packet.0), 0xffff);
                let before = packet.0.clone();
                assert!(rewrite_payload(&mut packet, pick, 0x55));
                let changed = packet.0.iter().zip(&before).filter(|(a, b)| a != b).count();
                assert!(packet.0[24..] != before[24..] && changed <= 3, "{pick}");
                assert_eq!(checksum(&packet.0), 0xffff, "{pick}, odd {odd}");
            }
        }
        let mut pure = segment(ACK, &[1; 4]);
        pure.0.truncate(24);
        assert!(!rewrite_payload(&mut pure, 3, 1));
    }

    #[test]
    fn invalid_packets_pass_unchanged() {
        let all = config("2+30+4+8", "none");
        let mut state = 1u32;
        for length in 0..80 {
            let mut packet = Segment((0..length).map(|n| n as u8).collect());
            let before = packet.0.clone();
            if apply_rules(&all, Duration::ZERO, &mut packet) == PacketOutcome::Passes {
                assert_eq!(packet.0, before);
            }
            // Random options in a valid header: options may be blanked, but nothing panics.
            let mut options = [0; 40];
            for byte in &mut options {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (state >> 24) as u8 % 32;
            }
            let mut packet = segment(SYN, &options);
            apply_rules(&all, Duration::ZERO, &mut packet);
            assert_eq!(checksum(&packet.0), 0xffff);
        }
    }
}
