//! Shard of a series: the runs of one of several processes that share a store.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, ensure};

/// One of several parts. The first run belongs to the first part, the next to the second, and so on, so that parts are
/// equally large and each has runs of every variant.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index of this part, from 0.
    at: usize,
    /// Number of parts.
    of: usize,
}

impl Shard {
    /// Returns true if the run at this index of the plan belongs to this part.
    #[must_use]
    pub fn has(self, place: usize) -> bool {
        place % self.of == self.at
    }

    /// Selects this part of a plan.
    #[must_use]
    pub fn part<T>(self, plan: Vec<T>) -> Vec<T> {
        let mine = plan.into_iter().enumerate().filter(|(place, _)| self.has(*place));
        mine.map(|(_, item)| item).collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at + 1, self.of)
    }
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Shard> {
        let form = "expected NUMBER/SHARDS with two whole numbers, for example 1/4";
        let (number, of) = text.split_once('/').context(form)?;
        let number: usize = number.parse().ok().context(form)?;
        let of: usize = of.parse().ok().context(form)?;
        ensure!(of > 0, "0 shards given; expected at least one, for example 1/1");
        ensure!(
            (1..=of).contains(&number),
            "no shard {number} of {of}: expected 1/{of} to {of}/{of}"
        );
        Ok(Shard { at: number - 1, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_is_in_one_shard() {
        let plan: Vec<u32> = (0..10).collect();
        let part = |text: &str| text.parse::<Shard>().expect(text).part(plan.clone());
        assert_eq!(part("1/1"), plan);
        assert_eq!(part("2/3"), [1, 4, 7]);
        let mut all = [part("1/3"), part("2/3"), part("3/3")].concat();
        all.sort_unstable();
        assert_eq!(all, plan);
        assert!(part("12/12").is_empty(), "more shards than runs");
        assert_eq!("2/3".parse::<Shard>().expect("one").to_string(), "2/3");
    }

    #[test]
    fn an_invalid_shard_is_an_error() {
        for (text, wanted) in [
            ("x", "for example 1/4"),
            ("1", "for example 1/4"),
            ("1/", "for example 1/4"),
            ("-1/4", "for example 1/4"),
            ("1/2/3", "for example 1/4"),
            ("0/4", "no shard 0 of 4: expected 1/4 to 4/4"),
            ("5/4", "no shard 5 of 4: expected 1/4 to 4/4"),
            ("0/0", "at least one"),
        ] {
            let said = text.parse::<Shard>().expect_err(text).to_string();
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }
}
