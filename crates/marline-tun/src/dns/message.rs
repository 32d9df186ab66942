//! DNS messages (RFC 1035, RFC 6891), as far as somebody who passes them on has to read them.

use std::net::IpAddr;

use marline_wire::{
    DNS_HEADER_LEN as HEADER_LEN, DnsRecord, dns_after_name as after_name,
    dns_after_questions as after_questions, dns_answers,
};

/// Types of records that have addresses.
pub(crate) use marline_wire::{DNS_A as A, DNS_AAAA as AAAA};

/// What a program takes by UDP that does not say more.
const LEAST: usize = 512;
/// What passes everywhere inside, whatever the program says it takes.
const MOST: usize = 1_232;
/// The type of the record that says how much a program takes.
const OPT: u16 = 41;
/// Records that are looked through for it; a query has one or two.
const RECORDS: u16 = 8;
/// Labels of a name, of at least two bytes each, within its 255.
const LABELS: usize = 128;

const RESPONSE: u8 = 0x80;
const TRUNCATED: u8 = 0x02;
const SERVFAIL: u8 = 2;
const NXDOMAIN: u8 = 3;
/// Records of an answer that are looked at.
const ANSWERS: usize = 64;

/// Whether this is a query.
pub(super) fn is_query(message: &[u8]) -> bool {
    message.len() >= HEADER_LEN && message[2] & RESPONSE == 0
}

/// Whether this is an answer.
pub(crate) fn is_answer(message: &[u8]) -> bool {
    message.len() >= HEADER_LEN && message[2] & RESPONSE != 0
}

/// Whether this answer was cut short.
pub(crate) fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// A query for records of this type of a host, whose labels are sound.
pub(crate) fn query(host: &str, kind: u16) -> Vec<u8> {
    // Connected sockets with ports of their own ask, each once: the number need not be a secret.
    let mut message = vec![0x4d, kind as u8, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in host.split('.') {
        message.push(label.len() as u8);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    message.extend_from_slice(&kind.to_be_bytes());
    message.extend_from_slice(&[0, 1]);
    message
}

/// Bytes of answer that a program takes by UDP.
pub(super) fn limit(query: &[u8]) -> usize {
    udp_size(query).map_or(LEAST, |size| usize::from(size).clamp(LEAST, MOST))
}

/// Size in the query's OPT record.
fn udp_size(query: &[u8]) -> Option<u16> {
    let count = |at: usize| Some(u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]));
    let mut at = after_questions(query)?;
    let records =
        [count(6)?, count(8)?, count(10)?].iter().fold(0, |a: u16, b| a.saturating_add(*b));
    for _ in 0..records.min(RECORDS) {
        at = after_name(query, at)?;
        let (kind, class) = (count(at)?, count(at + 2)?);
        if kind == OPT {
            return Some(class);
        }
        at += 10 + usize::from(count(at + 8)?);
    }
    None
}

/// Cuts an answer short that has more than `limit` bytes: what remains is the question, and that there is more, for
/// which programs come again by TCP.
pub(super) fn fit(answer: &mut Vec<u8>, limit: usize) {
    if answer.len() <= limit {
        return;
    }
    let end = after_questions(answer).filter(|end| *end <= limit);
    let kept = end.unwrap_or(HEADER_LEN);
    answer.truncate(kept);
    answer[2] |= TRUNCATED;
    answer[6..HEADER_LEN].fill(0);
    if end.is_none() {
        answer[4..6].fill(0);
    }
}

/// The name that is asked about, in lower case and without a dot at its end. `None`: there is none, or none that is
/// a host's.
pub(super) fn name(query: &[u8]) -> Option<String> {
    let mut name = String::new();
    let mut at = HEADER_LEN;
    for _ in 0..LABELS {
        // In the only question nothing is there to point at.
        let len @ 0..64 = usize::from(*query.get(at)?) else { return None };
        if len == 0 {
            return Some(name);
        }
        let label = std::str::from_utf8(query.get(at + 1..at + 1 + len)?).ok()?;
        if label.contains('.') {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(label);
        name.make_ascii_lowercase();
        at += 1 + len;
    }
    None
}

/// The addresses in an answer. What stands before a place that cannot be read counts.
pub(crate) fn addresses(answer: &[u8]) -> Vec<IpAddr> {
    let address = |record: DnsRecord<'_>| match record.kind {
        A => Some(IpAddr::from(<[u8; 4]>::try_from(record.data).ok()?)),
        AAAA => Some(IpAddr::from(<[u8; 16]>::try_from(record.data).ok()?)),
        _ => None,
    };
    dns_answers(answer).take(ANSWERS).map_while(|record| record).filter_map(address).collect()
}

/// The answer to a query that could not be asked.
pub(super) fn failure(query: &[u8]) -> Option<Vec<u8>> {
    without_records(query, SERVFAIL)
}

/// The answer that there is no such name.
pub(super) fn no_such_name(query: &[u8]) -> Option<Vec<u8>> {
    without_records(query, NXDOMAIN)
}

fn without_records(query: &[u8], code: u8) -> Option<Vec<u8>> {
    if !is_query(query) {
        return None;
    }
    let end = after_questions(query);
    let mut answer = query[..end.unwrap_or(HEADER_LEN)].to_vec();
    answer[2] |= RESPONSE;
    answer[3] = 0x80 | code;
    answer[6..HEADER_LEN].fill(0);
    if end.is_none() {
        answer[4..6].fill(0);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// A query for the address of `a.example`.
    fn query(more: &[u8], records: u16) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 0x01, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend(records.to_be_bytes());
        bytes.extend(b"\x01a\x07example\x00\x00\x01\x00\x01");
        bytes.extend(more);
        bytes
    }

    fn opt(size: u16) -> Vec<u8> {
        let mut bytes = vec![0, 0, 41];
        bytes.extend(size.to_be_bytes());
        bytes.extend([0; 6]);
        bytes
    }

    #[test]
    fn what_a_program_takes_is_read_and_bounded() {
        assert_eq!(limit(&query(&[], 0)), 512);
        for (said, limited) in [(100, 512), (512, 512), (1_000, 1_000), (4_096, 1_232)] {
            assert_eq!(limit(&query(&opt(said), 1)), limited);
        }
        // A record before it, and one that is cut short.
        let mut other = b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x00\x00\x03abc".to_vec();
        other.extend(opt(900));
        assert_eq!(limit(&query(&other, 2)), 900);
        assert_eq!(limit(&query(&opt(900)[..4], 1)), 512);
    }

    #[test]
    fn a_long_answer_is_cut_to_its_question_and_says_so() {
        let mut answer = query(&[7; 2_000], 9);
        answer[2] |= RESPONSE;
        let whole = answer.clone();
        fit(&mut answer, whole.len());
        assert_eq!(answer, whole);
        fit(&mut answer, 1_232);
        assert_eq!(answer.len(), query(&[], 0).len());
        assert_eq!(answer[2], RESPONSE | TRUNCATED | 0x01);
        assert_eq!(answer[4..12], [0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_failure_repeats_the_question_and_nothing_of_the_rest() {
        let asked = query(&opt(900), 1);
        let answer = failure(&asked).unwrap();
        assert_eq!(answer.len(), query(&[], 0).len());
        assert_eq!((answer[..2].to_vec(), answer[3] & 0xf), (asked[..2].to_vec(), SERVFAIL));
        assert!(is_answer(&answer) && failure(&answer).is_none());
        assert_eq!(failure(&asked[..11]), None);
    }

    #[test]
    fn a_name_is_read_in_lower_case_and_addresses_beside_other_records() {
        let asked = query(&[], 0);
        assert_eq!(name(&asked).as_deref(), Some("a.example"));
        assert_eq!(name(&asked.to_ascii_uppercase()).as_deref(), Some("a.example"));
        assert_eq!(name(&asked[..14]), None);
        let mut answer = query(&[], 0);
        answer[2] |= RESPONSE;
        answer[7] = 3;
        answer.extend(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x09\x00\x04\x01b\xc0\x0e");
        answer.extend(b"\xc0\x1b\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04\xc0\x00\x02\x07");
        answer.extend(b"\xc0\x1b\x00\x1c\x00\x01\x00\x00\x00\x09\x00\x10");
        answer.extend("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        let shown: Vec<String> = addresses(&answer).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.7", "2001:db8::7"]);
        answer.pop();
        assert_eq!(addresses(&answer).len(), 1, "a record that is cut short");
        let refused = no_such_name(&asked).unwrap();
        assert_eq!((refused.len(), refused[3] & 0xf), (asked.len(), NXDOMAIN));
    }

    #[test]
    fn cut_and_mutated_messages_do_no_harm() {
        use marline_time::Rng as _;
        let whole = query(&opt(900), 1);
        let mut rng = marline_time::PcgRng::new(5, 1);
        for turn in 0..200_000 {
            let mut bytes = whole.clone();
            for _ in 0..turn % 6 {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u32() as u8;
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1) as usize);
            assert!((512..=1_232).contains(&limit(&bytes)));
            assert!(name(&bytes).is_none_or(|name| name.len() < bytes.len()));
            assert!(addresses(&bytes).len() * 4 <= bytes.len());
            if let Some(answer) = failure(&bytes) {
                assert!(answer.len() <= bytes.len() && is_answer(&answer));
            }
            if bytes.len() >= HEADER_LEN {
                let before = bytes.len();
                fit(&mut bytes, 20);
                assert!(bytes.len() <= before && bytes.len() <= 20.max(HEADER_LEN));
            }
        }
    }
}
