//! Messages of the exchange: a line that says what it is, and a line for each address pair.

use core::fmt::Write;
use core::str::{FromStr, SplitAsciiWhitespace};

use marline_core::{AddressPairStatistics, AddressPairVerdict};
use marline_policy::{AddressPair, AddressPairFault};
use marline_time::{Duration, Instant};

use crate::clock::Clock;

/// Lines of a message at most; further ones are not read.
pub(super) const MAX_LINES: usize = 256;

/// What a message of this version begins with.
const HEADER: &str = "marline-path-health 1 ";

const FAULTS: [AddressPairFault; 5] = [
    AddressPairFault::Loss,
    AddressPairFault::Retransmissions,
    AddressPairFault::Rto,
    AddressPairFault::Unanswered,
    AddressPairFault::Silent,
];

/// A message; times are those of a process' clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// All verdicts that the sender found, and holds.
    Verdicts(Vec<AddressPairVerdict>),
    /// What its connections did since its last message of the kind.
    Statistics(Vec<(AddressPair, AddressPairStatistics)>),
}

impl Message {
    /// Its text, in which times are the machine's.
    pub(super) fn text(&self, clock: &Clock) -> String {
        let mut text = String::from(HEADER);
        let written = match self {
            Message::Verdicts(verdicts) => {
                text.push_str("verdicts\n");
                verdicts.iter().take(MAX_LINES).try_for_each(|verdict| {
                    let AddressPairVerdict { address_pair, fault, since, unheard_from } = verdict;
                    let [since, unheard_from] =
                        [since, unheard_from].map(|at| clock.machine_nanos(*at));
                    writeln!(text, "{} {fault} {since} {unheard_from}", pair_text(address_pair))
                })
            }
            Message::Statistics(parts) => {
                text.push_str("statistics\n");
                parts.iter().take(MAX_LINES).try_for_each(|(pair, part)| {
                    let AddressPairStatistics {
                        lost,
                        outstanding,
                        at_risk,
                        retransmitted,
                        sent,
                        rto,
                    } = part;
                    let (pair, rto) = (pair_text(pair), rto.as_nanos());
                    writeln!(
                        text,
                        "{pair} {lost} {outstanding} {at_risk} {retransmitted} {sent} {rto}"
                    )
                })
            }
        };
        debug_assert!(written.is_ok(), "a String takes everything");
        text
    }

    /// Reads a text; `None` if it is none of ours.
    pub(super) fn read(text: &[u8], clock: &Clock) -> Option<Message> {
        let text = core::str::from_utf8(text).ok()?.strip_prefix(HEADER)?;
        let (kind, rest) = text.split_once('\n')?;
        // A line that was cut off is none.
        (rest.is_empty() || rest.ends_with('\n')).then_some(())?;
        let lines = rest.lines().take(MAX_LINES);
        match kind {
            "verdicts" => {
                lines.map(|line| verdict(line, clock)).collect::<Option<_>>().map(Message::Verdicts)
            }
            "statistics" => lines.map(statistics).collect::<Option<_>>().map(Message::Statistics),
            _ => None,
        }
    }
}

fn pair_text(pair: &AddressPair) -> String {
    format!("{} {} {}", pair.local, pair.remote, pair.interface)
}

fn verdict(line: &str, clock: &Clock) -> Option<AddressPairVerdict> {
    let mut words = line.split_ascii_whitespace();
    let address_pair = pair(&mut words)?;
    let fault = words.next()?;
    let fault = FAULTS.into_iter().find(|known| known.to_string() == fault)?;
    let mut time = || word(&mut words).map(|nanos| clock.at_machine_nanos(nanos));
    let (since, unheard_from): (Instant, Instant) = (time()?, time()?);
    ended(words)?;
    Some(AddressPairVerdict { address_pair, fault, since, unheard_from })
}

fn statistics(line: &str) -> Option<(AddressPair, AddressPairStatistics)> {
    let mut words = line.split_ascii_whitespace();
    let address_pair = pair(&mut words)?;
    let part = AddressPairStatistics {
        lost: word(&mut words)?,
        outstanding: word(&mut words)?,
        at_risk: word(&mut words)?,
        retransmitted: word(&mut words)?,
        sent: word(&mut words)?,
        rto: Duration::from_nanos(word(&mut words)?),
    };
    ended(words)?;
    Some((address_pair, part))
}

fn pair(words: &mut SplitAsciiWhitespace<'_>) -> Option<AddressPair> {
    Some(AddressPair { local: word(words)?, remote: word(words)?, interface: word(words)? })
}

fn word<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

fn ended(mut words: SplitAsciiWhitespace<'_>) -> Option<()> {
    words.next().is_none().then_some(())
}
