//! Tables of results: what a series of runs showed, as typed columns.
//!
//! One place says which columns there are, of which kind and in which unit; what writes files
//! ([`Sheet`]: CSV and Parquet) or hands columns to other programs does not know what they mean.
//!
//! | table | a row for each | made by |
//! |---|---|---|
//! | `messages` | message that came | [`messages`] |
//! | `runs` | run | [`runs`] |
//! | `sweep` | run and measure of a sweep | [`long`] |
//! | `subflows`, `copies` | sample of a subflow, copy of a message | [`Timeline`](crate::experiment::Timeline) |
//!
//! Rows begin with the columns that tell runs apart ([`RunColumns`]): values of a sweep, stack, variant, seed. The
//! quantiles are [`quantile`]'s.

mod cells;
mod column;
mod csv;
mod messages;
mod parquet;
mod quantile;
mod run_columns;
mod runs;
mod sheet;
mod sweep;
mod swept;
mod table;
#[cfg(test)]
mod tests;

pub use cells::{Cells, Texts};
pub use column::{Cell, Column, Values};
pub use csv::csv_field;
pub use messages::messages;
pub use quantile::quantile;
pub use run_columns::RunColumns;
pub use runs::{runs, runs_over};
pub use sheet::{Format, Sheet, Sheets};
pub use sweep::long;
pub use table::Table;
