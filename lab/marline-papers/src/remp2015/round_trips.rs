//! Table 1 of the paper: a row for each of its lines, and a grid of the single values.

use marline_lab::figure::number;

use super::measure::{Moments, STATISTICS, pooled_estimate};
use super::published::RoundTrips;
use crate::estimate::Samples;
use crate::judge::Row;
use crate::table::Grid;
use crate::value::Value;

/// Columns of Table 1.
pub(super) const ALL: &[usize] = &[0, 1, 2];
/// Columns of a line whose average was used to choose a parameter.
pub(super) const WITHOUT_AVERAGE: &[usize] = &[1, 2];

/// A line of the table.
pub(super) struct Line {
    pub(super) statement: &'static str,
    pub(super) name: &'static str,
    pub(super) paper: RoundTrips,
    /// Index among the contestants.
    pub(super) index: usize,
    /// Columns that are compared.
    pub(super) columns: &'static [usize],
    /// Parameters that were chosen to match the line. `None`: the line is judged.
    pub(super) fitted: Option<&'static str>,
}

impl Line {
    /// Row of the largest difference from the published values, which may be at most `share`.
    pub(super) fn row<const N: usize>(&self, moments: &Samples<[Moments; N]>, share: f64) -> Row {
        let published = self.paper.columns();
        let largest = pooled_estimate(moments, |all| {
            let difference = |column: &usize| {
                let ours = STATISTICS[*column].1(&all[self.index]);
                100.0 * (ours / published[*column] - 1.0).abs()
            };
            self.columns.iter().map(difference).fold(0.0, f64::max)
        });
        let list = |value: &dyn Fn(usize) -> f64| {
            let cell =
                |column: &usize| format!("{} {}", STATISTICS[*column].0, number(value(*column)));
            format!("{} ms", self.columns.iter().map(cell).collect::<Vec<_>>().join(", "))
        };
        let ours = |column: usize| {
            pooled_estimate(moments, |all| STATISTICS[column].1(&all[self.index])).value
        };
        let row = Row::new(format!("{}: largest difference from its line of Table 1", self.name))
            .statement(self.statement)
            .paper_claim(list(&|column| published[column]))
            .estimate(&largest, "%")
            .at_most(100.0 * share)
            .with_remark(list(&ours));
        match self.fitted {
            Some(what) => row.mark_fitted(what),
            None => row,
        }
    }
}

/// How values of the grid were obtained.
pub(super) const PAPER: &str = "paper";
pub(super) const MEASURED: &str = "measured";
pub(super) const COMPUTED: &str = "computed from captures";

/// Grid of the values of Table 1, for each scene and method.
pub(super) fn round_trip_grid() -> Grid {
    let columns = [
        ("scene", ""),
        ("path", ""),
        ("method", ""),
        ("average", "ms"),
        ("worst of 100 s", "ms"),
        ("standard deviation", "ms"),
        ("average / bound", ""),
        ("messages left out", "%"),
    ];
    let title = "Round trips: the values of Table 1, computed as in the paper and measured (99 % intervals)";
    Grid::new("round-trips", title, &columns)
}

/// Adds a published line to the grid.
pub(super) fn push_published(grid: &mut Grid, scene: &str, path: &str, of: RoundTrips) {
    let [average, worst, sigma] = of.columns();
    grid.push(&[scene, path, PAPER], &[average, worst, sigma, f64::NAN, f64::NAN]);
}

/// Scene, path and method of a row of the grid.
pub(super) type Words<'a> = [&'a str; 3];

/// Adds the line of a contestant to the grid, with its average relative to the bound and the percentage of messages
/// left out; NaN: not known.
pub(super) fn push_moments<const N: usize>(
    grid: &mut Grid,
    words: Words<'_>,
    moments: &Samples<[Moments; N]>,
    index: usize,
    others: [f64; 2],
) {
    let words = words.map(|word| Value::Text(word.to_owned()));
    let cells = STATISTICS
        .map(|(_, of)| Value::from_estimate(&pooled_estimate(moments, |all| of(&all[index])), ""));
    let others = others.map(|value| Value::new(value, ""));
    grid.rows.push(words.into_iter().chain(cells).chain(others).collect());
}
