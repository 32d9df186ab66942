//! Finds records in DNS messages (RFC 1035, 4.1). Names are skipped.

use core::net::IpAddr;

/// Length of the header in bytes.
pub const DNS_HEADER_LEN: usize = 12;
/// Type of records with an IPv4 address.
pub const DNS_A: u16 = 1;
/// Type of records with an IPv6 address.
pub const DNS_AAAA: u16 = 28;
/// Maximum number of labels in a name: 255 bytes, at least two per label.
const MAX_LABELS: usize = 128;
/// Maximum number of questions skipped. Messages have one.
const MAX_QUESTIONS: u16 = 8;

/// A record in the answer section.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DnsRecord<'a> {
    /// Record type.
    pub kind: u16,
    /// Time to live in seconds.
    pub ttl_s: u32,
    /// Record data.
    pub data: &'a [u8],
    /// Offset of the data in the message. Compressed names in the data refer to it.
    pub data_at: usize,
}

impl DnsRecord<'_> {
    /// The address, if it is an address record.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self.kind {
            DNS_A => Some(IpAddr::from(<[u8; 4]>::try_from(self.data).ok()?)),
            DNS_AAAA => Some(IpAddr::from(<[u8; 16]>::try_from(self.data).ok()?)),
            _ => None,
        }
    }
}

/// Offset after the name that starts at `at`; `None` if the name does not end within the message.
#[must_use]
pub fn skip_dns_name(message: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..MAX_LABELS {
        match *message.get(at)? {
            0 => return Some(at + 1),
            pointer if pointer >= 0xc0 => return Some(at + 2),
            len => at += 1 + usize::from(len),
        }
    }
    None
}

/// Offset of the first record after the questions; `None` if these do not end within the message.
#[must_use]
pub fn skip_dns_questions(message: &[u8]) -> Option<usize> {
    let mut at = DNS_HEADER_LEN;
    for _ in 0..number(message, 4)?.min(MAX_QUESTIONS) {
        at = skip_dns_name(message, at)? + 4;
    }
    (at <= message.len()).then_some(at)
}

/// The records of the answer section. An item is `None` if a record cannot be parsed, and is then the last.
pub fn dns_answers(message: &[u8]) -> impl Iterator<Item = Option<DnsRecord<'_>>> {
    let mut at = skip_dns_questions(message);
    let count = number(message, 6).unwrap_or_default();
    let mut left = if at.is_some() { count } else { 1 };
    core::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        let read = at.and_then(|at| record(message, at));
        at = read.map(|(_, behind)| behind);
        if read.is_none() {
            left = 0;
        }
        Some(read.map(|(record, _)| record))
    })
}

/// Parses the record that starts at `at`. Returns the record and its end.
fn record(message: &[u8], at: usize) -> Option<(DnsRecord<'_>, usize)> {
    let at = skip_dns_name(message, at)?;
    let kind = number(message, at)?;
    let ttl_s = u32::from_be_bytes(message.get(at + 4..at + 8)?.try_into().ok()?);
    let behind = at + 10 + usize::from(number(message, at + 8)?);
    let data_at = at + 10;
    let data = message.get(data_at..behind)?;
    Some((DnsRecord { kind, ttl_s, data, data_at }, behind))
}

fn number(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with one question and two records, the second with four bytes of data.
    const ANSWER: &[u8] = b"\x00\x01\x81\x80\x00\x01\x00\x02\x00\x00\x00\x00\
        \x01a\x02bc\x00\x00\x01\x00\x01\
        \xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x09\x00\x00\
        \xc0\x0c\x00\x01\x00\x01\x00\x00\x01\x00\x00\x04\xc0\x00\x02\x01";

    #[test]
    fn records_are_found_after_the_questions() {
        assert_eq!(skip_dns_questions(ANSWER), Some(12 + 6 + 4));
        let mut answers = dns_answers(ANSWER);
        assert_eq!(
            answers.next(),
            Some(Some(DnsRecord { kind: 5, ttl_s: 9, data: b"", data_at: 34 }))
        );
        let data = b"\xc0\x00\x02\x01";
        assert_eq!(
            answers.next(),
            Some(Some(DnsRecord { kind: DNS_A, ttl_s: 256, data, data_at: 46 }))
        );
        assert_eq!(answers.next(), None);
    }

    #[test]
    fn an_unreadable_record_ends_the_answers_with_an_error() {
        for len in 0..ANSWER.len() {
            let read: std::vec::Vec<_> = dns_answers(&ANSWER[..len]).collect();
            assert_eq!(read.last(), Some(&None), "{len} bytes: {read:?}");
            assert!(read.len() <= 2);
        }
        let mut endless = *b"\x00\x01\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00\x3f\x01\x01\x01";
        endless[12] = 1;
        assert_eq!(skip_dns_questions(&endless), None);
    }
}
