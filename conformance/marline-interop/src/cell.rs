//! Dimensions of the matrix, its cells, and a small subset that covers every pair of values.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Declares a dimension with its values and their names.
macro_rules! dimension {
    ($(#[$doc:meta])* $name:ident { $($(#[$value_doc:meta])* $value:ident => $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub(crate) enum $name { $($(#[$value_doc])* $value),+ }

        impl $name {
            pub(crate) const ALL: &'static [$name] = &[$($name::$value),+];

            const fn word(self) -> &'static str {
                match self { $($name::$value => $word),+ }
            }
        }
    };
}

dimension! {
    /// The two stacks, the client's first.
    Pair {
        MarlineKernel => "mk",
        KernelMarline => "km",
        MarlineMarline => "mm",
    }
}
dimension! {
    /// IP version.
    Family { V4 => "v4", V6 => "v6" }
}
dimension! {
    /// Subflows, one per path.
    Subflows { One => "1sf", Two => "2sf", Four => "4sf" }
}
dimension! {
    /// DSS checksums.
    Checksum { Off => "nocs", On => "cs" }
}
dimension! {
    /// Condition of the network.
    Condition {
        Clean => "clean",
        /// 1 % loss in each direction of each path.
        Loss => "loss",
        Reordering => "reorder",
        /// The first path fails during the transfer and returns.
        Cut => "cut",
        /// The first path never works.
        FirstDead => "firstdead",
    }
}
dimension! {
    /// Behavior of the applications.
    Workload {
        Up => "up",
        Down => "down",
        Both => "both",
        /// Small messages, each of which is echoed.
        Messages => "messages",
        HalfClose => "halfclose",
        Abort => "abort",
        SlowReader => "slowreader",
    }
}

impl Subflows {
    pub(crate) const fn count(self) -> usize {
        match self {
            Subflows::One => 1,
            Subflows::Two => 2,
            Subflows::Four => 4,
        }
    }
}

impl Pair {
    pub(crate) const fn kernel_client(self) -> bool {
        matches!(self, Pair::KernelMarline)
    }
    pub(crate) const fn kernel_server(self) -> bool {
        matches!(self, Pair::MarlineKernel)
    }
}

/// One combination.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) pair: Pair,
    pub(crate) family: Family,
    pub(crate) subflows: Subflows,
    pub(crate) checksum: Checksum,
    pub(crate) condition: Condition,
    pub(crate) workload: Workload,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            self.pair.word(),
            self.family.word(),
            self.subflows.word(),
            self.checksum.word(),
            self.condition.word(),
            self.workload.word(),
        ];
        f.write_str(&words.join("-"))
    }
}

impl Cell {
    /// Returns every valid combination. The kernel does not race its SYNs, and a single dead path carries nothing.
    pub(crate) fn all() -> Vec<Cell> {
        /// Takes the value of a dimension from the number, which is divided by the number of values.
        fn take<T: Copy>(number: &mut usize, values: &[T]) -> T {
            let value = values[*number % values.len()];
            *number /= values.len();
            value
        }
        let cell = |mut number: usize| {
            let number = &mut number;
            // The last dimension first, because it changes fastest.
            let workload = take(number, Workload::ALL);
            let condition = take(number, Condition::ALL);
            let checksum = take(number, Checksum::ALL);
            let subflows = take(number, Subflows::ALL);
            let family = take(number, Family::ALL);
            let pair = take(number, Pair::ALL);
            Cell { pair, family, subflows, checksum, condition, workload }
        };
        let dimensions = [
            Workload::ALL.len(),
            Condition::ALL.len(),
            Checksum::ALL.len(),
            Subflows::ALL.len(),
            Family::ALL.len(),
            Pair::ALL.len(),
        ];
        let mut cells: Vec<Cell> = (0..dimensions.iter().product()).map(cell).collect();
        cells.retain(|cell| cell.is_valid_combination());
        cells
    }

    fn is_valid_combination(&self) -> bool {
        let dead = self.condition == Condition::FirstDead;
        !(dead && (self.subflows == Subflows::One || self.pair.kernel_client()))
    }

    /// Selects cells that together contain every possible pair of values of two dimensions. Each step selects the cell
    /// with the most missing pairs.
    pub(crate) fn covering_cells() -> Vec<Cell> {
        let all = Cell::all();
        let mut missing: BTreeSet<[(usize, u8); 2]> = all.iter().flat_map(Cell::pairs).collect();
        let mut chosen = Vec::new();
        while !missing.is_empty() {
            let gain = |cell: &Cell| cell.pairs().filter(|pair| missing.contains(pair)).count();
            // The first of equal cells, so that the selection is deterministic.
            let Some(best) = all.iter().rev().max_by_key(|cell| gain(cell)) else { break };
            best.pairs().for_each(|pair| {
                missing.remove(&pair);
            });
            chosen.push(*best);
        }
        chosen
    }

    /// All pairs of (dimension, value).
    fn pairs(&self) -> impl Iterator<Item = [(usize, u8); 2]> + use<> {
        let values = [
            self.pair as u8,
            self.family as u8,
            self.subflows as u8,
            self.checksum as u8,
            self.condition as u8,
            self.workload as u8,
        ];
        let places = 0..values.len();
        places
            .flat_map(move |a| (a + 1..values.len()).map(move |b| [(a, values[a]), (b, values[b])]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_valid_combination() {
        // 3 x 2 x 3 x 2 x 5 x 7, excluding the dead first path of a single subflow (84) and of the other kernel
        // clients (56).
        assert_eq!(Cell::all().len(), 1_260 - 84 - 56);
        let names: BTreeSet<String> = Cell::all().iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), Cell::all().len());
    }

    #[test]
    fn pairs_are_covered_by_few_cells() {
        let (all, few) = (Cell::all(), Cell::covering_cells());
        let pairs = |cells: &[Cell]| cells.iter().flat_map(Cell::pairs).collect::<BTreeSet<_>>();
        assert_eq!(pairs(&all), pairs(&few));
        assert!((35..60).contains(&few.len()), "{}", few.len());
        assert_eq!(few, Cell::covering_cells());
    }
}
