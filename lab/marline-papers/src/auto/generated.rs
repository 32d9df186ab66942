//! Rows and lists of the generated pairs.

use marline_lab::scenario::Event;
use marline_time::PcgRng;
use serde::{Deserialize, Serialize};

use super::cell::{GeneratedLinksResult, Links, on_generated};
use super::generator::{self, Kind, PATHS};
use super::setup::{Limits, Setup};
use super::violations::{self, percent, violations};
use crate::estimate::Samples;
use crate::judge::Row;
use crate::paper::Context;
use crate::recorded::figures::Figure;
use crate::roots::Root;
use crate::table::Grid;

/// Results and description of a generated pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GeneratedPairResult {
    /// Indexes of both paths' kinds in [`Kind::ALL`].
    kinds: [usize; 2],
    /// Link descriptions. With the events and the seed, a case can be run separately.
    links: [String; 2],
    events: Vec<String>,
    seed: u64,
    of: GeneratedLinksResult,
}

impl GeneratedPairResult {
    fn violations(&self, limits: &Limits) -> Vec<violations::Violation> {
        violations(&self.of.alone, &self.of.judged, limits.margins)
    }

    /// Violations by full duplication.
    fn of_duplication(&self, limits: &Limits) -> Vec<violations::Violation> {
        violations(&self.of.alone, &self.of.duplication, limits.margins)
    }

    fn has(&self, kind: usize) -> bool {
        self.kinds.contains(&kind)
    }

    /// Names of the kinds of both links.
    fn cause(&self) -> String {
        let [first, second] = self.kinds.map(|kind| Kind::ALL[kind].name());
        if first == second { format!("{first}, twice") } else { format!("{first} + {second}") }
    }
}

/// Generates the pairs of a root and runs the judged contestant and full duplication on them, with TCP alone for
/// comparison.
pub(super) fn measure(
    context: &Context<'_>,
    setup: &Setup,
    root: &Root,
) -> anyhow::Result<Vec<GeneratedPairResult>> {
    let mut rng: PcgRng = root.rng("generated");
    let count = context.count(setup.generated.pairs_of_a_root);
    let one = |number: usize| {
        // Every kind is equally frequent, within a root and across roots.
        let kind = Kind::ALL[(root.number * count + number) % Kind::ALL.len()];
        let pair = generator::pair(kind, &mut rng);
        let paths = [(PATHS[0], pair.links[0].as_str()), (PATHS[1], pair.links[1].as_str())];
        let links = Links { paths, events: &pair.events };
        let of = on_generated(context, setup, &links, pair.seed)
            .map_err(|error| error.context(format!("{:?}", pair.links)))?;
        let place = |kind| Kind::ALL.iter().position(|of| *of == kind).unwrap_or_default();
        let event = |event: &Event| format!("{} {} {}", event.at, event.path, event.command);
        Ok(GeneratedPairResult {
            kinds: pair.kinds.map(place),
            events: pair.events.iter().map(event).collect(),
            links: pair.links,
            seed: pair.seed,
            of,
        })
    };
    (0..count).map(one).collect()
}

/// Share of pairs in which a metric is worse than on the best path alone.
pub(super) fn rows(samples: &Samples<Vec<GeneratedPairResult>>, limits: &Limits) -> Vec<Row> {
    let limit = 100.0 * limits.generated_violations;
    let share = |is: &dyn Fn(&GeneratedPairResult) -> bool| {
        percent(samples, |pairs| {
            (pairs.iter().filter(|pair| is(pair)).count() as u64, pairs.len() as u64)
        })
    };
    let each = Figure::ALL.map(|figure| {
        let share = share(&|pair| pair.violations(limits).iter().any(|of| of.figure == figure));
        let what = format!("pairs with {} worse than on the best path alone", figure.name());
        Row::new(what).estimate(&share, "%").at_most(limit)
    });
    let any = share(&|pair| !pair.violations(limits).is_empty());
    let any =
        Row::new("pairs worse than the best path in any metric").estimate(&any, "%").at_most(limit);
    // Violations that full duplication has, too: by chance, or from delays that a second path adds.
    let duplication = share(&|pair| !pair.of_duplication(limits).is_empty());
    let duplication = Row::new("full duplication: pairs worse than the best path in any metric")
        .estimate(&duplication, "%");
    each.into_iter().chain([any, duplication]).collect()
}

/// Shares of the pairs with a violation, by kind of link.
pub(super) fn grid_by_kind(samples: &Samples<Vec<GeneratedPairResult>>, limits: &Limits) -> Grid {
    let mut columns = vec![
        ("kind of link, on either path", ""),
        ("pairs", ""),
        ("worse in any of the five metrics", "%"),
    ];
    columns.extend(Figure::ALL.map(|figure| (figure.name(), "%")));
    columns.push(("full duplication: worse in any metric", "%"));
    let title = "Generated pairs: share with a metric worse than on the best path alone";
    let mut grid = Grid::new("kinds", title, &columns);
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let pairs = || samples.all().iter().flatten().filter(|pair| pair.has(index));
        let count = pairs().count() as f64;
        let share = |is: &dyn Fn(&[violations::Violation]) -> bool| {
            100.0 * pairs().filter(|pair| is(&pair.violations(limits))).count() as f64 / count
        };
        let each = Figure::ALL
            .map(|figure| share(&|found| found.iter().any(|violation| violation.figure == figure)));
        let of_duplication = |pair: &&GeneratedPairResult| !pair.of_duplication(limits).is_empty();
        let duplication = 100.0 * pairs().filter(of_duplication).count() as f64 / count;
        let any = share(&|found| !found.is_empty());
        let numbers = [count, any].into_iter().chain(each).chain([duplication]);
        grid.push(&[kind.name()], &numbers.collect::<Vec<f64>>());
    }
    grid
}

/// Every violation. The kinds of the links are given as its cause.
pub(super) fn list(samples: &Samples<Vec<GeneratedPairResult>>, limits: &Limits) -> Grid {
    let title = "Generated pairs with a metric worse than on the best path alone";
    let mut grid = violations::grid("violations-generated", title, "cause");
    for (root, pairs) in samples.all().iter().enumerate() {
        for (number, pair) in pairs.iter().enumerate() {
            let name = format!("{root}-{number}, seed {}", pair.seed);
            let words = [&*name, &pair.cause(), &root.to_string()];
            let found = pair.violations(limits);
            for violation in &found {
                violations::push(&mut grid, words, violation, &pair.of.duplication);
            }
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::super::setup::TEXT;
    use super::*;
    use crate::file::PaperFile;
    use crate::recorded::figures::{FiveMetrics, Quantiles};
    use crate::value::Value;

    #[test]
    fn a_violation_counts_for_its_pair_and_names_the_kinds_of_both_links() {
        let file = PaperFile::<Setup>::parse(TEXT).unwrap();
        let limits = Limits::from_file(&file).unwrap();
        let five = |ms: f64| FiveMetrics {
            echo: Quantiles::constant_quantiles(ms),
            burst: Quantiles::constant_quantiles(2.0 * ms),
            goodput: 10.0,
        };
        let pair = |ours_ms: f64| GeneratedPairResult {
            kinds: [1, 2],
            links: ["rate=1M", "rate=2M"].map(str::to_owned),
            events: Vec::new(),
            seed: 1,
            of: GeneratedLinksResult {
                alone: [five(50.0), five(60.0)],
                judged: five(ours_ms),
                duplication: five(50.0),
            },
        };
        let fine: Vec<GeneratedPairResult> = (0..49).map(|_| pair(50.0)).collect();
        let mut roots = vec![[fine.clone(), vec![pair(50.0)]].concat(); 20];
        roots[3] = [fine, vec![pair(55.0)]].concat();
        let samples = Samples::new(roots, 1);
        let rows = rows(&samples, &limits);
        assert_eq!(rows.len(), Figure::ALL.len() + 2);
        let any = rows[5].ours.as_ref().map(Value::to_string).unwrap();
        assert!(any.starts_with("0.1 ["), "{any}");
        let list = list(&samples, &limits);
        assert_eq!(list.rows.len(), 4, "both quantiles of echoes and of bursts");
        let words = ["3-49, seed 1", "bursty loss + Markov rate", "3", "echo p50"];
        assert_eq!(list.rows[0][..4], words.map(|word| Value::Text(word.to_owned())));
        let kinds = grid_by_kind(&samples, &limits);
        assert_eq!(kinds.rows[1][1], Value::new(1_000.0, ""));
    }
}
