use marline_time::{Rng, SeedTree};
use marline_wire::repair_code::ROWS;

use super::*;

/// A stream with missing parts.
struct Stream {
    bytes: Vec<u8>,
    have: Vec<bool>,
    oldest: u64,
}

impl Stream {
    fn new(len: usize, rng: &mut impl Rng) -> Self {
        let bytes = (0..len).map(|_| rng.below(256) as u8).collect();
        Stream { bytes, have: vec![true; len], oldest: 0 }
    }

    fn lose(&mut self, range: core::ops::Range<usize>) {
        self.have[range].fill(false);
    }

    /// Sum over a range, as computed by a sender.
    fn repair(&self, range: Range<u64>, symbol: u16, row: u8) -> (Repair, Vec<u8>) {
        let range = DataRange::new(Dsn(range.start), Dsn(range.end));
        let repair = Repair { range, symbol, row };
        let mut sum = vec![0; usize::from(symbol)];
        repair.add(Dsn(0), &self.bytes, &mut sum);
        (repair, sum)
    }

    /// Accepts recovered bytes. They must be correct and only fill gaps (possibly one gap twice, from sums of two
    /// sizes).
    fn take(&mut self, found: Vec<(Dsn, Vec<u8>)>) -> usize {
        let before = (self.have.clone(), self.lost());
        for (at, bytes) in found {
            let place = at.0 as usize..at.0 as usize + bytes.len();
            assert_eq!(self.bytes[place.clone()], bytes, "at {at:?}");
            assert!(!before.0[place.clone()].contains(&true), "{at:?} was not missing");
            self.have[place].fill(true);
        }
        before.1 - self.lost()
    }

    fn lost(&self) -> usize {
        self.have.iter().filter(|have| !**have).count()
    }
}

impl KnownBytes for Stream {
    fn oldest(&self) -> Dsn {
        Dsn(self.oldest)
    }

    fn next(&self) -> Dsn {
        let next = self.have.iter().position(|have| !have).unwrap_or(self.have.len());
        Dsn(next as u64)
    }

    fn missing_ranges(&self, range: DataRange, holes: &mut Vec<DataRange>) {
        for p in range.start.0..range.end.0 {
            if self.have.get(p as usize).copied().unwrap_or(false) {
                continue;
            }
            match holes.last_mut() {
                Some(last) if last.end == Dsn(p) => last.end = Dsn(p + 1),
                _ => holes.push(DataRange::new(Dsn(p), Dsn(p + 1))),
            }
        }
    }

    fn read(&self, at: Dsn, out: &mut [u8]) -> bool {
        let range = at.0 as usize..at.0 as usize + out.len();
        let known = self.have.get(range.clone()).filter(|_| at.0 >= self.oldest);
        if !known.is_some_and(|have| have.iter().all(|have| *have)) {
            return false;
        }
        out.copy_from_slice(&self.bytes[range]);
        true
    }
}

fn rng(name: &str, seed: u64) -> impl Rng + use<> {
    SeedTree::new(seed).stream(name)
}

/// Any n rows repair any n lost segments, wherever the segments begin: 300 bursts.
#[test]
fn any_n_repairs_bring_back_any_n_lost_segments() {
    for seed in 0..300 {
        let mut rng = rng("any-n", seed);
        let symbol = 1 + rng.below(60) as u16;
        let first = rng.below(500);
        let cells = 1 + rng.below(40);
        let len = (first + cells * u64::from(symbol)) as usize;
        let mut stream = Stream::new(len, &mut rng);
        let mut decoder = Decoder::default();
        // Segments as long as a symbol, starting with the burst, not aligned with the cells.
        let losses = 1 + rng.below(cells.min(12));
        let mut rows: Vec<u8> = (0..ROWS).collect();
        let segment = |n: u64| (first + n * u64::from(symbol)) as usize;
        for _ in 0..losses {
            let n = rng.below(cells);
            stream.lose(segment(n)..segment(n + 1));
        }
        let lost = stream.lost() as u64 / u64::from(symbol);
        for n in 0..lost {
            assert_eq!(stream.take(decoder.solve(&stream)), 0, "seed {seed}: too early");
            let row = rows.swap_remove(rng.below(rows.len() as u64) as usize);
            let (repair, sum) = stream.repair(first..len as u64, symbol, row);
            assert!(decoder.add(repair, &sum, &stream), "seed {seed}: repair {n}");
        }
        stream.take(decoder.solve(&stream));
        assert_eq!(stream.lost(), 0, "seed {seed}: {lost} segments of {symbol}");
        assert!(decoder.solve(&stream).is_empty() && decoder.is_empty() && decoder.memory() == 0);
    }
}

/// Repairs over ranges that overlap, losses of all lengths, in any order: all recovered bytes are correct.
#[test]
fn computed_data_is_correct_for_any_mix_of_repairs_and_losses() {
    let (mut computed, mut complete) = (0, 0);
    for seed in 0..400 {
        let mut rng = rng("mixture", seed);
        let len = 200 + rng.below(3_000);
        let mut stream = Stream::new(len as usize, &mut rng);
        let mut decoder = Decoder::default();
        for _ in 0..rng.below(6) {
            let start = rng.below(len);
            stream.lose(start as usize..(start + 1 + rng.below(90)).min(len) as usize);
        }
        let sizes = [64, 100, 1 + rng.below(200) as u16];
        for _ in 0..20 {
            let start = rng.below(len);
            let range = start..(start + 1 + rng.below(1_500)).min(len);
            let symbol = sizes[rng.below(3) as usize];
            let (repair, sum) = stream.repair(range, symbol, rng.below(256) as u8);
            decoder.add(repair, &sum, &stream);
            assert!(decoder.memory() <= MAX_BYTES && decoder.equations.len() <= MAX_REPAIRS);
            computed += stream.take(decoder.solve(&stream));
        }
        complete += u32::from(stream.lost() == 0);
    }
    assert!(computed > 20_000 && complete > 200, "{computed} bytes, {complete} streams");
}

/// A window that slides by two segments with each repair: losses are solved across repairs.
#[test]
fn overlapping_repairs_are_solved_together() {
    let mut rng = rng("sliding", 1);
    let mut stream = Stream::new(1_000, &mut rng);
    let mut decoder = Decoder::default();
    stream.lose(300..400);
    stream.lose(500..600);
    // The first covers both losses, the second only the later one; the same row in their overlap.
    for (range, row) in [(200..700, 0), (450..900, 0)] {
        let (repair, sum) = stream.repair(range, 100, row);
        assert!(decoder.add(repair, &sum, &stream));
    }
    let found = decoder.solve(&stream);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(stream.take(found), 200);
}

#[test]
fn part_of_a_loss_is_repaired_where_columns_allow() {
    let mut stream = Stream::new(400, &mut rng("part", 1));
    let mut decoder = Decoder::default();
    // 150 bytes in symbols of 100: half of the columns miss two bytes.
    stream.lose(120..270);
    let (repair, sum) = stream.repair(0..400, 100, 0);
    decoder.add(repair, &sum, &stream);
    assert_eq!(stream.take(decoder.solve(&stream)), 50);
    let (repair, sum) = stream.repair(0..400, 100, 1);
    decoder.add(repair, &sum, &stream);
    assert_eq!(stream.take(decoder.solve(&stream)), 100);
}

#[test]
fn useless_repairs_are_not_kept() {
    let mut stream = Stream::new(1_000, &mut rng("useless", 1));
    stream.lose(500..600);
    stream.oldest = 100;
    let mut decoder = Decoder::default();
    let (repair, sum) = stream.repair(50..700, 100, 0);
    assert!(!decoder.add(repair, &sum, &stream), "reaches back too far");
    let (repair, sum) = stream.repair(100..500, 100, 0);
    assert!(!decoder.add(repair, &sum, &stream), "nothing is missing");
    let (repair, sum) = stream.repair(100..700, 100, 0);
    assert!(!decoder.add(repair, &sum[1..], &stream), "a sum of the wrong length");
    assert!(decoder.add(repair, &sum, &stream));
    assert!(!decoder.add(repair, &sum, &stream), "twice");
    assert!(!decoder.add(Repair { symbol: 0, ..repair }, &[], &stream), "no symbol");
    stream.have.fill(true);
    assert!(decoder.solve(&stream).is_empty() && decoder.is_empty());
}

/// Wrong input of every kind: no panic, received data is never changed, memory stays bounded.
#[test]
fn false_repairs_use_bounded_memory_and_change_no_received_data() {
    for seed in 0..300 {
        let mut rng = rng("lies", seed);
        let mut stream = Stream::new(2_000, &mut rng);
        for _ in 0..rng.below(60) {
            let start = rng.below(1_900) as usize;
            stream.lose(start..start + 1 + rng.below(80) as usize);
        }
        stream.oldest = rng.below(300);
        let mut decoder = Decoder::default();
        for _ in 0..60 {
            let start = match rng.below(8) {
                0 => u64::MAX - rng.below(10),
                _ => rng.below(2_500),
            };
            let end = start.saturating_add(rng.below(70_000));
            let symbol = [0, 1, 3, 64, 1_400, u16::MAX][rng.below(6) as usize];
            let range = DataRange::new(Dsn(start), Dsn(end));
            let repair = Repair { range, symbol, row: rng.below(256) as u8 };
            let sum = vec![rng.below(256) as u8; usize::from(symbol)];
            decoder.add(repair, &sum, &stream);
            assert!(decoder.memory() <= MAX_BYTES && decoder.equations.len() <= MAX_REPAIRS);
            for (at, bytes) in decoder.solve(&stream) {
                for p in at.0..at.0 + bytes.len() as u64 {
                    assert!(!stream.have.get(p as usize).copied().unwrap_or(false), "at {p}");
                }
            }
        }
    }
}
