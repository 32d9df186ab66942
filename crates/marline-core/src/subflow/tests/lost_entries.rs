//! Tests of the list of lost entries that wait for retransmission.

use marline_policy::{RateStamp, SentSegment, Ssn};
use marline_time::Instant;

use super::pair::config;
use crate::subflow::transmission::Transmission;

const ENTRIES: usize = 200;

fn renege(tx: &mut Transmission, index: usize) {
    tx.board.renege(index);
    tx.queue_lost(index);
}

fn repeat_lowest(tx: &mut Transmission) -> Option<usize> {
    let index = tx.pop_lost()?;
    tx.board.mark_retransmitted(index, Instant::ZERO, RateStamp::default());
    Some(index)
}

/// A peer can cause this with SACKs that it revokes: every segment is lost, and SACKed again before it is repeated.
#[test]
fn the_list_of_lost_entries_stays_as_short_as_the_scoreboard() {
    let mut tx = Transmission::new(&config(), 100, Instant::ZERO);
    for number in 0..ENTRIES {
        let (start, end) = (Ssn(number as u64 * 100), Ssn(number as u64 * 100 + 100));
        tx.board.push(SentSegment { start, end, mapping_start: start, ..SentSegment::default() });
        tx.board.mark_sacked(number);
    }
    let round = |tx: &mut Transmission, repeats: usize| {
        (0..ENTRIES).for_each(|index| renege(tx, index));
        for expected in 0..repeats {
            assert_eq!(repeat_lowest(tx), Some(expected));
        }
        (0..ENTRIES).for_each(|index| {
            tx.board.mark_sacked(index);
        });
    };
    (0..5).for_each(|repeats| round(&mut tx, repeats));
    let before = tx.memory();
    (0..1_000).for_each(|number| round(&mut tx, number % 5));
    assert!(tx.memory() <= before, "{} bytes, {before} before", tx.memory());
    // All entries are still there.
    [7, 3, 5].into_iter().for_each(|index| renege(&mut tx, index));
    let repeated: Vec<usize> = core::iter::from_fn(|| repeat_lowest(&mut tx)).collect();
    assert_eq!(repeated, [3, 5, 7]);
}
