//! Tests of the targets in the side-by-side table, in virtual time and with fewer seeds than the
//! example `rows`, which prints all of it.

use crate::cases::rows::{Claim, echo, failure, stream};

fn check(claims: &[Claim]) {
    claims.iter().for_each(|claim| println!("{claim}"));
    let missed: Vec<&Claim> = claims.iter().filter(|claim| !claim.holds()).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn messages_sent_redundantly_are_as_early_as_ideal_duplicates() {
    check(&echo::redundant(6));
}

#[test]
fn messages_sent_once_feel_losses_for_less_than_300_ms() {
    check(&echo::default(6));
}

#[test]
fn a_small_send_buffer_is_enough_for_both_paths() {
    check(&stream::blocks(2));
}

#[test]
fn a_burst_survives_the_death_of_its_path() {
    check(&failure::bursts(11));
}

#[test]
fn a_backup_takes_over_soon() {
    check(&failure::handover(11));
}

#[test]
fn a_slow_second_path_does_not_fill_the_window() {
    check(&stream::small_windows(1));
}

#[test]
fn two_links_carry_more_than_one() {
    check(&stream::bulk(2));
}
