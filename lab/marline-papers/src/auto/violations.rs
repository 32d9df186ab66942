//! Violations of the guarantee: metrics in which the judged contestant is worse than the best single path.

use crate::estimate::{CONFIDENCE, Estimate, Samples};
use crate::recorded::figures::{Figure, FiveMetrics, Margins};
use crate::table::Grid;

/// A metric that is worse than on the best single path.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Violation {
    pub(super) figure: Figure,
    pub(super) ours: f64,
    pub(super) best: f64,
}

/// Metrics that are worse than on the better of the two paths alone by more than the margins.
pub(super) fn violations(
    alone: &[FiveMetrics; 2],
    ours: &FiveMetrics,
    margins: Margins,
) -> Vec<Violation> {
    let worse = |figure: Figure| {
        let best = figure.better_of(alone[0].figure(figure), alone[1].figure(figure));
        let ours = ours.figure(figure);
        let is_worse = figure.is_worse(ours, best, margins);
        is_worse.then_some(Violation { figure, ours, best })
    };
    Figure::ALL.into_iter().filter_map(worse).collect()
}

/// An empty list. The second column holds the position or the cause, the third the root.
pub(super) fn grid(name: &str, title: &str, where_or_why: &str) -> Grid {
    let columns = [
        ("pair", ""),
        (where_or_why, ""),
        ("root", ""),
        ("figure", ""),
        ("ours (ms; goodput Mbit/s)", ""),
        ("best path alone", ""),
        ("ours, ratio to the best path", ""),
        ("full duplication", ""),
    ];
    Grid::new(name, title, &columns)
}

/// Adds a violation to a list, with the value of full duplication. If full duplication is equally bad, the scheduler
/// is not the cause.
pub(super) fn push(
    grid: &mut Grid,
    words: [&str; 3],
    violation: &Violation,
    duplication: &FiveMetrics,
) {
    let Violation { figure, ours, best } = *violation;
    let numbers = [ours, best, ours / best, duplication.figure(figure)];
    grid.push(&[words[0], words[1], words[2], figure.name()], &numbers);
}

/// Share of the cases in percent. Each case draws its own links or positions, so a share of 0 or 100 % gets an exact
/// binomial interval over the cases.
pub(crate) fn percent<T>(samples: &Samples<T>, of: impl Fn(&T) -> (u64, u64)) -> Estimate {
    let mut share = samples.share(&of);
    let cases: u64 = samples.all().iter().map(|root| of(root).1).sum();
    let alone = ((1.0 - CONFIDENCE) / 2.0).powf(1.0 / cases as f64);
    if cases > 0 && share.value == 0.0 {
        share.high = 1.0 - alone;
    } else if cases > 0 && share.value == 1.0 {
        share.low = alone;
    }
    share.percent()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::figures::Quantiles;
    use crate::value::Value;

    const MARGINS: Margins = Margins { share: 0.05, ms: 1.0 };

    fn five(echo_ms: f64, burst_ms: f64, goodput: f64) -> FiveMetrics {
        let quantiles = |ms: f64| Quantiles::constant_quantiles(ms);
        FiveMetrics { echo: quantiles(echo_ms), burst: quantiles(burst_ms), goodput }
    }

    #[test]
    fn a_violation_is_found_and_listed() {
        let alone = [five(20.0, 300.0, 8.0), five(40.0, 100.0, 20.0)];
        assert_eq!(violations(&alone, &five(20.9, 104.0, 19.1), MARGINS), []);
        let found = violations(&alone, &five(20.0, 106.0, 18.9), MARGINS);
        let figures: Vec<Figure> = found.iter().map(|violation| violation.figure).collect();
        assert_eq!(figures, [Figure::BurstP50, Figure::BurstP99, Figure::Goodput]);
        assert_eq!(found[2], Violation { figure: Figure::Goodput, ours: 18.9, best: 20.0 });
        let mut list = grid("violations", "A list", "half");
        for violation in &found {
            push(&mut list, ["a + b", "judged", "1"], violation, &alone[1]);
        }
        assert_eq!(list.rows.len(), 3);
        assert_eq!(list.rows[2][3], Value::Text("goodput".to_owned()));
    }

    #[test]
    fn missing_messages_are_a_violation_if_one_path_alone_delivers_them() {
        let alone = [five(20.0, f64::INFINITY, 8.0), five(40.0, f64::INFINITY, 20.0)];
        let found = violations(&alone, &five(f64::INFINITY, f64::INFINITY, 20.0), MARGINS);
        assert!(found.iter().all(|violation| violation.best == 20.0), "{found:?}");
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_violation_share_of_zero_has_an_upper_bound() {
        let samples = Samples::new(vec![(0, 50); 20], 1);
        let none = percent(&samples, |root| *root);
        assert!(none.low == 0.0 && (0.5..0.6).contains(&none.high), "{none:?}");
        let some = percent(&Samples::new(vec![(1, 50); 20], 1), |root| *root);
        assert_eq!((some.value, some.low, some.high), (2.0, 2.0, 2.0));
    }
}
