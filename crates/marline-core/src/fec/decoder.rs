//! Decoder of repairs: the linear system for the missing bytes.
//!
//! The decoder holds the repairs that may still be needed. The stream itself stays in the receive buffer, which also
//! keeps the last bytes that were read. When bytes or a repair arrive, it examines the gaps in the stream. Columns
//! between two adjacent edges of gaps and ranges have the same unknown cells, hence the same matrix: this matrix is
//! brought to reduced echelon form once for all of them, together with the transformation of the equations. Bytes are
//! computed only for unknowns that are determined.
//!
//! *Hostile input.* The peer controls all input: a repair is as trustworthy as its other bytes, and fills only gaps,
//! never received data. Its cost is bounded. At most [`MAX_REPAIRS`] repairs with at most [`MAX_BYTES`] in total are
//! held; the oldest are dropped first. Repairs that reach back beyond the kept data are dropped on arrival. With more
//! than [`MAX_GAPS`] gaps, no solution is attempted. Columns with more unknowns than equations are skipped.

use core::ops::Range;

use marline_policy::{DataRange, Dsn};
use marline_wire::repair_code::{add_multiple, inverse, multiply};

use super::code::Repair;

/// Limit on repairs held.
const MAX_REPAIRS: usize = 24;
/// Limit on the total bytes of the repairs held.
const MAX_BYTES: usize = 96 * 1024;
/// Maximum number of gaps, over all repairs, for which decoding is attempted.
const MAX_GAPS: usize = 48;

/// Known part of the stream.
pub(crate) trait KnownBytes {
    /// First byte that can still be read.
    fn oldest(&self) -> Dsn;
    /// First missing byte.
    fn next(&self) -> Dsn;
    /// Missing parts of `range`, in order.
    fn missing_ranges(&self, range: DataRange, holes: &mut Vec<DataRange>);
    /// Copies known bytes. False if some of them are missing.
    fn read(&self, at: Dsn, out: &mut [u8]) -> bool;
}

/// One repair and its sum.
#[derive(Clone, Debug)]
struct Equation {
    repair: Repair,
    sum: Vec<u8>,
}

/// Repairs that may still be needed.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    equations: Vec<Equation>,
    bytes: usize,
}

/// A solved unknown: its cell, and the factor of each equation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Solution {
    cell: u64,
    factors: Vec<(usize, u8)>,
}

impl Decoder {
    /// True if there are no repairs.
    pub(crate) fn is_empty(&self) -> bool {
        self.equations.is_empty()
    }

    /// Memory held, in bytes.
    pub(crate) const fn memory(&self) -> usize {
        self.bytes
    }

    /// Adds a repair if it is useful. Returns true if it was added.
    pub(crate) fn add(&mut self, repair: Repair, sum: &[u8], known: &impl KnownBytes) -> bool {
        let known_already = self.equations.iter().any(|e| e.repair == repair);
        let fits = sum.len() == usize::from(repair.symbol) && sum.len() <= MAX_BYTES;
        let useful = repair.range.start >= known.oldest() && repair.range.end > known.next();
        if known_already || !fits || !repair.is_valid() || !useful {
            return false;
        }
        while self.equations.len() >= MAX_REPAIRS || self.bytes + sum.len() > MAX_BYTES {
            self.bytes -= self.equations.remove(0).sum.len();
        }
        self.bytes += sum.len();
        self.equations.push(Equation { repair, sum: sum.to_vec() });
        true
    }

    /// Recovers missing data. Repairs that are no longer useful are dropped.
    pub(crate) fn solve(&mut self, known: &impl KnownBytes) -> Vec<(Dsn, Vec<u8>)> {
        self.drop_useless(known);
        let mut found = Vec::new();
        let mut sizes: Vec<u16> = self.equations.iter().map(|e| e.repair.symbol).collect();
        sizes.sort_unstable();
        sizes.dedup();
        for symbol in sizes {
            self.solve_size(symbol, known, &mut found);
        }
        found
    }

    fn drop_useless(&mut self, known: &impl KnownBytes) {
        let (oldest, next) = (known.oldest(), known.next());
        let mut holes = Vec::new();
        self.equations.retain(|equation| {
            let range = equation.repair.range;
            holes.clear();
            if range.start >= oldest && range.end > next {
                known.missing_ranges(range, &mut holes);
            }
            !holes.is_empty()
        });
        self.bytes = self.equations.iter().map(|e| e.sum.len()).sum();
    }

    /// Solves all repairs of one symbol size: overlapping ones together.
    fn solve_size(&self, symbol: u16, known: &impl KnownBytes, found: &mut Vec<(Dsn, Vec<u8>)>) {
        let all: Vec<&Equation> =
            self.equations.iter().filter(|e| e.repair.symbol == symbol).collect();
        let Some(start) = all.iter().map(|e| e.repair.range.start).min() else { return };
        let Some(end) = all.iter().map(|e| e.repair.range.end).max() else { return };
        let mut holes = Vec::new();
        known.missing_ranges(DataRange::new(start, end), &mut holes);
        if holes.len() > MAX_GAPS {
            return;
        }
        let edges = column_edges(u64::from(symbol), &holes, &all);
        for pair in edges.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let unknowns = unknown_cells(u64::from(symbol), from, &holes);
            let mut columns = Columns { all: &all, range: from..to, unknowns, rests: Vec::new() };
            for solution in solve_columns(&all, &columns.unknowns, from) {
                let at = Dsn(solution.cell * u64::from(symbol) + from);
                if let Some(bytes) = columns.compute(&solution, known) {
                    append(found, at, bytes);
                }
            }
        }
    }
}

/// Appends bytes to a contiguous run, if there is one.
fn append(found: &mut Vec<(Dsn, Vec<u8>)>, at: Dsn, bytes: Vec<u8>) {
    match found.iter_mut().find(|(start, run)| start.plus(run.len() as u64) == at) {
        Some((_, run)) => run.extend(bytes),
        None => found.push((at, bytes)),
    }
}

/// Positions at which columns begin to differ in their unknowns or equations.
fn column_edges(symbol: u64, holes: &[DataRange], equations: &[&Equation]) -> Vec<u64> {
    let mut edges = vec![0, symbol];
    let ranges = equations.iter().map(|e| e.repair.range);
    for range in holes.iter().copied().chain(ranges) {
        edges.extend([range.start.0 % symbol, range.end.0 % symbol]);
    }
    edges.sort_unstable();
    edges.dedup();
    edges
}

/// Cells whose byte in this column is missing, in order; at most one more than can be solved for.
fn unknown_cells(symbol: u64, column: u64, holes: &[DataRange]) -> Vec<u64> {
    let mut cells = Vec::new();
    for hole in holes {
        let mut cell = hole.start.0 / symbol + u64::from(hole.start.0 % symbol > column);
        while cell * symbol + column < hole.end.0 && cells.len() <= MAX_REPAIRS {
            cells.push(cell);
            cell += 1;
        }
    }
    cells
}

/// Unknowns of a column that the equations determine.
fn solve_columns(equations: &[&Equation], unknowns: &[u64], column: u64) -> Vec<Solution> {
    if unknowns.is_empty() || unknowns.len() > equations.len() {
        return Vec::new();
    }
    // Each row: coefficients of the unknowns, then its combination of equations.
    let (width, count) = (unknowns.len(), equations.len());
    let mut rows: Vec<Vec<u8>> = Vec::with_capacity(count);
    for (number, equation) in equations.iter().enumerate() {
        let repair = &equation.repair;
        let mut row = vec![0; width + count];
        for (place, cell) in unknowns.iter().enumerate() {
            let at = Dsn(cell * u64::from(repair.symbol) + column);
            if repair.range.start <= at && at < repair.range.end {
                row[place] = repair.coefficient(*cell);
            }
        }
        row[width + number] = 1;
        rows.push(row);
    }
    reduce(&mut rows, width);
    let solved = |row: &Vec<u8>| {
        let mut places = (0..width).filter(|place| row[*place] != 0);
        let only = places.next().filter(|_| places.next().is_none())?;
        let factors = row[width..].iter().copied().enumerate().filter(|(_, f)| *f != 0);
        Some(Solution { cell: unknowns[only], factors: factors.collect() })
    };
    rows.iter().filter_map(solved).collect()
}

/// Brings the first `width` columns to reduced row echelon form.
fn reduce(rows: &mut [Vec<u8>], width: usize) {
    let mut done = 0;
    for place in 0..width {
        let Some(pivot) = (done..rows.len()).find(|row| rows[*row][place] != 0) else { continue };
        rows.swap(done, pivot);
        let scale = inverse(rows[done][place]);
        rows[done].iter_mut().for_each(|value| *value = multiply(*value, scale));
        let row = rows[done].clone();
        for (number, other) in rows.iter_mut().enumerate() {
            let factor = other[place];
            if number != done && factor != 0 {
                add_multiple(other, &row, factor);
            }
        }
        done += 1;
    }
}

/// Columns in each of which a cell is completely known, completely missing, or completely outside a range.
struct Columns<'a> {
    all: &'a [&'a Equation],
    range: Range<u64>,
    unknowns: Vec<u64>,
    /// For each equation used so far: its number, and the unknown part of its sum.
    rests: Vec<(usize, Vec<u8>)>,
}

impl Columns<'_> {
    /// Computes the bytes of a solved unknown.
    fn compute(&mut self, solution: &Solution, known: &impl KnownBytes) -> Option<Vec<u8>> {
        let mut result = vec![0; (self.range.end - self.range.start) as usize];
        for (number, factor) in &solution.factors {
            let index = match self.rests.iter().position(|(of, _)| of == number) {
                Some(index) => index,
                None => {
                    self.rests.push((*number, self.unknown_sum(*number, known)?));
                    self.rests.len() - 1
                }
            };
            add_multiple(&mut result, &self.rests[index].1, *factor);
        }
        Some(result)
    }

    /// Computes the unknown part of a sum.
    fn unknown_sum(&self, number: usize, known: &impl KnownBytes) -> Option<Vec<u8>> {
        let Equation { repair, sum } = self.all.get(number)?;
        let part = self.range.start as usize..self.range.end as usize;
        let mut rest = sum.get(part)?.to_vec();
        let mut bytes = vec![0; rest.len()];
        for cell in repair.cells().filter(|cell| !self.unknowns.contains(cell)) {
            let at = Dsn(cell * u64::from(repair.symbol) + self.range.start);
            if at < repair.range.start || at >= repair.range.end {
                continue;
            }
            if !known.read(at, &mut bytes) {
                return None;
            }
            add_multiple(&mut rest, &bytes, repair.coefficient(cell));
        }
        Some(rest)
    }
}

#[cfg(test)]
mod tests;
