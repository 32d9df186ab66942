//! Validation of an experiment file's checks, which define the correct answers.

use super::Checker;
use crate::emulation::script;
use crate::experiment::file::diagnostic::KeyPath;
use crate::experiment::file::document::Contestant;
use crate::experiment::file::raw::RawCheck;
use crate::experiment::{Check, Edge, Load, Measure, Measures};

/// Measures of all workloads, with their units.
const MEASURES: [(&str, Measure, &str); 7] = [
    ("p50_ms", Measure::Latency(0.5), " ms"),
    ("p95_ms", Measure::Latency(0.95), " ms"),
    ("p99_ms", Measure::Latency(0.99), " ms"),
    ("max_ms", Measure::Latency(1.0), " ms"),
    ("missing", Measure::Missing, ""),
    ("mbit_per_s", Measure::Goodput, " Mbit/s"),
    ("cellular_j", Measure::CellularEnergy, " J"),
];
/// The measure that needs `below`.
const SETTLED: &str = "settled_s";

pub(super) fn checks(
    checker: &mut Checker<'_>,
    raw: &[RawCheck],
    loads: &[Load],
    contestants: &[Contestant],
) -> Vec<Check> {
    let top = KeyPath::top_level("check");
    let all = raw.iter().enumerate();
    all.filter_map(|(number, raw)| check(checker, &top.at(number), raw, loads, contestants))
        .collect()
}

fn check(
    checker: &mut Checker<'_>,
    at: &KeyPath,
    raw: &RawCheck,
    loads: &[Load],
    contestants: &[Contestant],
) -> Option<Check> {
    let workloads: Vec<&str> = loads.iter().map(|load| load.name.as_str()).collect();
    let variants: Vec<&str> = contestants.iter().map(|of| of.variant.name.as_str()).collect();
    let workload = place(checker, &at.key("workload"), raw.workload.as_deref(), &workloads)?;
    let variant = place(checker, &at.key("variant"), raw.variant.as_deref(), &variants)?;
    let of = match &raw.of {
        Some(name) => Some(place(checker, &at.key("of"), Some(name), &variants)?),
        None => None,
    };
    let (bound, is_minimum) = match (raw.at_most, raw.at_least) {
        (Some(most), None) => (most, false),
        (None, Some(least)) => (least, true),
        _ => {
            checker.report(at, "expected exactly one of: at_most = 100, at_least = 10");
            return None;
        }
    };
    let measure = measure(checker, at, raw, loads.get(workload)?)?;
    let mut edge = |key: &str, text: Option<&String>| match text.map(String::as_str) {
        None => Some(None),
        Some("fault") => Some(Some(Edge::Fault)),
        Some("return") => Some(Some(Edge::Return)),
        Some(text) => {
            let time = checker.check_result(&at.key(key), script::duration(text))?;
            Some(Some(Edge::At(time.as_secs_f64() * 1e3)))
        }
    };
    let (from, until) = (edge("from", raw.from.as_ref())?, edge("until", raw.until.as_ref())?);
    let asks = raw.asks.clone().unwrap_or_else(|| raw.measure.replace('_', " "));
    Some(Check { asks, measure, variant, workload, from, until, bound, is_minimum, of })
}

/// Index of the item with this name. Without a name, index of the first item.
fn place(
    checker: &mut Checker<'_>,
    at: &KeyPath,
    name: Option<&str>,
    known: &[&str],
) -> Option<usize> {
    let Some(name) = name else { return Some(0) };
    let found = known.iter().position(|known| *known == name);
    if found.is_none() {
        checker.report(at, format!("unknown name `{name}`; known: {}", known.join(", ")));
    }
    found
}

fn measure(
    checker: &mut Checker<'_>,
    at: &KeyPath,
    raw: &RawCheck,
    load: &Load,
) -> Option<(Measure, &'static str)> {
    let name = raw.measure.as_str();
    if name == SETTLED {
        let below = checker.need(at, "below", "\"30ms\"", raw.below)?;
        return Some((Measure::Settled(below.ms()), " s"));
    }
    let why = format!("this key needs measure = \"{SETTLED}\"");
    checker.refuse(at, "below", &why, raw.below.as_ref());
    if let Some((_, measure, unit)) = MEASURES.iter().find(|(known, ..)| *known == name) {
        return Some((measure.clone(), unit));
    }
    let own = Measures::names(load);
    if let Some((known, unit)) = own.iter().find(|(known, _)| *known == name) {
        let unit = match *unit {
            "ms" => " ms",
            "%" => " %",
            "kbit/s" => " kbit/s",
            _ => "",
        };
        return Some((Measure::Named(known), unit));
    }
    let known = MEASURES.iter().map(|(known, ..)| *known).chain([SETTLED]);
    let known: Vec<&str> = known.chain(own.iter().map(|(known, _)| *known)).collect();
    checker.report(
        &at.key("measure"),
        format!("unknown measure `{name}`; known: {}", known.join(", ")),
    );
    None
}
