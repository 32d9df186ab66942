//! Tables of results: the results of a series of runs as typed columns.
//!
//! The columns with their kinds and units are defined in one place. Code that writes files ([`Sheet`]: CSV and
//! Parquet) or exports columns to other programs does not depend on their meaning.
//!
//! | table | a row for each | made by |
//! |---|---|---|
//! | `messages` | message that arrived | [`messages`] |
//! | `runs` | run | [`runs`] |
//! | `sweep` | run and measure of a sweep | [`sweep_table`] |
//! | `subflows`, `copies` | sample of a subflow, or copy of a message | [`Timeline`](crate::experiment::Timeline) |
//!
//! Rows begin with the columns that identify a run ([`RunColumns`]): values of a sweep, stack, variant, seed.
//! Quantiles are those of [`quantile`].

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
mod swept_keys;
mod table;
#[cfg(test)]
mod tests;

pub use cells::{Cells, Texts};
pub use column::{Cell, Column, Values};
pub use csv::csv_field;
pub use messages::messages;
pub use quantile::quantile;
pub use run_columns::RunColumns;
pub use runs::{runs, runs_table};
pub use sheet::{Format, Sheet, Sheets};
pub use sweep::sweep_table;
pub use table::Table;
