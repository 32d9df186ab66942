//! Five sets of links ("worlds") that no policy was fitted to: a WiFi and an LTE connection. Their parameters were
//! drawn once, by number, from ranges that were written down before the first run on them.
//!
//! | parameter | range |
//! |---|---|
//! | round trip of the WiFi | 20 to 120 ms, uniform |
//! | jitter of the WiFi, each direction (half the spread) | 1 to 10 ms, uniform |
//! | good periods, on average | 10 to 120 s, log-uniform |
//! | bad periods, on average | 0.2 to 15 s, log-uniform |
//! | loss in bad periods | 10 to 60 %, uniform |
//! | loss in good periods | 0.05 to 0.5 %, log-uniform |
//! | round trip of LTE | 40 to 160 ms, uniform |
//! | jitter of LTE, each direction (half the spread) | 3 to 33 ms, uniform |
//!
//! LTE loses 0.1 %, as the paper cites. The ranges contain the values that the paper and its reference report for
//! homes (WiFi with 1 to 3 % total loss, 15 ms between the two) and extend beyond them. The draws depend on the number
//! of the world only, not on the roots. A root draws the events in a world, not the world.

use marline_time::{Rng, SeedTree};

/// Parameters of a world.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct World {
    wifi_ms: f64,
    wifi_jitter_ms: f64,
    good_s: f64,
    bad_s: f64,
    bad_loss_percent: f64,
    good_loss_percent: f64,
    lte_ms: f64,
    lte_jitter_ms: f64,
}

/// Columns of a table of worlds.
pub(super) const COLUMNS: [(&str, &str); 9] = [
    ("world", ""),
    ("WiFi, RTT", "ms"),
    ("WiFi, jitter", "ms"),
    ("good periods", "s"),
    ("bad periods", "s"),
    ("loss in bad periods", "%"),
    ("loss in good periods", "%"),
    ("LTE, RTT", "ms"),
    ("LTE, jitter", "ms"),
];

/// Date of the workshop, used as seed.
const WORLD_SEED: u64 = 20_151_201;

impl World {
    /// World of this number.
    pub(super) fn number(number: usize) -> World {
        let mut rng = SeedTree::new(WORLD_SEED).stream(&format!("remp2015/world/{number}"));
        let mut even = |least: f64, most: f64| (most - least).mul_add(rng.unit(), least);
        World {
            wifi_ms: even(20.0, 120.0),
            wifi_jitter_ms: even(1.0, 10.0),
            good_s: even(10_f64.ln(), 120_f64.ln()).exp(),
            bad_s: even(0.2_f64.ln(), 15_f64.ln()).exp(),
            bad_loss_percent: even(10.0, 60.0),
            good_loss_percent: even(0.05_f64.ln(), 0.5_f64.ln()).exp(),
            lte_ms: even(40.0, 160.0),
            lte_jitter_ms: even(3.0, 33.0),
        }
    }

    /// Link description of its WiFi.
    pub(super) fn wifi(&self) -> String {
        format!(
            "rate=20M,delay={:.2}ms,jitter=uniform:{:.2}ms,ge={:.2}s:{:.2}s:{:.1}%:{:.3}%",
            self.wifi_ms / 2.0,
            self.wifi_jitter_ms,
            self.good_s,
            self.bad_s,
            self.bad_loss_percent,
            self.good_loss_percent
        )
    }

    /// Link description of its LTE.
    pub(super) fn lte(&self) -> String {
        let (delay_ms, jitter_ms) = (self.lte_ms / 2.0, self.lte_jitter_ms);
        format!("rate=10M,delay={delay_ms:.2}ms,jitter=uniform:{jitter_ms:.2}ms,loss=0.1%")
    }

    /// Values for a row of the table.
    pub(super) const fn numbers(&self) -> [f64; 8] {
        [
            self.wifi_ms,
            self.wifi_jitter_ms,
            self.good_s,
            self.bad_s,
            self.bad_loss_percent,
            self.good_loss_percent,
            self.lte_ms,
            self.lte_jitter_ms,
        ]
    }
}

#[cfg(test)]
mod tests {
    use marline_link::DuplexSpec;

    use super::*;

    #[test]
    fn a_number_is_always_the_same_world_and_its_links_can_be_read() {
        for number in 1..=5 {
            let world = World::number(number);
            assert_eq!(world, World::number(number));
            for link in [world.wifi(), world.lte()] {
                link.parse::<DuplexSpec>().unwrap_or_else(|error| panic!("{link}: {error}"));
            }
            println!("{number}: {} | {}", world.wifi(), world.lte());
        }
        // The ranges were written down before the first run. A change would be a new choice.
        assert_ne!(World::number(1), World::number(2));
    }
}
