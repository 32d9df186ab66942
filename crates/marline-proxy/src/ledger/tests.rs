use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::quota::period;

/// 2026-11-24 12:00 UTC.
const NOW: u64 = 1_795_521_600;
const DAY_S: u64 = 86_400;

fn at(now_unix_s: u64) -> Moment {
    Moment { now_unix_s, period_start_unix_s: period(1, now_unix_s).start_unix_s }
}

fn bytes(sent_bytes: u64) -> PendingCounts {
    PendingCounts { sent_bytes, seen: true, ..PendingCounts::default() }
}

fn save(ledger: &mut Ledger, now_unix_s: u64) -> bool {
    let Some(writing) = ledger.begin_write(now_unix_s, true) else { return false };
    let written = writing.run();
    let well = written.result.is_ok();
    ledger.finish(written);
    well
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state");
    (dir, path)
}

#[test]
fn a_crash_loses_only_a_bounded_part_of_the_ledger() {
    let (_dir, path) = file();
    let mut ledger = Ledger::open(path.clone());
    ledger.count(
        "laptop",
        PendingCounts { connections: 1, received_bytes: 5, ..bytes(1_000) },
        at(NOW),
    );
    assert!(ledger.begin_write(NOW + SAVE_AFTER_S - 1, false).is_none(), "nothing is due");
    let due = ledger.begin_write(NOW + SAVE_AFTER_S, false).expect("a write is due");
    ledger.count("laptop", bytes(7), at(NOW + SAVE_AFTER_S));
    ledger.finish(due.run());
    assert_eq!(
        ledger.tally_of("laptop", at(NOW)).sent_bytes,
        1_007,
        "including counts that arrived during the write"
    );
    // The process is killed here.
    let ledger = Ledger::open(path.clone());
    let tally = ledger.tally_of("laptop", at(NOW));
    assert_eq!((tally.sent_bytes, tally.received_bytes, tally.connections), (1_000, 5, 1));
    assert_eq!((tally.seen_unix_s, tally.period_bytes), (NOW, 1_005));
    private_file::check_mode(&path).unwrap();
}

#[test]
fn many_bytes_are_written_before_the_time() {
    let (_dir, path) = file();
    let mut ledger = Ledger::open(path);
    ledger.count("a", bytes(SAVE_BYTES - 1), at(NOW));
    assert!(ledger.begin_write(NOW, false).is_none());
    ledger.count("a", bytes(1), at(NOW));
    assert!(ledger.begin_write(NOW, false).is_some());
}

#[test]
fn nothing_is_written_while_nothing_is_counted() {
    let (_dir, path) = file();
    let mut ledger = Ledger::open(path.clone());
    ledger.count("a", PendingCounts::default(), at(NOW));
    assert!(!save(&mut ledger, NOW + DAY_S));
    assert!(!path.exists());
}

#[test]
fn two_processes_lose_nothing_of_each_others_and_learn_of_it() {
    let (_dir, path) = file();
    let (mut old, mut new) = (Ledger::open(path.clone()), Ledger::open(path.clone()));
    old.count("laptop", bytes(100), at(NOW));
    new.count("laptop", bytes(20), at(NOW));
    assert!(save(&mut old, NOW) && save(&mut new, NOW));
    assert_eq!(new.tally_of("laptop", at(NOW)).period_bytes, 120);
    // The old one has nothing to write, but reads what the new one wrote.
    assert_eq!(old.tally_of("laptop", at(NOW)).period_bytes, 100);
    let reading = old.begin_write(NOW, false).expect("the file has changed");
    old.finish(reading.run());
    assert_eq!(old.tally_of("laptop", at(NOW)).period_bytes, 120);
    assert!(old.begin_write(NOW, false).is_none(), "once");
    old.count("laptop", bytes(3), at(NOW));
    assert!(save(&mut old, NOW));
    assert_eq!(Ledger::open(path).tally_of("laptop", at(NOW)).sent_bytes, 123);
}

#[test]
fn a_month_restarts_its_count_for_either_writer_and_sums_continue() {
    let (_dir, path) = file();
    let (mut old, mut new) = (Ledger::open(path.clone()), Ledger::open(path.clone()));
    let (november, december) = (at(NOW), at(NOW + 10 * DAY_S));
    old.count("lte", bytes(100), november);
    assert!(save(&mut old, NOW));
    assert_eq!(old.tally_of("lte", december).period_bytes, 0, "read in December");
    old.count("lte", bytes(1), december);
    new.count("lte", bytes(2), december);
    assert!(save(&mut new, december.now_unix_s) && save(&mut old, december.now_unix_s));
    let tally = Ledger::open(path.clone()).tally_of("lte", december);
    assert_eq!((tally.period_bytes, tally.sent_bytes), (3, 103));
    assert_eq!(tally.period_start_unix_s, december.period_start_unix_s);
    // A late write of counts from November does not restore that month.
    let mut late = Ledger::open(path.clone());
    late.unwritten.insert(
        "lte".into(),
        Tally {
            sent_bytes: 10,
            period_start_unix_s: november.period_start_unix_s,
            period_bytes: 10,
            ..Tally::default()
        },
    );
    late.since_unix_s = Some(NOW);
    assert!(save(&mut late, december.now_unix_s));
    let tally = Ledger::open(path).tally_of("lte", december);
    assert_eq!(tally.period_start_unix_s, december.period_start_unix_s);
    assert_eq!(tally.sent_bytes, 113);
}

#[test]
fn a_wrong_clock_neither_starts_nor_ends_a_month_for_good() {
    let (_dir, path) = file();
    let mut ledger = Ledger::open(path.clone());
    ledger.count("lte", bytes(100), at(NOW));
    // After a boot, before the clock is set.
    ledger.count("lte", bytes(1), at(60));
    assert_eq!(ledger.tally_of("lte", at(60)).period_bytes, 101);
    assert_eq!(ledger.tally_of("lte", at(NOW)).period_bytes, 101);
    // Ten years ahead: a new month. When the clock is right again, it becomes the current month.
    let ahead = at(NOW + 3_650 * DAY_S);
    ledger.count("lte", bytes(5), ahead);
    assert_eq!(ledger.tally_of("lte", ahead).period_bytes, 5);
    assert!(save(&mut ledger, ahead.now_unix_s));
    ledger.count("lte", bytes(2), at(NOW));
    assert!(save(&mut ledger, NOW));
    let mut ledger = Ledger::open(path);
    let tally = ledger.tally_of("lte", at(NOW));
    assert_eq!((tally.period_bytes, tally.period_start_unix_s), (7, at(NOW).period_start_unix_s));
    let december = at(NOW + 10 * DAY_S);
    ledger.count("lte", bytes(1), december);
    assert!(save(&mut ledger, december.now_unix_s));
    assert_eq!(ledger.tally_of("lte", december).period_bytes, 1);
}

#[test]
fn garbage_is_moved_aside() {
    for garbage in [
        &b"\xff\xfe\x00"[..],
        b"tally = 7",
        b"version = 99",
        b"version = 1\n[[tally]]\nname = 'a'\nsent-bytes = -4\n",
        b"version = 1\n[[tally]]\nname = 'a'\nsent-bytes = 99999999999999999999\n",
        b"",
    ] {
        let (_dir, path) = file();
        std::fs::write(&path, garbage).unwrap();
        assert!(read(&path).is_err(), "{garbage:?}");
        let mut ledger = Ledger::open(path.clone());
        assert!(!path.exists());
        let aside = private_file::with_suffix(&path, ".bad");
        assert_eq!(std::fs::read(aside).unwrap(), garbage);
        ledger.count("a", bytes(1), at(NOW));
        assert!(save(&mut ledger, NOW));
        assert_eq!(read(&path).unwrap()["a"].sent_bytes, 1);
    }
}

#[test]
fn unsaved_counts_are_kept_and_retried() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("not a directory");
    std::fs::write(&below, "").unwrap();
    let path = below.join("state");
    let mut ledger = Ledger::open(path.clone());
    ledger.count("a", bytes(1), at(NOW));
    assert!(!save(&mut ledger, NOW) && !save(&mut ledger, NOW));
    assert_eq!((ledger.failures(), ledger.tally_of("a", at(NOW)).sent_bytes), (2, 1));
    assert!(
        ledger.begin_write(NOW + SAVE_AFTER_S - 1, false).is_none(),
        "no retry immediately after a failure"
    );
    std::fs::remove_file(&below).unwrap();
    ledger.count("a", bytes(2), at(NOW));
    assert!(save(&mut ledger, NOW + SAVE_AFTER_S));
    assert_eq!(read(&path).unwrap()["a"].sent_bytes, 3);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn names_are_bounded() {
    let (_dir, path) = file();
    let mut ledger = Ledger::open(path.clone());
    for number in 0..MAX_LEDGER_NAMES as u64 + 5 {
        ledger.count(&number.to_string(), bytes(1), at(NOW + number));
    }
    assert!(save(&mut ledger, NOW));
    assert_eq!(read(&path).unwrap().len(), MAX_LEDGER_NAMES);
}
