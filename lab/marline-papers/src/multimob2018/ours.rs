//! MultiMob with our own parameters next to the authors', with which the statements are judged.

use super::radios::cell;
use super::systems;
use crate::estimate::Estimate;
use crate::table::Grid;
use crate::value::Value;

/// Grid of the judged metrics for both choices of parameters.
pub(super) struct ParameterComparison(Grid);

impl ParameterComparison {
    pub(super) fn new() -> ParameterComparison {
        let columns = [
            ("figure", ""),
            ("unit", ""),
            ("authors' parameters, judged", ""),
            ("tuned, as in mode `interactive`", ""),
        ];
        ParameterComparison(Grid::new("ours", "MultiMob with our own parameters", &columns))
    }

    /// Adds a metric. `of` returns it for the system with this index in [`systems::all`].
    pub(super) fn push(&mut self, figure: &str, unit: &str, of: impl Fn(usize) -> Estimate) {
        let words = [figure, unit].map(|word| Value::Text(word.to_owned()));
        let both = [systems::authors(), systems::tuned()];
        let numbers = both.map(|system| cell(of(systems::index_of(&system))));
        self.0.rows.push(words.into_iter().chain(numbers).collect());
    }

    pub(super) fn into_grid(self) -> Grid {
        self.0
    }
}
