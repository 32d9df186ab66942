//! DNS messages (RFC 1035, RFC 6891), as far as a forwarder has to parse them.

use std::net::IpAddr;

use marline_wire::{
    DNS_HEADER_LEN as HEADER_LEN, DnsRecord, dns_answers, skip_dns_name as after_name,
    skip_dns_questions as after_questions,
};

use crate::exceptions::{Exceptions, Treatment};

/// Maximum UDP answer length for a program that does not advertise more.
const DEFAULT_ANSWER_LEN: usize = 512;
/// Maximum UDP answer length, regardless of what the program advertises.
const MAX_ANSWER_LEN: usize = 1_232;
/// Type of the record that contains the program's maximum UDP answer length.
const OPT: u16 = 41;
/// Maximum number of a query's records that are searched for OPT. A query has one or two records.
const MAX_QUERY_RECORDS: u16 = 8;
/// Maximum number of labels in a name, which has at most 255 bytes, with at least two bytes per label.
const MAX_LABELS: usize = 128;

/// Types of records whose data name another host to use instead: CNAME, DNAME, and SVCB and HTTPS (RFC 9460).
const CNAME: u16 = 5;
const DNAME: u16 = 39;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;

const RESPONSE: u8 = 0x80;
const TRUNCATED: u8 = 0x02;
/// Mask of the opcode, which is 0 for a standard query.
const OPCODE: u8 = 0x78;
/// Response code for a malformed query.
pub(super) const FORMERR: u8 = 1;
/// Response code for a failure of the service.
pub(super) const SERVFAIL: u8 = 2;
/// Response code for a nonexistent name.
pub(super) const NXDOMAIN: u8 = 3;
/// Response code for an unsupported opcode.
pub(super) const NOTIMP: u8 = 4;
/// Maximum number of records of an answer that are examined.
const MAX_RECORDS: usize = 64;

/// Returns true if this is a query.
pub(super) fn is_query(message: &[u8]) -> bool {
    message.len() >= HEADER_LEN && message[2] & RESPONSE == 0
}

/// Returns true if this is an answer.
pub(crate) fn is_answer(message: &[u8]) -> bool {
    message.len() >= HEADER_LEN && message[2] & RESPONSE != 0
}

/// Returns true if this answer was truncated.
pub(crate) fn is_truncated(answer: &[u8]) -> bool {
    answer.get(2).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// Returns the maximum length of a UDP answer that the program accepts.
pub(super) fn limit(query: &[u8]) -> usize {
    udp_size(query).map_or(DEFAULT_ANSWER_LEN, |size| {
        usize::from(size).clamp(DEFAULT_ANSWER_LEN, MAX_ANSWER_LEN)
    })
}

/// Returns the size in the query's OPT record.
fn udp_size(query: &[u8]) -> Option<u16> {
    let count = |at: usize| Some(u16::from_be_bytes([*query.get(at)?, *query.get(at + 1)?]));
    let mut at = after_questions(query)?;
    let records =
        [count(6)?, count(8)?, count(10)?].iter().fold(0, |a: u16, b| a.saturating_add(*b));
    for _ in 0..records.min(MAX_QUERY_RECORDS) {
        at = after_name(query, at)?;
        let (kind, class) = (count(at)?, count(at + 2)?);
        if kind == OPT {
            return Some(class);
        }
        at += 10 + usize::from(count(at + 8)?);
    }
    None
}

/// Truncates an answer that is longer than `limit` bytes: only the question remains, and the TC bit makes programs
/// retry over TCP.
pub(super) fn truncate_to(answer: &mut Vec<u8>, limit: usize) {
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

/// Returns the name of a query's question (see [`read_name`]), or the response code for the error. A query must have
/// exactly one question (RFC 9619): of several, a resolver might answer one that was not checked here.
pub(super) fn question_name(query: &[u8]) -> Result<String, u8> {
    if query.len() < HEADER_LEN {
        return Err(FORMERR);
    }
    if query[2] & OPCODE != 0 {
        return Err(NOTIMP);
    }
    if query[4..6] != [0, 1] {
        return Err(FORMERR);
    }
    // Nothing that a pointer could refer to precedes the name.
    read_name(query, HEADER_LEN, HEADER_LEN).ok_or(FORMERR)
}

/// Reads the name at `at` with [`read_name`].
fn read_name_at(message: &[u8], at: usize) -> Option<String> {
    read_name(message, at, message.len())
}

/// Reads the name at `at`, in lower case and without a trailing dot. Bytes of a label that are not printable, and a
/// dot or a backslash within one, are written as `\DDD`. Compression pointers must point below `before` and then
/// each below the previous one, so that there are no loops. Returns `None` if the name is invalid.
fn read_name(message: &[u8], mut at: usize, mut before: usize) -> Option<String> {
    let mut name = String::new();
    for _ in 0..MAX_LABELS {
        let len = usize::from(*message.get(at)?);
        match len {
            0 => return Some(name),
            1..64 => {
                if !name.is_empty() {
                    name.push('.');
                }
                for byte in message.get(at + 1..at + 1 + len)? {
                    match byte {
                        b'.' | b'\\' => name.push_str(&format!("\\{byte:03}")),
                        b'!'..=b'~' => name.push(char::from(byte.to_ascii_lowercase())),
                        _ => name.push_str(&format!("\\{byte:03}")),
                    }
                }
                at += 1 + len;
            }
            192.. => {
                at = (len & 0x3f) << 8 | usize::from(*message.get(at + 1)?);
                if at < HEADER_LEN || at >= before {
                    return None;
                }
                before = at;
            }
            _ => return None,
        }
    }
    None
}

/// Returns the names that an answer refers to, for instance as aliases. Returns `None` if the answer is partly
/// invalid.
pub(super) fn aliases(answer: &[u8]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for record in dns_answers(answer) {
        let DnsRecord { kind, data_at, .. } = record?;
        match kind {
            CNAME | DNAME => found.push(read_name_at(answer, data_at)?),
            // The name follows a priority.
            SVCB | HTTPS => found.push(read_name_at(answer, data_at + 2)?),
            _ => {}
        }
    }
    Some(found)
}

/// Returns the addresses in an answer, up to the first invalid record.
pub(crate) fn addresses(answer: &[u8]) -> Vec<IpAddr> {
    timed_addresses(answer).map(|(address, _)| address).collect()
}

/// Returns the addresses in an answer with their TTLs, in seconds.
pub(super) fn timed_addresses(answer: &[u8]) -> impl Iterator<Item = (IpAddr, u32)> {
    let address = |record: DnsRecord<'_>| Some((record.address()?, record.ttl_s));
    dns_answers(answer).take(MAX_RECORDS).map_while(|record| record).filter_map(address)
}

/// Returns the answer to a query with this response code and no records. Returns `None` if it is not a query.
pub(super) fn without_records(query: &[u8], code: u8) -> Option<Vec<u8>> {
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

/// Returns the response code to send instead of an answer that must not be passed on, because it refers to a blocked
/// name or is invalid.
pub(crate) fn refusal(exceptions: &Exceptions, answer: &[u8]) -> Option<u8> {
    if !exceptions.has_domains() {
        return None;
    }
    let Some(names) = aliases(answer) else { return Some(SERVFAIL) };
    let is_blocked = |name: &String| exceptions.treatment_of_name(name) == Treatment::Blocked;
    names.iter().any(is_blocked).then_some(NXDOMAIN)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// Returns a query for the address of `a.example`.
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
    fn the_edns_size_limit_is_read_and_bounded() {
        assert_eq!(limit(&query(&[], 0)), 512);
        for (said, limited) in [(100, 512), (512, 512), (1_000, 1_000), (4_096, 1_232)] {
            assert_eq!(limit(&query(&opt(said), 1)), limited);
        }
        // With another record before OPT, and truncated.
        let mut other = b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x00\x00\x03abc".to_vec();
        other.extend(opt(900));
        assert_eq!(limit(&query(&other, 2)), 900);
        assert_eq!(limit(&query(&opt(900)[..4], 1)), 512);
    }

    #[test]
    fn a_long_answer_is_truncated_to_its_question() {
        let mut answer = query(&[7; 2_000], 9);
        answer[2] |= RESPONSE;
        let whole = answer.clone();
        truncate_to(&mut answer, whole.len());
        assert_eq!(answer, whole);
        truncate_to(&mut answer, 1_232);
        assert_eq!(answer.len(), query(&[], 0).len());
        assert_eq!(answer[2], RESPONSE | TRUNCATED | 0x01);
        assert_eq!(answer[4..12], [0, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_failure_repeats_only_the_question() {
        let asked = query(&opt(900), 1);
        let answer = without_records(&asked, SERVFAIL).unwrap();
        assert_eq!(answer.len(), query(&[], 0).len());
        assert_eq!((answer[..2].to_vec(), answer[3] & 0xf), (asked[..2].to_vec(), SERVFAIL));
        assert!(is_answer(&answer) && without_records(&answer, SERVFAIL).is_none());
        assert_eq!(without_records(&asked[..11], SERVFAIL), None);
    }

    #[test]
    fn names_are_lowercased_and_addresses_found_among_other_records() {
        let asked = query(&[], 0);
        assert_eq!(question_name(&asked).as_deref(), Ok("a.example"));
        assert_eq!(question_name(&asked.to_ascii_uppercase()).as_deref(), Ok("a.example"));
        assert_eq!(question_name(&asked[..14]), Err(FORMERR));
        let mut answer = query(&[], 0);
        answer[2] |= RESPONSE;
        answer[7] = 3;
        answer.extend(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x09\x00\x04\x01b\xc0\x0e");
        answer.extend(b"\xc0\x1b\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04\xc0\x00\x02\x07");
        answer.extend(b"\xc0\x1b\x00\x1c\x00\x01\x00\x00\x00\x09\x00\x10");
        answer.extend("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        let shown: Vec<String> = addresses(&answer).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.7", "2001:db8::7"]);
        assert!(timed_addresses(&answer).all(|(_, ttl_s)| ttl_s == 9));
        assert_eq!(aliases(&answer).unwrap(), ["b.example"]);
        answer.pop();
        assert_eq!(addresses(&answer).len(), 1, "a record that is cut short");
        assert_eq!(aliases(&answer), None, "the missing record may be an alias of a blocked name");
        let refused = without_records(&asked, NXDOMAIN).unwrap();
        assert_eq!((refused.len(), refused[3] & 0xf), (asked.len(), NXDOMAIN));
    }

    /// Returns a message with these questions and these encoded records.
    fn message(questions: &[&[u8]], answers: &[&[u8]]) -> Vec<u8> {
        let mut bytes =
            vec![0, 1, 1, 0, 0, questions.len() as u8, 0, answers.len() as u8, 0, 0, 0, 0];
        for name in questions {
            bytes.extend([name, &[0, 1, 0, 1][..]].concat());
        }
        bytes.extend(answers.concat());
        bytes
    }

    #[test]
    fn a_query_has_one_question_with_an_uncompressed_name() {
        let good = b"\x01A\x07Blocked\x00";
        assert_eq!(question_name(&message(&[good], &[])).as_deref(), Ok("a.blocked"));
        assert_eq!(question_name(&message(&[b"\x00"], &[])).as_deref(), Ok(""), "the root zone");
        assert_eq!(question_name(&message(&[good, good], &[])), Err(FORMERR));
        assert_eq!(question_name(&message(&[], &[])), Err(FORMERR));
        // A pointer forward, to itself and into the header, and an unused label type.
        for odd in [b"\xc0\x12".as_slice(), b"\xc0\x0c", b"\x01a\xc0\x00", b"\x41a\x00"] {
            assert_eq!(question_name(&message(&[odd], &[])), Err(FORMERR), "{odd:?}");
        }
        let mut update = message(&[good], &[]);
        update[2] = 0x28;
        assert_eq!(question_name(&update), Err(NOTIMP));
        // A dot within a label does not separate labels.
        let dotted = message(&[b"\x09x.blocked\x03a\\\xff\x00"], &[]);
        assert_eq!(question_name(&dotted).as_deref(), Ok("x\\046blocked.a\\092\\255"));
    }

    #[test]
    fn aliases_in_an_answer_are_found_and_pointer_loops_refused() {
        let question: &[&[u8]] = &[b"\x01a\x07blocked\x00"];
        let record = |kind: u8, data: &[u8]| {
            [&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 9, 0, data.len() as u8][..], data].concat()
        };
        for (kind, data, led) in [
            (5, b"\x01B\xc0\x0e".as_slice(), Some("b.blocked")),
            (39, b"\x01c\x02de\x00", Some("c.de")),
            (65, b"\x00\x01\xc0\x0e", Some("blocked")),
            (64, b"\x00\x00\x01z\x00", Some("z")),
            (65, b"\x00\x01\x00", Some("")),
            // A pointer to itself, and forward.
            (5, b"\xc0\x2a", None),
            (5, b"\xc0\xff", None),
            (5, b"\x01b", None),
            (65, b"", None),
        ] {
            let answer = message(question, &[&record(kind, data)]);
            let found = aliases(&answer);
            let expected = led.map(|name| vec![name.to_owned()]);
            assert_eq!(found, expected, "{kind} {data:?}");
        }
        assert_eq!(aliases(&message(question, &[&record(16, b"text")])), Some(Vec::new()));
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
            // A byte is written as at most four characters.
            let len = question_name(&bytes).map_or(0, |name| name.len());
            assert!(len <= 4 * bytes.len());
            assert!(addresses(&bytes).len() * 4 <= bytes.len());
            let _ = aliases(&bytes);
            if let Some(answer) = without_records(&bytes, SERVFAIL) {
                assert!(answer.len() <= bytes.len() && is_answer(&answer));
            }
            if bytes.len() >= HEADER_LEN {
                let before = bytes.len();
                truncate_to(&mut bytes, 20);
                assert!(bytes.len() <= before && bytes.len() <= 20.max(HEADER_LEN));
            }
        }
    }
}
