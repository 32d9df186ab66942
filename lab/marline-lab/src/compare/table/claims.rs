//! Claims that Marline must meet, and their evaluation.

use std::fmt::Write as _;

use super::{Contestant, Measure, Pool, Pools, number};

/// A claim and its measurement.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Row.
    pub row: String,
    /// Measure and unit.
    pub what: String,
    /// Marline's result.
    pub ours: f64,
    /// Result of the kernel's Multipath TCP.
    pub kernel: f64,
    /// Result of one path alone (or of the ideal), and its name.
    pub alone: (f64, &'static str),
    /// The bound.
    pub bound: f64,
    /// True if larger values are better.
    pub larger_is_better: bool,
    /// Origin of the bound.
    pub must: String,
}

impl Claim {
    /// Returns true if the claim holds. It does not hold if a measurement is missing.
    #[must_use]
    pub fn holds(&self) -> bool {
        if self.larger_is_better { self.ours >= self.bound } else { self.ours <= self.bound }
    }
}

/// Formats a number, or a blank for NaN.
fn number_or_blank(value: f64) -> String {
    if value.is_nan() { String::new() } else { number(value) }
}

/// The table of claims.
pub(super) fn table(claims: &[Claim]) -> String {
    let mut text = "| row | measure | Marline | kernel MPTCP | ratio | alone | must | holds |\n\
                    |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for claim in claims {
        let peer = if claim.kernel.is_nan() { claim.alone.0 } else { claim.kernel };
        let ratio = claim.ours / peer;
        let alone = match claim.alone {
            (value, _) if value.is_nan() => String::new(),
            (value, whose) => format!("{} ({whose})", number(value)),
        };
        let holds = if claim.holds() { "yes" } else { "**no**" };
        let sign = if claim.larger_is_better { ">=" } else { "<=" };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {alone} | {sign} {} ({}) | {holds} |",
            claim.row,
            claim.what,
            number(claim.ours),
            number_or_blank(claim.kernel),
            number_or_blank(ratio),
            number(claim.bound),
            claim.must,
        );
    }
    text
}

/// Makes all claims about these rows.
pub(super) fn claims(pools: &Pools<'_>) -> Vec<Claim> {
    let none = Pool::default();
    let mut claims = Vec::new();
    for (row, by) in pools {
        let get = |contestant| by.get(&contestant).unwrap_or(&none);
        let side = Side {
            row: &row.key,
            marline: get(Contestant::Marline),
            kernel: get(Contestant::Kernel),
            first: get(Contestant::FirstPath),
            second: get(Contestant::SecondPath),
        };
        match row.measure {
            Measure::Answers => {
                let (ideal, redundant) = (get(Contestant::Duplicate), get(Contestant::Best));
                claims.extend(side.answers(ideal, redundant));
            }
            Measure::Blocks => claims.extend(side.blocks()),
            Measure::Bursts => claims.extend(side.bursts()),
            Measure::Handover => claims.extend(side.handover()),
            Measure::Goodput if row.key == "bulk" => claims.push(side.goodput()),
            Measure::Goodput if row.key == "loss" => claims.push(side.claim_one_path()),
            Measure::Goodput => {}
        }
    }
    claims.extend(claim_small_windows(pools));
    claims
}

struct Side<'a> {
    row: &'a str,
    marline: &'a Pool,
    kernel: &'a Pool,
    first: &'a Pool,
    second: &'a Pool,
}

impl Side<'_> {
    /// Claims that Marline's value is at most the kernel's.
    fn claim(&self, what: &str, value: impl Fn(&Pool) -> f64) -> Claim {
        Claim {
            row: self.row.to_owned(),
            what: what.to_owned(),
            ours: value(self.marline),
            kernel: value(self.kernel),
            alone: (f64::NAN, ""),
            bound: value(self.kernel),
            larger_is_better: false,
            must: "the kernel's".to_owned(),
        }
    }

    fn answers(&self, ideal: &Pool, redundant: &Pool) -> Vec<Claim> {
        let p99 = |pool: &Pool| pool.quantile("answer_ms", 0.99);
        let p50 = |pool: &Pool| pool.quantile("answer_ms", 0.5);
        let wifi = ideal.quantile("first_path_ms", 0.5);
        let lte = ideal.quantile("second_path_ms", 0.99);
        vec![
            Claim {
                ours: p99(redundant),
                alone: (p99(ideal), "ideal duplicate"),
                bound: 1.1 * p99(ideal),
                must: "1.1 times the ideal duplicate".to_owned(),
                ..self.claim("redundant, p99 ms", p99)
            },
            Claim {
                alone: (wifi, "WiFi"),
                bound: 1.05 * wifi,
                must: "1.05 times WiFi's".to_owned(),
                ..self.claim("p50 ms", p50)
            },
            Claim {
                alone: (lte, "LTE"),
                bound: 300.0,
                must: "fixed".to_owned(),
                ..self.claim("p99 ms", p99)
            },
        ]
    }

    fn blocks(&self) -> Vec<Claim> {
        let p95 = |pool: &Pool| pool.quantile("block_ms", 0.95);
        vec![
            Claim { alone: (p95(self.first), "WiFi"), ..self.claim("p95 ms", p95) },
            self.goodput(),
        ]
    }

    fn goodput(&self) -> Claim {
        let goodput = |pool: &Pool| pool.median("goodput_mbit_per_s");
        let claim = self.claim("goodput Mbit/s", goodput);
        Claim { larger_is_better: true, alone: (goodput(self.first), "first path"), ..claim }
    }

    /// Claims that a result is at least 90 % of that of the kernel's TCP on the same path.
    fn claim_one_path(&self) -> Claim {
        let alone = self.first.median("goodput_mbit_per_s");
        Claim {
            kernel: f64::NAN,
            bound: 0.9 * alone,
            must: "0.9 times the kernel's TCP".to_owned(),
            ..self.goodput()
        }
    }

    fn bursts(&self) -> Vec<Claim> {
        let hit = |pool: &Pool| pool.median("hit_ms");
        let calm = |pool: &Pool| pool.quantile("calm_ms", 0.5);
        let mut failing = Claim {
            alone: (calm(self.second), "LTE from the start"),
            ..self.claim("affected burst, ms", hit)
        };
        if self.row == "2c-netflix" {
            failing = Claim { bound: 1_200.0, must: "fixed".to_owned(), ..failing };
        }
        let wifi = calm(self.first);
        let mut claims = vec![failing];
        if self.row != "2c-docs" {
            let must = format!("the kernel's; later 1.25 times WiFi's, {}", number(1.25 * wifi));
            let claim = self.claim("without failures, p50 ms", calm);
            claims.push(Claim { alone: (wifi, "WiFi"), must, ..claim });
        }
        claims
    }

    fn handover(&self) -> Vec<Claim> {
        let fixed = |bound: f64, claim: Claim| Claim { bound, must: "fixed".to_owned(), ..claim };
        vec![
            fixed(450.0, self.claim("longest gap, ms", |pool| pool.median("gap_ms"))),
            fixed(600.0, self.claim("worst delay, ms", |pool| pool.median("worst_ms"))),
        ]
    }
}

/// The worst of the ten rows, relative to the better path alone.
fn claim_small_windows(pools: &Pools<'_>) -> Option<Claim> {
    let of = |key: &str, contestant: Contestant| {
        let (_, by) = pools.iter().find(|(row, _)| row.key == key)?;
        Some(by.get(&contestant)?.median("goodput_mbit_per_s"))
    };
    let alone = of("2d-alone", Contestant::FirstPath)?;
    let worst = |contestant| {
        let rows =
            pools.iter().filter(|(row, _)| row.key.starts_with("2d-") && row.key != "2d-alone");
        let all = rows.filter_map(|(row, _)| of(&row.key, contestant));
        all.reduce(f64::min).map(|worst| 100.0 * worst / alone)
    };
    Some(Claim {
        row: "2d".to_owned(),
        what: "small window, worst row, % of the better path".to_owned(),
        ours: worst(Contestant::Marline)?,
        kernel: worst(Contestant::Kernel)?,
        alone: (100.0, "the better path"),
        bound: 26.0,
        larger_is_better: true,
        must: "the PAPD paper's min-RTT".to_owned(),
    })
}
