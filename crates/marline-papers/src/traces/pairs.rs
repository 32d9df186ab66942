//! Pairs of recorded links.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use marline_link::trace::{ArrivalTrace, PingTrace};
use marline_link::{DuplexSpec, RateSpec};

use super::setup::{Recording, Setup};

/// Headers of a packet on the train: Ethernet aside, IPv4 and TCP with timestamps and DSS.
const TRAIN_HEADERS: u32 = 72;
/// Windows in which the rate on the train is taken.
const TRAIN_WINDOW: Duration = Duration::from_millis(500);

/// Two links, in one or several parts of their recordings.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    /// What tables call it.
    pub(super) name: String,
    /// Names of its paths.
    pub(super) paths: [String; 2],
    /// For each part the descriptions of both links.
    pub(super) parts: Vec<[String; 2]>,
}

/// Every pair in a directory of traces.
pub(super) fn pairs(directory: &Path, setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let mut files = Vec::new();
    list(directory, &mut files)?;
    for file in &files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(session) = name.strip_suffix(".csv").filter(|_| !name.contains(".arrivals")) {
            pairs.extend(of_pings(file, session, setup)?);
        }
    }
    pairs.extend(of_recordings(&files, setup));
    pairs.extend(of_train(&files, setup)?);
    Ok(pairs)
}

fn list(directory: &Path, files: &mut Vec<std::path::PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut here: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    here.sort();
    for path in here {
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// The carriers of one session of pings, each with each other.
fn of_pings(file: &Path, session: &str, setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    // Another table, not pings.
    let Ok(carriers) = PingTrace::parse_all(session, &bytes) else { return Ok(Vec::new()) };
    let names: Vec<String> = carriers.into_keys().collect();
    let link = |name: &str, from_ms: u32| {
        let at = if from_ms > 0 { format!("@{from_ms}ms") } else { String::new() };
        format!("{},ping={session}:{name}{at}", setup.ping_link)
    };
    let parts = |a: &str, b: &str| -> Vec<[String; 2]> {
        setup.ping_from_ms.iter().map(|from| [link(a, *from), link(b, *from)]).collect()
    };
    Ok(each_with_each(&names)
        .map(|(a, b)| Pair {
            name: format!("{session} {a} + {b}"),
            paths: [a.clone(), b.clone()],
            parts: parts(a, b),
        })
        .collect())
}

fn each_with_each<T>(items: &[T]) -> impl Iterator<Item = (&T, &T)> {
    let pairs = |(index, first)| items[index + 1..].iter().map(move |second| (first, second));
    items.iter().enumerate().flat_map(pairs)
}

fn of_recordings(files: &[std::path::PathBuf], setup: &Setup) -> Vec<Pair> {
    let there = |name: &str| {
        let is = |ending: &str| files.iter().any(|file| file.ends_with(format!("{name}{ending}")));
        (is(".up.gz") || is(".up")) && (is(".down.gz") || is(".down"))
    };
    let known: Vec<_> = setup.recording.iter().filter(|one| there(&one.trace)).collect();
    each_with_each(&known)
        .map(|(a, b)| {
            let link = |one: &Recording, from_s: u64| {
                format!("trace={}@{from_s}s,{}", one.trace, one.link)
            };
            let parts = a.from_s.iter().zip(&b.from_s);
            let short = |name: &str| name.trim_end_matches("-driving").to_lowercase();
            let short = |name: &str| short(name).trim_end_matches("-short").to_owned();
            let paths = [short(&a.trace), short(&b.trace)];
            Pair {
                name: paths.join(" + "),
                paths,
                parts: parts.map(|(from_a, from_b)| [link(a, *from_a), link(b, *from_b)]).collect(),
            }
        })
        .collect()
}

/// Arrivals that were captured at the same time: their files have the same name up to the carrier's.
fn of_train(files: &[std::path::PathBuf], setup: &Setup) -> anyhow::Result<Vec<Pair>> {
    let mut sets: BTreeMap<String, Vec<(String, &Path)>> = BTreeMap::new();
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(stem) = name.strip_suffix(".arrivals.csv.gz") else { continue };
        // elephant_TIME_CONGESTION_CARRIER_INTERFACE
        let words: Vec<&str> = stem.split('_').collect();
        if let [kind, time, congestion, carrier, _] = words[..] {
            let set = format!("{kind}-{time}-{congestion}");
            sets.entry(set).or_default().push((carrier.to_lowercase(), file));
        }
    }
    let mut pairs = Vec::new();
    for members in sets.values() {
        for ((a, file_a), (b, file_b)) in each_with_each(members) {
            let links = [train_link(file_a, setup)?, train_link(file_b, setup)?];
            let name = format!("train {a} + {b}");
            pairs.push(Pair { name, paths: [a.clone(), b.clone()], parts: vec![links] });
        }
    }
    Ok(pairs)
}

fn train_link(file: &Path, setup: &Setup) -> anyhow::Result<String> {
    let named = || file.display().to_string();
    let bytes = std::fs::read(file).with_context(named)?;
    let trace = ArrivalTrace::parse(&named(), &bytes)?;
    let steps = trace.rate_steps(TRAIN_WINDOW, TRAIN_HEADERS).map_err(anyhow::Error::msg)?;
    let mut spec: DuplexSpec = setup.train_link.parse().with_context(|| "train_link")?;
    spec.down.rate = RateSpec::Steps((*steps).clone());
    Ok(spec.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::PaperFile;

    #[test]
    fn pairs_are_found_by_what_the_files_hold() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(directory.path().join("set")).unwrap();
            std::fs::write(directory.path().join("set").join(name), text).unwrap();
        };
        let rows = |carrier: &str| format!("{carrier},1,0,50\n{carrier},2,200,60\n");
        let head = "carrier,seq,t_send_ms,rtt_ms\n";
        write("s1.csv", &format!("{head}{}{}{}", rows("a"), rows("b"), rows("c")));
        write("index.csv", "session,carriers\ns1,3\n");
        for name in ["ATT-LTE-driving", "Verizon-LTE-short"] {
            write(&format!("{name}.up"), "1\n2\n");
            write(&format!("{name}.down"), "1\n2\n");
        }
        // Its other direction is missing.
        write("TMobile-LTE-short.down", "1\n2\n");
        let file = PaperFile::<Setup>::parse(super::super::setup::TEXT).unwrap();
        let pairs = pairs(directory.path(), &file.published).unwrap();
        let names: Vec<&str> = pairs.iter().map(|pair| pair.name.as_str()).collect();
        assert_eq!(names, ["s1 a + b", "s1 a + c", "s1 b + c", "att-lte + verizon-lte"]);
        assert_eq!(pairs[0].parts[0][1], "down.rate=20M,up.rate=10M,queue=200ms,ping=s1:b");
        assert_eq!((pairs[0].parts.len(), pairs[3].parts.len()), (3, 4));
        assert!(pairs[3].parts[2][0].starts_with("trace=ATT-LTE-driving@300s,delay=20ms"));
    }
}
